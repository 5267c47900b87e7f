"""Conformal risk control (Angelopoulos et al.): thresholds that keep a promise on new images.

A threshold t is chosen on n images that are exchangeable with those to come. If the loss of an
image lies in [0, 1] and only falls as t moves one way, the first t with
    (sum of losses + 1) / (n + 1)  <=  level
keeps the expected loss of a new image at or below the level, whatever the model.

    missed        share of the image's present labels with p < t           falls as t falls
    false alarms  share of the image's absent labels with p >= t, or       falls as t rises
                  whether there is any
    wrong         share of the image's labels with p >= t that are wrong,  may rise as t rises
                  0 where none is chosen

The share that is wrong is replaced by its largest value over all thresholds from t on. For F the
threshold is the best of m that were set beforehand, and its mean loss must keep the level with

    E max(0, risk - mean loss) <= sqrt(log(m + 1) / (2 n))

added. An image without labels misses nothing, and all its labels can be false alarms. For each
label, n counts the images that carry it (missed) or do not (false alarms). Labels not observed
leave sums and counts. With ``groups`` n counts groups, each with the mean loss of its images that
count, and the promise is of an image drawn from a new group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Answers, Scope, check_scope, read_answers
from labelwise.decide.rules import NEVER, Rule, Threshold, just_above, just_below
from labelwise.errors import DataError
from labelwise.numeric.arrays import Array, Mask, Numbers, to_numpy
from labelwise.numeric.groups import Groups
from labelwise.types import nearest

THRESHOLDS = tuple(round(0.1 * step, 1) for step in range(1, 10))


def control_recall(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    miss_rate: float,
    scope: Scope = "shared",
    among: Literal["all", "labelled"] = "all",
    groups: Groups | None = None,
) -> Threshold:
    """Return the highest threshold whose expected share of missed labels is at most ``miss_rate``.

    ``among="labelled"`` promises it over images that carry a label; "all" over all images, of
    which those without labels miss nothing. Too few images give the threshold 0: all labels.
    """
    _check(miss_rate, "miss_rate", scope, among in ("all", "labelled"), f"among, got {among!r}")
    answers = read_answers(probs, labels, observed)
    if scope == "label":
        return Threshold(tuple(_recall(k, miss_rate, True, groups) for k in answers.labels()))
    return Threshold(_recall(answers, miss_rate, among == "labelled", groups))


def control_false_alarms(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    rate: float,
    scope: Scope = "shared",
    count: Literal["share", "any"] = "share",
    groups: Groups | None = None,
) -> Threshold:
    """Return the lowest threshold whose expected false alarms are at most ``rate``.

    ``count="share"`` bounds the share of an image's absent labels that are chosen; "any" the
    chance that an image has a false alarm at all. Too few images give ``NEVER``.
    """
    _check(rate, "rate", scope, count in ("share", "any"), f"count, got {count!r}")
    answers = read_answers(probs, labels, observed)
    if scope == "label":
        return Threshold(tuple(_alarms(k, rate, False, groups) for k in answers.labels()))
    return Threshold(_alarms(answers, rate, count == "any", groups))


def control_precision(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    wrong_rate: float,
    groups: Groups | None = None,
) -> Threshold:
    """Return the lowest threshold whose expected share of wrong labels is at most ``wrong_rate``.

    It is the share among the labels chosen for an image, 0 for an image that gets none, on average
    over all images. Too few images give ``NEVER``.
    """
    _check(wrong_rate, "wrong_rate", "shared")
    answers = read_answers(probs, labels, observed)
    known = answers.known
    weights, count = _shares(known.any(1), groups)
    budget = wrong_rate * (count + 1) - 1
    if budget < 0:
        return Threshold(NEVER)
    values = np.where(known, answers.probs, -np.inf)
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    wrong = np.take_along_axis(answers.absent, order, axis=1).cumsum(1)
    shares = wrong / np.arange(1, ranked.shape[1] + 1)
    shares[:, :-1][ranked[:, 1:] == ranked[:, :-1]] = 0.0  # equal ones are chosen together
    shares[np.isneginf(ranked)] = 0.0
    risen = np.diff(np.maximum.accumulate(shares, axis=1), axis=1, prepend=0.0)
    steps = _summed(ranked[risen > 0], (risen * weights[:, None])[risen > 0])
    return Threshold(_lowest(*steps, budget))


def control_f(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    level: float,
    thresholds: Sequence[float] = THRESHOLDS,
    groups: Groups | None = None,
) -> Threshold:
    """Return the threshold of the highest mean F1, if that is expected to be ``level`` or more.

    ``thresholds`` must be set without these images. Where the level cannot be shown, a ValueError
    says what can.
    """
    _check(level, "level", "shared")
    answers = read_answers(probs, labels, observed)
    weights, count = _shares(answers.known.any(1), groups)
    if not len(thresholds) or not count:
        raise ValueError("a threshold and an image with known labels or more are needed, got none")
    means = [float(answers.f1(answers.probs >= t) @ weights) / count for t in thresholds]
    best = int(np.argmax(means))
    shown = means[best] - sqrt(log(len(thresholds) + 1) / (2 * count))
    if shown < level:
        what = "images" if groups is None else "groups"
        raise ValueError(
            f"an expected F1 of {level:g} cannot be shown on {count:,} {what}, {shown:.3f} can; "
            f"use more {what}, a lower level or fewer thresholds"
        )
    return Threshold(float(thresholds[best]))


@dataclass(frozen=True)
class GroupRules:
    """One rule per group of images, such as each camera or each site."""

    rules: Mapping[str, Rule]

    def __call__(self, probs: Array, groups: NDArray[Any]) -> NDArray[np.bool_]:
        values = to_numpy(probs)
        sets = np.zeros(values.shape, dtype=bool)
        for name, rows in _rows_by_name(groups, len(probs)):
            if name not in self.rules:
                raise DataError(f"no rule was fitted for group {name!r}{nearest(name, self.rules)}")
            sets[rows] = self.rules[name](values[rows])
        return sets


def by_group(
    fit: Callable[..., Rule],
    probs: Array,
    labels: Array,
    groups: NDArray[Any],
    observed: Array | None = None,
    **options: Any,
) -> GroupRules:
    """Return the rules ``fit(probs, labels, observed, **options)`` of the images of each group."""
    arrays = [None if side is None else to_numpy(side) for side in (probs, labels, observed)]
    rules = {}
    for name, rows in _rows_by_name(groups, len(probs)):
        rules[name] = fit(*(None if side is None else side[rows] for side in arrays), **options)
    return GroupRules(rules)


def _check(level: float, name: str, scope: str, known: bool = True, choice: str = "") -> None:
    if not 0 < level < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {level}")
    check_scope(scope)
    if not known:
        raise ValueError(f"there is no such {choice}")


def _shares(counted: Any, groups: Groups | None) -> tuple[NDArray[Any], int]:
    """Return what each image (N,) counts for, and how many images or groups count."""
    if groups is None:
        return counted.astype(np.float64), int(np.count_nonzero(counted))
    sizes = groups.sums(counted)
    return counted / np.maximum(sizes, 1)[groups.codes], int(np.count_nonzero(sizes))


def _recall(answers: Answers, level: float, labelled: bool, groups: Groups | None) -> float:
    held = answers.present.sum(1)
    weights, count = _shares(held > 0 if labelled else answers.known.any(1), groups)
    budget = level * (count + 1) - 1
    if budget < 0:
        return 0.0
    scores, lost = _steps(answers.probs, answers.present, held, weights)
    # At t = scores[i] everything below it is missed.
    missed = np.r_[0.0, lost.cumsum()]
    allowed = int(np.flatnonzero(missed <= budget * (1 + 1e-12))[-1])
    return just_below(scores[allowed]) if allowed < len(scores) else NEVER


def _alarms(answers: Answers, level: float, any_alarm: bool, groups: Groups | None) -> float:
    free = answers.absent.sum(1)
    weights, images = _shares(free > 0, groups)
    budget = level * (images + 1) - 1
    if budget < 0:
        return NEVER
    probs, absent = answers.probs, answers.absent
    if any_alarm:
        probs = np.max(probs, axis=1, keepdims=True, initial=-np.inf, where=absent)
        absent, free = free[:, None] > 0, np.ones_like(free)
    return _lowest(*_steps(probs, absent, free, weights), budget)


def _lowest(scores: NDArray[Any], losses: Numbers, budget: float) -> float:
    """Return the lowest threshold with losses within the budget; each hangs on a score."""
    # At t just above scores[i] everything above it is lost.
    raised = np.r_[losses[::-1].cumsum()[::-1], 0.0]
    allowed = int((raised <= budget * (1 + 1e-12)).argmax())
    return just_above(scores[allowed - 1]) if allowed else 0.0


def _steps(
    probs: NDArray[Any], chosen: NDArray[np.bool_], held: NDArray[Any], weights: NDArray[Any]
) -> tuple[NDArray[Any], Numbers]:
    """Return the distinct scores of the chosen entries, rising, and the loss that hangs on each."""
    rows, _ = np.nonzero(chosen)
    return _summed(probs[chosen], weights[rows] / held[rows])


def _summed(values: NDArray[Any], losses: NDArray[Any]) -> tuple[NDArray[Any], Numbers]:
    scores, bin_of = np.unique(values, return_inverse=True)
    lost: NDArray[Any] = np.bincount(bin_of, weights=losses, minlength=len(scores))
    return scores, lost


def _rows_by_name(groups: NDArray[Any], count: int) -> list[tuple[str, Mask]]:
    names = np.asarray(groups)
    if names.shape != (count,):
        raise ValueError(f"groups must name each of the {count} images, got shape {names.shape}")
    names = names.astype(str)
    return [(name, names == name) for name in np.unique(names).tolist()]
