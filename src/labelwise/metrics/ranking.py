"""How well scores order labels: AUROC, coverage and one-error.

    AUROC      = P(a positive outscores a negative), ties count one half
    coverage   = how far down an image's labels one must go to meet all present ones
    one-error  = share of images whose top label is absent

Each is left out, and counted, where it is undefined: AUROC without a positive or a negative,
the other two for images without a present label.
"""

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.averages import Averaged
from labelwise.metrics.counts import lines_of
from labelwise.metrics.inputs import Array, By

__all__ = ["auroc", "coverage_error", "one_error"]


def auroc(
    scores: Array, labels: Array, observed: Array | None = None, *, by: By = "label"
) -> Averaged:
    """Return the area under the ROC curve of every label (or image), and the macro mean.

    Per image, ``1 - auroc`` is the ranking loss with ties counted one half.
    """
    parts = []
    for lines in lines_of(scores, labels, observed, by):
        positives = lines.positives()
        at_least, above = lines.at_least_and_above(positives)
        as_high, higher = at_least - positives.at_least(), above - positives.above()
        negatives = lines.known - positives.per_line
        won = negatives[positives.line] - (as_high + higher) / 2
        with np.errstate(invalid="ignore"):
            parts.append(positives.total(won) / (positives.per_line * negatives))
    return Averaged.over(np.concatenate([np.empty(0), *parts]), by)


def coverage_error(scores: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return for every image how many labels score at least as much as its lowest present one."""
    parts = []
    for lines in lines_of(scores, labels, observed, "image"):
        positives = lines.positives()
        depth = np.full(len(lines.scores), np.nan)
        some = np.flatnonzero(positives.per_line)
        lowest = positives.start[some] + positives.per_line[some] - 1
        depth[some] = lines.at_least(positives)[lowest]
        parts.append(depth)
    return Averaged.over(np.concatenate([np.empty(0), *parts]), "image")


def one_error(scores: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return for every image the chance that its top label, drawn among ties, is absent."""
    parts: list[NDArray[np.float64]] = []
    for lines in lines_of(scores, labels, observed, "image"):
        top = lines.scores == np.fmax.reduce(lines.scores, axis=1, keepdims=True)
        right = np.count_nonzero(top & lines.present, axis=1)
        with np.errstate(invalid="ignore"):
            error = 1 - right / np.count_nonzero(top, axis=1)
        parts.append(np.where(lines.present.any(axis=1), error, np.nan))
    return Averaged.over(np.concatenate([np.empty(0), *parts]), "image")
