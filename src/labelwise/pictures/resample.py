"""Pillow's resize of 8-bit pictures on any device, to the bit.

How Pillow (Resample.c) makes output x of n from N inputs, s = N / n, f = max(s, 1), radius r:

    center = (x + 1/2) s;  taps from int(center - r f + 1/2) to int(center + r f + 1/2)
    weight = filter((tap - center + 1/2) / f), over their sum, rounded to 22 bits
    level  = floor(sum of weight * level / 2^22 + 1/2), cut to 0..255

The width is scaled first; from Pillow 13 on the height, where it shrinks by more than twice as
many pixels as the width. Sums are integers of 32 bits, tap by tap. On a GPU with Triton one kernel
makes each axis.
"""

from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.transform import Axis

BITS = 22
RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
HEIGHT_FIRST = int(PIL.__version__.split(".")[0]) >= 13
LEVELS = 255
TILE = 8, 128  # rows and columns of outputs that one program of the kernel makes


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
        return np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0.0)
    x = np.abs(x)
    if interpolation == "bilinear":
        return np.where(x < 1, 1.0 - x, 0.0)
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def resample(planes: Tensor, rows: Axis, columns: Axis, interpolation: str) -> Tensor:
    """Return (..., kept rows, kept columns) uint8 of planes (..., height, width) uint8."""
    flat = planes.flatten(0, -3)
    scaled = _by_kernel if planes.is_cuda and find_spec("triton") is not None else _by_taps
    down, across = (rows, True), (columns, False)
    for axis, vertical in (down, across) if height_first(rows, columns) else (across, down):
        weights, first = _taps(axis, interpolation, planes.device)
        if planes.is_cuda:  # these are kept between calls, which may use different streams
            for kept in (weights, first):
                kept.record_stream(torch.cuda.current_stream(planes.device))
        flat = scaled(flat, weights, first, vertical=vertical)
    return flat.view(*planes.shape[:-2], *flat.shape[-2:])


def _by_taps(planes: Tensor, weights: Tensor, first: Tensor, *, vertical: bool) -> Tensor:
    """Return planes (n, height, width) with one axis scaled by weights (kept, taps)."""
    axis = 1 if vertical else 2
    values = planes.to(torch.int32)
    total = torch.tensor(1 << (BITS - 1), dtype=torch.int32, device=planes.device)
    for tap, weight in enumerate(weights.T):
        places = (first + tap).clamp(max=values.shape[axis] - 1)
        each = weight[:, None] if vertical else weight
        total = total + values.index_select(axis, places) * each
    return total.bitwise_right_shift(BITS).clamp(0, LEVELS).to(torch.uint8)


def _by_kernel(planes: Tensor, weights: Tensor, first: Tensor, *, vertical: bool) -> Tensor:
    (count, height, width), (kept, taps) = planes.shape, weights.shape
    rows, columns = (kept, width) if vertical else (height, kept)
    target = torch.empty((count, rows, columns), dtype=torch.uint8, device=planes.device)
    grid = count, -(-rows // TILE[0]), -(-columns // TILE[1])
    given = planes.contiguous(), weights, first, target, height, width, rows, columns, taps
    _kernel()[grid](*given, vertical, BITS, *TILE)
    return target


@cache
def _kernel() -> Any:
    import triton
    from triton import language as tl

    @triton.jit(do_not_specialize=["height", "width", "rows", "columns", "taps"])  # type: ignore[untyped-decorator]
    def scaled(  # type: ignore[no-untyped-def]
        source, weights, firsts, target, height, width, rows, columns, taps,
        vertical: tl.constexpr, bits: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
    ):  # fmt: skip
        plane = tl.program_id(0).to(tl.int64)
        row = tl.program_id(1) * tall + tl.arange(0, tall)[:, None]
        column = tl.program_id(2) * wide + tl.arange(0, wide)[None, :]
        inside = (row < rows) & (column < columns)
        output, kept = (row, row < rows) if vertical else (column, column < columns)
        first = tl.load(firsts + output, mask=kept, other=0)
        start = first * width + column if vertical else row * width + first
        source += plane * height * width + start
        step = width if vertical else 1
        total = tl.full((tall, wide), 1 << (bits - 1), tl.int32)
        tap = 0
        while tap < taps:
            weight = tl.load(weights + output * taps + tap, mask=kept, other=0)
            level = tl.load(source + tap * step, mask=inside & (weight != 0), other=0)
            total += level.to(tl.int32) * weight
            tap += 1
        level = tl.minimum(tl.maximum(total >> bits, 0), 255)
        target += plane * rows * columns + row * columns + column
        tl.store(target, level.to(tl.uint8), mask=inside)

    return scaled


@lru_cache(maxsize=256)
def _taps(axis: Axis, interpolation: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return weights (kept, taps) of an axis, and the input that each first tap reads (kept,)."""
    weights = axis_weights(axis, interpolation)
    first = (weights != 0).argmax(axis=1)
    taps = int((weights.shape[1] - (weights[:, ::-1] != 0).argmax(axis=1) - first).max())
    places = first[:, None] + np.arange(taps)
    values = np.take_along_axis(weights, np.minimum(places, weights.shape[1] - 1), axis=1)
    values[places >= weights.shape[1]] = 0
    with torch.inference_mode(False):
        on_device = [torch.from_numpy(some.astype(np.int32)).to(device) for some in (values, first)]
    return on_device[0], on_device[1]
