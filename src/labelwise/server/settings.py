"""Settings of a server: where it listens, who may ask, and how much it takes on."""

import itertools
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from labelwise.errors import SettingsError
from labelwise.pictures.prefetch import available_cores

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_TOKEN = 16
ORIGIN = re.compile(r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class ServeSettings:
    """The options of ``labelwise serve``; sizes in bytes, times in seconds.

    ``hosts`` are names beside the loopback ones that the server answers to, ``origins`` the sites
    whose pages may ask. Pictures of one address on their way are limited by ``client_queue``, by
    default half of the queue. Of requests from ``trusted_proxies`` the client is the last of
    X-Forwarded-For. A request must come, and its answer be taken, within ``request_seconds``; a
    connection may wait ``idle_seconds`` for the head of a request. Photos of tasks are read below
    ``label_studio``. ``decoders`` processes open pictures; 0 opens them in threads of the server,
    where a harmful picture is only held back by the limits on bytes and pixels.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_body: int = 32 << 20
    max_files: int = 16
    max_batch: int = 32
    max_wait: float = 0.005
    max_queue: int = 256
    client_queue: int | None = None
    trusted_proxies: tuple[str, ...] = ()
    request_seconds: float = 60.0
    idle_seconds: float = 10.0
    decoders: int | None = None
    access_log: Path | None = None
    photoprism: bool = False
    label_studio: Path | None = None
    models: tuple[tuple[str, Path], ...] = ()

    def __post_init__(self) -> None:
        for mistake in self._mistakes():
            raise SettingsError(mistake)

    def _mistakes(self) -> Iterator[str]:
        if not is_loopback(self.host) and self.token is None:
            yield f"{self.host} can be reached by others, so a token is needed: --token-file FILE"
        token = SHORTEST_TOKEN * "x" if self.token is None else self.token
        if len(token) < SHORTEST_TOKEN or not token.isascii() or " " in token:
            words = "ASCII letters or digits, no space; `openssl rand -hex 24` makes one"
            yield f"a token must have at least {SHORTEST_TOKEN} {words}"
        for origin in itertools.filterfalse(ORIGIN.fullmatch, self.origins):
            yield f"an origin must be as https://photos.example, in lower case, got {origin!r}"
        for address in itertools.filterfalse(same_address, self.trusted_proxies):
            yield f"--trusted-proxy must be the address of one proxy, as 10.0.0.2, got {address!r}"
        if self.label_studio is not None and not self.label_studio.is_dir():
            yield f"--label-studio must be the folder of its photos, got {self.label_studio}"
        for name in itertools.filterfalse(MODEL_NAME.fullmatch, (name for name, _ in self.models)):
            yield f"a model's name must begin with a letter or digit and may hold ._-, got {name!r}"
        if not 0 <= self.port <= 65535:
            yield f"a port must lie between 0 and 65535, got {self.port}"
        least = {"max_body": 1, "max_files": 1, "max_batch": 1, "max_queue": 1}
        least["max_wait"] = 0
        for name, bound in least.items():
            if getattr(self, name) < bound:
                yield f"{name} must be at least {bound}, got {getattr(self, name)}"
        for name in ("request_seconds", "idle_seconds"):
            if not getattr(self, name) > 0:
                yield f"{name} must be positive, got {getattr(self, name)}"
        queues = {"max_queue": self.max_queue, "client_queue": self.pictures_per_client}
        for name, places in queues.items():
            if self.max_files > places:
                yield f"{name} must hold one request of {self.max_files} files, got {places}"

    def folders(self, first: str, run: Path) -> dict[str, Path]:
        folders = {first: run}
        for name, folder in self.models:
            if name in folders:
                raise SettingsError(f"two models have the name {name!r}; rename one by --model")
            folders[name] = folder
        return folders

    @property
    def pictures_per_client(self) -> int:
        if self.client_queue is None:
            return max(self.max_files, self.max_queue // 2)
        return self.client_queue

    @property
    def decode_processes(self) -> int:
        return available_cores() if self.decoders is None else self.decoders

    @property
    def proxies(self) -> frozenset[str]:
        return frozenset(filter(None, map(same_address, self.trusted_proxies)))

    @property
    def names(self) -> frozenset[str]:
        """The names that the Host header may hold, lower case, without port and brackets."""
        own = {self.host} if self.host not in ("0.0.0.0", "::") else set()
        return frozenset(name.lower().strip("[]") for name in {*LOOPBACK, *own, *self.hosts})


def same_address(text: str) -> str | None:
    """Return an IP address as it is written in one way, or None: it is not one."""
    with suppress(ValueError):
        address = ip_address(text.strip())
        return str(getattr(address, "ipv4_mapped", None) or address)
    return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    with suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return host == "localhost"
