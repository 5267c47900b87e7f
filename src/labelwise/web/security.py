"""What stands between a stranger and the server: checked on every request, before anything else.

    Host          one of the names the server was given, so that no other site's name leads here
    Origin        a request that changes something, or costs work, comes from this page or no page
    token         where there is one, every answer but the page's own files and health needs it
    body          so many bytes, within so many seconds
    rate          so many requests per second and client

Decisions rest on the raw headers and the path as the server received them, never on an address
put together from both. Every answer carries the headers that keep a browser from running or
framing what is not ours, and errors say one sentence as ``application/problem+json``.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.web.settings import ServeSettings

__all__ = ["COOKIE", "MISTAKE", "Guard", "RefusedError", "cookie_value", "problem", "same_token"]

COOKIE = "labelwise_session"
SAFE = {"GET", "HEAD", "OPTIONS"}
OPEN_PATHS = ("/health/", "/v2/health/", "/static/")
OPEN_PAGES = ("/", "/favicon.svg", "/api/v1/session")
CLIENTS_KEPT = 4096
MISTAKE = "the server made a mistake; its log says which"
HOST = re.compile(r"(?P<name>[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII)

HEADERS = {
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
RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

log = logging.getLogger("labelwise.web")


class RefusedError(Exception):
    """A request that gets a problem for an answer."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as RFC 9457 describes it."""
    facts = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    return Response(
        json.dumps(facts | {"detail": detail}),
        status,
        dict(headers or {}),
        media_type="application/problem+json",
    )


def cookie_value(token: str) -> str:
    """Return what the cookie holds: proof of the token, and not the token."""
    return hmac.new(token.encode(), b"labelwise session", hashlib.sha256).hexdigest()


def same_token(one: str, other: str) -> bool:
    """Compare in a time that does not tell how much is right."""
    return hmac.compare_digest(one.encode(), other.encode())


class Guard:
    """The outermost part of the server: refuses, limits, and marks what leaves."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.rates = _Rates(settings.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                present = {name for name, _ in message["headers"]}
                added = [header for header in RAW_HEADERS if header[0] not in present]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        answer: Response | None = None
        try:
            self._check(scope)
            await self.app(scope, self._limited(receive), marked)
        except RefusedError as refused:
            answer = problem(refused.status, refused.detail, refused.headers)
        except Exception:
            log.exception("an error while answering %s %s", scope["method"], scope["path"])
            answer = problem(500, MISTAKE)
        if answer is not None and not started:
            await answer(scope, receive, marked)

    def _check(self, scope: Scope) -> None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = _only(headers, "host")
        self._check_host(host)
        self._check_rate(scope)
        if scope["method"] not in SAFE:
            _check_origin(headers, host or "")
        self._check_token(scope, headers)
        self._check_length(headers)

    def _check_host(self, host: str | None) -> None:
        found = HOST.fullmatch((host or "").lower())
        if found is None or found["name"].strip("[]") not in self.settings.names:
            raise RefusedError(
                400,
                "the Host header names no host of this server; "
                "start it with --allow-host NAME to let it answer to one more name",
            )

    def _check_rate(self, scope: Scope) -> None:
        client = scope.get("client") or ("", 0)
        wait = self.rates.take(client[0])
        if wait > 0:
            raise RefusedError(
                429, "too many requests from this address", {"retry-after": str(int(wait) + 1)}
            )

    def _check_token(self, scope: Scope, headers: Mapping[str, list[str]]) -> None:
        token, path = self.settings.token, scope["path"]
        if token is None or path in OPEN_PAGES or path.startswith(OPEN_PATHS):
            return
        kind, _, given = (_only(headers, "authorization") or "").partition(" ")
        if kind.lower() == "bearer" and same_token(given.strip(), token):
            return
        cookies: SimpleCookie = SimpleCookie()
        for text in headers.get("cookie", ()):
            try:
                cookies.load(text)
            except CookieError:
                continue
        if COOKIE in cookies and same_token(cookies[COOKIE].value, cookie_value(token)):
            return
        raise RefusedError(401, "a token is needed here", {"www-authenticate": "Bearer"})

    def _check_length(self, headers: Mapping[str, list[str]]) -> None:
        length = _only(headers, "content-length")
        if length is not None and (not length.isdecimal() or len(length) > 15):
            raise RefusedError(400, "the Content-Length header is no number")
        if length is not None and int(length) > self.settings.max_body:
            raise self._too_large()

    def _too_large(self) -> RefusedError:
        return RefusedError(
            413,
            f"a request may have {self.settings.max_body:,} bytes; send fewer or smaller pictures",
            {"connection": "close"},
        )

    def _limited(self, receive: Receive) -> Receive:
        """Return a receive that counts bytes and seconds until the body is there."""
        end = time.monotonic() + self.settings.request_seconds
        size, whole = 0, False

        async def limited() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()  # the end of the connection, waited for as long as it takes
            left = min(self.settings.idle_seconds, end - time.monotonic())
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    message = await receive()
            except TimeoutError:
                raise RefusedError(
                    408, "the request came too slowly", {"connection": "close"}
                ) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if size > self.settings.max_body:
                    raise self._too_large()
            return message

        return limited


def _only(headers: Mapping[str, list[str]], name: str) -> str | None:
    values = headers.get(name, [])
    if len(values) > 1:
        raise RefusedError(400, f"the header {name} may stand once")
    return values[0] if values else None


def _check_origin(headers: Mapping[str, list[str]], host: str) -> None:
    """Refuse what another site's page makes a browser send; programs send neither header."""
    site, origin = _only(headers, "sec-fetch-site"), _only(headers, "origin")
    foreign = site is not None and site.lower() not in ("same-origin", "none")
    if origin is not None:
        foreign |= origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}")
    if foreign:
        raise RefusedError(403, "requests from pages of other sites are not answered")


class _Rates:
    """One bucket per client: it fills with ``rate`` per second, up to four seconds' worth."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """Count a request; return how long to wait before the next, 0 if it may go on."""
        if not self.rate:
            return 0.0
        now = time.monotonic()
        most = max(4 * self.rate, 1.0)
        level, before = self._buckets.pop(client, (most, now))
        level = min(most, level + self.rate * (now - before))
        allowed = level >= 1
        self._buckets[client] = (level - allowed, now)
        while len(self._buckets) > CLIENTS_KEPT:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - level) / self.rate
