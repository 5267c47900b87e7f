"""Reliability: how often what was predicted came true, a bin of probabilities at a time.

    conf_b, acc_b  mean probability and share present of the n_b entries in bin b
    ECE = sum_b (n_b / n) |acc_b - conf_b|          expected
    ACE = mean over non-empty b of |acc_b - conf_b| average (not "adaptive")
    MCE = max  over non-empty b of |acc_b - conf_b| maximum

A perfectly calibrated model has a positive ECE on finite data, since |.| does not average out.
``debiased_ece`` takes part of that off: with g_b = acc_b - conf_b, s_b^2 = acc_b (1 - acc_b) / n_b,

    debiased ECE = 2 ECE - sum_b (n_b / n) E|g_b + s_b Z|,   Z standard normal (Kumar et al. 2019)

which can be below 0, and keeps 59 % of the error of a calibrated model. ``debiased_squared`` has no
bias left: sum_b (n_b / n) (g_b^2 - s_b^2) with n_b - 1 in place of n_b. Both take entries to be
independent. ``min_count`` leaves bins with fewer entries out of all of these.

Calibration of every label and of all together, from sums that add up over shards.

    sums = CalibrationSums.zeros(num_labels=80, edges=width_edges(10))
    sums.update(probs, labels, observed)        one batch, shard or rank after another
    sums.merge(other).pooled().ece()            all entries as one pool
    sums.per_label().ece()                      (K,)

The state is K x M counts (int64), probability sums and label sums (float64): exact past 2^24
entries, where float32 counts stop. ``where`` chooses the entries that count, for example each
image's top four. Labels may be soft, in [0, 1].
"""

from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.bins import Binning, cell_sums, edges_of, round_edges
from labelwise.metrics.lines import blocks, chosen, read
from labelwise.numeric.arrays import Array, check_shapes
from labelwise.numeric.special import erf

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reliability:
    """Sums over the entries in each bin: pooled (M,), or one row per label (K, M).

    Attributes:
        edges: (M + 1,) or (K, M + 1).
        counts: How many entries.
        confidence_sums: Sum of their probabilities.
        present_sums: Sum of their labels.
    """

    edges: Floats
    counts: NDArray[np.int64]
    confidence_sums: Floats
    present_sums: Floats

    @property
    def confidence(self) -> Floats:
        """Mean probability in each bin, NaN where it is empty."""
        return _ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Floats:
        """Share of present labels in each bin, NaN where it is empty."""
        return _ratio(self.present_sums, self.counts)

    def gaps(self, min_count: int = 1) -> Floats:
        """Return accuracy - confidence in each bin, NaN in bins with fewer entries."""
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        gap = _ratio(self.present_sums - self.confidence_sums, self.counts)
        return np.where(self.counts >= min_count, gap, np.nan)

    def ece(self, min_count: int = 1) -> Floats:
        """Return the expected calibration error, scalar or (K,); NaN without entries."""
        return self._weighted(np.abs(self.gaps(min_count)))

    def ace(self, min_count: int = 1) -> Floats:
        """Return the average calibration error, scalar or (K,)."""
        gaps = np.abs(self.gaps(min_count))
        return _ratio(np.nansum(gaps, axis=-1), (~np.isnan(gaps)).sum(axis=-1))

    def mce(self, min_count: int = 1) -> Floats:
        """Return the maximum calibration error, scalar or (K,)."""
        largest: Floats = np.fmax.reduce(np.abs(self.gaps(min_count)), axis=-1)
        return largest

    def debiased_ece(self, min_count: int = 1) -> Floats:
        """Return ECE less what chance alone adds to it, scalar or (K,)."""
        gaps = self.gaps(min_count)
        spread = np.sqrt(_ratio(self.accuracy * (1 - self.accuracy), self.counts))
        return self._weighted(2 * np.abs(gaps) - _mean_abs_normal(gaps, spread))

    def debiased_squared(self, min_count: int = 1) -> Floats:
        """Return the unbiased estimate of the mean squared gap, scalar or (K,)."""
        noise = _ratio(self.accuracy * (1 - self.accuracy), np.maximum(self.counts - 1, 1))
        return self._weighted(self.gaps(min_count) ** 2 - noise)

    def _weighted(self, values: Floats) -> Floats:
        """Return the mean over bins weighted by counts, bins with NaN left out."""
        weights = np.where(np.isnan(values), 0, self.counts)
        return _ratio((np.nan_to_num(values) * weights).sum(axis=-1), weights.sum(axis=-1))


def _ratio(numerator: Floats, denominator: NDArray[Any]) -> Floats:
    """Return the quotient, NaN where the denominator is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, np.divide(numerator, denominator), np.nan)


def _mean_abs_normal(mean: Floats, deviation: Floats) -> Floats:
    """Return E|mean + deviation Z|."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(deviation > 0, np.abs(mean) / deviation, np.inf)
    inside: Floats = erf(ratio / sqrt(2))
    return deviation * sqrt(2 / pi) * np.exp(-(ratio**2) / 2) + np.abs(mean) * inside


UPDATE_ENTRIES = 2**20  # well above K x M, which each block costs once


@dataclass(frozen=True)
class CalibrationSums:
    """Counts, probability sums and label sums of every label and bin, each (K, M).

    ``edges`` are (M + 1,), or (K, M + 1) for bins of each label's own.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    confidence_sums: NDArray[np.float64]
    present_sums: NDArray[np.float64]

    @classmethod
    def zeros(cls, num_labels: int, edges: NDArray[np.float64]) -> "CalibrationSums":
        """Return the sums of no entries."""
        shape = (num_labels, edges.shape[-1] - 1)
        if edges.ndim == 2 and len(edges) != num_labels:
            raise ValueError(f"edges must be (M + 1,) or ({num_labels}, M + 1), got {edges.shape}")
        return cls(edges, np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape))

    def update(
        self,
        probs: Array,
        labels: Array,
        observed: Array | None = None,
        where: Array | None = None,
    ) -> None:
        """Add the entries of (N, K) arrays that are observed and chosen by ``where``."""
        rows, columns = check_shapes(probs=probs, labels=labels, observed=observed, where=where)
        if columns != len(self.counts):
            raise ValueError(f"probs must have {len(self.counts)} columns, got {columns}")
        edges = round_edges(self.edges, probs)
        for part in blocks(rows, columns, UPDATE_ENTRIES):
            keep = chosen(part, observed=observed, where=where)
            prob, label = read(probs, part, "image"), read(labels, part, "image")
            counts, confidence, present = cell_sums(prob, label, keep, edges, "label")
            np.add(self.counts, counts, out=self.counts)
            np.add(self.confidence_sums, confidence, out=self.confidence_sums)
            np.add(self.present_sums, present, out=self.present_sums)

    def merge(self, other: "CalibrationSums") -> "CalibrationSums":
        """Return the sums over the entries of both."""
        if not np.array_equal(self.edges, other.edges) or self.counts.shape != other.counts.shape:
            raise ValueError(
                "sums must have the same labels and edges to be merged, "
                f"got {self.counts.shape} and {other.counts.shape} with edges "
                f"{self.edges.tolist()} and {other.edges.tolist()}"
            )
        return CalibrationSums(
            self.edges,
            self.counts + other.counts,
            self.confidence_sums + other.confidence_sums,
            self.present_sums + other.present_sums,
        )

    def per_label(self) -> Reliability:
        """Return the reliability of every label, (K, M)."""
        return Reliability(self.edges, self.counts, self.confidence_sums, self.present_sums)

    def pooled(self) -> Reliability:
        """Return the reliability of all labels as one pool, (M,)."""
        if self.edges.ndim == 2:
            raise ValueError(f"pooling needs bins shared by all labels, got {self.edges.shape}")
        return Reliability(
            self.edges,
            self.counts.sum(axis=0),
            self.confidence_sums.sum(axis=0),
            self.present_sums.sum(axis=0),
        )


def reliability(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
    binning: Binning = "width",
) -> Reliability:
    """Return the reliability of all chosen entries as one pool, (M,)."""
    return _sums(probs, labels, observed, where, bins, binning, per_label=False).pooled()


def label_reliability(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
    binning: Binning = "width",
) -> Reliability:
    """Return the reliability of every label, (K, M); bins of equal mass are each label's own."""
    return _sums(probs, labels, observed, where, bins, binning, per_label=True).per_label()


def _sums(
    probs: Array,
    labels: Array,
    observed: Array | None,
    where: Array | None,
    bins: int,
    binning: Binning,
    per_label: bool,
) -> CalibrationSums:
    _, columns = check_shapes(probs=probs, labels=labels, observed=observed, where=where)
    edges = edges_of(probs, observed, where, bins, binning, per_label)
    sums = CalibrationSums.zeros(columns, edges)
    sums.update(probs, labels, observed, where)
    return sums
