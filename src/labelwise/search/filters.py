"""Which photos of an index a search looks at: those below a folder, taken in a range of days.

Both are known from indexing, so that no picture is read. A photo with several copies is below a
folder if one of them is. A photo without a date of its own lies in no range of days.
"""

import os
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.search.index import Index

__all__ = ["EVERY_PHOTO", "PhotoFilter"]

DAY = re.compile(r"[0-9]{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?)?")


@dataclass(frozen=True)
class PhotoFilter:
    """A folder below a root, such as 2023/june, and the first and last day, month or year.

    ``folder`` may be a whole path; what is None or empty leaves nothing out.
    """

    folder: str | None = None
    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("since", self.since), ("until", self.until)):
            if value and DAY.fullmatch(value) is None:
                raise DataError(
                    f"{name} must be a day, a month or a year such as 2023-06-30, 2023-06 or 2023, "
                    f"got {value!r}"
                )
        if self.since and self.until and self.until < self.since[: len(self.until)]:
            raise DataError(f"since {self.since} is after until {self.until}; nothing lies between")

    def __bool__(self) -> bool:
        return any((self.folder, self.since, self.until))

    def __str__(self) -> str:
        days = [
            f"{word} {day}" for word, day in (("since", self.since), ("until", self.until)) if day
        ]
        return ", ".join([f"below {self.folder}"] * bool(self.folder) + days)

    def left_out(self, index: Index) -> NDArray[np.int64]:
        """Return the rows of an index that do not pass, in order."""
        kept = np.ones(len(index), np.bool_)
        if self.folder:
            below = np.zeros(len(index), np.bool_)
            below[self._below(index)] = True
            kept &= below
        if self.since or self.until:
            dated = np.zeros(len(index), np.bool_)
            dated[self._taken(index)] = True
            kept &= dated
        return np.flatnonzero(~kept)

    def _below(self, index: Index) -> list[int]:
        wanted = os.path.normpath(self.folder or "")
        query = "SELECT DISTINCT row FROM files WHERE root = ? AND state = 'ok' AND row IS NOT NULL"
        found: list[int] = []
        for number, root in index.store.roots().items():
            name = os.path.relpath(wanted, root) if os.path.isabs(wanted) else wanted
            if name.startswith(os.pardir):
                continue
            if name == os.curdir:
                rows = index.store.select(query, (number,))
            else:
                below = f"{query} AND (folder = ? OR substr(folder, 1, ?) = ?)"
                start = name + os.sep
                rows = index.store.select(below, (number, name, len(start), start))
            found += [int(row) for (row,) in rows]
        if not found:
            raise DataError(
                f"no photo of {index.folder} lies below {self.folder!r}; name a folder below a "
                "root of the index, such as 2023/june, or its whole path"
            )
        return found

    def _taken(self, index: Index) -> list[int]:
        first, last = self.since or "", self.until or "9999"
        rows = index.store.select(
            "SELECT row FROM contents WHERE taken >= ? AND substr(taken, 1, ?) <= ?",
            (first, len(last), last),
        )
        return [int(row) for (row,) in rows]


EVERY_PHOTO = PhotoFilter()
