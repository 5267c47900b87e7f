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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import log, sqrt
from typing import Any, Literal
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Floats, Mask, Numbers, Values, to_numpy
from labelwise.base.bounds import clopper_pearson
from labelwise.base.groups import Groups
from labelwise.decide.arrays import Answers, Scope, check_scope, read_answers
from labelwise.decide.rules import NEVER, Rule, Threshold, just_above, just_below
from labelwise.errors import DataError
from labelwise.types import nearest

ROWS = 4096
HALF_WAY = 20.0  # positives of a label at which its threshold lies midway to the shared one
LEAST = 1e-6  # of a threshold, so that it has finite log-odds
Pick = Callable[["Operating"], int | None]


@dataclass(frozen=True)
class Operating:
    """Present scores without repeats, lowest first, and what lies at or above each of them."""

    scores: Floats
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
    score = (1 + beta**2) * at.found / (beta**2 * at.positives + (at.found + at.false_alarms))
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
    return _fit(
        read_answers(probs, labels, observed),
        scope,
        lambda at: _first(at.found >= precision * (at.found + at.false_alarms)),
        "does not reach the precision",
        NEVER,
    )


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
    return _fit(
        read_answers(probs, labels, observed),
        scope,
        lambda at: _last(at.found >= recall * at.positives),
        "has no positive",
    )


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
    return _fit(
        read_answers(probs, labels, observed),
        scope,
        lambda at: _first(at.negatives - at.false_alarms >= specificity * at.negatives),
        "does not reach the specificity",
        NEVER,
    )


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
    photos = float(answers.judged.sum())

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

    Where none can be, it is ``otherwise`` (None: that of all labels); ``trouble`` words a warning.
    """
    check_scope(scope)
    values = [_value(some, pick) for some in ([answers] if scope == "shared" else answers.labels())]
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


# Conformal risk control (Angelopoulos et al.): thresholds that keep a promise on new images.
#
# A threshold t is chosen on n images that are exchangeable with those to come. If the loss of an
# image lies in [0, 1] and only falls as t moves one way, the first t with
#     (sum of losses + 1) / (n + 1)  <=  level
# keeps the expected loss of a new image at or below the level, whatever the model.
#
#     missed        share of the image's present labels with p < t           falls as t falls
#     false alarms  share of the image's absent labels with p >= t, or       falls as t rises
#                   whether there is any
#     wrong         share of the image's labels with p >= t that are wrong,  may rise as t rises
#                   0 where none is chosen
#
# The share that is wrong is replaced by its largest value over all thresholds from t on. For F the
# threshold is the best of m that were set beforehand, and its mean loss must keep the level with
#
#     E max(0, risk - mean loss) <= sqrt(log(m + 1) / (2 n))
#
# added. An image without labels misses nothing, and all its labels can be false alarms. For each
# label, n counts the images that carry it (missed) or do not (false alarms). Labels not observed
# leave sums and counts. With ``groups`` n counts groups, each with the mean loss of its images that
# count, and the promise is of an image drawn from a new group.

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
    weights, count = _shares(answers.judged, groups)
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
    weights, count = _shares(answers.judged, groups)
    if not len(thresholds) or not count:
        raise ValueError("a threshold and an image with known labels or more are needed, got none")
    means = [float(answers.f1(answers.probs >= t) @ weights) / count for t in thresholds]
    best = int(np.argmax(means))
    shown = means[best] - sqrt(log(len(thresholds) + 1) / (2 * count))
    if shown < level:
        what = "images" if groups is None else "groups"
        way = f"{shown:.3f} can; use more {what}, a lower level or fewer thresholds"
        raise ValueError(f"an expected F1 of {level:g} cannot be shown on {count:,} {what}, {way}")
    return Threshold(float(thresholds[best]))


@dataclass(frozen=True)
class GroupRules:
    """One rule per group of images, such as each camera or each site."""

    rules: Mapping[str, Rule]

    def __call__(self, probs: Array, groups: NDArray[np.generic]) -> NDArray[np.bool_]:
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
    groups: NDArray[np.generic],
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


def _shares(counted: Values, groups: Groups | None) -> tuple[Numbers, int]:
    if groups is None:
        return counted.astype(np.float64), int(np.count_nonzero(counted))
    sizes = groups.sums(counted)
    return counted / np.maximum(sizes, 1)[groups.codes], int(np.count_nonzero(sizes))


def _recall(answers: Answers, level: float, labelled: bool, groups: Groups | None) -> float:
    held = answers.present.sum(1)
    weights, count = _shares(held > 0 if labelled else answers.judged, groups)
    budget = level * (count + 1) - 1
    if budget < 0:
        return 0.0
    scores, lost = _steps(answers.probs, answers.present, held, weights)
    # At t = scores[i] everything below it is missed.
    allowed = int(np.flatnonzero(np.r_[0.0, lost.cumsum()] <= budget * (1 + 1e-12))[-1])
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


def _lowest(scores: Floats, losses: Numbers, budget: float) -> float:
    """Return the lowest threshold with losses within the budget; each hangs on a score."""
    # At t just above scores[i] everything above it is lost.
    raised = np.r_[losses[::-1].cumsum()[::-1], 0.0]
    allowed = int((raised <= budget * (1 + 1e-12)).argmax())
    return just_above(scores[allowed - 1]) if allowed else 0.0


def _steps(
    probs: Floats, chosen: NDArray[np.bool_], held: Values, weights: Numbers
) -> tuple[Floats, Numbers]:
    rows, _ = np.nonzero(chosen)
    return _summed(probs[chosen], weights[rows] / held[rows])


def _summed(values: Floats, losses: Numbers) -> tuple[Floats, Numbers]:
    scores, bin_of = np.unique(values, return_inverse=True)
    return scores, np.bincount(bin_of, losses, len(scores)).astype(np.float64, copy=False)


def _rows_by_name(groups: NDArray[np.generic], count: int) -> list[tuple[str, Mask]]:
    names = np.asarray(groups)
    if names.shape != (count,):
        raise ValueError(f"groups must name each of the {count} images, got shape {names.shape}")
    names = names.astype(str)
    return [(name, names == name) for name in np.unique(names).tolist()]


# What a rule does to each label: shares of its images, with exact intervals.
#
#     precision = hits / chosen,  recall (sensitivity) = hits / present,
#     specificity = absent and not chosen / absent,  false alarms = absent and chosen / known,
#     F1 = 2 J / (1 + J),  J = hits / (chosen or present)
#
# Each is a share of images, so Clopper and Pearson's interval is exact; F1 rises with J, so its
# interval is that of J, mapped.
#
# Images that come in groups have the interval of as many independent images as these are worth
# (Korn and Graubard 1998; :meth:`labelwise.base.groups.Groups.worth`).

Share = tuple[float, float, float]  # value, lower, upper


@dataclass(frozen=True)
class LabelFigures:
    """Counts of a label's images, and its figures; None if undefined."""

    name: str
    known: int
    present: int
    chosen: int
    precision: Share | None
    recall: Share | None
    f1: Share | None
    specificity: Share | None
    false_alarms: Share | None

    def spec(self) -> dict[str, object]:
        return asdict(self)


def label_figures(
    sets: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    names: Sequence[str],
    confidence: float = 0.95,
    groups: Groups | None = None,
) -> tuple[LabelFigures, ...]:
    """Return the figures of each label under sets (N, K); both ends of an interval together hold
    with ``confidence``. ``groups`` are those the images come in.
    """
    answers = read_answers(to_numpy(sets).astype(np.float64), labels, observed)

    def share(hits: Values, counted: Values) -> Share | None:
        count = int(counted.sum())
        if count == 0:
            return None
        value = int(hits.sum()) / count
        worth = float(count) if groups is None else groups.worth(hits - value * counted, counted)
        number = int(hits.sum()) if groups is None else value * worth
        return value, *clopper_pearson(number, worth, (1 + confidence) / 2)

    figures = []
    for name, own in zip(names, answers.labels(), strict=True):
        present, absent, known = own.present[:, 0], own.absent[:, 0], own.known[:, 0]
        chosen = (own.probs[:, 0] == 1) & known
        jaccard, f1 = share(chosen & present, chosen | present), None
        if jaccard is not None:
            value, lower, upper = (2 * side / (1 + side) for side in jaccard)
            f1 = value, lower, upper
        count, carry, given = (int(side.sum()) for side in (known, present, chosen))
        precision, recall = share(chosen & present, chosen), share(chosen & present, present)
        others = share(absent & ~chosen, absent), share(absent & chosen, known)
        figures.append(LabelFigures(name, count, carry, given, precision, recall, f1, *others))
    return tuple(figures)
