"""Which photos of an index a search looks at: by folder, day, camera, rating, keywords, look.

A photo with several copies is below a folder if one of them is. A photo without a date, a camera or
a rating passes no filter for it. *Distinct* photos are one of each set of copies, the earliest.
Photos that look alike (:func:`labelwise.pictures.duplicates.first_near`) are laid on each other
(:mod:`labelwise.pictures.copies`); the cache keeps which are copies.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.photos.index import Index
from labelwise.photos.topk import Rows
from labelwise.pictures.copies import copied_pairs, reader
from labelwise.pictures.duplicates import NEAR, first_near
from labelwise.pictures.sources import FileImages
from labelwise.tables.tabular import open_tabular

NOT_IN_TABLE = "(not in the table)"
CACHE = "copies.bin"


@dataclass(frozen=True)
class PhotoGroups:
    """How photos are grouped: not at all (""), by "folder", or by a column of a table.

    A table has a column ``path``; photos that it does not name are a group of their own.
    """

    by: str = ""
    table: Path | None = None

    def __post_init__(self) -> None:
        if self.table is not None and self.by in ("", "folder"):
            raise DataError(f"name a column of {self.table} to group by, as in --by site")
        if self.table is None and self.by not in ("", "folder"):
            got = f"got {self.by!r} and no table"
            raise DataError(f"--by must be folder, or a column of --table; {got}")

    @property
    def digest(self) -> str:
        if self.table is None:
            return ""
        try:
            return blake2b(self.table.read_bytes(), digest_size=16).hexdigest()
        except OSError as error:
            raise DataError(f"{self.table} cannot be read: {error.strerror}") from None

    def of(self, index: Index, rows: Rows) -> dict[str, Rows]:
        if not self.by:
            return {"": rows} if len(rows) else {}
        named = None if self.table is None else self._named(self.table)
        members: dict[str, list[int]] = {}
        for row, paths in index.store.paths_of(rows.tolist()).items():
            groups = [os.path.dirname(paths[0])]
            if named is not None:
                groups = sorted({named[path] for path in paths if path in named}) or [NOT_IN_TABLE]
            if len(groups) > 1:
                several = f"have several {self.by}: {', '.join(groups)}"
                raise DataError(f"{paths[0]} and its copies {several}")
            members.setdefault(groups[0], []).append(row)
        if named is not None and set(members) == {NOT_IN_TABLE}:
            raise DataError(f"{self.table} names no photo of {index.folder} in its column path")
        return {group: np.array(sorted(members[group]), np.int64) for group in sorted(members)}

    def _named(self, table: Path) -> dict[str, str]:
        try:
            file = open_tabular(table)
        except OSError as error:
            raise DataError(f"{table} cannot be read: {error.strerror}") from None
        columns = ["path", self.by]
        for name in columns:
            if name not in file.header:
                header = ", ".join(file.header)
                raise DataError(f"{table} has no column {name!r}; its columns are {header}")
        lines = (
            zip(*(b.column(c).to_pylist() for c in columns), strict=True)
            for b in file.batches(columns)
        )
        groups: dict[str, str] = {}
        for number, (path, group) in enumerate(chain.from_iterable(lines), start=1):
            where, name = f"{table}, row {number}: {path}", str(group)
            if group is None or not name.strip():
                raise DataError(f"{where} has no {self.by}; give it one, or leave it out")
            for place in {str(path), os.path.abspath(table.parent / str(path))}:
                if groups.setdefault(place, name) != name:
                    both = f"{groups[place]!r} and in {name!r}"
                    raise DataError(f"{where} is in {both}; a photo has one {self.by}")
        return groups


EVERYTHING = PhotoGroups()


# Near copies, such as the next photo of a burst


@dataclass(frozen=True)
class NearCopies:
    """How many of some photos look like an earlier one of them."""

    photos: int
    copies: int

    def sentence(self, what: str) -> str:
        if not self.copies:
            return ""
        copies = "1 is a near copy" if self.copies == 1 else f"{self.copies:,} are near copies"
        different = f"{self.photos - self.copies:,} different pictures"
        return f"of {what}, {copies} of an earlier one: {different}"


def near_copies(index: Index, rows: Rows | None = None) -> NearCopies | None:
    """Return how many near copies are among some rows, or all; None where looks are not known."""
    firsts = _first_rows(index)
    if firsts is None:
        return None
    some = index.store.alive_rows() if rows is None else rows
    return NearCopies(len(some), len(some) - len(np.unique(firsts[some])))


def copied_rows(index: Index) -> Rows:
    """Return the rows to leave out for distinct photos: all of a picture but the earliest there."""
    alive = index.store.alive_rows()
    return np.delete(alive, np.unique(pictures_of(index)[alive], return_index=True)[1])


def pictures_of(index: Index) -> Rows:
    """Return the picture (rows,) of each photo: the row of the first one that it looks like."""
    firsts = _first_rows(index)
    if firsts is None:
        raise DataError(
            f"{index.folder} does not know what its photos look like; score them again with "
            "`labelwise index --rebuild`, or do not ask for distinct photos"
        )
    return firsts


def _first_rows(index: Index) -> Rows | None:
    store, looks = index.store, index.store.looks()
    if not looks.shape[1]:
        return None

    def made(done: int, rows: int) -> Iterator[Rows]:
        known = np.fromfile(store.cache.folder / CACHE, np.int64, done) if done else None
        yield _copied(index, looks[:rows], known)[done:]

    return np.asarray(store.cache.grown(CACHE, np.dtype(np.int64), (len(looks), 1), made)[:, 0])


def _copied(index: Index, looks: NDArray[np.float16], known: Rows | None) -> Rows:
    """Return the first row (n,) that each photo is a copy of: one that was looked at beside it.

    A photo that cannot be read any more is a copy of nothing.
    """
    near = first_near(looks, NEAR, known)
    done = 0 if known is None else len(known)
    rows = np.flatnonzero(near != np.arange(len(near)))
    rows = rows[rows >= done]
    pairs = np.stack([near[rows], rows], 1)
    places = index.store.paths_of(np.unique(pairs).tolist())
    photos = FileImages(
        "", ["" if (at := places.get(row)) is None else at[0] for row in range(len(near))]
    )
    firsts = np.arange(len(near))
    firsts[:done] = near[:done]
    copies = copied_pairs(pairs, reader(photos))[0]
    firsts[copies[:, 1]] = copies[:, 0]
    return firsts


DAY = re.compile(r"[0-9]{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?)?")


@dataclass(frozen=True)
class PhotoFilter:
    """A folder below a root or a whole path, and the first and last day, month or year.

    ``camera`` is part of its name, ``rating`` the least one. ``distinct`` leaves near copies out,
    whatever the other filters leave of the earlier photos.
    """

    folder: str | None = None
    since: str | None = None
    until: str | None = None
    camera: str | None = None
    rating: int | None = None
    keywords: tuple[str, ...] = ()
    distinct: bool = False

    def __post_init__(self) -> None:
        for name, value in (("since", self.since), ("until", self.until)):
            if value and DAY.fullmatch(value) is None:
                kinds = "a day, a month or a year such as 2023-06-30"
                raise DataError(f"{name} must be {kinds}, got {value!r}")
        if self.since and self.until and self.until < self.since[: len(self.until)]:
            raise DataError(f"since {self.since} is after until {self.until}; nothing lies between")
        if self.rating is not None and not 1 <= self.rating <= 5:
            raise DataError(f"a rating must lie between 1 and 5, got {self.rating}")

    def __bool__(self) -> bool:
        return bool(str(self))

    def __str__(self) -> str:
        words = {
            "below": self.folder,
            "since": self.since,
            "until": self.until,
            "by a camera named": self.camera,
            "rated at least": self.rating,
            "with the keyword": " and ".join(self.keywords),
            "near copies counted": "as one" if self.distinct else None,
        }
        return ", ".join(f"{word} {value}" for word, value in words.items() if value)

    def left_out(self, index: Index) -> Rows:
        kept, every = np.ones(len(index), np.bool_), np.arange(len(index))
        if self.distinct:
            kept[copied_rows(index)] = False
        if self.folder:
            kept &= np.isin(every, self._below(index))
        if self.since or self.until:
            first, last = self.since or "", self.until or "9999"
            query = "SELECT row FROM contents WHERE taken >= ? AND substr(taken, 1, ?) <= ?"
            taken = index.store.database.execute(query, (first, len(last), last))
            kept &= np.isin(every, [row for (row,) in taken])
        if self.camera or self.rating or self.keywords:
            from labelwise.photos.metadata import headers_of  # slow to import

            kept[index.store.dead_rows()] = False  # no file of theirs could be asked
            for row, header in headers_of(index.store, np.flatnonzero(kept).tolist()).items():
                named = {word.casefold() for word in header.keywords}
                kept[row] = (
                    (self.camera or "").casefold() in (header.camera or "").casefold()
                    and (self.rating is None or (header.rating or 0) >= self.rating)
                    and all(word.casefold() in named for word in self.keywords)
                )
        return np.flatnonzero(~kept)

    def _below(self, index: Index) -> list[int]:
        database, wanted = index.store.database, os.path.normpath(self.folder or "")
        query = "SELECT DISTINCT row FROM files WHERE root = ? AND state = 'ok' AND row IS NOT NULL"
        found: list[tuple[int]] = []
        for number, root in index.store.roots().items():
            name = os.path.relpath(wanted, root) if os.path.isabs(wanted) else wanted
            if name == os.curdir:
                found += database.execute(query, (number,))
            elif not name.startswith(os.pardir):
                below = f"{query} AND (folder = ? OR substr(folder, 1, ?) = ?)"
                start = name + os.sep
                found += database.execute(below, (number, name, len(start), start))
        if not found:
            where = f"below {self.folder!r}; name a folder of the index"
            raise DataError(f"no photo of {index.folder} lies {where}")
        return [int(row) for (row,) in found]


EVERY_PHOTO = PhotoFilter()
