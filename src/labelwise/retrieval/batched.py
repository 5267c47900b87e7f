"""Average precision of many queries at once, for accelerators.

Costs of a chunk of queries are sorted from high to low. Where a group of equal costs begins,
everything from there on costs at most as much: that many images, and that many relevant ones,
are at or above each member of the group.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["average_precisions"]


def average_precisions(
    costs: Tensor, relevant: Tensor, known: Tensor | None, queries: NDArray[np.intp], chunk: int
) -> NDArray[np.float64]:
    """Return the (Q,) average precision of each query, NaN where no image is relevant.

    ``costs``, ``relevant`` and ``known`` are tables (2K, N); ``queries`` (Q, length) names rows.
    An image counts for a query if it is known for all its labels. ``chunk`` bounds how many
    numbers are sorted at once.
    """
    step = max(1, chunk // max(costs.shape[1], 1))
    rows = torch.from_numpy(queries).to(costs.device)
    found = torch.empty(len(rows), dtype=torch.float64)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        found[part] = _chunk(costs, relevant, known, rows[part]).cpu()
    return found.numpy()


def _chunk(costs: Tensor, relevant: Tensor, known: Tensor | None, rows: Tensor) -> Tensor:
    total, fits = costs[rows[:, 0]], relevant[rows[:, 0]]
    for row in rows.T[1:]:
        total += costs[row]
        fits &= relevant[row]
    counted = torch.ones_like(fits)
    if known is not None:
        for row in rows.T:
            counted &= known[row]
    ranked, order = total.sort(dim=1, descending=True)
    fits, counted = fits.gather(1, order), counted.gather(1, order)
    begins = torch.ones_like(fits)
    begins[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    place = torch.arange(ranked.shape[1], device=ranked.device, dtype=torch.int32)
    first = torch.where(begins, place, 0).cummax(dim=1).values.long()
    hits = _from_here_on(fits).gather(1, first)
    images = _from_here_on(counted).gather(1, first)
    precision = torch.where(fits, hits.double() / images, 0.0)
    return precision.sum(1) / fits.sum(1)


def _from_here_on(mask: Tensor) -> Tensor:
    """Return how many are true at each place or after it."""
    before = mask.cumsum(1, dtype=torch.int32)
    return before[:, -1:] - before + mask
