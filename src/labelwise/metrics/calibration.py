"""Reliability: how often what was predicted came true, a bin of probabilities at a time.

    conf_b, acc_b  mean probability and share present of the n_b entries in bin b
    ECE = sum_b (n_b / n) |acc_b - conf_b|          expected
    ACE = mean over non-empty b of |acc_b - conf_b| average (not "adaptive")
    MCE = max  over non-empty b of |acc_b - conf_b| maximum

A perfectly calibrated model has a positive ECE on finite data. ``debiased_ece`` takes part of that
off: with g_b = acc_b - conf_b, s_b^2 = acc_b (1 - acc_b) / n_b,

    debiased ECE = 2 ECE - sum_b (n_b / n) E|g_b + s_b Z|,   Z standard normal (Kumar et al. 2019)

which can be below 0, and keeps 59 % of the error of a calibrated model. ``debiased_squared`` has no
bias left: sum_b (n_b / n) (g_b^2 - s_b^2) with n_b - 1 in place of n_b. Both take entries to be
independent. ``min_count`` leaves bins with fewer entries out of all of these.

M right-closed bins (lo, hi] cover [0, 1], 0 in the first and 1 in the last: of equal width (edges
k / M) or of equal mass (edges at the k / M quantiles). Edges are rounded to the type of the
probabilities: 0.3 lies in (0.2, 0.3] in every precision. Sums add up over batches and shards:

    sums = CalibrationSums.zeros(num_labels=80, edges=width_edges(10))
    sums.update(probs, labels, observed)        one batch, shard or rank after another
    sums.merge(other).pooled().ece()            all entries as one pool
    sums.per_label().ece()                      (K,)

Counts are int64 and sums float64: exact past 2^24 entries. ``where`` chooses the entries that
count, for example each image's top four. Labels may be soft, in [0, 1].
"""

from dataclasses import dataclass
from math import pi, sqrt
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import (
    Array,
    Floats,
    Mask,
    Numbers,
    Values,
    as_mask,
    check_probabilities,
    check_shapes,
    is_tensor,
    present_labels,
    to_numpy,
    to_tensor,
)
from labelwise.base.bounds import edge
from labelwise.base.special import erf
from labelwise.errors import require
from labelwise.metrics.lines import By, chosen, entry_blocks

Binning: TypeAlias = Literal["width", "mass"]
LINEAR_SEARCH = 40  # up to so many edges, comparing with each beats a binary search


def width_edges(bins: int) -> Numbers:
    """Return the M + 1 edges of equal-width bins."""
    require(bins >= 1, f"bins must be at least 1, got {bins}")
    return np.arange(bins + 1) / bins


def mass_edges(
    probs: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
    per_label: bool = False,
) -> Numbers:
    """Return edges that split the chosen entries evenly, but for ties: (M + 1,) or (K, M + 1)."""
    _, columns = check_shapes(probs=probs, observed=observed, where=where)
    keep, values = chosen(slice(None), observed=observed, where=where), to_numpy(probs)
    if not per_label:
        return _quantiles(values if keep is None else values[keep], bins)
    rows = (slice(None) if keep is None else keep[:, k] for k in range(columns))
    edges = [_quantiles(values[kept, k], bins) for k, kept in enumerate(rows)]
    return np.array(edges).reshape(columns, bins + 1)


def edges_of(
    probs: Array,
    observed: Array | None,
    where: Array | None,
    bins: int,
    binning: Binning,
    per_label: bool = False,
) -> Numbers:
    """Return the edges of bins of equal width or of equal mass."""
    check_shapes(probs=probs, observed=observed, where=where)
    require(binning in ("width", "mass"), f"binning must be 'width' or 'mass', got {binning!r}")
    if binning == "width":
        return width_edges(bins)
    return mass_edges(probs, observed, where=where, bins=bins, per_label=per_label)


def _quantiles(values: Values, bins: int) -> Numbers:
    edges, ordered = width_edges(bins), np.sort(values, axis=None)
    if len(ordered):
        last = -(-len(ordered) * np.arange(1, bins) // bins) - 1
        edges[1:-1] = ordered[np.maximum(last, 0)]
    return edges


def round_edges(edges: Numbers, probs: Array) -> Floats:
    """Return the edges as the probabilities' own precision would hold them."""
    if is_tensor(probs):
        return to_numpy(to_tensor(edges).to(probs.dtype)) if probs.is_floating_point() else edges
    return to_numpy(edges.astype(probs.dtype)) if probs.dtype.kind == "f" else edges


def bin_of(
    probs: Floats, edges: Floats, line: NDArray[np.intp]
) -> NDArray[np.intp] | NDArray[np.uint8]:
    """Return the bin of every entry (n,): of edges (M + 1,), or of its line's among (L, M + 1)."""
    inner = edges[..., 1:-1]
    if inner.ndim == 1 and len(inner) > LINEAR_SEARCH:
        return np.asarray(np.searchsorted(inner, probs, side="left"))
    index = np.zeros(probs.shape, dtype=np.uint8 if inner.shape[-1] < 256 else np.intp)
    above = np.empty(probs.shape, dtype=np.bool_)
    for k in range(inner.shape[-1]):
        np.greater(probs, inner[k] if inner.ndim == 1 else inner[line, k], out=above)
        index += above.view(np.uint8)
    return index


CellSums: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]  # int64, float64 twice
UPDATE_ENTRIES = 2**20  # well above K x M, which each block costs once


def cell_sums(probs: Floats, labels: Values, keep: Mask | None, edges: Floats, by: By) -> CellSums:
    """Return counts, probability sums and label sums of the kept entries of (n, K).

    Each is (K, M), or (n, M) by image. Most entries of a multi-label problem lie in the first bin,
    so that one is summed along the lines and only the others are looked up one by one.
    """
    axis, columns = (0 if by == "label" else 1), probs.shape[1]
    known = probs.shape[axis] if keep is None else np.count_nonzero(keep, axis=axis)
    if keep is not None:
        probs = np.where(keep, probs, probs.dtype.type(0))
        labels = np.where(keep, labels, labels.dtype.type(0))
    check_probabilities(probs, "probs")
    check_probabilities(labels, "labels")
    shape = (probs.shape[1 - axis], edges.shape[-1] - 1)

    def cells(flat: NDArray[np.intp], values: Floats) -> NDArray[np.intp]:
        line = flat // columns
        if by == "label":
            line = flat - columns * line  # much faster than flat % columns
        return np.asarray(shape[1] * line + bin_of(values, edges, line))

    def sums(cell: NDArray[np.intp], weights: Values) -> Numbers:
        added = np.bincount(cell, weights, shape[0] * shape[1])
        return added.astype(np.float64, copy=False).reshape(shape)  # no entries: numpy gives ints

    high = np.flatnonzero(~(probs <= edges[..., 1]))
    above = probs.ravel()[high]
    cell = cells(high, above)
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    counts[:, 0] = known - counts.sum(axis=1)
    confidence = sums(cell, above)
    low = probs.copy()
    low.ravel()[high] = 0
    confidence[:, 0] = low.sum(axis=axis, dtype=np.float64)
    if by == "label" and labels.dtype in (np.bool_, np.uint8):
        present = sums(cell, labels.ravel()[high])
        present[:, 0] = np.count_nonzero(labels, axis=0) - present.sum(axis=1)
        return counts, confidence, present
    some = np.flatnonzero(labels != 0)  # much faster than on the numbers themselves
    return counts, confidence, sums(cells(some, probs.ravel()[some]), labels.ravel()[some])


def image_cells(
    probs: Array, labels: Array, observed: Array | None, where: Array | None, edges: Numbers
) -> CellSums:
    """Return the sums of each image's chosen entries by bin, each (N, M)."""
    shape = check_shapes(probs=probs, labels=labels, observed=observed, where=where)
    sums = CalibrationSums.zeros(shape[0], edges).sums
    rounded = round_edges(edges, probs)
    for block, keep, (prob, label) in entry_blocks(shape, observed, where, probs, labels):
        cells = cell_sums(prob, label, keep, rounded, "image")
        for total, added in zip(sums, cells, strict=True):
            total[block] = added
    return sums


@dataclass(frozen=True)
class Reliability:
    """Sums in each bin, pooled (M,) or per label (K, M); ``edges`` (M + 1,) or (K, M + 1)."""

    edges: Numbers
    counts: NDArray[np.int64]
    confidence_sums: Numbers
    present_sums: Numbers

    @property
    def sums(self) -> CellSums:
        return self.counts, self.confidence_sums, self.present_sums

    @property
    def confidence(self) -> Numbers:
        """Mean probability in each bin, NaN where it is empty."""
        return _ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Numbers:
        """Share of present labels in each bin, NaN where it is empty."""
        return _ratio(self.present_sums, self.counts)

    def row(self, column: int) -> "Reliability":
        return Reliability(self.edges, *(side[column] for side in self.sums))

    def gaps(self, min_count: int = 1) -> Numbers:
        """Return accuracy - confidence in each bin, NaN in bins with fewer entries."""
        require(min_count >= 1, f"min_count must be at least 1, got {min_count}")
        gap = _ratio(self.present_sums - self.confidence_sums, self.counts)
        return np.where(self.counts >= min_count, gap, np.nan)

    def ece(self, min_count: int = 1) -> Numbers:
        """Return the expected calibration error, scalar or (K,); NaN without entries."""
        return self._weighted(np.abs(self.gaps(min_count)))

    def ace(self, min_count: int = 1) -> Numbers:
        gaps = np.abs(self.gaps(min_count))
        return _ratio(np.nansum(gaps, axis=-1), (~np.isnan(gaps)).sum(axis=-1))

    def mce(self, min_count: int = 1) -> Numbers:
        largest: Numbers = np.fmax.reduce(np.abs(self.gaps(min_count)), axis=-1)
        return largest

    def debiased_ece(self, min_count: int = 1) -> Numbers:
        """Return ECE less what chance alone adds to it, scalar or (K,)."""
        gaps = self.gaps(min_count)
        spread = np.sqrt(_ratio(self.accuracy * (1 - self.accuracy), self.counts))
        return self._weighted(2 * np.abs(gaps) - _mean_abs_normal(gaps, spread))

    def debiased_squared(self, min_count: int = 1) -> Numbers:
        noise = _ratio(self.accuracy * (1 - self.accuracy), np.maximum(self.counts - 1, 1))
        return self._weighted(self.gaps(min_count) ** 2 - noise)

    def _weighted(self, values: Numbers) -> Numbers:
        """Return the mean over bins weighted by counts, bins with NaN left out."""
        weights = np.where(np.isnan(values), 0, self.counts)
        return _ratio((np.nan_to_num(values) * weights).sum(axis=-1), weights.sum(axis=-1))


def _ratio(numerator: Numbers, denominator: Values) -> Numbers:
    """Return the quotient, NaN where the denominator is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, np.divide(numerator, denominator), np.nan)


def _mean_abs_normal(mean: Numbers, deviation: Numbers) -> Numbers:
    """Return E|mean + deviation Z|."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(deviation > 0, np.abs(mean) / deviation, np.inf)
    inside: Numbers = erf(ratio / sqrt(2))
    return deviation * sqrt(2 / pi) * np.exp(-(ratio**2) / 2) + np.abs(mean) * inside


@dataclass(frozen=True)
class CalibrationSums(Reliability):
    """The reliability of every label, (K, M), to which batches add and which shards merge."""

    @classmethod
    def zeros(cls, num_labels: int, edges: Numbers) -> "CalibrationSums":
        shape = (num_labels, edges.shape[-1] - 1)
        if edges.ndim == 2 and len(edges) != num_labels:
            raise ValueError(f"edges must be (M + 1,) or ({num_labels}, M + 1), got {edges.shape}")
        return cls(edges, np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape))

    def update(
        self, probs: Array, labels: Array, observed: Array | None = None, where: Array | None = None
    ) -> None:
        shape = check_shapes(probs=probs, labels=labels, observed=observed, where=where)
        if shape[1] != len(self.counts):
            raise ValueError(f"probs must have {len(self.counts)} columns, got {shape[1]}")
        edges = round_edges(self.edges, probs)
        given = shape, observed, where, probs, labels
        for _, keep, (prob, label) in entry_blocks(*given, entries=UPDATE_ENTRIES):
            self.add(prob, label, keep, edges)

    def add(self, probs: Floats, labels: Values, keep: Mask | None, edges: Floats) -> None:
        """Add the kept entries of a block; ``edges`` as the probabilities' own type rounds them."""
        cells = cell_sums(probs, labels, keep, edges, "label")
        for total, added in zip(self.sums, cells, strict=True):
            total += added

    def merge(self, other: "CalibrationSums") -> "CalibrationSums":
        if not np.array_equal(self.edges, other.edges) or self.counts.shape != other.counts.shape:
            raise ValueError(
                f"sums must have the same labels and edges to be merged, got {self.counts.shape} "
                f"and {other.counts.shape}, edges {self.edges.tolist()} and {other.edges.tolist()}"
            )
        both = zip(self.sums, other.sums, strict=True)
        return CalibrationSums(self.edges, *(mine + others for mine, others in both))

    def per_label(self) -> Reliability:
        return self

    def pooled(self) -> Reliability:
        if self.edges.ndim == 2:
            raise ValueError(f"pooling needs bins shared by all labels, got {self.edges.shape}")
        return Reliability(self.edges, *(side.sum(axis=0) for side in self.sums))


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
    edges = edges_of(probs, observed, where, bins, binning)
    return _sums(probs, labels, observed, where, edges).pooled()


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
    edges = edges_of(probs, observed, where, bins, binning, per_label=True)
    return _sums(probs, labels, observed, where, edges).per_label()


def _sums(
    probs: Array, labels: Array, observed: Array | None, where: Array | None, edges: Numbers
) -> CalibrationSums:
    sums = CalibrationSums.zeros(probs.shape[1], edges)
    sums.update(probs, labels, observed, where)
    return sums


def set_sums(
    log_p: Array,
    log_q: Array,
    sets: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    bins: int = 10,
) -> CalibrationSums:
    """Return the sums behind :func:`set_reliability`, those of one label."""
    shape = check_shapes(log_p=log_p, log_q=log_q, sets=sets, labels=labels, observed=observed)
    sums = CalibrationSums.zeros(1, width_edges(bins))
    matrices = entry_blocks(shape, observed, None, sets, labels, log_p, log_q)
    for _, known, (given_set, label, with_it, without) in matrices:
        chosen_set, present = as_mask(given_set, "sets"), present_labels(label, known)
        logs = np.where(chosen_set, with_it, without)
        stated = np.exp(logs.sum(axis=1, dtype=np.float64)).clip(0, 1)
        right = (chosen_set == present).all(axis=1)
        complete = None if known is None else np.all(known, axis=1, keepdims=True)
        sums.update(stated[:, None], right[:, None], complete)
    return sums


def set_reliability(
    log_p: Array,
    log_q: Array,
    sets: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    bins: int = 10,
) -> Reliability:
    """Return how often a whole label set is right against its stated probability, (M,).

    P(S) = product over k in S of p_k times product over the others of 1 - p_k, labels being
    independent given the image. Images whose labels are not all observed are left out.
    """
    return set_sums(log_p, log_q, sets, labels, observed, bins=bins).pooled()


SMOOTH_CELLS = 4096


@dataclass(frozen=True)
class SmoothSums:
    """Sums of y - p in narrow cells of p, and the number of entries: what smooth ECE needs."""

    residuals: Numbers
    count: int

    @staticmethod
    def of(
        probs: Array, labels: Array, observed: Array | None = None, where: Array | None = None
    ) -> "SmoothSums":
        shape = check_shapes(probs=probs, labels=labels, observed=observed, where=where)
        residuals, count = np.zeros(SMOOTH_CELLS), 0
        for _, keep, (prob, label) in entry_blocks(shape, observed, where, probs, labels):
            if keep is not None:
                prob, label = prob[keep], label[keep]
            check_probabilities(prob, "probs")
            check_probabilities(label, "labels")
            p = prob.ravel().astype(np.float64)
            cell = np.minimum((p * SMOOTH_CELLS).astype(np.intp), SMOOTH_CELLS - 1)
            residuals += np.bincount(cell, label.ravel() - p, SMOOTH_CELLS)
            count += len(p)
        return SmoothSums(residuals, count)

    def ece(self) -> float:
        """Return the smooth calibration error, NaN without entries."""
        if not self.count:
            return float("nan")
        from scipy.fft import dct, idct

        waves = dct(self.residuals * (SMOOTH_CELLS / self.count), norm="ortho")
        decay = -((np.pi * np.arange(SMOOTH_CELLS)) ** 2) / 2

        def below(sigma: float) -> bool:
            smooth = idct(waves * np.exp(decay * sigma**2), norm="ortho")
            return float(np.abs(smooth).mean()) < sigma

        return edge(below, 0.0, 1.0, 40)


def smooth_ece(
    probs: Array, labels: Array, observed: Array | None = None, *, where: Array | None = None
) -> float:
    """Return the smooth calibration error of all chosen entries pooled (Blasiok, Nakkiran 2023).

    The residuals y - p, smoothed along p by a Gaussian of width sigma that is reflected at 0 and 1,
    have the mean size s(sigma); the error is the sigma at which s(sigma) = sigma. Reflection makes
    cosines of the residuals' waves, each of which the Gaussian multiplies by
    exp(-(pi k sigma)^2 / 2).
    """
    return SmoothSums.of(probs, labels, observed, where).ece()
