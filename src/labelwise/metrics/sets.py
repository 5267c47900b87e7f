"""How good label sets are: precision, recall, F-beta, Hamming loss, subset accuracy, sizes.

    precision = TP / (TP + FP)      recall = TP / (TP + FN)
    F-beta    = (1 + b^2) TP / ((1 + b^2) TP + b^2 FN + FP)

of every label (macro), of every image (sample), or over all entries (micro). CF1 and OF1 of the
multi-label literature: CF1 is the harmonic mean of the labels' mean precision and mean recall, OF1
the micro F1. What is 0 / 0 is left out by default; ``undefined`` says to count it as "zero" (as
scikit-learn does and as the papers' macro-F1 at top 4) or as "one".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.averages import Averaged
from labelwise.metrics.inputs import (
    Array,
    By,
    Mask,
    as_mask,
    blocks,
    check_by,
    check_shapes,
    present_labels,
    read,
)

__all__ = [
    "Confusion",
    "SetSizes",
    "Undefined",
    "confusion",
    "hamming_loss",
    "set_sizes",
    "subset_accuracy",
]

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
        """Return the share of predicted labels that are present."""
        return _shares(self.tp, self.tp + self.fp, undefined, self.by)

    def recall(self, undefined: Undefined = "skip") -> Averaged:
        """Return the share of present labels that are predicted."""
        return _shares(self.tp, self.tp + self.fn, undefined, self.by)

    def f_score(self, beta: float = 1.0, undefined: Undefined = "skip") -> Averaged:
        """Return F-beta of every label or image, and their mean (macro or sample F)."""
        if beta <= 0:
            raise ValueError(f"beta must be positive, got {beta}")
        hits = (1 + beta**2) * self.tp
        return _shares(hits, hits + beta**2 * self.fn + self.fp, undefined, self.by)

    def micro(self) -> "Confusion":
        """Return the counts over all entries as one item."""
        return Confusion(_all(self.tp), _all(self.fp), _all(self.fn), _all(self.tn), self.by)

    def cf1(self, undefined: Undefined = "skip") -> float:
        """Return the harmonic mean of mean precision and mean recall."""
        precision, recall = self.precision(undefined).value, self.recall(undefined).value
        total = precision + recall
        return 2 * precision * recall / total if total != 0 else 0.0


def _all(counts: Counts) -> Counts:
    return np.array([counts.sum()])


def _shares(hits: NDArray[Any], out_of: NDArray[Any], undefined: Undefined, by: By) -> Averaged:
    if undefined not in INSTEAD:
        raise ValueError(f"undefined must be 'skip', 'zero' or 'one', got {undefined!r}")
    shares = np.full(len(hits), INSTEAD[undefined])
    np.divide(hits, out_of, out=shares, where=out_of > 0)
    return Averaged.over(shares, by)


def confusion(
    sets: Array, labels: Array, observed: Array | None = None, *, by: By = "label"
) -> Confusion:
    """Return the counts of predicted sets (N, K) bool against labels, over observed entries."""
    check_by(by)
    rows, columns = check_shapes(sets=sets, labels=labels, observed=observed)
    axis, lines = (0, columns) if by == "label" else (1, rows)
    counts = np.zeros((4, lines), dtype=np.int64)
    for part, chosen_set, present, known in _blocks(sets, labels, observed):
        own = counts if by == "label" else counts[:, part]
        own += [
            np.count_nonzero(mask, axis=axis)
            for mask in (
                chosen_set & present,
                chosen_set & ~present & known,
                ~chosen_set & present,
                ~chosen_set & ~present & known,
            )
        ]
    tp, fp, fn, tn = counts
    return Confusion(tp, fp, fn, tn, by)


def hamming_loss(sets: Array, labels: Array, observed: Array | None = None) -> float:
    """Return the share of observed entries that are wrong; NaN if none is observed."""
    total = confusion(sets, labels, observed).micro()
    wrong = total.fp + total.fn
    return _shares(wrong, wrong + total.tp + total.tn, "skip", "label").value


def subset_accuracy(sets: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return whether all observed entries of each image are right; 0 of 0 is left out."""
    counts = confusion(sets, labels, observed, by="image")
    wrong = counts.fp + counts.fn
    known = wrong + counts.tp + counts.tn
    return Averaged.over(np.where(known > 0, wrong == 0, np.nan), "image")


@dataclass(frozen=True)
class SetSizes:
    """How many labels the sets hold."""

    mean: float
    deviation: float
    largest: int
    empty: float


def set_sizes(sets: Array) -> SetSizes:
    """Return the mean and standard deviation of the sizes, the largest, and the share empty."""
    rows, columns = check_shapes(sets=sets)
    if rows == 0:
        raise ValueError("set sizes need at least one set, got none")
    sizes = np.concatenate(
        [
            np.count_nonzero(as_mask(read(sets, part, "image"), "sets"), axis=1)
            for part in blocks(rows, columns)
        ]
    )
    return SetSizes(
        float(sizes.mean()), float(sizes.std()), int(sizes.max()), float((sizes == 0).mean())
    )


def _blocks(
    sets: Array, labels: Array, observed: Array | None
) -> Iterator[tuple[slice, Mask, Mask, Mask]]:
    """Yield rows, predicted, present and known entries."""
    for part in blocks(*sets.shape):
        chosen_set = as_mask(read(sets, part, "image"), "sets")
        mask = None if observed is None else as_mask(read(observed, part, "image"), "observed")
        present = present_labels(read(labels, part, "image"), mask)
        yield part, chosen_set, present, np.ones_like(present) if mask is None else mask
