"""Calibration of every label and of all together, from sums that add up over shards.

    sums = CalibrationSums.zeros(num_labels=80, edges=width_edges(10))
    sums.update(probs, labels, observed)        one batch, shard or rank after another
    sums.merge(other).pooled().ece()            all entries as one pool
    sums.per_label().ece()                      (K,)

The state is K x M counts (int64), probability sums and label sums (float64): exact past 2^24
entries, where float32 counts stop. ``where`` chooses the entries that count, for example each
image's top four. Labels may be soft, in [0, 1].
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.binning import Binning, edges_of, round_edges
from labelwise.metrics.cells import cell_sums
from labelwise.metrics.inputs import Array, blocks, check_shapes, chosen, read
from labelwise.metrics.reliability import Reliability

__all__ = ["CalibrationSums", "label_reliability", "reliability"]

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
    edges = edges_of(probs, observed, where, bins, binning, per_label)
    sums = CalibrationSums.zeros(probs.shape[-1], edges)
    sums.update(probs, labels, observed, where)
    return sums
