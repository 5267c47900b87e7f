"""Receipts: every promise made of a list of photos, and whether answers bear it out.

    receipts.jsonl    one line per receipt, appended; version 0.2 kept them in photos.sqlite

A receipt says what was promised of which query, on which photos (as rows, and as a hash of their
contents), by which model (the hash of its weights, and of its link), when and for whom. Its photos
have an order drawn at random when it was written, before anyone could know the answers: whoever
checks the promise later answers them in that order. A promise that was taken back, because an
answer it rests on was, is followed by a line that says so. The same promise of the same photos by
the same model is kept once. An index that is built anew takes its receipts over.

What is known of a photo comes from the index (corrections, audits and checks) and from a table of
answers. It is right for a query where everybody who spoke of it said so: "no", "unsure" and answers
that disagree count as wrong. A sample must not be chosen by what it shows, so only answers that
stand, without a gap, at the beginning of the receipt's own random order count as drawn; all others
only say that so many photos are right or wrong at least.
"""

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from secrets import randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import AnswerLog, Note
from labelwise.decide import (
    KeptLists,
    ListAnswers,
    ListVerdict,
    Promise,
    judge_list,
    judge_lists,
)
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.photos.check_log import answers_of, is_of_likeness
from labelwise.photos.index import Index
from labelwise.photos.prevalence import read_answered
from labelwise.photos.query import said_of
from labelwise.photos.store import Store
from labelwise.retrieval import Query
from labelwise.system.table_files import write_csv
from labelwise.system.text import from_cell

RECEIPTS_FILE = "receipts.jsonl"
NOTE = "receipt"
QUESTION_COLUMNS = ("receipt", "query", "path", "answer")
OLD_TABLE = "receipts"
OLD_COLUMNS = "id, query, promise, photos, weights, link, held_out, seed, who, at, withdraws, rows"
OF_TAGS = "tags {"  # how the name of a receipt of tags begins, in indexes of 0.2

Rows = NDArray[np.int64]
Told = Mapping[str, Mapping[int, bool]]  # whether a row is right, by query


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

    @property
    def is_of_tags(self) -> bool:
        """Whether it is of written tags, as version 0.2 kept some."""
        return self.query.startswith(OF_TAGS)

    @property
    def title(self) -> str:
        """What it is of, in words."""
        if not self.is_of_tags:
            return self.query
        return f"tags of {', '.join(json.loads(self.query.removeprefix('tags ')))}"

    def spec(self) -> dict[str, Any]:
        """Return the receipt as plain data."""
        return {**vars(self), "promise": {**self.promise.spec(), "text": str(self.promise)}}


@dataclass(frozen=True)
class _Line:
    """A receipt as it is kept, or the withdrawal of one."""

    number: int
    query: str
    promise: dict[str, Any] | None
    photos: str
    weights: str
    link: str
    held_out: str
    seed: int
    who: str
    at: str
    withdraws: int | None
    rows: str  # bits, compressed, in base 64

    @property
    def origin(self) -> tuple[object, ...]:
        """What tells a line from others in every index that it is copied to."""
        return self.query, str(self.promise), self.photos, self.seed, self.who, self.at

    def of_rows(self) -> Rows:
        """Return the rows of the list."""
        if not self.rows:
            return np.empty(0, np.int64)
        bits = np.frombuffer(zlib.decompress(b64decode(self.rows)), np.uint8)
        return np.flatnonzero(np.unpackbits(bits))


def keep_receipt(
    index: Index, query: Query | str, promise: Promise, rows: Rows, who: str | None = None
) -> Receipt:
    """Keep a promise of a list of rows, and return its receipt; the one it has if it is known."""
    said, packed = {**promise.spec(), "made": ""}, _packed(rows)
    model = index.spec.weights_sha256, _link_digest(index)
    with index.store.transaction():  # one process at a time numbers its receipts
        lines = _lines(index.store)
        withdrawn = {line.withdraws for line in lines}
        for line in lines:
            known = (line.query, line.weights, line.link, line.rows)
            if line.promise is None or line.number in withdrawn or known[1:] != (*model, packed):
                continue
            if known[0] == str(query) and {**line.promise, "made": ""} == said:
                return _receipt(line, False)
        made = _Line(
            number=max((line.number for line in lines), default=0) + 1,
            query=str(query),
            promise=promise.spec(),
            photos=_photos(index, rows),
            weights=model[0],
            link=model[1],
            held_out=_held_out(index) if promise.n else "",
            seed=randbits(62),
            who=who or getuser(),
            at=_now(),
            withdraws=None,
            rows=packed,
        )
        _write(index.store, vars(made))
    return _receipt(made, False)


def withdraw(index: Index, number: int, who: str | None = None) -> None:
    """Note that the promise of a receipt no longer stands, as an answer it rests on was undone."""
    with index.store.transaction():
        lines = _lines(index.store)
        line = next(line for line in lines if line.number == number)
        noted = {"promise": None, "seed": 0, "who": who or getuser(), "at": _now(), "rows": ""}
        last = max(line.number for line in lines)
        _write(index.store, vars(line) | noted | {"number": last + 1, "withdraws": number})


def carry_receipts(before: Store, index: Index) -> None:
    """Copy the receipts of an index that is built anew; photos are known by their contents."""
    lines, numbers = _lines(before), dict[int | None, int | None]({None: None})
    listed = {line.number: line.of_rows().tolist() for line in lines}
    contents = before.contents_of({row for rows in listed.values() for row in rows})
    row_of = index.store.rows_by_hash({content.hash for content in contents.values()})
    there = _lines(index.store)  # of a copy that was killed
    known = {line.origin: line.number for line in there}
    last = max((line.number for line in there), default=0)
    for line in lines:
        if line.origin not in known:
            last += 1
            hashes = [contents[row].hash for row in listed[line.number]]
            rows = np.array([row_of[digest] for digest in hashes if digest in row_of], np.int64)
            moved = {"withdraws": numbers[line.withdraws], "rows": _packed(rows), "number": last}
            _write(index.store, vars(line) | moved)
        numbers[line.number] = known.get(line.origin, last)


def receipts_of(index: Index) -> list[Receipt]:
    """Return every receipt, in order."""
    lines = _lines(index.store)
    withdrawn = {line.withdraws for line in lines}
    return [_receipt(line, line.number in withdrawn) for line in lines if line.promise is not None]


def rows_in_order(index: Index, receipt: Receipt) -> Rows:
    """Return the rows of a receipt's list in the order drawn for those who check it."""
    line = next(line for line in _lines(index.store) if line.number == receipt.number)
    return np.asarray(np.random.default_rng(line.seed).permutation(line.of_rows()))


def _lines(store: Store) -> list[_Line]:
    """Return the lines in order: those that version 0.2 wrote, then those of the file."""
    lines = []
    if store.has_table(OLD_TABLE):
        for values in store.select(f"SELECT {OLD_COLUMNS} FROM {OLD_TABLE} ORDER BY id"):
            record = dict(zip(OLD_COLUMNS.split(", "), values, strict=True))
            number, promise = record.pop("id"), record.pop("promise")
            spec = None if promise is None else json.loads(promise)
            rows = b64encode(record.pop("rows")).decode()
            lines.append(_Line(number=number, promise=spec, rows=rows, **record))
    try:
        return [*lines, *(_Line(**record) for record in _log(store).notes(NOTE))]
    except (DataError, TypeError):
        raise CheckpointError(
            f"{store.folder / RECEIPTS_FILE} holds a line that is not a receipt as it was written; "
            "bring the file back from a copy, or move it away"
        ) from None


def _write(store: Store, record: Mapping[str, Any]) -> None:
    _log(store).append([Note(NOTE, record)])


def _log(store: Store) -> AnswerLog:
    return AnswerLog(store.folder / RECEIPTS_FILE)


def _receipt(line: _Line, withdrawn: bool) -> Receipt:
    said = (line.photos, line.weights, line.link, line.held_out, line.who, line.at)
    return Receipt(line.number, line.query, Promise.from_spec(line.promise or {}), *said, withdrawn)


def _packed(rows: Rows) -> str:
    bits = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
    bits[rows] = True
    return b64encode(zlib.compress(np.packbits(bits).tobytes())).decode()


def _photos(index: Index, rows: Rows) -> str:
    contents = index.store.contents_of(rows.tolist())
    hashes = sorted(content.hash for content in contents.values())
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def _held_out(index: Index) -> str:
    photos = index.held_out_photos
    return "" if photos is None else photos.evidence("").digest


def _link_digest(index: Index) -> str:
    return hashlib.sha256(json.dumps(index.spec.link, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Were the promises kept?


@dataclass(frozen=True)
class VerifiedLists:
    """Every receipt of a list that stands with its verdict, and all of them together."""

    lists: tuple[tuple[Receipt, ListVerdict], ...]
    together: KeptLists

    @property
    def by_number(self) -> dict[int, ListVerdict]:
        """The verdict of each receipt."""
        return {receipt.number: verdict for receipt, verdict in self.lists}


def verify_lists(index: Index, answers: Told | None = None) -> VerifiedLists:
    """Return whether the promises of an index were kept, as far as anybody can tell.

    ``answers`` are those of :func:`read_list_answers`, beside what the index knows.
    """
    every, lists = answers or {}, []
    for receipt in _standing(index):
        known = _known(index, receipt.query, every.get(receipt.query, {}))
        told = _answers(rows_in_order(index, receipt), known)
        lists.append((receipt, judge_list(receipt.promise, told)))
    return VerifiedLists(tuple(lists), judge_lists([verdict for _, verdict in lists]))


def _standing(index: Index) -> list[Receipt]:
    """Return the receipts of lists that were not withdrawn; version 0.2 kept some of tags, too."""
    return [
        receipt
        for receipt in receipts_of(index)
        if not receipt.withdrawn and not receipt.is_of_tags
    ]


def write_list_questions(index: Index, path: Path, each: int) -> int:
    """Write the first photos of each receipt's order as a table to answer; return how many."""
    if each < 1:
        raise DataError(f"at least one photo per list must be asked about, got {each}")
    receipts, questions = _standing(index), []
    if not receipts:
        raise DataError(
            "no list was guaranteed, so there is nothing to ask; `labelwise audit INDEX QUERY` "
            "guarantees one by your answers"
        )
    for receipt in receipts:
        known = _known(index, receipt.query, {})
        first = rows_in_order(index, receipt)[:each].tolist()
        for row, places in index.store.paths_of(first).items():
            if row not in known and places:
                questions.append((receipt.number, receipt.query, places[0], ""))
    write_csv(path, QUESTION_COLUMNS, questions)
    return len(questions)


def read_list_answers(index: Index, path: Path) -> dict[str, dict[int, bool]]:
    """Return the answers of a table: path, answer, and query where lists of several were promised.

    Photos without an answer are passed over. A photo that was answered twice is right if it is both
    times.
    """
    queries = sorted({receipt.query for receipt in receipts_of(index) if not receipt.is_of_tags})
    columns, lines = read_answered(path)
    if "query" not in columns and len(queries) > 1:
        raise DataError(
            f"{path} must say in a column query of which query each answer is: lists of "
            f"{len(queries)} queries were promised"
        )
    answers: dict[str, dict[int, bool]] = {}
    for line in lines:
        query = (queries or [""])[0]
        if "query" in columns:
            query = _as_kept(index, from_cell(line.cells["query"] or ""))
        if query not in queries:
            raise DataError(f"{line.place}: no list of {query!r} was promised")
        row, rows = index.row_of(line.path), answers.setdefault(query, {})
        rows[row] = rows.get(row, True) and line.answer == "yes"
    return answers


def _as_kept(index: Index, text: str) -> str:
    """Return a query as receipts spell it; the text itself where it is not a query."""
    with suppress(LabelwiseError):
        return str(Query.parse(text, index.space, index.taxonomy))
    return text


def _known(index: Index, text: str, more: Mapping[int, bool]) -> dict[int, bool]:
    """Return whether photos are right for a query, by what everybody said of them."""
    known: dict[int, bool] = {}
    if not is_of_likeness(text):
        query = Query.parse(text, index.space, index.taxonomy)
        rows, hits, told = said_of(index, index.bound(query))
        known = dict(zip(rows[told].tolist(), hits[told].tolist(), strict=True))
    checked = [(answer.row, answer.answer == "yes") for answer in answers_of(index.store, text)]
    for row, is_right in (*checked, *more.items()):
        known[row] = known.get(row, True) and is_right
    return known


def _answers(order: NDArray[np.int64], known: Mapping[int, bool]) -> ListAnswers:
    """Return the answers about a list's photos, which stand in the order drawn for them."""
    rows = order.tolist()
    given = [known[row] for row in rows if row in known]
    drawn = next((at for at, row in enumerate(rows) if row not in known), len(rows))
    missed = sum(not known[row] for row in rows[:drawn])
    return ListAnswers(sum(given), len(given) - sum(given), drawn, missed)
