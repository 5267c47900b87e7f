"""Many pictures decoded by workers, in order, into memory that they share with this process.

    chunk n  --socket of a free worker-->  slot n mod S of the memory  --in order-->  this process

A slot is used again once its user asks for the next chunk. The memory has no name, so nothing is
left behind. A picture that ends its worker twice is a failure.
"""

import atexit
import os
import selectors
import threading
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from mmap import mmap
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.prefetch import by_threads
from labelwise.pictures.sources import ImageSource, Location
from labelwise.pictures.worker import HEADER, NAME, SLOT_BYTES, Entry, Item, Limits, Work, reason_of
from labelwise.pictures.worker_starter import Worker, WorkerStartError, can_start, start_worker

MOST = 32  # processes
SENT_AHEAD = 2  # chunks that a worker has, the one at work included
SLOTS_EACH = SENT_AHEAD + 1  # for each worker's, and one that is being read
AT_ONCE = 512  # rows whose places are looked up at once
WORTH_STARTING = 4096  # images; the first processes take some seconds to start
DRAIN_SECONDS = 2.0
LIMITS = Limits(seconds=300.0)  # of a file of one's own, whatever its size
ENDED = f"{NAME}: the process that decoded the image ended; it may be made to harm, or too large"


@dataclass(eq=False)
class DecodedChunk:
    """Pictures in a slot: its bytes, and of each item where it is or why it is not."""

    values: Tensor
    entries: list[Entry | str]

    @property
    def used(self) -> Tensor:
        ends = (entry.offset + entry.size for entry in self.entries if isinstance(entry, Entry))
        return self.values[: max(ends, default=0)]


@dataclass(eq=False)
class _Sent:
    number: int
    items: list[Item | str]
    died_at: int = -1  # the item that was at work when its process died


@dataclass(eq=False)
class _Busy:
    """A worker, the chunks it has, and whether it is here for one that did not start."""

    worker: Worker
    unstarted: bool = False
    sent: deque[_Sent] = field(default_factory=deque)


class DecodingProcesses:
    """``count`` workers; one :meth:`run` at a time."""

    def __init__(self, count: int) -> None:
        self.count, self.slots = count, SLOTS_EACH * count
        size = self.slots * SLOT_BYTES
        self._file = os.memfd_create("labelwise")
        self._workers: list[_Busy] = []
        self._selector = selectors.DefaultSelector()
        self._folder = ""
        _started.add(self)
        try:
            os.truncate(self._file, size)
            self._map = mmap(self._file, size)
            self._array = np.frombuffer(self._map, np.uint8)
            self.memory = torch.from_numpy(self._array)
            self._workers = [self._new_worker() for _ in range(count)]
            self._workers[0].worker.await_start()
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def _new_worker(self, *, unstarted: bool = False) -> _Busy:
        busy = _Busy(start_worker(LIMITS, self._file), unstarted)
        self._selector.register(busy.worker.connection, selectors.EVENT_READ, busy)
        return busy

    def close(self) -> None:
        for busy in self._workers:
            if busy.sent:  # it may be at it for long
                busy.worker.kill()
        self._disconnect()

    def _disconnect(self) -> None:
        """Close what is open; at the end of their sockets the workers end."""
        self._selector.close()
        for busy in self._workers:
            busy.worker.close()
        self._workers = []
        with suppress(OSError):  # it may be closed already
            os.close(self._file)
        self._file = -1

    @property
    def idle(self) -> bool:
        """Whether nothing is at work, so that another run may begin."""
        return bool(self._workers) and not any(busy.sent for busy in self._workers)

    def run(self, work: Work, chunks: Iterable[Sequence[Item | str]]) -> Generator[DecodedChunk]:
        """Yield the chunks loaded, in their order; text in place of an item is its failure."""
        self._folder = os.getcwd()  # which paths may be relative to
        remaining = iter(chunks)
        entries_of: dict[int, list[Entry | str]] = {}
        sent = yielded = 0
        more = True
        try:
            while more or yielded < sent:
                while more and sent - yielded < self.slots:  # the next one's slot is free
                    busy = min(self._workers, key=lambda one: len(one.sent))
                    if len(busy.sent) >= SENT_AHEAD:
                        break
                    items = next(remaining, None)
                    if items is None:
                        more = False
                        break
                    self._send(busy, work, _Sent(sent, list(items)))
                    sent += 1
                if yielded in entries_of:
                    first = yielded % self.slots * SLOT_BYTES
                    memory = self.memory[first : first + SLOT_BYTES]
                    yielded += 1
                    yield DecodedChunk(memory, entries_of.pop(yielded - 1))
                elif yielded < sent:
                    for key, _ in self._selector.select():
                        self._receive(key.data, work, entries_of)
        except GeneratorExit:
            until = time.monotonic() + DRAIN_SECONDS  # for what is at work and not wanted any more
            while not self.idle and (left := until - time.monotonic()) > 0:
                for key, _ in self._selector.select(left):
                    self._receive(key.data, work, {})
            raise

    def _send(self, busy: _Busy, work: Work, chunk: _Sent) -> None:
        busy.sent.append(chunk)
        self._place(chunk)[0] = 0
        with suppress(OSError):  # it died: its socket is at an end, and is looked at next
            slot = chunk.number % self.slots
            busy.worker.send(work, chunk.items, folder=self._folder, slot=slot)

    def _place(self, chunk: _Sent) -> NDArray[np.int64]:
        """Return the number of the item that a process has come to."""
        first = chunk.number % self.slots * SLOT_BYTES
        return self._array[first : first + HEADER].view(np.int64)

    def _receive(self, busy: _Busy, work: Work, entries_of: dict[int, list[Entry | str]]) -> None:
        try:
            if busy.worker.pid is None:
                busy.worker.await_start()
                return
            answer = busy.worker.receive()
        except (WorkerStartError, EOFError, OSError):
            if busy.worker.pid is None and busy.unstarted:
                raise  # its starter did not die just then: none will start
            self._replace(busy, work)
            return
        entries_of[busy.sent.popleft().number] = answer.entries
        if answer.warned:
            warnings.warn(answer.warned, stacklevel=2)

    def _replace(self, dead: _Busy, work: Work) -> None:
        self._selector.unregister(dead.worker.connection)
        dead.worker.close()
        unstarted = dead.worker.pid is None
        busy = self._new_worker(unstarted=unstarted)
        self._workers[self._workers.index(dead)] = busy
        for position, chunk in enumerate(dead.sent):
            if position == 0 and not unstarted:
                at = int(self._place(chunk)[0])
                if chunk.died_at == at:
                    chunk.items[at] = ENDED
                chunk.died_at = at
            self._send(busy, work, chunk)


def items_ahead(
    images: ImageSource, parts: Sequence[Sequence[int]], threads: int
) -> Generator[list[Item | str]]:
    """Yield the items of some rows after the other; what is in no file is fetched by threads."""
    if not parts or images.location(parts[0][0]) is not None:
        count = max(1, AT_ONCE // len(parts[0])) if parts else 1
        for first in range(0, len(parts), count):
            some = parts[first : first + count]
            places = iter(images.locations([row for rows in some for row in rows]))
            for rows in some:
                yield [_item(images, row, next(places)) for row in rows]
        return

    def fetched(rows: Sequence[int]) -> list[Item | str]:
        return [_item(images, row, images.location(row)) for row in rows]

    yield from by_threads(parts, fetched, threads, 2 * threads, "fetch")


def _item(images: ImageSource, row: int, place: Location | None) -> Item | str:
    if place is not None:
        return Item(place)
    try:
        return Item(images.encoded(row) or b"")
    except Exception as error:
        return reason_of(images.ids[row], error)


_lock = threading.Lock()
_kept: dict[int, DecodingProcesses] = {}  # by their number
_started: WeakSet[DecodingProcesses] = WeakSet()


@contextmanager
def borrowed_processes(count: int) -> Iterator[DecodingProcesses | None]:
    """Lend so many processes, kept from before or started; None while they are lent to another."""
    if not _lock.acquire(blocking=False):
        yield None
        return
    try:
        count = min(count, MOST)
        processes = _kept.pop(count, None)
        if processes is None:
            close_kept()
            with suppress(WorkerStartError, OSError):
                processes = DecodingProcesses(count)
        try:
            yield processes
        finally:
            if processes is not None and processes.idle:
                _kept[count] = processes
            elif processes is not None:
                processes.close()
    finally:
        _lock.release()


@atexit.register
def close_kept() -> None:
    """End the processes that wait for the next caller."""
    while _kept:
        _kept.popitem()[1].close()


def are_worth_it(images: int, count: int) -> bool:
    """Return whether so many processes start, or wait already, in less time than they gain."""
    return can_start() and (images >= WORTH_STARTING or min(count, MOST) in _kept)


def _forget() -> None:
    """In a fork of this process: leave the processes to it."""
    global _lock
    _lock = threading.Lock()
    for processes in _started:
        processes._disconnect()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
