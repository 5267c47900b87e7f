"""Pictures of many requests share forward passes.

    request --> place (or busy) --> body --> opened --> ready --> one forward pass of several

Clients take turns at having pictures opened, and one has so many on their way at most.

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
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError, LabelwiseError
from labelwise.pictures.decode import MAX_PIXELS
from labelwise.web.fairness import FairTurns
from labelwise.web.picture_size import claimed_pixels

__all__ = ["Batcher", "BusyError", "Place", "Tagged", "Upload", "Watcher", "model_thread"]

Pixels = NDArray[Any]  # uint8 (H, W, 3), or float32 (H, W, bands)


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

    @property
    def pixels(self) -> int:
        """How many pixels it has, or says it has."""
        if isinstance(self.content, bytes):
            return claimed_pixels(self.content)
        return self.content.size // 3


@dataclass(frozen=True, eq=False)
class Tagged:
    """What the model says of one picture: logits, probabilities, set (K,); or why nothing.

    ``error`` is about the picture, and the client is told; ``fault`` is the model's own.
    """

    name: str
    logits: NDArray[np.float32] | None = None
    probs: NDArray[np.float64] | None = None
    chosen: NDArray[np.bool_] | None = None
    error: str | None = None
    fault: str | None = None


class Watcher(Protocol):
    """Hears how the work goes."""

    def batch_done(self, size: int, seconds: float) -> None:
        """A forward pass of ``size`` pictures took so long."""

    def picture_opened(self, seconds: float) -> None:
        """A picture waited for a decoder and was opened in so long."""

    def queue_is(self, length: int) -> None:
        """So many pictures are on their way."""


USUAL_PIXELS = 16_000_000  # of a photo: beside a large one there is room for as many as openers
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
        client_queue: int,
        openers: int,
        model: ThreadPoolExecutor,
        watcher: Watcher,
    ) -> None:
        self.open_picture, self.forward, self.watcher = open_picture, forward, watcher
        self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait, max_queue
        self.client_queue = client_queue
        self.turns = FairTurns(openers, MAX_PIXELS + openers * USUAL_PIXELS)
        self._of_client: Counter[str] = Counter()  # places taken, by client
        self.under_way = 0  # places taken: pictures admitted and not answered
        self.opening = 0  # pictures that are being opened, or wait for that
        self._ready: deque[_Waiting] = deque()
        self._is_passing = self._is_stopped = False
        self._waited: asyncio.TimerHandle | None = None
        self._openers = ThreadPoolExecutor(openers, "open", _step_back, ("lw-open", 0))
        self._model = model
        self._seconds_per_picture = 0.05

    def stop(self) -> None:
        """Stop; pictures on their way are given up."""
        self._is_stopped = True
        self._stop_waiting()
        self._openers.shutdown(wait=False, cancel_futures=True)
        self._model.shutdown(wait=True, cancel_futures=True)

    def reserve(self, client: str) -> "Place":
        """Return a place for a request before its body is read, or raise BusyError."""
        self._require_room(1, client)
        self._count(1, client)
        return Place(self, client)

    async def tag(self, uploads: Sequence[Upload], place: "Place | None" = None) -> list[Tagged]:
        """Return the answers for the pictures of one request in order, or raise BusyError.

        The place that was kept for the request goes to its pictures.
        """
        client = "" if place is None else place.client
        if place is not None:
            place.release()
        self._require_room(len(uploads), client)
        self._count(len(uploads), client)
        tasks = [asyncio.create_task(self._one(upload, client)) for upload in uploads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            self._count(-len(uploads), client)

    def _require_room(self, count: int, client: str) -> None:
        own = self._of_client[client] + count
        if self.under_way + count > self.max_queue or own > self.client_queue:
            raise BusyError(max(1, ceil(self.under_way * self._seconds_per_picture)))

    async def _one(self, upload: Upload, client: str) -> Tagged:
        loop = asyncio.get_running_loop()
        self.opening += 1
        began = time.perf_counter()
        try:
            async with self.turns.turn(client, upload.pixels):
                opened = loop.run_in_executor(self._openers, self.open_picture, upload)
                try:
                    pixels = await asyncio.shield(opened)
                except asyncio.CancelledError:
                    while not opened.done():  # its turn lasts until the decoder is free
                        with suppress(asyncio.CancelledError):  # who leaves may say so twice
                            await asyncio.wait([opened])
                    if not opened.cancelled():
                        opened.exception()  # nobody is left to hear of it
                    raise
        except ImageError as error:
            return Tagged(upload.name, error=str(error))
        else:
            waiting = _Waiting(upload.name, pixels, loop.create_future())
            self._ready.append(waiting)
        finally:
            self.opening -= 1
            self._pass_on()
        self.watcher.picture_opened(time.perf_counter() - began)
        return await waiting.answer  # cancelled with its request, and then left out

    def _count(self, more: int, client: str) -> None:
        self.under_way += more
        self._of_client[client] += more
        if not self._of_client[client]:
            del self._of_client[client]
        self.watcher.queue_is(self.under_way)

    # Forward passes, one at a time

    def _pass_on(self) -> None:
        """Begin a forward pass if pictures wait for one and no others are worth waiting for."""
        if self._is_passing or self._is_stopped or not self._ready:
            return
        if not self.opening or len(self._ready) >= self.max_batch:
            self._begin_pass()
        elif self._waited is None:
            self._waited = asyncio.get_running_loop().call_later(self.max_wait, self._begin_pass)

    def _begin_pass(self) -> None:
        self._stop_waiting()
        batch: list[_Waiting] = []
        while self._ready and len(batch) < self.max_batch:
            one = self._ready.popleft()
            if not one.answer.done():
                batch.append(one)
        if not batch:
            return
        self._is_passing = True
        passing = asyncio.get_running_loop().run_in_executor(self._model, self._answers, batch)
        passing.add_done_callback(partial(self._end_pass, batch, time.perf_counter()))

    def _end_pass(
        self, batch: Sequence[_Waiting], began: float, passed: "asyncio.Future[Sequence[Tagged]]"
    ) -> None:
        self._is_passing = False
        waiting = [(at, one.answer) for at, one in enumerate(batch) if not one.answer.done()]
        if passed.cancelled():  # the server stops
            for _, answer in waiting:
                answer.cancel()
        elif (error := passed.exception()) is not None:
            for _, answer in waiting:
                answer.set_exception(error)
        else:
            seconds = time.perf_counter() - began
            self._seconds_per_picture += 0.2 * (seconds / len(batch) - self._seconds_per_picture)
            self.watcher.batch_done(len(batch), seconds)
            for at, answer in waiting:
                answer.set_result(passed.result()[at])
        self._pass_on()

    def _stop_waiting(self) -> None:
        if self._waited is not None:
            self._waited.cancel()
            self._waited = None

    def _answers(self, batch: Sequence[_Waiting]) -> Sequence[Tagged]:
        pixels = np.stack([one.pixels for one in batch])
        return self.forward(pixels, [one.name for one in batch])


def model_thread() -> ThreadPoolExecutor:
    """Return the one thread that touches the model, from loading it to the last forward pass.

    Every thread that computes with torch gets worker threads of its own, as many as there are
    cores. From the second group on there are more than cores, and OpenMP lets all of them sleep
    between the layers of a network instead of waiting awake: each forward pass takes longer.
    """
    return ThreadPoolExecutor(1, "model", _step_back, ("lw-model", NICE))


class Place:
    """A place in the queue, given back once."""

    def __init__(self, batcher: Batcher, client: str) -> None:
        self._batcher: Batcher | None = batcher
        self.client = client

    def release(self) -> None:
        """Give the place back, if that was not done before."""
        if self._batcher is not None:
            self._batcher._count(-1, self.client)
            self._batcher = None


def _step_back(name: str, nice: int) -> None:
    """Name this thread, and those it starts, for the system; let others have the cores first."""
    if sys.platform == "linux":
        number = threading.get_native_id()
        with suppress(OSError):
            Path(f"/proc/self/task/{number}/comm").write_text(name)
            os.setpriority(os.PRIO_PROCESS, number, nice)
