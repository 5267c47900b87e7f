"""Conformal risk control (Angelopoulos et al.): thresholds that keep a promise on new images.

A threshold t is chosen on n images that are exchangeable with those to come. If the loss of an
image lies in [0, 1] and only falls as t moves one way, the first t with
    (sum of losses + 1) / (n + 1)  <=  level
keeps the expected loss of a new image at or below the level, whatever the model.

    missed        share of the image's present labels with p < t           falls as t falls
    false alarms  share of the image's absent labels with p >= t, or       falls as t rises
                  whether there is any

An image without labels misses nothing: its loss is 0, and all its labels can be false alarms. For
each label by itself, n counts the images that carry it (missed) or do not (false alarms), and the
promise is one on such images. Labels not observed leave sums and counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Answers, Matrix, as_numpy, read_answers
from labelwise.decide.rules import NEVER, Rule, Threshold, just_above, just_below
from labelwise.errors import DataError
from labelwise.types import nearest

__all__ = ["GroupRules", "by_group", "control_false_alarms", "control_recall"]

Scope = Literal["shared", "label"]


def control_recall(
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    miss_rate: float,
    scope: Scope = "shared",
    among: Literal["all", "labelled"] = "all",
) -> Threshold:
    """Return the highest threshold whose expected share of missed labels is at most ``miss_rate``.

    ``among="labelled"`` promises it over images that carry a label; "all" over all images, of
    which those without labels miss nothing. Too few images give the threshold 0: all labels.
    """
    _check(miss_rate, "miss_rate", scope, among in ("all", "labelled"), f"among, got {among!r}")
    answers = read_answers(probs, labels, observed)
    if scope == "label":
        columns = answers.labels()
        return Threshold(tuple(_recall(column, miss_rate, "labelled") for column in columns))
    return Threshold(_recall(answers, miss_rate, among))


def control_false_alarms(
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    rate: float,
    scope: Scope = "shared",
    count: Literal["share", "any"] = "share",
) -> Threshold:
    """Return the lowest threshold whose expected false alarms are at most ``rate``.

    ``count="share"`` bounds the share of an image's absent labels that are chosen; "any" the
    chance that an image has a false alarm at all. Too few images give ``NEVER``.
    """
    _check(rate, "rate", scope, count in ("share", "any"), f"count, got {count!r}")
    answers = read_answers(probs, labels, observed)
    if scope == "label":
        return Threshold(tuple(_alarms(column, rate, "share") for column in answers.labels()))
    return Threshold(_alarms(answers, rate, count))


@dataclass(frozen=True)
class GroupRules:
    """One rule per group of images, such as each camera or each site."""

    rules: Mapping[str, Rule]

    def __call__(self, probs: Matrix, groups: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the (N, K) sets of images whose groups (N,) are given."""
        values, names = as_numpy(probs), _names(groups, len(probs))
        sets = np.zeros(values.shape, dtype=bool)
        for name in np.unique(names).tolist():
            if name not in self.rules:
                raise DataError(f"no rule was fitted for group {name!r}{nearest(name, self.rules)}")
            rows = names == name
            sets[rows] = self.rules[name](values[rows])
        return sets


def by_group(
    fit: Callable[..., Rule],
    probs: Matrix,
    labels: Matrix,
    groups: NDArray[Any],
    observed: Matrix | None = None,
    **options: Any,
) -> GroupRules:
    """Return the rules ``fit(probs, labels, observed, **options)`` of the images of each group.

    A promise made by the fit then holds within each group.
    """
    values, truth, names = as_numpy(probs), as_numpy(labels), _names(groups, len(probs))
    seen = None if observed is None else as_numpy(observed)
    rules = {}
    for name in np.unique(names).tolist():
        rows = names == name
        part = None if seen is None else seen[rows]
        rules[name] = fit(values[rows], truth[rows], part, **options)
    return GroupRules(rules)


def _check(level: float, name: str, scope: str, known: bool, choice: str) -> None:
    if not 0 < level < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {level}")
    if scope not in ("shared", "label"):
        raise ValueError(f"scope must be 'shared' or 'label', got {scope!r}")
    if not known:
        raise ValueError(f"there is no such {choice}")


def _recall(answers: Answers, level: float, among: str) -> float:
    held = answers.present.sum(1)
    counted = held > 0 if among == "labelled" else (answers.present | answers.absent).any(1)
    budget = level * (np.count_nonzero(counted) + 1) - 1
    if budget < 0:
        return 0.0
    scores, lost = _steps(answers.probs, answers.present, held)
    # At t = scores[i] everything below it is missed.
    missed = np.r_[0.0, lost.cumsum()]
    allowed = int(np.flatnonzero(missed <= budget * (1 + 1e-12))[-1])
    return just_below(scores[allowed]) if allowed < len(scores) else NEVER


def _alarms(answers: Answers, level: float, count: str) -> float:
    free = answers.absent.sum(1)
    budget = level * (np.count_nonzero(free) + 1) - 1
    if budget < 0:
        return NEVER
    probs, absent = answers.probs, answers.absent
    if count == "any":
        probs = np.max(probs, axis=1, keepdims=True, initial=-np.inf, where=absent)
        absent, free = free[:, None] > 0, np.ones_like(free)
    scores, alarms = _steps(probs, absent, free)
    # At t just above scores[i] everything above it is a false alarm.
    raised = np.r_[alarms[::-1].cumsum()[::-1], 0.0]
    # At t = 0 every image has loss 1, beyond any budget, so there is a score to exceed.
    allowed = int((raised <= budget * (1 + 1e-12)).argmax())
    return just_above(scores[allowed - 1])


def _steps(
    probs: NDArray[Any], chosen: NDArray[np.bool_], held: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the distinct scores of the chosen entries, rising, and the loss that hangs on each."""
    rows, _ = np.nonzero(chosen)
    scores, place = np.unique(probs[chosen], return_inverse=True)
    lost: NDArray[Any] = np.bincount(place, weights=1 / held[rows], minlength=len(scores))
    return scores, lost


def _names(groups: NDArray[Any], count: int) -> NDArray[np.str_]:
    names = np.asarray(groups)
    if names.shape != (count,):
        raise ValueError(f"groups must name each of the {count} images, got shape {names.shape}")
    return names.astype(str)
