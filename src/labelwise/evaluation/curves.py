"""Curves of a label: ROC, precision and recall, reliability, of all photos and of each subgroup.

    ROC   (absent photos at or above t / absent,  present ones at or above t / present)
    PR    (present at or above t / present,       present at or above t / all at or above t)

over every score t; equal scores are one point; at most 60 points are kept. With V the chance that a
photo outscores one of the other side, and A its mean, the area's interval adds a quarter of a photo
of V = 0 and one of V = 1 to each side of n photos (m on the smaller one), since DeLong's variance
is far too small where few photos have the label:

    A' = (m A + 1/4) / (m + 1/2)
    variance = sum over sides of [sum (V - A')^2 + ((1 - A')^2 + A'^2) / 4] / (n (n + 1/2))
    Wilson's interval of the share A of A' (1 - A') / variance photos

Over groups of photos the variance is the sum of squares of what each group adds to
U = (V - A) / photos of its side (Obuchowski, 1997), times G / (G - 1), on the log-odds scale.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.calibration import Known, Probabilities, curve_of, defined
from labelwise.evaluation.evaluation import LabelCurves
from labelwise.evaluation.intervals import student_reach
from labelwise.evaluation.subgroups import Subgroups
from labelwise.metrics import average_precision, reliability
from labelwise.numeric.bounds import wilson
from labelwise.numeric.groups import Groups

LABELS = 24  # whose curves are kept, those of lowest average precision
LABELS_BY = 12  # whose curves are kept for each subgroup too
SUBGROUPS = 8  # the largest ones
POINTS = 60
ADDED = 0.25  # of a photo of either kind, to each side

Floats = NDArray[np.float64]


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
        parts: list[tuple[str, NDArray[np.intp] | None]] = [("", None)]
        if by is not None and position < LABELS_BY:
            parts += by.largest(SUBGROUPS)
        for name, rows in parts:
            chosen = np.arange(len(scores)) if rows is None else rows
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
                bins_of = curve_of(counted, "known entries of the label")
            count = int(present.sum())
            figures = names[k], name, len(chosen), count, area, low, high, mean
            curves.append(LabelCurves(*figures, *score_curve(score, present), bins_of))
    return tuple(curves)


def score_curve(
    scores: NDArray[Any], present: NDArray[np.bool_]
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """Return the points of the ROC curve and of the precision-recall curve, thinned."""
    order = np.argsort(-scores, kind="stable")
    score, hit = scores[order], present[order]
    changes = score[1:] != score[:-1]
    last = np.flatnonzero(np.append(changes, True)[: len(score)])
    hits = np.cumsum(hit)[last].astype(np.float64)
    alarms = np.asarray(last, np.float64) + 1 - hits
    positives, negatives = float(present.sum()), float((~present).sum())
    roc: tuple[tuple[float, float], ...] = ()
    pr: tuple[tuple[float, float], ...] = ()
    if positives and negatives:
        x, y = np.append(0.0, alarms / negatives), np.append(0.0, hits / positives)
        roc = _thinned(x, y)
    if positives:
        kept = hits > 0
        pr = _thinned(hits[kept] / positives, (hits / (hits + alarms))[kept])
    return roc, pr


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
    ends = [
        1 / (1 + exp(-max(min(odds, 700.0), -700.0))) for odds in (middle - half, middle + half)
    ]
    return area, ends[0], ends[1]
