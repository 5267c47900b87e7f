"""Average precision over images of a label (mAP@class) or over labels of an image (mAP@sample).

    precision(s) = positives scoring >= s / entries scoring >= s
    AP           = mean over positives of precision(their score)

This is ``variant="tied"``: equal scores count as one threshold, as in scikit-learn. Two others are
in use, and their figures must not be compared with it:

    "untied"  equal scores are ranked one by one, lower index first (ASL, two-way loss)
    "voc"     precision(s) becomes its largest value at s or any lower score (Pascal VOC
              interpolation; Query2Label, RML); never below "tied"

A label or image without observed positives has no AP: it is left out, not counted as 0. Per image
the default equals label-ranking average precision, except that images without labels are left out
where others count them as 1.
"""

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.averages import Averaged
from labelwise.metrics.counts import Lines, Positives, lines_of
from labelwise.metrics.inputs import Array, By

__all__ = ["Variant", "average_precision", "label_ranking_average_precision"]

Variant: TypeAlias = Literal["tied", "untied", "voc"]


def average_precision(
    scores: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    by: By = "label",
    variant: Variant = "tied",
) -> Averaged:
    """Return the average precision of every label or image, and the mean over the defined."""
    parts = []
    for lines in lines_of(scores, labels, observed, by):
        positives = lines.positives()
        precision = _precision(lines, positives, variant)
        with np.errstate(invalid="ignore"):
            parts.append(positives.total(precision) / positives.per_line)
    return Averaged.over(np.concatenate([np.empty(0), *parts]), by)


def label_ranking_average_precision(
    scores: Array, labels: Array, observed: Array | None = None
) -> Averaged:
    """Return label-ranking average precision: tie-aware average precision of each image."""
    return average_precision(scores, labels, observed, by="image")


def _precision(lines: Lines, positives: Positives, variant: Variant) -> NDArray[np.float64]:
    """Return the precision at each positive, (P,)."""
    if variant == "untied":
        return _index_ranks(lines, positives)
    precision = positives.at_least() / lines.at_least(positives)
    if variant == "voc":
        for start, count in zip(positives.start, positives.per_line, strict=True):
            own = slice(start, start + count)
            precision[own] = np.maximum.accumulate(precision[own][::-1])[::-1]
        return precision
    if variant == "tied":
        return precision
    raise ValueError(f"variant must be 'tied', 'untied' or 'voc', got {variant!r}")


def _index_ranks(lines: Lines, positives: Positives) -> NDArray[np.float64]:
    """Return the precision at each positive when ties are ranked by index."""
    order = np.argsort(-lines.scores, axis=1, kind="stable")  # NaN, unobserved, comes last
    present = np.take_along_axis(lines.present, order, axis=1)
    _, rank = np.nonzero(present)
    place = np.arange(len(positives.line)) - positives.start[positives.line]
    return (place + 1) / (rank + 1)
