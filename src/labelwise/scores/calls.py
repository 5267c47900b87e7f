"""How many detections of each label are right, by site: from some that a person checked.

A detection of label k with the log-odds u is right with probability

    p = sigma(a_k u + b_k)

where (a_k, b_k) is the most probable pair after the checked detections of the label, drawn to the
pair of all labels together: a normal prior around it with the standard deviations 0.5 a and 1.5.
Labels with few checked detections so take what the others have in common, and pay for it in width.
With C_k the inverse Hessian (times the design effect of the recordings, where these are alike),
the count of a cell, label k at site s, is

    count    = right ones among the checked + sum of p over the others
    variance = g' C_k g + sum of p (1 - p) + rho (sum over pairs of one recording of s_i s_j)
    g        = sum of p (1 - p) (u, 1),            s = sqrt(p (1 - p))

and its interval is taken on the log-odds of the share. rho is the sum of products of the errors
(right - p) over pairs of checked detections of a label in one recording, divided by the sum of
s_i s_j over them, and not below 0: a recording whose rain was taken for a bird is wrong throughout.
That holds if scores mean the same at every site, but for what recordings differ in, and the checked
detections were drawn at random among those of like score. Nothing of the kind is needed for
``answers``: then a cell is counted by its own checked detections, drawn at random within it
(:mod:`labelwise.decide.estimate`). Either way what is counted are detections that the
program reported; calls that it missed are not among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Answered, estimate_count
from labelwise.errors import DataError
from labelwise.numeric.groups import Groups
from labelwise.numeric.logistic import fit_slope_and_offset
from labelwise.numeric.special import expit, ndtri

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
CallMethod = Literal["calibrated", "answers"]
LIMIT = 15.0  # log-odds beyond it are taken as it
SPREAD_OFFSET, SPREAD_SLOPE, LEAST_SLOPE = 1.5, 0.5, 0.05


@dataclass(frozen=True)
class CallCount:
    """How many of ``detections`` of a label are right in one part, with its interval."""

    label: str
    part: str
    detections: int
    checked: int
    right: int
    count: float
    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True, eq=False)
class CallModel:
    """Slope and offset (K, 2) of each label's logistic curve, and their covariance (K, 2, 2)."""

    weights: Floats
    covariance: Floats

    def probs(self, odds: Floats, label: Codes) -> Floats:
        """Return the probability (N,) that each detection is right."""
        u = np.clip(odds, -LIMIT, LIMIT)
        return np.asarray(expit(self.weights[label, 0] * u + self.weights[label, 1]))


def fit_calls(
    odds: Floats, label: Codes, correct: Floats, labels: int, groups: Codes | None = None
) -> CallModel:
    """Return the curves of the labels, fitted to checked detections (n,)."""
    if not len(odds):
        raise DataError("a count needs detections that a person has checked, got none")
    u = np.clip(odds, -LIMIT, LIMIT)
    shared, _ = fit_slope_and_offset(u, correct, 1 / np.array([1.0, 5.0]) ** 2)
    center = np.array([max(float(shared[0]), LEAST_SLOPE), float(shared[1])])
    precision = 1 / np.array([SPREAD_SLOPE * center[0], SPREAD_OFFSET]) ** 2
    weights = np.tile(center, (labels, 1))
    covariance = np.tile(np.diag(1 / precision), (labels, 1, 1))
    for k in np.unique(label):
        rows = np.flatnonzero(label == k)
        own = u[rows]
        weights[k], covariance[k] = fit_slope_and_offset(own, correct[rows], precision, center)
        if groups is not None:
            missed = correct[rows] - expit(weights[k, 0] * own + weights[k, 1])
            moved = missed[:, None] * np.stack([own, np.ones_like(own)], 1)
            covariance[k] *= _design_effect(moved, Groups.of(groups[rows]), covariance[k])
    return CallModel(weights, covariance)


def _design_effect(moved: Floats, groups: Groups, covariance: Floats) -> float:
    """Return how much larger the variance is because detections of a recording are alike."""
    if groups.are_photos or groups.count < 2:
        return 1.0
    together = groups.sums(moved)
    alone = float(np.einsum("ni,ij,nj->", moved, covariance, moved))
    grouped = float(np.einsum("ni,ij,nj->", together, covariance, together))
    return max(1.0, grouped / alone) if alone > 0 else 1.0


def _likeness(missed: Floats, spread: Floats, recording: Codes) -> float:
    """Return how much the errors of detections of one recording go together, from 0 to 1."""
    groups = Groups.of(recording)
    products = groups.sums(missed) ** 2 - groups.sums(missed**2)
    pairs = groups.sums(spread) ** 2 - groups.sums(spread**2)
    return min(max(0.0, float(products.sum() / pairs.sum())), 1.0) if pairs.sum() > 0 else 0.0


def count_calls(
    odds: Floats,
    label: Codes,
    names: Sequence[str],
    correct: Floats,
    part: Codes,
    parts: Sequence[str],
    *,
    groups: Codes | None = None,
    method: CallMethod = "calibrated",
    confidence: float = 0.95,
) -> list[CallCount]:
    """Return the count of each label in each part that has detections of it."""
    known = np.flatnonzero(~np.isnan(correct))
    model = fit_calls(
        odds[known],
        label[known],
        correct[known],
        len(names),
        None if groups is None else groups[known],
    )
    probs = model.probs(odds, label)
    cell = label * len(parts) + part
    total = len(names) * len(parts)
    sizes = np.bincount(cell, minlength=total)
    checked = np.bincount(cell[known], minlength=total)
    right = np.asarray(np.bincount(cell[known], correct[known], total), np.float64)
    if method == "answers":
        bounds = _answered(probs, cell, correct, sizes, confidence)
    else:
        together = None
        if groups is not None:
            same = label * (int(groups.max()) + 1) + groups
            spread = np.sqrt(probs * (1 - probs))[known]
            rho = _likeness(correct[known] - probs[known], spread, same[known])
            together = (rho, groups)
        bounds = _calibrated(model, odds, probs, correct, cell, sizes, right, confidence, together)
    return [
        CallCount(
            names[place // len(parts)],
            parts[place % len(parts)],
            int(sizes[place]),
            int(checked[place]),
            int(right[place]),
            *bounds[place],
        )
        for place in np.flatnonzero(sizes).tolist()
    ]


Bound = tuple[float, float, float, float, str]


def _calibrated(
    model: CallModel,
    odds: Floats,
    probs: Floats,
    correct: Floats,
    cell: Codes,
    sizes: NDArray[np.intp],
    right: Floats,
    confidence: float,
    together: tuple[float, Codes] | None,
) -> dict[int, Bound]:
    open_ = np.isnan(correct)
    cells, p = cell[open_], probs[open_]
    u = np.clip(odds[open_], -LIMIT, LIMIT)
    wobble = p * (1 - p)

    def summed(values: Floats) -> Floats:
        return np.asarray(np.bincount(cells, values, len(sizes)), np.float64)

    count = right + summed(p)
    slope = np.stack([summed(wobble * u), summed(wobble)], 1)
    per_label = len(sizes) // len(model.weights)
    cov = model.covariance[np.arange(len(sizes)) // per_label]
    variance = np.einsum("ni,nij,nj->n", slope, cov, slope) + slope[:, 1]
    if together is not None and together[0] > 0:
        rho, groups = together
        recordings, place = np.unique(
            cells * (int(groups.max()) + 1) + groups[open_], return_inverse=True
        )
        pairs = np.bincount(place, np.sqrt(wobble)) ** 2 - np.bincount(place, wobble)
        variance += rho * np.bincount(recordings // (int(groups.max()) + 1), pairs, len(sizes))
    reach = float(ndtri((1 + confidence) / 2))
    left = np.bincount(cells, minlength=len(sizes))
    found: dict[int, Bound] = {}
    for place in np.flatnonzero(sizes):
        low = high = float(count[place])
        if left[place]:
            share = (count[place] - right[place] + 0.5) / (left[place] + 1)
            error = np.sqrt(variance[place] + 0.25) / (left[place] + 1)
            middle, half = np.log(share / (1 - share)), reach * error / (share * (1 - share))
            low = right[place] + left[place] * float(expit(middle - half))
            high = right[place] + left[place] * float(expit(middle + half))
            low, high = min(low, float(count[place])), max(high, float(count[place]))
        found[int(place)] = (float(count[place]), low, high, confidence, "calibrated")
    return found


def _answered(
    probs: Floats, cell: Codes, correct: Floats, sizes: NDArray[np.intp], confidence: float
) -> dict[int, Bound]:
    order = np.argsort(cell, kind="stable")
    ends = np.cumsum(sizes)
    found: dict[int, Bound] = {}
    for place in np.flatnonzero(sizes):
        rows = order[ends[place] - sizes[place] : ends[place]]
        drawn = np.flatnonzero(~np.isnan(correct[rows]))
        part = Answered(probs[rows], drawn.astype(np.int64), correct[rows][drawn])
        one = estimate_count(part, confidence)
        found[int(place)] = (one.count, float(one.low), float(one.high), confidence, one.method)
    return found
