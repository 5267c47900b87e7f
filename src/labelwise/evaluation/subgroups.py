"""Subgroups: the same figures for each site, camera or sex, which of them differ, and curves.

Each figure is a ratio of what photos add, R = sum a / sum b:

    log loss      a the photo's loss                 b its known labels
    wrong labels  a known labels decided wrong       b its known labels
    recall        a present labels that were chosen  b its present labels
    bias of p     a sum of p - y                     b its known labels

A subgroup differs from the others if a score test says so: under the hypothesis that both have the
ratio R of all photos, photo i moves the difference of the two ratios by

    u_i = +- (a_i - R b_i) / (sum of b on its side)

and  difference / sqrt(G / (G - 1) sum over groups of (sum of u within)^2)  follows Student's law
with as many degrees of freedom as the side with fewer groups has, less one. p-values are corrected
for all subgroups and figures together (Holm). A side that has one group alone cannot be compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log, sqrt
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.calibration import OF_LABEL, Known, Probabilities, curve_of, defined
from labelwise.evaluation.evaluation import ExclusiveRow, LabelCurves, SubgroupFigure, SubgroupRow
from labelwise.evaluation.intervals import Ends, mean_interval_by_group, row_sums, student_reach
from labelwise.metrics import average_precision, reliability
from labelwise.numeric.bounds import clopper_pearson, wilson
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import stdtr
from labelwise.predictions import Predictions
from labelwise.system.text import counted
from labelwise.taxonomy import AttributeColumns

# Of labels that exclude each other: photos whose set holds of the group what is there / photos with
# the group known, with Clopper and Pearson's interval, or the jackknife over groups of photos.


def settled_labels(
    predictions: Predictions, columns: AttributeColumns
) -> tuple[Predictions, list[int]]:
    """Return predictions whose labels obey the groups, and the clashes of each group."""
    if predictions.has_soft_labels():  # soft ones may share
        return predictions, [0] * len(columns.groups)
    clashes = []
    for group in columns.groups:
        predictions, settled = predictions.settled(columns.alone(group))
        clashes.append(int(settled.conflicts.sum()))
    return predictions, clashes


def clash_note(count: int) -> str:
    """Return what was done with labels that break a rule, if some do."""
    if not count:
        return ""
    return (
        f"{counted(count, 'photo')} with labels that exclude each other, or with none of a group "
        "that must have one: which is wrong nobody knows, so these labels are taken as unknown "
        "(labelwise data rules lists them)."
    )


def exclusive_rows(
    columns: AttributeColumns,
    names: Sequence[str],
    known: Known,
    sets: NDArray[Any] | None,
    clashes: Sequence[int],
) -> tuple[ExclusiveRow, ...]:
    """Return the figures of each group; ``clashes`` are its photos with labels that break it."""
    rows, chosen = [], known.present if sets is None else sets
    for group, clashing in zip(columns.groups, clashes, strict=True):
        seen, same = columns.right_rows(group, chosen, known.present, known.observed)
        total, right = int(seen.sum()), int(same.sum())
        facts = tuple(names[column] for column in group), group in columns.exactly_one, total
        if sets is None:
            rows.append(ExclusiveRow(*facts, clashes=clashing))
            continue
        share: float | None = right / total if total else None
        ends: Ends = (None, None)
        if known.groups is not None:
            ends = mean_interval_by_group(share, same.astype(float), seen, known.groups, 1.0)
        elif total:
            ends = clopper_pearson(right, total, 0.975)
        broken = int(columns.broken(group, chosen).sum())
        rows.append(ExclusiveRow(*facts, clashing, right, share, *ends, broken))
    return tuple(rows)


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Subgroups:
    """The subgroup (N,) of each photo by one column, such as its site."""

    by: str
    values: NDArray[np.str_]

    @classmethod
    def of(cls, by: str, values: Sequence[str] | NDArray[np.str_]) -> "Subgroups":
        return cls(by, np.asarray(list(values), dtype=str))

    def parts(self) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """Yield the name and the rows of each subgroup, in the order of their names."""
        names, codes = np.unique(self.values, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        ends = np.bincount(codes, minlength=len(names)).cumsum()
        yield from zip(names.tolist(), np.split(order, ends[:-1]), strict=True)

    def largest(self, most: int) -> list[tuple[str, NDArray[np.intp]]]:
        """Return at most so many subgroups, those with the most photos, in order of names."""
        parts = list(self.parts())
        return sorted(sorted(parts, key=lambda part: -len(part[1]))[:most], key=itemgetter(0))


def subgroup_rows(
    by: Subgroups, known: Known, final: Probabilities | None, sets: NDArray[Any] | None
) -> tuple[SubgroupRow, ...]:
    """Return the figures of each subgroup, and how sure it is that each differs from the others."""
    ratios = _ratios(known, final, sets)
    groups = known.groups or Groups(np.arange(len(by.values)), len(by.values))
    parts = list(by.parts())
    tests = product(parts, ratios.values())
    corrected = iter(holm([ratio_difference(*ratio, part[1], groups) for part, ratio in tests]))
    rows_of = []
    for name, rows in parts:
        own = groups.take(rows)
        figures = []
        for what, (added, weight) in ratios.items():
            sums, counts = added[rows], weight[rows]
            value = float(sums.sum() / counts.sum()) if counts.sum() > 0 else None
            highest = 1.0 if what != LOG_LOSS_BY else float("inf")
            low, high = mean_interval_by_group(value, sums, counts, own, highest)
            if what == BIAS and value is not None:  # may be negative: that of the mean plus one
                low, high = mean_interval_by_group(value + 1, sums + counts, counts, own, 2.0)
                if low is not None and high is not None:
                    low, high = low - 1, high - 1
            figures.append(SubgroupFigure(what, value, low, high, next(corrected)))
        rows_of.append(SubgroupRow(by.by, name, len(rows), own.count, tuple(figures)))
    return tuple(rows_of)


LOG_LOSS_BY, WRONG, RECALL, BIAS = "log loss", "wrong labels", "recall", "bias of p"


def _ratios(
    known: Known, final: Probabilities | None, sets: NDArray[Any] | None
) -> dict[str, tuple[Floats, Floats]]:
    """Return what each photo adds to the two sides of each figure."""
    ratios: dict[str, tuple[Floats, Floats]] = {}
    present = known.present
    seen = np.ones_like(present) if known.observed is None else known.observed
    if final is not None:
        loss, _, counts = row_sums(final, known)
        if np.isfinite(loss).all():
            ratios[LOG_LOSS_BY] = (loss, counts)
        off = np.where(seen, final.probs.astype(np.float64) - known.labels.astype(np.float64), 0.0)
        ratios[BIAS] = (off.sum(1), counts)
    if sets is not None:
        wrong = ((sets != present) & seen).sum(1).astype(np.float64)
        hits, truth = (side.sum(1).astype(np.float64) for side in (sets & present, present))
        ratios[WRONG], ratios[RECALL] = (wrong, seen.sum(1).astype(np.float64)), (hits, truth)
    return ratios


def ratio_difference(
    added: Floats, counted: Floats, rows: NDArray[np.intp], groups: Groups
) -> float | None:
    """Return the p-value of "these rows have the ratio of the others"; None if nobody can tell."""
    inside = np.zeros(len(added), bool)
    inside[rows] = True
    sides = [float(counted[side].sum()) for side in (inside, ~inside)]
    units = min(int(groups.counted(counted * side).sum()) for side in (inside, ~inside))
    if min(sides) == 0 or units < 2:
        return None
    ratio = added.sum() / counted.sum()
    moved = (added - ratio * counted) / np.where(inside, sides[0], -sides[1])
    difference = float(moved.sum())
    spread = float((groups.sums(moved) ** 2).sum()) * groups.count / (groups.count - 1)
    if spread == 0:
        return None
    return float(2 * stdtr(units - 1, -abs(difference) / sqrt(spread)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected so that any false alarm among them is as unlikely as one was.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    tests = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, number) in enumerate(tests):
        worst = max(worst, min(1.0, p * (len(tests) - rank)))
        adjusted[number] = worst
    return adjusted


# Curves of a label: ROC, precision and recall, reliability, of all photos and of each subgroup.
#
#     ROC   (absent photos at or above t / absent,  present ones at or above t / present)
#     PR    (present at or above t / present,       present at or above t / all at or above t)
#
# over every score t; equal scores are one point; at most 60 points are kept. With V the chance that
# a photo outscores one of the other side, and A its mean, the area's interval adds a quarter of a
# photo of V = 0 and one of V = 1 to each side of n photos (m on the smaller one), since DeLong's
# variance is far too small where few photos have the label:
#
#     A' = (m A + 1/4) / (m + 1/2)
#     variance = sum over sides of [sum (V - A')^2 + ((1 - A')^2 + A'^2) / 4] / (n (n + 1/2))
#     Wilson's interval of the share A of A' (1 - A') / variance photos
#
# Over groups of photos the variance is the sum of squares of what each group adds to
# U = (V - A) / photos of its side (Obuchowski, 1997), times G / (G - 1), on the log-odds scale.

LABELS = 24  # whose curves are kept, those of lowest average precision
LABELS_BY = 12  # whose curves are kept for each subgroup too
SUBGROUPS = 8  # the largest ones
POINTS = 60
ADDED = 0.25  # of a photo of either kind, to each side


def label_curves(
    scores: NDArray[Any],
    known: Known,
    names: Sequence[str],
    final: Probabilities | None,
    by: Subgroups | None,
    *,
    bins: int,
) -> tuple[LabelCurves, ...]:
    """Return the curves of the labels ranked worst, and of these by subgroup."""
    precision = average_precision(scores, known.present, known.observed).items
    order = [int(k) for k in np.argsort(precision, kind="stable") if not np.isnan(precision[k])]
    curves = []
    for position, k in enumerate(order[:LABELS]):
        parts = [("", np.arange(len(scores)))]
        if by is not None and position < LABELS_BY:
            parts += by.largest(SUBGROUPS)
        for name, chosen in parts:
            if known.observed is not None:
                chosen = chosen[known.observed[:, k][chosen]]
            score, present = scores[chosen, k], known.present[chosen, k]
            groups = known.groups.take(chosen) if known.groups and len(chosen) else None
            area, low, high = auroc_interval(score, present, groups) or (None, None, None)
            bins_of = mean = None
            if len(chosen):
                mean = defined(average_precision(score[:, None], present[:, None]).value)
            if final is not None and len(chosen):
                labels = known.labels[chosen, k : k + 1]
                counted = reliability(final.probs[chosen, k : k + 1], labels, bins=bins)
                bins_of = curve_of(counted, OF_LABEL)
            figures = names[k], name, len(chosen), int(present.sum()), area, low, high, mean
            curves.append(LabelCurves(*figures, *score_curve(score, present), bins_of))
    return tuple(curves)


def score_curve(
    scores: NDArray[Any], present: NDArray[np.bool_]
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """Return the points of the ROC curve and of the precision-recall curve, thinned."""
    order = np.argsort(-scores, kind="stable")
    score, hit = scores[order], present[order]
    last = np.flatnonzero(np.append(score[1:] != score[:-1], True)[: len(score)])
    hits = np.cumsum(hit)[last].astype(np.float64)
    alarms = np.asarray(last, np.float64) + 1 - hits
    positives, negatives = float(present.sum()), float((~present).sum())
    if not positives:
        return (), ()
    kept = hits > 0
    pr = _thinned(hits[kept] / positives, (hits / (hits + alarms))[kept])
    if not negatives:
        return (), pr
    return _thinned(np.append(0.0, alarms / negatives), np.append(0.0, hits / positives)), pr


def _thinned(x: Floats, y: Floats) -> tuple[tuple[float, float], ...]:
    """Return at most POINTS points, evenly spread along the line."""
    if len(x) > POINTS:
        length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
        wanted = np.linspace(0, length[-1], POINTS)
        kept = np.unique(np.minimum(np.searchsorted(length, wanted), len(x) - 1))
        x, y = x[kept], y[kept]
    return tuple(zip(x.tolist(), y.tolist(), strict=True))


def auroc_interval(
    scores: NDArray[Any], present: NDArray[np.bool_], groups: Groups | None = None
) -> tuple[float, float | None, float | None] | None:
    """Return the area under the ROC curve with its 95 % interval; None without both sides.

    The ends are None where they cannot be known: one photo or group on a side, or no group that
    moves the area.
    """
    high, low = np.sort(scores[present]), np.sort(scores[~present])
    if not len(high) or not len(low):
        return None
    placed = np.empty(len(scores))
    for mine, others in ((present, low), (~present, high)):
        below = np.searchsorted(others, scores[mine], side="left")
        upto = np.searchsorted(others, scores[mine], side="right")
        placed[mine] = (below + upto) / 2 / len(others)
    placed[~present] = 1 - placed[~present]
    area = float(placed[present].mean())
    if groups is None:
        fewer = min(len(high), len(low))
        if fewer < 2:
            return area, None, None
        centre = (fewer * area + ADDED) / (fewer + 2 * ADDED)
        added = ADDED * ((1 - centre) ** 2 + centre**2)
        variance = sum(
            (float(((placed[side] - centre) ** 2).sum()) + added) / (n * (n + 2 * ADDED))
            for side, n in ((present, len(high)), (~present, len(low)))
        )
        return area, *wilson(area, centre * (1 - centre) / variance)
    units = min(int(groups.counted(side).sum()) for side in (present, ~present))
    if units < 2 or not 0 < area < 1:
        return area, None, None
    by_group = np.zeros(groups.count)
    for side in (present, ~present):  # as the area moves where a group is left out
        parts = groups.sums(side)
        by_group += groups.sums((placed - area) * side) / (parts.sum() - parts)
    variance = float(by_group @ by_group) * (groups.count - 1) / groups.count
    if variance == 0:
        return area, None, None
    half = student_reach(by_group, units - 1) * sqrt(variance) / (area * (1 - area))
    middle = log(area / (1 - area))
    ends = (min(max(odds, -700.0), 700.0) for odds in (middle - half, middle + half))
    lowest, highest = (1 / (1 + exp(-odds)) for odds in ends)
    return area, lowest, highest
