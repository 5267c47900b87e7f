"""ImageSource: where the pixels of a table are, and how one is read."""

import os
import stat
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.base.arrays import Values
from labelwise.base.names import Names, real_names
from labelwise.base.storage import Storage, is_uri, split_address, storage_at
from labelwise.base.text import printable
from labelwise.errors import DataError, ImageError
from labelwise.pictures.decode import decode
from labelwise.pictures.multiband import Cube, chosen_bands, open_cube, pack_folder
from labelwise.pictures.transform import Bands

# A picture in a shard is called ``shard.tar/folder/name.jpg``, below the place of the shard: the
# member's own name, what is not text in it escaped.


Rows = NDArray[np.int64]


class TarMember(NamedTuple):
    """A regular file of a shard: its name, and where its bytes are."""

    name: str
    offset: int
    size: int


def tar_members(stream: IO[bytes], shard: str) -> Iterator[TarMember]:
    """Yield the regular files of a shard in order; memory does not grow with their number."""
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # else it keeps every header
                if member.isfile():
                    yield TarMember(printable(member.name), member.offset_data, member.size)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DataError(f"{shard}: not an uncompressed tar file ({error})") from None


MAX_BYTES = 1 << 30  # of one encoded image


def read_image_file(path: Path, name: str) -> bytes:
    """Return the bytes of an image file; anything but a regular file could wait for ever."""
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            return pack_folder(path, name)
        if not stat.S_ISREG(facts.st_mode):
            raise ImageError(f"{name}: the image cannot be opened (it is a device, pipe or socket)")
        if facts.st_size > MAX_BYTES:
            raise ImageError(f"{name}: the file has more than {MAX_BYTES >> 20:,} MiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ImageError(f"{name}: the image cannot be opened ({reason})") from None


class Location(NamedTuple):
    """Where another process finds an image: a file, or ``size`` bytes of it from ``offset``."""

    path: str
    offset: int = 0
    size: int | None = None


def read_location(location: Location, name: str) -> bytes:
    """Return the bytes of an image."""
    if location.size is None:
        return read_image_file(Path(location.path), name)
    try:
        with open(location.path, "rb") as stream:
            stream.seek(location.offset)
            return stream.read(location.size)
    except OSError as error:
        raise ImageError(f"{location.path}: the shard cannot be read ({error.strerror})") from None


class Blocks(NamedTuple):
    """What is fetched together: the block of each row, and the mean bytes of a block."""

    number: Rows
    mean_bytes: float


class ImageSource(ABC):
    """The images of a table, in row order; ``ids`` are the names shown to users."""

    ids: Sequence[str]

    @property
    def blocks(self) -> Blocks | None:
        """The blocks that rows should be read by; None where any row is as near as another."""
        return None

    def will_read(self, rows: Rows) -> None:
        """Take note of the order in which rows will be read from now on."""
        return

    def identity(self, row: int) -> bytes:
        """Return bytes that tell one image from others; its content, if nothing less does."""
        return sha256(self.content(row)).digest()

    def __len__(self) -> int:
        return len(self.ids)

    def shown_name(self, row: int) -> str:
        return self.ids[row]

    def address(self, row: int) -> str | None:
        """Return where one image is, whatever its table calls it: an absolute path or a URI."""
        return None

    @property
    def all_encoded(self) -> bool:
        """Whether every image is the whole of a file, so that :meth:`encoded` returns it."""
        return False

    def location(self, row: int) -> Location | None:
        """Return where another process can read the file of one image; None: only this one can."""
        return None

    def locations(self, rows: Sequence[int]) -> list[Location | None]:
        return [self.location(row) for row in rows]

    @abstractmethod
    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        """Return one image as upright RGB; a JPEG may come smaller, both sides >= ``at_least``."""

    def cube(self, row: int, window: str = "none") -> Cube:
        """Return one image at its full depth, with all its bands; ``window`` is for DICOM."""
        return open_cube(self.content(row), self.shown_name(row), window)

    def read_bands(self, row: int, bands: Bands) -> Values:
        """Return the bands (H, W, n) of one image, in its own type; NaN where it has no data."""
        return chosen_bands(self.cube(row, bands.window), self.shown_name(row), bands)

    def encoded(self, row: int) -> bytes | None:
        """Return the file that one image is the whole of, or None where there is no such file."""
        return None

    @abstractmethod
    def content(self, row: int) -> bytes:
        """Return the bytes that stand for one image; equal bytes mean equal images."""

    @abstractmethod
    def subset(self, rows: Rows) -> "ImageSource":
        """Return the images of the given rows."""


class EncodedImages(ImageSource):
    """Images whose ``content`` is a file of an image format."""

    @property
    def all_encoded(self) -> bool:
        return True

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        return decode(self.content(row), self.shown_name(row), at_least)

    def encoded(self, row: int) -> bytes | None:
        return self.content(row)


class FileImages(EncodedImages):
    """Image files: ``paths`` are relative to ``root``, absolute, or URIs, and are the ids."""

    def __init__(self, root: str | Path, paths: Sequence[str]) -> None:
        self.root = Path(root)
        self.ids = Names(paths)
        self.real_names = real_names(paths)  # of the files whose names are not UTF-8
        self._buckets: dict[str, Storage] = {}

    def path(self, row: int) -> Path:
        name = self.ids[row]
        return self.root / self.real_names.get(name, name)

    def shown_name(self, row: int) -> str:
        name = self.ids[row]
        return name if is_uri(name) else str(self.path(row))

    def address(self, row: int) -> str:
        name = self.ids[row]
        return name if is_uri(name) else os.path.abspath(self.path(row))

    def location(self, row: int) -> Location | None:
        return self.locations([row])[0]

    def locations(self, rows: Sequence[int]) -> list[Location | None]:
        root, real = os.path.join(self.root, ""), self.real_names
        return [
            None if is_uri(name) else Location(os.path.join(root, real.get(name, name)))
            for name in Names(self.ids).take(np.asarray(rows, np.int64))
        ]

    def content(self, row: int) -> bytes:
        if not is_uri(address := self.ids[row]):
            path = self.path(row)
            return read_image_file(path, str(path))
        bucket, key = split_address(address)
        storage = self._buckets.setdefault(bucket, self._buckets.get(bucket) or storage_at(bucket))
        try:
            content = storage.read(key, 0, MAX_BYTES + 1)
        except OSError as error:
            reason = error.strerror or str(error)[:200]
            raise ImageError(f"{address}: the image cannot be opened ({reason})") from None
        if len(content) > MAX_BYTES:
            raise ImageError(f"{address}: the file has more than {MAX_BYTES >> 20:,} MiB")
        return content

    def subset(self, rows: Rows) -> "FileImages":
        chosen = FileImages(self.root, Names(self.ids).take(rows))
        chosen.real_names, chosen._buckets = self.real_names, self._buckets
        return chosen


class SpanImages(EncodedImages):
    """Images inside larger files, such as tar shards: ``size`` bytes from ``offset``."""

    def __init__(
        self, root: Path, files: list[Path], file: Rows, start: Rows, size: Rows, ids: Sequence[str]
    ) -> None:
        self.files, self.file, self.offset, self.size = files, file, start, size
        self.root, self.ids = root, Names(ids)

    def address(self, row: int) -> str:
        return os.path.abspath(self.root / self.ids[row])

    def location(self, row: int) -> Location:
        path = str(self.files[int(self.file[row])])
        return Location(path, int(self.offset[row]), int(self.size[row]))

    def content(self, row: int) -> bytes:
        return read_location(self.location(row), self.ids[row])

    def subset(self, rows: Rows) -> "SpanImages":
        spans = self.file[rows], self.offset[rows], self.size[rows]
        return SpanImages(self.root, self.files, *spans, Names(self.ids).take(rows))


def _forwarded(name: str) -> Any:
    def ask(self: "JoinedImages", row: int, *more: Any) -> Any:
        source, inside = self._find(row)
        return getattr(source, name)(inside, *more)

    return ask


class JoinedImages(ImageSource):
    """Images of several sources: ``rows`` counts through all of them, one after the other."""

    identity, shown_name, address = map(_forwarded, ("identity", "shown_name", "address"))
    location, encoded, content = map(_forwarded, ("location", "encoded", "content"))
    read, cube = map(_forwarded, ("read", "cube"))

    def __init__(self, sources: Sequence[ImageSource], rows: Rows | None = None) -> None:
        self.sources = list(sources)
        self.ends = np.cumsum([len(source) for source in sources])
        self.rows = np.arange(self.ends[-1]) if rows is None else rows
        ids = Names.concatenate(Names(source.ids) for source in sources)
        self.ids = ids if rows is None else ids.take(rows)

    @property
    def blocks(self) -> Blocks | None:
        known = [blocks for source in self.sources if (blocks := source.blocks) is not None]
        if len(known) < len(self.sources):
            return None
        firsts = np.cumsum([0, *(int(blocks.number.max(initial=-1)) + 1 for blocks in known)])
        parts = [blocks.number + first for blocks, first in zip(known, firsts[:-1], strict=True)]
        mean_bytes = float(np.mean([blocks.mean_bytes for blocks in known]))
        return Blocks(np.concatenate(parts)[self.rows], mean_bytes)

    def will_read(self, rows: Rows) -> None:
        whole = self.rows[rows]
        for source, end in zip(self.sources, self.ends.tolist(), strict=True):
            own = whole[(whole >= end - len(source)) & (whole < end)]
            source.will_read(own - (end - len(source)))

    def _find(self, row: int) -> tuple[ImageSource, int]:
        whole = int(self.rows[row])
        number = int(np.searchsorted(self.ends, whole, side="right"))
        return self.sources[number], whole - int(self.ends[number]) + len(self.sources[number])

    @property
    def all_encoded(self) -> bool:
        return all(source.all_encoded for source in self.sources)

    def subset(self, rows: Rows) -> "JoinedImages":
        return JoinedImages(self.sources, self.rows[rows])


class CropImages(ImageSource):
    """A box (left, top, right, bottom) of another source's image in each row."""

    def __init__(self, source: ImageSource, boxes: NDArray[np.float64], ids: Sequence[str]) -> None:
        self.source, self.boxes, self.ids = source, boxes, Names(ids)

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        image = self.source.read(row)
        return image.crop(self._box(row, image.width, image.height))

    def cube(self, row: int, window: str = "none") -> Cube:
        cube = self.source.cube(row, window)
        height, width = cube.values.shape[:2]
        left, top, right, bottom = self._box(row, width, height)
        return cube._replace(values=cube.values[top:bottom, left:right])

    def _box(self, row: int, width: int, height: int) -> tuple[int, int, int, int]:
        left, top, right, bottom = (round(float(edge)) for edge in self.boxes[row])
        left, top = max(0, left), max(0, top)
        right, bottom = min(width, right), min(height, bottom)
        if right <= left or bottom <= top:
            raise ImageError(f"{self.ids[row]}: the box {self.boxes[row].tolist()} is empty")
        return left, top, right, bottom

    def content(self, row: int) -> bytes:
        return self.source.content(row) + bytes(self.boxes[row])

    def subset(self, rows: Rows) -> "CropImages":
        return CropImages(self.source.subset(rows), self.boxes[rows], Names(self.ids).take(rows))
