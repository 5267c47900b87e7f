"""Pictures of other sources: several sources as one, and a box of each picture."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.errors import ImageError
from labelwise.pictures.cubes import Cube
from labelwise.pictures.sources import Blocks, ImageSource, Location
from labelwise.system.names import Names


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
        return CropImages(self.source.subset(rows), self.boxes[rows], Names(self.ids).take(rows))
