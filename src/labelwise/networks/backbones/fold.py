"""What a network calls its features becomes a map (B, D, h, w).

Maps with channels last are turned, tokens (B, prefix + h w, D) lose the class and register
tokens in front and are folded into a square, a pooled vector becomes a 1 x 1 map.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How features lie: ``maps``, ``maps-last``, ``tokens`` (after ``prefix`` others), ``rows``."""

    kind: str
    prefix: int = 0


def find_layout(features: Any, channels: int, prefix: int | None = None) -> Layout:
    """Return the layout of the features of one batch; ``prefix`` None is found from the count."""
    shape = tuple(features.shape) if isinstance(features, Tensor) else ()
    if len(shape) == 4 and shape[1] == channels:
        return Layout("maps")
    if len(shape) == 4 and shape[3] == channels:
        return Layout("maps-last")
    if len(shape) == 3 and shape[2] == channels:
        if prefix is None:
            prefix = shape[1] - isqrt(shape[1]) ** 2
        if isqrt(shape[1] - prefix) ** 2 == shape[1] - prefix:
            return Layout("tokens", prefix)
    if len(shape) == 2 and shape[1] == channels:
        return Layout("rows")
    described = f"shape {shape}" if shape else type(features).__name__
    raise ValueError(f"features must form one map of {channels} channels, got {described}")


def fold(features: Tensor, layout: Layout) -> Tensor:
    """Return the features as a map (B, D, h, w)."""
    if layout.kind == "maps":
        return features
    if layout.kind == "maps-last":
        return features.permute(0, 3, 1, 2)
    if layout.kind == "rows":
        return features[:, :, None, None]
    tokens = features[:, layout.prefix :]
    side = isqrt(tokens.shape[1])
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)
