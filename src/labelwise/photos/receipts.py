"""Receipts: every promise made of a list of photos, and whether answers bear it out.

    receipts.jsonl    one line per receipt, appended; version 0.2 kept them in photos.sqlite

The photos of a receipt have a random order, drawn before anyone could know the answers: whoever
checks the promise answers them in that order. A promise that was taken back is followed by a line
that says so. The same promise of the same photos by the same model is kept once.

A photo is right for a query where everybody who spoke of it said so: "no", "unsure" and answers
that disagree count as wrong. Only answers that stand, without a gap, at the beginning of the
receipt's order count as drawn; all others only bound how many photos are right or wrong.
"""

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from secrets import randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import Answer, AnswerLog, Note, now
from labelwise.decide import KeptLists, ListAnswers, ListVerdict, Promise, judge_list, judge_lists
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.photos.index import StoredIndex
from labelwise.photos.prevalence import read_answered
from labelwise.photos.query import said_of
from labelwise.photos.store import Store
from labelwise.retrieval import Query
from labelwise.system.table_files import write_csv
from labelwise.system.text import from_cell


@dataclass(frozen=True)
class Said:
    """One answer about one photo."""

    row: int
    answer: Answer
    who: str


def name_of_text(text: str) -> str:
    """Return what the list of a text is called in the log, where others are called by a query."""
    return f'text "{text}"'


def name_of_album(album: str) -> str:
    """Return what the list of an album is called in the log."""
    return f'album "{album}"'


def is_of_likeness(name: str) -> bool:
    """Return whether a list is that of a text or album, of which a model's labels say nothing."""
    return name.startswith(('text "', 'album "')) and name.endswith('"')


def answers_of(store: Store, query: str) -> list[Said]:
    """Return every answer about a query that was not taken back, in order."""
    lines, kept = store.answers.answers("list", query), list[Said]()
    rows = store.rows_of_photos(line.photo for line in lines)
    for line in lines:
        if line.photo not in rows:
            continue
        if line.answer == "undo":
            kept.pop()
        else:
            kept.append(Said(rows[line.photo], line.answer, line.who))
    return kept


RECEIPTS_FILE = "receipts.jsonl"
NOTE = "receipt"
QUESTION_COLUMNS = ("receipt", "query", "path", "answer")
OLD_TABLE = "receipts"
RECEIPT_FIELDS = ("number", "query", "photos", "weights", "link", "held_out", "who", "at")
FIELDS = (*RECEIPT_FIELDS, "promise", "seed", "withdraws", "rows")
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


Line = Mapping[str, Any]  # a receipt as it is kept, or the withdrawal of one: FIELDS


def keep_receipt(
    index: StoredIndex, query: Query | str, promise: Promise, rows: Rows, who: str | None = None
) -> Receipt:
    """Keep a promise of a list of rows, and return its receipt; the one it has if it is known."""
    link = hashlib.sha256(json.dumps(index.spec.link, sort_keys=True).encode()).hexdigest()
    model = {"weights": index.spec.weights_sha256, "link": link}
    same = {"query": str(query), **model, "rows": _packed(rows)}
    said = {**promise.spec(), "made": ""}
    with index.store.transaction():  # one process at a time numbers its receipts
        lines = _lines(index.store)
        withdrawn = {line["withdraws"] for line in lines}
        for line in lines:
            if line["promise"] is None or line["number"] in withdrawn:
                continue
            if same.items() <= line.items() and {**line["promise"], "made": ""} == said:
                return _receipt(line, False)
        contents = index.store.contents_of(rows.tolist())
        hashes = sorted(content.hash for content in contents.values())
        known = index.held_out_photos if promise.n else None
        made = {
            "number": _last(lines) + 1,
            **same,
            "promise": promise.spec(),
            "photos": hashlib.sha256(b"".join(hashes)).hexdigest(),
            "held_out": "" if known is None else known.evidence("").digest,
            "seed": randbits(62),
            "who": who or getuser(),
            "at": now(),
            "withdraws": None,
        }
        _write(index.store, made)
    return _receipt(made, False)


def withdraw(index: StoredIndex, number: int, who: str | None = None) -> None:
    """Note that the promise of a receipt no longer stands, as an answer it rests on was undone."""
    with index.store.transaction():
        lines = _lines(index.store)
        line = next(line for line in lines if line["number"] == number)
        noted = {"promise": None, "seed": 0, "who": who or getuser(), "at": now(), "rows": ""}
        _write(index.store, {**line, **noted, "number": _last(lines) + 1, "withdraws": number})


def carry_receipts(before: Store, index: StoredIndex) -> None:
    """Copy the receipts of an index that is rebuilt; photos are known by their contents."""
    lines, numbers = _lines(before), dict[int | None, int | None]({None: None})
    listed = {line["number"]: _rows(line).tolist() for line in lines}
    contents = before.contents_of({row for rows in listed.values() for row in rows})
    row_of = index.store.rows_by_hash({content.hash for content in contents.values()})
    there = _lines(index.store)  # of a copy that was killed
    known, last = {_origin(line): line["number"] for line in there}, _last(there)
    for line in lines:
        if _origin(line) not in known:
            last += 1
            hashes = [contents[row].hash for row in listed[line["number"]]]
            rows = np.array([row_of[digest] for digest in hashes if digest in row_of], np.int64)
            moved = {"withdraws": numbers[line["withdraws"]], "rows": _packed(rows)}
            _write(index.store, {**line, **moved, "number": last})
        numbers[line["number"]] = known.get(_origin(line), last)


def receipts_of(index: StoredIndex) -> list[Receipt]:
    """Return every receipt, in order."""
    lines = _lines(index.store)
    withdrawn = {line["withdraws"] for line in lines}
    return [
        _receipt(line, line["number"] in withdrawn) for line in lines if line["promise"] is not None
    ]


def rows_in_order(index: StoredIndex, receipt: Receipt) -> Rows:
    """Return the rows of a receipt's list in the order drawn for those who check it."""
    line = next(line for line in _lines(index.store) if line["number"] == receipt.number)
    return np.asarray(np.random.default_rng(line["seed"]).permutation(_rows(line)))


def _lines(store: Store) -> list[Line]:
    """Return the lines in order: those that version 0.2 wrote, then those of the file."""
    lines: list[Line] = []
    if store.database.has_table(OLD_TABLE):
        columns = ", ".join(("id", *FIELDS[1:]))
        for values in store.database.execute(f"SELECT {columns} FROM {OLD_TABLE} ORDER BY id"):
            line = dict(zip(FIELDS, values, strict=True))
            promise = None if line["promise"] is None else json.loads(line["promise"])
            lines.append({**line, "promise": promise, "rows": b64encode(line["rows"]).decode()})
    try:
        own = AnswerLog(store.folder / RECEIPTS_FILE).notes(NOTE)
        if all(line.keys() == set(FIELDS) for line in own):
            return [*lines, *own]
    except DataError:
        pass
    raise CheckpointError(
        f"{store.folder / RECEIPTS_FILE} holds a line that is not a receipt as it was written; "
        "bring the file back from a copy, or move it away"
    ) from None


def _write(store: Store, line: Line) -> None:
    AnswerLog(store.folder / RECEIPTS_FILE).append([Note(NOTE, line)])


def _last(lines: Sequence[Line]) -> int:
    return max((int(line["number"]) for line in lines), default=0)


def _origin(line: Line) -> tuple[object, ...]:
    return (str(line["promise"]), *(line[k] for k in ("query", "photos", "seed", "who", "at")))


def _receipt(line: Line, withdrawn: bool) -> Receipt:
    facts = {name: line[name] for name in RECEIPT_FIELDS}
    return Receipt(promise=Promise.from_spec(line["promise"]), withdrawn=withdrawn, **facts)


def _packed(rows: Rows) -> str:
    bits = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
    bits[rows] = True
    return b64encode(zlib.compress(np.packbits(bits).tobytes())).decode()


def _rows(line: Line) -> Rows:
    packed = zlib.decompress(b64decode(line["rows"])) if line["rows"] else b""
    return np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8)))


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


def verify_lists(index: StoredIndex, answers: Told | None = None) -> VerifiedLists:
    """Return whether the promises of an index were kept, as far as anybody can tell."""
    every, lists = answers or {}, []
    for receipt in _standing(index):
        known = _known(index, receipt.query, every.get(receipt.query, {}))
        rows = rows_in_order(index, receipt).tolist()
        given = [known[row] for row in rows if row in known]
        drawn = next((at for at, row in enumerate(rows) if row not in known), len(rows))
        missed = sum(not known[row] for row in rows[:drawn])
        told = ListAnswers(sum(given), len(given) - sum(given), drawn, missed)
        lists.append((receipt, judge_list(receipt.promise, told)))
    return VerifiedLists(tuple(lists), judge_lists([verdict for _, verdict in lists]))


def _standing(index: StoredIndex) -> list[Receipt]:
    """Return the receipts of lists that were not withdrawn; version 0.2 kept some of tags, too."""
    return [one for one in receipts_of(index) if not one.withdrawn and not one.is_of_tags]


def write_list_questions(index: StoredIndex, path: Path, each: int) -> int:
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


def read_list_answers(index: StoredIndex, path: Path) -> dict[str, dict[int, bool]]:
    """Return the answers of a table: path, answer, and query where lists of several were promised.

    Photos without an answer are passed over. A photo that was answered twice is right if it is both
    times.
    """
    queries = sorted({receipt.query for receipt in receipts_of(index) if not receipt.is_of_tags})
    columns, lines = read_answered(path)
    if "query" not in columns and len(queries) > 1:
        raise DataError(
            f"{path} must say in a column query which of {len(queries)} queries is answered"
        )
    answers: dict[str, dict[int, bool]] = {}
    for place, photo, answer, cells in lines:
        query = (queries or [""])[0]
        if "query" in columns:
            query = from_cell(cells["query"] or "")
            with suppress(LabelwiseError):  # as receipts spell it, where it is a query
                query = str(Query.parse(query, index.space, index.taxonomy))
        if query not in queries:
            raise DataError(f"{place}: no list of {query!r} was promised")
        row, rows = index.row_of(photo), answers.setdefault(query, {})
        rows[row] = rows.get(row, True) and answer == "yes"
    return answers


def _known(index: StoredIndex, text: str, more: Mapping[int, bool]) -> dict[int, bool]:
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
