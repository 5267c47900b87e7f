"""Files that ``tag`` wrote keywords to, as the index keeps them: what takes each back, and more.

    table sidecars   side-cars: their bytes before, none where there was no side-car
    table embedded   photos: the patch that gives their bytes before

Both tables also have the hash of the bytes that we wrote, and our entries. A file is kept before
it is written, so that a killed command leaves nothing that cannot be taken back.
"""

import json
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Generic, TypeVar

from labelwise.photos.store import Store, shown


@dataclass(frozen=True)
class KeptSidecar:
    """A side-car that we wrote: its bytes before, the hash of those we wrote, and our entries.

    ``wrote`` is None where an index of 0.1 wrote it.
    """

    before: bytes | None
    after: bytes
    wrote: dict[str, list[str]] | None


@dataclass(frozen=True)
class EmbeddedTags:
    """A photo that we wrote keywords into: the patch that takes it back, and our entries.

    ``after`` is the hash of the bytes that the patch is for.
    """

    patch: bytes
    after: bytes
    wrote: dict[str, list[str]]


T = TypeVar("T", KeptSidecar, EmbeddedTags)


class WrittenFiles(Generic[T]):
    """What a table of an index's database says of files by their paths."""

    def __init__(self, store: Store, table: str, undo: str, kind: type[T]) -> None:
        """Take the names of the table and of its column that takes a file back."""
        self._store, self._table, self._undo = store, table, undo
        self._kind: Callable[..., T] = kind

    def find(self, path: str) -> T | None:
        """Return what is kept of a file that we wrote, None for any other."""
        query = f"SELECT {self._undo}, after, wrote FROM {self._table} WHERE raw = ?"
        for undo, after, wrote in self._store.select(query, (os.fsencode(path),)):
            return self._kind(undo, after, None if wrote is None else json.loads(wrote))
        return None

    def paths(self) -> list[str]:
        """Return the files that we have written, in order."""
        query = f"SELECT raw FROM {self._table} ORDER BY raw"
        return [os.fsdecode(raw) for (raw,) in self._store.select(query)]

    def put(self, path: str, kept: T) -> None:
        """Remember a file that is about to be written."""
        undo, after, wrote = astuple(kept)
        noted = None if wrote is None else json.dumps(wrote)
        with self._store.transaction() as database:
            database.execute(
                f"INSERT OR REPLACE INTO {self._table} (raw, path, {self._undo}, after, wrote) "
                "VALUES (?, ?, ?, ?, ?)",
                (os.fsencode(path), shown(path), undo, after, noted),
            )

    def forget(self, path: str) -> None:
        """Forget a file that is as it was before."""
        with self._store.transaction() as database:
            database.execute(f"DELETE FROM {self._table} WHERE raw = ?", (os.fsencode(path),))


def written_sidecars(store: Store) -> WrittenFiles[KeptSidecar]:
    """Return the side-cars that we have written."""
    return WrittenFiles(store, "sidecars", "before", KeptSidecar)


def written_photos(store: Store) -> WrittenFiles[EmbeddedTags]:
    """Return the photos that we have written keywords into."""
    return WrittenFiles(store, "embedded", "patch", EmbeddedTags)
