"""Crops of padded images, mirror images, and squares cut out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.training.augment.base import Augment
from labelwise.training.augment.dice import Dice

__all__ = ["Crop", "Cutout", "Flip", "cut_out", "gather_places", "shift"]


@dataclass(frozen=True)
class Crop(Augment):
    """A crop of the old size out of pixels padded by ``pad`` (None: side / 12) on each side."""

    pad: int | None = 4
    repeat_edge: bool = False

    def __call__(self, pixels: Tensor, dice: Dice) -> Tensor:
        height, width = pixels.shape[2:]
        pad_y, pad_x = (side // 12 if self.pad is None else self.pad for side in (height, width))
        down = dice.integers(-pad_y, pad_y + 1)
        right = dice.integers(-pad_x, pad_x + 1)
        return shift(pixels, down, right, self.repeat_edge)


@dataclass(frozen=True)
class Flip(Augment):
    """Mirrored left to right half the time."""

    def __call__(self, pixels: Tensor, dice: Dice) -> Tensor:
        return torch.where(dice.coin()[:, None, None, None], pixels.flip(3), pixels)


@dataclass(frozen=True)
class Cutout(Augment):
    """A square of ``share`` of the side set to zero; its centre is anywhere, so it may overhang."""

    share: float = 0.5

    def __call__(self, pixels: Tensor, dice: Dice) -> Tensor:
        height, width = pixels.shape[2:]
        length = int(self.share * min(height, width))
        return cut_out(pixels, dice.integers(0, height), dice.integers(0, width), length)


def shift(pixels: Tensor, down: Tensor, right: Tensor, repeat_edge: bool = False) -> Tensor:
    """Return each image's window moved by (down, right); outside is zero or the nearest edge."""
    height, width = pixels.shape[2:]
    rows = torch.arange(height, device=pixels.device) + down[:, None]  # (B, H)
    columns = torch.arange(width, device=pixels.device) + right[:, None]  # (B, W)
    return gather_places(pixels, rows[:, :, None], columns[:, None, :], repeat_edge)


def cut_out(pixels: Tensor, centre_y: Tensor, centre_x: Tensor, length: int) -> Tensor:
    """Return the pixels with a square of ``length`` around each centre set to zero."""
    height, width = pixels.shape[2:]
    rows = _covers(height, centre_y, length)
    columns = _covers(width, centre_x, length)
    return pixels.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0)


def gather_places(
    pixels: Tensor, rows: Tensor, columns: Tensor, repeat_edge: bool = False
) -> Tensor:
    """Return the pixels at whole places (B, H, W), broadcast; outside is zero or the edge."""
    batch, _, height, width = pixels.shape
    image = torch.arange(batch, device=pixels.device)[:, None, None]
    inside_rows, inside_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    found = pixels.permute(0, 2, 3, 1)[image, inside_rows, inside_columns]
    if not repeat_edge:
        outside = (rows != inside_rows) | (columns != inside_columns)
        found = found.masked_fill(outside[..., None], 0)
    return found.permute(0, 3, 1, 2)


def _covers(side: int, centre: Tensor, length: int) -> Tensor:
    places = torch.arange(side, device=centre.device)
    start = centre[:, None] - length // 2
    return (places >= start) & (places < start + length)
