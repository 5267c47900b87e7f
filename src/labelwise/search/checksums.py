"""Hashes of the files of an index, so that a flipped bit is never taken for a probability.

    file                                   hashed when        checked when
    scores/*, embeddings/*, looks/*        written            first read by a process
    cache/*.bin                            sums of their own: :mod:`labelwise.search.cache`
    model.json, index.json                 written            the index is opened
    held-out, validation, taxonomy, ...    written            read

The hashes stand in the database, in the same transaction that makes the rows of a file known. A
file that is replaced has none until the new one is in its place, so that a process killed between
the two leaves a whole index. Files without a hash, such as those of 0.1, are read as they are, and
hashed by the next update.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.errors import CheckpointError
from labelwise.search.database import SUMS_SINCE, Database

__all__ = ["Checksums", "file_hash", "way_out"]

HASHED = (
    *("index.json", "model.json", "held-out.parquet", "validation.parquet"),
    *("taxonomy.csv", "projection.npy", "scores/*.parquet", "embeddings/*.parquet"),
    "looks/*.parquet",
)


def file_hash(path: Path) -> bytes:
    """Return the hash of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()


def way_out(folder: Path) -> str:
    """Return what a person can do about a damaged file of an index."""
    return (
        "put it back from a backup, or score every photo again with "
        f"`labelwise index --rebuild --model RUN -o {folder}`"
    )


class Checksums:
    """The hashes of an index folder, kept in the table ``checksums`` of its database."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self._database = folder, database
        self._checked: set[str] = set()

    def put(self, name: str) -> None:
        """Note the hash of a file as it is, inside a transaction of the caller."""
        self._database.execute("DELETE FROM checksums WHERE name = ?", (name,))
        self._database.execute(
            "INSERT INTO checksums (name, hash) VALUES (?, ?)",
            (name, file_hash(self.folder / name)),
        )

    @contextmanager
    def rewriting(self, *names: str) -> Iterator[None]:
        """Forget the hashes of files while the block replaces them, and note the new ones."""
        for name in names:
            self._database.execute("DELETE FROM checksums WHERE name = ?", (name,))
        yield
        for name in names:
            if (self.folder / name).is_file():
                self.put(name)

    def check(self, name: str, *, once: bool = False) -> bool:
        """Raise if a file is not what was written; ``once`` for files that never change.

        Return whether its hash is known: damage of another cannot be told.
        """
        if once and name in self._checked:
            return True
        hashes = []
        if self._database.version >= SUMS_SINCE:  # else an index of 0.1 that may only be read
            hashes = self._database.execute("SELECT hash FROM checksums WHERE name = ?", (name,))
        try:
            damaged = bool(hashes) and (file_hash(self.folder / name),) not in hashes
        except OSError as error:
            raise CheckpointError(
                f"{self.folder / name} cannot be read ({error.strerror}); {self.way_out}"
            ) from None
        if damaged:
            raise CheckpointError(
                f"{self.folder / name} is damaged: it is not what was written; {self.way_out}"
            )
        self._checked.add(name)
        return bool(hashes)

    def sound_file(self, name: str) -> Path | None:
        """Return the path of a file that is as it was written, None where there is none."""
        path = self.folder / name
        if not path.is_file():
            return None
        self.check(name)
        return path

    @property
    def way_out(self) -> str:
        """What a person can do about a damaged file."""
        return way_out(self.folder)

    def put_missing(self) -> None:
        """Hash the files that an earlier version wrote without a hash."""
        known = {name for (name,) in self._database.execute("SELECT name FROM checksums")}
        for pattern in HASHED:
            for path in self.folder.glob(pattern):
                name = path.relative_to(self.folder).as_posix()
                if name not in known:
                    self.put(name)
