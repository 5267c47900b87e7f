"""What a decoding process does with a picture, and the process itself.

    messages in    {"work": ...}                      how pictures are loaded from now on
                   {"slot": number, "folder": of relative paths, "items": [...]}
                   then the bytes of items that come without file
    message out    [[kind, offset, size, height, width, orientation, usual] or reason, ...]

Pixels and files are written to the slot of the shared memory, one after the other; its first bytes
hold the place of the item at work, which tells what a process died of. Messages are JSON.

One process is started by its command line (:func:`main`), imports what is needed, and becomes many
by forking: it has one thread, no GPU, and nothing of the program that started it.
"""

import json
import os
import signal
import socket
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from io import BytesIO
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from labelwise.errors import ImageError
from labelwise.pictures.decode import by_pillow, decode, decode_pixels, max_pixels
from labelwise.pictures.jpeg import plain_header
from labelwise.pictures.sources import Location, read_location
from labelwise.pictures.transform import Transform
from labelwise.pictures.window import Window

__all__ = ["HEADER", "SLOT_BYTES", "Entry", "Item", "Kind", "Work", "main", "reason_of"]

SLOT_BYTES = 12 << 20
HEADER = 8  # bytes of a slot: the place of the item at work
NAME = "\0"  # stands for the picture's name, which need not travel


class Kind(IntEnum):
    """What is in the shared memory: whole pixels (H, W, 3), the input's pixels, or a JPEG."""

    PIXELS = 0
    RESIZED = 1
    JPEG = 2


class Entry(NamedTuple):
    """Where a picture is in its slot, and its sides as decoded; of a JPEG, as stored."""

    kind: int
    offset: int
    size: int
    height: int
    width: int
    orientation: int = 1  # that a JPEG has to be turned by
    usual_coding: bool = True  # of a JPEG


class Item(NamedTuple):
    """A picture to load: its file or its bytes, and the window to cut from it, if any."""

    source: Location | bytes
    window: Window | None = None


@dataclass(frozen=True)
class Work:
    """How pictures are loaded: to ``kind``, or to what comes before it where that is not possible.

    JPEGs that are not plain come as pixels; pixels that a device would not resize, or that leave no
    room for the other pictures of their slot, come resized.
    """

    kind: Kind
    transform: Transform

    @property
    def resized_bytes(self) -> int:
        """The bytes of a picture that is resized."""
        return 3 * self.transform.size**2

    @property
    def most_items(self) -> int:
        """How many items fit into a slot: resized whatever they are, and as photos usually are.

        Their shorter side is taken for less than twice the scaled one, the longer for 4/3 of that:
        so are JPEGs at a reduced scale. Larger ones come resized.
        """
        photo = 16 * self.transform.scaled_side**2 if self.kind == Kind.PIXELS else 0
        return (SLOT_BYTES - HEADER) // max(self.resized_bytes, photo)

    def load(
        self, content: bytes, window: Window | None, room: int
    ) -> tuple[Entry, NDArray[np.uint8]]:
        """Return what goes into the slot: a file or pixels of at most ``room`` bytes, or resized.

        The entry says what it is; its place is not known here.
        """
        if self.kind == Kind.JPEG and len(content) <= room:
            header = plain_header(content)
            if header is not None and header.layers == 3 and not header.rgb:
                small = header.width * header.height <= max_pixels()
                if small and self.transform.resizes_planes(header.width, header.height):
                    values = np.frombuffer(content, np.uint8)
                    facts = header.height, header.width, header.orientation, header.usual_coding
                    return Entry(Kind.JPEG, 0, values.size, *facts), values
        if self.kind == Kind.RESIZED:
            image = decode(content, NAME, self.transform.at_least(window))
            return self._resized(image, window)
        pixels = decode_pixels(content, NAME, self.transform.at_least())
        height, width = pixels.shape[:2]
        if pixels.nbytes > room or not self.transform.resizes_planes(width, height):
            return self._resized(Image.fromarray(pixels), None)
        return Entry(Kind.PIXELS, 0, pixels.size, height, width), pixels

    def _resized(
        self, image: Image.Image, window: Window | None
    ) -> tuple[Entry, NDArray[np.uint8]]:
        entry = Entry(Kind.RESIZED, 0, self.resized_bytes, image.height, image.width)
        if window is None:
            return entry, np.asarray(self.transform.resize(image))
        return entry, np.asarray(self.transform.resize_window(image, window))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": int(self.kind), "transform": self.transform.spec()}

    @staticmethod
    def from_json(facts: dict[str, Any]) -> "Work":
        """Return the work that plain data describes."""
        return Work(Kind(facts["kind"]), Transform(**facts["transform"]))


def reason_of(name: str, error: Exception) -> str:
    """Return the sentence that says why an image cannot be used."""
    if isinstance(error, ImageError):
        return str(error)
    what = "not enough memory" if isinstance(error, MemoryError) else str(error)
    return f"{name}: the image cannot be used ({what or type(error).__name__})"


def fill(work: Work, items: Sequence[Item | str], slot: NDArray[np.uint8]) -> list[Entry | str]:
    """Load items into a slot; return where each is, or why it is not. Text is such a reason."""
    found: list[Entry | str] = []
    place, at = slot[:HEADER].view(np.int64), HEADER
    for number, item in enumerate(items):
        place[0] = number
        if isinstance(item, str):
            found.append(item)
            continue
        room = SLOT_BYTES - at - (len(items) - number - 1) * work.resized_bytes
        try:
            content = item.source
            if isinstance(content, Location):
                content = read_location(content, NAME)
            entry, values = work.load(content, item.window, room)
            slot[at : at + entry.size].reshape(values.shape)[...] = values
            found.append(entry._replace(offset=at))
            at += entry.size
        except Exception as error:
            found.append(reason_of(NAME, error)[:2000])
    return found


def items_to_json(items: Sequence[Item | str]) -> list[Any]:
    """Return items as plain data; for bytes the number of them, the bytes themselves follow."""
    return [
        item
        if isinstance(item, str)
        else [
            len(item.source) if isinstance(item.source, bytes) else item.source,
            None if item.window is None else list(asdict(item.window).values()),
        ]
        for item in items
    ]


def _read_items(
    facts: list[Any], folder: str, connection: "Connection[Any, Any]"
) -> list[Item | str]:
    items: list[Item | str] = []
    for one in facts:
        if isinstance(one, str):
            items.append(one)
            continue
        source, window = one
        if isinstance(source, int):
            found: Location | bytes = connection.recv_bytes()
        else:
            found = Location(os.path.join(folder, source[0]), *source[1:])
        items.append(Item(found, None if window is None else Window(*window)))
    return items


def serve(connection: "Connection[Any, Any]", memory: NDArray[np.uint8]) -> None:
    """Answer messages until there are no more."""
    work = None
    while True:
        try:
            message = json.loads(connection.recv_bytes())
            if "work" in message:
                work = Work.from_json(message["work"])
                continue
            items = _read_items(message["items"], message["folder"], connection)
            first = message["slot"] * SLOT_BYTES
            if work is None:
                raise RuntimeError("items came before the work")
            found = fill(work, items, memory[first : first + SLOT_BYTES])
            connection.send_bytes(json.dumps(found).encode())
        except (EOFError, OSError):  # whoever asked is gone
            return


def main(control: int, memory_file: int) -> None:
    """Fork a process for each socket that arrives over ``control``, until it is closed."""
    with suppress(OSError):  # whoever asked was interrupted
        _fork_workers(control, memory_file)


def _fork_workers(control: int, memory_file: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    warnings.simplefilter("ignore")
    memory = np.frombuffer(mmap(memory_file, 0), np.uint8)
    _warm_up()
    asked = socket.socket(fileno=control)
    asked.sendall(b"r")
    while True:
        message, sockets, *_ = socket.recv_fds(asked, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            asked.close()
            try:
                serve(Connection(sockets[0]), memory)
            finally:
                os._exit(0)
        os.close(sockets[0])


def _warm_up() -> None:
    """Load the decoders before the first fork, so that they are loaded once."""
    torch.set_num_threads(1)
    stream = BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    decode_pixels(stream.getvalue(), NAME)
    by_pillow(stream.getvalue(), NAME)
