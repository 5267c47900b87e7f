"""Sums of probabilities and labels over cells: the bins of each label, or of each image."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.binning import bin_of, round_edges
from labelwise.metrics.inputs import (
    Array,
    By,
    Mask,
    blocks,
    check_shapes,
    chosen,
    probabilities,
    read,
)

__all__ = ["CellSums", "cell_sums", "image_cells"]

CellSums: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def cell_sums(
    probs: NDArray[Any], labels: NDArray[Any], keep: Mask | None, edges: NDArray[Any], by: By
) -> CellSums:
    """Return counts, probability sums and label sums of the kept entries of (n, K).

    Each is (K, M), or (n, M) by image. Most entries of a multi-label problem lie in the first bin,
    so that one is summed along the lines and only the others are looked up one by one.
    """
    axis, columns = (0 if by == "label" else 1), probs.shape[1]
    known: Any = probs.shape[axis]
    if keep is not None:
        known = np.count_nonzero(keep, axis=axis)
        probs = np.where(keep, probs, probs.dtype.type(0))
        labels = np.where(keep, labels, labels.dtype.type(0))
    probabilities(probs, "probs")
    probabilities(labels, "labels")
    shape = (probs.shape[1 - axis], edges.shape[-1] - 1)

    def cells(flat: NDArray[np.intp]) -> NDArray[np.intp]:
        line = flat % columns if by == "label" else flat // columns
        cell: NDArray[np.intp] = shape[1] * line + bin_of(probs.ravel()[flat], edges, line)
        return cell

    def sums(cell: NDArray[np.intp], weights: NDArray[Any]) -> NDArray[np.float64]:
        added = np.bincount(cell, weights, shape[0] * shape[1])
        return added.astype(np.float64, copy=False).reshape(shape)  # no entries: numpy gives ints

    low = probs <= edges[..., 1]
    high = np.flatnonzero(~low)
    cell = cells(high)
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    counts[:, 0] = known - counts.sum(axis=1)
    confidence = sums(cell, probs.ravel()[high])
    confidence[:, 0] = (probs * low).sum(axis=axis, dtype=np.float64)
    some = np.flatnonzero(labels != 0)  # much faster than on the numbers themselves
    return counts, confidence, sums(cells(some), labels.ravel()[some])


def image_cells(
    probs: Array,
    labels: Array,
    observed: Array | None,
    where: Array | None,
    edges: NDArray[np.float64],
) -> CellSums:
    """Return the sums of each image's chosen entries by bin, each (N, M)."""
    rows, columns = check_shapes(probs=probs, labels=labels, observed=observed, where=where)
    rounded = round_edges(edges, probs)
    shape = (rows, edges.shape[-1] - 1)
    counts, confidence, present = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    for part in blocks(rows, columns):
        keep = chosen(part, observed=observed, where=where)
        prob, label = read(probs, part, "image"), read(labels, part, "image")
        added = cell_sums(prob, label, keep, rounded, "image")
        counts[part], confidence[part], present[part] = added
    return counts, confidence, present
