"""Ranking figures of one label from counts that add up over shards, each with its error bound.

A score is known by the leading bits of a key that orders floats as unsigned integers; equal keys
share a cell, which counts the positives and the others in it. As long as there are at most
``limit`` cells every bit is kept, each cell is one score, and the figures are exact. Beyond that
the last bits are dropped, as few as will do. How many that is follows from the scores alone, so
``merge`` is associative and commutative to the last count, and memory does not grow with N.

With P positives and A entries in higher cells, a cell of p positives and n others adds to the sum
of precisions, whatever the order inside it, between

    all others first, all scores apart:  sum_{j=1..p} (P + j) / (A + n + j)
                                         >= p - (A + n - P) log(1 + p / (A + n + 1/2))
    positives first, all equal:          p (P + p) / (A + p)

(the logarithm is the integral over [1/2, p + 1/2] of a concave function, below its sum). Average
precision is the middle of the two totals over all positives; half their distance is the bound.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Floats

Counts = NDArray[np.int64]
Keys = NDArray[np.unsignedinteger]  # of the scores' width


class Bounded(NamedTuple):
    """A figure, and how far at most it is from the exact one; 0 where it is exact."""

    value: float
    bound: float

    @staticmethod
    def between(low: float, high: float) -> "Bounded":
        return Bounded((low + high) / 2, (high - low) / 2)


@dataclass(frozen=True)
class ScoreCounts:
    """Positives and others in each cell, scores rising; ``dropped`` low bits of keys are gone."""

    limit: int
    dropped: int
    keys: Keys
    positives: Counts
    others: Counts

    @staticmethod
    def of(scores: Floats, present: NDArray[np.bool_], limit: int = 4096) -> "ScoreCounts":
        """Return the counts of scores (n,), float32 or float64, and whether each is positive."""
        if limit < 2:
            raise ValueError(f"limit must be at least 2, got {limit}")
        keys = np.sort(_keys(scores))
        opens = _opens(keys)
        cells = keys[opens]
        totals = np.diff(np.append(opens, len(keys)))
        cell = np.searchsorted(cells, _keys(scores[present]))
        positives = np.bincount(cell, minlength=len(cells)).astype(np.int64)
        return ScoreCounts(limit, 0, cells, positives, totals - positives)._coarsened()

    def merge(self, other: "ScoreCounts") -> "ScoreCounts":
        if self.limit != other.limit or self.keys.dtype != other.keys.dtype:
            raise ValueError(
                "counts must have one limit and one kind of float to be merged, got "
                f"{self.limit} of {self.keys.dtype} and {other.limit} of {other.keys.dtype}"
            )
        dropped = max(self.dropped, other.dropped)
        parts = self._with(dropped), other._with(dropped)
        cells = zip(*((part.keys, part.positives, part.others) for part in parts), strict=True)
        keys, *counts = (np.concatenate(side) for side in cells)
        order = np.argsort(keys, kind="stable")  # two rising runs: a single pass
        return self._summed(dropped, *(side[order] for side in (keys, *counts)))._coarsened()

    @property
    def exact(self) -> bool:
        return self.dropped == 0

    def average_precision(self) -> Bounded:
        p, n = (counts[::-1].astype(np.float64) for counts in (self.positives, self.others))
        if not p.sum():
            return Bounded(np.nan, 0.0)
        above = np.cumsum(p) - p
        entries = above + np.cumsum(n) - n
        if self.exact:
            full = p * (above + p) / np.maximum(entries + p + n, 1)
            return Bounded(float(full.sum() / p.sum()), 0.0)
        best = p * (above + p) / np.maximum(entries + p, 1)
        behind = entries + n
        worst = p - (behind - above) * np.log1p(p / (behind + 0.5))
        worst = np.where(p == 1, (above + 1) / (behind + 1), worst)
        return Bounded.between(float(worst.sum() / p.sum()), float(best.sum() / p.sum()))

    def auroc(self) -> Bounded:
        p, n = self.positives.astype(np.float64), self.others.astype(np.float64)
        pairs = p.sum() * n.sum()
        if not pairs:
            return Bounded(np.nan, 0.0)
        won = float(p @ (np.cumsum(n) - n))
        same = float(p @ n)
        if self.exact:
            return Bounded((won + same / 2) / pairs, 0.0)
        return Bounded.between(won / pairs, (won + same) / pairs)

    def false_positive_rate_at(self, recall: float = 0.95) -> Bounded:
        total, others = int(self.positives.sum()), int(self.others.sum())
        if not total or not others:
            return Bounded(np.nan, 0.0)
        accepted = max(1, ceil(recall * total - 1e-9))  # 0.95 * 20 must not round up to 20
        falling = np.cumsum(self.positives[::-1])
        cell = len(falling) - 1 - int(np.searchsorted(falling, accepted))
        above = int(self.others[cell + 1 :].sum())
        inside = int(self.others[cell])
        if self.exact:
            return Bounded((above + inside) / others, 0.0)
        return Bounded.between(above / others, (above + inside) / others)

    def _with(self, dropped: int) -> "ScoreCounts":
        keys = self.keys >> self.keys.dtype.type(dropped - self.dropped)
        return self._summed(dropped, keys, self.positives, self.others)

    def _summed(self, dropped: int, keys: Keys, positives: Counts, others: Counts) -> "ScoreCounts":
        opens = _opens(keys)
        sums = (np.add.reduceat(c, opens) if len(opens) else c for c in (positives, others))
        return ScoreCounts(self.limit, dropped, keys[opens], *sums)

    def _coarsened(self) -> "ScoreCounts":
        """Return the counts in at most ``limit`` cells, with as few bits dropped as will do."""
        if len(self.keys) <= self.limit:
            return self
        apart = self.keys[1:] ^ self.keys[:-1]  # neighbours differ while some bit of it is left
        kind = apart.dtype.type
        low, high = 0, 8 * apart.dtype.itemsize - 1
        while low < high:
            middle = (low + high) // 2
            if np.count_nonzero(apart >> kind(middle)) < self.limit:
                high = middle
            else:
                low = middle + 1
        return self._with(self.dropped + low)


def _keys(scores: Floats) -> Keys:
    """Return unsigned integers in the order of the floats; equal floats have equal ones."""
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN, got NaN")
    wide = scores.dtype == np.float64
    unsigned = np.dtype(np.uint64 if wide else np.uint32)
    values = scores if wide else scores.astype(np.float32, copy=False)
    bits = (values + 0.0).view(unsigned)  # -0 becomes 0
    top = unsigned.type(1 << (63 if wide else 31))
    return np.where(bits & top, ~bits, bits | top)


def _opens(keys: Keys) -> NDArray[np.intp]:
    """Return where each run of equal keys begins."""
    first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return np.flatnonzero(first)
