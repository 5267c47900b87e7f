"""Average precision of one ranking by cost, exact and aware of ties.

    AP = mean over relevant i of  relevant at or above i / images at or above i

Images at or above i are those with cost <= cost_i. Only two things need sorting: the relevant
images, and the others that share a bucket of costs with one of them. Buckets are counted, not
sorted. With few relevant images it is quicker to sort whatever lies above the worst of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["average_precision_of_costs"]

FEW = 200
BUCKETS_PER_RELEVANT, MOST_BUCKETS = 16, 16384

Costs = NDArray[Any]


def average_precision_of_costs(costs: Costs, relevant: NDArray[np.intp]) -> float:
    """Return the average precision of ranking ``costs`` (N,) from low to high.

    ``relevant`` holds the distinct row numbers of the relevant images, at least one. Costs are at
    least 0 and may be infinite, not NaN.
    """
    found = costs.take(relevant)
    found.sort()
    ranks = _at_or_above(found)
    if found[-1] < np.inf:
        above = _others(costs, relevant, found)
    else:
        finite = int(found.searchsorted(np.inf))
        above = np.full(len(found), len(costs) - len(found))  # all others are at or above
        if finite:
            above[:finite] = _others(costs, relevant, found[:finite])
    return float((ranks / (ranks + above)).sum()) / len(found)


def _at_or_above(found: Costs) -> NDArray[np.intp]:
    """Return how many of the sorted costs are at or below each."""
    if (found[1:] != found[:-1]).all():
        return np.arange(1, len(found) + 1)
    return found.searchsorted(found, side="right")


def _others(costs: Costs, relevant: NDArray[np.intp], found: Costs) -> NDArray[np.intp]:
    """Return how many irrelevant images cost at most each of ``found``, which rises."""
    best, worst = float(found[0]), float(found[-1])
    # Costs too close to be told apart by scaling are sorted too.
    if len(found) <= FEW or worst - best <= 1e-6 * worst:
        mask = costs <= worst
        mask[relevant] = False
        above = costs.compress(mask)
        above.sort()
        return above.searchsorted(found, side="right")
    buckets = min(MOST_BUCKETS, BUCKETS_PER_RELEVANT * len(found))
    scale = buckets / (worst - best)
    bucket, own = (_buckets(values, worst, scale, buckets) for values in (costs, found))
    counts = np.bincount(bucket, minlength=buckets + 4)
    shared = np.zeros(buckets + 4, dtype=bool)
    shared[own] = True
    mask = shared.take(bucket, mode="clip")
    mask[relevant] = False
    rest = costs.compress(mask)
    rest.sort()
    counts[own] = 0
    seen = counts.cumsum()
    beyond: NDArray[np.intp] = seen[-1] - seen[own]
    return beyond + rest.searchsorted(found, side="right")


def _buckets(costs: Costs, worst: float, scale: float, buckets: int) -> NDArray[np.intp]:
    """Return the bucket of each cost, higher for lower costs; 0 lies beyond the worst relevant."""
    place = (worst + 2 / scale) - costs
    np.multiply(place, scale, out=place)
    np.clip(place, 0, buckets + 3, out=place)
    return place.astype(np.intp)
