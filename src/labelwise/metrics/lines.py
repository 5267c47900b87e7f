"""Reading (N, K) matrices a block of lines at a time, and means over what is defined.

A line is one image (a row) or one label (a column). Only blocks are copied, so extra memory does
not grow with N x K. Items without a value (a label without positives) are NaN, left out of means,
counted and named. Ranking metrics are sums over positives of how many entries score as much: lines
with few positives are compared with each of them, others are sorted. Unobserved entries become NaN.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import (
    Array,
    Floats,
    Mask,
    Numbers,
    Values,
    as_mask,
    check_shapes,
    present_labels,
    to_numpy,
)
from labelwise.errors import require

By: TypeAlias = Literal["label", "image"]

BLOCK_ENTRIES = 2**19  # float32: 2 MiB, near the size of a core's second cache
TILE_ROWS = 512  # a transpose in such tiles stays in the first cache: four times faster


def check_by(by: By) -> None:
    """Raise unless lines are labels or images."""
    require(by in ("label", "image"), f"by must be 'label' or 'image', got {by!r}")


def blocks(lines: int, length: int, entries: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Yield slices of lines that hold about ``entries`` entries each, at least one line."""
    step = max(1, entries // max(length, 1))
    for start in range(0, lines, step):
        yield slice(start, min(start + step, lines))


def read(matrix: Array, lines: slice, by: By) -> np.ndarray:
    """Return a block of lines, one line a contiguous row."""
    if by == "image":
        return np.ascontiguousarray(to_numpy(matrix[lines]))
    columns = to_numpy(matrix[:, lines])
    block = np.empty(columns.shape[::-1], columns.dtype)
    for start in range(0, len(columns), TILE_ROWS):
        tile = slice(start, start + TILE_ROWS)
        block[:, tile] = columns[tile].T
    return block


def chosen(rows: slice, **masks: Array | None) -> Mask | None:
    """Return the entries of some rows that every given (N, K) mask chooses; None means all."""
    keep: Mask | None = None
    for name, mask in masks.items():
        if mask is not None:
            block = as_mask(read(mask, rows, "image"), name)
            keep = block if keep is None else keep & block
    return keep


def entry_blocks(
    shape: tuple[int, int],
    observed: Array | None,
    where: Array | None,
    *matrices: Array,
    entries: int = BLOCK_ENTRIES,
) -> Iterator[tuple[slice, Mask | None, list[np.ndarray]]]:
    """Yield blocks of rows: which, the entries that count (None: all), and each matrix there."""
    for block in blocks(*shape, entries):
        keep = chosen(block, observed=observed, where=where)
        yield block, keep, [read(matrix, block, "image") for matrix in matrices]


@dataclass(frozen=True)
class Averaged:
    """The mean of a metric over the defined ``items``, labels or images; NaN if there are none."""

    value: float
    items: Numbers
    by: By

    @classmethod
    def over(cls, items: Numbers, by: By) -> "Averaged":
        defined = items[~np.isnan(items)]
        return cls(float(defined.mean()) if defined.size else float("nan"), items, by)

    @property
    def undefined(self) -> NDArray[np.intp]:
        return np.flatnonzero(np.isnan(self.items))

    @property
    def num_defined(self) -> int:
        return len(self.items) - len(self.undefined)

    @classmethod
    def of_lines(
        cls,
        value: "Callable[[Lines], Numbers]",
        scores: Array,
        labels: Array,
        observed: Array | None,
        by: By,
    ) -> "Averaged":
        with np.errstate(invalid="ignore"):
            parts = [value(lines) for lines in lines_of(scores, labels, observed, by)]
        return cls.over(np.concatenate([np.empty(0), *parts]), by)

    def undefined_names(self, names: Sequence[str]) -> list[str]:
        require(len(names) == len(self.items), f"names must be {len(self.items)}, got {len(names)}")
        return [names[index] for index in self.undefined]


Counts: TypeAlias = NDArray[np.intp]
COMPARED_POSITIVES = 16  # sorting an entry costs about as much as so many comparisons


class Level(NamedTuple):
    """Which entries are counted: by comparison, and by place in a sorted line."""

    compare: np.ufunc
    side: Literal["left", "right"]


AT_LEAST = Level(np.greater_equal, "left")
ABOVE = Level(np.greater, "right")


@dataclass(frozen=True)
class Positives:
    """The positives (P,) by line, then falling score; count and first of each line (L,)."""

    line: Counts
    score: Floats
    per_line: Counts
    start: Counts

    def at_least(self) -> Counts:
        """Return how many positives of the same line score at least as much, (P,)."""
        return self._groups()[1] + 1 - self.start[self.line]

    def above(self) -> Counts:
        return self._groups()[0] - self.start[self.line]

    def _groups(self) -> tuple[Counts, Counts]:
        """Return the first and last position of each positive's group of equal scores."""
        opens = np.ones(len(self.line), dtype=np.bool_)
        opens[1:] = (self.line[1:] != self.line[:-1]) | (self.score[1:] != self.score[:-1])
        first = np.flatnonzero(opens)
        last = np.append(first[1:], len(self.line)) - 1
        group = np.cumsum(opens) - 1
        return first[group], last[group]

    def total(self, values: Values) -> Numbers:
        sums = np.bincount(self.line, values, minlength=len(self.per_line))
        return sums.astype(np.float64, copy=False)


@dataclass(frozen=True)
class Lines:
    """A block of lines: scores (L, n) with NaN where unobserved, and which are present."""

    where: slice
    scores: Floats
    present: Mask
    known: Counts

    def top(self) -> Mask:
        return np.asarray(self.scores == np.fmax.reduce(self.scores, axis=1, keepdims=True))

    def positives(self) -> Positives:
        flat = np.flatnonzero(self.present)
        line = flat // self.scores.shape[1]
        score = self.scores.ravel()[flat]
        per_line = np.bincount(line, minlength=len(self.scores))
        start = np.cumsum(per_line) - per_line
        return Positives(line, _falling(score, line, per_line, start), per_line, start)

    def count(self, positives: Positives, *levels: Level) -> list[Counts]:
        """Return per level how many entries of a line score at least as much, or more."""
        length = self.scores.shape[1]
        counts = [np.empty(len(positives.line), dtype=np.intp) for _ in levels]
        few = positives.per_line <= COMPARED_POSITIVES
        compared = np.flatnonzero(few[positives.line])
        for chunk in blocks(len(compared), length, BLOCK_ENTRIES // 4):
            index = compared[chunk]
            rows, score = self.scores[positives.line[index]], positives.score[index, None]
            for row, level in zip(counts, levels, strict=True):
                bits = np.bitwise_count(np.packbits(level.compare(rows, score), axis=1))
                row[index] = bits.sum(axis=1, dtype=np.intp)
        for line in np.flatnonzero(~few):
            own = slice(positives.start[line], positives.start[line] + positives.per_line[line])
            ordered, rising = np.sort(self.scores[line]), positives.score[own][::-1]  # NaN is last
            for row, level in zip(counts, levels, strict=True):
                below = np.searchsorted(ordered, rising, side=level.side)
                row[own] = self.known[line] - below[::-1]
        return counts


def _falling(score: Floats, line: Counts, per_line: Counts, start: Counts) -> Floats:
    """Return the positives' scores, which are in order of line, falling within each line."""
    if len(score) < 16 * len(per_line):
        return score[np.lexsort((-score, line))]
    score = score.copy()
    for first, count in zip(start, per_line, strict=True):
        score[first : first + count] = np.sort(score[first : first + count])[::-1]
    return score


def lines_of(
    scores: Array, labels: Array, observed: Array | None, by: By, entries: int = BLOCK_ENTRIES
) -> Iterator[Lines]:
    """Yield the matrix in blocks of lines."""
    check_by(by)
    lines, length = check_shapes(scores=scores, labels=labels, observed=observed)
    if by == "label":  # blocks of columns are wider, so that each row gives more than a cache line
        lines, length, entries = length, lines, 4 * entries
    for where in blocks(lines, length, entries):
        score: Floats = read(scores, where, by)
        if not np.issubdtype(score.dtype, np.floating):
            score = score.astype(np.float64)
        mask = None if observed is None else as_mask(read(observed, where, by), "observed")
        present = present_labels(read(labels, where, by), mask)
        known = np.full(len(score), length, dtype=np.intp)
        if np.isnan(score if mask is None else score[mask]).any():
            raise ValueError("scores must not be NaN where they are observed, got NaN")
        if mask is not None:
            known = np.count_nonzero(mask, axis=1)
            score = np.where(mask, score, score.dtype.type(np.nan))
        yield Lines(where, score, present, known)
