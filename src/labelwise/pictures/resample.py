"""Pillow's resize of 8-bit pictures as matrix products, on any device, to the bit.

Weights and order are those of :mod:`labelwise.pictures.transform`.

A weight is split into 2^12 high + low, both at most 2^11 in size. These and the levels are exact
even in TF32 and float16, and sums of their products stay below 2^24 and so are exact in float32, in
any order. Where they would not (a side shrunk some tenfold), the product is made in float64. A GPU
multiplies float16 with float32 sums, several times faster, if it proves to be exact.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.pillow_weights import BITS, Axis, axis_weights, height_first

LOW = 12
LEVELS = 255
EXACT = 1 << 24  # integers below are exact in float32
ALIGNED = 8  # inputs in a row are a multiple of this, which fast products of float16 want


def resample(planes: Tensor, rows: Axis, columns: Axis, interpolation: str) -> Tensor:
    """Return (..., kept rows, kept columns) uint8 of planes (..., height, width) uint8."""
    device = planes.device
    down, down_from, down_to = _on_device(rows, interpolation, device)
    across, across_from, across_to = _on_device(columns, interpolation, device)
    if planes.is_cuda:  # weights are kept between calls, which may use different streams
        for weights in (down, across):
            weights.record_stream(torch.cuda.current_stream(device))
    kept = planes[..., down_from:down_to, across_from:across_to]
    if height_first(rows, columns):
        return _scaled(_scaled(kept, down, vertical=True), across, vertical=False)
    return _scaled(_scaled(kept, across, vertical=False), down, vertical=True)


def _scaled(planes: Tensor, weights: Tensor, *, vertical: bool) -> Tensor:
    """Return planes with one axis scaled; weights are (1 or 2, kept, inputs): all, or high, low."""
    values = planes.to(weights.dtype, memory_format=torch.contiguous_format)
    product = _half_product if weights.dtype == torch.float16 else torch.matmul
    both = weights.flatten(0, 1)
    if vertical:
        sums = product(both, values).chunk(len(weights), -2)
    else:
        sums = product(values, both.T).chunk(len(weights), -1)
    total = sums[-1].to(torch.int32)
    if len(sums) == 2:
        total = total.add_(sums[0].to(torch.int32), alpha=1 << LOW)
    return total.add_(1 << (BITS - 1)).bitwise_right_shift_(BITS).clamp_(0, LEVELS).to(torch.uint8)


def _half_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of float16 matrices, one of them for all of the other, in float32."""
    if right.ndim == 2:
        product = torch.mm(left.flatten(0, -2), right, out_dtype=torch.float32)
        return product.view(*left.shape[:-1], -1)
    each = right.flatten(0, -3)
    product = torch.bmm(left.expand(len(each), -1, -1), each, out_dtype=torch.float32)
    return product.view(*right.shape[:-2], *product.shape[-2:])


@lru_cache(maxsize=32)
def _half_is_exact(device: torch.device) -> bool:
    """Return whether a device multiplies float16 without rounding, tried with the largest sums."""
    if device.type != "cuda":
        return False
    rng = np.random.default_rng(0)
    weights = np.zeros((448, 1024))
    for row in weights:
        row[rng.integers(0, 1024, 31)] = rng.integers(-(1 << 11), (1 << 11) + 1, 31)
    levels = rng.integers(LEVELS - 7, LEVELS + 1, (3, 64, 1024))
    with torch.inference_mode(False):
        low, high = torch.from_numpy(weights), torch.from_numpy(levels).double()
        try:
            across = _half_product(high.half().to(device), low.half().to(device).T)
            down = _half_product(low.half().to(device), high.mT.half().contiguous().to(device))
        except (RuntimeError, TypeError):
            return False
        exact = high @ low.T
        return torch.equal(across.double().cpu(), exact) and torch.equal(
            down.double().cpu(), exact.mT
        )


@lru_cache(maxsize=256)
def _on_device(axis: Axis, interpolation: str, device: torch.device) -> tuple[Tensor, int, int]:
    """Return the weights of an axis on a device, and the range of inputs that they touch."""
    weights = axis_weights(axis, interpolation)
    touched = np.flatnonzero(weights.any(axis=0))
    last = int(touched[-1]) + 1
    last = min(axis[0], last + (int(touched[0]) - last) % ALIGNED)
    first = max(0, int(touched[0]) - (int(touched[0]) - last) % ALIGNED)
    weights = weights[:, first:last]
    high = (weights + (1 << (LOW - 1))) >> LOW
    low = weights - (high << LOW)
    parts: NDArray[np.floating]
    if LEVELS * max(np.abs(weights).sum(axis=1).max() for weights in (high, low)) < EXACT:
        exact_in = np.float16 if _half_is_exact(device) else np.float32
        parts = np.stack([high, low]).astype(exact_in)
    else:
        parts = weights[None].astype(np.float64)
    with torch.inference_mode(False):
        return torch.from_numpy(parts).to(device), first, last
