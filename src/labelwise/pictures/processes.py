"""Decoding processes and the memory they share with this one.

    chunk n  --socket of a free process-->  slot n mod S of the memory  --in order-->  this process

A slot is used again once whoever got its chunk asks for the next one, and its copy to a device, if
there was one, is over. The memory has no name and the processes end with their sockets, so nothing
is left behind however this process ends. They are kept for the next caller, and start anew in a
fork of this process. A picture that ends its process twice is a failure like any other.
"""

import atexit
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import LabelwiseError
from labelwise.pictures.ahead import started_ahead
from labelwise.pictures.sources import ImageSource, Location
from labelwise.pictures.work import (
    HEADER,
    NAME,
    SLOT_BYTES,
    Entry,
    Item,
    Work,
    items_to_json,
    reason_of,
)

__all__ = [
    "DecodedChunk",
    "DecodingProcesses",
    "are_worth_it",
    "borrowed_processes",
    "items_ahead",
]

MOST = 32  # processes
SLOTS_EACH = 3
SENT_AHEAD = 2  # chunks that a process has, the one at work included
AT_ONCE = 512  # rows whose places are looked up at once
WORTH_STARTING = 4096  # images; the first processes take some seconds to start
START_SECONDS = 600.0
DRAIN_SECONDS = 2.0
COMMAND = (  # Ctrl-C is for the program that asked
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv[1]); "
    "from labelwise.pictures.work import main; main(*map(int, sys.argv[2:]))"
)
ENDED = f"{NAME}: the process that decoded the image ended; it may be made to harm, or too large"


@dataclass(eq=False)
class DecodedChunk:
    """Pictures in a slot: its bytes, and of each item where it is or why it is not.

    Set ``copied`` to an event if the bytes are still being read when the next chunk is asked for.
    """

    values: Tensor
    entries: list[Entry | str]
    copied: torch.cuda.Event | None = None

    @property
    def used(self) -> Tensor:
        """The part of the slot that holds something."""
        ends = (one.offset + one.size for one in self.entries if isinstance(one, Entry))
        return self.values[: max(ends, default=0)]


@dataclass(eq=False)
class _Sent:
    """A chunk that a process has."""

    number: int
    items: list[Item | str]
    died_at: int = -1  # the item that was at work when its process died


@dataclass(eq=False)
class _Worker:
    connection: "Connection[Any, Any]"
    work: Work | None = None
    sent: deque[_Sent] = field(default_factory=deque)


def _await_copy(chunk: DecodedChunk) -> None:
    if chunk.copied is not None:
        chunk.copied.synchronize()


class DecodingProcesses:
    """``count`` processes; one :meth:`run` at a time."""

    def __init__(self, count: int) -> None:
        self.count, self.slots = count, SLOTS_EACH * count
        size = self.slots * SLOT_BYTES
        file = os.memfd_create("labelwise")
        self._control, theirs = socket.socketpair()
        try:
            os.truncate(file, size)
            self._map = mmap(file, size)
            shared = theirs.fileno(), file
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", COMMAND, json.dumps(sys.path), *map(str, shared)],
                pass_fds=shared,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        finally:
            os.close(file)
            theirs.close()
        self._array = np.frombuffer(self._map, np.uint8)
        self.memory = torch.from_numpy(self._array)
        self.pinned, self._folder = False, ""
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._await_start()

    def _await_start(self) -> None:
        self._control.settimeout(START_SECONDS)
        try:
            started = self._control.recv(1) == b"r"
        except OSError:
            started = False
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if not started:
            self.close()
            raise LabelwiseError("the decoding processes did not start")
        self._control.settimeout(None)
        self._workers = [self._new_worker() for _ in range(self.count)]
        _started.add(self)

    def _new_worker(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise LabelwiseError("the decoding processes ended; start again") from None
        worker = _Worker(Connection(ours.detach()))
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        return worker

    def pin(self) -> None:
        """Let a GPU read the memory directly, if it can; otherwise it is copied once more."""
        if not self.pinned and torch.cuda.is_available():
            found = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
                self.memory.data_ptr(), self.memory.numel(), 0
            )
            self.pinned = int(found) == 0

    def close(self) -> None:
        """End the processes and give the memory back."""
        self._disconnect()
        self._process.kill()
        self._process.wait()
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(  # type: ignore[no-untyped-call]
                self.memory.data_ptr()
            )
            self.pinned = False

    def _disconnect(self) -> None:
        """Close the sockets, at whose end the processes end."""
        self._selector.close()
        for worker in self._workers:
            with suppress(OSError):
                worker.connection.close()
        self._workers = []
        self._control.close()

    @property
    def idle(self) -> bool:
        """Whether nothing is at work, so that another run may begin."""
        return bool(self._workers) and not any(worker.sent for worker in self._workers)

    def run(self, work: Work, chunks: Iterable[Sequence[Item | str]]) -> Generator[DecodedChunk]:
        """Yield the chunks loaded, in their order; text in place of an item is its failure."""
        self._folder = os.getcwd()  # which paths may be relative to
        remaining = iter(chunks)
        held: deque[DecodedChunk] = deque()  # given away, their slots not used again yet
        found: dict[int, list[Entry | str]] = {}
        sent = given = 0
        more = True
        try:
            while more or given < sent:
                while more:
                    worker = min(self._workers, key=lambda one: len(one.sent))
                    if len(worker.sent) >= SENT_AHEAD:
                        break
                    if sent - given + len(held) == self.slots:
                        if not held:
                            break
                        _await_copy(held.popleft())
                    items = next(remaining, None)
                    if items is None:
                        more = False
                        break
                    self._send(worker, work, _Sent(sent, list(items)))
                    sent += 1
                if given in found:
                    chunk = self._chunk(given, found.pop(given))
                    given += 1
                    yield chunk
                    held.append(chunk)
                elif given < sent:
                    for key, _ in self._selector.select():
                        self._receive(key.data, work, found)
        except GeneratorExit:
            self._drain(work)
            raise
        finally:
            for chunk in held:
                _await_copy(chunk)

    def _drain(self, work: Work) -> None:
        """Wait a moment for what is at work and not wanted any more."""
        until = time.monotonic() + DRAIN_SECONDS
        while not self.idle and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._receive(key.data, work, {})

    def _chunk(self, number: int, entries: list[Entry | str]) -> DecodedChunk:
        first = number % self.slots * SLOT_BYTES
        return DecodedChunk(self.memory[first : first + SLOT_BYTES], entries)

    def _send(self, worker: _Worker, work: Work, chunk: _Sent) -> None:
        worker.sent.append(chunk)
        with suppress(OSError):  # it died: its socket is at an end, and is looked at next
            if worker.work != work:
                worker.connection.send_bytes(json.dumps({"work": work.to_json()}).encode())
                worker.work = work
            self._place(chunk)[0] = 0
            message = {
                "slot": chunk.number % self.slots,
                "folder": self._folder,
                "items": items_to_json(chunk.items),
            }
            worker.connection.send_bytes(json.dumps(message).encode())
            for item in chunk.items:
                if not isinstance(item, str) and isinstance(item.source, bytes):
                    worker.connection.send_bytes(item.source)

    def _place(self, chunk: _Sent) -> NDArray[np.int64]:
        """Return the number of the item that a process has come to."""
        first = chunk.number % self.slots * SLOT_BYTES
        return self._array[first : first + HEADER].view(np.int64)

    def _receive(self, worker: _Worker, work: Work, found: dict[int, list[Entry | str]]) -> None:
        try:
            answer = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._replace(worker, work)
            return
        chunk = worker.sent.popleft()
        found[chunk.number] = [one if isinstance(one, str) else Entry(*one) for one in answer]

    def _replace(self, dead: _Worker, work: Work) -> None:
        """Start another process and give it what the dead one had."""
        self._selector.unregister(dead.connection)
        dead.connection.close()
        worker = self._workers[self._workers.index(dead)] = self._new_worker()
        for place, chunk in enumerate(dead.sent):
            if place == 0:
                at = int(self._place(chunk)[0])
                if chunk.died_at == at:
                    chunk.items[at] = ENDED
                chunk.died_at = at
            self._send(worker, work, chunk)


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

    with ThreadPoolExecutor(threads, thread_name_prefix="fetch") as pool:
        for future in started_ahead(parts, lambda rows: pool.submit(fetched, rows), 2 * threads):
            yield future.result()


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
            try:
                processes = DecodingProcesses(count)
            except (LabelwiseError, OSError):
                processes = None
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
    able = bool(sys.executable) and not hasattr(sys, "frozen")  # it is Python itself
    able = able and hasattr(os, "memfd_create") and hasattr(socket, "send_fds")
    return able and (images >= WORTH_STARTING or min(count, MOST) in _kept)


def _forget() -> None:
    """In a fork of this process: leave the processes to it."""
    global _lock
    _lock = threading.Lock()
    for processes in _started:
        processes._disconnect()
        processes.pinned = False
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
