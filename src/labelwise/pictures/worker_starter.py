"""The workers of this program, and the one process that starts them.

    program --command line, once--> starter --fork--> worker <--socket--> program

The starter imports the decoders once, so that a worker is there in milliseconds. Workers and
starter end with their sockets, so nothing is left behind. A fork of this program starts its own.
"""

import atexit
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from queue import LifoQueue
from typing import NamedTuple
from weakref import WeakSet

import numpy as np

from labelwise.base.arrays import Values
from labelwise.errors import ImageError, LabelwiseError
from labelwise.pictures.memory import BytesImages
from labelwise.pictures.transform import Transform
from labelwise.pictures.worker import (
    MAX_PIXELS_VARIABLE,
    NAME,
    Entry,
    Item,
    Kind,
    Limits,
    Work,
    items_to_json,
    receive,
    send,
)

START_SECONDS = 600.0  # for a worker to be there, on a machine that is busy
COMMAND = (  # Ctrl-C is for the program that asked
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv[1]); "
    "from labelwise.pictures.worker import main; main(int(sys.argv[2]))"
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerStartError(LabelwiseError):
    """A decoding process could not be started."""


class WorkerAnswer(NamedTuple):
    """Of each item where it is or why it is not, what was warned of, and values without slot."""

    entries: list[Entry | str]
    warned: str
    values: list[bytes]


class Worker:
    """One decoding process, seen from here; it may still be starting."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid: int | None = None
        self._work: Work | None = None
        self._used = 0  # milliseconds of processor time, as it told last

    def await_start(self) -> None:
        if self.pid is None:
            try:
                self.connection.settimeout(START_SECONDS)
                self.pid = receive(self.connection)[0]["pid"]
            except (OSError, EOFError):
                raise WorkerStartError("the decoding processes did not start") from None
            self.connection.settimeout(None)

    def send(
        self, work: Work, items: Sequence[Item | str], *, folder: str = "", slot: int | None = None
    ) -> None:
        """Ask for items to be loaded, into a slot of the memory that it shares, or answered."""
        facts, blobs = items_to_json(items)
        news = None if work == self._work else work.to_json()
        self._work = work
        send(self.connection, {"work": news, "items": facts, "folder": folder, "slot": slot}, blobs)

    def receive(self) -> WorkerAnswer:
        """Return the answer to what was asked first, or raise EOFError or OSError: it died."""
        facts, values = receive(self.connection)
        self._used = facts["used"]
        entries = [fact if isinstance(fact, str) else Entry(*fact) for fact in facts["entries"]]
        return WorkerAnswer(entries, facts["warned"], values)

    def processor_seconds(self) -> float:
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                ticks = file.read().rpartition(")")[2].split()[11:13]
        except OSError:  # it is not there yet
            return 0.0
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") - self._used / 1000

    def kill(self) -> None:
        if self.pid is not None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = None  # another process may have its number soon
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self.connection.close()


class _Starter:
    """The process that forks workers."""

    def __init__(self) -> None:
        # Of packets: each holds a request whole, with the sockets that belong to it.
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", COMMAND, json.dumps(sys.path), str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
            )

    def close(self) -> None:
        self.control.close()
        self._process.kill()
        self._process.wait()


_lock = threading.Lock()
_starter: _Starter | None = None
_left: list[_Starter] = []  # which would warn that their process still runs, if they were dropped
_workers: WeakSet[Worker] = WeakSet()


def can_start() -> bool:
    """Return whether workers can be had here: on Linux, in a Python that can be started again."""
    able = bool(sys.executable) and not hasattr(sys, "frozen")
    return able and hasattr(os, "memfd_create") and hasattr(socket, "send_fds")


def start_worker(limits: Limits, memory: int | None = None, *, bands: bool = False) -> Worker:
    """Return a worker that is being started; ``memory`` is the file of what it shares."""
    most = os.environ.get(MAX_PIXELS_VARIABLE, "")
    request = {"limits": asdict(limits), "bands": bands, "max_pixels": most}
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            handles = [theirs.fileno()] if memory is None else [theirs.fileno(), memory]
            _ask(json.dumps(request).encode(), handles)
        except OSError:
            ours.close()
            raise WorkerStartError("the decoding processes could not be started") from None
    worker = Worker(ours)
    _workers.add(worker)
    return worker


def _ask(request: bytes, handles: Sequence[int]) -> None:
    """Hand a request to the starter, to a new one if there is none or it was killed."""
    global _starter
    with _lock:
        if _starter is not None:
            with suppress(OSError):
                socket.send_fds(_starter.control, [request], handles)
                return
            _starter.close()
            _starter = None
        _starter = _Starter()
        socket.send_fds(_starter.control, [request], handles)


@atexit.register
def close_starter() -> None:
    """End the starter; the next worker starts another."""
    global _starter
    with _lock:
        if _starter is not None:
            _starter.close()
            _starter = None


def _forget() -> None:
    """In a fork of this program: leave starter and workers to it."""
    global _lock, _starter
    _lock = threading.Lock()
    if _starter is not None:
        _starter.control.close()
        _left.append(_starter)
        _starter = None
    for worker in _workers:
        worker.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# Pictures of strangers, opened in processes with limits on memory and processor time, that open and
# write no file. Whom a failure is blamed on:
#
#     the worker says why                             the picture: ImageError
#     it used its processor time                      the picture: ImageError
#     it died, or ran out of memory                   nobody yet: once more in a new one
#     ... and that died too                           the picture: ImageError
#     no answer in time, and little of it was used    the machine: once more, then DecoderError
#     it does not start                               the machine: once more, then DecoderError

TRIES = 2

log = logging.getLogger("labelwise.pictures")


class DecoderError(LabelwiseError):
    """A picture could not be opened, and that says nothing of the picture; try again."""


class Decoders:
    """Opens pictures in processes of their own, or in this one where ``count`` is 0."""

    def __init__(self, transform: Transform, count: int, *, seconds: float, memory: int) -> None:
        self.transform, self.count = transform, count
        self.seconds, self.memory = seconds, memory
        self.limits = Limits(seconds, memory, strangers=True)
        self._idle: LifoQueue[Worker] = LifoQueue()
        self._turn = threading.Lock()  # so that who gives a worker back cannot take it at once
        self._is_closed = False
        self.is_lost = False  # whether the last one that was wanted could not be started
        self.apart = count > 0 and can_start()
        if self.apart:
            for _ in range(count):
                self._idle.put(self._start())

    def _start(self) -> Worker:
        return start_worker(self.limits, bands=self.transform.bands is not None)

    def await_start(self) -> None:
        """Return once the processes are there; they start while other things are done."""
        for worker in list(self._idle.queue):
            worker.await_start()

    def close(self) -> None:
        self._is_closed = True
        for worker in list(self._idle.queue):  # they stay, for those who wait for one
            worker.close()

    def pixels(self, blob: bytes, name: str, transform: Transform | None = None) -> Values:
        """Return a model's input (size, size, C) of an encoded picture, or raise ImageError."""
        own = transform or self.transform
        values = self._made(Work(Kind.RESIZED, own), blob, name)
        kind = np.dtype(np.uint8 if own.bands is None else np.float32)
        return np.frombuffer(values, kind).reshape(own.size, own.size, own.channels)

    def thumbnail(self, blob: bytes, name: str, side: int) -> bytes:
        """Return a JPEG of at most ``side`` pixels with nothing but the picture in it."""
        is_rgb = self.transform.bands is None
        shown = Transform(side) if is_rgb else replace(self.transform, size=side)
        return self._made(Work(Kind.THUMBNAIL, shown), blob, name)

    def _made(self, work: Work, blob: bytes, name: str) -> bytes:
        if not self.apart:
            return work.load(BytesImages([blob], [name]), 0)[1].tobytes()
        answer = self._ask(work, blob, name)
        if answer.warned:
            log.warning("%.200r: %s", name, answer.warned)
        (entry,) = answer.entries
        if isinstance(entry, str):
            raise ImageError(entry.replace(NAME, name))
        return answer.values[0]

    def _ask(self, work: Work, blob: bytes, name: str) -> WorkerAnswer:
        tries = unstarted = 0  # a starter that dies takes workers with it that no picture has seen
        died = False
        while tries < TRIES and unstarted < TRIES:
            with self._turn:
                worker = self._idle.get()
            used = 0.0
            try:
                worker.await_start()
                tries, died = tries + 1, False
                worker.connection.settimeout(self.seconds)
                worker.send(work, [Item(blob)])
                answer = worker.receive()
            except TimeoutError:
                used = worker.processor_seconds()
            except WorkerStartError:
                unstarted += 1
            except (OSError, EOFError):
                died = True
                worker.pid = None  # another process may have its number by now
            except BaseException:
                self._replace(worker)
                raise
            else:
                self._idle.put(worker)
                self.is_lost = False
                return answer
            self._replace(worker)
            if used > self.seconds / 2:
                raise ImageError(
                    f"{name}: the picture took more than {self.seconds:g} seconds to open, and was "
                    "given up"
                )
        if unstarted == TRIES:
            self._lose()
        if died:
            raise ImageError(
                f"{name}: the picture took more than {self.memory >> 20:,} MiB to open, or ended "
                f"the program that opens pictures {TRIES} times, and was given up"
            )
        raise DecoderError("pictures cannot be opened in time at the moment; try again")

    def _replace(self, worker: Worker) -> None:
        """End a worker and start another, or put it back dead for those who wait for one."""
        worker.kill()
        successor = worker
        try:
            if self._is_closed:
                raise DecoderError("the server is shutting down")
            successor = self._start()
        except WorkerStartError:
            self._lose()
        finally:
            self._idle.put(successor)

    def _lose(self) -> None:
        self.is_lost = True
        raise DecoderError("the decoding processes do not start; restart the server") from None
