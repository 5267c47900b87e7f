"""Bootstrap intervals for metrics that are functions of sums over images.

Images, not entries, are drawn with replacement, because the labels of one image go together. The
metric of a draw needs only the sum of the drawn images' rows, so all draws are one matrix product.

The interval is the basic one, [2 v - q_high, 2 v - q_low] for the value v and the draws'
quantiles: a draw of ECE lies above the ECE it was drawn from, and this puts it back. Where that
would exclude the value itself, the interval reaches up (or down) to it. It is cut to
[lowest, highest].

Is it calibrated? Two tests of "each label is present with the probability given".

Both allow the labels of one image to depend on each other, because they take what an image adds
as one draw: under the null each u_i and d_i below has mean zero whatever the dependence.

    Spiegelhalter  u_i = sum_k (y - p) (1 - 2 p),  z = sum_i u_i / sqrt(sum_i u_i^2)
    bins           d_i = sum of (y - p) by bin,    chi2 = d' V^- d,  d = sum_i d_i,
                   V = sum_i d_i d_i', with rank(V) degrees of freedom

Spiegelhalter's z asks whether the Brier score is what the probabilities promise: it sees over- and
underconfidence, with its sign (positive: worse than promised, overconfident), but not a shift that
cancels about 1/2. The bins see any gap that a reliability curve shows. Neither says the gap is
large: with many images a tiny one is significant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.metrics.bins import Binning, edges_of, image_cells, width_edges
from labelwise.metrics.calibration import Reliability
from labelwise.metrics.lines import blocks, chosen, read
from labelwise.numeric.arrays import Array

__all__ = [
    "BootstrapInterval",
    "CalibrationTest",
    "bootstrap",
    "calibration_interval",
    "calibration_test",
]

DRAWN_ENTRIES = 2**20


@dataclass(frozen=True)
class BootstrapInterval:
    """A value and the bounds that hold it with the given confidence."""

    value: float
    low: float
    high: float
    level: float
    draws: int


def bootstrap(
    sums: NDArray[Any],
    metric: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    lowest: float = -np.inf,
    highest: float = np.inf,
) -> BootstrapInterval:
    """Return the interval of ``metric``, which maps sums over images (D, S) to values (D,).

    ``sums`` holds what each image adds, (N, S).
    """
    if not 0 < level < 1 or draws < 1 or not len(sums):
        raise ValueError(
            "level must lie in (0, 1) and draws and images be at least 1, "
            f"got level={level}, draws={draws}, images={len(sums)}"
        )
    rows = np.asarray(sums, dtype=np.float64)
    value = metric(rows.sum(axis=0, keepdims=True))[0]
    if np.isnan(value):  # nothing to measure, in any draw
        return BootstrapInterval(np.nan, np.nan, np.nan, level, draws)
    random = np.random.default_rng(seed)
    values = []
    for part in blocks(draws, len(rows), DRAWN_ENTRIES):
        drawn = random.integers(len(rows), size=(len(range(draws)[part]), len(rows)))
        times = np.stack([np.bincount(images, minlength=len(rows)) for images in drawn])
        values.append(metric(times.astype(np.float64) @ rows))
    tail = (1 - level) / 2
    low, high = 2 * value - np.nanquantile(np.concatenate(values), [1 - tail, tail])
    low, high = np.clip([min(low, value), max(high, value)], lowest, highest)
    return BootstrapInterval(float(value), float(low), float(high), level, draws)


def calibration_interval(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    metric: Literal["ece", "ace", "mce"] = "ece",
    bins: int = 10,
    binning: Binning = "width",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> BootstrapInterval:
    """Return the bootstrap interval of a pooled calibration error; bins stay as they are."""
    edges = edges_of(probs, observed, where, bins, binning)
    counts, confidence, present = image_cells(probs, labels, observed, where, edges)

    def errors(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        count, sum_p, sum_y = np.split(sums, 3, axis=-1)
        drawn = Reliability(edges, count.astype(np.int64), sum_p, sum_y)
        return {"ece": drawn.ece, "ace": drawn.ace, "mce": drawn.mce}[metric]()

    if metric not in ("ece", "ace", "mce"):
        raise ValueError(f"metric must be 'ece', 'ace' or 'mce', got {metric!r}")
    sums = np.concatenate([counts, confidence, present], axis=1)
    return bootstrap(sums, errors, draws=draws, level=level, seed=seed, lowest=0.0, highest=1.0)


@dataclass(frozen=True)
class CalibrationTest:
    """Statistics and p-values; a small p-value speaks against calibration.

    ``impossible`` counts entries that were certain and wrong; one refutes calibration.
    """

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
    z = _standardised(scores)
    chi2, degrees = _quadratic((present - confidence)[used])
    return CalibrationTest(
        spiegelhalter_z=z,
        spiegelhalter_p=0.0 if impossible else erfc(abs(z) / sqrt(2)),
        chi2=chi2,
        degrees=degrees,
        chi2_p=0.0 if impossible else _chi2_tail(chi2, degrees),
        num_images=int(used.sum()),
        impossible=impossible,
    )


def _brier_surprise(
    probs: Array, labels: Array, observed: Array | None, where: Array | None
) -> tuple[NDArray[np.float64], int]:
    """Return sum_k (y - p)(1 - 2 p) of every image, and how many entries were impossible."""
    rows, columns = probs.shape
    scores, impossible = np.zeros(rows), 0
    for part in blocks(rows, columns):
        p = read(probs, part, "image").astype(np.float64)
        y = read(labels, part, "image").astype(np.float64)
        keep = chosen(part, observed=observed, where=where)
        surprise, wrong = (y - p) * (1 - 2 * p), ((p == 0) & (y > 0)) | ((p == 1) & (y < 1))
        if keep is not None:
            surprise, wrong = np.where(keep, surprise, 0.0), wrong & keep
        scores[part] = surprise.sum(axis=1)
        impossible += int(wrong.sum())
    return scores, impossible


def _standardised(draws: NDArray[np.float64]) -> float:
    """Return sum / sqrt(sum of squares), 0 if nothing ever varies."""
    scale = sqrt(draws @ draws)
    return float(draws.sum() / scale) if scale > 0 else 0.0


def _quadratic(draws: NDArray[np.float64]) -> tuple[float, int]:
    """Return d' V^- d and the rank of V, for draws (n, M)."""
    scale = np.sqrt((draws**2).sum(axis=0))
    unit = draws[:, scale > 0] / scale[scale > 0]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    solid = values > 1e-9
    along = vectors[:, solid].T @ unit.sum(axis=0)
    return float((along**2 / values[solid]).sum()), int(solid.sum())


def _chi2_tail(chi2: float, degrees: int) -> float:
    """Return P(chi-squared > chi2); 1 without degrees of freedom."""
    if degrees == 0:
        return 1.0
    half = torch.tensor([degrees / 2, chi2 / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
