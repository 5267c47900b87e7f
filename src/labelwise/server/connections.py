"""Connections: how many there may be, how long they may wait, and how large a request's head is.

    head          16 KiB and 64 headers, whole within so many seconds of the connection being made
                  or of the last answer on it
    body          pieces of 256 bytes on average after the first 256; its time: see ``security``
    answer        taken within so many seconds, once more of it waits than the socket holds
    connections   so many in all and so many per client; one more ends the one that has waited
                  longest for a request, of the same client or else of the one that has most
    health        where every connection has a request in work, 32 more are taken, on which only
                  health is answered

A byte now and then gains nothing: what is sent of a request never starts its time anew.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from labelwise.server.security import ONLY_HEALTH, RAW_HEADERS, problem
from labelwise.server.settings import ServeSettings

HEAD_BYTES = 16 << 10
HEADERS_TAKEN = 64
RESERVE = 32
RECEIVED_AT_ONCE = 64 << 10  # what one turn of the event loop reads and parses
FREE_PIECES, PIECE_BYTES = 256, 256


class BoundedRequests(h11.Connection):
    """The requests of one connection; heads and pieces of bodies that cost too much are refused.

    Python's event loop hands over what has arrived, and h11 limits only what is not whole yet.
    """

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
    """All connections of a server: counted, and those that wait for a request in their order."""

    def __init__(self, most: int, most_per_client: int) -> None:
        self.most, self.most_per_client = most, most_per_client
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, dict[LimitedProtocol, None]] = {}
        self._reserve: dict[LimitedProtocol, None] = {}

    @property
    def open(self) -> int:
        """How many there are, with those of the reserve."""
        return sum(self._counts.values()) + len(self._reserve)

    def admit(self, one: "LimitedProtocol", client: str) -> bool:
        """Count a connection; return False if it is beyond the limits, for health alone."""
        crowded = None
        if self._counts.get(client, 0) >= self.most_per_client:
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
        """Note whether a connection waits for a request, and may be ended for another."""
        waiting = self._waiting.setdefault(client, {})
        if waits and one not in self._reserve:
            waiting[one] = None
        elif not waits:
            waiting.pop(one, None)
        if not waiting:
            del self._waiting[client]

    def leave(self, one: "LimitedProtocol", client: str) -> None:
        """Forget a connection, which waits for nothing."""
        if one in self._reserve:
            del self._reserve[one]
        elif client in self._counts:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]


@dataclass(frozen=True)
class Patience:
    """How many seconds the server waits for a request, and for its answer to be taken."""

    request: float
    answer: float


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, within limits."""

    def __init__(self, *given: Any, known: Connections, patience: Patience, **options: Any) -> None:
        super().__init__(*given, **options)
        self.conn = self.requests = BoundedRequests()
        self.known, self.patience = known, patience
        self._address = ""
        self._has_left = False
        self._request_timer: asyncio.TimerHandle | None = None  # there while it waits for one
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = RECEIVED_AT_ONCE  # type: ignore[attr-defined]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.known.admit(self, self._address):
            self.app = partial(_only_health, self.app)
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
            self._answer_timer = self.loop.call_later(self.patience.answer, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def timeout_keep_alive_handler(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        """End the connection now, also where its client takes no answer."""
        self._leave()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for the client to take the rest
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        status, sentence = self.requests.refusal
        answer = problem(status, sentence, {"connection": "close"})
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whoever answers it is told that nobody listens
            self.cycle.message_event.set()
        try:
            for event in (
                h11.Response(
                    status_code=status,
                    headers=[*answer.raw_headers, *RAW_HEADERS],
                    reason=STATUS_PHRASES[status],
                ),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer was on its way already
            self.transport.abort()
        self.give_up()

    def _watch(self) -> None:
        """Start or stop the time within which the next request must be there."""
        waits = not self._has_left and (self.cycle is None or self.cycle.response_complete)
        if waits and self._request_timer is None:
            self.known.note(self, self._address, waits=True)
            self._request_timer = self.loop.call_later(self.patience.request, self.give_up)
        elif not waits and self._request_timer is not None:
            self.known.note(self, self._address, waits=False)
            self._request_timer.cancel()
            self._request_timer = None

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._watch()
            self.known.leave(self, self._address)


async def _only_health(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    scope[ONLY_HEALTH] = True
    await app(scope, receive, send)


def limited_protocol(settings: ServeSettings) -> Any:
    """Return what makes the protocol of each connection of one server."""
    return partial(
        LimitedProtocol,
        known=Connections(settings.connections, settings.client_connections),
        patience=Patience(settings.idle_seconds, settings.request_seconds),
    )
