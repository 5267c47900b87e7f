"""The options of all verbs, declared once in ``options.toml``, and what several verbs do with them.

A verb names those that it takes in ``verbs.toml``, so one name has one meaning everywhere. None, or
False, means that an option was not given.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labelwise.errors import SettingsError

SERVER = (  # of all that listen
    "allow_origin max_body body_memory body_disk client_queue trusted_proxy rate connections "
    "client_connections decoders access_log"
)
KINDS: dict[str, Any] = {
    "text": str | None,
    "path": Path | None,
    "int": int | None,
    "number": float | None,
    "flag": bool,
    "switch": bool | None,
    "texts": list[str] | None,
    "paths": list[Path] | None,
}


@dataclass(frozen=True)
class Option:
    """One option: its type, help and flags, whether it names a file to write, and the rest."""

    kind: Any
    help: str
    flags: tuple[str, ...]
    writes: bool
    typed: Mapping[str, Any]


def declared(file: str) -> dict[str, dict[str, Any]]:
    """Return a table of the command line that is kept as TOML beside this file."""
    return tomllib.loads((files("labelwise.cli") / file).read_text("utf-8"))


def _option(type: str | list[str], help: str, **more: Any) -> Option:
    chosen: Any = None if isinstance(type, str) else Literal.__getitem__(tuple(type))
    kind = KINDS[type] if isinstance(type, str) else chosen | None
    return Option(kind, help, tuple(more.pop("flags", ())), more.pop("writes", False), more)


DECLARED = {name: _option(**facts) for name, facts in declared("options.toml").items()}


class Options:
    """What a command line gave; a verb's object has the options of that verb alone."""

    _environment: frozenset[str] = frozenset()  # names of options that no flag gave

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def target(self) -> Path:
        return Path(self.out or "")

    def get(self, name: str, default: float) -> Any:
        value = getattr(self, name)
        return default if value is None else value

    def as_typed(self, *names: str) -> str:
        told = ((flag_of(name), getattr(self, name)) for name in names)
        return "".join(f" {flag} {value}" for flag, value in told if value)

    def refuse(self, reason: str, *names: str) -> None:
        """Stop if the command line gave one of these options, which mean nothing here."""
        for name in names:
            value = getattr(self, name)
            if value not in (None, False, []) and name not in self._environment:
                raise SettingsError(f"{flag_of(name)} does not apply: {reason}; leave it out")


def flag_of(name: str) -> str:
    """Return how an option is typed."""
    return f"--{name.strip('_').replace('_', '-')}"


def model_path(given: Options) -> Path | None:
    """Return the local folder or file of ``--model``; a run in a bucket is fetched."""
    from labelwise.base.storage import is_uri
    from labelwise.models.run_folder import fetched_run

    if given.model is None:
        return None
    return fetched_run(given.model, "model") if is_uri(given.model) else Path(given.model)


def decoder_of(given: Options) -> Literal["cpu", "cuda"]:
    """Return who decodes JPEGs for a model on the device; stop where it cannot be had."""
    device = given.device or "cpu"
    on_gpu = device.partition(":")[0] == "cuda"
    if given.decode == "cuda" and not on_gpu:
        raise SettingsError(f"--decode cuda needs a model on a GPU, --device cuda; got {device}")
    return "cuda" if on_gpu and given.decode in ("auto", "cuda") else "cpu"


def check_weights(given: Options) -> None:
    """Stop at the weights of --features where no features are asked for."""
    if given.weights is not None and given.features is None:
        raise SettingsError(
            "--weights are those of --features, which is not given; for a backbone that is "
            f"trained say --set weights={given.weights}"
        )


def load_table(source: str, given: Options) -> Any:
    """Return the label table of a source, read as the options of its format say."""
    from labelwise.tables import load

    return load(source, **reading(given))


def reading(given: Options) -> dict[str, Any]:
    """Return how a verb was told to read a table; flags count more than ``--set``."""
    from labelwise.base.yaml_values import nested, parse_assignments

    names = ("skip_missing", "skip_broken", "duplicates", "extension")
    flags = {name: getattr(given, name) for name in names if getattr(given, name, None)}
    return nested(parse_assignments(given.set or ())) | flags


def read_secret(file: Path | None, variable: str, what: str, flag: str) -> str | None:
    """Return what a file or a variable of the environment holds; None where neither is given."""
    given = os.environ.get(variable)
    if file is None:
        return given or None
    if given:
        raise SettingsError(f"give {what} once: {flag} or {variable}, not both")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        what = what.removeprefix("the ")
        raise SettingsError(f"{what} file {file} cannot be read: {reason}") from None
