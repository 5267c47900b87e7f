"""The queue of a server: so many pictures on their way, and turns at having them opened.

No more than ``max_queue`` pictures are on their way at a time, whichever model they are for, where
a request whose body has not come yet counts as one; of one client ``client_queue``. Clients take
turns at having pictures opened: see :mod:`labelwise.web.fairness`.
"""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Protocol, TypeVar

from labelwise.errors import LabelwiseError
from labelwise.pictures.decode import MAX_PIXELS
from labelwise.web.fairness import FairTurns

__all__ = ["BusyError", "PictureQueue", "Place", "Watcher", "step_back"]

T = TypeVar("T")

USUAL_PIXELS = 16_000_000  # of a photo: beside a large one there is room for as many as openers


class BusyError(LabelwiseError):
    """The server has as many pictures as it takes; ``seconds`` is when to come again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


class Watcher(Protocol):
    """Hears how the work goes."""

    def batch_done(self, size: int, seconds: float) -> None:
        """A forward pass of ``size`` pictures took so long."""

    def picture_opened(self, seconds: float) -> None:
        """A picture waited for a decoder and was opened in so long."""

    def queue_is(self, length: int) -> None:
        """So many pictures are on their way."""


class PictureQueue:
    """The places of all pictures of a server, and the threads that have them opened."""

    def __init__(
        self, *, max_queue: int, client_queue: int, openers: int, watcher: Watcher
    ) -> None:
        self.max_queue, self.client_queue, self.watcher = max_queue, client_queue, watcher
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

    def reserve(self, client: str, pictures: int = 1) -> "Place":
        """Return a place for pictures, or for a request before its body is read.

        Raise BusyError where there is no room.
        """
        own = self._of_client[client] + pictures
        if self.under_way + pictures > self.max_queue or own > self.client_queue:
            raise BusyError(max(1, ceil(self.under_way * self._seconds_per_picture)))
        return Place(self, client, pictures)

    async def opened(self, work: Callable[[], T], client: str, pixels: int) -> T:
        """Return what opening a picture gives, when it is the client's turn."""
        self.opening += 1
        try:
            async with self.turns.turn(client, pixels):
                opened = asyncio.get_running_loop().run_in_executor(self._openers, work)
                try:
                    return await asyncio.shield(opened)
                except asyncio.CancelledError:
                    while not opened.done():  # its turn lasts until the decoder is free
                        with suppress(asyncio.CancelledError):  # who leaves may say so twice
                            await asyncio.wait([opened])
                    if not opened.cancelled():
                        opened.exception()  # nobody is left to hear of it
                    raise
        finally:
            self.opening -= 1

    def note_pass(self, size: int, seconds: float) -> None:
        """Note how long a forward pass took, for when those who find no room should come again."""
        self._seconds_per_picture += 0.2 * (seconds / size - self._seconds_per_picture)

    def _count(self, more: int, client: str) -> None:
        self.under_way += more
        self._of_client[client] += more
        if not self._of_client[client]:
            del self._of_client[client]
        self.watcher.queue_is(self.under_way)


class Place:
    """A place in the queue, of so many pictures, given back once."""

    def __init__(self, queue: PictureQueue, client: str, pictures: int) -> None:
        self.client, self.pictures = client, pictures
        self._queue: PictureQueue | None = queue
        queue._count(pictures, client)

    def release(self) -> None:
        """Give the place back, if that was not done before."""
        if self._queue is not None:
            self._queue._count(-self.pictures, self.client)
            self._queue = None


def step_back(name: str, nice: int) -> None:
    """Name this thread, and those it starts, for the system; let others have the cores first."""
    if sys.platform == "linux":
        number = threading.get_native_id()
        with suppress(OSError):
            Path(f"/proc/self/task/{number}/comm").write_text(name)
            os.setpriority(os.PRIO_PROCESS, number, nice)
