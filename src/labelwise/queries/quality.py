"""Retrieval mAP: how well images are found by queries of one label, two, three, ...

    cost of an image  =  - sum over wanted of log p  -  sum over unwanted of log(1 - p)
    relevant          =  all wanted labels present, all unwanted ones absent
    mAP(n)            =  mean over queries of length n of their average precision

A query with no relevant image has no average precision: it is left out and counted. A length
with at most ``exhaustive`` queries is evaluated completely; for a longer one, a seeded uniform
sample of the queries that have a relevant image is evaluated, with a standard error. An image
whose label is unknown is left out of the queries that name that label.

A table of 2K rows holds every label twice: row k says "k is wanted", row K + k "k is unwanted". A
query is n rows of distinct labels, at least one wanted: there are C(K, n) (2^n - 1). The first
wanted label comes first, then the others in order, so that equal sums of costs stay equal.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb, nan

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Floats, as_mask, check_shapes, to_numpy

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

    ``relevant`` (2K, N) are the images of each row. Also returns how many drawn ones had none.
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
        common = np.bitwise_and.reduce(bits[queries], axis=1)
        for query, useful in zip(queries.tolist(), (common > 0).sum(axis=1), strict=True):
            if useful and len(kept) < count:
                kept[tuple(query)] = None
            skipped += int(not useful)
        if len(kept) == count:
            break
    return np.array([*kept], dtype=np.intp).reshape(-1, length), skipped


def average_precision_of_costs(costs: Floats, relevant: NDArray[np.intp]) -> float:
    """Return the average precision of costs (N,) from low to high; ``relevant`` are rows."""
    own = np.sort(costs.take(relevant))
    every = np.sort(costs.compress(costs <= own[-1]))
    hits, images = (ordered.searchsorted(own, side="right") for ordered in (own, every))
    return float((hits / images).sum()) / len(own)


@dataclass(frozen=True)
class CostTable:
    """Costs, fitting images and known images (2K, N): row k wants label k, row K + k does not."""

    costs: Floats
    relevant: NDArray[np.bool_]
    known: NDArray[np.bool_] | None

    @staticmethod
    def of(log_p: Array, log_q: Array, labels: Array, observed: Array | None) -> "CostTable":
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

    def average_precision(self, query: NDArray[np.intp]) -> float | None:
        fits = np.flatnonzero(self.relevant[query[0]])
        for row in query[1:]:
            fits = fits.compress(self.relevant[row].take(fits))
        if not len(fits):
            return None
        costs = self.costs[query[0]]
        for row in query[1:]:
            costs = costs + self.costs[row]
        if self.known is not None:
            known = np.logical_and.reduce(self.known[query])
            costs, fits = costs[known], (np.cumsum(known) - 1)[fits]
        return average_precision_of_costs(costs, fits)


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

    ``log_p`` and ``log_q`` (N, K) are the link's pair. A length with more than ``exhaustive``
    queries is sampled: ``sample`` of them, by ``seed``.
    """
    if longest < 1:
        raise ValueError(f"longest must be at least 1, got {longest}")
    table = CostTable.of(log_p, log_q, labels, observed)
    count = len(table.costs) // 2
    results = []
    for length in range(1, min(longest, count) + 1):
        whole = count_queries(count, length) <= exhaustive
        if whole:
            queries, unanswered = all_queries(count, length), 0
            if table.known is None:  # the order in which they are added up
                queries = queries[np.lexsort((2 * (queries % count) + queries // count).T[::-1])]
        else:
            queries, unanswered = sample_queries(table.relevant, length, sample, seed + length)
        answers = map(table.average_precision, queries)
        precisions = np.array([answer for answer in answers if answer is not None])
        answered = len(precisions)
        value = float(precisions.mean()) if answered else nan
        spread = float(precisions.std(ddof=1) / answered**0.5) if answered > 1 else nan
        skipped, error = unanswered + len(queries) - answered, 0.0 if whole else spread
        results.append(LengthResult(length, value, error, answered, skipped, whole))
    return tuple(results)
