"""Sine position code of a feature map, as in DETR and Query2Label.

    angle(position, i) = 2 pi position / (size + 1e-6) / 10000^(2 floor(i/2) / (D/2))

with positions 1 to size; sine on even channels i, cosine on odd ones; the first D/2 channels code
the row, the last D/2 the column.
"""

from math import pi

import torch
from torch import Tensor

__all__ = ["sine_position"]

TEMPERATURE = 10_000.0
EPS = 1e-6


def sine_position(channels: int, height: int, width: int, like: Tensor) -> Tensor:
    """Return the code (D, H, W) with the dtype and device of ``like``."""
    if channels % 4:
        raise ValueError(f"channels must be a multiple of 4, got {channels}")
    rows, columns = (_axis(channels // 2, size, like) for size in (height, width))
    grid = (channels // 2, height, width)
    code = torch.cat([rows.unsqueeze(2).expand(grid), columns.unsqueeze(1).expand(grid)])
    return code.to(like.dtype)


def _axis(channels: int, size: int, like: Tensor) -> Tensor:
    """Return the code (channels, size) of one axis, in float32."""
    positions = torch.arange(1, size + 1, device=like.device, dtype=torch.float32)
    pairs = torch.arange(channels // 2, device=like.device, dtype=torch.float32)
    frequency = TEMPERATURE ** (2 * pairs / channels)
    angles = 2 * pi * positions / (size + EPS) / frequency.unsqueeze(1)  # (channels / 2, size)
    return torch.stack([angles.sin(), angles.cos()], dim=1).flatten(0, 1)
