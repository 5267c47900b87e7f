"""The tables of ``photos.sqlite``, and how a database of an earlier version gets them."""

import zlib
from typing import Any

from labelwise.errors import CheckpointError
from labelwise.search.database import Database

__all__ = ["MIGRATIONS", "SCHEMA", "SUMS_SINCE", "migrate", "sum_of"]

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


def migrate(database: Database) -> None:
    """Bring a database that an earlier version wrote up to date, if it may be written."""
    version = database.version
    if version > len(MIGRATIONS):
        raise CheckpointError(
            f"{database.path} was written by a later version of labelwise (its format is "
            f"{version}, this version knows {len(MIGRATIONS)}); install that version"
        )
    if not database.writable:
        return
    database.create_function("sum_of", 6, sum_of, deterministic=True)
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        database.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
