"""Thresholds tuned on validation answers: one per label, or one for all labels.

    best_f          most  F_beta = (1 + beta^2) TP / (beta^2 P + chosen)
    shrunken_f      that of each label, drawn to the one for all labels where its positives P are
                    few: the mean of their log-odds with the weights P and 20
    precision_at    most recall with precision >= a goal
    recall_at       most precision with recall >= a goal (the highest threshold that reaches it)
    specificity_at  most recall with  TN / (TN + FP) >= a goal
    false_alarms_at most recall with  FP / known photos <= a goal
    least_cost      least  false_alarm FP + miss FN
    average_k       sets of K labels on average (Garcin et al., Algorithm 1): with n images and
                    m = K n,  t = (P_[m] + P_[m+1]) / 2,  P sorted from the largest, 1-based;
                    without P_[m+1], where K is the number of labels, t is the smallest

Only the scores of present entries need be tried. The answer lies halfway to the next lower score.
With one threshold for all labels, entries are pooled ("micro").
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Answers, Scope, check_scope, read_answers
from labelwise.decide.rules import NEVER, Threshold, just_below
from labelwise.numeric.arrays import Array, Numbers, to_numpy

ROWS = 4096
HALF_WAY = 20.0  # positives of a label at which its threshold lies midway to the shared one
LEAST = 1e-6  # of a threshold, so that it has finite log-odds
Pick = Callable[["Operating"], int | None]


@dataclass(frozen=True)
class Operating:
    """Present scores without repeats, lowest first, and what lies at or above each of them."""

    scores: NDArray[Any]
    found: Numbers
    false_alarms: Numbers
    negatives: float

    @property
    def positives(self) -> float:
        return float(self.found[0]) if len(self.found) else 0.0


def best_f(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    beta: float = 1.0,
    scope: Scope = "label",
) -> Threshold:
    """Return the threshold with the best F-beta, per label or shared."""
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")
    pick = partial(_pick_best_f, beta=beta)
    return _fit(read_answers(probs, labels, observed), scope, pick, "has no positive")


def shrunken_f(probs: Array, labels: Array, observed: Array | None = None) -> Threshold:
    """Return the thresholds with the best F1 of each label, drawn to the one for all labels."""
    answers = read_answers(probs, labels, observed)
    shared, own = (
        np.clip(np.atleast_1d(_fit(answers, scope, _pick_best_f, None).value), LEAST, 1 - LEAST)
        for scope in ("shared", "label")
    )
    weight = answers.present.sum(0) / (answers.present.sum(0) + HALF_WAY)
    odds = weight * np.log(own / (1 - own)) + (1 - weight) * np.log(shared / (1 - shared))
    return Threshold(tuple((1 / (1 + np.exp(-odds))).tolist()))


def _pick_best_f(at: Operating, beta: float = 1.0) -> int | None:
    chosen = at.found + at.false_alarms
    score = (1 + beta**2) * at.found / (beta**2 * at.positives + chosen)
    return _last(score == score.max(initial=0.0))


def precision_at(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    precision: float,
    scope: Scope = "label",
) -> Threshold:
    """Return the lowest threshold with at least this precision; where there is none, never."""
    _check_share("precision", precision)

    def pick(at: Operating) -> int | None:
        return _first(at.found >= precision * (at.found + at.false_alarms))

    answers = read_answers(probs, labels, observed)
    return _fit(answers, scope, pick, "does not reach the precision", NEVER)


def recall_at(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    recall: float,
    scope: Scope = "label",
) -> Threshold:
    """Return the highest threshold with at least this recall."""
    _check_share("recall", recall)

    def pick(at: Operating) -> int | None:
        return _last(at.found >= recall * at.positives)

    return _fit(read_answers(probs, labels, observed), scope, pick, "has no positive")


def specificity_at(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    specificity: float,
    scope: Scope = "label",
) -> Threshold:
    """Return the lowest threshold that leaves out at least this share of the absent entries."""
    _check_share("specificity", specificity)

    def pick(at: Operating) -> int | None:
        return _first(at.negatives - at.false_alarms >= specificity * at.negatives)

    answers = read_answers(probs, labels, observed)
    return _fit(answers, scope, pick, "does not reach the specificity", NEVER)


def false_alarms_at(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    per_photo: float,
    scope: Scope = "label",
) -> Threshold:
    """Return the lowest threshold with at most this rate of false alarms per photo.

    Photos whose label is known count; with ``scope="shared"``, false alarms of all labels together.
    """
    if not per_photo > 0:
        raise ValueError(f"false alarms per photo must be positive, got {per_photo}")
    answers = read_answers(probs, labels, observed)
    photos = float(answers.known.any(1).sum())

    def pick(at: Operating) -> int | None:
        known = photos if scope == "shared" else at.positives + at.negatives
        return _first(at.false_alarms <= per_photo * known * (1 + 1e-12))

    return _fit(answers, scope, pick, "has more false alarms at every score", NEVER)


def least_cost(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    false_alarm: float,
    miss: float,
    scope: Scope = "label",
) -> Threshold:
    """Return the threshold with the least cost of false alarms and misses; it may be never.

    With calibrated probabilities it needs no fit: ``Threshold(false_alarm / (false_alarm + miss))``
    """
    if false_alarm <= 0 or miss <= 0:
        raise ValueError(f"costs must be positive, got {false_alarm} and {miss}")

    def pick(at: Operating) -> int | None:
        cost = false_alarm * at.false_alarms + miss * (at.positives - at.found)
        best = cost.min(initial=miss * at.positives)
        return _last(cost == best) if best < miss * at.positives else None

    return _fit(read_answers(probs, labels, observed), scope, pick, None, NEVER)


def average_k(probs: Array, k: float) -> Threshold:
    """Return the threshold whose sets hold ``k`` labels on average over these images.

    ``k`` times the number of images is rounded. A tie at the cut makes the sets larger, with a
    warning: probabilities in float64 have fewer.
    """
    values = to_numpy(probs)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"probs must be (images, labels), got shape {values.shape}")
    images, labels = values.shape
    if not 0 < k <= labels:
        raise ValueError(f"k must lie between 0 and the {labels} labels, got {k}")
    if np.isnan(values).any():
        raise ValueError("probs must not be NaN, got NaN")
    count = max(1, round(k * images))
    if count == values.size:
        return Threshold(just_below(values.min()))
    position = values.size - count
    parts = np.partition(values.ravel(), (position - 1, position))
    above, below = float(parts[position]), float(parts[position - 1])
    if above == below:
        size = np.count_nonzero(values >= above) / images
        warn(
            f"several probabilities equal the cut {above:g}: sets hold {size:g} labels on average"
            f" instead of {k:g}",
            stacklevel=2,
        )
        return Threshold(just_below(above))
    middle = (above + below) / 2
    return Threshold(middle if middle > below else just_below(above))


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {value}")


def _first(true: NDArray[np.bool_]) -> int | None:
    return int(true.argmax()) if true.any() else None


def _last(true: NDArray[np.bool_]) -> int | None:
    return int(np.flatnonzero(true)[-1]) if true.any() else None


def _fit(
    answers: Answers, scope: Scope, pick: Pick, trouble: str | None, otherwise: float | None = None
) -> Threshold:
    """Return the threshold picked for all, or for each label.

    Where nothing can be picked it is ``otherwise``; if that is None, that of all labels together.
    ``trouble`` words the warning.
    """
    check_scope(scope)
    each = [answers] if scope == "shared" else answers.labels()
    values = [_value(some, pick) for some in each]
    missing, instead = values.count(None), "is never chosen"
    if missing and otherwise is None:
        otherwise, instead = _value(answers, pick), "takes the threshold of all labels"
        if otherwise is None:
            raise ValueError("labels must hold a present entry that is observed, got none")
    if missing and trouble is not None:
        labels = "1 label" if missing == 1 else f"{missing} labels: each"
        who = "one threshold for all labels" if scope == "shared" else labels
        warn(f"{who} {trouble} and {instead}", stacklevel=3)
    filled = [otherwise if value is None else value for value in values]
    return Threshold(filled[0] if scope == "shared" else tuple(filled))  # type: ignore[arg-type]


def _value(answers: Answers, pick: Pick) -> float | None:
    """Return the threshold picked for some entries, halfway to the next lower score."""
    scores, counts = np.unique(answers.probs[answers.present], return_counts=True)
    below = np.zeros(len(scores) + 1)
    for start in range(0, len(answers.probs), ROWS):
        rows = slice(start, start + ROWS)
        bin_of = np.searchsorted(scores, answers.probs[rows][answers.absent[rows]], side="right")
        below += np.bincount(bin_of, minlength=len(below))
    found, above = (side[::-1].cumsum()[::-1].astype(np.float64) for side in (counts, below))
    index = pick(Operating(scores, found, above[1:], float(below.sum())))
    if index is None:
        return None
    score = scores[index]
    lower = np.max(answers.probs, initial=0.0, where=answers.known & (answers.probs < score))
    middle = (float(score) + float(lower)) / 2
    return middle if middle > lower else just_below(score)
