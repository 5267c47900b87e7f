"""Queries as rows of numbers: all of a length, or a sample of them.

A table of 2K rows holds every label twice: row k says "k is wanted", row K + k "k is unwanted". A
query of length n is n rows of distinct labels, of which at least one is wanted: there are
C(K, n) (2^n - 1). The first wanted label comes first, then the others in order: costs are added up
in this order everywhere, so that equal sums stay equal.
"""

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

Queries = NDArray[np.intp]

DRAWS_PER_SAMPLE = 50


def count_queries(labels: int, length: int) -> int:
    """Return how many queries of a length there are over ``labels`` labels."""
    return comb(labels, length) * ((1 << length) - 1)


def all_queries(labels: int, length: int) -> Queries:
    """Return every query of a length, (Q, length) rows of the table."""
    columns = np.array([*combinations(range(labels), length)], dtype=np.intp).reshape(-1, length)
    signs = np.arange(2**length - 1)[:, None] >> np.arange(length) & 1  # all ones is left out
    return _rows(columns[:, None, :], signs, labels).reshape(-1, length)


def _rows(columns: Queries, unwanted: NDArray[np.intp], labels: int) -> Queries:
    """Return the rows of rising columns, the first wanted one moved to the front."""
    columns, unwanted = np.broadcast_arrays(columns, unwanted)
    first = unwanted.argmin(axis=-1)[..., None]
    place = np.arange(columns.shape[-1])
    order = np.where(place == 0, first, np.where(place <= first, place - 1, place))
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
        queries = _rows(np.sort(columns, axis=1), signs, labels)
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
