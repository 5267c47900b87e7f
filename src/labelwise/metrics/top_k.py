"""Sets of the k most confident labels of each image, and the papers' figures for them.

Ties go to the lower index. Macro-F1 at top 4 counts a label that is never present and never
predicted as 0, as the quasibinary paper's figures do; ``confusion(top_k_sets(...))`` gives the
other conventions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.inputs import Array, blocks, check_shapes, read
from labelwise.metrics.sets import confusion

__all__ = ["TopKScores", "top_k_scores", "top_k_sets"]


@dataclass(frozen=True)
class TopKScores:
    """Macro, micro and CF1 of the top-k sets, and the F1 of every label (0 if undefined)."""

    macro_f1: float
    micro_f1: float
    cf1: float
    per_label: NDArray[np.float64]


def top_k_sets(scores: Array, k: int) -> NDArray[np.bool_]:
    """Return (N, K) sets of exactly k labels each."""
    rows, columns = check_shapes(scores=scores)
    if not 1 <= k <= columns:
        raise ValueError(f"k must be between 1 and {columns}, got {k}")
    sets = np.empty((rows, columns), dtype=np.bool_)
    for part in blocks(rows, columns):
        score = read(scores, part, "image")
        if np.isnan(score).any():
            raise ValueError("scores must not be NaN, got NaN")
        level = np.partition(score, columns - k, axis=1)[:, columns - k, None]
        above, tied = score > level, score == level
        room = k - np.count_nonzero(above, axis=1, keepdims=True)
        sets[part] = above | (tied & (np.cumsum(tied, axis=1) <= room))
    return sets


def top_k_scores(
    scores: Array, labels: Array, observed: Array | None = None, *, k: int = 4
) -> TopKScores:
    """Return the F1 figures of the k most confident labels of each image."""
    counts = confusion(top_k_sets(scores, k), labels, observed)
    macro = counts.f_score(undefined="zero")
    micro = counts.micro().f_score(undefined="zero")
    return TopKScores(macro.value, micro.value, counts.cf1(undefined="zero"), macro.items)
