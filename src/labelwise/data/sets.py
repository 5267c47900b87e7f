"""LabelSets: one set of label columns for each row, stored as compressed sparse rows.

A row whose complement is shorter may be stored as its complement (``inverted``), so an image of
which nothing is known costs one bit, not K column numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LabelSets"]

BLOCK_ROWS = 1 << 18
BLOCK = 1 << 24  # entries of a dense block: bounds the memory of counting and converting


@dataclass(frozen=True, eq=False)
class LabelSets:
    """``columns[offsets[i]:offsets[i + 1]]`` are row i's set, or what it lacks if inverted."""

    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    width: int
    inverted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def none(cls, rows: int, width: int) -> "LabelSets":
        """Return the empty set for each row."""
        return cls.from_csr(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), width)

    @classmethod
    def all(cls, rows: int, width: int) -> "LabelSets":
        """Return the full set for each row."""
        empty = cls.none(rows, width)
        return cls(empty.offsets, empty.columns, width, np.ones(rows, np.bool_))

    @classmethod
    def from_csr(
        cls,
        offsets: NDArray[np.int64],
        columns: NDArray[np.int32],
        width: int,
        inverted: NDArray[np.bool_] | None = None,
    ) -> "LabelSets":
        """Return the sets of sparse rows, each row's columns sorted and named once."""
        rows = len(offsets) - 1
        flags = np.zeros(rows, np.bool_) if inverted is None else inverted
        sets = cls(
            offsets.astype(np.int64, copy=False), columns.astype(np.int32, copy=False), width, flags
        )
        return sets if sets._is_normal() else sets._normal()

    @classmethod
    def from_lists(cls, rows: Sequence[Iterable[int]], width: int) -> "LabelSets":
        """Return the sets of lists of column numbers."""
        lists = [np.fromiter(row, np.int32) for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists], dtype=np.int64)])
        columns = np.concatenate(lists) if lists else np.zeros(0, np.int32)
        return cls.from_csr(offsets.astype(np.int64), columns, width)

    @classmethod
    def from_dense(cls, mask: NDArray[np.generic]) -> "LabelSets":
        """Return the sets of a (N, K) mask; rows more than half full are stored inverted."""
        full = mask.astype(np.bool_)
        rows, width = full.shape
        inverted = full.sum(1) * 2 > width
        row, column = np.nonzero(full ^ inverted[:, None])
        sizes = np.bincount(row, minlength=rows)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(offsets, column.astype(np.int32), width, inverted)

    @classmethod
    def concatenate(cls, parts: Sequence["LabelSets"]) -> "LabelSets":
        """Return the rows of all parts, in order; the widths must agree."""
        ends = np.cumsum([0, *(len(part.columns) for part in parts)])
        starts = [part.offsets[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return cls(
            np.concatenate([*starts, ends[-1:]]).astype(np.int64),
            np.concatenate([part.columns for part in parts]),
            parts[0].width,
            np.concatenate([part.inverted for part in parts]),
        )

    def _is_normal(self) -> bool:
        """Return whether every row's columns rise."""
        rises = np.ones(len(self.columns) + 1, np.bool_)
        np.greater(self.columns[1:], self.columns[:-1], out=rises[1:-1])
        rises[self.offsets] = True
        return bool(rises.all())

    def _normal(self) -> "LabelSets":
        """Return the same sets with sorted columns, each once, in blocks of bounded memory."""
        columns, sizes = [], []
        for start in range(0, len(self), BLOCK_ROWS):
            part = self.take(np.arange(start, min(start + BLOCK_ROWS, len(self))))
            keys = np.sort(part.keys())
            keys = keys[np.diff(keys, prepend=-1) > 0]
            row, column = np.divmod(keys, self.width)
            columns.append(column.astype(np.int32))
            sizes.append(np.bincount(row, minlength=len(part)))
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes), dtype=np.int64)])
        return LabelSets(offsets, np.concatenate(columns), self.width, self.inverted)

    def keys(self) -> NDArray[np.int64]:
        """Return row * width + column of every stored entry."""
        rows = np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))
        return rows * self.width + self.columns

    def row(self, row: int) -> NDArray[np.int64]:
        """Return the columns of one row, ascending."""
        stored = self.columns[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)
        if self.inverted[row]:
            return np.setdiff1d(np.arange(self.width), stored, assume_unique=True)
        return stored

    def sizes(self) -> NDArray[np.int64]:
        """Return how many labels each row has, (N,)."""
        stored = np.diff(self.offsets)
        return np.where(self.inverted, self.width - stored, stored)

    def counts(self) -> NDArray[np.int64]:
        """Return how many rows each label has, (K,)."""
        sign = np.repeat(self.inverted, np.diff(self.offsets))
        named = np.bincount(self.columns[~sign], minlength=self.width)
        lacking = np.bincount(self.columns[sign], minlength=self.width)
        return named + int(self.inverted.sum()) - lacking

    def take(self, rows: NDArray[np.int64]) -> "LabelSets":
        """Return the sets of the given rows, in the given order."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        shift = np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        columns = self.columns[np.arange(offsets[-1]) + shift]
        return LabelSets(offsets, columns, self.width, self.inverted[rows])

    def plain(self) -> "LabelSets":
        """Return the same sets, every row stored as itself."""
        if not self.inverted.any():
            return self
        return LabelSets.from_lists([self.row(row) for row in range(len(self))], self.width)

    def dense(self) -> NDArray[np.bool_]:
        """Return the (N, K) mask."""
        mask = np.zeros((len(self), self.width), np.bool_)
        mask[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.columns] = True
        mask ^= self.inverted[:, None]
        return mask

    def blocks(self) -> Iterable[tuple[int, NDArray[np.bool_]]]:
        """Yield the mask in blocks of bounded memory: (first row, mask of these rows)."""
        step = max(1, BLOCK // max(1, self.width))
        for start in range(0, len(self), step):
            yield start, self.take(np.arange(start, min(start + step, len(self)))).dense()
