"""Transform: how a picture of any size becomes the input of a backbone.

crop = c     the shorter side becomes floor(size / c), then the middle size x size is cut out
crop = None  the whole picture is squashed into size x size, so that nothing is cut off
input        (pixels / 255 - mean) / std

A picture is decoded as any program does it: at full scale, turned as its EXIF data says, in 8-bit
RGB. With ``reduced_jpeg`` a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, as long as both
sides stay as long as the scaled ones: several times faster, with pixels of its own.

A thin picture is made shorter before it is scaled, so that no picture takes much memory: under
``crop`` the ends that would be cut off go first, otherwise its long side is averaged down.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from labelwise.numeric.finite import require_finite
from labelwise.pictures.axes import Axis, height_first
from labelwise.pictures.window import Window

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["CIFAR_MEAN", "CIFAR_STD", "Transform"]

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)

MAX_SIZE = 8192  # of the input's side
THIN = 16  # a picture's sides may differ so many times before its ends are cut off
MAX_SCALED = 1 << 26  # pixels while a picture is scaled

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Transform:
    """Size, crop and normalisation of a backbone's input; ``resize`` then ``normalise``."""

    size: int
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: str = "bilinear"
    crop: float | None = None
    reduced_jpeg: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))  # JSON brings lists back
        object.__setattr__(self, "std", tuple(self.std))
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"size must lie between 1 and {MAX_SIZE}, got {self.size}")
        if self.interpolation not in RESAMPLING:
            raise ValueError(
                f"interpolation must be one of {', '.join(RESAMPLING)}, got {self.interpolation!r}"
            )
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError(f"crop must lie in (0, 1] or be None, got {self.crop}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean and std must be three numbers, std positive, got {self}")
        require_finite(asdict(self), "transform")

    @staticmethod
    def of_recipe(recipe: Any, size: int | None = None) -> "Transform":
        """Return the transform of torchvision's recipe for a model, for inputs of another size."""
        return Transform(
            size or recipe.crop_size[0],
            tuple(recipe.mean),
            tuple(recipe.std),
            recipe.interpolation.value,
            recipe.crop_size[0] / recipe.resize_size[0],
        )

    def spec(self) -> dict[str, Any]:
        """Return the fields as plain data; ``Transform(**spec)`` is the same transform."""
        return asdict(self)

    @property
    def resampling(self) -> Image.Resampling:
        """The filter that scales pictures."""
        return RESAMPLING[self.interpolation]

    @property
    def scaled_side(self) -> int:
        """The shorter side that a picture is scaled to."""
        return self.scale_size(1, 1)[0]

    def at_least(self, window: Window | None = None) -> int | None:
        """Return the side that a JPEG must not be decoded below; None: at full scale.

        ``window`` is the part of the picture that is wanted, the middle unless given.
        """
        if not self.reduced_jpeg:
            return None
        return self.scaled_side if window is None else window.at_least(self.size)

    def scale_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) a picture is resized to before the centre crop."""
        if self.crop is None:
            return self.size, self.size
        short = floor(self.size / self.crop)
        if width <= height:
            return short, max(short, int(short * height / width))
        return max(short, int(short * width / height)), short

    def resize(self, image: Image.Image) -> Image.Image:
        """Return the (size, size) RGB picture: scaled, then the middle cut out."""
        if image.mode != "RGB":
            raise ValueError(f"a picture must be RGB, got {image.mode}")
        image = self._shortened(image)
        rows, columns = self._axes(*image.size)
        if image.size != (columns[1], rows[1]):
            return self._scaled(image, rows, columns)
        return _middle(image, rows, columns)

    def resize_window(self, image: Image.Image, window: Window) -> Image.Image:
        """Return the (size, size) picture of a window of it, as training augments."""
        box = window.box(*image.size)
        return image.resize((self.size, self.size), self.resampling, box)

    def _axes(self, width: int, height: int) -> tuple[Axis, Axis]:
        """Return how the rows and the columns of a picture are scaled, and which are kept."""
        wide, tall = self.scale_size(width, height)
        left, top = round((wide - self.size) / 2), round((tall - self.size) / 2)
        return (height, tall, top, self.size), (width, wide, left, self.size)

    def _scaled(self, image: Image.Image, rows: Axis, columns: Axis) -> Image.Image:
        """Return the middle of the scaled picture, without computing all of what is cut off.

        Pillow scales one axis after the other, so that ends can be cut off in between.
        """
        (height, tall, _, size), (width, wide, _, _) = rows, columns
        if self.interpolation == "nearest" or (tall, wide) == (size, size):
            return _middle(image.resize((wide, tall), self.resampling), rows, columns)
        whole = (size, size, 0, size)
        if height_first(rows, columns):
            image = image.resize((width, tall), self.resampling)
            image = _middle(image, rows, (width, width, 0, width))
            return _middle(image.resize((wide, size), self.resampling), whole, columns)
        image = image.resize((wide, height), self.resampling)
        image = _middle(image, (height, height, 0, height), columns)
        return _middle(image.resize((size, tall), self.resampling), rows, whole)

    def _shortened(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        if self.crop is None:  # Pillow scales rows first: size x height pixels in between
            factor = ceil(self.size * height / MAX_SCALED)
            return image.reduce((1, factor)) if factor > 1 else image
        left, top = _thin_ends(width, height)
        return image.crop((left, top, width - left, height - top)) if left or top else image

    def resizes_planes(self, width: int, height: int) -> bool:
        """Return whether :meth:`resize_planes` can do what :meth:`resize` does at a size."""
        if self.interpolation == "nearest":
            return (width, height) == self.scale_size(width, height)
        return self.crop is not None or self.size * height <= MAX_SCALED

    def resize_planes(self, planes: "Tensor") -> "Tensor":
        """Return :meth:`resize` of uint8 planes (..., 3, H, W), to the bit, on their device."""
        from labelwise.pictures.resample import resample

        height, width = planes.shape[-2:]
        if self.crop is not None:
            left, top = _thin_ends(width, height)
            planes = planes[..., top : height - top, left : width - left]
            height, width = planes.shape[-2:]
        rows, columns = self._axes(width, height)
        if (width, height) == (columns[1], rows[1]):
            (_, _, top, _), (_, _, left, _) = rows, columns
            return planes[..., top : top + self.size, left : left + self.size]
        return resample(planes, rows, columns, self.interpolation)

    def pixels(self, image: Image.Image) -> "Tensor":
        """Return the uint8 pixels (3, size, size) of a picture."""
        import torch

        array = np.array(self.resize(image))
        return torch.from_numpy(array).permute(2, 0, 1)

    def statistics(self, device: "torch.device | str" = "cpu") -> "tuple[Tensor, Tensor]":
        """Return mean and std of pixels from 0 to 255, each (3, 1, 1), on a device."""
        import torch

        return _statistics(self.mean, self.std, torch.device(device))

    def normalise(self, pixels: "Tensor") -> "Tensor":
        """Return the float32 input (B, 3, H, W) of uint8 pixels, on their device."""
        mean, std = self.statistics(pixels.device)
        return (pixels - mean) / std

    def inputs(self, values: "Tensor") -> "Tensor":
        """Return what a backbone takes: uint8 pixels normalised, anything else as it is."""
        import torch

        return self.normalise(values) if values.dtype == torch.uint8 else values

    def __call__(self, image: Image.Image) -> "Tensor":
        """Return the float32 input (3, size, size) of one picture."""
        return self.normalise(self.pixels(image))


def _thin_ends(width: int, height: int) -> tuple[int, int]:
    """Return how much of a very thin picture is cut off at each end: (columns, rows)."""
    longest = THIN * min(width, height)
    return max(0, (width - longest) // 2), max(0, (height - longest) // 2)


def _middle(image: Image.Image, rows: Axis, columns: Axis) -> Image.Image:
    """Return the rows and columns of a scaled picture that are kept."""
    (_, tall, top, height), (_, wide, left, width) = rows, columns
    if (wide, tall) == (width, height):
        return image
    return image.crop((left, top, left + width, top + height))


@lru_cache(maxsize=32)  # a copy to a GPU is waited for
def _statistics(
    mean: tuple[float, ...], std: tuple[float, ...], device: "torch.device"
) -> "tuple[Tensor, Tensor]":
    import torch

    with torch.inference_mode(False):
        both = 255 * torch.tensor([mean, std]).view(2, 3, 1, 1)
        return both[0].to(device), both[1].to(device)
