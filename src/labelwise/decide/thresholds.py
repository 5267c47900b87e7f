"""Thresholds tuned on validation answers: one for all labels, or one for each.

    best_f          most  F_beta = (1 + beta^2) TP / (beta^2 P + chosen)
    precision_at    most recall with precision >= a goal
    recall_at       most precision with recall >= a goal (the highest threshold that reaches it)
    least_cost      least  false_alarm FP + miss FN

Only the scores of present entries need be tried: a threshold anywhere else either admits absent
entries for nothing or equals one of them. The answer lies halfway to the next lower score. With
one threshold for all labels, entries are pooled ("micro"). With calibrated probabilities the
least expected cost needs no fit: it is ``Threshold(false_alarm / (false_alarm + miss))``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Answers, Matrix, read_answers
from labelwise.decide.rules import NEVER, Threshold

__all__ = ["best_f", "least_cost", "precision_at", "recall_at"]

Scope = Literal["shared", "label"]
Numbers = NDArray[np.float64]

ROWS = 4096


@dataclass(frozen=True)
class Operating:
    """Present scores without repeats, lowest first, and what lies at or above each of them."""

    scores: NDArray[Any]
    found: Numbers
    false_alarms: Numbers

    @property
    def positives(self) -> float:
        """Return how many entries are present."""
        return float(self.found[0]) if len(self.found) else 0.0


def best_f(
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    beta: float = 1.0,
    scope: Scope = "shared",
) -> Threshold:
    """Return the threshold, or one for each label, with the best F-beta."""
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")

    def pick(at: Operating) -> int | None:
        if not at.positives:
            return None
        chosen = at.found + at.false_alarms
        score = (1 + beta**2) * at.found / (beta**2 * at.positives + chosen)
        return _last(score == score.max())

    return _fit(read_answers(probs, labels, observed), scope, pick, "has no positive")


def precision_at(
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    precision: float,
    scope: Scope = "shared",
) -> Threshold:
    """Return the lowest threshold with at least this precision; where there is none, never."""
    _check_share("precision", precision)

    def pick(at: Operating) -> int | None:
        enough = at.found >= precision * (at.found + at.false_alarms)
        return int(enough.argmax()) if enough.any() else None

    answers = read_answers(probs, labels, observed)
    return _fit(answers, scope, pick, "does not reach the precision", otherwise=NEVER)


def recall_at(
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    recall: float,
    scope: Scope = "shared",
) -> Threshold:
    """Return the highest threshold with at least this recall."""
    _check_share("recall", recall)

    def pick(at: Operating) -> int | None:
        return _last(at.found >= recall * at.positives) if at.positives else None

    return _fit(read_answers(probs, labels, observed), scope, pick, "has no positive")


def least_cost(
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    false_alarm: float,
    miss: float,
    scope: Scope = "shared",
) -> Threshold:
    """Return the threshold with the least cost of false alarms and misses; it may be never."""
    if false_alarm <= 0 or miss <= 0:
        raise ValueError(f"costs must be positive, got {false_alarm} and {miss}")

    def pick(at: Operating) -> int | None:
        cost = false_alarm * at.false_alarms + miss * (at.positives - at.found)
        if not at.positives or cost.min() >= miss * at.positives:
            return None
        return _last(cost == cost.min())

    return _fit(read_answers(probs, labels, observed), scope, pick, None, otherwise=NEVER)


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {value}")


def _last(true: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(true)[-1])


def _fit(
    answers: Answers,
    scope: Scope,
    pick: Callable[[Operating], int | None],
    trouble: str | None,
    otherwise: float | None = None,
) -> Threshold:
    """Return the threshold picked for all, or for each label.

    Where nothing can be picked, the threshold is ``otherwise``; if that is None, the one picked
    for all labels together. ``trouble`` words the warning.
    """
    if scope not in ("shared", "label"):
        raise ValueError(f"scope must be 'shared' or 'label', got {scope!r}")
    values = [_value(answers, pick)] if scope == "shared" else []
    if scope == "label":
        values = [_value(column, pick) for column in answers.labels()]
    missing = values.count(None)
    if missing and otherwise is None:
        otherwise = _value(answers, pick)
        if otherwise is None:
            raise ValueError("labels must hold a present entry that is observed, got none")
        instead = "takes the threshold of all labels"
    else:
        instead = "is never chosen"
    if missing and trouble is not None:
        each = "1 label" if missing == 1 else f"{missing} labels: each"
        who = "one threshold for all labels" if scope == "shared" else each
        warn(f"{who} {trouble} and {instead}", stacklevel=3)
    found = [otherwise if value is None else value for value in values]
    filled = [value for value in found if value is not None]
    return Threshold(filled[0] if scope == "shared" else tuple(filled))


def _value(answers: Answers, pick: Callable[[Operating], int | None]) -> float | None:
    at = _operating(answers)
    index = pick(at)
    if index is None:
        return None
    score = at.scores[index]
    known = answers.present | answers.absent
    lower = np.max(answers.probs, initial=0.0, where=known & (answers.probs < score))
    middle = (float(score) + float(lower)) / 2
    return middle if middle > lower else float(score)


def _operating(answers: Answers) -> Operating:
    scores, counts = np.unique(answers.probs[answers.present], return_counts=True)
    found = counts[::-1].cumsum()[::-1].astype(np.float64)
    below = np.zeros(len(scores) + 1)
    for start in range(0, len(answers.probs), ROWS):
        rows = slice(start, start + ROWS)
        alarms = answers.probs[rows][answers.absent[rows]]
        place = np.searchsorted(scores, alarms, side="right")
        below += np.bincount(place, minlength=len(below))
    return Operating(scores, found, below[::-1].cumsum()[::-1][1:])
