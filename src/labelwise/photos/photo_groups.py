"""Groups of an index's photos: by folder, or by a column of a table such as site or season."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.data.tabular import open_tabular
from labelwise.errors import DataError
from labelwise.photos.index import Index

NOT_IN_TABLE = "(not in the table)"


@dataclass(frozen=True)
class PhotoGroups:
    """How photos are grouped: not at all (""), by "folder", or by a column of a table.

    A table has a column ``path`` (as the index has it, or relative to the table's folder). Photos
    that it does not name are a group of their own.
    """

    by: str = ""
    table: Path | None = None

    def __post_init__(self) -> None:
        if self.table is not None and self.by in ("", "folder"):
            raise DataError(f"name a column of {self.table} to group by, as in --by site")
        if self.table is None and self.by not in ("", "folder"):
            raise DataError(
                f"--by must be folder, or a column of a table given with --table; got {self.by!r} "
                "and no table"
            )

    @property
    def digest(self) -> str:
        """What tells this grouping from one by the same table with other contents."""
        if self.table is None:
            return ""
        try:
            return blake2b(self.table.read_bytes(), digest_size=16).hexdigest()
        except OSError as error:
            raise DataError(f"{self.table} cannot be read: {error.strerror}") from None

    def of(self, index: Index, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the rows of each group, in the order of their names."""
        if not self.by:
            return {"": rows} if len(rows) else {}
        named = None if self.table is None else self._named(self.table)
        members: dict[str, list[int]] = {}
        for row, paths in index.store.paths_of(rows.tolist()).items():
            group = os.path.dirname(paths[0]) if named is None else self._group_of(paths, named)
            members.setdefault(group, []).append(row)
        if named is not None and set(members) == {NOT_IN_TABLE}:
            raise DataError(f"{self.table} names no photo of {index.folder} in its column path")
        return {group: np.array(sorted(members[group]), np.int64) for group in sorted(members)}

    def _group_of(self, paths: Sequence[str], named: Mapping[str, str]) -> str:
        """Return the group of a photo, whose copies must not lie in two."""
        groups = sorted({named[path] for path in paths if path in named})
        if len(groups) > 1:
            raise DataError(
                f"{paths[0]} and its copies are in {' and '.join(groups)} of {self.table}; a photo "
                f"has one {self.by}"
            )
        return groups[0] if groups else NOT_IN_TABLE

    def _named(self, table: Path) -> dict[str, str]:
        """Return the group of each path, as the table has it and as a path of its own folder."""
        try:
            file = open_tabular(table)
        except OSError as error:
            raise DataError(f"{table} cannot be read: {error.strerror}") from None
        columns = ["path", self.by]
        missing = [name for name in columns if name not in file.header]
        if missing:
            raise DataError(
                f"{table} has no column {missing[0]!r}; its columns are {', '.join(file.header)}"
            )
        found: dict[str, str] = {}
        number = 0
        for batch in file.batches(columns):
            for path, group in zip(*(batch.column(c).to_pylist() for c in columns), strict=True):
                number += 1
                if group is None or not str(group).strip():
                    raise DataError(
                        f"{table}, row {number}: {path} has no {self.by}; give it one, or leave "
                        "the row out"
                    )
                for place in {str(path), os.path.abspath(table.parent / str(path))}:
                    if found.setdefault(place, str(group)) != str(group):
                        raise DataError(
                            f"{table}, row {number}: {path} is in {found[place]!r} and in "
                            f"{str(group)!r}; a photo has one {self.by}"
                        )
        return found


EVERYTHING = PhotoGroups()
