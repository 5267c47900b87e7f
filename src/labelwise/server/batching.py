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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError
from labelwise.server.queueing import PictureQueue, Place, step_back
from labelwise.server.uploads import Pixels, Upload, claimed_pixels


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
Forward = Callable[[Sequence[Pixels], Sequence[str]], Sequence[Tagged]]


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
    ) -> None:
        self.queue, self.open_picture, self.forward = queue, open_picture, forward
        self.max_batch, self.max_wait = max_batch, max_wait
        self.opening = 0  # pictures for this model that are being opened, or wait for that
        self._ready: deque[_Waiting] = deque()
        self._enough = asyncio.Event()  # pictures are ready, or no others are being opened
        self._passing: asyncio.Task[None] | None = None
        self._model = model

    async def tag(self, uploads: Sequence[Upload], place: Place | None = None) -> list[Tagged]:
        """Return the answers for the pictures of one request in order, or raise BusyError.

        The place that was kept for the request goes to its pictures.
        """
        client = "" if place is None else place.client
        if place is not None:
            place.release()
        taken = self.queue.reserve(client, len(uploads))
        tasks = [asyncio.create_task(self.answer(upload, client)) for upload in uploads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            taken.release()

    async def answer(self, upload: Upload, client: str) -> Tagged:
        """Return the answer for a picture that has its place, or needs none."""
        self.opening += 1
        try:
            work = partial(self.open_picture, upload)
            pixels = await self.queue.opened(work, client, claimed_pixels(upload.content))
        except ImageError as error:
            return Tagged(upload.name, error=str(error))
        else:
            future = asyncio.get_running_loop().create_future()
            waiting = _Waiting(upload.name, pixels, future)
            self._ready.append(waiting)
        finally:
            self.opening -= 1
            if not self.opening or len(self._ready) >= self.max_batch:
                self._enough.set()
            if self._ready and (self._passing is None or self._passing.done()):
                self._passing = asyncio.create_task(self._pass_on())
        return await waiting.answer  # cancelled with its request, and then left out

    async def _pass_on(self) -> None:
        """Put what is ready through the model, one batch after another, until nothing is ready."""
        while self._ready and not self.queue.is_stopped:
            if self.opening and len(self._ready) < self.max_batch:  # others are worth waiting for
                self._enough.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.max_wait):
                        await self._enough.wait()
            batch: list[_Waiting] = []
            while self._ready and len(batch) < self.max_batch:
                one = self._ready.popleft()
                if not one.answer.done():
                    batch.append(one)
            if not batch:
                continue
            pixels, names = [one.pixels for one in batch], [one.name for one in batch]
            loop, began = asyncio.get_running_loop(), time.perf_counter()
            try:
                answers = await loop.run_in_executor(self._model, self.forward, pixels, names)
            except asyncio.CancelledError:  # the server stops
                for one in batch:
                    one.answer.cancel()
                raise
            except BaseException as error:
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
            else:
                self.queue.note_pass(len(batch), time.perf_counter() - began)
                for one, answer in zip(batch, answers, strict=True):
                    if not one.answer.done():
                        one.answer.set_result(answer)


def model_thread() -> ThreadPoolExecutor:
    """Return the one thread that touches the model, from loading it to the last forward pass.

    Every thread that computes with torch gets worker threads of its own, as many as there are
    cores. From the second group on there are more than cores, and OpenMP lets all of them sleep
    between the layers of a network instead of waiting awake: each forward pass takes longer.
    """
    return ThreadPoolExecutor(1, "model", step_back, ("lw-model", NICE))
