"""Log-odds gathered in bins: a small stand-in for many entries, to start a fit near its end.

    x = (u - median) / spread        bin = x / (1 + |x|), cut in equal parts

The squashing gives fine bins where most entries lie and still tells far ones apart. A bin keeps
the number of its entries, their mean log-odds and their mean label, for each label by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from labelwise.calibrate.entries import BLOCK, ROWS, Block, Entries
from labelwise.calibrate.holdout import dealt, folds_of

__all__ = ["Chain", "Rows", "compressed"]

BINS, LEAST_BINS, ALL_BINS = 256, 64, 1 << 21
SAMPLE = 1 << 14
EXACT = 1 << 23  # float32 counts every entry up to twice as many


class Rows(Protocol):
    """Whatever yields blocks (u, y, w) of rows; w is a weight, None where all weigh 1."""

    @property
    def num_labels(self) -> int: ...

    def rows(self) -> Iterator[Block]: ...


@dataclass(frozen=True)
class Chain:
    """Several collections of rows, one after the other."""

    parts: Sequence[Rows]

    @property
    def num_labels(self) -> int:
        return self.parts[0].num_labels

    def rows(self) -> Iterator[Block]:
        for part in self.parts:
            yield from part.rows()


@dataclass(frozen=True)
class Bins:
    """Means of log-odds and labels, and counts, each (B, K)."""

    u: Tensor
    y: Tensor
    w: Tensor

    @property
    def num_labels(self) -> int:
        return self.u.shape[1]

    def rows(self) -> Iterator[Block]:
        step = min(ROWS, max(1, BLOCK // self.num_labels))
        for start in range(0, len(self.u), step):
            part = slice(start, start + step)
            yield self.u[part], self.y[part], self.w[part]


def compressed(entries: Entries, folds: int) -> list[Rows]:
    """Return the rows dealt into folds: in bins where there are many, as they are where few."""
    count, labels = entries.logits.shape
    bins = min(BINS, max(LEAST_BINS, ALL_BINS // (folds * labels)))
    if count <= 8 * bins:
        return [*dealt(entries, folds)]
    device = entries.logits.device
    median, spread = _location(entries)
    first = torch.arange(labels, device=device) * bins
    shift = folds_of(count, folds).to(device)[:, None] * (bins * labels)
    precise = count > EXACT or entries.logits.dtype == torch.float64
    dtype = torch.float64 if precise else torch.float32
    sums = torch.zeros(3, folds * labels * bins, dtype=dtype, device=device)
    start = 0
    for u, y, w in entries.rows():
        x = (u - median).mul_(1 / spread)
        x.div_(x.abs().add_(1)).add_(1).mul_(bins / 2 * (1 - 1e-6))  # in [0, bins)
        cell = x.long().add_(first)
        if folds > 1:
            cell += shift[start : start + len(u)]
        weight = torch.ones_like(u) if w is None else w
        for total, values in zip(sums, (weight, u, y), strict=True):
            total.scatter_add_(0, cell.flatten(), values.flatten().to(dtype))
        start += len(u)
    weight, odds, present = sums.double().view(3, folds, labels, bins).mT.contiguous()
    some = weight.clamp(min=1e-300)
    return [Bins(*part) for part in zip(odds / some, present / some, weight, strict=True)]


def _location(entries: Entries) -> tuple[float, float]:
    """Return the median and the width of the middle half of a sample of the log-odds."""
    step = max(1, entries.logits.numel() // SAMPLE)
    blocks = entries.subset(slice(None, None, step)).rows()
    some = torch.cat([(u if w is None else u[w > 0]).flatten() for u, _, w in blocks])
    if not len(some):
        return 0.0, 1.0
    quarters = some.quantile(some.new_tensor([0.0, 0.25, 0.5, 0.75, 1.0])).tolist()
    least, low, middle, high, most = quarters
    return middle, max(high - low, (most - least) / 20, 1e-12)
