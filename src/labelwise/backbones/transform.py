"""Transform: how a picture of any size becomes the input of a backbone.

crop = c     the shorter side becomes floor(size / c), then the middle size x size is cut out
crop = None  the whole picture is squashed into size x size, so that nothing is cut off
input        (pixels / 255 - mean) / std
"""

from dataclasses import asdict, dataclass
from math import floor
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

__all__ = ["CIFAR_MEAN", "CIFAR_STD", "Transform"]

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))  # JSON brings lists back
        object.__setattr__(self, "std", tuple(self.std))
        if self.size < 1:
            raise ValueError(f"size must be positive, got {self.size}")
        if self.interpolation not in RESAMPLING:
            raise ValueError(
                f"interpolation must be one of {', '.join(RESAMPLING)}, got {self.interpolation!r}"
            )
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError(f"crop must lie in (0, 1] or be None, got {self.crop}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean and std must be three numbers, std positive, got {self}")

    def spec(self) -> dict[str, Any]:
        """Return the fields as plain data; ``Transform(**spec)`` is the same transform."""
        return asdict(self)

    @property
    def resampling(self) -> Image.Resampling:
        """The filter that scales pictures."""
        return RESAMPLING[self.interpolation]

    @property
    def at_least(self) -> int:
        """The side a picture is scaled to; a JPEG need not be decoded at more than it needs."""
        return self.scale_size(1, 1)[0]

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
        width, height = self.scale_size(*image.size)
        if image.size != (width, height):
            image = image.resize((width, height), self.resampling)
        if image.size == (self.size, self.size):
            return image
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))

    def pixels(self, image: Image.Image) -> Tensor:
        """Return the uint8 pixels (3, size, size) of a picture."""
        array = np.array(self.resize(image))
        return torch.from_numpy(array).permute(2, 0, 1)

    def statistics(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return mean and std of pixels from 0 to 255, each (3, 1, 1), on a device."""
        mean = 255 * torch.tensor(self.mean).view(3, 1, 1)
        std = 255 * torch.tensor(self.std).view(3, 1, 1)
        return mean.to(device), std.to(device)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return the float32 input (B, 3, H, W) of uint8 pixels, on their device."""
        mean, std = self.statistics(pixels.device)
        return (pixels - mean) / std

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the float32 input (3, size, size) of one picture."""
        return self.normalise(self.pixels(image))
