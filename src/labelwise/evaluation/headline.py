"""The headline: the few numbers to look at first, each with its 95 % interval.

Intervals of means over labels are those of :mod:`jackknife`. False alarms are a share of images,
often a small one of few: Wilson's interval (what U of the jackknife says held the truth in 88 % of
draws of 100 images). Of images in groups it is that of as many images as they are worth.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.calibration import Known, Probabilities, defined
from labelwise.evaluation.evaluation import (
    LOG_LOSS,
    Calibration,
    Figure,
    RankingFigures,
    Sets,
    ZeroLabel,
)
from labelwise.evaluation.group_intervals import (
    macro_f1_without_groups,
    mean_ap_without_groups,
    mean_interval_by_group,
    student_reach,
)
from labelwise.evaluation.jackknife import (
    degrees_of,
    jackknife_interval,
    macro_f1_without,
    mean_ap_without,
    mean_influence,
    normal_interval,
)
from labelwise.metrics import (
    Averaged,
    calibration_interval,
    false_alarm_rate,
    top_k_sets,
)
from labelwise.numeric.bounds import wilson
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import stdtrit

Floats = NDArray[np.float64]

LEAST_POSITIVES = 2  # per label; on fewer there is no interval
FEW_GROUPS = 5
MANY_RARE = 0.1  # share of labels with positives in few groups above which there is no interval
SMOOTH = "Interval: infinitesimal jackknife over images."
OF_SHARE = "Interval: Wilson's, of a share of images."
OF_GROUPS = (
    "Interval: Wilson's, of as many independent images as these are worth, {:.0f}, by {:,} groups."
)
LEFT_OUT = "Interval: jackknife over images on the log-odds scale, with its bias."
BY_TESTS = "Interval: the errors that a test over images does not reject"
BY_GROUP = "Interval: jackknife over {:,} groups of images."
BY_GROUP_TESTS = "Interval: the errors that a test over {:,} groups of images does not reject"
FALSE_ALARMS = "False alarms"
ALARMS = "Share of the {:,} images without labels that the rule labels."
CALIBRATED_ABOVE = 0.05  # p-values of a calibrated model that are ordinary


def ranking_figures(
    ranking: RankingFigures, scores: NDArray[Any], known: Known, by_image: Averaged
) -> list[Figure]:
    """Return mAP over labels and over images."""
    return [
        _jackknifed(
            "mAP over labels",
            ranking.map_class,
            partial(mean_ap_without, scores, known.present, known.observed),
            partial(mean_ap_without_groups, scores, known.present, known.observed),
            known,
            f"mAP@class: {ranking.how}",
        ),
        _smooth(
            "mAP over images",
            ranking.map_sample,
            *_items_sums(by_image),
            known.groups,
            "mAP@sample: average precision over the labels of each image; "
            f"{ranking.undefined_rows:,} images without a known positive left out.",
        ),
    ]


def calibration_figures(
    part: Calibration, answers: Probabilities, known: Known, bins: int
) -> list[Figure]:
    """Return calibration errors and proper scores."""
    loss, square, counts = row_sums(answers, known)
    errors = partial(
        calibration_interval,
        answers.probs,
        known.labels,
        known.observed,
        bins=bins,
        groups=known.groups,
    )
    tests = BY_TESTS if known.groups is None else BY_GROUP_TESTS.format(known.groups.count)
    surest = top_k_sets(answers.probs, part.k)
    figures = []
    for name, curve, found in (
        ("ECE, all entries", part.pooled, errors()),
        (f"ECE, top {part.k}", part.top_k, errors(where=surest)),
    ):
        how = (
            f"Expected calibration error, {bins} equal-width bins, {curve.entries}. "
            f"{tests}; {_calibrated(found.p_value)}."
        )
        shown = found.value if curve.ece is None else curve.ece  # the same but for rounding
        low, high = defined(min(found.low, shown)), defined(max(found.high, shown))
        figures.append(Figure(name, curve.ece, how, low, high, "lower"))
    score = partial(_smooth, better="lower", percent=False)
    return [
        *figures,
        score(
            LOG_LOSS,
            part.log_loss,
            loss,
            counts,
            known.groups,
            "Mean over known entries of −log of the truth's probability, in nats.",
        ),
        score(
            "Brier score",
            part.brier,
            square,
            counts,
            known.groups,
            "Mean over known entries of the squared error of the probability.",
        ),
    ]


def _calibrated(p_value: float) -> str:
    """Return in words whether the error could be chance."""
    if math.isnan(p_value):
        return "whether it is calibrated cannot be tested"
    shown = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
    if p_value > CALIBRATED_ABOVE:
        return f"a calibrated model shows as much by chance ({shown}), so that 0 is within"
    return f"a calibrated model seldom shows as much ({shown})"


def set_figures(part: Sets, sets: NDArray[Any], known: Known) -> list[Figure]:
    """Return the macro F1 of the rule."""
    without = partial(macro_f1_without, sets, known.present, known.observed)
    by_group = partial(macro_f1_without_groups, sets, known.present, known.observed)
    how = f"Macro F1 of the rule: {part.rule}."
    return [_jackknifed("F1, mean over labels", part.macro_f1, without, by_group, known, how)]


def zero_label_figures(part: ZeroLabel, sets: NDArray[Any] | None, known: Known) -> list[Figure]:
    """Return the false-alarm rate, where there are images without labels and a rule."""
    if sets is None or part.false_alarms is None:
        return []
    alarms, counts = _items_sums(false_alarm_rate(sets, known.present, known.observed))
    if known.groups is None:
        return [alarm_figure(part.false_alarms, part.rows, float(counts.sum()))]
    worth = known.groups.worth(alarms - part.false_alarms * counts, counts)
    low, high = wilson(part.false_alarms, worth)
    how = f"{ALARMS.format(part.rows)} {OF_GROUPS.format(worth, known.groups.count)}"
    return [Figure(FALSE_ALARMS, part.false_alarms, how, low, high, better="lower")]


def alarm_figure(value: float, rows: int, counted: float) -> Figure:
    """Return the false-alarm rate of ``rows`` images without labels, of which so many count."""
    low, high = wilson(value, counted)
    how = f"{ALARMS.format(rows)} {OF_SHARE}"
    return Figure(FALSE_ALARMS, value, how, low, high, better="lower")


def row_sums(answers: Probabilities, known: Known) -> list[NDArray[np.float64]]:
    """Return what each image adds to the log loss, to the Brier score and to their count."""
    labels, mask = known.labels, known.observed
    if known.shares is None:
        loss = -np.where(known.present, answers.log_p, answers.log_q)
    else:  # 0 times an infinite logarithm is 0
        loss = -(_times(labels, answers.log_p) + _times(1 - labels, answers.log_q))
    square = (answers.probs - labels.astype(answers.probs.dtype)) ** 2
    if mask is not None:
        loss, square = (np.where(mask, part, 0.0) for part in (loss, square))
    counts = np.full(len(labels), labels.shape[1]) if mask is None else mask.sum(1)
    return [loss.sum(1, dtype=float), square.sum(1, dtype=float), counts.astype(float)]


def _times(weight: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):
        return np.where(weight == 0, 0.0, weight * value)


def _items_sums(items: Averaged) -> tuple[Floats, Floats]:
    return np.nan_to_num(items.items), 1.0 * ~np.isnan(items.items)


def _jackknifed(
    name: str,
    value: float | None,
    without: Callable[[], Floats],
    without_groups: Callable[[Groups], Floats],
    known: Known,
    how: str,
) -> Figure:
    groups, positives = known.groups, known.present.sum(0)
    labels = len(positives)
    if groups is None:
        if positives.sum() < LEAST_POSITIVES * labels:
            how += (
                f" No interval: {labels:,} labels have {int(positives.sum()):,} positives here, "
                f"fewer than {LEAST_POSITIVES} each on average."
            )
            return Figure(name, value, how, None, None)
        reach = float(stdtrit(degrees_of(positives), 0.975))
        low, high = jackknife_interval(value, without(), reach)
        return Figure(name, value, f"{how} {LEFT_OUT}", low, high)
    inside = (groups.sums(known.present) > 0).sum(0)
    rare, labels = int(((inside > 0) & (inside < FEW_GROUPS)).sum()), int((inside > 0).sum())
    if rare > MANY_RARE * labels:
        how += (
            f" No interval: {rare:,} of {labels:,} labels have fewer than {FEW_GROUPS} groups "
            "with a positive here, too few for one."
        )
        return Figure(name, value, how, None, None)
    values = without_groups(groups)
    low, high = jackknife_interval(value, values, student_reach(values - values.mean()))
    return Figure(name, value, f"{how} {BY_GROUP.format(groups.count)}", low, high)


def _smooth(
    name: str,
    value: float | None,
    sums: Floats,
    counts: Floats,
    groups: Groups | None,
    how: str,
    *,
    better: str = "higher",
    percent: bool = True,
) -> Figure:
    highest = 1.0 if percent else math.inf
    if groups is None:
        low, high = normal_interval(value, mean_influence(sums, counts), highest)
        return Figure(name, value, f"{how} {SMOOTH}", low, high, better, percent)
    low, high = mean_interval_by_group(value, sums, counts, groups, highest)
    words = BY_GROUP.format(groups.count)
    return Figure(name, value, f"{how} {words}", low, high, better, percent)
