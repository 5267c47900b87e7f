"""Pairs of unit vectors that point almost the same way, found without comparing all pairs.

Two vectors at angle a stand on different sides of a random plane with chance a / pi. So each vector
gets 16 words of 16 signs, by 256 fixed planes. Two vectors of cosine 0.95 differ in a tenth of
their signs and share at least one word with chance 0.96, and those of cosine 0.97 with chance
0.99. Vectors that share a word are compared; few vectors are all compared.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["near_pairs"]

Vectors = NDArray[np.float32]
Pairs = NDArray[np.int64]

FEW = 2048  # vectors of which all pairs are compared
WORDS, SIGNS = 16, 16
ROWS_AT_ONCE = 2048


def near_pairs(vectors: NDArray[np.floating[Any]], least: float) -> Pairs:
    """Return the pairs (P, 2) of rows of unit vectors (n, D) whose cosine is at least ``least``.

    The lower row stands first; pairs are in order. Zero vectors are near nothing.
    """
    rows = np.asarray(vectors, np.float32)
    if len(rows) <= FEW:
        found = [_compared(rows, np.arange(len(rows)), least)]
    else:
        found = [
            _compared(rows, members, least)
            for words in _words_of(rows)
            for members in _sharing(words)
        ]
    pairs = np.concatenate([np.empty((0, 2), np.int64), *found])
    return np.unique(pairs, axis=0)


def _words_of(rows: Vectors) -> NDArray[np.uint16]:
    """Return the words (WORDS, n) of vectors."""
    planes = np.random.default_rng(0).standard_normal((rows.shape[1], WORDS * SIGNS))
    words = np.empty((WORDS, len(rows)), np.uint16)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE] @ planes.astype(np.float32)
        words[:, start : start + len(part)] = np.packbits(part > 0, axis=1).view(np.uint16).T
    return words


def _sharing(words: NDArray[np.uint16]) -> list[Pairs]:
    """Return the rows of each word that at least two have."""
    order = np.argsort(words, kind="stable")
    starts = np.flatnonzero(np.diff(words[order])) + 1
    return [part for part in np.split(order, starts) if len(part) > 1]


def _compared(rows: Vectors, members: Pairs, least: float) -> Pairs:
    """Return the near pairs among some rows, all of which are compared."""
    inside, found = rows[members], []
    for start in range(0, len(members), ROWS_AT_ONCE):
        cosines = inside[start : start + ROWS_AT_ONCE] @ inside.T
        first, second = np.nonzero(cosines >= least)
        kept = first + start < second
        found.append(np.stack([members[first[kept] + start], members[second[kept]]], 1))
    pairs = np.concatenate([np.empty((0, 2), np.int64), *found])
    return np.sort(pairs, axis=1)
