"""Pictures to look at: those of 8-bit RGB as they are, others as the composite of their bands."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.pictures.decode import decode
from labelwise.pictures.memory import FeatureRows
from labelwise.pictures.multiband import Cube, read_bands
from labelwise.pictures.sources import ImageSource
from labelwise.pictures.transform import Transform


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

    def cube(self, row: int, window: str = "none") -> Cube:
        return self.source.cube(row, window)

    def content(self, row: int) -> bytes:
        return self.source.content(row)

    def subset(self, rows: NDArray[np.int64]) -> "CompositeImages":
        return CompositeImages(self.source.subset(rows), self.transform)


def shown_images(images: ImageSource, transform: Transform) -> ImageSource:
    """Return images as people are shown them, whose model has this transform."""
    if transform.bands is None or isinstance(images, FeatureRows):
        return images
    return CompositeImages(images, transform)


def shown_picture(content: bytes, name: str, transform: Transform, side: int) -> Image.Image:
    """Return a file as people are shown it; a JPEG may come smaller, both sides >= ``side``."""
    if transform.bands is None:
        return decode(content, name, side)
    return transform.composite(read_bands(content, name, transform.bands))
