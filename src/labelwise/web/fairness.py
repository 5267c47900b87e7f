"""Whose picture is opened next: clients take turns, and pay by the pixel.

Start-time fair queueing: a picture starts at the larger of the clock when it came and the end of
its client's last one, and ends ``pixels`` later; the earliest start is served first, and the clock
is the start that was served last. Whoever sends much waits for itself, not others for it.

A picture that holds a decoder for longer than its pixels explain is paid for by the time:

    cost = max(pixels, 10,000,000 per second of its turn)

which ten times a usual photo's time does not reach; small files made to be slow do.

    under way at a time   so many pictures, and so many pixels together

Pixels are memory: two of the largest pictures are never opened side by side on a small machine,
and beside a large one there is always room for those of usual size.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["PIXELS_PER_SECOND", "FairTurns"]

CLIENTS_REMEMBERED = 4096
PIXELS_PER_SECOND = 10_000_000


@dataclass(eq=False)
class _Turn:
    client: str
    came: int
    pixels: int
    comes: "asyncio.Future[None]"
    began: float = 0.0


class FairTurns:
    """Turns for pictures of many clients."""

    def __init__(
        self, places: int, pixels: int, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.places, self.pixels, self._seconds = places, pixels, seconds
        self.under_way = self.pixels_under_way = 0
        self._clock = 0
        self._ends: dict[str, int] = {}  # of each client's last picture
        self._queues: dict[str, deque[_Turn]] = {}

    @asynccontextmanager
    async def turn(self, client: str, pixels: int) -> AsyncIterator[None]:
        """Wait for a turn; it is over when the block is left."""
        turn = self._queue(client, pixels)
        self._serve()
        try:
            await turn.comes
        except asyncio.CancelledError:
            if turn.comes.done() and not turn.comes.cancelled():
                self._end(turn)
            self._serve()
            raise
        try:
            yield
        finally:
            self._end(turn)
            self._serve()

    def _queue(self, client: str, pixels: int) -> _Turn:
        comes = asyncio.get_running_loop().create_future()
        turn = _Turn(client, self._clock, pixels, comes)
        self._queues.setdefault(client, deque()).append(turn)
        return turn

    def _end(self, turn: _Turn) -> None:
        self.under_way -= 1
        self.pixels_under_way -= turn.pixels
        cost = int(PIXELS_PER_SECOND * (self._seconds() - turn.began))
        if turn.client in self._ends and cost > turn.pixels:
            self._ends[turn.client] += cost - turn.pixels

    def _serve(self) -> None:
        while self.under_way < self.places:
            heads = [(self._start(turn), turn.client) for turn in self._heads()]
            if not heads:
                return
            start, client = min(heads)
            turn = self._queues[client].popleft()
            self._clock = max(self._clock, start)
            self._ends.pop(client, None)
            self._ends[client] = start + turn.pixels
            while len(self._ends) > CLIENTS_REMEMBERED:
                self._ends.pop(next(iter(self._ends)))
            self.under_way += 1
            self.pixels_under_way += turn.pixels
            turn.began = self._seconds()
            turn.comes.set_result(None)

    def _start(self, turn: _Turn) -> int:
        return max(turn.came, self._ends.get(turn.client, 0))

    def _heads(self) -> list[_Turn]:
        """Return the next picture of every client, of those that there is room for now."""
        heads = []
        for client, queue in list(self._queues.items()):
            while queue and queue[0].comes.done():  # its client has gone
                queue.popleft()
            if not queue:
                del self._queues[client]
            elif not self.under_way or self.pixels_under_way + queue[0].pixels <= self.pixels:
                heads.append(queue[0])
        return heads
