"""The SQLite database of an index: opened to be written where that is possible, or only read.

A folder that may not be written, or lies on a full disk, can still be searched: the database is
then opened for reading alone. What SQLite reports becomes one sentence with the file and the way
out, wherever it arises: a damaged page may only be met while rows are fetched.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labelwise.errors import CheckpointError, LabelwiseError

__all__ = ["Database", "create_database", "open_database"]

PATIENCE_SECONDS = 300.0  # for another process that writes
WRITING = {
    "SQLITE_FULL": "the disk is full; free some space and run the same command again",
    "SQLITE_READONLY": "it may only be read; give this user the right to write there",
    "SQLITE_CANTOPEN": "no permission to write there, or the disk is full",
    "SQLITE_IOERR": "the disk is full or does not answer; free some space and try again",
    "SQLITE_BUSY": "another process is writing to it; try again when that has ended",
}
DAMAGED = "put it back from a backup, or index the photos into a new folder"


class Database(sqlite3.Connection):
    """A connection whose errors are sentences; ``writable`` says whether it may be written."""

    path: Path = Path()
    writable: bool = True

    @property
    def version(self) -> int:
        """How many migrations of the schema the database has had."""
        return int(self.execute("PRAGMA user_version").fetchone()[0])

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose errors are sentences."""
        cursor = super().cursor(_Cursor)
        cursor.path = self.path
        return cursor

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def executescript(self, script: str) -> Any:
        return self.cursor().executescript(script)


class _Cursor(sqlite3.Cursor):
    path: Path = Path()

    def execute(self, *arguments: Any) -> Any:
        with _in_words(self.path):
            return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        with _in_words(self.path):
            return super().executemany(*arguments)

    def executescript(self, script: str) -> Any:
        with _in_words(self.path):
            return super().executescript(script)

    def fetchone(self) -> Any:
        with _in_words(self.path):
            return super().fetchone()

    def fetchall(self) -> Any:
        with _in_words(self.path):
            return super().fetchall()

    def __next__(self) -> Any:
        with _in_words(self.path):
            return super().__next__()


def create_database(path: Path, schema: str) -> None:
    """Make a database with these tables in an empty file."""
    with _in_words(path), closing(sqlite3.connect(path)) as database:
        database.executescript(schema)


def open_database(path: Path) -> Database:
    """Return the database at ``path``, for reading alone where it cannot be written."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} is not an index: it has no {path.name}")
    place = quote(str(path.absolute()))
    try:
        return _opened(path, f"file:{place}?mode=rw", "PRAGMA journal_mode = WAL")
    except CheckpointError:
        raise
    except LabelwiseError as error:
        unwritable = error
    with suppress(LabelwiseError):  # another process holds it open, so that its log can be read
        return _opened(path, f"file:{place}?mode=ro")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise unwritable  # what was written last stands in the log, which cannot be read
    return _opened(path, f"file:{place}?immutable=1")


def _opened(path: Path, address: str, *first: str) -> Database:
    with _in_words(path):
        database = sqlite3.connect(
            address,
            timeout=PATIENCE_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
            factory=Database,
        )
    database.path, database.writable = path, "mode=rw" in address
    try:
        for statement in (*first, "PRAGMA synchronous = NORMAL", "SELECT count(*) FROM roots"):
            database.execute(statement).fetchone()
    except BaseException:
        database.close()
        raise
    return database


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
