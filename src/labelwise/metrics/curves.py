"""Precision and recall of all entries pooled, at every threshold where recall changes.

    precision(t) = positives scoring >= t / entries scoring >= t
    recall(t)    = positives scoring >= t / positives

Between two scores of positives recall stands still and precision can only fall, so these points
hold the whole curve. Micro average precision and micro AUROC come from the same counts. Entries
are sorted a block at a time, so memory grows with the number of positives only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.counts import Counts, lines_of
from labelwise.metrics.inputs import Array

__all__ = [
    "PrecisionRecall",
    "micro_auroc",
    "micro_average_precision",
    "precision_recall_curve",
]

SORTED_ENTRIES = 2**21


@dataclass(frozen=True)
class PrecisionRecall:
    """Points of a curve, thresholds falling: predict where the score is at least the threshold."""

    thresholds: NDArray[Any]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]

    def f_score(self, beta: float = 1.0) -> NDArray[np.float64]:
        """Return F-beta at every threshold."""
        weight = beta**2
        return (1 + weight) * self.precision * self.recall / (weight * self.precision + self.recall)

    def best(self, beta: float = 1.0) -> tuple[float, float]:
        """Return the threshold of the largest F-beta, and that value."""
        if not len(self.thresholds):
            raise ValueError("the best threshold needs at least one positive, got none")
        scores = self.f_score(beta)
        index = int(scores.argmax())
        return float(self.thresholds[index]), float(scores[index])


def precision_recall_curve(
    scores: Array, labels: Array, observed: Array | None = None
) -> PrecisionRecall:
    """Return the curve over all entries of (N, K); for one label, pass its column as (N, 1)."""
    levels, at_least, _, _ = _pooled(scores, labels, observed)
    last = np.ones(len(levels), dtype=np.bool_)
    last[:-1] = levels[1:] != levels[:-1]
    ends = np.flatnonzero(last)
    found = ends + 1
    return PrecisionRecall(levels[ends], found / at_least[ends], found / len(levels))


def micro_average_precision(scores: Array, labels: Array, observed: Array | None = None) -> float:
    """Return tie-aware average precision over all entries pooled; NaN without positives."""
    curve = precision_recall_curve(scores, labels, observed)
    if not len(curve.recall):
        return float("nan")
    return float(np.diff(curve.recall, prepend=0.0) @ curve.precision)


def micro_auroc(scores: Array, labels: Array, observed: Array | None = None) -> float:
    """Return AUROC over all entries pooled; NaN without a positive or a negative."""
    levels, at_least, above, known = _pooled(scores, labels, observed)
    positives = len(levels)
    negatives = known - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    rising = levels[::-1]
    own_at_least = positives - np.searchsorted(rising, levels, side="left")
    own_above = positives - np.searchsorted(rising, levels, side="right")
    ahead = (at_least - own_at_least + above - own_above).sum(dtype=np.float64) / 2
    return float(1 - ahead / (positives * negatives))


def _pooled(
    scores: Array, labels: Array, observed: Array | None
) -> tuple[NDArray[Any], Counts, Counts, int]:
    """Return positives' scores, falling; entries at least and above each; number of entries."""
    found = [block.scores[block.present] for block in lines_of(scores, labels, observed, "image")]
    rising = np.sort(np.concatenate(found)) if found else np.empty(0)
    at_least = np.zeros(len(rising), dtype=np.intp)
    above = np.zeros(len(rising), dtype=np.intp)
    known = 0
    for block in lines_of(scores, labels, observed, "image", SORTED_ENTRIES):
        entries = int(block.known.sum())
        ordered = np.sort(block.scores, axis=None)  # NaN, unobserved, comes last
        at_least += entries - np.searchsorted(ordered, rising, side="left")
        above += entries - np.searchsorted(ordered, rising, side="right")
        known += entries
    return rising[::-1], at_least[::-1], above[::-1], known
