"""uvicorn around the application: where it listens, and what it waits for."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from labelwise.errors import SettingsError
from labelwise.server.settings import ServeSettings

BACKLOG = 1024  # connections that the system keeps until they are accepted
ACCEPTED_AT_ONCE = 16  # by one turn of the event loop; it logs each that it has no file for
MOST_FILES = 1 << 16


def serve(
    app: ASGIApp,
    settings: ServeSettings,
    *,
    started: Callable[[str], None] = lambda _: None,
    on_hangup: Callable[[], Coroutine[object, None, None]] | None = None,
) -> None:
    """Serve until interrupted; tell the address once requests are taken, and hear SIGHUP."""
    raise_file_limit()
    listener = listen(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}/"
    server = Server(server_config(app, settings), lambda: started(address), on_hangup)
    with listener:
        server.run(sockets=[listener])


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection takes one."""
    if sys.platform == "win32":
        return
    import resource

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, wanted), most))


def server_config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=cast(Any, partial(TimedProtocol, settings=settings)),
        loop="asyncio",  # whatever else is installed: the one that is tested
        backlog=ACCEPTED_AT_ONCE,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,  # strangers could fill the log with warnings
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(max(1, settings.idle_seconds)),
        timeout_graceful_shutdown=5,
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out requests that were given up because the server stopped."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, which waits ``idle_seconds`` for the head of a request.

    uvicorn itself ends a connection that sends nothing between two requests, but waits for ever
    for the first request, and for the rest of a head. Bodies and answers are timed by the front.
    """

    def __init__(self, *arguments: Any, settings: ServeSettings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.settings = settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        before = self.cycle  # of the last request, or None

        def late() -> None:
            if self.cycle is before:
                self.transport.abort()  # closing would wait for a client that takes no answer

        self.loop.call_later(self.settings.idle_seconds, late)


class Server(uvicorn.Server):
    """Says when requests are taken, and hears SIGHUP."""

    def __init__(
        self,
        config: uvicorn.Config,
        when_started: Callable[[], None] = lambda: None,
        on_hangup: Callable[[], Coroutine[object, None, None]] | None = None,
    ) -> None:
        super().__init__(config)
        self.when_started, self.on_hangup = when_started, on_hangup
        self._hung_up: set[asyncio.Task[None]] = set()  # kept until they are done

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.started:
            return
        for listener in sockets or ():
            listener.listen(BACKLOG)  # the loop told the system its own number
        if self.on_hangup is not None and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)
        self.when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets=sockets)
        if self.force_exit:  # the class above would then let go of nothing
            await self.lifespan.shutdown()

    def _hang_up(self) -> None:
        if self.on_hangup is not None:
            task = asyncio.get_running_loop().create_task(self.on_hangup())
            self._hung_up = {task, *(other for other in self._hung_up if not other.done())}


def listen(settings: ServeSettings) -> socket.socket:
    """Return the socket that connections come to, or raise SettingsError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named TCP, so that asyncio sends at once: else each answer waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":  # there, two servers could have one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        words = f"cannot listen on {settings.host} port {settings.port}: {error.strerror}"
        raise SettingsError(f"{words}; choose another port with --port") from None
    listener.listen(BACKLOG)
    return listener
