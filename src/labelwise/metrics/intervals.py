"""Intervals for metrics that are functions of sums over images, and for calibration errors.

**Bootstrap.** Images are drawn with replacement, because the labels of one image go together. All
draws are one matrix product of sums. The interval is the basic one, [2 v - q_high, 2 v - q_low].

**Calibration errors** are positive for a perfect model too, so their interval is made of tests. Let
S (M,) be the sums of y - p by bin, V the covariance of what images add to S, and T the error as a
function of S, so that T(c S) = c T(S). Errors c T(S) are in the interval if

    P_c(T >= T(S)) > tail  and  P_c(T <= T(S)) > tail,   S* ~ N(c S, V)

and 0 is in it if P_0(T >= T(S)) > 1 - level, the p-value of "calibrated". With ``groups`` what a
whole group adds to S is one draw, and S* is drawn from Student's law.

**Tests** of "each label is present with the probability given", an image being one draw:

    Spiegelhalter  u_i = sum_k (y - p) (1 - 2 p),  z = sum_i u_i / sqrt(sum_i u_i^2)
    bins           d_i = sum of (y - p) by bin,    chi2 = d' V^- d,  d = sum_i d_i,
                   V = sum_i d_i d_i', with rank(V) degrees of freedom

z sees over- and underconfidence, with its sign, but not a shift that cancels about 1/2; the bins
see any gap that a reliability curve shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Literal

import numpy as np

from labelwise.base.arrays import Array, Numbers, Values
from labelwise.base.bounds import edge
from labelwise.base.groups import Groups
from labelwise.base.special import gammaincc
from labelwise.errors import require
from labelwise.metrics.calibration import Binning, edges_of, image_cells, width_edges
from labelwise.metrics.lines import blocks, entry_blocks

DRAWN_ENTRIES = 2**20
JUST_ABOVE_0 = 1e-9


@dataclass(frozen=True)
class BootstrapInterval:
    """A value and the bounds that hold it with the given confidence."""

    value: float
    low: float
    high: float
    level: float
    draws: int


def bootstrap(
    sums: Values,
    metric: Callable[[Numbers], Numbers],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    lowest: float = -np.inf,
    highest: float = np.inf,
) -> BootstrapInterval:
    """Return the interval of a ``metric`` of sums (D, S) over images, of what each adds (N, S)."""
    require(
        0 < level < 1 and draws >= 1 and len(sums),
        "level must lie in (0, 1) and draws and images be at least 1, "
        f"got level={level}, draws={draws}, images={len(sums)}",
    )
    rows = np.asarray(sums, dtype=np.float64)
    value = metric(rows.sum(axis=0, keepdims=True))[0]
    if np.isnan(value):  # nothing to measure, in any draw
        return BootstrapInterval(np.nan, np.nan, np.nan, level, draws)
    random = np.random.default_rng(seed)
    values = []
    for block in blocks(draws, len(rows), DRAWN_ENTRIES):
        drawn = random.integers(len(rows), size=(len(range(draws)[block]), len(rows)))
        times = np.stack([np.bincount(images, minlength=len(rows)) for images in drawn])
        values.append(metric(times.astype(np.float64) @ rows))
    tail = (1 - level) / 2
    low, high = 2 * value - np.nanquantile(np.concatenate(values), [1 - tail, tail])
    low, high = np.clip([min(low, value), max(high, value)], lowest, highest)
    return BootstrapInterval(float(value), float(low), float(high), level, draws)


@dataclass(frozen=True)
class CalibrationInterval:
    """A calibration error, its interval (from 0 if it may be chance), p-value of "calibrated"."""

    value: float
    low: float
    high: float
    level: float
    p_value: float


def calibration_interval(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    metric: Literal["ece", "ace", "mce"] = "ece",
    bins: int = 10,
    binning: Binning = "width",
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
    groups: Groups | None = None,
) -> CalibrationInterval:
    """Return the interval of a pooled calibration error by tests; a group of images is one draw."""
    if metric not in ("ece", "ace", "mce"):
        raise ValueError(f"metric must be 'ece', 'ace' or 'mce', got {metric!r}")
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"level must lie in (0, 1) and draws be at least 1, got {level}, {draws}")
    edges = edges_of(probs, observed, where, bins, binning)
    counts, confidence, present = image_cells(probs, labels, observed, where, edges)
    count, gaps = counts.sum(0), (present - confidence).astype(np.float64)
    if not count.any():
        return CalibrationInterval(np.nan, np.nan, np.nan, level, np.nan)

    def errors(sums: Numbers) -> Numbers:
        """Return what :class:`Reliability` says of sums (draws, M), in a third of the time."""
        apart = np.where(count > 0, np.abs(sums) / np.maximum(count, 1), 0.0)
        if metric == "mce":
            return np.asarray(apart.max(axis=1))
        weights = count if metric == "ece" else np.minimum(count, 1)
        return np.asarray((apart * weights).sum(axis=1) / weights.sum())

    total = gaps.sum(0)
    units = gaps[counts.any(axis=1)]
    if groups is not None:
        units = groups.sums(gaps)[groups.sums(counts).any(axis=1)]
    spread, random = _spread(units), np.random.default_rng(seed)
    value = float(errors(total[None])[0])
    chance = random.standard_normal((draws, spread.shape[1])) @ spread.T
    if groups is not None:
        degrees = max(len(units) - 1, 1)
        chance /= np.sqrt(random.chisquare(degrees, (draws, 1)) / degrees)
    if value == 0:  # no gap to multiply: what a calibrated model shows by chance
        high = float(np.quantile(errors(chance), level))
        return CalibrationInterval(value, value, high, level, 1.0)
    if not chance.any():
        return CalibrationInterval(value, value, value, level, 0.0)

    def share_above(times: float) -> float:
        return float((errors(times * total + chance) >= value).mean())

    tail, far = (1 - level) / 2, 1.0
    while share_above(far) < 1 - tail:
        far *= 2

    def crossing(share: float) -> float:
        """Return how many times the gaps more than a share of draws reach the value, at least."""
        return 0.0 if p_value > share else edge(lambda c: share_above(c) > share, 0.0, far, 40)

    p_value = share_above(0.0)
    low = 0.0 if p_value > 1 - level else max(crossing(tail), JUST_ABOVE_0)
    high = max(crossing(1 - tail), 1.0)
    return CalibrationInterval(value, min(low, 1.0) * value, min(high * value, 1.0), level, p_value)


def _spread(draws: Numbers) -> Numbers:
    """Return a root R (M, M) of the covariance R R' of the sum of draws (n, M)."""
    rows = len(draws)
    if rows < 2:
        return np.zeros((draws.shape[1],) * 2)
    around = draws - draws.mean(0)
    values, vectors = np.linalg.eigh(around.T @ around * (rows / (rows - 1)))
    return np.asarray(vectors * np.sqrt(np.clip(values, 0.0, None)))


@dataclass(frozen=True)
class CalibrationTest:
    """Statistics and p-values; ``impossible`` entries, certain and wrong, refute calibration."""

    spiegelhalter_z: float
    spiegelhalter_p: float
    chi2: float
    degrees: int
    chi2_p: float
    num_images: int
    impossible: int


def calibration_test(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
) -> CalibrationTest:
    """Return both tests over the chosen entries, in equal-width bins."""
    counts, confidence, present = image_cells(probs, labels, observed, where, width_edges(bins))
    used = counts.any(axis=1)
    scores, impossible = _brier_surprise(probs, labels, observed, where)
    scale = sqrt(scores @ scores)
    z = float(scores.sum() / scale) if scale > 0 else 0.0
    chi2, degrees = _quadratic((present - confidence)[used])
    tail = float(gammaincc(degrees / 2, chi2 / 2)) if degrees else 1.0
    return CalibrationTest(
        spiegelhalter_z=z,
        spiegelhalter_p=0.0 if impossible else erfc(abs(z) / sqrt(2)),
        chi2=chi2,
        degrees=degrees,
        chi2_p=0.0 if impossible else tail,
        num_images=int(used.sum()),
        impossible=impossible,
    )


def _brier_surprise(
    probs: Array, labels: Array, observed: Array | None, where: Array | None
) -> tuple[Numbers, int]:
    """Return sum_k (y - p)(1 - 2 p) of every image, and how many entries were impossible."""
    shape, impossible = (probs.shape[0], probs.shape[1]), 0
    scores = np.zeros(len(probs))
    for block, keep, sides in entry_blocks(shape, observed, where, probs, labels):
        p, y = (side.astype(np.float64) for side in sides)
        surprise, wrong = (y - p) * (1 - 2 * p), ((p == 0) & (y > 0)) | ((p == 1) & (y < 1))
        if keep is not None:
            surprise, wrong = np.where(keep, surprise, 0.0), wrong & keep
        scores[block] = surprise.sum(axis=1)
        impossible += int(wrong.sum())
    return scores, impossible


def _quadratic(draws: Numbers) -> tuple[float, int]:
    """Return d' V^- d and the rank of V, for draws (n, M)."""
    scale = np.sqrt((draws**2).sum(axis=0))
    unit = draws[:, scale > 0] / scale[scale > 0]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    solid = values > 1e-9
    along = vectors[:, solid].T @ unit.sum(axis=0)
    return float((along**2 / values[solid]).sum()), int(solid.sum())
