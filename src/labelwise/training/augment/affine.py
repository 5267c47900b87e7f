"""Shear, shift and turn: a batch of affine maps, nearest pixel, zero outside.

Output place (x, y) shows input place (a x + b y + c, d x + e y + f), both measured from the middle
of the image. Shears keep the upper left corner, as torchvision's augmentations do.
"""

import torch
from torch import Tensor

from labelwise.training.augment.geometry import gather_places

__all__ = ["affine", "rotation", "shear_x", "shear_y", "translation"]


def affine(pixels: Tensor, maps: Tensor) -> Tensor:
    """Return the pixels (B, 3, H, W) seen through maps (B, 2, 3), in pixels from the middle."""
    height, width = pixels.shape[2:]
    x = torch.arange(width, device=pixels.device) + 0.5 - width / 2
    y = torch.arange(height, device=pixels.device) + 0.5 - height / 2
    coefficients = maps[:, :, :, None, None]
    x_in, y_in = (
        coefficients[:, axis, 0] * x
        + coefficients[:, axis, 1] * y[:, None]
        + coefficients[:, axis, 2]
        for axis in range(2)
    )
    columns = (x_in + (width / 2 - 0.5)).round().long()
    rows = (y_in + (height / 2 - 0.5)).round().long()
    return gather_places(pixels, rows, columns)


def shear_x(amount: Tensor, height: int) -> Tensor:
    """Return maps (B, 2, 3): x + amount (y - top)."""
    zero, one = torch.zeros_like(amount), torch.ones_like(amount)
    return _maps(one, amount, amount * (height / 2), zero, one, zero)


def shear_y(amount: Tensor, width: int) -> Tensor:
    """Return maps (B, 2, 3): y + amount (x - left)."""
    zero, one = torch.zeros_like(amount), torch.ones_like(amount)
    return _maps(one, zero, zero, amount, one, amount * (width / 2))


def translation(right: Tensor, down: Tensor) -> Tensor:
    """Return maps (B, 2, 3) that move the picture right and down by whole pixels."""
    zero, one = torch.zeros_like(right), torch.ones_like(right)
    return _maps(one, zero, -right.trunc(), zero, one, -down.trunc())


def rotation(degrees: Tensor) -> Tensor:
    """Return maps (B, 2, 3) that turn the picture about its middle, counter-clockwise."""
    cosine, sine = torch.deg2rad(degrees).cos(), torch.deg2rad(degrees).sin()
    zero = torch.zeros_like(cosine)
    return _maps(cosine, -sine, zero, sine, cosine, zero)


def _maps(*entries: Tensor) -> Tensor:
    return torch.stack(entries, dim=1).view(-1, 2, 3)
