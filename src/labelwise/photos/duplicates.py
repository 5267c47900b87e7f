"""Near copies in a library: photos that look like an earlier one, such as the next of a burst.

A photo is a near copy of the earliest one that its look has a cosine of at least NEAR with and that
is not a near copy itself (:func:`labelwise.numeric.duplicates.first_near`). What is known stays as
it is when other photos come, so it is kept in the cache. *Distinct* photos are one of each picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.numeric.duplicates import first_near
from labelwise.photos.index import StoredIndex
from labelwise.pictures.fingerprint import NEAR

CACHE = "near-copies.bin"
ROW = np.dtype(np.int64)

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class NearCopies:
    """How many of some photos look like an earlier one of them."""

    photos: int
    copies: int

    def sentence(self, what: str) -> str:
        """Return that in words; empty where there are none. ``what`` names the photos."""
        if not self.copies:
            return ""
        copies = "1 is a near copy" if self.copies == 1 else f"{self.copies:,} are near copies"
        return (
            f"of {what}, {copies} of an earlier one: {self.photos - self.copies:,} different "
            "pictures"
        )


def near_copies(index: StoredIndex, rows: Rows | None = None) -> NearCopies | None:
    """Return how many near copies there are among some rows, or among the photos that are there.

    None in an index that does not know what its photos look like.
    """
    firsts = _first_rows(index)
    if firsts is None:
        return None
    some = index.store.alive_rows() if rows is None else rows
    return NearCopies(len(some), len(some) - len(np.unique(firsts[some])))


def copied_rows(index: StoredIndex) -> Rows:
    """Return the rows to leave out for distinct photos: all of a picture but the earliest there."""
    alive = index.store.alive_rows()
    kept = alive[np.unique(pictures_of(index)[alive], return_index=True)[1]]
    return np.setdiff1d(alive, kept)


def pictures_of(index: StoredIndex) -> Rows:
    """Return the picture (rows,) of each photo: the row of the first one that it looks like."""
    firsts = _first_rows(index)
    if firsts is None:
        raise DataError(
            f"{index.folder} does not know what its photos look like, as it was made by an earlier "
            "version or of features; score them again with `labelwise index --rebuild`, or do not "
            "ask for distinct photos"
        )
    return firsts


def _first_rows(index: StoredIndex) -> Rows | None:
    store = index.store
    looks = store.looks()
    if not looks.shape[1]:
        return None

    def made(done: int, rows: int) -> Iterator[Rows]:
        known = np.fromfile(store.cache.folder / CACHE, ROW, done) if done else None
        yield first_near(looks[:rows], NEAR, known)[done:]

    return np.asarray(store.cache.grown(CACHE, ROW, (len(looks), 1), made)[:, 0])
