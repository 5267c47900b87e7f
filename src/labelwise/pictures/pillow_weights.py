"""Weights by which Pillow resizes one axis, the same to the bit.

How Pillow (Resample.c) makes output x of n from N inputs, s = N / n, f = max(s, 1), radius r:

    center = (x + 1/2) s;  taps from int(center - r f + 1/2) to int(center + r f + 1/2)
    weight = filter((tap - center + 1/2) / f), over their sum, rounded to 22 bits
    level  = floor(sum of weight * level / 2^22 + 1/2), cut to 0..255

The width is scaled first; from Pillow 13 on the height, where it shrinks by more than twice as
many pixels as the width.
"""

from math import pi

import numpy as np
import PIL
from numpy.typing import NDArray

BITS = 22
RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
HEIGHT_FIRST = int(PIL.__version__.split(".")[0]) >= 13

Axis = tuple[int, int, int, int]  # length, length it is scaled to, first output kept, outputs kept


def height_first(rows: Axis, columns: Axis) -> bool:
    """Return whether Pillow scales the height before the width."""
    return HEIGHT_FIRST and rows[0] - rows[1] > 2 * max(columns[0] - columns[1], 0)


def axis_weights(axis: Axis, interpolation: str) -> NDArray[np.int64]:
    """Return Pillow's weights (kept, length) of one axis, in units of 2^-22."""
    length, scaled, offset, kept = axis
    scale = length / scaled
    stretch = max(scale, 1.0)
    support = RADIUS[interpolation] * stretch
    center = (np.arange(offset, offset + kept) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    last = np.minimum((center + support + 0.5).astype(np.int64), length)
    taps = first[:, None] + np.arange((last - first).max())
    inside = taps < last[:, None]
    values = _filter((taps - center[:, None] + 0.5) * (1.0 / stretch), interpolation) * inside
    values /= values.cumsum(axis=1)[:, -1:]  # added one by one, as Pillow does
    units = np.trunc(values * (1 << BITS) + np.copysign(0.5, values)).astype(np.int64)
    weights = np.zeros((kept, length), np.int64)
    places = np.broadcast_to(np.arange(kept)[:, None], taps.shape)
    weights[places[inside], taps[inside]] = units[inside]
    return weights


def _filter(x: NDArray[np.float64], interpolation: str) -> NDArray[np.float64]:
    if interpolation == "lanczos":

        def sinc(x: NDArray[np.float64]) -> NDArray[np.float64]:
            turned = x * pi
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.where(x == 0, 1.0, np.sin(turned) / turned)

        return np.where((x >= -3) & (x < 3), sinc(x) * sinc(x / 3), 0.0)
    x = np.abs(x)
    if interpolation == "bilinear":
        return np.where(x < 1, 1.0 - x, 0.0)
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
