"""Requests to a server and its answers, over HTTP, with Python's own library alone.

A request that the server has no room for (429) or cannot answer now (503) is sent again after the
time the server names, a few times; whatever else is refused raises ServerError with its sentence.
"""

import json
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.system.text import one_line, one_line_of, shortened

Picture = bytes | str | os.PathLike[str]
"""The encoded bytes of a picture, or the path of its file."""

LONGEST_WAIT = 60
PIECE = 1 << 20  # bytes that are read of an answer at a time
MOST_BYTES = 2 << 30
SECONDS = re.compile("[0-9]{1,6}")
IN_FORMS = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})  # as browsers send names


class ServerError(LabelwiseError):
    """A server that refuses a request, with its status and sentence; status 0: it is not there."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Connection:
    """Where a server is, and how patient the client is with it.

    ``timeout`` is in seconds, for each step of a request; ``retries`` is how often a request is
    sent again that the server has no room for.
    """

    def __init__(
        self, address: str, token: str | None = None, *, timeout: float = 120.0, retries: int = 3
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise SettingsError(
                f"the address of a server must be as in http://127.0.0.1:8000, got {address!r}"
            )
        self._parts, self._token = parts, token
        self._timeout, self._retries = timeout, retries

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        pictures: Sequence[Picture] | None = None,
    ) -> bytes:
        """Return the content of an answer; what is None in a query or body is left out."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        content: bytes | None = None
        if pictures is not None:
            content, headers["Content-Type"] = _form(pictures)
        elif body is not None:
            given = {name: value for name, value in body.items() if value is not None}
            content, headers["Content-Type"] = json.dumps(given).encode(), "application/json"
        pairs = [(name, value) for name, value in (query or {}).items() if value is not None]
        target = self._parts.path.rstrip("/") + path
        if pairs:
            target += "?" + urlencode(pairs, doseq=True)
        for retries_left in range(self._retries, -1, -1):
            status, wait, answer = self._sent(method, target, content, headers)
            if status not in (429, 503) or not retries_left:
                break
            time.sleep(wait)
        if status >= 400:
            raise ServerError(status, _detail(status, answer))
        return answer

    def json(self, method: str, path: str, **given: Any) -> Any:
        """Return what an answer in JSON holds."""
        content = self.ask(method, path, **given)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise ServerError(
                0, f"{self._parts.netloc} does not answer in JSON; is it a labelwise server?"
            ) from None

    def _sent(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, int, bytes]:
        """Return the status of an answer, the seconds to wait that it names, and its content."""
        kind: type[HTTPConnection] = HTTPConnection
        options: dict[str, Any] = {"timeout": self._timeout}
        if self._parts.scheme == "https":
            kind, options["context"] = HTTPSConnection, ssl.create_default_context()
        connection = kind(self._parts.hostname or "", self._parts.port, **options)
        try:
            connection.request(method, target, content, dict(headers))
            with connection.getresponse() as answer:
                wait = answer.headers.get("retry-after", "1")
                seconds = min(LONGEST_WAIT, int(wait)) if SECONDS.fullmatch(wait) else 1
                return answer.status, seconds, _content(answer)
        except (OSError, HTTPException) as error:
            reason = shortened(one_line_of(error))
            raise ServerError(0, f"{self._parts.netloc} does not answer: {reason}") from None
        finally:
            connection.close()


def _content(answer: HTTPResponse) -> bytes:
    """Return the content of an answer, read in pieces: what a server says of its length may lie."""
    pieces, size = [], 0
    while piece := answer.read(PIECE):
        size += len(piece)
        if size > MOST_BYTES:
            raise HTTPException(f"its answer has more than {MOST_BYTES:,} bytes")
        pieces.append(piece)
    if answer.length:
        raise IncompleteRead(b"", answer.length)
    return b"".join(pieces)


def part(value: object) -> str:
    """Return a value as one part of a path."""
    return quote(str(value), safe="")


def _detail(status: int, answer: bytes) -> str:
    try:
        return shortened(one_line(str(json.loads(answer)["detail"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"the server answers with status {status}"


def _form(pictures: Sequence[Picture]) -> tuple[bytes, str]:
    """Return pictures as the files of a form, and its type."""
    mark = token_hex(24)
    parts = []
    for number, picture in enumerate(pictures):
        name, content = f"picture {number}", picture
        if not isinstance(content, bytes):
            path = Path(content)
            name = path.name.translate(IN_FORMS)
            content = path.read_bytes()
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"'
        parts += [head.encode("utf-8", "surrogateescape"), b"\r\n\r\n", content, b"\r\n"]
    return b"".join([*parts, f"--{mark}--\r\n".encode()]), f"multipart/form-data; boundary={mark}"
