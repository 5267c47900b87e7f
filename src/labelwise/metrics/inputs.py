"""Reading (N, K) matrices a block of lines at a time, whatever they are made of.

A line is one image (a row) or one label (a column). Numpy arrays and torch tensors on any device
are read; half precision becomes float32, which is exact. Only blocks are copied, so extra memory
does not grow with N x K. Labels count only where they are observed: elsewhere they may
hold anything.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "Array",
    "By",
    "Mask",
    "as_mask",
    "blocks",
    "check_by",
    "check_shapes",
    "chosen",
    "host",
    "present_labels",
    "probabilities",
    "read",
]

Array: TypeAlias = NDArray[Any] | Tensor
Mask: TypeAlias = NDArray[np.bool_]
By: TypeAlias = Literal["label", "image"]

BLOCK_ENTRIES = 2**19  # float32: 2 MiB, near the size of a core's second cache
TILE_ROWS = 512  # a transpose in such tiles stays in the first cache: four times faster


def check_shapes(**arrays: Array | None) -> tuple[int, int]:
    """Return (N, K), which every given array must have; the first must be given."""
    given = {name: array for name, array in arrays.items() if array is not None}
    first, matrix = next(iter(given.items()))
    for name, array in given.items():
        if array.ndim != 2:
            raise ValueError(f"{name} must be (N, K), got shape {tuple(array.shape)}")
        if array.shape != matrix.shape:
            shape, wrong = tuple(matrix.shape), tuple(array.shape)
            raise ValueError(f"{name} must have the shape of {first}, {shape}, got {wrong}")
    return matrix.shape[0], matrix.shape[1]


def check_by(by: By) -> None:
    """Raise unless lines are labels or images."""
    if by not in ("label", "image"):
        raise ValueError(f"by must be 'label' or 'image', got {by!r}")


def host(array: Array) -> NDArray[Any]:
    """Return the array as numpy on the CPU; half precision as float32."""
    if isinstance(array, Tensor):
        array = array.detach()
        if array.dtype in (torch.bfloat16, torch.float16):
            array = array.float()
        return array.cpu().numpy()
    return array.astype(np.float32) if array.dtype == np.float16 else array


def blocks(lines: int, length: int, entries: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Yield slices of lines that hold about ``entries`` entries each, at least one line."""
    step = max(1, entries // max(length, 1))
    for start in range(0, lines, step):
        yield slice(start, min(start + step, lines))


def read(matrix: Array, lines: slice, by: By) -> NDArray[Any]:
    """Return a block of lines, one line a contiguous row."""
    if by == "image":
        return np.ascontiguousarray(host(matrix[lines]))
    columns = host(matrix[:, lines])
    block = np.empty(columns.shape[::-1], columns.dtype)
    for start in range(0, len(columns), TILE_ROWS):
        tile = slice(start, start + TILE_ROWS)
        block[:, tile] = columns[tile].T
    return block


def present_labels(labels: NDArray[Any], observed: Mask | None) -> Mask:
    """Return where a label is observed and present; observed labels must be 0 or 1."""
    present = labels if labels.dtype == np.bool_ else labels == 1
    if labels.dtype != np.bool_:
        odd = ~present & (labels != 0)
        if observed is not None:
            odd &= observed
        if odd.any():
            value = labels[odd][0]
            raise ValueError(f"labels must be 0 or 1 where they are observed, got {value}")
    return present if observed is None else present & observed


def as_mask(block: NDArray[Any], name: str) -> Mask:
    """Return a boolean block; other types are not guessed at."""
    if block.dtype != np.bool_:
        raise TypeError(f"{name} must be boolean, got {block.dtype}")
    return block


def chosen(rows: slice, **masks: Array | None) -> Mask | None:
    """Return the entries of some rows that every given (N, K) mask chooses; None means all."""
    keep: Mask | None = None
    for name, mask in masks.items():
        if mask is not None:
            block = as_mask(read(mask, rows, "image"), name)
            keep = block if keep is None else keep & block
    return keep


def probabilities(values: NDArray[Any], name: str) -> None:
    """Raise unless all values lie in [0, 1]; NaN does not."""
    if values.size and values.dtype != np.bool_:
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(f"{name} must lie in [0, 1], got values from {low} to {high}")
