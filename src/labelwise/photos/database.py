"""``photos.sqlite``: the tables of an index, and how a database of an earlier version gets them.

A folder that may not be written, or lies on a full disk, can still be searched: the database is
then opened for reading alone. What SQLite reports becomes one sentence with the file and the way
out. A damaged page may only be met while rows are fetched, so a statement returns all its rows.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labelwise.errors import CheckpointError, LabelwiseError

PATIENCE_SECONDS = 300.0  # for another process that writes
WRITING = {
    "SQLITE_FULL": "the disk is full; free some space and run the same command again",
    "SQLITE_READONLY": "it may only be read; give this user the right to write there",
    "SQLITE_CANTOPEN": "no permission to write there, or the disk is full",
    "SQLITE_IOERR": "the disk is full or does not answer; free some space and try again",
    "SQLITE_BUSY": "another process is writing to it; try again when that has ended",
}
DAMAGED = "put it back from a backup, or index the photos into a new folder"

SCHEMA = """
CREATE TABLE roots (id INTEGER PRIMARY KEY, path TEXT NOT NULL, raw BLOB NOT NULL UNIQUE);
CREATE TABLE contents (
  row INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
  width INTEGER, height INTEGER, taken TEXT, alive INTEGER NOT NULL DEFAULT 0);
CREATE INDEX dead_contents ON contents (row) WHERE alive = 0;
CREATE TABLE files (
  root INTEGER NOT NULL REFERENCES roots (id), folder TEXT NOT NULL, name TEXT NOT NULL, raw BLOB,
  size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, row INTEGER REFERENCES contents (row),
  state TEXT NOT NULL CHECK (state IN ('ok', 'failed', 'missing')), reason TEXT,
  PRIMARY KEY (root, folder, name)) WITHOUT ROWID;
CREATE INDEX files_of_content ON files (row);
CREATE TABLE corrections (
  id INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL REFERENCES contents (row),
  label TEXT NOT NULL, state TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL,
  source TEXT NOT NULL);
CREATE INDEX corrections_of_label ON corrections (label, row);
CREATE TABLE sidecars (raw BLOB PRIMARY KEY, path TEXT NOT NULL, before BLOB, after BLOB NOT NULL);
"""
# What each version added, in order; PRAGMA user_version counts those that a database has.
MIGRATIONS = (
    "ALTER TABLE sidecars ADD COLUMN wrote TEXT;",
    "CREATE TABLE checksums (name TEXT PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID;"
    "ALTER TABLE corrections ADD COLUMN sum INTEGER;"
    "UPDATE corrections SET sum = sum_of(row, label, state, who, at, source);",
    "CREATE TABLE embedded ("
    "raw BLOB PRIMARY KEY, path TEXT NOT NULL, patch BLOB NOT NULL, after BLOB NOT NULL, "
    "wrote TEXT NOT NULL);",
)

SUMS_SINCE = 2  # the version that brought checksums


def sum_of(*values: Any) -> int:
    """Return the checksum of a row."""
    return zlib.crc32(repr(values).encode("utf-8", "backslashreplace"))


class Database:
    """An open database whose errors are sentences; ``writable`` says whether it may be written.

    ``version`` is how many migrations of the schema it has had.
    """

    def __init__(self, path: Path, options: str) -> None:
        self.path, self.writable = path, options == "mode=rw"
        with _in_words(path):
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?{options}",
                timeout=PATIENCE_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
            )
        try:
            self._connection.create_function("sum_of", 6, sum_of, deterministic=True)
            if self.writable:
                self.execute("PRAGMA journal_mode = WAL")
            self.execute("PRAGMA synchronous = NORMAL")
            self.execute("SELECT count(*) FROM roots")
            ((self.version,),) = self.execute("PRAGMA user_version")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        self._connection.close()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Carry one statement out, and return the rows that it finds."""
        with _in_words(self.path):
            return self._connection.execute(statement, values).fetchall()

    def executemany(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Carry one statement out for each of some values."""
        with _in_words(self.path):
            self._connection.executemany(statement, values)

    def migrate(self) -> None:
        """Bring a database that an earlier version wrote up to date, if it may be written."""
        if self.version > len(MIGRATIONS):
            raise CheckpointError(
                f"{self.path} was written by a later version of labelwise (its format is "
                f"{self.version}, this version knows {len(MIGRATIONS)}); install that version"
            )
        for script in MIGRATIONS[self.version :] if self.writable else ():
            number = self.version + 1
            with _in_words(self.path):
                self._connection.executescript(
                    f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;"
                )
            self.version = number


def create_database(path: Path, schema: str) -> None:
    """Make a database with these tables in an empty file."""
    with _in_words(path), closing(sqlite3.connect(path)) as database:
        database.executescript(schema)


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
    """Turn what SQLite reports into a sentence that names the file."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a mistake of ours
    except UnicodeDecodeError:  # what SQLite says of a damaged table repeats its bytes
        raise CheckpointError(f"{path} cannot be read: it is malformed; {DAMAGED}") from None
    except sqlite3.DatabaseError as error:
        name = str(getattr(error, "sqlite_errorname", ""))
        for kind, words in WRITING.items():
            if name.startswith(kind):
                raise LabelwiseError(f"cannot write {path}: {words}") from None
        raise CheckpointError(f"{path} cannot be read: {error}; {DAMAGED}") from None
