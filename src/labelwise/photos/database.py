"""``photos.sqlite`` with a sum for every row, and the hashes of all other files of an index.

A flipped bit is not taken for a probability, or for the name of a photo:

    file                                   summed when        checked when
    rows of photos.sqlite                  written            read
    scores/*, embeddings/*, looks/*        written            first read by a process
    cache/*.bin                            written            first mapped by a process
    model.json, index.json                 written            the index is opened
    held-out, validation, taxonomy, ...    written            read

Sums guard against faults of disks and killed writers, not against people who can write here. Rows
that version 0.2 wrote have none until they are written again. A file that is replaced has no hash
until the new one is in its place. ``cache/NAME.bin`` (arrays end to end, to be mapped) can be made
again and has its CRC-32 in ``cache/NAME.bin.sums``.
"""

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import MOST_FACTS, locked, require_regular
from labelwise.base.text import one_line
from labelwise.errors import CheckpointError, LabelwiseError

CHUNK = 1 << 20  # bytes that are read at once

T = TypeVar("T", bound=np.generic)
Row = tuple[Any, ...]  # of SQLite, whose columns have no types
Parts = Callable[[int, int], Iterable[NDArray[T]]]
PATIENCE_SECONDS = 300.0  # for another process that writes
WRITING = {
    "SQLITE_FULL": "the disk is full; free some space and run the same command again",
    "SQLITE_READONLY": "it may only be read; give this user the right to write there",
    "SQLITE_CANTOPEN": "no permission to write there, or the disk is full",
    "SQLITE_IOERR": "the disk is full or does not answer; free some space and try again",
    "SQLITE_BUSY": "another process is writing to it; try again when that has ended",
}
DAMAGED = "put it back from a backup, or index the photos into a new folder"

OF_0_2, VERSION = 3, 4
SCHEMA = f"""
CREATE TABLE roots (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, raw BLOB NOT NULL UNIQUE, sum INTEGER);
CREATE TABLE contents (
  row INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
  width INTEGER, height INTEGER, taken TEXT, alive INTEGER NOT NULL DEFAULT 0, sum INTEGER);
CREATE INDEX dead_contents ON contents (row) WHERE alive = 0;
CREATE TABLE files (
  root INTEGER NOT NULL REFERENCES roots (id), folder TEXT NOT NULL, name TEXT NOT NULL, raw BLOB,
  size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, row INTEGER REFERENCES contents (row),
  state TEXT NOT NULL CHECK (state IN ('ok', 'failed', 'missing')), reason TEXT, sum INTEGER,
  PRIMARY KEY (root, folder, name)) WITHOUT ROWID;
CREATE INDEX files_of_content ON files (row);
CREATE TABLE corrections (
  id INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL REFERENCES contents (row),
  label TEXT NOT NULL, state TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL,
  source TEXT NOT NULL, sum INTEGER);
CREATE INDEX corrections_of_label ON corrections (label, row);
CREATE TABLE sidecars (
  raw BLOB PRIMARY KEY, path TEXT NOT NULL, before BLOB, after BLOB NOT NULL, wrote TEXT,
  sum INTEGER);
CREATE TABLE embedded (
  raw BLOB PRIMARY KEY, path TEXT NOT NULL, patch BLOB NOT NULL, after BLOB NOT NULL,
  wrote TEXT NOT NULL, sum INTEGER);
CREATE TABLE checksums (name TEXT PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE photo_headers (
  row INTEGER PRIMARY KEY, stamp TEXT NOT NULL, camera TEXT, rating INTEGER, keywords TEXT NOT NULL,
  sum INTEGER);
PRAGMA user_version = {VERSION};
"""  # PRAGMA user_version tells versions apart
TABLES_OF_0_2 = ("roots", "contents", "files", "sidecars", "embedded")  # which had no sums
MIGRATION = (
    "".join(f"ALTER TABLE {table} ADD COLUMN sum INTEGER;" for table in TABLES_OF_0_2)
    + "DROP TABLE IF EXISTS photo_headers;"  # they are read again
    + "CREATE TABLE photo_headers "
    + SCHEMA.partition("CREATE TABLE photo_headers ")[2]
)
SUMMED = {
    "roots": ("id", "path", "raw"),
    "contents": ("row", "hash", "size", "width", "height", "taken", "alive"),
    "files": (*("root", "folder", "name", "raw", "size", "mtime_ns", "row", "state", "reason"),),
    "corrections": ("row", "label", "state", "who", "at", "source"),
    "sidecars": ("raw", "path", "before", "after", "wrote"),
    "embedded": ("raw", "path", "patch", "after", "wrote"),
    "photo_headers": ("row", "stamp", "camera", "rating", "keywords"),
}  # the columns of which each row has a sum


def sum_of(*values: object) -> int:
    """Return the checksum of a row."""
    return zlib.crc32(repr(values).encode("utf-8", "backslashreplace"))


class Database:
    """An open database whose errors are sentences; ``writable`` says whether it may be written."""

    def __init__(self, path: Path, options: str) -> None:
        self.path, self.folder, self.writable = path, path.parent, options == "mode=rw"
        self._checked: set[str] = set()  # files that never change
        require_regular(path)
        with _in_words(path):
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?{options}",
                timeout=PATIENCE_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
            )
        try:
            if self.writable:
                self.execute("PRAGMA journal_mode = WAL")
            self.execute("PRAGMA synchronous = NORMAL")
            self.execute("SELECT count(*) FROM roots")
            ((self.version,),) = self.execute("PRAGMA user_version")
            if not OF_0_2 <= self.version <= VERSION:
                formats = (
                    f"(its format is {self.version}, this version reads {OF_0_2} and {VERSION})"
                )
                raise CheckpointError(
                    f"{path} was written by another version of labelwise {formats}; "
                    "install that version"
                )
            if self.writable and self.version < VERSION:
                with _in_words(path):
                    self._connection.executescript(f"BEGIN IMMEDIATE; {MIGRATION} COMMIT;")
                self.version = VERSION
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        with _in_words(self.path):
            return self._connection.execute(statement, values).fetchall()

    def executemany(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        with _in_words(self.path):
            self._connection.executemany(statement, values)

    def has_table(self, name: str) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self.execute(query, (name,)))

    def put_hash(self, name: str) -> None:
        """Keep the hash of a file as it is, inside a transaction of the caller."""
        values = name, file_hash(self.folder / name)
        self.execute("INSERT OR REPLACE INTO checksums (name, hash) VALUES (?, ?)", values)

    @contextmanager
    def rewriting(self, *names: str) -> Iterator[None]:
        """Forget the hashes of files while the block replaces them, and note the new ones."""
        for name in names:
            self.execute("DELETE FROM checksums WHERE name = ?", (name,))
        yield
        for name in names:
            if (self.folder / name).is_file():
                self.put_hash(name)

    def check_file(self, name: str, *, once: bool = False) -> bool:
        """Raise if a file is not what was written; ``once`` for files that never change.

        Return whether its hash is known: damage of another cannot be told.
        """
        if once and name in self._checked:
            return True
        expected = self.execute("SELECT hash FROM checksums WHERE name = ?", (name,))
        path, problem = self.folder / name, ""
        try:
            if expected and not (_is_plausible(path) and file_hash(path) == expected[0][0]):
                problem = "is damaged: it is not what was written"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            raise CheckpointError(f"{path} {problem}; {way_out(self.folder)}")
        self._checked.add(name)
        return bool(expected)

    def sound_file(self, name: str) -> Path | None:
        """Return a file that may be missing, if it was never written; damage is an error."""
        path = self.folder / name
        is_known = self.check_file(name)
        require_regular(path)
        return path if is_known or path.is_file() else None

    def read(self, table: str, more: str = "", **equal: object) -> list[Row]:
        """Return the summed columns of the rows that have these values; damage is an error.

        ``more`` ends the statement.
        """
        columns, wanted = SUMMED[table], tuple(equal.values())
        where = "WHERE " * bool(equal) + " AND ".join(f"{name} = ?" for name in equal)
        total = "sum" if self.version == VERSION or table == "corrections" else "NULL"
        rows = self.execute(
            f"SELECT {', '.join(columns)}, {total} FROM {table} {where} {more}", wanted
        )
        places = [columns.index(name) for name in equal]
        for *values, total in rows:
            found = tuple(values[column] for column in places)
            if total not in (None, sum_of(*values)) or found != wanted:
                raise self.damaged(table)
        return [row[:-1] for row in rows]

    def damaged(self, table: str) -> CheckpointError:
        row = f"a row of its {table} is not what was written"
        return CheckpointError(f"{self.path} is damaged: {row}; {DAMAGED}")

    def put(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        columns = (*SUMMED[table], "sum")
        self.executemany(
            f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) "
            f"VALUES ({', '.join('?' * len(columns))})",
            ((*row, sum_of(*row)) for row in rows),
        )


def create_database(path: Path) -> None:
    """Make the tables in an empty file."""
    with _in_words(path), closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)


def open_database(path: Path) -> Database:
    """Return the database at ``path``, for reading alone where it cannot be written."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} is not an index: it has no {path.name}")
    try:
        return Database(path, "mode=rw")
    except CheckpointError:
        raise
    except LabelwiseError as error:
        unwritable = error
    with suppress(LabelwiseError):  # another process holds it open, so that its log can be read
        return Database(path, "mode=ro")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise unwritable  # what was written last stands in the log, which cannot be read
    return Database(path, "immutable=1")


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a mistake of ours
    except UnicodeDecodeError:  # what SQLite says of a damaged table repeats its bytes
        raise CheckpointError(f"{path} cannot be read: it is malformed; {DAMAGED}") from None
    except sqlite3.DatabaseError as error:
        for kind, sentence in WRITING.items():
            if str(getattr(error, "sqlite_errorname", "")).startswith(kind):
                raise LabelwiseError(f"cannot write {path}: {sentence}") from None
        reason = one_line(str(error))[:200]
        raise CheckpointError(f"{path} cannot be read: {reason}; {DAMAGED}") from None


# Hashes of files


def file_hash(path: Path) -> bytes:
    """Return the hash of a file."""
    require_regular(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()


def _is_plausible(path: Path) -> bool:
    """Return whether a file can be one of an index, before all of it is read: 100 GB take time."""
    require_regular(path)
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - 4, 0))
        return stream.read() == b"PAR1" if path.suffix == ".parquet" else size <= MOST_FACTS


def way_out(folder: Path) -> str:
    """Return what a person can do about a damaged file of an index."""
    again = f"`labelwise index --rebuild --model RUN -o {folder}`"
    return f"put it back from a backup, or score every photo again with {again}"


class CacheFiles:
    """The folder ``cache`` of an index."""

    def __init__(self, index: Path) -> None:
        self.folder = index / "cache"
        self._sound: dict[str, int] = {}  # bytes of files that match their sums

    def grown(
        self, name: str, dtype: "np.dtype[T]", shape: tuple[int, int], parts: Parts[T]
    ) -> NDArray[T]:
        """Map the first rows of a file, after appending ``parts(done, rows)`` where it has fewer.

        Where nothing can be written, because the folder may only be read or the disk is full, all
        parts are read into memory.
        """
        rows, width = shape
        if not rows:
            return np.empty(shape, dtype)
        row_size = dtype.itemsize * width
        if self._sound.get(name, 0) < rows * row_size:
            try:
                self._grow(name, row_size, rows, parts)
            except OSError:
                self._sound.pop(name, None)
                return np.concatenate([*parts(0, rows)]).reshape(shape)
        return np.memmap(self.folder / name, dtype, "r", shape=shape).view(np.ndarray)

    def remove(self, pattern: str, *, but: str) -> None:
        for path in self.folder.glob(pattern):
            if but not in path.name:
                with suppress(OSError):  # where nothing can be written, nothing is in the way
                    path.unlink()
                self._sound.pop(path.name, None)

    def _grow(self, name: str, row_size: int, rows: int, parts: Parts[T]) -> None:
        """Check a file, and append the rows that it lacks, while other processes wait.

        A damaged file is removed and not cut off, since another process may have mapped it.
        """
        path, sum_at = self.folder / name, self.folder / f"{name}.sums"
        self.folder.mkdir(exist_ok=True)
        for file, most in ((path, 2 * rows * row_size + MOST_FACTS), (sum_at, 4)):
            if file.exists() and not (file.is_file() and file.stat().st_size <= most):
                file.unlink()  # a pipe, or not what was written: it is made again
        if not sum_at.exists():  # else nothing may have to be written
            sum_at.touch()
        with locked(sum_at):
            size = total = 0
            with suppress(FileNotFoundError):
                total = _sum_of_file(path)
                if sum_at.read_bytes() == total.to_bytes(4, "little"):
                    size = path.stat().st_size
            if not size:
                path.unlink(missing_ok=True)
                total = 0
            if size // row_size < rows:
                sum_at.write_bytes(b"")
                with path.open("ab") as stream:
                    for values in parts(size // row_size, rows):
                        data = np.ascontiguousarray(values).data
                        stream.write(data)
                        total = zlib.crc32(data, total)
                sum_at.write_bytes(total.to_bytes(4, "little"))
            self._sound[name] = path.stat().st_size


def _sum_of_file(path: Path) -> int:
    """Return the CRC-32 of a file, read in pieces: mapped, it would count as memory."""
    total = 0
    with path.open("rb", buffering=0) as stream:
        while data := stream.read(CHUNK):
            total = zlib.crc32(data, total)
    return total
