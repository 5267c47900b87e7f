"""Random resized crop: a window of random area and shape, scaled to the size of the input.

    area share ~ U(0.08, 1) of the image        log(width / height) ~ U(log 3/4, log 4/3)

A side longer than the image is cut to it (torchvision draws again instead); the place is uniform.
"""

from dataclasses import dataclass
from math import ceil, exp, log, sqrt

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from labelwise.training.augment.base import Augment
from labelwise.training.augment.dice import Dice

__all__ = ["ResizedCrop", "Windows", "draw_windows", "zoom"]

AREA = (0.08, 1.0)
SHAPE = (log(3 / 4), log(4 / 3))


@dataclass(frozen=True)
class Windows:
    """Windows of a batch, before the sizes of the images are known; all (B,)."""

    area: Tensor
    log_shape: Tensor
    x: Tensor
    y: Tensor

    def boxes(self, aspect: float | Tensor = 1.0) -> Tensor:
        """Return (B, 4) left, top, right, bottom as shares of images of width / height."""
        wide = torch.exp(0.5 * self.log_shape) * (self.area / aspect).sqrt()
        high = torch.exp(-0.5 * self.log_shape) * (self.area * aspect).sqrt()
        wide, high = wide.clamp(max=1), high.clamp(max=1)
        left, top = self.x * (1 - wide), self.y * (1 - high)
        return torch.stack([left, top, left + wide, top + high], dim=1)

    def box(self, at: int, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the window of one image in its pixels, by plain numbers: it runs in threads."""
        area, stretch = float(self.area[at]), exp(0.5 * float(self.log_shape[at]))
        wide = min(1.0, stretch * sqrt(area * height / width)) * width
        high = min(1.0, sqrt(area * width / height) / stretch) * height
        left, top = float(self.x[at]) * (width - wide), float(self.y[at]) * (height - high)
        return left, top, min(left + wide, width), min(top + high, height)

    def at_least(self, at: int, side: int) -> int:
        """Return the shorter side an image must have for its window to fill ``side`` pixels."""
        return ceil(side / (0.75 * sqrt(float(self.area[at]))))


def draw_windows(dice: Dice) -> Windows:
    """Return the windows of a batch."""
    area, log_shape = dice.uniform(*AREA), dice.uniform(*SHAPE)
    return Windows(area, log_shape, dice.uniform(), dice.uniform())


@dataclass(frozen=True)
class ResizedCrop(Augment):
    """A random window scaled to the whole image."""

    def __call__(self, pixels: Tensor, dice: Dice) -> Tensor:
        return zoom(pixels, draw_windows(dice).boxes(pixels.shape[3] / pixels.shape[2]))


def zoom(pixels: Tensor, boxes: Tensor, side: int | None = None) -> Tensor:
    """Return each image's window, given as shares (B, 4), scaled to the image or to a square."""
    left, top, right, bottom = boxes.unbind(1)
    zero = torch.zeros_like(left)
    rows = [right - left, zero, left + right - 1, zero, bottom - top, top + bottom - 1]
    maps = torch.stack(rows, dim=1).view(-1, 2, 3)
    shape = pixels.shape if side is None else (*pixels.shape[:2], side, side)
    grid = affine_grid(maps, list(shape), align_corners=False)
    window = grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False)
    return window.round_().to(torch.uint8)
