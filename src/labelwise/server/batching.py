"""Pictures of many requests share forward passes.

    request --> place (or busy) --> body --> opened --> ready --> one forward pass of several

A picture waits for others of the same model only while others are being opened, and at most
``max_wait``. A client that leaves takes its pictures along.
"""

import asyncio
import os
import sys
import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError
from labelwise.pictures.decode import MAX_PIXELS
from labelwise.server.bodies import Pixels, Upload, claimed_pixels
from labelwise.server.monitoring import Monitor
from labelwise.server.security import RefusedError

# Whose picture is opened next: start-time fair queueing. Addresses take turns, paying by the pixel.
# A picture starts at the larger of the clock when it came and the end of its address's last one,
# and ends ``pixels`` later; the earliest start is served first, and the clock is the start that was
# served last. Within an address requests share in the same way, and the earliest end is served
# first: a single photo comes before the rest of a large request, and no picture waits for ever.
# A picture costs its pixels, or 10,000,000 for each second of its turn: small files made to be slow
# are paid for by their time. Pixels under way at a time are limited, because they are memory.

T = TypeVar("T")

USUAL_PIXELS = 16_000_000  # of a photo: beside a large one there is room for as many as openers
CLIENTS_REMEMBERED = 4096
PIXELS_PER_SECOND = 10_000_000
WAITING = 64  # of what threads are to do


class BusyError(RefusedError):
    """The server has as many pictures as it takes."""

    def __init__(self, seconds: int) -> None:
        words = f"the server is busy; try again in {seconds} s"
        super().__init__(429, words, {"retry-after": str(seconds)})


@dataclass(eq=False)
class Place:
    """The place of a request in the queue, with room for ``pictures`` of one client."""

    queue: "PictureQueue"
    client: str
    pictures: int
    end: int = 0  # of its last picture, on the clock of its address

    def fit(self, pictures: int) -> None:
        queue, more = self.queue, pictures - self.pictures
        own = queue.of_client[self.client] + more
        if more > 0 and (queue.under_way + more > queue.max_queue or own > queue.client_queue):
            raise BusyError(max(1, ceil(queue.under_way * queue.seconds_per_picture)))
        queue.under_way += more
        queue.of_client[self.client] = own
        if not own:
            del queue.of_client[self.client]
        queue.monitor.queue.set(queue.under_way)
        self.pictures = pictures

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self.fit(0)


class PictureQueue:
    """The places of all pictures of a server, and the threads that have them opened."""

    def __init__(
        self, *, max_queue: int, client_queue: int, openers: int, monitor: Monitor
    ) -> None:
        self.max_queue, self.client_queue, self.monitor = max_queue, client_queue, monitor
        self.turns = FairTurns(openers, MAX_PIXELS + openers * USUAL_PIXELS)
        self.of_client: Counter[str] = Counter()  # places taken, by client
        self.under_way = 0  # places taken: pictures admitted and not answered
        self.opening = 0  # pictures that are being opened, or wait for that
        self.is_stopped = False
        self._openers = ThreadPoolExecutor(openers, "open", step_back, ("lw-open", 0))
        self.seconds_per_picture = 0.05

    def stop(self) -> None:
        self.is_stopped = True
        self._openers.shutdown(wait=False, cancel_futures=True)

    def reserve(self, client: str, pictures: int = 1) -> Place:
        place = Place(self, client, 0)
        place.fit(pictures)
        return place

    async def opened(self, work: Callable[[], T], place: Place, pixels: int) -> T:
        self.opening += 1
        began = time.perf_counter()
        try:
            async with self.turns.turn(place, pixels):
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
        """Count a forward pass, by which a busy server says when to come again."""
        self.seconds_per_picture += 0.2 * (seconds / size - self.seconds_per_picture)
        self.monitor.batches.observe(size)
        self.monitor.forward.observe(seconds)


@dataclass(eq=False)
class _Turn:
    came: int  # on the clock of all
    start: int  # on the clock of its address
    pixels: int
    comes: "asyncio.Future[None]"
    began: float = 0.0


@dataclass(eq=False)
class _Address:
    clock: int = 0
    waiting: list[tuple[int, int, _Turn]] = field(default_factory=list)


class FairTurns:
    """Turns for pictures of many requests and addresses."""

    def __init__(
        self, places: int, pixels: int, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.places, self.pixels, self._seconds = places, pixels, seconds
        self.under_way = self.pixels_under_way = 0
        self._clock = 0
        self._numbers = count()
        self._ends: dict[str, int] = {}  # of each address's last picture
        self._addresses: dict[str, _Address] = {}

    @asynccontextmanager
    async def turn(self, asking: Place, pixels: int) -> AsyncIterator[None]:
        comes = asyncio.get_running_loop().create_future()
        address = self._addresses.setdefault(asking.client, _Address())
        turn = _Turn(self._clock, max(address.clock, asking.end), pixels, comes)
        asking.end = turn.start + pixels
        insort(address.waiting, (asking.end, next(self._numbers), turn))
        self._serve()
        try:
            await comes
            yield
        finally:
            if comes.done() and not comes.cancelled():  # it came, if only to one who has gone
                self.under_way -= 1
                self.pixels_under_way -= pixels
                more = int(PIXELS_PER_SECOND * (self._seconds() - turn.began)) - pixels
                if more > 0:
                    asking.end += more
                    if asking.client in self._ends:
                        self._ends[asking.client] += more
            self._serve()

    def _serve(self) -> None:
        while self.under_way < self.places and (heads := self._heads()):
            start, client, at = min(heads)
            address = self._addresses[client]
            turn = address.waiting.pop(at)[2]
            address.clock = max(address.clock, turn.start)
            self._clock = max(self._clock, start)
            self._ends.pop(client, None)
            self._ends[client] = start + turn.pixels
            while len(self._ends) > CLIENTS_REMEMBERED:
                self._ends.pop(next(iter(self._ends)))
            self.under_way += 1
            self.pixels_under_way += turn.pixels
            turn.began = self._seconds()
            turn.comes.set_result(None)

    def _heads(self) -> list[tuple[int, str, int]]:
        """Return start, address and place of each address's next picture that there is room for."""
        heads = []
        for client, address in list(self._addresses.items()):
            address.waiting = [turn for turn in address.waiting if not turn[2].comes.done()]
            if not address.waiting:
                del self._addresses[client]
            for at, (_, _, turn) in enumerate(address.waiting):
                if not self.under_way or self.pixels_under_way + turn.pixels <= self.pixels:
                    heads.append((max(turn.came, self._ends.get(client, 0)), client, at))
                    break
        return heads


class Threads:
    """Threads that do one thing after another; BusyError if much is waiting for them."""

    def __init__(self, count: int, name: str, waiting: int = WAITING) -> None:
        self._pool = ThreadPoolExecutor(count, name, compute_alone)
        self._waiting, self._most = 0, waiting

    async def run(self, work: Callable[[], T]) -> T:
        if self._waiting >= self._most:
            raise BusyError(1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=True)


def compute_alone() -> None:
    """Keep torch, where it is there, from threads of its own beside this one: see model_thread."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def step_back(name: str, nice: int) -> None:
    """Name this thread, and those it starts, for the system; let others have the cores first."""
    if sys.platform == "linux":
        number = threading.get_native_id()
        with suppress(OSError):
            Path(f"/proc/self/task/{number}/comm").write_text(name)
            os.setpriority(os.PRIO_PROCESS, number, nice)


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


@dataclass(eq=False)
class Batcher:
    """Puts pictures that are ready through one model together.

    A model has one pass under way or waiting for the thread, so that models take turns.
    """

    queue: PictureQueue
    open_picture: Open
    forward: Forward
    max_batch: int
    max_wait: float
    model: ThreadPoolExecutor
    opening: int = 0  # pictures for this model that are being opened, or wait for that

    def __post_init__(self) -> None:
        self._ready: deque[_Waiting] = deque()
        self._enough = asyncio.Event()  # pictures are ready, or no others are being opened
        self._passing: asyncio.Task[None] | None = None

    async def tag(self, uploads: Sequence[Upload], place: Place | None = None) -> list[Tagged]:
        place = place or self.queue.reserve("", 0)
        place.fit(len(uploads))
        tasks = [asyncio.create_task(self._answer(upload, place)) for upload in uploads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            place.fit(0)

    async def _answer(self, upload: Upload, place: Place) -> Tagged:
        self.opening += 1
        try:
            work = partial(self.open_picture, upload)
            pixels = await self.queue.opened(work, place, claimed_pixels(upload.content))
        except ImageError as error:
            return Tagged(upload.name, error=str(error))
        else:
            waiting = _Waiting(upload.name, pixels, asyncio.get_running_loop().create_future())
            self._ready.append(waiting)
        finally:
            self.opening -= 1
            if not self.opening or len(self._ready) >= self.max_batch:
                self._enough.set()
            if self._ready and (self._passing is None or self._passing.done()):
                self._passing = asyncio.create_task(self._pass_on())
        return await waiting.answer  # cancelled with its request, and then left out

    async def _pass_on(self) -> None:
        while self._ready and not self.queue.is_stopped:
            if self.opening and len(self._ready) < self.max_batch:  # others are worth waiting for
                self._enough.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.max_wait):
                        await self._enough.wait()
            batch: list[_Waiting] = []
            while self._ready and len(batch) < self.max_batch:
                if not self._ready[0].answer.done():
                    batch.append(self._ready[0])
                self._ready.popleft()
            if not batch:
                continue
            pixels, names = [one.pixels for one in batch], [one.name for one in batch]
            loop, began = asyncio.get_running_loop(), time.perf_counter()
            try:
                answers = await loop.run_in_executor(self.model, self.forward, pixels, names)
            except asyncio.CancelledError:  # the server stops
                for picture in batch:
                    picture.answer.cancel()
                raise
            except BaseException as error:
                for picture in batch:
                    if not picture.answer.done():
                        picture.answer.set_exception(error)
            else:
                self.queue.note_pass(len(batch), time.perf_counter() - began)
                for picture, answer in zip(batch, answers, strict=True):
                    if not picture.answer.done():
                        picture.answer.set_result(answer)


def model_thread() -> ThreadPoolExecutor:
    """Return the one thread that touches the model, from loading it to the last forward pass.

    Every thread that computes with torch gets a group of worker threads. With two groups there are
    more threads than cores, OpenMP lets them sleep between layers, and passes take longer.
    """
    return ThreadPoolExecutor(1, "model", step_back, ("lw-model", NICE))
