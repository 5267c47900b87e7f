"""Bootstrap intervals for metrics that are functions of sums over images.

Images, not entries, are drawn with replacement, because the labels of one image go together. The
metric of a draw needs only the sum of the drawn images' rows, so all draws are one matrix product.

The interval is the basic one, [2 v - q_high, 2 v - q_low] for the value v and the draws'
quantiles: a draw of ECE lies above the ECE it was drawn from, and this puts it back. It is cut to
[lowest, highest].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.binning import Binning, edges_of
from labelwise.metrics.cells import image_cells
from labelwise.metrics.inputs import Array, blocks
from labelwise.metrics.reliability import Reliability

__all__ = ["Interval", "bootstrap", "calibration_interval"]

DRAWN_ENTRIES = 2**20


@dataclass(frozen=True)
class Interval:
    """A value and the bounds that hold it with the given confidence."""

    value: float
    low: float
    high: float
    level: float
    draws: int


def bootstrap(
    sums: NDArray[Any],
    metric: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    lowest: float = -np.inf,
    highest: float = np.inf,
) -> Interval:
    """Return the interval of ``metric``, which maps sums over images (D, S) to values (D,).

    ``sums`` holds what each image adds, (N, S).
    """
    if not 0 < level < 1 or draws < 1 or not len(sums):
        raise ValueError(
            "level must lie in (0, 1) and draws and images be at least 1, "
            f"got level={level}, draws={draws}, images={len(sums)}"
        )
    rows = np.asarray(sums, dtype=np.float64)
    value = metric(rows.sum(axis=0, keepdims=True))[0]
    random = np.random.default_rng(seed)
    values = []
    for part in blocks(draws, len(rows), DRAWN_ENTRIES):
        drawn = random.integers(len(rows), size=(len(range(draws)[part]), len(rows)))
        times = np.stack([np.bincount(images, minlength=len(rows)) for images in drawn])
        values.append(metric(times.astype(np.float64) @ rows))
    tail = (1 - level) / 2
    low, high = 2 * value - np.nanquantile(np.concatenate(values), [1 - tail, tail])
    low, high = np.clip([low, high], lowest, highest)
    return Interval(float(value), float(low), float(high), level, draws)


def calibration_interval(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    metric: Literal["ece", "ace", "mce"] = "ece",
    bins: int = 10,
    binning: Binning = "width",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the bootstrap interval of a pooled calibration error; bins stay as they are."""
    edges = edges_of(probs, observed, where, bins, binning)
    counts, confidence, present = image_cells(probs, labels, observed, where, edges)

    def errors(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        count, sum_p, sum_y = np.split(sums, 3, axis=-1)
        drawn = Reliability(edges, count.astype(np.int64), sum_p, sum_y)
        return {"ece": drawn.ece, "ace": drawn.ace, "mce": drawn.mce}[metric]()

    if metric not in ("ece", "ace", "mce"):
        raise ValueError(f"metric must be 'ece', 'ace' or 'mce', got {metric!r}")
    sums = np.concatenate([counts, confidence, present], axis=1)
    return bootstrap(sums, errors, draws=draws, level=level, seed=seed, lowest=0.0, highest=1.0)
