"""``photos.sqlite`` with a sum for every row, and the hashes of all other files of an index.

A flipped bit is never taken for a probability, or for the name of a photo:

    file                                   summed when        checked when
    rows of photos.sqlite                  written            read
    schema of photos.sqlite                updated            the index is opened
    lookups in photos.sqlite               -                  the first one that finds nothing
    scores/*, embeddings/*, looks/*        written            first read by a process
    cache/*.bin                            written            first mapped by a process
    model.json, index.json                 written            the index is opened
    held-out, validation, taxonomy, ...    written            read

Sums guard against faults of disks and killed writers, not against people who can write here. Rows
of version 0.2 have none until the next update; from then on a missing sum is damage. A file that is
replaced has no hash until the new one is in its place. ``cache/NAME.bin`` (arrays end to end, to be
mapped) can be made again and has its CRC-32 in ``cache/NAME.bin.sums``.
"""

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import locked, require_regular
from labelwise.base.text import one_line
from labelwise.errors import CheckpointError, LabelwiseError

HASHED = (
    *("index.json", "model.json", "held-out.parquet", "validation.parquet", "taxonomy.csv"),
    *("projection.npy", "scores/*.parquet", "embeddings/*.parquet", "looks/*.parquet"),
)
CHUNK = 1 << 20  # bytes that are read at once

Parts = Callable[[int, int], Iterable[NDArray[Any]]]
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
  source TEXT NOT NULL, sum INTEGER);
CREATE INDEX corrections_of_label ON corrections (label, row);
CREATE TABLE sidecars (
  raw BLOB PRIMARY KEY, path TEXT NOT NULL, before BLOB, after BLOB NOT NULL, wrote TEXT);
CREATE TABLE embedded (
  raw BLOB PRIMARY KEY, path TEXT NOT NULL, patch BLOB NOT NULL, after BLOB NOT NULL,
  wrote TEXT NOT NULL);
CREATE TABLE checksums (name TEXT PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 3;
"""  # of version 0.2; PRAGMA user_version tells versions apart
OF_0_2, VERSION = 3, 4
MIGRATION = "".join(
    f"ALTER TABLE {table} ADD COLUMN sum INTEGER;"
    for table in ("roots", "contents", "files", "sidecars", "embedded")
) + (
    "DROP TABLE IF EXISTS photo_headers;"  # they are read again
    "CREATE TABLE photo_headers (row INTEGER PRIMARY KEY, stamp TEXT NOT NULL, camera TEXT, "
    f"rating INTEGER, keywords TEXT NOT NULL, sum INTEGER); PRAGMA user_version = {VERSION};"
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
SCHEMA_NAME = "photos.sqlite"  # of the schema's hash among those of files


def sum_of(*values: Any) -> int:
    """Return the checksum of a row."""
    return zlib.crc32(repr(values).encode("utf-8", "backslashreplace"))


class Database:
    """An open database whose errors are sentences; ``writable`` says whether it may be written."""

    def __init__(self, path: Path, options: str) -> None:
        self.path, self.folder, self.writable = path, path.parent, options == "mode=rw"
        self._checked: set[str] = set()  # files that never change
        self._verified: dict[str, tuple[int, int]] = {}  # when tables were
        self._sound: set[str] = set()  # tables whose indexes lead to all their rows
        self.sealed = False  # whether every row has a sum
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
            self._connection.create_function("sum_of", -1, sum_of, deterministic=True)
            if self.writable:
                self.execute("PRAGMA journal_mode = WAL")
            self.execute("PRAGMA synchronous = NORMAL")
            self.execute("SELECT count(*) FROM roots")
            ((self.version,),) = self.execute("PRAGMA user_version")
            self._check_schema()
            if self.writable and self.version < VERSION:
                self._migrate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with _in_words(self.path):
            return self._connection.execute(statement, values).fetchall()

    def executemany(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        with _in_words(self.path):
            self._connection.executemany(statement, values)

    def has_table(self, name: str) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self.execute(query, (name,)))

    def hash_of(self, name: str) -> bytes | None:
        rows = self.execute("SELECT hash FROM checksums WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def put_hash(self, name: str, digest: bytes | None = None) -> None:
        """Keep the hash of a file as it is, inside a transaction of the caller."""
        values = name, digest or file_hash(self.folder / name)
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
        expected, path, problem = self.hash_of(name), self.folder / name, ""
        try:
            if expected is not None and file_hash(path) != expected:
                problem = "is damaged: it is not what was written"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            raise CheckpointError(f"{path} {problem}; {way_out(self.folder)}")
        self._checked.add(name)
        return expected is not None

    def sound_file(self, name: str) -> Path | None:
        if not (self.folder / name).is_file():
            return None
        self.check_file(name)
        return self.folder / name

    def read(self, table: str, more: str = "", **equal: Any) -> list[tuple[Any, ...]]:
        """Return the summed columns of the rows that have these values; damage is an error.

        ``more`` ends the statement. What finds rows may be damaged, too: the first time that
        nothing is found, SQLite compares the table with its indexes.
        """
        columns, wanted = SUMMED[table], tuple(equal.values())
        where = "WHERE " * bool(equal) + " AND ".join(f"{name} = ?" for name in equal)
        rows = self.execute(
            f"SELECT {', '.join(columns)}, {self._sum(table)} FROM {table} {where} {more}", wanted
        )
        if equal and not rows and table not in self._sound:
            self._require(f"PRAGMA integrity_check({table})", "ok", table)
            self._sound.add(table)
        places = [columns.index(name) for name in equal]
        for *values, total in rows:
            right = total == sum_of(*values) or (total is None and not self.sealed)
            if not right or tuple(values[column] for column in places) != wanted:
                raise self.damaged(table)
        return [row[:-1] for row in rows]

    def put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        columns = (*SUMMED[table], "sum")
        self.executemany(
            f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) "
            f"VALUES ({', '.join('?' * len(columns))})",
            ((*row, sum_of(*row)) for row in rows),
        )

    def seal(self, table: str, where: str, values: Iterable[Sequence[Any]] = ((),)) -> None:
        columns = ", ".join(SUMMED[table])
        self.executemany(f"UPDATE {table} SET sum = sum_of({columns}) WHERE {where}", values)

    def verify(self, table: str) -> None:
        """Raise if any row of a table is damaged; what did not change since is not read again."""
        ((version,),) = self.execute("PRAGMA data_version")
        state = int(version), self._connection.total_changes
        if self._verified.get(table) == state:
            return
        columns, unlike = ", ".join(SUMMED[table]), "IS NOT" if self.sealed else "!="
        damaged = f"{self._sum(table)} {unlike} sum_of({columns})"
        self._require(f"SELECT count(*) FROM {table} WHERE {damaged}", 0, table)
        self._verified[table] = state

    def require_count(self, table: str, where: str, count: int) -> None:
        """Raise unless this number of rows of a table hold, found without any index."""
        key = f"{table} {where}"
        if key not in self._sound:
            query = f"SELECT count(*) FROM {table} NOT INDEXED WHERE {where}"
            self._require(query, count, table)
            self._sound.add(key)

    def _require(self, query: str, answer: object, table: str) -> None:
        if self.execute(query) != [(answer,)]:
            raise self.damaged(table)

    def seal_missing(self) -> None:
        for table in SUMMED:
            self.seal(table, "sum IS NULL")
        self.put_hash(SCHEMA_NAME, self._schema_hash())
        self.sealed = True
        for path in (path for pattern in HASHED for path in self.folder.glob(pattern)):
            name = path.relative_to(self.folder).as_posix()
            if self.hash_of(name) is None:
                self.put_hash(name)

    def _schema_hash(self) -> bytes:
        texts = ", ".join(f"CAST({name} AS BLOB)" for name in ("type", "name", "tbl_name", "sql"))
        rows = self.execute(f"SELECT {texts}, rootpage FROM sqlite_master ORDER BY type, name")
        parts = ([row[:-1] for row in rows], [row[-1] for row in rows])
        return b"".join(hashlib.blake2b(repr(p).encode(), digest_size=16).digest() for p in parts)

    def damaged(self, table: str) -> CheckpointError:
        row = f"a row of its {table} is not what was written"
        return CheckpointError(f"{self.path} is damaged: {row}; {DAMAGED}")

    def _sum(self, table: str) -> str:
        return "sum" if self.version == VERSION or table == "corrections" else "NULL"

    def _check_schema(self) -> None:
        """Raise unless the schema is what was kept of it, where it was; VACUUM moves tables."""
        if not OF_0_2 <= self.version <= VERSION:
            raise CheckpointError(
                f"{self.path} was written by another version of labelwise (its format is "
                f"{self.version}, this version reads {OF_0_2} and {VERSION}); install that version"
            )
        expected = self.hash_of(SCHEMA_NAME) if self.version == VERSION else None
        self.sealed, digest = expected is not None, self._schema_hash()
        if expected not in (None, digest):
            moved = expected is not None and expected[:16] == digest[:16]
            if not moved or self.execute("PRAGMA integrity_check") != [("ok",)]:
                schema = "its schema is not what was written"
                raise CheckpointError(f"{self.path} is damaged: {schema}; {DAMAGED}")

    def _migrate(self) -> None:
        self.execute("DELETE FROM checksums WHERE name = ?", (SCHEMA_NAME,))
        with _in_words(self.path):
            self._connection.executescript(f"BEGIN IMMEDIATE; {MIGRATION} COMMIT;")
        self.version, self.sealed = VERSION, False  # until the next update


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


def way_out(folder: Path) -> str:
    """Return what a person can do about a damaged file of an index."""
    again = f"`labelwise index --rebuild --model RUN -o {folder}`"
    return f"put it back from a backup, or score every photo again with {again}"


class CacheFiles:
    """The folder ``cache`` of an index."""

    def __init__(self, index: Path) -> None:
        self.folder = index / "cache"
        self._sound: dict[str, int] = {}  # bytes of files that match their sums
        self._holding = False

    def grown(
        self, name: str, dtype: "np.dtype[Any]", shape: tuple[int, int], parts: Parts
    ) -> NDArray[Any]:
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

    def _grow(self, name: str, row_size: int, rows: int, parts: Parts) -> None:
        """Check a file, and append the rows that it lacks, while other processes wait.

        It may be made of another, which is then grown under the same lock. A damaged file is
        removed and not cut off, since another process may have mapped it.
        """
        path, sum_at = self.folder / name, self.folder / f"{name}.sums"
        outermost, size, total = not self._holding, 0, 0
        self.folder.mkdir(exist_ok=True)
        with locked(self.folder) if outermost else nullcontext():
            self._holding = True
            try:
                with suppress(FileNotFoundError):
                    noted, total = sum_at.read_bytes(), _sum_of_file(path)
                    size = path.stat().st_size if noted == total.to_bytes(4, "little") else 0
                if not size:
                    path.unlink(missing_ok=True)
                    total = 0
                self._sound[name] = size
                if size // row_size < rows:
                    sum_at.unlink(missing_ok=True)
                    with path.open("ab") as stream:
                        for values in parts(size // row_size, rows):
                            data = np.ascontiguousarray(values).data
                            stream.write(data)
                            total = zlib.crc32(data, total)
                    sum_at.write_bytes(total.to_bytes(4, "little"))
                    self._sound[name] = path.stat().st_size
            finally:
                self._holding = not outermost


def _sum_of_file(path: Path) -> int:
    """Return the CRC-32 of a file, read in pieces: mapped, it would count as memory."""
    total = 0
    with path.open("rb", buffering=0) as stream:
        while data := stream.read(CHUNK):
            total = zlib.crc32(data, total)
    return total
