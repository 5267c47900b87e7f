"""The application: routes, errors as problems, measured requests, the page."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise import __version__
from labelwise.base.files import WriteError
from labelwise.base.storage import StorageError
from labelwise.errors import LabelwiseError
from labelwise.pictures.worker_starter import DecoderError
from labelwise.server.api import PLACE, make_api
from labelwise.server.batching import BusyError
from labelwise.server.bodies import PIECE, require_cheap
from labelwise.server.monitoring import AccessLog
from labelwise.server.schemas import CURSOR, PHOTO_ID, Health
from labelwise.server.security import (
    CLOSE,
    COOKIE,
    MISTAKE,
    RAW_HEADERS,
    Guard,
    RefusedError,
    is_open,
    picture_route,
    problem,
)
from labelwise.server.service import Service
from labelwise.server.settings import ServeSettings

TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_page(app: FastAPI, name: str = "index.html") -> None:
    """Add a page and all files of pages to an application; they are served as they are."""
    folder, style = files("labelwise.server") / "static", files("labelwise.base") / "style.css"
    kept = {
        f"/static/{file.name}": (file.read_bytes(), TYPES[suffix])
        for file in (*folder.iterdir(), style)
        if (suffix := Path(file.name).suffix) in TYPES
    }
    kept["/"], kept["/docs"] = (
        ((folder / file).read_bytes(), "text/html") for file in (name, "docs.html")
    )

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    @app.get("/static/{name}", include_in_schema=False)
    async def page(request: Request) -> Response:
        if request.scope["path"] not in kept:
            return problem(404, "there is no such file")
        content, kind = kept[request.scope["path"]]
        mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"etag": mark, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == mark:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)


log = logging.getLogger("labelwise.server")

PATTERNS = {  # what a text that must match one of these must be
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
) -> "Front":
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
        service.start()
        try:
            yield
        finally:
            service.close()
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

    @app.get("/health/live", tags=["health"])
    async def live() -> Health:
        return Health(status="live")

    @app.get("/health/ready", tags=["health"])
    async def ready() -> Health:
        service.require_ready()
        return Health(status="ready")

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        for served in list(service.models.values()):
            await service.trust_view(served)  # what alarms and shares are now
        content = await service.aside(lambda: generate_latest(service.monitor.registry))
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    app.include_router(make_api(service))
    if settings.photoprism or settings.label_studio is not None:
        from labelwise.server.bridges import make_bridges

        app.include_router(make_bridges(service))
    add_page(app)
    _add_description(app)
    return Front(app, settings, service, log)


def _operation_name(route: APIRoute) -> str:
    name, path = route.name, route.path_format
    if path.startswith("/api/v1/models/{model}/") and name != "reload":
        return f"{name}_of_model"
    return name if path.startswith("/api/v1/") else f"{path.split('/')[1].replace('-', '_')}_{name}"


def _add_description(app: FastAPI) -> None:
    """Answer /openapi.json in a thread: to describe takes long, the first time."""

    def description(_: Request) -> Response:
        facts = app.openapi()  # and what the framework cannot know
        parts = facts.setdefault("components", {})
        parts["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        }
        for path, methods in facts["paths"].items():
            for operation in methods.values():
                # The last one is empty: a server without a token asks for none.
                operation["security"] = [] if is_open(path) else [{"token": []}, {"cookie": []}, {}]
        return JSONResponse(facts)

    app.add_route("/openapi.json", description, include_in_schema=False)


def add_errors(app: FastAPI, when_busy: Callable[[], None] = lambda: None) -> None:
    """Have an application answer every error with a problem of one sentence."""

    async def answered(_: Request, error: Exception) -> Response:
        return problem_of(error, when_busy)

    of_framework = (HTTPException, RequestValidationError, ClientDisconnect, Exception)
    for kind in (RefusedError, LabelwiseError, *of_framework):
        app.add_exception_handler(kind, answered)


def problem_of(error: Exception, when_busy: Callable[[], None]) -> Response:
    """Return the answer to a request that ended in an error."""
    match error:
        case RefusedError():
            if isinstance(error, BusyError):
                when_busy()
            return problem(error.status, error.detail, error.headers)
        case StorageError():
            return problem(503, "the storage of the photos does not answer; try again later")
        case WriteError():
            log.error("%s", error)  # its path is not for those who ask
            return problem(503, "the server cannot write to its disk; try again later")
        case DecoderError():
            return problem(503, str(error), {"retry-after": "1"})
        case LabelwiseError():
            return problem(422, str(error))
        case HTTPException():
            phrase = error.detail or HTTPStatus(error.status_code).phrase
            return problem(error.status_code, phrase, error.headers)
        case RequestValidationError():
            first = error.errors()[0]
            place, of = first["loc"], first.get("ctx") or {}
            words, where = PATTERNS.get(of.get("pattern", "")), ".".join(map(str, place))
            return problem(422, f"{place[-1]} {words}" if words else f"{where}: {first['msg']}")
        case ClientDisconnect():
            return problem(408, "the client has gone")  # nobody reads it, but it is counted
    return problem(500, MISTAKE)  # and the front writes it to the log


METHODS = {"GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PATCH"}


SPOOLED = 1 << 18  # bytes of a body that stay in memory; the rest waits in a temporary file


async def taken(scope: Scope, receive: Receive, file: IO[bytes], seconds: float) -> Receive:
    """Write a complete body to a file, within ``seconds``; return what hands it over again.

    Only then is the request given a place, so that slow bodies hold none.
    """
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                file.write(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        raise RefusedError(408, "the request came too slowly", CLOSE) from None
    except OSError:  # a disk that is full, or may only be read
        later = {"retry-after": "5"} | CLOSE
        raise RefusedError(503, "the disk has no room for the bodies", later) from None
    left = file.tell()
    file.seek(0)
    if picture_route(scope["path"]) is None:
        require_cheap(file.read())  # the event loop itself will read it
        file.seek(0)
    is_over = False

    async def next_part() -> Message:
        nonlocal left, is_over
        if is_over:
            return await receive()  # which says when the client goes
        await asyncio.sleep(0)  # others have a turn
        part = file.read(PIECE)
        left -= len(part)
        is_over = left <= 0
        return {"type": "http.request", "body": part, "more_body": not is_over}

    return next_part


class Front:
    """What lies between a connection and the routes: guard, body, place, and the time it took."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        service: Service | None = None,
        access: AccessLog | None = None,
    ) -> None:
        self.app, self.guard, self.access = app, Guard(settings), access
        self.service: Any = service  # None: a page that asks about photos, without models
        self.when_busy = (lambda: None) if service is None else service.monitor.busy.inc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, sent = time.perf_counter(), 0, 0
        admitted: Scope | None = None
        answer: Response | None = None
        shared: list[tuple[bytes, bytes]] = []

        async def marked(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                added = [header for header in RAW_HEADERS if header[0] not in present]
                message["headers"] = [*message["headers"], *added, *shared]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            headers = self.guard.headers(scope)
            shared += self.guard.shared_with(headers)
            answer = self.guard(scope, headers)
            if answer is None:
                body = self.guard.body(scope["path"], headers, receive)
                # HEAD is answered as GET is; the server that sends it leaves out its body.
                admitted = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                seconds = self.guard.settings.request_seconds
                with SpooledTemporaryFile(SPOOLED) as file:
                    received = await taken(admitted, body, file, seconds)
                    with self._place(admitted):
                        async with asyncio.timeout(seconds):
                            await self.app(admitted, received, marked)
        except TimeoutError:
            answer = problem(503, "the answer took too long", CLOSE)
        except ClientDisconnect as left:
            answer = problem_of(left, self.when_busy)
        except RefusedError as refused:
            answer = problem_of(refused, self.when_busy)
        except Exception:
            log.exception("an error while answering %s %s", scope["method"], scope["path"])
            answer = problem(500, MISTAKE)
        try:
            if answer is not None and not status:
                await answer(scope, receive, marked)
        finally:
            if admitted is not None and self.service is not None:
                self._note(scope, admitted, status or 500, sent, time.perf_counter() - began)

    @contextmanager
    def _place(self, scope: Scope) -> Iterator[None]:
        asks = self.service is not None and scope["method"] == "POST"
        route = picture_route(scope["path"]) if asks else None
        if route is None:
            yield
            return
        scope["route_path"] = route
        with self.service.queue.reserve((scope.get("client") or ("", 0))[0]) as scope[PLACE]:
            yield

    def _note(self, scope: Scope, admitted: Scope, status: int, sent: int, seconds: float) -> None:
        route = admitted.get("route_path") or getattr(admitted.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.service.monitor.requests.labels(method, route, str(status)).observe(seconds)
        if self.access is not None:
            client, size = (scope.get("client") or ("", 0))[0], 0 if method == "HEAD" else sent
            said = {"client": client, "method": method, "path": scope["path"], "route": route}
            self.access.note(**said, status=status, ms=round(1000 * seconds, 1), bytes=size)
