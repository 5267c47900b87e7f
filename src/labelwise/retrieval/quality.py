"""Retrieval mAP: how well images are found by queries of one label, two, three, ...

    cost of an image  =  - sum over wanted of log p  -  sum over unwanted of log(1 - p)
    relevant          =  all wanted labels present, all unwanted ones absent
    mAP(n)            =  mean over queries of length n of their average precision

A query with no relevant image has no average precision: it is left out and counted. A length
with at most ``exhaustive`` queries is evaluated completely; for a longer one, a seeded uniform
sample of the queries that have a relevant image is evaluated, with a standard error. An image
whose label is unknown is left out of the queries that name that label.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import Array, as_mask, check_shapes, to_numpy

# AP = mean over relevant i of  relevant at or above i / images at or above i, ties included. Only
# the relevant images are sorted, and the others that share a bucket of costs with one of them; with
# few relevant images, whatever lies above the worst of them.
#
# A table of 2K rows holds every label twice: row k says "k is wanted", row K + k "k is unwanted". A
# query is n rows of distinct labels, at least one wanted: there are C(K, n) (2^n - 1). The first
# wanted label comes first, then the others in order, so that equal sums of costs stay equal.


Queries = NDArray[np.intp]

DRAWS_PER_SAMPLE = 50


def count_queries(labels: int, length: int) -> int:
    """Return how many queries of a length there are over ``labels`` labels."""
    return comb(labels, length) * ((1 << length) - 1)


def all_queries(labels: int, length: int) -> Queries:
    """Return every query of a length, (Q, length) rows of the table."""
    columns = np.array([*combinations(range(labels), length)], dtype=np.intp).reshape(-1, length)
    signs = np.arange(2**length - 1)[:, None] >> np.arange(length) & 1  # all ones is left out
    return _ordered(columns[:, None, :], signs, labels).reshape(-1, length)


def _ordered(columns: Queries, unwanted: NDArray[np.intp], labels: int) -> Queries:
    """Return the rows of rising columns, the first wanted one moved to the front."""
    columns, unwanted = np.broadcast_arrays(columns, unwanted)
    first = unwanted.argmin(axis=-1)[..., None]
    position = np.arange(columns.shape[-1])
    order = np.where(position == 0, first, np.where(position <= first, position - 1, position))
    rows: Queries = np.take_along_axis(columns + labels * unwanted, order, axis=-1)
    return rows


def sample_queries(
    relevant: NDArray[np.bool_], length: int, count: int, seed: int
) -> tuple[Queries, int]:
    """Return up to ``count`` distinct queries, uniform among those with a relevant image.

    ``relevant`` (2K, N) says which images fit each row of the table. Also returns how many drawn
    queries had no relevant image.
    """
    random = np.random.default_rng(seed)
    labels = len(relevant) // 2
    bits = np.packbits(relevant, axis=1)
    kept: dict[tuple[int, ...], None] = {}
    skipped = 0
    batch = 256
    for _ in range(0, DRAWS_PER_SAMPLE * count, batch):
        columns = np.argpartition(random.random((batch, labels)), length - 1, axis=1)[:, :length]
        signs = random.integers(2**length - 1, size=(batch, 1)) >> np.arange(length) & 1
        queries = _ordered(np.sort(columns, axis=1), signs, labels)
        common = bits[queries[:, 0]]
        for row in queries.T[1:]:
            common &= bits[row]
        for query, useful in zip(queries.tolist(), (common > 0).sum(axis=1), strict=True):
            if useful and len(kept) < count:
                kept[tuple(query)] = None
            skipped += int(not useful)
        if len(kept) == count:
            break
    return np.array([*kept], dtype=np.intp).reshape(-1, length), skipped


FEW = 200
BUCKETS_PER_RELEVANT, MOST_BUCKETS = 16, 16384

Costs = NDArray[Any]


def average_precision_of_costs(costs: Costs, relevant: NDArray[np.intp]) -> float:
    """Return the average precision of ranking ``costs`` (N,) from low to high.

    ``relevant`` holds the distinct row numbers of the relevant images, at least one. Costs are at
    least 0 and may be infinite, not NaN.
    """
    own = np.sort(costs.take(relevant))
    ranks = np.arange(1, len(own) + 1)
    if (own[1:] == own[:-1]).any():
        ranks = own.searchsorted(own, side="right")
    finite = int(own.searchsorted(np.inf))
    above = np.full(len(own), len(costs) - len(own))  # of infinite costs all others
    if finite:
        above[:finite] = _others(costs, relevant, own[:finite])
    return float((ranks / (ranks + above)).sum()) / len(own)


def _others(costs: Costs, relevant: NDArray[np.intp], found: Costs) -> NDArray[np.intp]:
    """Return how many irrelevant images cost at most each of ``found``, which rises."""
    best, worst = float(found[0]), float(found[-1])
    # Costs too close to be told apart by scaling are sorted too.
    if len(found) <= FEW or worst - best <= 1e-6 * worst:
        mask = costs <= worst
        mask[relevant] = False
        above = costs.compress(mask)
        above.sort()
        return above.searchsorted(found, side="right")
    buckets = min(MOST_BUCKETS, BUCKETS_PER_RELEVANT * len(found))
    scale = buckets / (worst - best)
    bucket, own = (_buckets(values, worst, scale, buckets) for values in (costs, found))
    counts = np.bincount(bucket, minlength=buckets + 4)
    shared = np.zeros(buckets + 4, dtype=bool)
    shared[own] = True
    mask = shared.take(bucket, mode="clip")
    mask[relevant] = False
    rest = costs.compress(mask)
    rest.sort()
    counts[own] = 0
    seen = counts.cumsum()
    beyond: NDArray[np.intp] = seen[-1] - seen[own]
    return beyond + rest.searchsorted(found, side="right")


def _buckets(costs: Costs, worst: float, scale: float, buckets: int) -> NDArray[np.intp]:
    """Return the bucket of each cost, higher for lower costs; 0 lies beyond the worst relevant."""
    bucket = (worst + 2 / scale) - costs
    np.multiply(bucket, scale, out=bucket)
    np.clip(bucket, 0, buckets + 3, out=bucket)
    return bucket.astype(np.intp)


@dataclass(frozen=True)
class CostTable:
    """Costs, fitting images and known images (2K, N): row k wants label k, row K + k does not."""

    costs: NDArray[Any]
    relevant: NDArray[np.bool_]
    known: NDArray[np.bool_] | None

    @property
    def num_labels(self) -> int:
        """Return K."""
        return len(self.costs) // 2

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """Return how many images fit each row."""
        sizes: NDArray[np.intp] = np.count_nonzero(self.relevant, axis=1)
        return sizes


def average_precision_of(table: CostTable, query: NDArray[np.intp]) -> float:
    """Return the average precision of one query, rows of the table; some image must fit it."""
    costs = table.costs[query[0]].copy()
    for row in query[1:]:
        costs += table.costs[row]
    # From the row with the fewest fitting images, that few need be looked at.
    rarest, *others = sorted(query, key=table.sizes.__getitem__)
    fits = np.flatnonzero(table.relevant[rarest])
    for row in others:
        fits = fits.compress(table.relevant[row].take(fits))
    if table.known is not None:
        known = np.logical_and.reduce(table.known[query])
        costs, fits = costs[known], (np.cumsum(known) - 1)[fits]
    return average_precision_of_costs(costs, fits)


def walk(table: CostTable, longest: int) -> dict[int, NDArray[np.float64]]:
    """Return, by length, the average precision of every query that has a relevant image."""
    found: dict[int, list[float]] = {length: [] for length in range(1, longest + 1)}
    if table.known is not None:
        for length, precisions in found.items():
            for query in all_queries(table.num_labels, length):
                if table.relevant[query].all(0).any():
                    precisions.append(average_precision_of(table, query))
    else:
        for root in range(table.num_labels):
            fits = np.flatnonzero(table.relevant[root])
            if len(fits):
                costs = table.costs[root]
                found[1].append(average_precision_of_costs(costs, fits))
                grow(table, found, costs, fits, root=root, first=0, length=2)
    return {length: np.array(precisions) for length, precisions in found.items()}


def grow(
    table: CostTable,
    found: dict[int, list[float]],
    costs: NDArray[Any],
    fitting: NDArray[np.intp],
    *,
    root: int,
    first: int,
    length: int,
) -> None:
    """Add a label from ``first`` on to a query with these costs and fitting images, and go on.

    Average precisions are appended to ``found[length]`` and those of longer lengths it holds.
    """
    if length not in found:
        return
    labels = table.num_labels
    for label in range(first, labels):
        # A wanted label before the root would make another tree's query.
        rows = (labels + label,) if label < root else (label, labels + label)
        for row in () if label == root else rows:
            fits = fitting.compress(table.relevant[row].take(fitting))
            if len(fits):
                total = costs + table.costs[row]
                found[length].append(average_precision_of_costs(total, fits))
                grow(table, found, total, fits, root=root, first=label + 1, length=length + 1)


@dataclass(frozen=True)
class LengthResult:
    """Retrieval mAP of one query length.

    ``queries`` were averaged; ``skipped`` had no relevant image. ``error`` is the standard
    error of sampling queries, 0 if every query was evaluated. Without any query the value is NaN.
    """

    length: int
    value: float
    error: float
    queries: int
    skipped: int
    exhaustive: bool


def retrieval_map(
    log_p: Array,
    log_q: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    longest: int = 3,
    exhaustive: int = 1_000_000,
    sample: int = 20_000,
    seed: int = 0,
) -> tuple[LengthResult, ...]:
    """Return the retrieval mAP of query lengths 1 to ``longest``.

    A length with more than ``exhaustive`` queries is sampled: ``sample`` of them, by ``seed``.

    ``log_p`` and ``log_q`` (N, K) are the link's pair. Queries share the work of their first
    labels.
    """
    if longest < 1:
        raise ValueError(f"longest must be at least 1, got {longest}")
    table = _table(log_p, log_q, labels, observed)
    lengths = range(1, min(longest, table.num_labels) + 1)
    whole = [n for n in lengths if count_queries(table.num_labels, n) <= exhaustive]
    walked = walk(table, max(whole)) if whole else {}
    results = []
    for length in lengths:
        if length in whole:
            skipped = count_queries(table.num_labels, length) - len(walked[length])
            results.append(_result(length, walked[length], skipped, exhaustive=True))
        else:
            queries, skipped = sample_queries(table.relevant, length, sample, seed + length)
            answers = np.array([average_precision_of(table, query) for query in queries])
            results.append(_result(length, answers, skipped, exhaustive=False))
    return tuple(results)


def _result(
    length: int, precisions: NDArray[np.float64], skipped: int, *, exhaustive: bool
) -> LengthResult:
    count = len(precisions)
    value = float(precisions.mean()) if count else float("nan")
    error = 0.0
    if not exhaustive:
        error = float(precisions.std(ddof=1) / count**0.5) if count > 1 else float("nan")
    return LengthResult(length, value, error, count, skipped, exhaustive)


def _table(log_p: Array, log_q: Array, labels: Array, observed: Array | None) -> CostTable:
    """Check the arrays and return them as a table of 2K rows, wanted then unwanted."""
    sides = [to_numpy(log_p), to_numpy(log_q)]
    truth = to_numpy(labels)
    seen = None if observed is None else as_mask(to_numpy(observed), "observed")
    check_shapes(log_p=sides[0], log_q=sides[1], labels=truth, observed=seen)
    costs = np.concatenate([-side.T for side in sides])
    if np.isnan(costs).any() or (costs < 0).any():
        raise ValueError("log_p and log_q must be logarithms of probabilities, at most 0")
    present, absent = truth.T == 1, truth.T == 0
    if seen is not None:
        present, absent = present & seen.T, absent & seen.T
    known = present | absent
    if seen is None and not known.all():
        raise ValueError(f"labels must be 0 or 1 where observed, got {truth.T[~known][0]}")
    known_rows = None if known.all() else np.concatenate([known, known])
    relevant = np.ascontiguousarray(np.concatenate([present, absent]))
    return CostTable(np.ascontiguousarray(costs), relevant, known_rows)
