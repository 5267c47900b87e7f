"""Bins of probabilities: M right-closed intervals (lo, hi] that cover [0, 1].

0 falls in the first bin and 1 in the last, so probabilities clipped to exactly 0 or 1 are kept.
Edges are rounded to the type of the probabilities: 0.3 lies in (0.2, 0.3] in every precision.

    width  edges k / M
    mass   edges at the k / M quantiles, so bins hold equal counts up to ties

Sums of probabilities and labels over cells: the bins of each label, or of each image.
"""

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.lines import By, blocks, chosen, read
from labelwise.numeric.arrays import (
    Array,
    Mask,
    as_mask,
    check_probabilities,
    check_shapes,
    is_tensor,
    to_numpy,
    to_tensor,
)

Binning: TypeAlias = Literal["width", "mass"]

LINEAR_SEARCH = 40  # up to so many edges, comparing with each beats a binary search


def width_edges(bins: int) -> NDArray[np.float64]:
    """Return the M + 1 edges of equal-width bins."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    return np.arange(bins + 1) / bins


def mass_edges(
    probs: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
    per_label: bool = False,
) -> NDArray[np.float64]:
    """Return edges that split the chosen entries evenly: (M + 1,) pooled or (K, M + 1) per label.

    Equal values stay together, so a bin may be larger than its share, and another empty. Pooled
    edges sort a copy of all chosen entries.
    """
    rows, columns = check_shapes(probs=probs, observed=observed, where=where)
    if not per_label:
        chosen = to_numpy(probs)[_choice(observed, where, slice(None), (rows, columns))]
        return _quantiles(np.sort(chosen, axis=None), bins)
    edges = np.empty((columns, bins + 1))
    for part in blocks(columns, rows):
        values = read(probs, part, "label")
        keep = _choice(observed, where, part, (rows, columns)).T
        for column, line in enumerate(values):
            edges[part.start + column] = _quantiles(np.sort(line[keep[column]]), bins)
    return edges


def edges_of(
    probs: Array,
    observed: Array | None,
    where: Array | None,
    bins: int,
    binning: Binning,
    per_label: bool = False,
) -> NDArray[np.float64]:
    """Return the edges of bins of equal width or of equal mass."""
    if binning == "width":
        return width_edges(bins)
    if binning == "mass":
        return mass_edges(probs, observed, where=where, bins=bins, per_label=per_label)
    raise ValueError(f"binning must be 'width' or 'mass', got {binning!r}")


def _choice(
    observed: Array | None, where: Array | None, columns: slice, shape: tuple[int, int]
) -> Mask:
    """Return the mask of chosen entries of some columns."""
    keep = np.ones((shape[0], len(range(*columns.indices(shape[1])))), dtype=np.bool_)
    for name, mask in (("observed", observed), ("where", where)):
        if mask is not None:
            keep &= as_mask(to_numpy(mask[:, columns]), name)
    return keep


def _quantiles(ordered: NDArray[Any], bins: int) -> NDArray[np.float64]:
    edges = width_edges(bins)
    if len(ordered):
        last = -(-len(ordered) * np.arange(1, bins) // bins) - 1
        edges[1:-1] = ordered[np.maximum(last, 0)]
    return edges


def round_edges(edges: NDArray[np.float64], probs: Array) -> NDArray[Any]:
    """Return the edges as the probabilities' own precision would hold them."""
    if is_tensor(probs):
        return to_numpy(to_tensor(edges).to(probs.dtype)) if probs.is_floating_point() else edges
    if not np.issubdtype(probs.dtype, np.floating):
        return edges
    return edges.astype(probs.dtype).astype(
        np.float32 if probs.dtype == np.float16 else probs.dtype
    )


def bin_of(
    probs: NDArray[Any], edges: NDArray[Any], line: NDArray[np.intp]
) -> NDArray[np.intp] | NDArray[np.uint8]:
    """Return the bin of every entry (n,): of edges (M + 1,), or of its line's among (L, M + 1)."""
    inner = edges[..., 1:-1]
    if inner.ndim == 1 and len(inner) > LINEAR_SEARCH:
        return np.searchsorted(inner, probs, side="left")
    index = np.zeros(probs.shape, dtype=np.uint8 if inner.shape[-1] < 256 else np.intp)
    above = np.empty(probs.shape, dtype=np.bool_)
    for k in range(inner.shape[-1]):
        np.greater(probs, inner[k] if inner.ndim == 1 else inner[line, k], out=above)
        index += above.view(np.uint8)
    return index


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
    check_probabilities(probs, "probs")
    check_probabilities(labels, "labels")
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
