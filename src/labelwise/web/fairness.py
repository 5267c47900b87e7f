"""Whose picture is opened next: clients take turns, and pay by the pixel.

Start-time fair queueing: a picture starts at the larger of the clock and the end of its client's
last one, and ends ``pixels`` later; the earliest start is served first, and the clock is the start
that was served last. Whoever sends much waits for itself, not others for it.

    under way at a time   so many pictures, and so many pixels together

Pixels are memory: two of the largest pictures are never opened side by side on a small machine,
and beside a large one there is always room for those of usual size.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["FairTurns"]

CLIENTS_REMEMBERED = 4096


@dataclass(eq=False)
class _Turn:
    start: int
    pixels: int
    comes: "asyncio.Future[None]"


class FairTurns:
    """Turns for pictures of many clients."""

    def __init__(self, places: int, pixels: int) -> None:
        self.places, self.pixels = places, pixels
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
        start = max(self._clock, self._ends.pop(client, 0))
        self._ends[client] = start + pixels
        while len(self._ends) > CLIENTS_REMEMBERED:
            self._ends.pop(next(iter(self._ends)))
        turn = _Turn(start, pixels, asyncio.get_running_loop().create_future())
        self._queues.setdefault(client, deque()).append(turn)
        return turn

    def _end(self, turn: _Turn) -> None:
        self.under_way -= 1
        self.pixels_under_way -= turn.pixels

    def _serve(self) -> None:
        while self.under_way < self.places:
            heads = [(turn.start, client) for client, turn in self._heads()]
            if not heads:
                return
            _, client = min(heads)
            turn = self._queues[client].popleft()
            self._clock = max(self._clock, turn.start)
            self.under_way += 1
            self.pixels_under_way += turn.pixels
            turn.comes.set_result(None)

    def _heads(self) -> list[tuple[str, _Turn]]:
        """Return the next picture of every client, of those that there is room for now."""
        heads = []
        for client, queue in list(self._queues.items()):
            while queue and queue[0].comes.done():  # its client has gone
                queue.popleft()
            if not queue:
                del self._queues[client]
            elif not self.under_way or self.pixels_under_way + queue[0].pixels <= self.pixels:
                heads.append((client, queue[0]))
        return heads
