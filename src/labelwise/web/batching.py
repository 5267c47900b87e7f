"""Pictures of many requests share forward passes.

    request --> place (or busy) --> body --> opened --> ready --> one forward pass of several

A picture waits for others of the same model only while others are being opened, and at most
``max_wait``; one that is alone goes at once. A client that has gone takes its pictures along, also
out of a batch that is being put together.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError
from labelwise.web.picture_size import claimed_pixels
from labelwise.web.queueing import PictureQueue, Place, Watcher, step_back

__all__ = ["Batcher", "Tagged", "Upload", "model_thread"]

Pixels = NDArray[Any]  # uint8 (H, W, 3), or float32 (H, W, bands)


@dataclass(frozen=True)
class Upload:
    """A picture of a request: its name and its encoded bytes, or its pixels (H, W, 3)."""

    name: str
    content: bytes | Pixels

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.nbytes

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


NICE = 5  # of forward passes: under load the thread that takes requests comes first

Open = Callable[[Upload], Pixels]
Forward = Callable[[Pixels, Sequence[str]], Sequence[Tagged]]


@dataclass(eq=False)
class _Waiting:
    name: str
    pixels: Pixels
    answer: "asyncio.Future[Tagged]"


class Batcher:
    """Puts pictures that are ready through one model together; the queue is shared with others.

    A model has one pass under way or waiting for the thread, so that models take turns at it.
    """

    def __init__(
        self,
        queue: PictureQueue,
        open_picture: Open,
        forward: Forward,
        *,
        max_batch: int,
        max_wait: float,
        model: ThreadPoolExecutor,
        watcher: Watcher,
    ) -> None:
        self.queue, self.watcher = queue, watcher
        self.open_picture, self.forward = open_picture, forward
        self.max_batch, self.max_wait = max_batch, max_wait
        self.opening = 0  # pictures for this model that are being opened, or wait for that
        self._ready: deque[_Waiting] = deque()
        self._is_passing = False
        self._waited: asyncio.TimerHandle | None = None
        self._model = model

    async def tag(self, uploads: Sequence[Upload], place: Place | None = None) -> list[Tagged]:
        """Return the answers for the pictures of one request in order, or raise BusyError.

        The place that was kept for the request goes to its pictures.
        """
        client = "" if place is None else place.client
        if place is not None:
            place.release()
        taken = self.queue.reserve(client, len(uploads))
        try:
            return await self.answers(uploads, client)
        finally:
            taken.release()

    async def answers(self, uploads: Sequence[Upload], client: str) -> list[Tagged]:
        """Return the answers for pictures that have their places, or need none."""
        tasks = [asyncio.create_task(self._one(upload, client)) for upload in uploads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, upload: Upload, client: str) -> Tagged:
        self.opening += 1
        began = time.perf_counter()
        try:
            work = partial(self.open_picture, upload)
            pixels = await self.queue.opened(work, client, upload.pixels)
        except ImageError as error:
            return Tagged(upload.name, error=str(error))
        else:
            future = asyncio.get_running_loop().create_future()
            waiting = _Waiting(upload.name, pixels, future)
            self._ready.append(waiting)
        finally:
            self.opening -= 1
            self._pass_on()
        self.watcher.picture_opened(time.perf_counter() - began)
        return await waiting.answer  # cancelled with its request, and then left out

    # Forward passes, one at a time

    def _pass_on(self) -> None:
        """Begin a forward pass if pictures wait for one and no others are worth waiting for."""
        if self._is_passing or self.queue.is_stopped or not self._ready:
            return
        if not self.opening or len(self._ready) >= self.max_batch:
            self._begin_pass()
        elif self._waited is None:
            self._waited = asyncio.get_running_loop().call_later(self.max_wait, self._begin_pass)

    def _begin_pass(self) -> None:
        if self._waited is not None:
            self._waited.cancel()
            self._waited = None
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
            self.queue.note_pass(len(batch), seconds)
            self.watcher.batch_done(len(batch), seconds)
            for at, answer in waiting:
                answer.set_result(passed.result()[at])
        self._pass_on()

    def _answers(self, batch: Sequence[_Waiting]) -> Sequence[Tagged]:
        pixels = np.stack([one.pixels for one in batch])
        return self.forward(pixels, [one.name for one in batch])


def model_thread() -> ThreadPoolExecutor:
    """Return the one thread that touches the model, from loading it to the last forward pass.

    Every thread that computes with torch gets worker threads of its own, as many as there are
    cores. From the second group on there are more than cores, and OpenMP lets all of them sleep
    between the layers of a network instead of waiting awake: each forward pass takes longer.
    """
    return ThreadPoolExecutor(1, "model", step_back, ("lw-model", NICE))
