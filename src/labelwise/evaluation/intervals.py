"""The headline: the few numbers to look at first, each with its 95 % interval.

Intervals of means come from how much each image moves them (infinitesimal jackknife):

    U_m      = d value / d weight of image m, at equal weights
    interval = value +- 1.96 sqrt(sum_m U_m^2)

For average precision with C_i entries, T_i positives and precision P_i = T_i / C_i at or above
positive i, n positives in all, ties grouped, and for a mean sum x_m / sum w_m:

    U_m = [y_m (P_m - AP) + sum over positives i at or below m of (y_m - P_i) / C_i] / n
    U_m = (x_m - mean w_m) / sum w

mAP and F1 of a few hundred images are biased and vary more than U says. Their interval is the
jackknife's: with v_m the value without image m, in closed form, and n_k positives of label k,

    se^2 = (N - 1) / N sum_m (v_m - mean v)^2,   bias = (N - 1) (mean v - value)
    interval = all of  logit(c) +- t se / (c (1 - c)),  c = value, value - bias, value - 1.5 bias
    t = Student's quantile of  (sum 1 / n_k)^2 / sum 1 / (n_k^2 (n_k - 1))  degrees of freedom

(n_k - 1 is 1/2 for one positive). With fewer than two positives a label it is not shown. False
alarms, a share of images, have Wilson's interval. Coverage of all of them: evidence/report.md.

Photos that come in groups are left out by whole groups,

    se^2 = (G - 1) / G sum_g (v_g - mean v)^2,        v_g the figure without group g

with Student's quantiles of G - 1 degrees of freedom, or fewer where few groups carry the variance
(:func:`labelwise.base.groups.freedom_of`). Of more than 200 groups, whole ones are put together
by chance. False alarms then have the interval of as many images as the groups are worth.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Floats, Mask, Numbers, Values
from labelwise.base.bounds import wilson
from labelwise.base.groups import Groups, freedom_of
from labelwise.base.special import stdtrit
from labelwise.base.text import counted
from labelwise.evaluation.calibration import Known, Probabilities, defined
from labelwise.evaluation.evaluation import (
    LOG_LOSS,
    Calibration,
    Figure,
    RankingFigures,
    Sets,
    ZeroLabel,
)
from labelwise.metrics import (
    Averaged,
    average_precision,
    calibration_interval,
    false_alarm_rate,
    top_k_sets,
)
from labelwise.metrics.scoring import weighted

Ends = tuple[float | None, float | None]

LEAST_POSITIVES = 2  # per label; on fewer there is no interval
FEW_GROUPS = 5
MANY_RARE = 0.1  # share of labels with positives in few groups above which there is no interval
SMOOTH = "Interval: infinitesimal jackknife over images."
BY_GROUP = "Interval: jackknife over {:,} groups of images."
CALIBRATED_ABOVE = 0.05  # p-values of a calibrated model that are ordinary


# How the interval of a headline figure is found by its name and value: its ends, and in words.
Interval = Callable[..., tuple[Ends, str]]


def headline(
    interval: Interval,
    ranking: RankingFigures,
    part: Calibration | None,
    sets: Sets | None,
    zero: ZeroLabel | None,
) -> tuple[Figure, ...]:
    """Return the figures to look at first."""
    figures: list[Figure] = []

    def add(
        what: str, name: str, value: float | None, how: str, *bins: int | None, **more: Any
    ) -> None:
        ends, words = interval(what, value, *bins)
        figures.append(Figure(name, value, f"{how} {words}", *ends, **more))

    add("mean_ap", "mAP over labels", ranking.map_class, f"mAP@class: {ranking.how}")
    how = (
        "mAP@sample: average precision over the labels of each image; "
        f"{ranking.undefined_rows:,} images without a known positive left out."
    )
    add("image_ap", "mAP over images", ranking.map_sample, how)
    if part is not None:
        bins = len(part.pooled.counts)
        for name, curve, k in (
            ("ECE, all entries", part.pooled, None),
            (f"ECE, top {part.k}", part.top_k, part.k),
        ):
            how = f"Expected calibration error, {bins} equal-width bins, {curve.entries}."
            add("ece", name, curve.ece, how, bins, k, better="lower")
        nats = {"better": "lower", "percent": False}
        how = "Mean over known entries of −log of the truth's probability, in nats."
        add("log_loss", LOG_LOSS, part.log_loss, how, **nats)
        how = "Mean over known entries of the squared error of the probability."
        add("brier", "Brier score", part.brier, how, **nats)
    if sets is not None:
        how = f"Macro F1 of the rule: {sets.rule}."
        add("mean_f1", "F1, mean over labels", sets.macro_f1, how)
    if zero is not None and zero.false_alarms is not None:
        how = f"Share of the {zero.rows:,} images without labels that the rule labels."
        add("alarms", "False alarms", zero.false_alarms, how, better="lower")
    return tuple(figures)


@dataclass(frozen=True, eq=False)
class RowIntervals:
    """Intervals from all rows: raw scores (N, K), what is known, probabilities and sets."""

    scores: Floats
    known: Known
    by_image: Averaged
    final: Probabilities | None
    sets: Mask | None  # (N, K), None where no rule decides

    def __call__(
        self, what: str, value: float | None, bins: int = 10, k: int | None = None
    ) -> tuple[Ends, str]:
        if what == "mean_ap":
            return self._left_out(value, self.scores, mean_ap_without, mean_ap_without_groups)
        if what == "mean_f1" and self.sets is not None:
            return self._left_out(value, self.sets, macro_f1_without, macro_f1_without_groups)
        if what == "image_ap":
            return self._smooth(value, *_items_sums(self.by_image), 1.0)
        if what == "ece":
            return self._ece(value, bins, k)
        if what == "alarms" and self.sets is not None:
            alarms = false_alarm_rate(self.sets, self.known.present, self.known.observed)
            return self._alarms(value or 0.0, *_items_sums(alarms))
        sums = self.row_sums[("log_loss", "brier").index(what)]
        return self._smooth(value, sums, self.row_sums[2], math.inf)

    def _ece(self, value: float | None, bins: int, k: int | None) -> tuple[Ends, str]:
        if self.final is None:
            return (None, None), ""
        probs, known = self.final.probs, self.known
        where = None if k is None else top_k_sets(probs, k)
        given = probs, known.labels, known.observed
        interval = calibration_interval(*given, where=where, bins=bins, groups=known.groups)
        over = "images" if known.groups is None else f"{known.groups.count:,} groups of images"
        shown = interval.value if value is None else value  # the same but for rounding
        ends = defined(min(interval.low, shown)), defined(max(interval.high, shown))
        return ends, (
            f"Interval: the errors that a test over {over} does not reject; "
            f"{_calibrated(interval.p_value)}."
        )

    def _alarms(self, value: float, hits: Numbers, counts: Numbers) -> tuple[Ends, str]:
        groups = self.known.groups
        if groups is None:
            return wilson(value, float(counts.sum())), OF_SHARE
        worth = groups.worth(hits - value * counts, counts)
        return wilson(value, worth), (
            "Interval: Wilson's, of as many independent images as these are worth, "
            f"{worth:.0f}, by {groups.count:,} groups."
        )

    @cached_property
    def row_sums(self) -> list[Numbers]:
        """What each image adds to the log loss, to the Brier score and to their count."""
        return [] if self.final is None else row_sums(self.final, self.known)

    def _smooth(
        self, value: float | None, sums: Numbers, counts: Numbers, highest: float
    ) -> tuple[Ends, str]:
        groups = self.known.groups
        if groups is None:
            influence = mean_influence(sums, counts)
            enough = value if len(influence) > 1 else None
            return interval_of(enough, float(influence @ influence), highest), SMOOTH
        ends = mean_interval_by_group(value, sums, counts, groups, highest)
        return ends, BY_GROUP.format(groups.count)

    def _left_out(
        self,
        value: float | None,
        given: Values,
        without: Callable[..., Numbers],
        without_groups: Callable[..., Numbers],
    ) -> tuple[Ends, str]:
        """Return the interval from ``given``, scores or sets, less each image or group."""
        own = given, self.known.present, self.known.observed
        groups, positives = self.known.groups, self.known.present.sum(0)
        labels = len(positives)
        if groups is None:
            if positives.sum() < LEAST_POSITIVES * labels:
                return (None, None), (
                    f"No interval: {labels:,} labels have {int(positives.sum()):,} positives "
                    f"here, fewer than {LEAST_POSITIVES} each on average."
                )
            reach = float(stdtrit(degrees_of(positives), 0.975))
            return jackknife_interval(value, without(*own), reach), (
                "Interval: jackknife over images on the log-odds scale, with its bias."
            )
        inside = (groups.sums(self.known.present) > 0).sum(0)
        rare, labels = int(((inside > 0) & (inside < FEW_GROUPS)).sum()), int((inside > 0).sum())
        if rare > MANY_RARE * labels:
            return (None, None), (
                f"No interval: {rare:,} of {labels:,} labels have fewer than {FEW_GROUPS} groups "
                "with a positive here, too few for one."
            )
        values = without_groups(*own, groups)
        ends = jackknife_interval(value, values, student_reach(values - values.mean()))
        return ends, BY_GROUP.format(groups.count)


OF_SHARE = "Interval: Wilson's, of a share of images."


def _calibrated(p_value: float) -> str:
    if math.isnan(p_value):
        return "whether it is calibrated cannot be tested"
    shown = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
    if p_value > CALIBRATED_ABOVE:
        return f"a calibrated model shows as much by chance ({shown}), so that 0 is within"
    return f"a calibrated model seldom shows as much ({shown})"


def row_sums(answers: Probabilities, known: Known) -> list[Numbers]:
    """Return what each image adds to the log loss, to the Brier score and to their count."""
    labels, mask = known.labels, known.observed
    if known.shares is None:
        loss = -np.where(known.present, answers.log_p, answers.log_q)
    else:  # 0 times an infinite logarithm is 0
        loss = -(weighted(labels, answers.log_p) + weighted(1 - labels, answers.log_q))
    square = (answers.probs - labels.astype(answers.probs.dtype)) ** 2
    if mask is not None:
        loss, square = (np.where(mask, values, 0.0) for values in (loss, square))
    counts = np.full(len(labels), labels.shape[1]) if mask is None else mask.sum(1)
    return [loss.sum(1, dtype=float), square.sum(1, dtype=float), counts.astype(float)]


def _items_sums(items: Averaged) -> tuple[Numbers, Numbers]:
    return np.nan_to_num(items.items), 1.0 * ~np.isnan(items.items)


def interval_of(value: float | None, variance: float, highest: float = 1.0) -> Ends:
    """Return the 95 % interval, cut to [0, highest], from the sum of the squared influences."""
    if value is None:
        return None, None
    half = 1.959964 * sqrt(variance)
    return max(0.0, value - half), min(highest, value + half)


def mean_influence(sums: Numbers, counts: Values) -> Numbers:
    """Return U (N,) of sum of ``sums`` / sum of ``counts``, what each image adds to both."""
    total = float(counts.sum())
    if total == 0 or not np.isfinite(sums).all():
        return np.zeros(len(sums))  # the mean is undefined, and so is its interval
    influence: Numbers = (sums - sums.sum() / total * counts) / total
    return influence


def _ties(scores: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the order of falling scores, and in it the first and last place with each score."""
    order = np.argsort(-scores, kind="stable")
    opens = np.append(True, scores[order][1:] != scores[order][:-1])
    starts, tie = np.flatnonzero(opens), np.cumsum(opens) - 1
    return order, starts[tie], np.append(starts[1:], len(scores))[tie] - 1


def ap_influence(scores: Floats, present: Mask) -> Numbers:
    """Return U (n,) of one label's average precision; it needs at least one positive."""
    order, first, last = _ties(scores)
    hit, above = present[order], last + 1.0
    precision = np.cumsum(hit)[last] / above
    positives = int(hit.sum())
    value = precision[hit].sum() / positives
    share = np.where(hit, 1 / above, 0.0)
    below = np.cumsum(share[::-1])[::-1][first]
    loss = np.cumsum((share * precision)[::-1])[::-1][first]
    influence = np.empty(len(scores))
    influence[order] = (hit * (precision - value + below) - loss) / positives
    return influence


def labels_with_positives(
    scores: Floats, present: Mask, known: Mask | None
) -> Iterator[tuple[Mask, Floats, Mask]]:
    """Yield the known rows of each label that has a positive, their scores and positives."""
    for column in range(scores.shape[1]):
        rows = np.ones(len(scores), np.bool_) if known is None else known[:, column]
        hits = present[:, column][rows]
        if hits.any():
            yield rows, scores[:, column][rows], hits


def mean_ap_influence(scores: Floats, present: Mask, known: Mask | None) -> Numbers:
    """Return U (N,) of the mean average precision over the labels that have one."""
    total, labels = np.zeros(len(scores)), 0
    for rows, values, hits in labels_with_positives(scores, present, known):
        labels += 1
        total[rows] += ap_influence(values, hits)
    return total / max(labels, 1)


def ap_without(scores: Floats, present: Mask) -> Numbers:
    """Return one label's average precision (n,) without each image; the only positive stays."""
    order, first, last = _ties(scores)
    hit, above = present[order].astype(np.float64), last + 1.0
    hits = np.cumsum(hit)[last]
    less = np.maximum(above - 1, 1)
    before = np.append(0.0, np.cumsum(hit * hits / above))[first]
    after = np.cumsum((hit * hits / less)[::-1])[::-1][first]
    fewer = np.cumsum((hit / less)[::-1])[::-1][first]
    left = hit.sum() - hit
    sums = before + after - hit * (fewer + (hits - 1) / less)
    values = np.empty(len(scores))
    value = (hit * hits / above).sum() / hit.sum()
    values[order] = np.where(left > 0, sums / np.maximum(left, 1), value)
    return values


def mean_ap_without(scores: Floats, present: Mask, known: Mask | None) -> Numbers:
    """Return the mean average precision (N,) without each image, over the labels that have one."""
    total, labels = np.zeros(len(scores)), 0
    for rows, values, hits in labels_with_positives(scores, present, known):
        labels += 1
        total[rows] += ap_without(values, hits)
        total[~rows] += average_precision(values[:, None], hits[:, None]).value
    return total / max(labels, 1)


def macro_f1_without(sets: Mask, present: Mask, known: Mask | None) -> Numbers:
    """Return the mean F1 (N,) without each image, over the labels present or chosen somewhere."""
    chosen = sets if known is None else sets & known
    both = (chosen & present).sum(0).astype(np.float64)
    size = (chosen.sum(0) + present.sum(0)).astype(np.float64)
    some = (size > 0).astype(np.float64) / max(int((size > 0).sum()), 1)
    score = np.where(size > 0, 2 * both / size.clip(1), 0.0)
    without_hit = np.where(size > 2, (2 * both - 2) / (size - 2).clip(1), score)
    without_miss = np.where(size > 1, 2 * both / (size - 1).clip(1), score)
    miss = some * (without_miss - score)
    hit = some * (without_hit - score) - 2 * miss
    pairs = (chosen & present, hit), (chosen, miss), (present, miss)
    first, *others = (side.astype(np.float64) @ change for side, change in pairs)
    return np.asarray(some @ score + sum(others, first))


def jackknife_interval(value: float | None, without: Numbers, reach: float = 1.959964) -> Ends:
    """Return the interval, +- ``reach`` errors, from values without each image or group."""
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


MOST_LEFT_OUT = 200  # groups that are left out one after another
FEW = 15  # groups; of fewer, intervals of a skewed mean are too narrow


def student_reach(moved: Numbers, most: float = np.inf) -> float:
    """Return how many standard errors a 95 % interval reaches, for at most ``most`` degrees."""
    return float(stdtrit(min(freedom_of(moved), most), 0.975))


def mean_interval_by_group(
    value: float | None, sums: Numbers, counts: Values, groups: Groups, highest: float
) -> Ends:
    """Return the interval of sum of ``sums`` / sum of ``counts`` (N,), cut to [0, highest]."""
    added, weights = groups.sums(sums), groups.sums(counts)
    added, weights = added[weights > 0], weights[weights > 0]
    count = len(weights)
    if value is None or count < 2 or not np.isfinite(added).all():
        return None, None
    without = (added.sum() - added) / (weights.sum() - weights)
    moved = without - without.mean()
    half = student_reach(moved) * float(np.sqrt((count - 1) / count * (moved**2).sum()))
    return max(0.0, value - half), min(highest, value + half)


def mean_ap_without_groups(
    scores: Floats, present: Mask, known: Mask | None, groups: Groups
) -> Numbers:
    """Return mean AP without each group (G,); a label's only group leaves its AP as it is."""
    parts = groups.bundled(MOST_LEFT_OUT)
    total, labels = np.zeros(parts.count), 0
    for rows, values, hits in labels_with_positives(scores, present, known):
        labels += 1
        order = np.argsort(-values, kind="stable")
        score, hit, code = values[order], hits[order], parts.codes[rows][order]
        without = np.full(parts.count, average_precision(score[:, None], hit[:, None]).value)
        for group in np.unique(code):
            kept = code != group
            if hit[kept].any():
                without[group] = _ranked_ap(score[kept], hit[kept])
        total += without
    return total / max(labels, 1)


def _ranked_ap(score: NDArray[np.floating], hit: Mask) -> float:
    """Return the average precision of falling scores, equal ones as one threshold."""
    last = np.flatnonzero(np.append(score[1:] != score[:-1], True))
    right = np.cumsum(hit)[last].astype(np.float64)
    return float((np.diff(right, prepend=0.0) * right / (last + 1)).sum() / right[-1])


def macro_f1_without_groups(
    sets: Mask, present: Mask, known: Mask | None, groups: Groups
) -> Numbers:
    """Return the mean F1 without each group (G,), over the labels present or chosen somewhere."""
    parts = groups.bundled(MOST_LEFT_OUT)
    chosen = sets if known is None else sets & known
    both, size = 2 * parts.sums(chosen & present), parts.sums(chosen.astype(np.int64) + present)
    some = size.sum(0) > 0
    left = size.sum(0)[some] - size[:, some]
    whole = both.sum(0)[some] / size.sum(0)[some]
    hits = both.sum(0)[some] - both[:, some]
    scores = np.where(left > 0, hits / np.maximum(left, 1), whole)
    return np.asarray(scores.mean(1)) if some.any() else np.zeros(parts.count)


def groups_note(groups: Groups | None, influence: Numbers | None) -> tuple[str, ...]:
    """Return a sentence on groups and how alike theirs are, by ``influence`` (N,) on log loss."""
    if groups is None:
        return ()
    least, most = int(groups.sizes.min()), int(groups.sizes.max())
    sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    text = (
        f"The {len(groups):,} photos come in {counted(groups.count, 'group')} of {sizes}: "
        "intervals and tests leave out or draw whole groups"
    )
    effect = None if influence is None else groups.design_effect(influence)
    if effect is not None and effect > 1:
        text += (
            f". By the log loss, photos of a group resemble each other: design effect {effect:.1f},"
            f" as good as {len(groups) / effect:,.0f} independent photos, and intervals over "
            f"photos would be {1 / np.sqrt(effect):.0%} as wide as they have to be"
        )
    few = f"With fewer than {FEW} groups these intervals may be too narrow."
    return (f"{text}.", *([few] if 1 < groups.count < FEW else []))
