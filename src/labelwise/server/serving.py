"""The server around the application: where it listens, and how it is set up."""

import asyncio
import gc
import logging
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from labelwise.errors import SettingsError
from labelwise.server.security import ONLY_HEALTH, RAW_HEADERS, problem
from labelwise.server.settings import ServeSettings, same_address

# The event loop of the server, whose turns are short however many connections have something.
#
# Python's event loop handles in one turn whatever is ready, timers between two turns, and a thread
# that computes gives the interpreter's lock back after 5 ms. Here
#
#     a turn      handles 4 connections at most; the others come in the next turns, in order
#     a round     ends when everyone who was ready has had a turn: then the system is asked again
#     accepting   16 new connections in a turn at most; the others wait with the system
#     the lock    is asked for after 0.5 ms

AT_ONCE = 4
ACCEPTED_AT_ONCE = 16  # once in a round, so that few of them would keep newcomers waiting
SWITCH_SECONDS = 0.0005

_Ready = tuple[selectors.SelectorKey, int]


class BoundedSelector(selectors.DefaultSelector):
    """Returns ready files a few at a time, each once in a round."""

    def __init__(self) -> None:
        super().__init__()
        self._left: deque[_Ready] = deque()

    def select(self, timeout: float | None = None) -> list[_Ready]:
        if not self._left:
            self._left.extend(super().select(timeout))
        ready = []
        for _ in range(min(AT_ONCE, len(self._left))):
            key, events = self._left.popleft()
            now = self.get_map().get(key.fd)  # a turn of others may have closed or changed it
            if now is not None and events & now.events:
                ready.append((now, events & now.events))
        return ready


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop with short turns; on Windows the usual one."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(BoundedSelector())


# Limits of connections:
#
#     head          16 KiB and 64 headers, complete within ``idle_seconds``; a byte now and then
#                   gains no time
#     body          pieces of 256 bytes on average after the first 256; its time: see ``security``
#     answer        taken within ``request_seconds``, once more of it waits than the socket holds
#     connections   in all and per client; one more ends the one that has waited longest for a
#                   request, of the same client or else of the one that has most
#     health        where every connection has a request in work, 32 more are taken for health alone

HEAD_BYTES = 16 << 10
HEADERS_TAKEN = 64
RESERVE = 32
RECEIVED_AT_ONCE = 64 << 10  # what one turn of the event loop reads and parses
FREE_PIECES, PIECE_BYTES = 256, 256


class BoundedRequests(h11.Connection):
    """The requests of one connection; h11 itself limits only heads that are not complete yet."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self.refusal = (400, "the request cannot be understood as HTTP/1.1")
        self._pieces = self._size = 0

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            received = self.trailing_data[0]
            end = min((at for mark in _ENDS if (at := received.find(mark)) >= 0), default=-1)
            if end > HEAD_BYTES or (end < 0 and len(received) > HEAD_BYTES):
                self._refuse(431, _TOO_LARGE)
            if received.count(b"\n", 0, end if end >= 0 else len(received)) > HEADERS_TAKEN:
                self._refuse(431, f"a request may have {HEADERS_TAKEN} headers")
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.refusal = (431, _TOO_LARGE)
            raise
        if isinstance(event, h11.Request):
            self._pieces = self._size = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._size += len(event.data)
            if self._pieces > FREE_PIECES and self._size < PIECE_BYTES * self._pieces:
                self._refuse(400, "the body comes in too many small pieces; send larger ones")
        return event

    def _refuse(self, status: int, sentence: str) -> None:
        self.refusal = (status, sentence)
        raise h11.RemoteProtocolError(sentence, status)


_ENDS = (b"\n\r\n", b"\n\n")
_TOO_LARGE = f"the head of a request may have {HEAD_BYTES:,} bytes"


class Connections:
    """Connections of a server, counted, and those that wait for a request in their order."""

    def __init__(
        self, most: int, most_per_client: int, proxies: Collection[str] = frozenset()
    ) -> None:
        self.most, self.most_per_client, self.proxies = most, most_per_client, proxies
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, dict[LimitedProtocol, None]] = {}
        self._reserve: dict[LimitedProtocol, None] = {}

    @property
    def open(self) -> int:
        return sum(self._counts.values()) + len(self._reserve)

    def admit(self, one: "LimitedProtocol", client: str) -> bool:
        """Count a connection; return False if it is beyond the limits, and for health alone."""
        crowded = None
        is_proxy = same_address(client) in self.proxies
        if self._counts.get(client, 0) >= self.most_per_client and not is_proxy:
            crowded = client
        elif sum(self._counts.values()) >= self.most:
            crowded = max(self._waiting, key=self._counts.__getitem__, default=client)
        if crowded is not None:
            victim = next(iter(self._waiting.get(crowded, ())), None)
            if victim is None:
                if len(self._reserve) >= RESERVE:
                    next(iter(self._reserve)).give_up()
                self._reserve[one] = None
                return False
            victim.give_up()
        self._counts[client] = self._counts.get(client, 0) + 1
        return True

    def note(self, one: "LimitedProtocol", client: str, *, waits: bool) -> None:
        waiting = self._waiting.setdefault(client, {})
        if waits and one not in self._reserve:
            waiting[one] = None
        elif not waits:
            waiting.pop(one, None)
        if not waiting:
            del self._waiting[client]

    def leave(self, one: "LimitedProtocol", client: str) -> None:
        if one in self._reserve:
            del self._reserve[one]
        elif (others := self._counts.pop(client, 1) - 1) > 0:
            self._counts[client] = others


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, within limits."""

    def __init__(
        self, *given: Any, known: Connections, settings: ServeSettings, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self.conn = self.requests = BoundedRequests()
        self.known, self.settings = known, settings
        self._address = ""
        self._has_left = False
        self._request_timer: asyncio.TimerHandle | None = None  # there while it waits for one
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = RECEIVED_AT_ONCE  # type: ignore[attr-defined]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.known.admit(self, self._address):
            app = self.app

            async def only_health(scope: Scope, receive: Receive, send: Send) -> None:
                scope[ONLY_HEALTH] = True
                await app(scope, receive, send)

            self.app = only_health
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_timer is None:
            seconds = self.settings.request_seconds
            self._answer_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def give_up(self) -> None:
        """End the connection now, also where its client takes no answer."""
        self._leave()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for the client to take the rest
        else:
            self.transport.close()

    timeout_keep_alive_handler = give_up

    def send_400_response(self, msg: str) -> None:
        status, sentence = self.requests.refusal
        answer = problem(status, sentence, {"connection": "close"})
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        headers, body = [*answer.raw_headers, *RAW_HEADERS], h11.Data(data=bytes(answer.body))
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        try:
            for event in (head, body, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer was on its way already
            self.transport.abort()
        self.give_up()

    def _watch(self) -> None:
        waits = not self._has_left and (self.cycle is None or self.cycle.response_complete)
        if waits and self._request_timer is None:
            self.known.note(self, self._address, waits=True)
            self._request_timer = self.loop.call_later(self.settings.idle_seconds, self.give_up)
        elif not waits and self._request_timer is not None:
            self.known.note(self, self._address, waits=False)
            self._request_timer.cancel()
            self._request_timer = None

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._watch()
            self.known.leave(self, self._address)


BACKLOG = 1024  # connections that the system keeps until they are taken


def serve(
    app: ASGIApp,
    settings: ServeSettings,
    *,
    started: Callable[[str], None] = lambda _: None,
    on_hangup: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve until interrupted; tell the address once requests are taken, and hear SIGHUP."""
    listener = listen(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}/"
    server = Server(server_config(app, settings), lambda: started(address), on_hangup)
    with listener, short_pauses():
        server.run(sockets=[listener])


@contextmanager
def short_pauses() -> Iterator[None]:
    """Let a thread ask for the interpreter's lock sooner within the block.

    The search for garbage passes over all objects there are before: else it takes 200 ms.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


def server_config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    known = Connections(settings.connections, settings.client_connections, settings.proxies)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=cast(Any, partial(LimitedProtocol, known=known, settings=settings)),
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


def _is_news(record: logging.LogRecord) -> bool:  # and not a request given up by a server's stop
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Server(uvicorn.Server):
    """Runs on a loop with short turns, says when requests are taken, and hears SIGHUP."""

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
            for connection in list(self.server_state.connections):  # from 3.12 on it waits for them
                asyncio.get_running_loop().call_soon_threadsafe(connection.transport.abort)

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
