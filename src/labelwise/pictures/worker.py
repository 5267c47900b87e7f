"""A decoding process: how it is started, what it may use, and the messages it answers.

    message in     {"work": how pictures are loaded from now on, or null: as before,
                    "items": [...], "folder": of relative paths, "slot": number or null}
                   then the bytes of items that come without file
    message out    {"entries": [[kind, offset, size, height, width, ...] or reason, ...],
                    "warned": text, "used": milliseconds of processor time}
                   then, where there is no slot, what the items became

One process (:func:`main`) imports what is needed and becomes many by forking. A worker that runs
out of memory or of processor time for a picture ends, and its user starts another.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from io import BytesIO
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.base.arrays import Values
from labelwise.errors import ImageError
from labelwise.pictures.memory import BytesImages, FeatureRows
from labelwise.pictures.multiband import load_band_readers
from labelwise.pictures.sources import ImageSource, Location, read_location
from labelwise.pictures.transform import Transform, Window


class CompositeImages(ImageSource):
    """The composites of another source's bands, as a model's transform draws them."""

    def __init__(self, source: ImageSource, transform: Transform) -> None:
        self.source, self.transform, self.ids = source, transform, source.ids

    def shown_name(self, row: int) -> str:
        return self.source.shown_name(row)

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        if self.transform.bands is None:
            return self.source.read(row, at_least)
        return self.transform.composite(self.source.read_bands(row, self.transform.bands))

    def content(self, row: int) -> bytes:
        return self.source.content(row)

    def subset(self, rows: NDArray[np.int64]) -> "CompositeImages":
        return CompositeImages(self.source.subset(rows), self.transform)


def shown_images(images: ImageSource, transform: Transform) -> ImageSource:
    """Return images as people are shown them, whose model has this transform."""
    if transform.bands is None or isinstance(images, FeatureRows):
        return images
    return CompositeImages(images, transform)


SLOT_BYTES = 12 << 20
HEADER = 8  # bytes of a slot: the place of the item at work
NAME = "\0"  # stands for the picture's name, which need not travel
QUALITY = 82  # of a thumbnail's JPEG


class Kind(IntEnum):
    """What a picture is made to: the input of a network, or a small JPEG to look at."""

    RESIZED = 1
    THUMBNAIL = 3


class Entry(NamedTuple):
    """Where a picture is in its slot, and its sides as decoded."""

    offset: int
    size: int
    height: int
    width: int


class Item(NamedTuple):
    """A picture to load: its file or its bytes, and the window to cut from it, if any."""

    source: Location | bytes
    window: Window | None = None


@dataclass(frozen=True)
class Work:
    """How pictures are loaded; a thumbnail has sides of at most the transform's size."""

    kind: Kind
    transform: Transform

    @property
    def most_items(self) -> int:
        """How many inputs of a network fit into a slot."""
        transform = self.transform
        item_bytes = transform.channels * transform.dtype.itemsize * transform.size**2
        return (SLOT_BYTES - HEADER) // item_bytes

    def fits(self, images: ImageSource) -> bool:
        return images.all_encoded and self.most_items > 0

    def load(
        self, images: ImageSource, row: int, window: Window | None = None
    ) -> tuple[Entry, Values]:
        """Return what a picture becomes: pixels (size, size, C), or the bytes of a JPEG."""
        transform = self.transform
        if self.kind == Kind.THUMBNAIL:
            image = shown_images(images, transform).read(row, transform.size)
            image.thumbnail((transform.size, transform.size), Image.Resampling.LANCZOS)
            buffer = BytesIO()  # a JPEG with nothing in it but the picture: no metadata of the file
            Image.fromarray(np.asarray(image)).save(buffer, "JPEG", quality=QUALITY)
            return _entry_of(np.frombuffer(buffer.getvalue(), np.uint8), image.height, image.width)
        if transform.bands is not None:
            bands = images.read_bands(row, transform.bands)
            return _entry_of(transform.resize_bands(bands, window), *bands.shape[:2])
        image = images.read(row, transform.at_least(window))
        if window is None:
            resized = transform.resize(image)
        else:
            resized = transform.resize_window(image, window)
        return _entry_of(np.asarray(resized), image.height, image.width)

    def to_json(self) -> dict[str, object]:
        return {"kind": int(self.kind), "transform": self.transform.spec()}

    @staticmethod
    def from_json(facts: dict[str, Any]) -> "Work":
        return Work(Kind(facts["kind"]), Transform(**facts["transform"]))


def _entry_of(values: Values, height: int, width: int) -> tuple[Entry, Values]:
    return Entry(0, values.nbytes, height, width), values


def reason_of(name: str, error: Exception) -> str:
    """Return the sentence that says why an image cannot be used."""
    if isinstance(error, ImageError):
        return str(error)
    what = "not enough memory" if isinstance(error, MemoryError) else str(error)
    return f"{name}: the image cannot be used ({what or type(error).__name__})"


def loaded(work: Work, item: Item | str) -> tuple[Entry, Values] | str:
    """Return what an item becomes, or why it cannot; raise MemoryError where that is the reason."""
    if isinstance(item, str):
        return item
    try:
        content = item.source
        if isinstance(content, Location):
            content = read_location(content, NAME)
        return work.load(BytesImages([content], [NAME]), 0, item.window)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, MemoryError):
            raise MemoryError from error
        return reason_of(NAME, error)[:2000]


def fill(
    work: Work, items: Sequence[Item | str], slot: NDArray[np.uint8], begin: Callable[[], None]
) -> list[Entry | str]:
    """Load items into a slot; return where each is, or why it is not."""
    entries: list[Entry | str] = []
    position, at = slot[:HEADER].view(np.int64), HEADER
    for number, item in enumerate(items):
        position[0] = number
        begin()
        made = loaded(work, item)
        if isinstance(made, str):
            entries.append(made)
            continue
        entry, values = made
        slot[at : at + entry.size].view(values.dtype).reshape(values.shape)[...] = values
        entries.append(entry._replace(offset=at))
        at += entry.size
    return entries


def items_to_json(items: Sequence[Item | str]) -> tuple[list[object], list[bytes]]:
    """Return items as plain data, and the bytes of those that are not in files."""
    plain: list[object] = list(items)
    blobs = []
    for at, item in enumerate(items):
        if not isinstance(item, str) and isinstance(item.source, bytes):
            blobs.append(item.source)
            plain[at] = (None, item.window)
    return plain, blobs


def items_from_json(facts: list[Any], blobs: Sequence[bytes], folder: str) -> list[Item | str]:
    """Return the items that plain data describes; relative paths are of a folder."""
    remaining, items = iter(blobs), list[Item | str]()
    for fact in facts:
        if isinstance(fact, str):
            items.append(fact)
            continue
        place, window = fact
        if place is None:
            source: Location | bytes = next(remaining)
        else:
            source = Location(os.path.join(folder, place[0]), *place[1:])
        items.append(Item(source, None if window is None else Window(*window)))
    return items


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


def send(
    connection: socket.socket, message: object, blobs: Sequence[bytes | memoryview] = ()
) -> None:
    """Send plain data, and bytes after it."""
    text = json.dumps(message).encode()
    connection.sendall(SIZES.pack(len(text), len(blobs)) + text)
    for blob in blobs:
        connection.sendall(SIZE.pack(len(blob)))
        connection.sendall(blob)


def receive(connection: socket.socket) -> tuple[Any, list[bytes]]:
    """Return plain data and the bytes after it, or raise EOFError: the other end has gone."""
    length, count = SIZES.unpack(_received(connection, SIZES.size))
    message = json.loads(_received(connection, length))
    sizes = (_received(connection, SIZE.size) for _ in range(count))  # each before its blob
    return message, [_received(connection, *SIZE.unpack(size)) for size in sizes]


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
        if self.strangers:
            os.nice(NICE)
            # Let go of every open file but one, the standard ones too. Their numbers stay taken
            # and lead nowhere: no file can be opened, and to write one of them does no harm.
            for number in map(int, os.listdir("/proc/self/fd")):
                if number != connection:
                    with suppress(OSError):  # the folder that was listed
                        os.fstat(number)
                        _lead_nowhere(number)
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


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number)
    os.close(nowhere)


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
            request = json.loads(text)
            if request.get("bands"):
                load_band_readers()
            if request.get("bands") or not request["limits"]["strangers"]:
                _load_torch()
            with suppress(BlockingIOError):  # no process can be had: whoever asked sees the end
                if os.fork() == 0:
                    _lead_nowhere(control)  # which only the starter holds open
                    _run_worker(request, handles)
            for handle in handles:
                os.close(handle)


@cache
def _load_torch() -> None:
    """Load what scales pictures of bands; a worker of strangers' pictures opens no file.

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
                loaded(Work(work, transform), Item(buffer.getvalue()))


def _run_worker(request: dict[str, Any], handles: list[int]) -> None:
    """Answer until nobody asks any more, and end without anything of the starter's exit."""
    status = 0
    try:
        os.environ[MAX_PIXELS_VARIABLE] = request["max_pixels"]
        limits = Limits(**request["limits"])
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
        message, blobs = receive(connection)
        if message["work"] is not None:
            work = Work.from_json(message["work"])
        if work is None:
            raise RuntimeError("items came before the work")
        items = items_from_json(message["items"], blobs, message["folder"])
        values = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            if memory is not None:
                first = message["slot"] * SLOT_BYTES
                slot = memory[first : first + SLOT_BYTES]
                entries = fill(work, items, slot, limits.begin_picture)
            else:
                entries = []
                for item in items:
                    limits.begin_picture()
                    made = loaded(work, item)
                    entries.append(made if isinstance(made, str) else made[0])
                    if not isinstance(made, str):
                        values.append(made[1].reshape(-1).view(np.uint8).data)
        sentences = [str(warning.message) for warning in caught]
        answer = {
            "entries": entries,
            "warned": " ".join("; ".join(dict.fromkeys(sentences)).split())[:LONGEST_WARNING],
            "used": int(1000 * time.process_time()),
        }
        send(connection, answer, values)
