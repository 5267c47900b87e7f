"""The application: routes, errors as problems, measured requests, the page."""

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise import __version__
from labelwise.errors import LabelwiseError
from labelwise.pictures.decoders import DecoderError
from labelwise.server.api import PLACE, make_api
from labelwise.server.batching import BusyError
from labelwise.server.bodies import Bodies
from labelwise.server.bridges import make_label_studio, make_photoprism
from labelwise.server.inference_protocol import make_inference_protocol, request_schemas
from labelwise.server.library import PhotoNotFoundError
from labelwise.server.monitoring import AccessLog, Monitor
from labelwise.server.schemas import CURSOR, PHOTO_ID, Health
from labelwise.server.security import (
    COOKIE,
    MISTAKE,
    Guard,
    RefusedError,
    is_open,
    picture_route,
    problem,
)
from labelwise.server.service import Service
from labelwise.server.settings import ServeSettings
from labelwise.system.files import WriteError
from labelwise.system.storage import StorageError

# The page: a few files of HTML, style and script, kept in memory and served as they are.
#
# The style sheet is the report's with the page's own after it. Nothing is put together from what
# users or models bring: scripts set text, never markup.


TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_page(app: FastAPI, name: str = "index.html") -> None:
    """Add a page and all files of pages to an application."""
    folder = files("labelwise.server") / "static"
    kept = {
        file.name: (file.read_bytes(), TYPES[f".{file.name.rpartition('.')[2]}"])
        for file in folder.iterdir()
        if f".{file.name.rpartition('.')[2]}" in TYPES
    }
    shared = (files("labelwise.markup") / "style.css").read_bytes()
    kept["style.css"] = (shared, "text/css")
    page, docs = ((folder / one).read_bytes() for one in (name, "docs.html"))

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return _answer(request, page, "text/html")

    @app.get("/docs", include_in_schema=False)
    async def described(request: Request) -> Response:
        return _answer(request, docs, "text/html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        if name not in kept:
            return problem(404, "there is no such file")
        return _answer(request, *kept[name])


def _answer(request: Request, content: bytes, kind: str) -> Response:
    mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)


log = logging.getLogger("labelwise.server")

PATTERNS = {  # what a text must be that has one of these
    PHOTO_ID: "must be the id of a photo as /api/v1/search lists it: 64 digits and letters a to f",
    CURSOR: "must be the one of the answer before, up to 7 digits; leave it out for the first page",
}


def create_app(
    run: Path,
    index: Path | None = None,
    settings: ServeSettings | None = None,
    *,
    device: str = "cpu",
    threads: int | None = None,
) -> "ServerApp":
    """Return the application that serves a run, and an index where one is given.

    A forward pass is computed by ``threads`` threads, by default as many as torch has here.
    """
    settings = settings or ServeSettings()
    log = None if settings.access_log is None else AccessLog(settings.access_log)
    service = Service(run, index, settings, device, threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if log is not None:
            log.start()
        await service.start()
        try:
            yield
        finally:
            await service.stop()
            if log is not None:
                log.close()

    app = FastAPI(
        title="labelwise",
        version=__version__,
        summary="Labels of pictures with probabilities that mean what they say.",
        openapi_url=None,  # _add_description answers it
        docs_url=None,  # its scripts come from a CDN
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=_operation_name,
    )
    add_errors(app, when_busy=service.monitor.busy.inc)
    _add_health(app, service)
    app.include_router(make_api(service))
    app.include_router(make_inference_protocol(service))
    if settings.photoprism:
        app.include_router(make_photoprism(service))
    if settings.label_studio is not None:
        app.include_router(make_label_studio(service, settings.label_studio))
    add_page(app)
    _add_description(app)
    bodies = Bodies(app, settings.body_memory, settings.body_disk)
    guard = Guard(_Measured(_Room(bodies, service), service.monitor, log), settings)
    return ServerApp(guard, service)


class ServerApp:
    """The application, and what it serves."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self.app(scope, receive, send)


def _operation_name(route: APIRoute) -> str:
    """Return what a request is called in the description."""
    name = route.name
    if route.path_format.startswith("/api/v1/"):
        is_answer = route.path_format.startswith("/api/v1/models/{model}/") and name != "reload"
        return f"{name}_of_model" if is_answer else name
    return f"{route.path_format.split('/')[1].replace('-', '_')}_{name}"


def _add_description(app: FastAPI) -> None:
    """Answer /openapi.json with what whoever asks first has a thread describe.

    That takes half a second, for which neither the start of the server waits nor its event loop.
    """
    one_at_a_time = Lock()

    def description(_: Request) -> Response:
        with one_at_a_time:
            if app.openapi_schema is None:
                _complete(app.openapi())
        return JSONResponse(app.openapi())

    app.add_route("/openapi.json", description, include_in_schema=False)


def _complete(whole: dict[str, Any]) -> None:
    """Add to a description what the framework cannot know: how to prove who asks, and schemas."""
    parts = whole.setdefault("components", {})
    parts.setdefault("schemas", {}).update(request_schemas())
    parts["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    }
    for path, methods in whole["paths"].items():
        for operation in methods.values():
            # An empty requirement: a server without a token asks for none.
            operation["security"] = [] if is_open(path) else [{"token": []}, {"cookie": []}, {}]


def add_errors(app: FastAPI, when_busy: Callable[[], None] = lambda: None) -> None:
    """Have an application answer every error with a problem of one sentence."""

    async def refused(_: Request, error: Exception) -> Response:
        if not isinstance(error, RefusedError):
            raise error
        return problem(error.status, error.detail, error.headers)

    async def busy(_: Request, error: Exception) -> Response:
        if not isinstance(error, BusyError):
            raise error
        when_busy()
        return busy_problem(error)

    async def out_of_reach(_: Request, error: Exception) -> Response:
        return problem(503, "the storage of the photos does not answer; try again later")

    async def not_now(_: Request, error: Exception) -> Response:
        return problem(503, str(error), {"retry-after": "1"})

    async def not_written(_: Request, error: Exception) -> Response:
        log.error("%s", error)  # its path is not for those who ask
        return problem(503, "the server cannot write to its disk; try again later")

    async def not_found(_: Request, error: Exception) -> Response:
        return problem(404, str(error))

    async def unusable(_: Request, error: Exception) -> Response:
        return problem(422, str(error))

    async def not_http(_: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        words = error.detail or HTTPStatus(error.status_code).phrase
        return problem(error.status_code, words, error.headers)

    async def invalid(_: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        first = error.errors()[0]
        words = PATTERNS.get((first.get("ctx") or {}).get("pattern", ""))
        if words is not None:
            return problem(422, f"{first['loc'][-1]} {words}")
        where = ".".join(map(str, first["loc"]))
        return problem(422, f"{where}: {first['msg']}")

    async def gone(_: Request, error: Exception) -> Response:
        return problem(408, "the client has gone")  # nobody reads it, but it is counted

    async def mistaken(_: Request, error: Exception) -> Response:
        return problem(500, MISTAKE)

    handlers: dict[Any, Callable[[Request, Exception], Any]] = {
        RefusedError: refused,
        BusyError: busy,
        PhotoNotFoundError: not_found,
        StorageError: out_of_reach,
        WriteError: not_written,
        DecoderError: not_now,
        LabelwiseError: unusable,
        HTTPException: not_http,
        RequestValidationError: invalid,
        ClientDisconnect: gone,
        Exception: mistaken,  # and the guard writes it to the log
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/health/live", tags=["health"])
    async def live() -> Health:
        return Health(status="live")

    @app.get("/health/ready", tags=["health"])
    async def ready() -> Health:
        if not service.is_ready:
            raise RefusedError(503, "the server is starting or stopping, or must be restarted")
        return Health(status="ready")

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        for lane in list(service.lanes.values()):
            await service.trust_view(lane.model)  # what alarms and shares are now
        content = await service.aside(lambda: generate_latest(service.monitor.registry))
        return Response(content, media_type=CONTENT_TYPE_LATEST)


class _Room:
    """Refuses pictures for which there is no room, before anything else is done for them.

    Under overload this is what the server mostly does: it must cost as little as can be, and no
    byte of the body is read.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["method"] == "POST"
        route = picture_route(scope["path"]) if asks else None
        if route is None:
            await self.app(scope, receive, send)
            return
        scope["route_path"] = route
        try:
            place = self.service.queue.reserve((scope.get("client") or ("", 0))[0])
        except BusyError as error:
            self.service.monitor.busy.inc()
            await busy_problem(error)(scope, receive, send)
            return
        scope[PLACE] = place
        try:
            await self.app(scope, receive, send)
        finally:
            place.release()


def busy_problem(error: BusyError) -> Response:
    """Return the answer to a request that there is no room for."""
    return problem(429, str(error), {"retry-after": str(error.seconds)})


class _Measured:
    """Times every request by its route, not by its path, which may hold any id."""

    def __init__(self, app: ASGIApp, monitor: Monitor, log: AccessLog | None) -> None:
        self.app, self.monitor, self.log = app, monitor, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, sent = time.perf_counter(), 500, 0
        # HEAD is answered as GET is; the server that sends the answer leaves out its body.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def noted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(inner, receive, noted)
        finally:
            route = inner.get("route_path") or getattr(inner.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            seconds = time.perf_counter() - began
            self.monitor.requests.labels(method, route, str(status)).observe(seconds)
            if self.log is not None:
                self.log.note(
                    client=(scope.get("client") or ("", 0))[0],
                    method=method,
                    path=scope["path"],
                    route=route,
                    status=status,
                    ms=round(1000 * seconds, 1),
                    bytes=0 if method == "HEAD" else sent,
                )


METHODS = {"GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PATCH"}
