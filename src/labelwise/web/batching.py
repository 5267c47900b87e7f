"""Pictures of many requests share forward passes.

    request --> place (or busy) --> body --> opened --> ready --> one forward pass of several

A picture waits for others only while others are being opened, and at most ``max_wait``; one that
is alone goes at once. No more than ``max_queue`` pictures are on their way at a time, where a
request whose body has not come yet counts as one. A client that has gone takes its pictures along,
also out of a batch that is being put together.
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError, LabelwiseError

__all__ = ["Batcher", "BusyError", "Place", "Tagged", "Upload", "Watcher"]

Pixels = NDArray[np.uint8]


class BusyError(LabelwiseError):
    """The server has as many pictures as it takes; ``seconds`` is when to come again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Upload:
    """A picture of a request: its name and its encoded bytes, or its pixels (H, W, 3)."""

    name: str
    content: bytes | Pixels


@dataclass(frozen=True, eq=False)
class Tagged:
    """What the model says of one picture: logits, probabilities, set (K,); or why nothing."""

    name: str
    logits: NDArray[np.float32] | None = None
    probs: NDArray[np.float64] | None = None
    chosen: NDArray[np.bool_] | None = None
    error: str | None = None


class Watcher(Protocol):
    """Hears how the work goes."""

    def batch_done(self, size: int, seconds: float) -> None:
        """A forward pass of ``size`` pictures took so long."""

    def queue_is(self, length: int) -> None:
        """So many pictures are on their way."""


NICE = 5  # of forward passes: under load the thread that takes requests comes first

Open = Callable[[Upload], Pixels]
Forward = Callable[[Pixels, Sequence[str]], Sequence[Tagged]]


@dataclass(eq=False)
class _Waiting:
    name: str
    pixels: Pixels
    answer: "asyncio.Future[Tagged]"


class Batcher:
    """Opens pictures in threads and puts those that are ready through the model together."""

    def __init__(
        self,
        open_picture: Open,
        forward: Forward,
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        openers: int,
        watcher: Watcher,
    ) -> None:
        self.open_picture, self.forward, self.watcher = open_picture, forward, watcher
        self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait, max_queue
        self.under_way = 0  # places taken: pictures admitted and not answered
        self._opening = 0
        self._ready: deque[_Waiting] = deque()
        self._changed = asyncio.Event()
        self._openers = ThreadPoolExecutor(openers, "open", _step_back, ("lw-open", 0))
        self._model = ThreadPoolExecutor(1, "model", _step_back, ("lw-model", NICE))
        self._seconds_per_picture = 0.05
        self._runner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take batches."""
        self._runner = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; pictures on their way are given up."""
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner
        self._openers.shutdown(wait=False, cancel_futures=True)
        self._model.shutdown(wait=True, cancel_futures=True)

    def reserve(self) -> "Place":
        """Return a place for a request before its body is read, or raise BusyError."""
        self._require_room(1)
        self._count(1)
        return Place(self)

    async def tag(self, uploads: Sequence[Upload], place: "Place | None" = None) -> list[Tagged]:
        """Return the answers for the pictures of one request in order, or raise BusyError.

        The place that was kept for the request goes to its pictures.
        """
        if place is not None:
            place.release()
        self._require_room(len(uploads))
        self._count(len(uploads))
        left = len(uploads)
        tasks = [asyncio.create_task(self._one(upload)) for upload in uploads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            self._count(-left)

    def _require_room(self, count: int) -> None:
        if self.under_way + count > self.max_queue:
            raise BusyError(max(1, ceil(self.under_way * self._seconds_per_picture)))

    async def _one(self, upload: Upload) -> Tagged:
        loop = asyncio.get_running_loop()
        self._opening += 1
        try:
            pixels = await loop.run_in_executor(self._openers, self.open_picture, upload)
        except ImageError as error:
            return Tagged(upload.name, error=str(error))
        finally:
            self._opening -= 1
            self._changed.set()
        waiting = _Waiting(upload.name, pixels, loop.create_future())
        self._ready.append(waiting)
        self._changed.set()
        return await waiting.answer  # cancelled with its request, and then left out

    def _count(self, more: int) -> None:
        self.under_way += more
        self.watcher.queue_is(self.under_way)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            if not batch:
                continue
            began = time.perf_counter()
            try:
                answers = await loop.run_in_executor(self._model, self._answers, batch)
            except Exception as error:
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            seconds = time.perf_counter() - began
            self._seconds_per_picture += 0.2 * (seconds / len(batch) - self._seconds_per_picture)
            self.watcher.batch_done(len(batch), seconds)
            for one, answer in zip(batch, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(answer)

    def _answers(self, batch: Sequence[_Waiting]) -> Sequence[Tagged]:
        pixels = np.stack([one.pixels for one in batch])
        return self.forward(pixels, [one.name for one in batch])

    async def _next_batch(self) -> list[_Waiting]:
        """Wait for a picture, then for more while more are coming, and return who still waits."""
        while not self._ready:
            self._changed.clear()
            await self._changed.wait()
        end = time.perf_counter() + self.max_wait
        while len(self._ready) < self.max_batch and self._opening:
            left = end - time.perf_counter()
            if left <= 0:
                break
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        batch: list[_Waiting] = []
        while self._ready and len(batch) < self.max_batch:
            one = self._ready.popleft()
            if not one.answer.done():
                batch.append(one)
        return batch


class Place:
    """A place in the queue, given back once."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher: Batcher | None = batcher

    def release(self) -> None:
        """Give the place back, if that was not done before."""
        if self._batcher is not None:
            self._batcher._count(-1)
            self._batcher = None


def _step_back(name: str, nice: int) -> None:
    """Name this thread, and those it starts, for the system; let others have the cores first."""
    if sys.platform == "linux":
        number = threading.get_native_id()
        with suppress(OSError):
            Path(f"/proc/self/task/{number}/comm").write_text(name)
            os.setpriority(os.PRIO_PROCESS, number, nice)
