"""The workers of this program, and the one process that starts them.

    program --command line, once--> starter --fork--> worker <--socket--> program

The starter imports the decoders once, so that a worker is there in milliseconds; it is started
when the first worker is wanted, and again if it was killed. Workers end with their sockets and the
starter with its own, so nothing is left behind however this program ends. A fork of this program
has none of them, and starts its own.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import NamedTuple
from weakref import WeakSet

from labelwise.errors import LabelwiseError
from labelwise.pictures.worker import (
    MAX_PIXELS_VARIABLE,
    Entry,
    Item,
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
        """Return once it is there, or raise WorkerStartError."""
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
        """Return the processor time since its last answer."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                ticks = file.read().rpartition(")")[2].split()[11:13]
        except OSError:  # it is not there yet
            return 0.0
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") - self._used / 1000

    def kill(self) -> None:
        """End it at once, if it is known to be there."""
        if self.pid is not None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = None  # another process may have its number soon
        self.close()

    def close(self) -> None:
        """Let it end when it has done its work."""
        with suppress(OSError):
            self.connection.close()


class _Starter:
    """The process that forks workers."""

    def __init__(self) -> None:
        # Of packets: each holds a request whole, with the sockets that belong to it.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", COMMAND, json.dumps(sys.path), str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
            )

    def ask(self, request: bytes, handles: Sequence[int]) -> None:
        socket.send_fds(self._control, [request], handles)

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """In a fork: leave it to the program that started it."""
        self._control.close()


_lock = threading.Lock()
_starter: _Starter | None = None
_left: list[_Starter] = []  # which would warn that their process still runs, if they were dropped
_workers: WeakSet[Worker] = WeakSet()


def can_start() -> bool:
    """Return whether workers can be had here: on Linux, in a Python that can be started again."""
    able = bool(sys.executable) and not hasattr(sys, "frozen")
    return able and hasattr(os, "memfd_create") and hasattr(socket, "send_fds")


def start_worker(limits: Limits, memory: int | None = None, *, bands: bool = False) -> Worker:
    """Return a worker that is being started; ``memory`` is the file of what it shares.

    One that will read ``bands`` finds the code for them loaded.
    """
    request = {
        "limits": asdict(limits),
        "bands": bands,
        "max_pixels": os.environ.get(MAX_PIXELS_VARIABLE, ""),
    }
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
            try:
                _starter.ask(request, handles)
            except OSError:
                _starter.close()
                _starter = None
            else:
                return
        _starter = _Starter()
        _starter.ask(request, handles)


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
        _starter.leave()
        _left.append(_starter)
        _starter = None
    for worker in _workers:
        worker.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
