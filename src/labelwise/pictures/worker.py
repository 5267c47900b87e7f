"""A decoding process: how it is started, what it may use, and the messages it answers.

    message in     {"work": how pictures are loaded from now on, or null: as before,
                    "items": [...], "folder": of relative paths, "slot": number or null}
                   then the bytes of items that come without file
    message out    {"entries": [[kind, offset, size, height, width, ...] or reason, ...],
                    "warned": text, "used": milliseconds of processor time}
                   then, where there is no slot, what the items became

One process is started by its command line (:func:`main`), imports what is needed, and becomes many
by forking: it has one thread, no GPU, and nothing of the program that started it. A worker that
runs out of memory or of processor time for a picture ends, and whoever asked starts another.
"""

import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.pictures.multiband import load_band_readers
from labelwise.pictures.transform import Transform
from labelwise.pictures.work import SLOT_BYTES, Item, Kind, Work, fill, items_from_json, loaded

if sys.platform != "win32":
    import resource


SIZES = struct.Struct("!II")  # bytes of a message's text, number of blobs after it
SIZE = struct.Struct("!Q")  # bytes of a blob
LONGEST_MESSAGE = 1 << 31  # bytes; what says that it is longer is not a message
LONGEST_START = 4096  # bytes of the request for a worker
LONGEST_WARNING = 500
NICE = 5
MAX_PIXELS_VARIABLE = "LABELWISE_MAX_PIXELS"
KINDS = ("PNG", "JPEG", "GIF", "TIFF", "WEBP")


# Messages, at both ends


def send(connection: socket.socket, facts: Any, blobs: Sequence[Any] = ()) -> None:
    """Send plain data, and bytes after it."""
    text = json.dumps(facts).encode()
    connection.sendall(SIZES.pack(len(text), len(blobs)) + text)
    for blob in blobs:
        connection.sendall(SIZE.pack(len(blob)))
        connection.sendall(blob)


def receive(connection: socket.socket) -> tuple[Any, list[bytes]]:
    """Return plain data and the bytes after it, or raise EOFError: the other end has gone."""
    length, count = SIZES.unpack(_received(connection, SIZES.size))
    facts = json.loads(_received(connection, length))
    blobs = []
    for _ in range(count):
        (size,) = SIZE.unpack(_received(connection, SIZE.size))
        blobs.append(_received(connection, size))
    return facts, blobs


def _received(connection: socket.socket, size: int) -> bytes:
    if size > LONGEST_MESSAGE:
        raise EOFError
    parts = bytearray(size)
    view, done = memoryview(parts), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count
    return bytes(parts)


# Limits


@dataclass(frozen=True)
class Limits:
    """What a worker may use: processor seconds per picture, and bytes of memory beside its start.

    It writes no file. With pictures of ``strangers`` it also opens none, says nothing, and lets
    the program that asks have the processor first.
    """

    seconds: float
    memory: int | None = None
    strangers: bool = False

    def begin(self, connection: int) -> None:
        """Hold this process to them."""
        if self.strangers:
            os.nice(NICE)
            _keep_only(connection)
        if self.memory is not None:
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[0])
            most = pages * resource.getpagesize() + self.memory
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.strangers:  # every number below the connection's is taken
            resource.setrlimit(resource.RLIMIT_NOFILE, (connection + 1, connection + 1))

    def begin_picture(self) -> None:
        """Let the system end this process once its time for a picture is used."""
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + self.seconds) + 1, hard))


def _keep_only(handle: int) -> None:
    """Let go of every open file but one, the standard ones too; their numbers lead nowhere now.

    They stay taken: no file can be opened, and whoever closes or writes one of them does no harm.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        if number != handle:
            with suppress(OSError):  # the folder that was listed
                os.fstat(number)
                _lead_nowhere(number)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number)
    os.close(nowhere)


# Processes


def main(control: int) -> None:
    """Fork a worker for each socket that arrives over ``control``, until it is closed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps
    _open_one_of_each()
    asked = socket.socket(fileno=control)
    with suppress(OSError):  # whoever asked was interrupted
        while True:
            text, handles, *_ = socket.recv_fds(asked, LONGEST_START, 2)
            if not text:
                return
            facts = json.loads(text)
            if facts.get("bands"):
                load_band_readers()
            if facts.get("bands") or not facts["limits"]["strangers"]:
                _load_torch()
            with suppress(BlockingIOError):  # no process can be had: whoever asked sees the end
                if os.fork() == 0:
                    _lead_nowhere(control)  # which only the starter holds open
                    _run_worker(facts, handles)
            for handle in handles:
                os.close(handle)


@cache
def _load_torch() -> None:
    """Load what scales pictures of bands, and torchvision's decoder; a worker opens no file.

    Other pictures of strangers go without, so that a server whose starter was killed answers again
    in a second: the import of torch takes most of a start.
    """
    import torch

    torch.set_num_threads(1)
    torch.backends.cpu.get_cpu_capability()  # from a file: without it, sums have other last bits
    _open_one_of_each()


def _open_one_of_each() -> None:
    """Do all that workers do once, so that they find its code loaded."""
    transform = Transform(4, crop=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            buffer = BytesIO()
            Image.new("RGB", (16, 12)).save(buffer, kind)
            for work in Kind:
                loaded(Work(work, transform), Item(buffer.getvalue()), SLOT_BYTES)


def _run_worker(facts: dict[str, Any], handles: list[int]) -> None:
    """Answer until nobody asks any more, and end without anything of the starter's exit."""
    status = 0
    try:
        os.environ[MAX_PIXELS_VARIABLE] = facts["max_pixels"]
        limits = Limits(**facts["limits"])
        connection = socket.socket(fileno=handles[0])
        memory = None
        if len(handles) > 1:
            memory = np.frombuffer(mmap(handles[1], 0), np.uint8)
            os.close(handles[1])
        limits.begin(connection.fileno())
        send(connection, {"pid": os.getpid()})
        _serve(connection, memory, limits)
    except (EOFError, OSError):  # whoever asked is gone
        pass
    except MemoryError:
        status = 1
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        status = 1
    finally:
        os._exit(status)


def _serve(connection: socket.socket, memory: NDArray[np.uint8] | None, limits: Limits) -> None:
    work = None
    while True:
        facts, blobs = receive(connection)
        if facts["work"] is not None:
            work = Work.from_json(facts["work"])
        if work is None:
            raise RuntimeError("items came before the work")
        items = items_from_json(facts["items"], blobs, facts["folder"])
        values: list[NDArray[np.uint8]] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            if memory is not None:
                first = facts["slot"] * SLOT_BYTES
                slot = memory[first : first + SLOT_BYTES]
                entries = fill(work, items, slot, limits.begin_picture)
            else:
                entries = []
                for item in items:
                    limits.begin_picture()
                    one = loaded(work, item, SLOT_BYTES)
                    entries.append(one if isinstance(one, str) else one[0])
                    values += [] if isinstance(one, str) else [one[1].reshape(-1).view(np.uint8)]
        answer = {
            "entries": entries,
            "warned": _joined(str(one.message) for one in caught),
            "used": int(1000 * time.process_time()),
        }
        send(connection, answer, [one.data for one in values])


def _joined(messages: Iterable[str]) -> str:
    """Return each of some texts once, in one line."""
    return " ".join("; ".join(dict.fromkeys(messages)).split())[:LONGEST_WARNING]
