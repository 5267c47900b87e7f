"""The queue of a server: so many pictures on their way, and turns at having them opened.

No more than ``max_queue`` pictures are on their way at a time, whichever model they are for, where
a request whose body has not come yet counts as one; of one client ``client_queue``.

Whose picture is opened next: clients take turns, and pay by the pixel. Start-time fair queueing: a
picture starts at the larger of the clock when it came and the end of its client's last one, and
ends ``pixels`` later; the earliest start is served first, and the clock is the start that was
served last. Whoever sends much waits for itself, not others for it.

A picture that holds a decoder for longer than its pixels explain is paid for by the time:

    cost = max(pixels, 10,000,000 per second of its turn)

which ten times a usual photo's time does not reach; small files made to be slow do.

    under way at a time   so many pictures, and so many pixels together

Pixels are memory: two of the largest pictures are never opened side by side on a small machine,
and beside a large one there is always room for those of usual size.
"""

import asyncio
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TypeVar

import torch

from labelwise.errors import LabelwiseError
from labelwise.pictures.decode import MAX_PIXELS
from labelwise.server.monitoring import Monitor

T = TypeVar("T")

USUAL_PIXELS = 16_000_000  # of a photo: beside a large one there is room for as many as openers
CLIENTS_REMEMBERED = 4096
PIXELS_PER_SECOND = 10_000_000
WAITING = 64  # of what threads are to do


class BusyError(LabelwiseError):
    """The server has as many pictures as it takes; ``seconds`` is when to come again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class Place:
    """A place in the queue, of so many pictures, given back once."""

    queue: "PictureQueue"
    client: str
    pictures: int
    is_released: bool = False

    def release(self) -> None:
        """Give the place back, if that was not done before."""
        if not self.is_released:
            self.is_released = True
            self.queue._count(-self.pictures, self.client)


class PictureQueue:
    """The places of all pictures of a server, and the threads that have them opened."""

    def __init__(
        self, *, max_queue: int, client_queue: int, openers: int, monitor: Monitor
    ) -> None:
        self.max_queue, self.client_queue, self.monitor = max_queue, client_queue, monitor
        self.turns = FairTurns(openers, MAX_PIXELS + openers * USUAL_PIXELS)
        self._of_client: Counter[str] = Counter()  # places taken, by client
        self.under_way = 0  # places taken: pictures admitted and not answered
        self.opening = 0  # pictures that are being opened, or wait for that
        self.is_stopped = False
        self._openers = ThreadPoolExecutor(openers, "open", step_back, ("lw-open", 0))
        self._seconds_per_picture = 0.05

    def stop(self) -> None:
        """Stop; pictures on their way are given up."""
        self.is_stopped = True
        self._openers.shutdown(wait=False, cancel_futures=True)

    def reserve(self, client: str, pictures: int = 1) -> Place:
        """Return a place for pictures, or for a request before its body is read.

        Raise BusyError where there is no room.
        """
        own = self._of_client[client] + pictures
        if self.under_way + pictures > self.max_queue or own > self.client_queue:
            raise BusyError(max(1, ceil(self.under_way * self._seconds_per_picture)))
        self._count(pictures, client)
        return Place(self, client, pictures)

    def _count(self, more: int, client: str) -> None:
        self.under_way += more
        self._of_client[client] += more
        if not self._of_client[client]:
            del self._of_client[client]
        self.monitor.queue.set(self.under_way)

    async def opened(self, work: Callable[[], T], client: str, pixels: int) -> T:
        """Return what opening a picture gives, when it is the client's turn."""
        self.opening += 1
        began = time.perf_counter()
        try:
            async with self.turns.turn(client, pixels):
                opened = asyncio.get_running_loop().run_in_executor(self._openers, work)
                try:
                    await asyncio.wait([opened])  # which goes on where this is cancelled
                except asyncio.CancelledError:
                    while not opened.done():  # its turn lasts until the decoder is free
                        with suppress(asyncio.CancelledError):  # who leaves may say so twice
                            await asyncio.wait([opened])
                    if not opened.cancelled():
                        opened.exception()  # nobody is left to hear of it
                    raise
                found = opened.result()
        finally:
            self.opening -= 1
        self.monitor.opened.observe(time.perf_counter() - began)
        return found

    def note_pass(self, size: int, seconds: float) -> None:
        """Count a forward pass; it tells when those who find no room should come again."""
        self._seconds_per_picture += 0.2 * (seconds / size - self._seconds_per_picture)
        self.monitor.batches.observe(size)
        self.monitor.forward.observe(seconds)


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
        comes = asyncio.get_running_loop().create_future()
        turn = _Turn(client, self._clock, pixels, comes)
        self._queues.setdefault(client, deque()).append(turn)
        self._serve()
        try:
            await comes
            yield
        finally:
            if comes.done() and not comes.cancelled():  # it came, if only to one who has gone
                self.under_way -= 1
                self.pixels_under_way -= pixels
                cost = int(PIXELS_PER_SECOND * (self._seconds() - turn.began))
                if client in self._ends and cost > pixels:
                    self._ends[client] += cost - pixels
            self._serve()

    def _serve(self) -> None:
        while self.under_way < self.places and (heads := self._heads()):
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

    def _heads(self) -> list[tuple[int, str]]:
        """Return start and client of each client's next picture, if there is room for it now."""
        heads = []
        for client, queue in list(self._queues.items()):
            while queue and queue[0].comes.done():  # its client has gone
                queue.popleft()
            if not queue:
                del self._queues[client]
            elif not self.under_way or self.pixels_under_way + queue[0].pixels <= self.pixels:
                heads.append((max(queue[0].came, self._ends.get(client, 0)), client))
        return heads


class Threads:
    """Threads that do one thing after another; BusyError if much is waiting for them.

    They do what would hold up the event loop.
    """

    def __init__(self, count: int, name: str, waiting: int = WAITING) -> None:
        # Without threads of torch's own beside the model's: see batching.model_thread.
        self._pool = ThreadPoolExecutor(count, name, torch.set_num_threads, (1,))
        self._waiting, self._most = 0, waiting

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the work returns."""
        if self._waiting >= self._most:
            raise BusyError(1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self, *, wait: bool) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


def step_back(name: str, nice: int) -> None:
    """Name this thread, and those it starts, for the system; let others have the cores first."""
    if sys.platform == "linux":
        number = threading.get_native_id()
        with suppress(OSError):
            Path(f"/proc/self/task/{number}/comm").write_text(name)
            os.setpriority(os.PRIO_PROCESS, number, nice)
