"""Receipts: every promise made of photos of an index, kept in its database and never changed.

A receipt says what was promised of which query, or of which tags
(:mod:`labelwise.photos.tag_receipts`), on which photos (as rows, and as a hash of their
contents), by which model (the hash of its weights, and of its link), when and for whom. Its photos
have an order drawn at random when it was written, before anyone could know the answers: whoever
checks the promise later answers them in that order (:mod:`labelwise.photos.verifying`).

Each receipt holds a hash of itself and of the one before, so that a change, or one that is taken
out, is noticed; the database refuses both. A promise that was taken back, because an answer
it rests on was, is followed by a line that says so. The same promise of the same photos by the same
model is kept once. An index that is built anew takes its receipts over.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from secrets import randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Promise
from labelwise.errors import CheckpointError
from labelwise.photos.answering import Found, listed_rows
from labelwise.photos.index import Index
from labelwise.photos.refused_searches import carry_refused, note_refused
from labelwise.photos.store import Store
from labelwise.retrieval import Query

TABLE = "receipts"
COLUMNS = "id, query, promise, photos, weights, link, held_out, seed, who, at, withdraws, rows"
SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY AUTOINCREMENT,
    query TEXT NOT NULL, promise TEXT, photos TEXT NOT NULL, weights TEXT NOT NULL,
    link TEXT NOT NULL, held_out TEXT NOT NULL, seed INTEGER NOT NULL, who TEXT NOT NULL,
    at TEXT NOT NULL, withdraws INTEGER, rows BLOB NOT NULL, seal TEXT NOT NULL)""",
    *(
        f"CREATE TRIGGER IF NOT EXISTS receipts_stay_{verb} BEFORE {verb} ON {TABLE} "
        "BEGIN SELECT RAISE(ABORT, 'receipts are never changed'); END"
        for verb in ("UPDATE", "DELETE")
    ),
)

Rows = NDArray[np.int64]
_NONE: Rows = np.empty(0, np.int64)  # of a withdrawal


@dataclass(frozen=True)
class Receipt:
    """A promise that was made of a list.

    ``photos`` is the hash of the contents of the listed photos in the order of these hashes;
    ``weights`` and ``link`` are of the model, ``held_out`` of the photos it was made on.
    """

    number: int
    query: str
    promise: Promise
    photos: str
    weights: str
    link: str
    held_out: str
    who: str
    at: str
    withdrawn: bool = False

    def spec(self) -> dict[str, Any]:
        """Return the receipt as plain data."""
        promise = {**self.promise.spec(), "text": str(self.promise)}
        return {**vars(self), "promise": promise}


@dataclass(frozen=True)
class _Line:
    """One line of the table: a receipt, or the withdrawal of one."""

    id: int
    query: str
    promise: str | None
    photos: str
    weights: str
    link: str
    held_out: str
    seed: int
    who: str
    at: str
    withdraws: int | None
    rows: bytes

    @property
    def origin(self) -> tuple[object, ...]:
        """What tells a line from others in every index that it is copied to."""
        return self.query, self.promise, self.photos, self.seed, self.who, self.at

    def seal(self, before: str) -> str:
        """Return the hash of this line and of all before it."""
        told = [before, *(one for one in vars(self).values() if not isinstance(one, bytes))]
        digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
        digest.update(self.rows)
        return digest.hexdigest()


def keep_found(index: Index, query: Query, found: Found, who: str | None = None) -> Receipt | None:
    """Keep the receipt of what a search promises, or that an expected list was refused.

    None where it promises nothing, and where the index may only be read.
    """
    if not index.store.writable:
        return None
    if found.promised is None:
        if found.declined is not None:
            model = index.spec.weights_sha256, link_digest(index)
            note_refused(index.store, str(query), found.declined, found.photos, *model)
        return None
    return keep_receipt(index, query, found.promised, listed_rows(index, query, found), who)


def keep_receipt(
    index: Index, query: Query | str, promise: Promise, rows: Rows, who: str | None = None
) -> Receipt:
    """Keep a promise of a list of rows, and return its receipt; the one it has if it is known."""
    packed = _packed(rows)
    weights, link = index.spec.weights_sha256, link_digest(index)
    said = {**promise.spec(), "made": ""}
    with index.store.transaction() as database:
        for statement in SCHEMA:
            database.execute(statement)
        known = database.execute(
            f"SELECT {COLUMNS} FROM {TABLE} WHERE query = ? AND weights = ? AND link = ? "
            "AND rows = ? ORDER BY id",
            (str(query), weights, link, packed),
        )
        withdrawn = {one for (one,) in database.execute(f"SELECT withdraws FROM {TABLE}")}
        for line in (_Line(*values) for values in known):
            if line.promise is None or line.id in withdrawn:
                continue
            if {**json.loads(line.promise), "made": ""} == said:
                return _receipt(line, False)
        line = _Line(
            0,
            str(query),
            json.dumps(promise.spec()),
            _photos(index, rows),
            weights,
            link,
            _held_out(index) if promise.n else "",
            randbits(62),
            who or getuser(),
            _now(),
            None,
            packed,
        )
        return _receipt(_appended(database, line), False)


def withdraw(index: Index, number: int, who: str | None = None) -> None:
    """Note that the promise of a receipt no longer stands, as an answer it rests on was undone."""
    with index.store.transaction() as database:
        (values,) = database.execute(f"SELECT {COLUMNS} FROM {TABLE} WHERE id = ?", (number,))
        line = _Line(*values)
        said = (line.query, None, line.photos, line.weights, line.link, line.held_out)
        _appended(database, _Line(0, *said, 0, who or getuser(), _now(), number, b""))


def carry_receipts(before: Store, index: Index) -> None:
    """Copy the receipts of an index that is built anew; photos are known by their contents."""
    carry_refused(before, index.store)
    lines, numbers = _lines(before), dict[int | None, int | None]({None: None})
    if not lines:
        return
    listed = {line.id: _unpacked(line.rows) for line in lines if line.promise is not None}
    contents = before.contents_of({row for rows in listed.values() for row in rows.tolist()})
    found = index.store.rows_by_hash({one.hash for one in contents.values()})
    there = {line.origin: line.id for line in _lines(index.store)}  # of a copy that was killed
    with index.store.transaction() as database:
        for statement in SCHEMA:
            database.execute(statement)
        for line in lines:
            if line.origin in there:
                numbers[line.id] = there[line.origin]
                continue
            rows = [contents[row].hash for row in listed.get(line.id, _NONE).tolist()]
            packed = _packed(np.array([found[one] for one in rows if one in found], np.int64))
            moved = {"withdraws": numbers[line.withdraws], "rows": packed}
            numbers[line.id] = _appended(database, _Line(**{**vars(line), **moved})).id


def receipts_of(index: Index) -> list[Receipt]:
    """Return every receipt, in order; a damaged one is an error."""
    lines = _lines(index.store)
    withdrawn = {line.withdraws for line in lines}
    return [_receipt(one, one.id in withdrawn) for one in lines if one.promise is not None]


def rows_in_order(index: Index, receipt: Receipt) -> Rows:
    """Return the rows of a receipt's list in the order drawn for those who check it."""
    ((packed, seed),) = index.store.select(
        f"SELECT rows, seed FROM {TABLE} WHERE id = ?", (receipt.number,)
    )
    return np.asarray(np.random.default_rng(seed).permutation(_unpacked(packed)))


def _lines(store: Store) -> list[_Line]:
    """Return the lines of the table in order; one that was changed is an error."""
    if not store.has_table(TABLE):
        return []
    lines, before = [], ""
    for *values, seal in store.select(f"SELECT {COLUMNS}, seal FROM {TABLE} ORDER BY id"):
        line = _Line(*values)
        if line.seal(before) != seal:
            raise CheckpointError(
                f"the receipts of {store.folder} were changed or are damaged from number "
                f"{line.id} on; put photos.sqlite back from a backup"
            )
        lines.append(line)
        before = seal
    return lines


def _appended(database: Any, line: _Line) -> _Line:
    """Write a line after the last one, inside the transaction of the caller; return it."""
    last = database.execute(f"SELECT id, seal FROM {TABLE} ORDER BY id DESC LIMIT 1")
    number, before = last[0] if last else (0, "")
    written = _Line(**{**vars(line), "id": number + 1})
    marks = ", ".join("?" * (len(vars(written)) + 1))
    database.execute(
        f"INSERT INTO {TABLE} ({COLUMNS}, seal) VALUES ({marks})",
        (*vars(written).values(), written.seal(before)),
    )
    return written


def _receipt(line: _Line, withdrawn: bool) -> Receipt:
    said = (line.photos, line.weights, line.link, line.held_out, line.who, line.at)
    promise = Promise.from_spec(json.loads(line.promise or ""))
    return Receipt(line.id, line.query, promise, *said, withdrawn)


def _packed(rows: Rows) -> bytes:
    bits = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
    bits[rows] = True
    return zlib.compress(np.packbits(bits).tobytes())


def _unpacked(packed: bytes) -> Rows:
    bits = np.frombuffer(zlib.decompress(packed), np.uint8)
    return np.flatnonzero(np.unpackbits(bits))


def _photos(index: Index, rows: Rows) -> str:
    contents = index.store.contents_of(rows.tolist())
    hashes = sorted(one.hash for one in contents.values())
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def _held_out(index: Index) -> str:
    return "" if index.held_out_photos is None else index.evidence().digest


def link_digest(index: Index) -> str:
    """Return the hash of the link by which an index has its probabilities."""
    return hashlib.sha256(json.dumps(index.spec.link, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
