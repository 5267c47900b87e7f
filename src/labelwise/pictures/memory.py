"""Pictures that a program holds: arrays, encoded bytes, Pillow images, features."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from PIL import Image

from labelwise.base.arrays import Values
from labelwise.base.names import Names
from labelwise.base.text import printable
from labelwise.errors import ImageError
from labelwise.pictures.decode import decode
from labelwise.pictures.labelwise_runtime import upright_rgb
from labelwise.pictures.multiband import Cube
from labelwise.pictures.sources import EncodedImages, ImageSource, Location, Rows, read_image_file
from labelwise.pictures.transform import Floats

AT_ONCE = 1 << 26  # numbers


@dataclass(frozen=True, eq=False)
class MappedFeatures:
    """Some rows (None: all) of a mapped file, as ``(features - mean) / scale`` where given."""

    values: Floats
    rows: Rows | None = None
    mean: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (len(self.values if self.rows is None else self.rows), *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return 4 * int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice | Rows) -> Floats:
        chosen = np.arange(len(self))[index] if self.rows is None else self.rows[index]
        values = np.array(self.values[np.atleast_1d(chosen)])
        if self.mean is not None and self.scale is not None:
            values = ((values - self.mean) / self.scale).astype(np.float32)
        return values[0] if np.ndim(chosen) == 0 else values

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:] if dtype is None else self[:].astype(dtype)

    def take(self, rows: Rows) -> "MappedFeatures":
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


Features = Floats | MappedFeatures


def _chunks(features: Features) -> list[slice]:
    each = max(1, AT_ONCE // max(1, int(np.prod(features.shape[1:]))))
    return [slice(first, first + each) for first in range(0, len(features), each)]


def moments_of(features: Features) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the standard deviation (D,) of features over rows and places."""
    places = (0, 2, 3) if features.ndim == 4 else (0,)
    if not isinstance(features, MappedFeatures):
        mean = features.mean(axis=places, dtype=np.float64)
        return mean, features.std(axis=places, dtype=np.float64)
    count = features.nbytes // 4 // features.shape[1]
    parts = _chunks(features)
    mean = sum(features[block].sum(axis=places, dtype=np.float64) for block in parts) / count
    shape = (-1, 1, 1) if features.ndim == 4 else (-1,)
    total = sum(np.square(features[part] - mean.reshape(shape)).sum(axis=places) for part in parts)
    return mean, np.sqrt(total / count)


def scaled(features: Features, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Features:
    """Return ``(features - mean) / scale`` of each of D features; of mapped ones, none is read."""
    shape = (-1, 1, 1) if features.ndim == 4 else (-1,)
    mean, scale = mean.reshape(shape), scale.reshape(shape)
    if isinstance(features, MappedFeatures):
        return replace(features, mean=mean, scale=scale)
    values = np.empty(features.shape, np.float32)
    for chunk in _chunks(features):
        values[chunk] = (features[chunk] - mean) / scale
    return values


Picture = str | Path | bytes | Image.Image | Values
Pictures = ImageSource | Picture | Sequence[Picture]  # of any kind, one or many


class ArrayImages(ImageSource):
    """Images in memory: pixels (N, H, W, 3), uint8.

    Of ``any_depth`` they are bands (N, H, W, n) of any number type. If they are ``resized``, a
    model's transform made them its inputs, and they are not scaled or cut again.
    """

    def __init__(
        self,
        pixels: Values,
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
        return _is_rgb(self.pixels)

    def read(self, row: int, at_least: int | None = None) -> Image.Image:
        return _rgb_image(self.pixels[row], self.ids[row])

    def cube(self, row: int, window: str = "none") -> Cube:
        return Cube(self.pixels[row])

    def content(self, row: int) -> bytes:
        return bytes(self.pixels[row])

    def subset(self, rows: Rows) -> "ArrayImages":
        kind = {"resized": self.resized, "any_depth": not self.is_rgb}
        return ArrayImages(self.pixels[rows], Names(self.ids).take(rows), **kind)


class BytesImages(EncodedImages):
    """Encoded images: ``blobs`` is a binary Arrow array, or any list of bytes."""

    def __init__(self, blobs: Any, ids: Sequence[str], rows: Rows | None = None) -> None:
        self.blobs, self.ids = blobs, Names(ids)
        self.rows = np.arange(len(blobs)) if rows is None else rows
        if len(self.rows) != len(self.ids):
            raise ValueError(f"images and ids must agree, got {len(self.rows)} and {len(self.ids)}")

    def content(self, row: int) -> bytes:
        blob = self.blobs[int(self.rows[row])]
        return blob if isinstance(blob, bytes) else bytes(blob.as_py() or b"")

    def subset(self, rows: Rows) -> "BytesImages":
        return BytesImages(self.blobs, Names(self.ids).take(rows), self.rows[rows])


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

    def subset(self, rows: Rows) -> "FeatureRows":
        features = self.features
        chosen = features.take(rows) if isinstance(features, MappedFeatures) else features[rows]
        return FeatureRows(chosen, Names(self.ids).take(rows))


class PictureImages(ImageSource):
    """Pictures as a program holds them: paths, encoded bytes, Pillow images, (H, W, 3) arrays.

    Of ``any_depth`` arrays are (H, W, bands). The ids are the paths (what is not text in them
    escaped), or the rows of what has no path.
    """

    def __init__(self, pictures: Sequence[Picture], *, any_depth: bool = False) -> None:
        self.any_depth = any_depth
        self.pictures, names = list(pictures), []
        for row, picture in enumerate(self.pictures):
            is_path = isinstance(picture, str | Path)
            names.append(printable(str(picture)) if is_path else f"{row:06d}")
            if not isinstance(picture, str | Path | bytes | Image.Image | np.ndarray):
                raise TypeError(
                    f"picture {row} must be a path, bytes, a Pillow image or an array, "
                    f"got {type(picture).__name__}"
                )
            if isinstance(picture, np.ndarray) and not (
                picture.ndim == 3 and (any_depth or _is_rgb(picture))
            ):
                kind = "(H, W, bands)" if any_depth else "uint8 (H, W, 3)"
                got = f"{picture.dtype} {picture.shape}"
                raise ValueError(f"picture {row} must be {kind}, got {got}")
        self.ids = Names(names)

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
        return self.content(row) if isinstance(self.pictures[row], str | Path | bytes) else None

    def content(self, row: int) -> bytes:
        picture = self.pictures[row]
        if isinstance(picture, str | Path):
            return read_image_file(Path(picture), self.ids[row])
        if isinstance(picture, np.ndarray):
            return bytes(picture)
        return picture if isinstance(picture, bytes) else bytes(np.asarray(self.read(row)))

    def subset(self, rows: Rows) -> "PictureImages":
        pictures = [self.pictures[row] for row in rows.tolist()]
        chosen = PictureImages(pictures, any_depth=self.any_depth)
        chosen.ids = Names(self.ids).take(rows)
        return chosen


def as_images(pictures: Pictures, *, any_depth: bool = False) -> ImageSource:
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


def _is_rgb(pixels: Values) -> bool:
    return pixels.shape[-1] == 3 and pixels.dtype == np.uint8


def _rgb_image(pixels: Values, name: str) -> Image.Image:
    if not _is_rgb(pixels):
        raise ImageError(f"{name}: it must be uint8 (H, W, 3), got {pixels.dtype} {pixels.shape}")
    return Image.fromarray(pixels)


def _named(ids: Sequence[str] | None, rows: int) -> Names:
    names = Names([f"{row:06d}" for row in range(rows)] if ids is None else ids)
    if len(names) != rows:
        raise ValueError(f"there must be one id per row, got {len(names)} for {rows} rows")
    return names
