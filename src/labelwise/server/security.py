"""The guard of the server, before anything else of a request is looked at.

    Host          one of the names the server was given, so that no other site's name leads here
    Origin        all but the page's own files and health is for this page, for programs, and for
                  pages of the allowed origins
    token         every answer but the page's own files and health needs it, where there is one
    body          limited bytes and seconds; its length is given in one way
    client        the address of the connection, or what a trusted proxy names last

Decisions rest on the raw headers and the path as they were received.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Set
from contextlib import suppress
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from labelwise.base.text import shortened
from labelwise.server.settings import ServeSettings, same_address

COOKIE = "labelwise_session"
OPEN_PATHS = ("/health/", "/static/")
SESSION = "/api/v1/session"
OPEN_PAGES = ("/", "/favicon.svg", SESSION)
PREDICT, PREDICT_OF = "/api/v1/predict", "/api/v1/models/{model}/predict"
PHOTOPRISM, LABEL_STUDIO = "/photoprism/labels", "/label-studio"
PICTURE_PATHS = (PREDICT, PHOTOPRISM, f"{LABEL_STUDIO}/predict")
NAMED_PATH = re.compile(r"/api/v1/models/[^/]+/predict")
SMALL_BODY = 256 << 10  # of requests without pictures, which are read by the event loop
TOKEN_BODY = 4 << 10  # of the request that everyone may send
MISTAKE = "the server made a mistake; its log says which"
CLOSE = {"connection": "close"}
HOST = re.compile(r"(?P<name>[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII)

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
RAW_HEADERS = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}


class RefusedError(Exception):
    """A request that gets a problem for an answer."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as RFC 9457 describes it; ``error`` repeats ``detail``."""
    facts = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    content = json.dumps(facts | dict.fromkeys(("detail", "error"), shortened(detail)))
    return Response(content, status, headers, media_type="application/problem+json")


def picture_route(path: str) -> str | None:
    """Return the route of a path whose requests may hold pictures, and be large; else None."""
    if path in PICTURE_PATHS:
        return path
    return PREDICT_OF if NAMED_PATH.fullmatch(path) else None


def cookie_value(token: str) -> str:
    """Return what the cookie holds: proof of the token, and not the token."""
    return hmac.new(token.encode(), b"labelwise session", hashlib.sha256).hexdigest()


def same_token(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


class Guard:
    """Whether a request is let in, and with how large a body."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self._names, self._proxies, token = settings.names, settings.proxies, settings.token
        self._proofs = None if token is None else (token, cookie_value(token))

    def headers(self, scope: Scope) -> dict[str, list[str]]:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(str(name, "latin-1").lower(), []).append(str(value, "latin-1"))
        match = HOST.fullmatch((_only(headers, "host") or "").lower())
        if match is None or match["name"].strip("[]") not in self._names:
            raise RefusedError(400, "the Host header names no host here; add --allow-host NAME")
        if self._proxies:
            peer, port = scope.get("client") or ("", 0)
            scope["client"] = (forwarded_client(peer, headers, self._proxies), port)
        return headers

    def __call__(self, scope: Scope, headers: Mapping[str, list[str]]) -> Response | None:
        path = scope["path"]
        is_public = is_open(path)
        if not is_public or scope["method"] not in ("GET", "HEAD"):
            self._check_origin(headers)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            return Response(status_code=204, headers=PREFLIGHT)
        if self._proofs is not None and not is_public:
            _check_token(headers, *self._proofs)
        return None

    def _check_origin(self, headers: Mapping[str, list[str]]) -> None:
        """Refuse what another site's page makes a browser send; programs send neither header."""
        host = (_only(headers, "host") or "").lower()
        site, origin = _only(headers, "sec-fetch-site"), _only(headers, "origin")
        if origin is not None and origin.lower() in self.settings.origins:
            return
        foreign = site is not None and site.lower() not in ("same-origin", "none")
        if origin is not None:
            foreign |= origin.lower() not in (f"http://{host}", f"https://{host}")
        if foreign:
            words = "start the server with --allow-origin ORIGIN to answer those of one"
            raise RefusedError(403, f"requests from pages of other sites are not answered; {words}")

    def shared_with(self, headers: Mapping[str, list[str]]) -> list[tuple[bytes, bytes]]:
        if not self.settings.origins:
            return []
        origin = _only(headers, "origin") or ""
        allow = (b"access-control-allow-origin", origin.encode("latin-1"))
        return [(b"vary", b"origin"), *([allow] if origin.lower() in self.settings.origins else ())]

    def body(self, path: str, headers: Mapping[str, list[str]], receive: Receive) -> Receive:
        length = _only(headers, "content-length")
        if length is not None and "transfer-encoding" in headers:
            raise RefusedError(400, "give Content-Length or Transfer-Encoding, not both", CLOSE)
        if length is not None and (not length.isdecimal() or len(length) > 15):
            raise RefusedError(400, "the Content-Length header is not a number")
        most = self.settings.max_body
        if picture_route(path) is None:
            most = min(most, TOKEN_BODY if path == SESSION else SMALL_BODY)
        if length is not None and int(length) > most:
            raise _too_large(most)
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise _too_large(most)
            return message

        return limited


def forwarded_client(peer: str, headers: Mapping[str, list[str]], proxies: Set[str]) -> str:
    """Return the address that a trusted proxy names last, or else the peer itself."""
    if same_address(peer) not in proxies or "x-forwarded-for" not in headers:
        return peer
    return same_address(headers["x-forwarded-for"][-1].rpartition(",")[2]) or peer


def _only(headers: Mapping[str, list[str]], name: str) -> str | None:
    values = headers.get(name, [])
    if len(values) > 1:
        raise RefusedError(400, f"the header {name} may stand once")
    return values[0] if values else None


def _check_token(headers: Mapping[str, list[str]], token: str, cookie: str) -> None:
    kind, _, given = (_only(headers, "authorization") or "").partition(" ")
    if kind.lower() == "bearer" and same_token(given.strip(), token):
        return
    if kind.lower() == "basic":  # some programs can send a password and no token
        with suppress(ValueError):
            said = base64.b64decode(given.strip(), validate=True).decode("latin-1")
            if same_token(said.partition(":")[2], token):
                return
    for text in headers.get("cookie", ()):  # read in linear time
        for pair in text.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and same_token(value, cookie):
                return
    raise RefusedError(401, "a token is needed here", {"www-authenticate": "Bearer"})


def is_open(path: str) -> bool:
    """Return whether a path is answered without a token, to anyone, at next to no cost."""
    return path in OPEN_PAGES or path.startswith(OPEN_PATHS)


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"a request may have {most:,} bytes here; send fewer pictures", CLOSE)
