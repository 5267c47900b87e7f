"""What a decoding process does with a picture: bytes to what goes into a slot or an answer."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.errors import ImageError
from labelwise.pictures.decode import decode, decode_pixels, max_pixels
from labelwise.pictures.jpeg import plain_header
from labelwise.pictures.multiband import read_bands, read_npy_into
from labelwise.pictures.shown import shown_picture
from labelwise.pictures.sources import Location, read_location
from labelwise.pictures.transform import STORED_TYPES, Transform, Window

SLOT_BYTES = 12 << 20
HEADER = 8  # bytes of a slot: the place of the item at work
NAME = "\0"  # stands for the picture's name, which need not travel
QUALITY = 82  # of a thumbnail's JPEG

Values = NDArray[Any]


class Kind(IntEnum):
    """What a picture is made to.

    Whole pixels (H, W, 3), the input's pixels, the JPEG as it came, or a small JPEG to look at.
    Pixels of bands are the file's own numbers, which take half or a quarter of the input's bytes.
    """

    PIXELS = 0
    RESIZED = 1
    JPEG = 2
    THUMBNAIL = 3


class Entry(NamedTuple):
    """Where a picture is in its slot, and its sides as decoded; of a JPEG, as stored."""

    kind: int
    offset: int
    size: int
    height: int
    width: int
    orientation: int = 1  # that a JPEG has to be turned by
    usual_coding: bool = True  # of a JPEG
    dtype: str = "uint8"  # of pixels


class Item(NamedTuple):
    """A picture to load: its file or its bytes, and the window to cut from it, if any."""

    source: Location | bytes
    window: Window | None = None


@dataclass(frozen=True)
class Work:
    """How pictures are loaded: to ``kind``, or to what comes before it where that is not possible.

    JPEGs that are not plain come as pixels; pixels that a device would not resize, or that leave no
    room for the other pictures of their slot, come resized. So do bands whose numbers are not small
    integers. A thumbnail has sides of at most the transform's size.
    """

    kind: Kind
    transform: Transform

    @property
    def resized_bytes(self) -> int:
        """The bytes of a picture that is resized."""
        return self.transform.channels * self.transform.dtype.itemsize * self.transform.size**2

    @property
    def most_items(self) -> int:
        """How many items fit into a slot: resized whatever they are, and as photos usually are.

        Their shorter side is taken for less than twice the scaled one, the longer for 4/3 of that:
        so are JPEGs at a reduced scale. Larger ones come resized.
        """
        photo = 16 * self.transform.scaled_side**2 if self.kind == Kind.PIXELS else 0
        return (SLOT_BYTES - HEADER) // max(self.resized_bytes, photo)

    def load(
        self, content: bytes, window: Window | None = None, room: int = 0, name: str = NAME
    ) -> tuple[Entry, Values]:
        """Return what a picture becomes: a file or pixels of at most ``room`` bytes, or resized.

        The entry says what it is; its place is not known here.
        """
        if self.kind == Kind.THUMBNAIL:
            side = self.transform.size
            return _thumbnail(shown_picture(content, name, self.transform, side), side)
        if self.transform.bands is not None:
            return self._load_bands(read_bands(content, name, self.transform.bands), window)
        if self.kind == Kind.JPEG and len(content) <= room:
            header = plain_header(content)
            if header is not None and header.layers == 3 and not header.rgb:
                small = header.width * header.height <= max_pixels()
                if small and self.transform.resizes_planes(header.width, header.height):
                    values = np.frombuffer(content, np.uint8)
                    facts = header.height, header.width, header.orientation, header.usual_coding
                    return Entry(Kind.JPEG, 0, values.size, *facts), values
        if self.kind == Kind.RESIZED:
            image = decode(content, name, self.transform.at_least(window))
        else:
            pixels, window = decode_pixels(content, name, self.transform.at_least()), None
            height, width = pixels.shape[:2]
            if pixels.nbytes <= room and self.transform.resizes_planes(width, height):
                return Entry(Kind.PIXELS, 0, pixels.size, height, width), pixels
            image = Image.fromarray(pixels)
        if window is None:
            values = np.asarray(self.transform.resize(image))
        else:
            values = np.asarray(self.transform.resize_window(image, window))
        return Entry(Kind.RESIZED, 0, values.size, image.height, image.width), values

    def _load_bands(self, bands: Values, window: Window | None) -> tuple[Entry, Values]:
        sides = bands.shape[:2]
        if self.kind == Kind.PIXELS and window is None and self.transform.takes_as_stored(bands):
            return _entry_of(Kind.PIXELS, bands, *sides), bands
        resized = self.transform.resize_bands(bands, window)
        return _entry_of(Kind.RESIZED, resized, *sides), resized

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": int(self.kind), "transform": self.transform.spec()}

    @staticmethod
    def from_json(facts: dict[str, Any]) -> "Work":
        """Return the work that plain data describes."""
        return Work(Kind(facts["kind"]), Transform(**facts["transform"]))


def _entry_of(kind: Kind, values: NDArray[Any], height: int, width: int) -> Entry:
    return Entry(kind, 0, values.nbytes, height, width, dtype=values.dtype.name)


def _thumbnail(image: Image.Image, side: int) -> tuple[Entry, Values]:
    """Return a JPEG with nothing in it but the picture: no metadata of the file."""
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    Image.fromarray(np.asarray(image)).save(buffer, "JPEG", quality=QUALITY)
    values = np.frombuffer(buffer.getvalue(), np.uint8)
    return Entry(Kind.THUMBNAIL, 0, values.size, image.height, image.width), values


def reason_of(name: str, error: Exception) -> str:
    """Return the sentence that says why an image cannot be used."""
    if isinstance(error, ImageError):
        return str(error)
    what = "not enough memory" if isinstance(error, MemoryError) else str(error)
    return f"{name}: the image cannot be used ({what or type(error).__name__})"


def loaded(work: Work, item: Item | str, room: int) -> tuple[Entry, Values] | str:
    """Return what an item becomes, or why it cannot; text is such a reason.

    Raise MemoryError where memory is the reason, which need not be the picture's fault.
    """
    if isinstance(item, str):
        return item
    try:
        content = item.source
        if isinstance(content, Location):
            content = read_location(content, NAME)
        return work.load(content, item.window, room)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, MemoryError):
            raise MemoryError from error
        return reason_of(NAME, error)[:2000]


def _stored(work: Work, item: Item | str, slot: NDArray[np.uint8], at: int) -> Entry | None:
    """Read bands that are the input already from their file to their place in a slot.

    None where they are not, or cannot be read: whoever opens the file in the usual way finds why.
    """
    own = work.transform
    if own.bands is None or work.kind != Kind.PIXELS or isinstance(item, str) or at % 2:
        return None
    source, side = item.source, own.size
    if not isinstance(source, Location) or source.size is not None or item.window is not None:
        return None
    is_input = own.scale_size(side, side) == (side, side) and side**2 <= max_pixels()
    if not is_input or not source.path.endswith(".npy"):
        return None
    shape = side, side, len(own.bands)
    room = slot[at : at + work.resized_bytes // 2]
    try:
        dtype = read_npy_into(source.path, shape, STORED_TYPES, room)
    except (OSError, ValueError):
        return None
    if dtype is None:
        return None
    size = np.dtype(dtype).itemsize * side * side * len(own.bands)
    return Entry(Kind.PIXELS, at, size, side, side, dtype=dtype)


def fill(
    work: Work, items: Sequence[Item | str], slot: NDArray[np.uint8], begin: Callable[[], None]
) -> list[Entry | str]:
    """Load items into a slot; return where each is, or why it is not.

    Its first bytes hold the place of the item at work, which tells what a process died of.
    """
    found: list[Entry | str] = []
    place, at = slot[:HEADER].view(np.int64), HEADER
    for number, item in enumerate(items):
        place[0] = number
        begin()
        stored = _stored(work, item, slot, at)
        if stored is not None:
            found.append(stored)
            at += stored.size
            continue
        one = loaded(work, item, SLOT_BYTES - at - (len(items) - number - 1) * work.resized_bytes)
        if isinstance(one, str):
            found.append(one)
            continue
        entry, values = one
        at += -at % np.dtype(entry.dtype).itemsize
        slot[at : at + entry.size].view(entry.dtype).reshape(values.shape)[...] = values
        found.append(entry._replace(offset=at))
        at += entry.size
    return found


def items_to_json(items: Sequence[Item | str]) -> tuple[list[Any], list[bytes]]:
    """Return items as plain data, and the bytes of those that are not in files."""
    facts: list[Any] = []
    blobs: list[bytes] = []
    for item in items:
        if isinstance(item, str):
            facts.append(item)
            continue
        window = None if item.window is None else list(asdict(item.window).values())
        if isinstance(item.source, bytes):
            blobs.append(item.source)
            facts.append([None, window])
        else:
            facts.append([item.source, window])
    return facts, blobs


def items_from_json(facts: list[Any], blobs: Sequence[bytes], folder: str) -> list[Item | str]:
    """Return the items that plain data describes; relative paths are of a folder."""
    items: list[Item | str] = []
    remaining = iter(blobs)
    for one in facts:
        if isinstance(one, str):
            items.append(one)
            continue
        source, window = one
        found: Location | bytes = (
            next(remaining)
            if source is None
            else Location(os.path.join(folder, source[0]), *source[1:])
        )
        items.append(Item(found, None if window is None else Window(*window)))
    return items
