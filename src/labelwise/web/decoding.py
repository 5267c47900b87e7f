"""Processes that open pictures, so that a harmful one can only hurt a process made for that.

    server --socket--> decoder: "pixels of these bytes" --> uint8 (size, size, 3), or a sentence

Decoders are forked from a process that was itself forked before the server had threads or open
connections, and does nothing else: a new one starts in milliseconds, without importing anything.
Each has limits on memory and processor time, opens no file, writes none, and is killed when it
does not answer in time. Warnings of a decoder come with its answer, and the server logs them. How
bytes become a picture is decided in :mod:`labelwise.pictures`, here as everywhere.

Whom a failure is blamed on:

    the decoder says why                            the picture: ImageError
    it used its processor time                      the picture: ImageError
    it died, or ran out of memory                   nobody yet: once more in a new one
    ... and that died too                           the picture: ImageError
    no answer in time, and little of it was used    the machine: once more, then DecoderError
"""

import faulthandler
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from queue import LifoQueue
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.errors import ImageError, LabelwiseError
from labelwise.pictures import BytesImages, Transform
from labelwise.pictures.decode import decode
from labelwise.system.allocator import give_back_freed_memory
from labelwise.web.picture_size import claimed_pixels

if sys.platform != "win32":
    import resource

__all__ = ["DecoderError", "Decoders", "small_picture"]

Pixels = NDArray[np.uint8]
Task = Literal["pixels", "thumbnail"]

HEADER = struct.Struct("!BIQ")  # task, a number, bytes of the picture
ANSWER = struct.Struct("!BIIQ")  # status, ms of processor, bytes of warnings, bytes of the answer
TASKS: tuple[Task, ...] = ("pixels", "thumbnail")
GOOD, BAD = 0, 1
NICE = 5
START_SECONDS = 600.0  # for a decoder to be there, on a machine that is busy
TRIES = 2
MANY_PIXELS = 16_000_000  # above this, the memory of a picture is given back after it
LONGEST_WARNING = 500  # bytes

log = logging.getLogger("labelwise.web")


class DecoderError(LabelwiseError):
    """A picture could not be opened, and that says nothing of the picture; try again."""


class Decoders:
    """Opens pictures in processes of their own, or in this one where ``count`` is 0."""

    def __init__(self, transform: Transform, count: int, *, seconds: float, memory: int) -> None:
        self.transform, self.count = transform, count
        self.seconds, self.memory = seconds, memory
        self._idle: LifoQueue[_Decoder] = LifoQueue()
        self._turn = threading.Lock()  # so that who gives a decoder back cannot take it at once
        self._parent: socket.socket | None = None
        self.is_lost = False  # whether no decoder can be started any more
        self.apart = count > 0 and sys.platform == "linux"
        if self.apart:
            self._parent = self._fork_parent()
            for _ in range(count):
                self._idle.put(self._start(self._parent))

    def await_start(self) -> None:
        """Return once the processes are there; they start while other things are done."""
        for decoder in list(self._idle.queue):
            decoder.await_start()

    def close(self) -> None:
        """End the processes."""
        if self._parent is not None:
            self._parent.close()
            self._parent = None
            for decoder in list(self._idle.queue):  # they stay, for those who wait for one
                decoder.connection.close()

    def pixels(self, blob: bytes, name: str) -> Pixels:
        """Return the model's input (size, size, 3) of an encoded picture, or raise ImageError."""
        if not self.apart:
            return _pixels(self.transform, blob, name)
        found = self._ask("pixels", 0, blob, name)
        side = self.transform.size
        return np.frombuffer(found, np.uint8).reshape(side, side, 3)

    def thumbnail(self, blob: bytes, name: str, side: int) -> bytes:
        """Return a JPEG of at most ``side`` pixels with nothing but the picture in it."""
        if not self.apart:
            return small_picture(blob, name, side)
        return self._ask("thumbnail", side, blob, name)

    def _ask(self, task: Task, number: int, blob: bytes, name: str) -> bytes:
        for _ in range(TRIES):
            with self._turn:
                decoder = self._idle.get()
            try:
                status, warned, answer = decoder.ask(task, number, blob, self.seconds)
            except TimeoutError:
                died, used = False, decoder.processor_seconds()
            except (OSError, EOFError):
                died, used = True, 0.0
                decoder.pid = None  # another process may have its number by now
            except BaseException:
                self._replace(decoder)
                raise
            else:
                self._idle.put(decoder)
                if warned:
                    log.warning("%.200r: %s", name, warned)
                if status == BAD:
                    raise ImageError(f"{name}: {answer.decode()}")
                return answer
            self._replace(decoder)
            if used > self.seconds / 2:
                raise ImageError(
                    f"{name}: the picture took more than {self.seconds:g} seconds to open, and was "
                    "given up"
                )
        if died:
            raise ImageError(
                f"{name}: the picture took more than {self.memory >> 20:,} MiB to open, or ended "
                f"the program that opens pictures {TRIES} times, and was given up"
            )
        raise DecoderError("pictures cannot be opened in time at the moment; try again")

    # Starting processes

    def _replace(self, decoder: "_Decoder") -> None:
        """End a decoder and start another, or put it back dead for those who wait for one."""
        decoder.kill()
        parent, successor = self._parent, decoder
        try:
            if parent is None:
                raise DecoderError("the server is shutting down")
            successor = self._start(parent)
        except OSError:  # it was killed, and cannot be forked again beside threads
            self.is_lost = True
            raise DecoderError(
                "the process that starts those that open pictures is gone; restart the server"
            ) from None
        finally:
            self._idle.put(successor)

    def _start(self, parent: socket.socket) -> "_Decoder":
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(parent, [b"f"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        return _Decoder(ours)

    def _fork_parent(self) -> socket.socket:
        """Fork the process that forks decoders; it ends when this one does."""
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns of threads that hold locks; the child takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _run_alone(partial(self._serve_forks, theirs))
        theirs.close()
        return ours

    def _serve_forks(self, requests: socket.socket) -> None:
        faulthandler.disable()  # its file is about to be closed, and the number to be used again
        _keep_only(requests.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps
        self._open_one_of_each()
        while True:
            message, handles, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                _keep_only(handles[0])
                connection = socket.socket(fileno=handles[0])
                _run_alone(partial(self._serve_pictures, connection))
            os.close(handles[0])

    def _open_one_of_each(self) -> None:
        """Do all that decoders do once, so that they find its code loaded; they open no file."""
        for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP"):
            buffer = BytesIO()
            Image.new("RGB", (8, 8)).save(buffer, kind)
            for task in TASKS:
                self._done(task, 4, buffer.getvalue())

    def _serve_pictures(self, connection: socket.socket) -> None:
        os.nice(NICE)  # under load the server itself still answers at once
        _write_nowhere()
        _limit_memory(self.memory)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        most = connection.fileno() + 1  # no file can be opened beside the connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        connection.sendall(struct.pack("!Q", os.getpid()))
        while True:
            task, number, size = HEADER.unpack(_received(connection, HEADER.size))
            blob = _received(connection, size)
            _limit_time(self.seconds)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                try:
                    status, answer = GOOD, self._done(TASKS[task], number, blob)
                except MemoryError:
                    return
                except ImageError as error:
                    if isinstance(error.__cause__, MemoryError):
                        return  # it may be full after thousands: a new one tries again
                    status, answer = BAD, str(error).removeprefix("\0: ").encode()
                except Exception as error:
                    status, answer = BAD, f"the picture cannot be used ({error})".encode()
            warned = "; ".join(str(one.message) for one in caught).encode()[:LONGEST_WARNING]
            used = int(1000 * time.process_time())
            header = ANSWER.pack(status, used, len(warned), len(answer))
            connection.sendall(header + warned + answer)
            if claimed_pixels(blob) > MANY_PIXELS:
                give_back_freed_memory()  # the command's allocator keeps what was freed

    def _done(self, task: Task, number: int, blob: bytes) -> bytes:
        if task == "thumbnail":
            return small_picture(blob, "\0", number)
        return _pixels(self.transform, blob, "\0").tobytes()


class _Decoder:
    """One process, seen from the server; it may still be starting."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid: int | None = None
        self.used = 0  # milliseconds of processor time, as it told last

    def await_start(self) -> None:
        if self.pid is None:
            self.connection.settimeout(START_SECONDS)
            (self.pid,) = struct.unpack("!Q", _received(self.connection, 8))

    def ask(self, task: Task, number: int, blob: bytes, seconds: float) -> tuple[int, str, bytes]:
        """Return the status of the answer, what was warned of, and the answer."""
        self.await_start()
        self.connection.settimeout(seconds)
        self.connection.sendall(HEADER.pack(TASKS.index(task), number, len(blob)))
        self.connection.sendall(blob)
        status, self.used, *sizes = ANSWER.unpack(_received(self.connection, ANSWER.size))
        warned, answer = (_received(self.connection, size) for size in sizes)
        return status, " ".join(warned.decode(errors="replace").split()), answer

    def processor_seconds(self) -> float:
        """Return the processor time since its last answer."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                ticks = file.read().rpartition(")")[2].split()[11:13]
        except OSError:  # it is not there yet
            return 0.0
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") - self.used / 1000

    def kill(self) -> None:
        if self.pid is not None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        self.connection.close()


def small_picture(blob: bytes, name: str, side: int) -> bytes:
    """Return a JPEG of at most ``side`` pixels; no metadata of the file is in it."""
    image = decode(blob, name, side)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    Image.fromarray(np.asarray(image)).save(buffer, "JPEG", quality=82)
    return buffer.getvalue()


def _pixels(transform: Transform, blob: bytes, name: str) -> Pixels:
    image = BytesImages([blob], [name]).read(0, transform.at_least())
    return np.array(transform.resize(image))


def _run_alone(work: Callable[[], None]) -> None:
    """Run what a forked process is for, and end it without anything of the server's exit."""
    try:
        work()
    except EOFError:  # the server is gone, or has let this one go
        os._exit(0)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


def _keep_only(handle: int) -> None:
    """Let go of every open file but one and the standard ones.

    Their numbers lead nowhere now and stay taken: Arrow closes its own once more after a fork, and
    ends a process in which that fails.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in (handle, nowhere):
            with suppress(OSError):  # the folder that was listed
                os.fstat(number)
                os.dup2(nowhere, number)


def _write_nowhere() -> None:
    """Let go of the standard streams: where one is a file, a limit would make writing an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


def _limit_memory(size: int) -> None:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(seconds: float) -> None:
    """Let the system end this process ``seconds`` of processor time from now."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, hard))


def _received(connection: socket.socket, size: int) -> bytes:
    """Return exactly ``size`` bytes; the other end may have gone."""
    parts = bytearray(size)
    view, done = memoryview(parts), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count
    return bytes(parts)
