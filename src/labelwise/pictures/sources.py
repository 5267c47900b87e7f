"""ImageSource: where the pixels of a table are, and how one is read."""

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.errors import ImageError
from labelwise.pictures.bands import Bands
from labelwise.pictures.cubes import Cube, chosen_bands, open_cube, pack_folder
from labelwise.pictures.decode import decode, decode_pixels
from labelwise.pictures.labelwise_runtime import upright_rgb
from labelwise.pictures.mapped import Features, MappedFeatures
from labelwise.system.names import Names, printable, real_names
from labelwise.system.storage import Storage, is_uri, split_address, storage_at

__all__ = [
    "ArrayImages",
    "Blocks",
    "BytesImages",
    "CropImages",
    "EncodedImages",
    "FeatureRows",
    "FileImages",
    "ImageSource",
    "JoinedImages",
    "Location",
    "Picture",
    "PictureImages",
    "SpanImages",
    "as_images",
]

MAX_BYTES = 1 << 30  # of one encoded image

Picture = str | Path | bytes | Image.Image | NDArray[Any]


def read_image_file(path: Path, name: str) -> bytes:
    """Return the bytes of an image file; anything but a regular file could wait for ever.

    A folder of single-band TIFFs is one picture.
    """
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
        reason = error.strerror
        raise ImageError(f"{location.path}: the shard cannot be opened ({reason})") from None


class Blocks(NamedTuple):
    """What is fetched together: the block of each row, and the mean bytes of a block."""

    number: NDArray[np.int64]
    mean_bytes: float


class ImageSource(ABC):
    """The images of a table, in row order; ``ids`` are the names shown to users."""

    ids: Sequence[str]

    @property
    def blocks(self) -> Blocks | None:
        """The blocks that rows should be read by; None where any row is as near as another."""
        return None

    def will_read(self, rows: NDArray[np.int64]) -> None:
        """Take note of the order in which rows will be read from now on."""
        return

    def identity(self, row: int) -> bytes:
        """Return bytes that tell one image from others; its content, if nothing less does."""
        return sha256(self.content(row)).digest()

    def __len__(self) -> int:
        return len(self.ids)

    def shown_name(self, row: int) -> str:
        """Return the name of one image in messages."""
        return self.ids[row]

    def address(self, row: int) -> str | None:
        """Return where one image is, whatever its table calls it: an absolute path or a URI.

        In a shard that is the shard's place and its name there. None: it is only in memory.
        """
        return None

    @property
    def all_encoded(self) -> bool:
        """Whether every image is the whole of a file, so that :meth:`encoded` returns it."""
        return False

    def location(self, row: int) -> Location | None:
        """Return where another process can read the file of one image; None: only this one can."""
        return None

    def locations(self, rows: Sequence[int]) -> list[Location | None]:
        """Return the :meth:`location` of each of some rows."""
        return [self.location(row) for row in rows]

    @abstractmethod
    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        """Return one image as upright RGB; a JPEG may come smaller, both sides >= ``at_least``."""

    def read_pixels(self, row: int, at_least: int | None = None) -> NDArray[np.uint8]:
        """Return the pixels (H, W, 3) of :meth:`read`."""
        return np.asarray(self.read(row, at_least))

    def cube(self, row: int, window: str = "none") -> Cube:
        """Return one image at its full depth, with all its bands; ``window`` is for DICOM."""
        return open_cube(self.content(row), self.shown_name(row), window)

    def read_bands(self, row: int, bands: Bands) -> NDArray[Any]:
        """Return the bands (H, W, n) of one image, in its own type; NaN where it has no data."""
        return chosen_bands(self.cube(row, bands.window), self.shown_name(row), bands)

    def encoded(self, row: int) -> bytes | None:
        """Return the file that one image is the whole of, or None where there is no such file."""
        return None

    @abstractmethod
    def content(self, row: int) -> bytes:
        """Return the bytes that stand for one image; equal bytes mean equal images."""

    @abstractmethod
    def subset(self, rows: NDArray[np.int64]) -> "ImageSource":
        """Return the images of the given rows."""


class EncodedImages(ImageSource):
    """Images whose ``content`` is a file of an image format."""

    @property
    def all_encoded(self) -> bool:
        return True

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        return decode(self.content(row), self.shown_name(row), at_least)

    def read_pixels(self, row: int, at_least: int | None = None) -> NDArray[np.uint8]:
        return decode_pixels(self.content(row), self.shown_name(row), at_least)

    def encoded(self, row: int) -> bytes | None:
        return self.content(row)


class ArrayImages(ImageSource):
    """Images in memory: pixels (N, H, W, 3), uint8.

    Of ``any_depth`` they are bands (N, H, W, n) of any number type. If they are ``resized``, a
    model's transform made them its inputs, and they are not scaled or cut again.
    """

    def __init__(
        self,
        pixels: NDArray[Any],
        ids: Sequence[str] | None = None,
        *,
        resized: bool = False,
        any_depth: bool = False,
    ) -> None:
        if pixels.ndim != 4 or not (any_depth or _is_rgb(pixels)):
            kind = "(N, H, W, bands)" if any_depth else "uint8 (N, H, W, 3)"
            raise ValueError(f"pixels must be {kind}, got {pixels.dtype} {pixels.shape}")
        self.pixels, self.resized = pixels, resized
        self.ids = _named(ids, len(pixels))

    @property
    def is_rgb(self) -> bool:
        """Whether they are pixels of 8-bit RGB."""
        return _is_rgb(self.pixels)

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        return _rgb_image(self.pixels[row], self.ids[row])

    def cube(self, row: int, window: str = "none") -> Cube:
        return Cube(self.pixels[row])

    def content(self, row: int) -> bytes:
        return bytes(self.pixels[row])

    def subset(self, rows: NDArray[np.int64]) -> "ArrayImages":
        kind = {"resized": self.resized, "any_depth": not self.is_rgb}
        return ArrayImages(self.pixels[rows], _taken(self.ids, rows), **kind)


class FileImages(EncodedImages):
    """Image files: ``paths`` are relative to ``root``, absolute, or URIs, and are the ids."""

    def __init__(self, root: str | Path, paths: Sequence[str]) -> None:
        self.root = Path(root)
        self.ids = Names(paths)
        self.real_names = real_names(paths)  # of the files whose names are not UTF-8
        self._buckets: dict[str, Storage] = {}

    def path(self, row: int) -> Path:
        """Return where one image is."""
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
        names = _taken(self.ids, np.asarray(rows, np.int64))
        root, real = os.path.join(self.root, ""), self.real_names
        found: list[Location | None] = []
        for name in names:
            path = real.get(name, name)
            found.append(
                None if is_uri(name) else Location(path if os.path.isabs(path) else root + path)
            )
        return found

    def content(self, row: int) -> bytes:
        if is_uri(name := self.ids[row]):
            return self._object(name)
        path = self.path(row)
        return read_image_file(path, str(path))

    def _object(self, address: str) -> bytes:
        place, key = split_address(address)
        storage = self._buckets.setdefault(place, self._buckets.get(place) or storage_at(place))
        try:
            content = storage.read(key, 0, MAX_BYTES + 1)
        except OSError as error:
            reason = error.strerror or str(error)[:200]
            raise ImageError(f"{address}: the image cannot be opened ({reason})") from None
        if len(content) > MAX_BYTES:
            raise ImageError(f"{address}: the file has more than {MAX_BYTES >> 20:,} MiB")
        return content

    def subset(self, rows: NDArray[np.int64]) -> "FileImages":
        part = FileImages(self.root, _taken(self.ids, rows))
        part.real_names, part._buckets = self.real_names, self._buckets
        return part


class SpanImages(EncodedImages):
    """Images inside larger files, such as tar shards: ``size`` bytes from ``offset``.

    Their ids are names below ``root``.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        file: NDArray[np.int64],
        offset: NDArray[np.int64],
        size: NDArray[np.int64],
        ids: Sequence[str],
    ) -> None:
        self.files, self.file, self.offset, self.size = files, file, offset, size
        self.root, self.ids = root, Names(ids)

    def address(self, row: int) -> str:
        return os.path.abspath(self.root / self.ids[row])

    def location(self, row: int) -> Location:
        path = str(self.files[int(self.file[row])])
        return Location(path, int(self.offset[row]), int(self.size[row]))

    def content(self, row: int) -> bytes:
        return read_location(self.location(row), self.ids[row])

    def subset(self, rows: NDArray[np.int64]) -> "SpanImages":
        spans = self.file[rows], self.offset[rows], self.size[rows]
        return SpanImages(self.root, self.files, *spans, _taken(self.ids, rows))


class BytesImages(EncodedImages):
    """Encoded images: ``blobs`` is a binary Arrow array, or any list of bytes.

    ``rows`` are the places of the images in ``blobs``, None for all of them in order, so that a
    part of a table copies nothing.
    """

    def __init__(
        self, blobs: Any, ids: Sequence[str], rows: NDArray[np.int64] | None = None
    ) -> None:
        self.blobs, self.ids = blobs, Names(ids)
        self.rows = np.arange(len(blobs)) if rows is None else rows
        if len(self.rows) != len(self.ids):
            raise ValueError(f"images and ids must agree, got {len(self.rows)} and {len(self.ids)}")

    def content(self, row: int) -> bytes:
        blob = self.blobs[int(self.rows[row])]
        return blob if isinstance(blob, bytes) else bytes(blob.as_py() or b"")

    def subset(self, rows: NDArray[np.int64]) -> "BytesImages":
        return BytesImages(self.blobs, _taken(self.ids, rows), self.rows[rows])


class JoinedImages(ImageSource):
    """Images of several sources: ``rows`` counts through all of them, one after the other."""

    def __init__(
        self, sources: Sequence[ImageSource], rows: NDArray[np.int64] | None = None
    ) -> None:
        self.sources = list(sources)
        self.ends = np.cumsum([len(source) for source in sources])
        self.rows = np.arange(self.ends[-1]) if rows is None else rows
        ids = Names.concatenate(Names(source.ids) for source in sources)
        self.ids = ids if rows is None else ids.take(rows)

    @property
    def blocks(self) -> Blocks | None:
        found = [source.blocks for source in self.sources]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        firsts = np.cumsum([0, *(int(one.number.max(initial=-1)) + 1 for one in known)])
        parts = [one.number + first for one, first in zip(known, firsts[:-1], strict=True)]
        mean = float(np.mean([one.mean_bytes for one in known]))
        return Blocks(np.concatenate(parts)[self.rows], mean)

    def will_read(self, rows: NDArray[np.int64]) -> None:
        whole = self.rows[rows]
        for source, end in zip(self.sources, self.ends.tolist(), strict=True):
            own = whole[(whole >= end - len(source)) & (whole < end)]
            source.will_read(own - (end - len(source)))

    def identity(self, row: int) -> bytes:
        source, inside = self._find(row)
        return source.identity(inside)

    def _find(self, row: int) -> tuple[ImageSource, int]:
        whole = int(self.rows[row])
        part = int(np.searchsorted(self.ends, whole, side="right"))
        return self.sources[part], whole - int(self.ends[part]) + len(self.sources[part])

    def shown_name(self, row: int) -> str:
        source, inside = self._find(row)
        return source.shown_name(inside)

    def address(self, row: int) -> str | None:
        source, inside = self._find(row)
        return source.address(inside)

    @property
    def all_encoded(self) -> bool:
        return all(source.all_encoded for source in self.sources)

    def location(self, row: int) -> Location | None:
        source, inside = self._find(row)
        return source.location(inside)

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        source, inside = self._find(row)
        return source.read(inside, at_least)

    def read_pixels(self, row: int, at_least: int | None = None) -> NDArray[np.uint8]:
        source, inside = self._find(row)
        return source.read_pixels(inside, at_least)

    def cube(self, row: int, window: str = "none") -> Cube:
        source, inside = self._find(row)
        return source.cube(inside, window)

    def encoded(self, row: int) -> bytes | None:
        source, inside = self._find(row)
        return source.encoded(inside)

    def content(self, row: int) -> bytes:
        source, inside = self._find(row)
        return source.content(inside)

    def subset(self, rows: NDArray[np.int64]) -> "JoinedImages":
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

    def subset(self, rows: NDArray[np.int64]) -> "CropImages":
        return CropImages(self.source.subset(rows), self.boxes[rows], _taken(self.ids, rows))


class FeatureRows(ImageSource):
    """Features (N, D), or maps of them (N, D, h, w), float32, for the backbone "identity"."""

    def __init__(self, features: Features, ids: Sequence[str] | None = None) -> None:
        if features.ndim not in (2, 4):
            raise ValueError(f"features must be (N, D) or (N, D, h, w), got {features.shape}")
        self.features = features
        self.ids = _named(ids, len(features))

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        raise ImageError(f"{self.ids[row]}: this table holds features, not images")

    def content(self, row: int) -> bytes:
        return bytes(self.features[row])

    def subset(self, rows: NDArray[np.int64]) -> "FeatureRows":
        features = self.features
        chosen = features.take(rows) if isinstance(features, MappedFeatures) else features[rows]
        return FeatureRows(chosen, _taken(self.ids, rows))


class PictureImages(ImageSource):
    """Pictures as a program holds them: paths, encoded bytes, Pillow images, (H, W, 3) arrays.

    Of ``any_depth`` arrays are (H, W, bands). The ids are the paths (what is not text in them
    escaped), or the rows of what has no path.
    """

    def __init__(self, pictures: Sequence[Picture], *, any_depth: bool = False) -> None:
        self.any_depth = any_depth
        self.pictures = [_checked(picture, row, any_depth) for row, picture in enumerate(pictures)]
        self.ids = Names([_name(picture, row) for row, picture in enumerate(pictures)])

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        picture = self.pictures[row]
        if isinstance(picture, Image.Image):
            return upright_rgb(picture)
        if isinstance(picture, np.ndarray):
            return _rgb_image(picture, self.ids[row])
        return decode(self.content(row), self.ids[row], at_least)

    def cube(self, row: int, window: str = "none") -> Cube:
        picture = self.pictures[row]
        if isinstance(picture, np.ndarray):
            return Cube(picture)
        if isinstance(picture, Image.Image):
            return Cube(np.asarray(upright_rgb(picture)))
        return super().cube(row, window)

    @property
    def all_encoded(self) -> bool:
        return all(isinstance(picture, str | Path | bytes) for picture in self.pictures)

    def location(self, row: int) -> Location | None:
        picture = self.pictures[row]
        return Location(os.fspath(picture)) if isinstance(picture, str | Path) else None

    def encoded(self, row: int) -> bytes | None:
        is_file = isinstance(self.pictures[row], str | Path | bytes)
        return self.content(row) if is_file else None

    def content(self, row: int) -> bytes:
        picture = self.pictures[row]
        if isinstance(picture, str | Path):
            return read_image_file(Path(picture), self.ids[row])
        if isinstance(picture, np.ndarray):
            return bytes(picture)
        return picture if isinstance(picture, bytes) else bytes(np.asarray(self.read(row)))

    def subset(self, rows: NDArray[np.int64]) -> "PictureImages":
        chosen = [self.pictures[row] for row in rows.tolist()]
        part = PictureImages(chosen, any_depth=self.any_depth)
        part.ids = _taken(self.ids, rows)
        return part


def as_images(
    pictures: ImageSource | Picture | Sequence[Picture], *, any_depth: bool = False
) -> ImageSource:
    """Return one picture or many, of any kind, as a source of images.

    A float array (N, D) holds features; a uint8 array is one picture (H, W, 3) or many of one
    size (N, H, W, 3). Of ``any_depth`` arrays are (H, W, bands) or (N, H, W, bands).
    """
    if isinstance(pictures, ImageSource):
        return pictures
    if isinstance(pictures, np.ndarray):
        if pictures.ndim == 4 and (any_depth or pictures.dtype == np.uint8):
            return ArrayImages(pictures, any_depth=any_depth)
        if np.issubdtype(pictures.dtype, np.floating) and not (any_depth or pictures.ndim == 3):
            return FeatureRows(pictures.astype(np.float32))
    if isinstance(pictures, str | Path | bytes | Image.Image | np.ndarray):
        return PictureImages([pictures], any_depth=any_depth)
    return PictureImages(list(pictures), any_depth=any_depth)


def _is_rgb(pixels: NDArray[Any]) -> bool:
    return pixels.shape[-1] == 3 and pixels.dtype == np.uint8


def _checked(picture: Picture, row: int, any_depth: bool) -> Picture:
    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or not (any_depth or _is_rgb(picture)):
            kind = "(H, W, bands)" if any_depth else "uint8 (H, W, 3)"
            raise ValueError(f"picture {row} must be {kind}, got {picture.dtype} {picture.shape}")
    elif not isinstance(picture, str | Path | bytes | Image.Image):
        raise TypeError(
            f"picture {row} must be a path, bytes, a Pillow image or an array, "
            f"got {type(picture).__name__}"
        )
    return picture


def _rgb_image(pixels: NDArray[Any], name: str) -> Image.Image:
    if not _is_rgb(pixels):
        raise ImageError(
            f"{name}: a picture must be uint8 (H, W, 3), got {pixels.dtype} {pixels.shape}"
        )
    return Image.fromarray(pixels)


def _name(picture: Picture, row: int) -> str:
    if not isinstance(picture, str | Path):
        return f"{row:06d}"
    return printable(str(picture))


def _named(ids: Sequence[str] | None, rows: int) -> Names:
    names = Names([f"{row:06d}" for row in range(rows)] if ids is None else ids)
    if len(names) != rows:
        raise ValueError(f"there must be one id per row, got {len(names)} for {rows} rows")
    return names


def _taken(ids: Sequence[str], rows: NDArray[np.int64]) -> Names:
    return Names(ids).take(rows)
