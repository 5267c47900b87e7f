"""Exact best rows of a sum of columns, without sorting or even reading all of it.

    score(row) = sum over terms of term(row)          every term is a log of a probability, <= 0

A term alone bounds the score from above. So the rows with the largest values of one term are tried
first: once the k-th best score among them exceeds the largest value not tried, no other row can be
better, and a few thousand rows were read instead of all. Where that never happens (two labels that
do not meet), the columns are scanned in blocks that fit the processor's cache; a block whose bound
is below the k-th best score so far is not read. Both ways give the rows a full stable sort would
give: equal scores in order of their rows.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from os import cpu_count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 15
COLUMNS = 1 << 9  # that the rows of a block are dealt out to
DEPTH = 1 << 6
FIRST_TRIES = (1 << 10, 1 << 13, 1 << 16)
TRIED_SHARE = 64  # of so many rows one may be tried: rows in no order cost more than a scan's
SAMPLED = 1 << 14
PARALLEL = 1 << 21  # rows from which a second thread pays

T = TypeVar("T")
Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


NO_ROWS, NO_SCORES = np.empty(0, np.int64), np.empty(0, np.float32)


class ScanTerm:
    """One column of log probabilities (N,), with what makes it quick to search.

    The values may be a function that gets them when they are first asked for. Where the rows to try
    first are known, so that the column need not be read for them, ``largest`` gets them.
    """

    def __init__(
        self,
        values: Scores | Callable[[], Scores],
        largest: Callable[[], tuple[Rows, Scores]] | None = None,
    ) -> None:
        self._given, self._largest = values, largest

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def values(self) -> Scores:
        """The column itself."""
        return self._given() if callable(self._given) else self._given

    @cached_property
    def block_maxima(self) -> Scores:
        """The largest value of each block of rows."""
        starts = np.arange(0, len(self.values), BLOCK)
        maxima: Scores = np.maximum.reduceat(self.values, starts)
        return maxima

    @cached_property
    def largest(self) -> tuple[Rows, Scores]:
        """The rows with the largest values, in falling order, and these values."""
        return largest_rows(self.values) if self._largest is None else self._largest()


def largest_rows(values: Scores) -> tuple[Rows, Scores]:
    """Return the rows that a search tries first, in falling order of their values, and these.

    A value that enough rows of a sample exceed is likely exceeded by enough rows of all; where it
    is, the others need not be ordered at all.
    """
    count = tried_rows(len(values))
    rows = NO_ROWS
    if len(values) >= 4 * SAMPLED:
        sample = values[:: len(values) // SAMPLED]
        place = 2 * count * len(sample) // len(values)
        rows = np.flatnonzero(values >= np.partition(sample, -place)[-place])
    if len(rows) < count:
        rows = np.arange(len(values))
    cut = len(rows) - count
    if cut:
        rows = rows[np.argpartition(values[rows], cut)[cut:]]
    found = values[rows]
    order = np.argsort(-found)
    return rows[order], found[order]


def tried_rows(size: int) -> int:
    """Return how many of so many rows a search may try before it scans all of them."""
    return min(max(FIRST_TRIES[0], size // TRIED_SHARE), FIRST_TRIES[-1], size)


def sum_of(terms: Sequence[ScanTerm], rows: Rows | slice) -> Scores:
    """Return the scores of some rows, added in the order of the terms."""
    total = terms[0].values[rows].copy()
    for term in terms[1:]:
        total += term.values[rows]
    return total


def best_rows(
    terms: Sequence[ScanTerm], count: int, excluded: Rows | None = None
) -> tuple[Rows, Scores]:
    """Return the ``count`` rows of highest score, best first, and their scores.

    Rows in ``excluded`` (sorted) never come out, nor do rows whose score is minus infinity.
    """
    if not terms:
        raise ValueError("a ranking needs at least one term, got none")
    if count <= 0 or not len(terms[0]):
        return NO_ROWS, NO_SCORES
    gone = NO_ROWS if excluded is None else excluded
    best = _Best(count, gone)
    driver = min(terms, key=lambda term: float(term.largest[1][-1]))
    tried, values = driver.largest
    for first, last in zip((0, *FIRST_TRIES), FIRST_TRIES, strict=False):
        if first >= len(tried) or (first and last > len(driver) // TRIED_SHARE):
            break
        rows = tried[first:last]
        best.offer(rows, sum_of(terms, rows))
        everything = len(tried) == len(driver) and last >= len(tried)
        if everything or best.cut() > values[min(last, len(values)) - 1]:
            return best.ranked()
        if best.cut() < values[-1]:  # far from it: more tries would hardly help
            break
    return _scanned(terms, count, gone, best.cut())


def count_at_least(terms: Sequence[ScanTerm], least: float, excluded: Rows | None = None) -> int:
    """Return how many rows have a score of at least ``least``."""

    def count(blocks: Sequence[slice]) -> int:
        scores = _block_scores(terms, blocks)
        return sum(int(np.count_nonzero(part >= least)) for _, part in scores)

    total = sum(in_threads(count, _promising(terms, least), len(terms[0])))
    if excluded is not None and len(excluded):
        total -= int(np.count_nonzero(sum_of(terms, excluded) >= least))
    return total


def best_of(
    rows: Rows, scores: Scores, count: int, excluded: Rows = NO_ROWS
) -> tuple[Rows, Scores]:
    """Return the ``count`` of some rows with the highest scores, best first, and their scores.

    Rows in ``excluded`` (sorted) never come out.
    """
    best = _Best(count, excluded)
    best.offer(rows, scores)
    return best.ranked()


def value_at(values: Scores, count: int) -> float:
    """Return the ``count``-th largest value, minus infinity where there are fewer.

    Values are dealt out to columns of DEPTH; that place among the columns' largest bounds it.
    """
    if not 0 < count <= len(values):
        return -np.inf
    whole = len(values) // DEPTH * DEPTH
    if whole >= DEPTH * count:
        highest = np.maximum.reduce(values[:whole].reshape(DEPTH, -1), axis=0)
        values = values[values >= np.partition(highest, -count)[-count]]
    return float(np.partition(values, -count)[-count])


class _Best:
    """The best rows of those offered so far, in no order until asked for."""

    def __init__(self, count: int, excluded: Rows) -> None:
        self.count, self.excluded = count, excluded
        self.rows, self.scores = NO_ROWS, NO_SCORES

    def cut(self) -> float:
        """Return the score a row must reach to be among the best, minus infinity at first."""
        return -np.inf if len(self.rows) < self.count else float(self.scores.min())

    def offer(self, rows: Rows, scores: Scores) -> None:
        """Consider more rows."""
        kept = scores > -np.inf
        if len(self.excluded):
            kept &= ~_contains(self.excluded, rows)
        rows = np.concatenate([self.rows, rows[kept]])
        scores = np.concatenate([self.scores, scores[kept]])
        if len(rows) > self.count:
            least = np.partition(scores, len(rows) - self.count)[len(rows) - self.count]
            near = scores >= least
            rows, scores = rows[near], scores[near]
            if len(rows) > self.count:  # ties: the first rows stay
                order = np.lexsort((rows, -scores))[: self.count]
                rows, scores = rows[order], scores[order]
        self.rows, self.scores = rows, scores

    def ranked(self) -> tuple[Rows, Scores]:
        """Return the rows and their scores, best first."""
        order = np.lexsort((self.rows, -self.scores))
        return self.rows[order], self.scores[order]


def _contains(sorted_rows: Rows, rows: Rows) -> NDArray[np.bool_]:
    places = np.minimum(np.searchsorted(sorted_rows, rows), len(sorted_rows) - 1)
    found: NDArray[np.bool_] = sorted_rows[places] == rows
    return found


def _scanned(
    terms: Sequence[ScanTerm], count: int, excluded: Rows, cut: float
) -> tuple[Rows, Scores]:
    """Return the best rows of all.

    The rows of a block are dealt out to COLUMNS columns, and the highest score of each column is
    found first. The ``count`` best of these are scores of as many rows, so no column whose highest
    is lower can hold a row to be returned.
    """
    size, depth = len(terms[0]), BLOCK // COLUMNS
    best = _Best(count, excluded)
    highest = np.full((-(-size // BLOCK), COLUMNS), -np.inf, np.float32)
    if 4 * count > highest.size:
        best.offer(np.arange(size), sum_of(terms, slice(None)))
        return best.ranked()

    def scan(blocks: Sequence[slice]) -> None:
        for block, scores in _block_scores(terms, blocks):
            if len(excluded):
                gone = slice(*np.searchsorted(excluded, (block.start, block.stop)))
                scores[excluded[gone] - block.start] = -np.inf
            whole = len(scores) // COLUMNS * COLUMNS
            found = highest[block.start // BLOCK]
            if whole:
                np.maximum.reduce(scores[:whole].reshape(-1, COLUMNS), axis=0, out=found)
            if whole < len(scores):
                rest = found[: len(scores) - whole]
                np.maximum(rest, scores[whole:], out=rest)

    in_threads(scan, _promising(terms, cut), size)
    least = max(cut, value_at(highest.reshape(-1), count))
    places = np.flatnonzero((highest >= least) & (highest > -np.inf))
    starts = places // COLUMNS * BLOCK + places % COLUMNS
    rows = (starts[:, None] + COLUMNS * np.arange(depth)).reshape(-1)
    rows = rows[rows < size]
    scores = sum_of(terms, rows)
    near = scores >= least
    best.offer(rows[near], scores[near])
    return best.ranked()


def _promising(terms: Sequence[ScanTerm], least: float) -> list[slice]:
    """Return the blocks that can hold a score of ``least``, in order."""
    bound = terms[0].block_maxima.copy()
    for term in terms[1:]:
        bound += term.block_maxima
    size = len(terms[0])
    return [
        slice(block * BLOCK, min((block + 1) * BLOCK, size))
        for block in np.flatnonzero(bound >= least).tolist()
    ]


def _block_scores(
    terms: Sequence[ScanTerm], blocks: Sequence[slice]
) -> Iterator[tuple[slice, Scores]]:
    """Yield the scores of block after block, each in the same memory."""
    memory = np.empty(BLOCK, np.float32)
    for block in blocks:
        scores = memory[: block.stop - block.start]
        if len(terms) == 1:
            scores[:] = terms[0].values[block]
        else:
            np.add(terms[0].values[block], terms[1].values[block], out=scores)
        for term in terms[2:]:
            scores += term.values[block]
        yield block, scores


def in_threads(work: Callable[[Sequence[slice]], T], blocks: list[slice], rows: int) -> list[T]:
    """Return what ``work`` makes of the blocks, dealt out to threads where there are many rows."""
    threads = min(cpu_count() or 1, 4) if rows >= PARALLEL else 1
    if threads == 1:
        return [work(blocks)]
    with ThreadPoolExecutor(threads) as pool:
        shares = np.array_split(np.arange(len(blocks)), threads)
        return list(pool.map(work, [[blocks[at] for at in share] for share in shares]))
