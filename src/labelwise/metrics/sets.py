"""How good label sets are: precision, recall, F-beta, Hamming loss, subset accuracy, sizes.

    precision = TP / (TP + FP)      recall = TP / (TP + FN)
    F-beta    = (1 + b^2) TP / ((1 + b^2) TP + b^2 FN + FP)

of every label (macro), of every image (sample), or over all entries (micro). CF1 is the harmonic
mean of the labels' mean precision and mean recall, OF1 the micro F1. What is 0 / 0 is left out by
default; ``undefined`` says to count it as "zero" (as scikit-learn does, and the papers' macro-F1 at
top 4) or as "one". In top-k sets ties go to the lower index. Average-K accuracy is the mean over
images of the share of its present labels that are in the set; long-tailed problems show it by how
often a class occurs in training: few < 20 <= medium <= 100 < many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelwise.base.arrays import (
    Array,
    Numbers,
    Values,
    as_mask,
    check_probabilities,
    check_shapes,
    present_labels,
    to_numpy,
)
from labelwise.errors import require
from labelwise.metrics.lines import Averaged, By, Lines, blocks, check_by, entry_blocks, read
from labelwise.metrics.ranking import micro_auroc
from labelwise.metrics.score_counts import ScoreCounts

Undefined: TypeAlias = Literal["skip", "zero", "one"]
Counts: TypeAlias = NDArray[np.int64]

INSTEAD = {"skip": np.nan, "zero": 0.0, "one": 1.0}


@dataclass(frozen=True)
class Confusion:
    """True and false, positive and negative: counts of every label or image, each (L,)."""

    tp: Counts
    fp: Counts
    fn: Counts
    tn: Counts
    by: By

    def precision(self, undefined: Undefined = "skip") -> Averaged:
        return _shares(self.tp, self.tp + self.fp, undefined, self.by)

    def recall(self, undefined: Undefined = "skip") -> Averaged:
        return _shares(self.tp, self.tp + self.fn, undefined, self.by)

    def f_score(self, beta: float = 1.0, undefined: Undefined = "skip") -> Averaged:
        require(beta > 0, f"beta must be positive, got {beta}")
        hits = (1 + beta**2) * self.tp
        return _shares(hits, hits + beta**2 * self.fn + self.fp, undefined, self.by)

    def micro(self) -> "Confusion":
        tp, fp, fn, tn = (np.array([side.sum()]) for side in (self.tp, self.fp, self.fn, self.tn))
        return Confusion(tp, fp, fn, tn, self.by)

    def error(self) -> float:
        total = self.micro()
        wrong = total.fp + total.fn
        return _shares(wrong, wrong + total.tp + total.tn, "skip", self.by).value

    def exact(self) -> Averaged:
        """Return whether all entries of each line are right; 0 of 0 is left out."""
        wrong, right = self.fp + self.fn, self.tp + self.tn
        return Averaged.over(np.where(wrong + right > 0, wrong == 0, np.nan), self.by)

    def cf1(self, undefined: Undefined = "skip") -> float:
        precision, recall = self.precision(undefined).value, self.recall(undefined).value
        total = precision + recall
        return 2 * precision * recall / total if total != 0 else 0.0


def _shares(hits: Values, out_of: Values, undefined: Undefined, by: By) -> Averaged:
    require(undefined in INSTEAD, f"undefined must be 'skip', 'zero' or 'one', got {undefined!r}")
    shares = np.full(len(hits), INSTEAD[undefined])
    np.divide(hits, out_of, out=shares, where=out_of > 0)
    return Averaged.over(shares, by)


def confusion(
    sets: Array, labels: Array, observed: Array | None = None, *, by: By = "label"
) -> Confusion:
    """Return the counts of predicted sets (N, K) bool against labels, over observed entries."""
    check_by(by)
    shape = check_shapes(sets=sets, labels=labels, observed=observed)
    axis = 0 if by == "label" else 1
    counts = np.zeros((4, shape[1 - axis]), dtype=np.int64)
    for block, mask, (given, label) in entry_blocks(shape, observed, None, sets, labels):
        chosen_set, present = as_mask(given, "sets"), present_labels(label, mask)
        absent = ~present if mask is None else ~present & mask
        cells = [side & truth for truth in (present, absent) for side in (chosen_set, ~chosen_set)]
        own = counts if by == "label" else counts[:, block]
        own += [np.count_nonzero(cell, axis=axis) for cell in cells]
    tp, fn, fp, tn = counts
    return Confusion(tp, fp, fn, tn, by)


def hamming_loss(sets: Array, labels: Array, observed: Array | None = None) -> float:
    """Return the share of observed entries that are wrong; NaN if none is observed."""
    return confusion(sets, labels, observed).error()


def subset_accuracy(sets: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return whether all observed entries of each image are right; 0 of 0 is left out."""
    return confusion(sets, labels, observed, by="image").exact()


@dataclass(frozen=True)
class SetSizes:
    """How many labels the sets hold."""

    mean: float
    deviation: float
    largest: int
    empty: float


def set_sizes(sets: Array) -> SetSizes:
    """Return the mean and standard deviation of the sizes, the largest, and the share empty."""
    sizes = by_image(lambda block: np.count_nonzero(as_mask(block, "sets"), axis=1), sets=sets)
    require(len(sizes), "set sizes need at least one set, got none")
    empty = float((sizes == 0).mean())
    return SetSizes(float(sizes.mean()), float(sizes.std()), int(sizes.max()), empty)


@dataclass(frozen=True)
class TopKScores:
    """Macro, micro and CF1 of the top-k sets, and the F1 of every label (0 if undefined)."""

    macro_f1: float
    micro_f1: float
    cf1: float
    per_label: Numbers


def top_k_sets(scores: Array, k: int) -> NDArray[np.bool_]:
    """Return (N, K) sets of exactly k labels each."""
    rows, columns = check_shapes(scores=scores)
    require(1 <= k <= columns, f"k must be between 1 and {columns}, got {k}")
    sets = np.empty((rows, columns), dtype=np.bool_)
    for block in blocks(rows, columns):
        score = read(scores, block, "image")
        require(not np.isnan(score).any(), "scores must not be NaN, got NaN")
        level = np.partition(score, columns - k, axis=1)[:, columns - k, None]
        above, tied = score > level, score == level
        room = k - np.count_nonzero(above, axis=1, keepdims=True)
        sets[block] = above | (tied & (np.cumsum(tied, axis=1) <= room))
    return sets


def top_k_scores(
    scores: Array, labels: Array, observed: Array | None = None, *, k: int = 4
) -> TopKScores:
    """Return the F1 figures of the k most confident labels of each image."""
    counts = confusion(top_k_sets(scores, k), labels, observed)
    macro = counts.f_score(undefined="zero")
    micro = counts.micro().f_score(undefined="zero")
    return TopKScores(macro.value, micro.value, counts.cf1(undefined="zero"), macro.items)


SHOTS = ("few", "medium", "many")


@dataclass(frozen=True)
class AverageKAccuracy:
    """Accuracy over images and over labels, and the mean set size it was reached with."""

    per_image: Averaged
    per_label: Averaged
    mean_size: float


def average_k_accuracy(
    sets: Array, labels: Array, observed: Array | None = None
) -> AverageKAccuracy:
    """Return the accuracy of sets (N, K) bool, over images and over labels."""
    sides: tuple[By, By] = ("image", "label")
    image, label = (confusion(sets, labels, observed, by=by).recall() for by in sides)
    return AverageKAccuracy(image, label, set_sizes(sets).mean)


def shot_groups(train_counts: Array, *, few: int = 20, many: int = 100) -> NDArray[np.str_]:
    """Return "few", "medium" or "many" for every label's number of training images."""
    counts = to_numpy(train_counts)
    if counts.ndim != 1 or few > many + 1:
        raise ValueError(
            f"train_counts must be (K,) and few at most many + 1, "
            f"got shape {counts.shape}, few={few}, many={many}"
        )
    return np.array(SHOTS)[(counts >= few).astype(np.intp) + (counts > many)]


def by_shot(
    per_label: Numbers, train_counts: Array, *, few: int = 20, many: int = 100
) -> dict[str, Averaged]:
    """Return the mean of a per-label metric over each group; NaN entries are left out."""
    groups = shot_groups(train_counts, few=few, many=many)
    if len(per_label) != len(groups):
        raise ValueError(f"per_label must have {len(groups)} values, got {len(per_label)}")
    return {shot: Averaged.over(per_label[groups == shot], "label") for shot in SHOTS}


def zero_label_rows(labels: Array, observed: Array | None = None) -> NDArray[np.bool_]:
    """Return (N,): the images all of whose labels are observed and absent."""
    shape = check_shapes(labels=labels, observed=observed)
    zero = np.empty(shape[0], dtype=np.bool_)
    for block, mask, (label,) in entry_blocks(shape, observed, None, labels):
        present = present_labels(label, mask)
        zero[block] = ~present.any(axis=1) & (True if mask is None else mask.all(axis=1))
    return zero


def by_image(value: Callable[[np.ndarray], ArrayLike], **matrix: Array) -> Numbers:
    """Return what a function gives for the rows of a named matrix, a block at a time."""
    shape, (rows,) = check_shapes(**matrix), matrix.values()
    values = [value(read(rows, block, "image")) for block in blocks(*shape)]
    return np.concatenate([np.empty(0), *values])


def max_confidence(probs: Array) -> Numbers:
    """Return max_k p of every image, (N,); its mean over OUT images is MMC."""

    def top(block: np.ndarray) -> Values:
        check_probabilities(block, "probs")
        return np.asarray(np.max(block, axis=1))

    return by_image(top, probs=probs)


def top_accuracy(scores: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return the share of images with a label whose top label is present; ties: lower index."""

    def of(lines: Lines) -> Numbers:
        hit = lines.present[np.arange(len(lines.scores)), lines.top().argmax(axis=1)]
        return np.where(lines.present.any(axis=1), hit, np.nan)

    return Averaged.of_lines(of, scores, labels, observed, "image")


def separation_auroc(inside: Array, outside: Array) -> float:
    """Return the chance that an IN score (n,) exceeds an OUT score (m,), ties one half."""
    scores, within = _joined(inside, outside)
    return micro_auroc(scores[:, None], within[:, None])


def false_positive_rate_at(inside: Array, outside: Array, recall: float = 0.95) -> float:
    """Return the share of OUT scores at or above the highest threshold with this recall of IN."""
    require(0 < recall <= 1, f"recall must lie in (0, 1], got {recall}")
    scores, within = _joined(inside, outside)
    counts = ScoreCounts.of(scores.astype(np.float64), within, limit=len(scores) + 2)
    return counts.false_positive_rate_at(recall).value


def false_alarm_rate(sets: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return whether each zero-label image was given a label; other images are left out."""
    check_shapes(sets=sets, labels=labels, observed=observed)
    alarm = by_image(lambda block: as_mask(block, "sets").any(axis=1), sets=sets)
    return Averaged.over(np.where(zero_label_rows(labels, observed), alarm, np.nan), "image")


def nothing_here(log_q: Array) -> Numbers:
    """Return sum_k log(1 - p_k) of every image, (N,), from a link's log(1 - p)."""

    def total(block: np.ndarray) -> ArrayLike:
        if not (block <= 0).all():
            raise ValueError(f"log(1 - p) must be at most 0, got {block.max()}")
        return np.sum(block, axis=1, dtype=np.float64)

    return by_image(total, log_q=log_q)


def _joined(inside: Array, outside: Array) -> tuple[Values, NDArray[np.bool_]]:
    scores = [to_numpy(side) for side in (inside, outside)]
    for name, side in zip(("inside", "outside"), scores, strict=True):
        if side.ndim != 1 or np.isnan(side).any():
            raise ValueError(f"{name} must be (n,) without NaN, got shape {side.shape}")
    return np.concatenate(scores), np.repeat([True, False], [len(side) for side in scores])
