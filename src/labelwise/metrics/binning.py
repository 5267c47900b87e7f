"""Bins of probabilities: M right-closed intervals (lo, hi] that cover [0, 1].

0 falls in the first bin and 1 in the last, so probabilities clipped to exactly 0 or 1 are kept.
Edges are rounded to the type of the probabilities: 0.3 lies in (0.2, 0.3] in every precision.

    width  edges k / M
    mass   edges at the k / M quantiles, so bins hold equal counts up to ties
"""

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.metrics.inputs import Array, Mask, as_mask, blocks, check_shapes, host, read

__all__ = ["Binning", "bin_of", "edges_of", "mass_edges", "round_edges", "width_edges"]

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
        chosen = host(probs)[_choice(observed, where, slice(None), (rows, columns))]
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
            keep &= as_mask(host(mask[:, columns]), name)
    return keep


def _quantiles(ordered: NDArray[Any], bins: int) -> NDArray[np.float64]:
    edges = width_edges(bins)
    if len(ordered):
        last = -(-len(ordered) * np.arange(1, bins) // bins) - 1
        edges[1:-1] = ordered[np.maximum(last, 0)]
    return edges


def round_edges(edges: NDArray[np.float64], probs: Array) -> NDArray[Any]:
    """Return the edges as the probabilities' own precision would hold them."""
    if isinstance(probs, Tensor):
        return host(torch.from_numpy(edges).to(probs.dtype)) if probs.is_floating_point() else edges
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
