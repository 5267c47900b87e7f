"""What a batch is made of: a resizer's protocol, inputs for a network, and failures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.pictures.bands import Bands
from labelwise.pictures.sources import ImageSource
from labelwise.pictures.transform import Transform

CHUNK = 8  # images that a thread or process takes at once

Decode = Literal["auto", "cpu", "cuda"]


class Resizer(Protocol):
    """How a picture becomes the pixels of a network's input; a Transform is one."""

    @property
    def size(self) -> int:
        """The side of the input."""

    @property
    def bands(self) -> Bands | None:
        """The bands of the input; None: it is 8-bit RGB."""

    @property
    def channels(self) -> int:
        """How many numbers the input has at a place."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""

    def at_least(self) -> int | None:
        """Return the side that a JPEG must not be decoded below; None: at full scale."""

    def scale_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) that a picture is scaled to before its middle is cut out."""

    def resize(self, image: Image.Image) -> Image.Image:
        """Return the (size, size) picture of an RGB picture."""

    def resize_bands(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return the input (size, size, bands) of bands (H, W, bands)."""


@runtime_checkable
class PlanesResizer(Protocol):
    """A resizer that can also do its work on a device, with equal pixels."""

    def resizes_planes(self, width: int, height: int) -> bool:
        """Return whether it can at a size."""

    def resize_planes(self, planes: Tensor) -> Tensor:
        """Return (n, 3, size, size) of uint8 planes (n, 3, H, W)."""


@dataclass(frozen=True)
class Failure:
    """An image without an answer: its row, its id, and a sentence that says why."""

    row: int
    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a batch, for the rows that could be read, and the failures."""

    rows: NDArray[np.int64]
    values: Tensor
    failures: list[Failure] = field(default_factory=list)


class PictureReader(Protocol):
    """Who reads pictures for a network, where its process does not do it by itself."""

    def __call__(
        self,
        images: ImageSource,
        transform: Resizer,
        batches: Sequence[NDArray[np.int64]],
        device: torch.device,
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches of rows on a device, in order."""


def input_of(images: ImageSource, row: int, transform: Transform) -> Tensor:
    """Return the input (C, size, size) of one image, before it is normalised."""
    if transform.bands is None:
        return transform.pixels(images.read(row, transform.at_least()))
    resized = transform.resize_bands(images.read_bands(row, transform.bands))
    return torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))


def decodes_on_gpu(decode: Decode, device: torch.device, bands: Bands | None = None) -> bool:
    """Return whether JPEGs are decoded by a GPU; refuse what cannot be had."""
    if decode == "cuda" and bands is not None:
        raise SettingsError("decode=cuda is for JPEGs, and this model takes bands; leave it out")
    if decode not in ("auto", "cpu", "cuda"):
        raise ValueError(f"decode must be auto, cpu or cuda, got {decode!r}")
    if decode == "cuda" and device.type != "cuda":
        raise ValueError(f"decode=cuda needs a model on a CUDA device; this one is on {device}")
    return decode != "cpu" and device.type == "cuda" and bands is None


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; on a GPU perhaps before they are there."""
    return values.to(device, non_blocking=device.type == "cuda")
