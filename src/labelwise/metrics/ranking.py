"""How well scores order labels.

    precision(s) = positives scoring >= s / entries scoring >= s
    AP           = mean over positives of precision(their score)
    AUROC        = P(a positive outscores a negative), ties count one half
    coverage     = how far down an image's labels one must go to meet all present ones
    one-error    = share of images whose top label is absent

Average precision is taken over images of a label (mAP@class) or labels of an image (mAP@sample,
which is label-ranking average precision). ``variant="tied"`` counts equal scores as one threshold,
as scikit-learn does; figures of the two others must not be compared with it:

    "untied"  equal scores are ranked one by one, lower index first (ASL, two-way loss)
    "voc"     precision(s) becomes its largest value at s or any lower score (Pascal VOC
              interpolation; Query2Label, RML); never below "tied"

What is undefined is left out and counted, not taken as 0: AP without a positive, AUROC without a
positive or a negative, coverage and one-error of images without a present label. Pooled curves keep
one point per score of a positive; entries are sorted a block at a time.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from labelwise.base.arrays import Array, Floats, Numbers
from labelwise.errors import require
from labelwise.metrics.lines import (
    ABOVE,
    AT_LEAST,
    Averaged,
    By,
    Counts,
    Lines,
    Positives,
    lines_of,
)

Variant: TypeAlias = Literal["tied", "untied", "voc"]


def mean_average_precision(scores: Array, labels: Array, observed: Array | None = None) -> float:
    """Return mAP, the mean over labels of their average precision."""
    return float(average_precision(scores, labels, observed).value)


def average_precision(
    scores: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    by: By = "label",
    variant: Variant = "tied",
) -> Averaged:
    """Return the average precision of every label or image, and the mean over the defined."""

    def of(lines: Lines) -> Numbers:
        positives = lines.positives()
        return positives.total(_precision(lines, positives, variant)) / positives.per_line

    return Averaged.of_lines(of, scores, labels, observed, by)


def label_ranking_average_precision(
    scores: Array, labels: Array, observed: Array | None = None
) -> Averaged:
    """Return label-ranking average precision: tie-aware average precision of each image."""
    return average_precision(scores, labels, observed, by="image")


def _precision(lines: Lines, positives: Positives, variant: Variant) -> Numbers:
    if variant == "untied":
        return _index_ranks(lines, positives)
    precision = positives.at_least() / lines.count(positives, AT_LEAST)[0]
    if variant == "voc":
        for start, count in zip(positives.start, positives.per_line, strict=True):
            own = slice(start, start + count)
            precision[own] = np.maximum.accumulate(precision[own][::-1])[::-1]
        return precision
    if variant == "tied":
        return precision
    raise ValueError(f"variant must be 'tied', 'untied' or 'voc', got {variant!r}")


def _index_ranks(lines: Lines, positives: Positives) -> Numbers:
    order = np.argsort(-lines.scores, axis=1, kind="stable")  # NaN, unobserved, comes last
    _, rank = np.nonzero(np.take_along_axis(lines.present, order, axis=1))
    rank_among = np.arange(len(positives.line)) - positives.start[positives.line]
    return (rank_among + 1) / (rank + 1)


def auroc(
    scores: Array, labels: Array, observed: Array | None = None, *, by: By = "label"
) -> Averaged:
    """Return AUROC of every label (or image, 1 - ranking loss with ties one half) and its mean."""

    def of(lines: Lines) -> Numbers:
        positives = lines.positives()
        at_least, above = lines.count(positives, AT_LEAST, ABOVE)
        as_high, higher = at_least - positives.at_least(), above - positives.above()
        negatives = lines.known - positives.per_line
        won = negatives[positives.line] - (as_high + higher) / 2
        return positives.total(won) / (positives.per_line * negatives)

    return Averaged.of_lines(of, scores, labels, observed, by)


def coverage_error(scores: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return for every image how many labels score at least as much as its lowest present one."""

    def of(lines: Lines) -> Numbers:
        positives = lines.positives()
        depth = np.full(len(lines.scores), np.nan)
        some = np.flatnonzero(positives.per_line)
        lowest = positives.start[some] + positives.per_line[some] - 1
        depth[some] = lines.count(positives, AT_LEAST)[0][lowest]
        return depth

    return Averaged.of_lines(of, scores, labels, observed, "image")


def one_error(scores: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return for every image the chance that its top label, drawn among ties, is absent."""

    def of(lines: Lines) -> Numbers:
        top = lines.top()
        right = np.count_nonzero(top & lines.present, axis=1)
        error = 1 - right / np.count_nonzero(top, axis=1)
        return np.where(lines.present.any(axis=1), error, np.nan)

    return Averaged.of_lines(of, scores, labels, observed, "image")


SORTED_ENTRIES = 2**21


@dataclass(frozen=True)
class PrecisionRecall:
    """Points of a curve, thresholds falling: predict where the score is at least the threshold."""

    thresholds: Floats
    precision: Numbers
    recall: Numbers

    def f_score(self, beta: float = 1.0) -> Numbers:
        weight = beta**2
        return (1 + weight) * self.precision * self.recall / (weight * self.precision + self.recall)

    def best(self, beta: float = 1.0) -> tuple[float, float]:
        require(len(self.thresholds), "the best threshold needs at least one positive, got none")
        scores = self.f_score(beta)
        index = int(scores.argmax())
        return float(self.thresholds[index]), float(scores[index])


def precision_recall_curve(
    scores: Array, labels: Array, observed: Array | None = None
) -> PrecisionRecall:
    """Return the curve over all entries of (N, K); for one label, pass its column as (N, 1)."""
    levels, at_least, _, _ = _pooled(scores, labels, observed)
    ends = np.searchsorted(-levels, -np.unique(levels)[::-1], side="right") - 1
    hits = ends + 1
    return PrecisionRecall(levels[ends], hits / at_least[ends], hits / len(levels))


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
) -> tuple[Floats, Counts, Counts, int]:
    """Return positives' scores, falling; entries at least and above each; number of entries."""
    positives = [
        block.scores[block.present] for block in lines_of(scores, labels, observed, "image")
    ]
    rising = np.sort(np.concatenate(positives)) if positives else np.empty(0)
    at_least, above, known = np.zeros(len(rising), np.intp), np.zeros(len(rising), np.intp), 0
    for block in lines_of(scores, labels, observed, "image", SORTED_ENTRIES):
        entries = int(block.known.sum())
        ordered = np.sort(block.scores, axis=None)  # NaN, unobserved, comes last
        at_least += entries - np.searchsorted(ordered, rising, side="left")
        above += entries - np.searchsorted(ordered, rising, side="right")
        known += entries
    return rising[::-1], at_least[::-1], above[::-1], known
