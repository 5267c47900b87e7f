"""JSON requests to services that may be slow, broken or hostile.

A request has a limit of total time, not only between two bytes, and of the answer's size. No
redirect is followed: the key would go with it. Each segment of a path is quoted.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.system.text import one_line


class ServiceError(LabelwiseError):
    """A service did not do what it was asked for; ``status`` is its answer, if it gave one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class JsonService:
    """A service at an address, asked with the same headers each time."""

    def __init__(
        self,
        address: str,
        headers: Mapping[str, str],
        *,
        seconds: float = 60.0,
        largest: int = 64 << 20,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise SettingsError(f"an address must look like http://host:2283, got {address!r}")
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.headers, self.seconds, self.largest = dict(headers), seconds, largest

    def ask(self, method: str, *segments: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that a request is answered with, None for an empty answer."""
        if any(segment.strip(".") == "" for segment in segments):
            raise ServiceError(f"{self.address}: a path cannot hold the segment {segments!r:.80}")
        path = "".join("/" + quote(segment, safe="") for segment in segments)
        kind = {} if body is None else {"content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {**self.headers, **kind}, method=method)
        content = self._content(request, f"{method} {path}")
        if len(content) > self.largest:
            raise ServiceError(f"{self.address} answers with more than {self.largest:,} bytes")
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise ServiceError(f"{self.address} answers {method} {path} with no JSON") from None

    def _content(self, request: Request, asked: str) -> bytes:
        watch = _Watch()
        opener = build_opener(_NoRedirects, _Http(watch), _Https(watch))
        timer = Timer(self.seconds, watch.stop)
        timer.daemon = True
        timer.start()
        reason = f"it took more than {self.seconds:g} seconds"
        try:
            with opener.open(request, timeout=self.seconds) as answer:
                content: bytes = answer.read(self.largest + 1)
        except HTTPError as error:
            with error:
                said = f"{error.code} {one_line(str(error.reason))}"
            raise ServiceError(f"{self.address} answers {asked} with {said}", error.code) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            if not watch.over:
                reason = one_line(str(getattr(error, "reason", error)))
            raise ServiceError(f"{self.address} does not answer: {reason}") from None
        finally:
            timer.cancel()
        if watch.over:
            raise ServiceError(f"{self.address} does not answer: {reason}")
        return content


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *given: Any) -> None:
        return None


class _Watch:
    """The sockets of a request, which are shut down when its time is over."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.over = False

    def connection(self, kind: type[HTTPConnection], *given: Any, **options: Any) -> HTTPConnection:
        """Return a connection whose socket is watched."""
        made = kind(*given, **options)
        connect = made.connect

        def connected() -> None:
            connect()
            self.sockets.append(made.sock)

        made.connect = connected  # type: ignore[method-assign]
        return made

    def stop(self) -> None:
        """End what is under way."""
        self.over = True
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Http(HTTPHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(self.watch.connection, HTTPConnection), request)


class _Https(HTTPSHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(self.watch.connection, HTTPSConnection), request)
