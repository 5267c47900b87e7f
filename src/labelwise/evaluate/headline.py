"""Intervals of means over labels, from how much each image moves them.

    U_m      = d value / d weight of image m, at equal weights
    interval = value +- 1.96 sqrt(sum_m U_m^2)

This is the infinitesimal jackknife, the limit of the bootstrap over images, in one pass and with
the labels of an image kept together. For average precision with C_i entries, T_i positives and
precision P_i = T_i / C_i at or above positive i, n positives in all, ties grouped:

    U_m = [y_m (P_m - AP) + sum over positives i at or below m of (y_m - P_i) / C_i] / n

and for a mean sum x_m / sum w_m:  U_m = (x_m - mean w_m) / sum w.

mAP and F1 of a few hundred images are biased (a label of three positives ranks them too well) and
vary more than U says. Their interval is the jackknife's: with v_m the value without image m, each
image left out in closed form, and n_k positives of label k,

    se^2 = (N - 1) / N sum_m (v_m - mean v)^2,   bias = (N - 1) (mean v - value)
    interval = all of  logit(c) +- t se / (c (1 - c)),  c = value, value - bias, value - 1.5 bias
    t = Student's quantile of  (sum 1 / n_k)^2 / sum 1 / (n_k^2 (n_k - 1))  degrees of freedom

The bias is a guess that is too small where a label has one or two positives. The degrees are
Satterthwaite's, of a mean over labels whose variances go as 1 / n_k (n_k - 1 is 1/2 for one
positive): the error of few positives is itself a guess. In worlds of 3 to 80 labels with 2.5
positives or more on average it holds the truth of mAP in 93 to 99 % of draws of 50 to 1,000 images
(docs/report.md), where U alone gives 64 to 94 %. With 1.3 it held it in 91 %, so below two it is
not shown. A condition on single labels would make it worse: it shows
draws with more positives than usual, whose mAP is too high.

False alarms are a share of images, often a small one of few: Wilson's interval (what U says held
the truth in 88 % of draws of 100 images). Of images in groups it is that of as many images as they
are worth.

Photos that come in groups are left out by whole groups: :mod:`group_intervals`.

The headline: the few numbers to look at first, each with its 95 % interval.
"""

import math
from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.evaluate.calibration import Known, Probabilities, defined
from labelwise.evaluate.evaluation import (
    LOG_LOSS,
    Calibration,
    Figure,
    RankingFigures,
    Sets,
    ZeroLabel,
)
from labelwise.evaluate.group_intervals import (
    macro_f1_without_groups,
    mean_ap_without_groups,
    mean_interval_by_group,
    student_reach,
)
from labelwise.metrics import (
    Averaged,
    average_precision,
    calibration_interval,
    false_alarm_rate,
    top_k_sets,
)
from labelwise.numeric.bounds import wilson
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import stdtrit

__all__ = [
    "alarm_figure",
    "ap_influence",
    "ap_without",
    "calibration_figures",
    "degrees_of",
    "interval_of",
    "jackknife_interval",
    "macro_f1_without",
    "mean_ap_influence",
    "mean_ap_without",
    "mean_influence",
    "normal_interval",
    "ranking_figures",
    "row_sums",
    "set_figures",
    "zero_label_figures",
]

Floats = NDArray[np.float64]


def normal_interval(
    value: float | None, influence: Floats, highest: float = 1.0
) -> tuple[float | None, float | None]:
    """Return the 95 % interval, cut to [0, highest]; ``None`` twice where it is undefined."""
    if influence.size < 2:
        return None, None
    return interval_of(value, float(influence @ influence), highest)


def interval_of(
    value: float | None, variance: float, highest: float = 1.0
) -> tuple[float | None, float | None]:
    """Return the same from the sum of the squared influences."""
    if value is None:
        return None, None
    half = 1.959964 * sqrt(variance)
    return max(0.0, value - half), min(highest, value + half)


def mean_influence(sums: Floats, counts: NDArray[Any]) -> Floats:
    """Return U (N,) of sum of ``sums`` / sum of ``counts``, what each image adds to both."""
    total = float(counts.sum())
    if total == 0 or not np.isfinite(sums).all():
        return np.zeros(len(sums))  # the mean is undefined, and so is its interval
    influence: Floats = (sums - sums.sum() / total * counts) / total
    return influence


def ap_influence(scores: NDArray[np.floating[Any]], present: NDArray[np.bool_]) -> Floats:
    """Return U (n,) of one label's average precision; it needs at least one positive."""
    order = np.argsort(-scores, kind="stable")
    score, hit = scores[order], present[order]
    opens = np.append(True, score[1:] != score[:-1])
    first = np.flatnonzero(opens)[np.cumsum(opens) - 1]
    last = np.append(np.flatnonzero(opens)[1:], len(score))[np.cumsum(opens) - 1] - 1
    above = last + 1.0
    precision = np.cumsum(hit)[last] / above
    positives = int(hit.sum())
    value = precision[hit].sum() / positives
    share = np.where(hit, 1 / above, 0.0)
    below = np.cumsum(share[::-1])[::-1][first]
    loss = np.cumsum((share * precision)[::-1])[::-1][first]
    influence = np.empty(len(score))
    influence[order] = (hit * (precision - value + below) - loss) / positives
    return influence


def mean_ap_influence(scores: Tensor, present: Tensor, known: Tensor | None) -> Floats:
    """Return U (N,) of the mean average precision over the labels that have one."""
    total = np.zeros(len(scores))
    labels = 0
    for column in range(scores.shape[1]):
        rows = slice(None) if known is None else known[:, column].numpy()
        hits = present[:, column].numpy()[rows]
        if hits.any():
            total[rows] += ap_influence(scores[:, column].numpy()[rows], hits)
            labels += 1
    return total / max(labels, 1)


def ap_without(scores: NDArray[np.floating[Any]], present: NDArray[np.bool_]) -> Floats:
    """Return one label's average precision (n,) without each image; it needs a positive.

    Without the only positive it stays as it is.
    """
    order = np.argsort(-scores, kind="stable")
    score, hit = scores[order], present[order].astype(np.float64)
    opens = np.append(True, score[1:] != score[:-1])
    group = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)[group]
    last = np.append(np.flatnonzero(opens)[1:], len(score))[group] - 1
    above, hits = last + 1.0, np.cumsum(hit)[last]
    less = np.maximum(above - 1, 1)
    before = np.append(0.0, np.cumsum(hit * hits / above))[first]
    after = np.cumsum((hit * hits / less)[::-1])[::-1][first]
    fewer = np.cumsum((hit / less)[::-1])[::-1][first]
    left = hit.sum() - hit
    sums = before + after - hit * (fewer + (hits - 1) / less)
    values = np.empty(len(score))
    value = (hit * hits / above).sum() / hit.sum()
    values[order] = np.where(left > 0, sums / np.maximum(left, 1), value)
    return values


def mean_ap_without(scores: Tensor, present: Tensor, known: Tensor | None) -> Floats:
    """Return the mean average precision (N,) without each image, over the labels that have one."""
    total = np.zeros(len(scores))
    labels = 0
    for column in range(scores.shape[1]):
        rows = np.ones(len(scores), np.bool_) if known is None else known[:, column].numpy()
        hits = present[:, column].numpy()[rows]
        if hits.any():
            values = scores[:, column].numpy()[rows]
            total[rows] += ap_without(values, hits)
            total[~rows] += average_precision(values[:, None], hits[:, None]).value
            labels += 1
    return total / max(labels, 1)


def macro_f1_without(sets: Tensor, present: Tensor, known: Tensor | None) -> Floats:
    """Return the mean F1 (N,) without each image, over the labels present or chosen somewhere."""
    chosen = sets if known is None else sets & known
    both = (chosen & present).sum(0).double()
    size = chosen.sum(0).double() + present.sum(0).double()
    some = (size > 0).double() / max(int((size > 0).sum()), 1)
    score = torch.where(size > 0, 2 * both / size.clamp(min=1), 0.0)
    without_hit = torch.where(size > 2, (2 * both - 2) / (size - 2).clamp(min=1), score)
    without_miss = torch.where(size > 1, 2 * both / (size - 1).clamp(min=1), score)
    miss = some * (without_miss - score)
    hit = some * (without_hit - score) - 2 * miss
    changes = (chosen & present).double() @ hit + chosen.double() @ miss + present.double() @ miss
    values: Floats = ((some @ score) + changes).numpy()
    return values


def jackknife_interval(
    value: float | None, without: Floats, reach: float = 1.959964
) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a value in [0, 1] from its values without each image or group.

    ``reach`` is how many standard errors it goes each way.
    """
    rows = len(without)
    if value is None or rows < 2:
        return None, None
    error = sqrt((rows - 1) / rows * float(((without - without.mean()) ** 2).sum()))
    bias = (rows - 1) * (float(without.mean()) - value)
    ends = [value]
    for centre in (value, value - bias, value - 1.5 * bias):
        middle = min(max(centre, 1 / (2 * rows)), 1 - 1 / (2 * rows))
        odds, half = math.log(middle / (1 - middle)), reach * error / (middle * (1 - middle))
        ends += [(1 + math.tanh((odds + side * half) / 2)) / 2 for side in (-1, 1)]
    return min(ends), max(ends)


def degrees_of(positives: NDArray[np.int64]) -> float:
    """Return Satterthwaite's degrees of freedom of a mean over labels with so many positives."""
    counts = positives[positives > 0].astype(np.float64)
    spread = 1 / (counts**2 * np.maximum(counts - 1, 0.5))
    return float((1 / counts).sum() ** 2 / spread.sum())


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
    ranking: RankingFigures, scores: Tensor, known: Known, by_image: Averaged
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


def set_figures(part: Sets, sets: Tensor, known: Known) -> list[Figure]:
    """Return the macro F1 of the rule."""
    without = partial(macro_f1_without, sets, known.present, known.observed)
    by_group = partial(macro_f1_without_groups, sets, known.present, known.observed)
    how = f"Macro F1 of the rule: {part.rule}."
    return [_jackknifed("F1, mean over labels", part.macro_f1, without, by_group, known, how)]


def zero_label_figures(part: ZeroLabel, sets: Tensor | None, known: Known) -> list[Figure]:
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
        loss = -torch.where(known.present, answers.log_p, answers.log_q)
    else:  # 0 times an infinite logarithm is 0
        loss = -(_times(labels, answers.log_p) + _times(1 - labels, answers.log_q))
    square = (answers.probs - labels.to(answers.probs.dtype)) ** 2
    if mask is not None:
        loss, square = (part.masked_fill(~mask, 0.0) for part in (loss, square))
    counts = torch.full((len(labels),), labels.shape[1]) if mask is None else mask.sum(1)
    return [part.double().numpy() for part in (loss.sum(1), square.sum(1), counts)]


def _times(weight: Tensor, value: Tensor) -> Tensor:
    return torch.where(weight == 0, 0.0, weight * value)


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
    groups, positives = known.groups, known.present.sum(0).numpy()
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
    inside = (groups.sums(known.present.numpy()) > 0).sum(0)
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
