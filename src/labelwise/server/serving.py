"""The server around the application: where it listens, and how it is set up."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from labelwise.errors import SettingsError
from labelwise.server.connections import limited_protocol
from labelwise.server.event_loop import (
    ACCEPTED_AT_ONCE,
    new_event_loop,
    threads_take_short_turns,
)
from labelwise.server.settings import ServeSettings

BACKLOG = 1024  # connections that the system keeps until they are taken


def serve(
    app: ASGIApp,
    settings: ServeSettings,
    *,
    started: Callable[[str], None] = lambda _: None,
    on_hangup: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve until interrupted; ``started`` is told the address once requests are taken.

    ``on_hangup`` is what the signal SIGHUP asks for, on systems that have it.
    """
    listener = listen(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}/"
    server = Server(server_config(app, settings), lambda: started(address), on_hangup)
    with listener, only_new_garbage(), threads_take_short_turns():
        server.run(sockets=[listener])


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Let the search for garbage pass over all there is before the block.

    A whole search goes through every object of the program, the libraries' too: 380,000 of them
    took 210 ms, in which nothing else of Python runs, the event loop included.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def server_config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """Return how the server is set up; its limits are those of ``connections``."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        app,
        http=limited_protocol(settings),
        loop="asyncio",  # whatever else is installed: the one that is tested
        backlog=ACCEPTED_AT_ONCE,  # to Python's loop this is also how many it takes in one turn
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,  # strangers could fill the log with warnings
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=int(max(1, settings.idle_seconds)),
        timeout_graceful_shutdown=5,
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line is more than a request that was given up because the server stops."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Server(uvicorn.Server):
    """Runs on a loop with short turns, tells when requests are taken, and hears SIGHUP.

    Asked to stop a second time, it waits for no request.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        when_started: Callable[[], None] = lambda: None,
        on_hangup: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        super().__init__(config)
        self.when_started, self.on_hangup = when_started, on_hangup
        self._hung_up: set[asyncio.Task[None]] = set()  # kept until they are done

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self.serve(sockets=sockets))

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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:
            asyncio.get_running_loop().call_soon_threadsafe(self._drop_connections)

    def _drop_connections(self) -> None:
        """End what is under way: from Python 3.12 on a server waits for its connections."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _hang_up(self) -> None:
        if self.on_hangup is not None:
            task = asyncio.get_running_loop().create_task(self.on_hangup())
            self._hung_up.add(task)
            task.add_done_callback(self._hung_up.discard)


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
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "another program may have the port, choose one with --port"
        ) from None
    listener.listen(BACKLOG)
    return listener
