"""Lists that a person checks, the receipts of what was guaranteed of lists, and how these held.

Nothing but a person's answers guarantees a list. It is as long as these can carry; where it holds
too many wrong photos, the check continues with a shorter one of the same order
(:mod:`labelwise.decide.audits`). Answers are in the answer log of the index, with the query as
their label. A note says which lists of a query were begun: each has its share of the error.

Photos are drawn in the order of random numbers, one per row, from a seed that is kept with the
query's first list, so the order depends on no answer. Every REPEAT-th question is about a photo
that was answered before: where one person changes more than a third of at least three such answers,
nothing is guaranteed.

    receipts.jsonl    one line per receipt, or its withdrawal; version 0.2 had a table

Whoever verifies a receipt answers its photos in a random order that was drawn before. A photo is
right where everybody who spoke of it said yes. Only answers at the beginning of that order, without
a gap, count as drawn; all others only bound how many photos are right or wrong.
"""

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from getpass import getuser
from pathlib import Path
from secrets import randbits
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import Answer, AnswerLog, Line, LoggedAnswer, Note, answered, now
from labelwise.answers.session import Assumed, Key, Session, UseQuestion, Word
from labelwise.base.table_files import write_csv
from labelwise.base.text import from_cell
from labelwise.decide import (
    KeptLists,
    ListAnswers,
    ListAudit,
    ListCheck,
    ListVerdict,
    Promise,
    Statement,
    judge_list,
    judge_lists,
    promised_check,
    size_list,
)
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.index import Index
from labelwise.photos.prevalence import read_answered
from labelwise.photos.query import Asked, Hit, labels_told, said_of
from labelwise.photos.store import Fact, Store
from labelwise.photos.topk import Rows
from labelwise.queries import Query


def name_of(kind: Literal["text", "album"], what: str) -> str:
    """Return the label of such a list in the log; other lists have their query."""
    return f'{kind} "{what}"'


class AnsweredList(Session):
    """What people say of the photos of a query's lists. A photo is right where all say yes."""

    why, repeats = "list", True

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        super().__init__(store.answers)

    def covers(self, line: LoggedAnswer) -> bool:
        return line.why == self.why and line.label == self.name

    def restart(self) -> None:
        self.row_of: dict[str, int] = {}  # of answered photos that are in the index

    def take(self, key: Key, line: Line) -> None:
        if key[0] not in self.row_of:
            self.row_of |= self.store.rows_of_photos(key[:1])

    @property
    def by_row(self) -> dict[int, dict[str, tuple[Word, ...]]]:
        """The answers of each person by row."""
        known = self.said.items()
        return {self.row_of[photo]: own for (photo, _), own in known if photo in self.row_of}

    @property
    def is_right(self) -> dict[int, bool]:
        return {row: _words(people) == {"yes"} for row, people in self.by_row.items()}


def _words(people: Mapping[str, tuple[Word, ...]]) -> set[Word]:
    return {word for words in people.values() for word in words}


RECEIPTS_FILE = "receipts.jsonl"
NOTE = "receipt"
OLD_TABLE = "receipts"
RECEIPT_FIELDS = ("number", "query", "photos", "weights", "link", "held_out", "who", "at")
FIELDS = (*RECEIPT_FIELDS, "promise", "seed", "withdraws", "rows")
OF_TAGS = "tags {"  # how the name of a receipt of tags begins, of which 0.2 had some

Told = Mapping[str, Mapping[int, bool]]  # whether a row is right, by query


@dataclass(frozen=True)
class Receipt:
    """A promise of a list; ``photos``, ``weights``, ``link`` and ``held_out`` are hashes."""

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

    def spec(self) -> dict[str, object]:
        return {**vars(self), "promise": {**self.promise.spec(), "text": str(self.promise)}}


ReceiptLine = Mapping[str, Any]  # a receipt as it is kept, or the withdrawal of one: FIELDS


def keep_receipt(
    index: Index, query: Query | str, promise: Promise, rows: Rows, who: str | None = None
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
            stands = line["promise"] is not None and line["number"] not in withdrawn
            if stands and same.items() <= line.items() and {**line["promise"], "made": ""} == said:
                return _receipt(line, False)
        contents = index.store.contents_of(rows.tolist()).values()
        photos = b"".join(sorted(content.hash for content in contents))
        known = index.held_out_photos if promise.n else None
        made = {
            "number": _last(lines) + 1,
            **same,
            "promise": promise.spec(),
            "photos": hashlib.sha256(photos).hexdigest(),
            "held_out": "" if known is None else known.evidence("").digest,
            "seed": randbits(62),
            "who": who or getuser(),
            "at": now(),
            "withdraws": None,
        }
        _write(index.store, made)
    return _receipt(made, False)


def withdraw(index: Index, number: int, who: str | None = None) -> None:
    """Note that the promise of a receipt no longer stands, as an answer it rests on was undone."""
    with index.store.transaction():
        lines = _lines(index.store)
        line = next(line for line in lines if line["number"] == number)
        noted = {"promise": None, "seed": 0, "who": who or getuser(), "at": now(), "rows": ""}
        _write(index.store, {**line, **noted, "number": _last(lines) + 1, "withdraws": number})


def carry_receipts(before: Store, index: Index) -> None:
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


def receipts_of(index: Index) -> list[Receipt]:
    """Return every receipt of a list, in order."""
    lines = _lines(index.store)
    withdrawn = {line["withdraws"] for line in lines}
    return [
        _receipt(line, line["number"] in withdrawn)
        for line in lines
        if line["promise"] is not None and not line["query"].startswith(OF_TAGS)
    ]


def rows_in_order(index: Index, receipt: Receipt) -> Rows:
    """Return the rows of a receipt's list in the order drawn for those who check it."""
    line = next(line for line in _lines(index.store) if line["number"] == receipt.number)
    return np.asarray(np.random.default_rng(line["seed"]).permutation(_rows(line)))


def _lines(store: Store) -> list[ReceiptLine]:
    lines: list[ReceiptLine] = []
    if store.database.has_table(OLD_TABLE):
        columns = ", ".join(("id", *FIELDS[1:]))
        for values in store.database.execute(f"SELECT {columns} FROM {OLD_TABLE} ORDER BY id"):
            line = dict(zip(FIELDS, values, strict=True))
            promise = None if line["promise"] is None else json.loads(line["promise"])
            lines.append({**line, "promise": promise, "rows": b64encode(line["rows"]).decode()})
    path = store.folder / RECEIPTS_FILE
    with suppress(DataError):
        own = AnswerLog(path).notes(NOTE)
        if all(line.keys() == set(FIELDS) for line in own):
            return [*lines, *own]
    raise CheckpointError(f"{path} holds a line that is not a receipt; bring back a copy")


def _write(store: Store, line: ReceiptLine) -> None:
    AnswerLog(store.folder / RECEIPTS_FILE).append([Note(NOTE, line)])


def _last(lines: Sequence[ReceiptLine]) -> int:
    return max((int(line["number"]) for line in lines), default=0)


def _origin(line: ReceiptLine) -> tuple[object, ...]:
    return (str(line["promise"]), *(line[k] for k in ("query", "photos", "seed", "who", "at")))


def _receipt(line: ReceiptLine, withdrawn: bool) -> Receipt:
    facts = {name: line[name] for name in RECEIPT_FIELDS}
    return Receipt(promise=Promise.from_spec(line["promise"]), withdrawn=withdrawn, **facts)


def _packed(rows: Rows) -> str:
    bits = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
    bits[rows] = True
    return b64encode(zlib.compress(np.packbits(bits).tobytes())).decode()


def _rows(line: ReceiptLine) -> Rows:
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
        return {receipt.number: verdict for receipt, verdict in self.lists}


def verify_lists(index: Index, answers: Told | None = None) -> VerifiedLists:
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


def _standing(index: Index) -> list[Receipt]:
    return [own for own in receipts_of(index) if not own.withdrawn]


def write_list_questions(index: Index, path: Path, each: int) -> int:
    """Write the first photos of each receipt's order as a table to answer; return how many."""
    if each < 1:
        raise DataError(f"at least one photo per list must be asked about, got {each}")
    receipts, questions = _standing(index), []
    if not receipts:
        why = "no list was guaranteed, so there is nothing to ask"
        raise DataError(f"{why}; run `labelwise audit INDEX QUERY`")
    for receipt in receipts:
        known = _known(index, receipt.query, {})
        first = rows_in_order(index, receipt)[:each].tolist()
        for row, places in index.store.paths_of(first).items():
            if row not in known and places:
                questions.append((receipt.number, receipt.query, places[0], ""))
    write_csv(path, ("receipt", "query", "path", "answer"), questions)
    return len(questions)


def read_list_answers(index: Index, path: Path) -> dict[str, dict[int, bool]]:
    """Return the answers of a table: path, answer, and query where lists of several were promised.

    A photo that was answered twice is right if it is both times.
    """
    queries = sorted({receipt.query for receipt in receipts_of(index)})
    answers: dict[str, dict[int, bool]] = {}
    for place, photo, answer, cells in read_answered(path):
        if "query" not in cells and len(queries) > 1:
            which = f"which of {len(queries)} queries is answered"
            raise DataError(f"{path} must say in a column query {which}")
        query = (queries or [""])[0]
        if "query" in cells:
            query = from_cell(cells["query"])
            with suppress(LabelwiseError):  # as receipts spell it, where it is a query
                query = str(Query.parse(query, index.space, index.taxonomy))
        if query not in queries:
            raise DataError(f"{place}: no list of {query!r} was promised")
        row, rows = index.row_of(photo), answers.setdefault(query, {})
        rows[row] = rows.get(row, True) and answer == "yes"
    return answers


def _known(index: Index, text: str, more: Mapping[int, bool]) -> dict[int, bool]:
    known: dict[int, bool] = {}
    is_of_likeness = text.startswith(('text "', 'album "')) and text.endswith('"')
    if not is_of_likeness:  # a model's labels say nothing of texts and albums
        query = Query.parse(text, index.space, index.taxonomy)
        rows, hits, told = said_of(index, index.bound(query))
        known = dict(zip(rows[told].tolist(), hits[told].tolist(), strict=True))
    for row, is_right in (*AnsweredList(index.store, text).is_right.items(), *more.items()):
        known[row] = known.get(row, True) and is_right
    return known


# A person checks a list


ANSWERS = 30  # that a person is taken to be willing to give
LEAST_CHECKED = 0.2  # probability of a photo on a list that is worth checking
REPEAT = 8  # questions from one repeated photo to the next
FEWEST_REPEATS = 3  # of which a third may change before the answers are called unsteady
PATIENCE = 40  # checks; a list that takes more is better made shorter
SHORTER = 0.5  # of a list whose check failed
KEY = ("wrong_at_most", "listed", "cut", "distinct")

ListKey = tuple[float, int, float, bool]


@dataclass(frozen=True)
class CheckState:
    """What is known of the list of a ``query`` now, in numbers and in words.

    ``more`` is about how many more checks it takes, None where checking would not do; ``shorter``
    the length of a list that is worth a try where it takes many.
    """

    query: str
    check: ListCheck
    promise: Promise | None
    more: int | None
    shorter: int | None
    unsure: int
    disagreed: int
    repeats: int
    changed: int

    @property
    def unsteady(self) -> bool:
        return self.repeats >= FEWEST_REPEATS and 3 * self.changed > self.repeats

    @property
    def statement(self) -> Statement | None:
        if self.promise is None:
            return None
        words = self.promise.in_words(self.query)
        guaranteed = f"{words[0].upper()}{words[1:]}."
        return Statement("guarantee", guaranteed, high=self.check.wrong_at_most)

    def __str__(self) -> str:
        return self.sentence(f": --top {self.shorter}")

    def sentence(self, way: str = "") -> str:
        """Return what is known and what to do; ``way`` says how to take a shorter list."""
        check = self.check
        done = f"{check.checked:,} checked, {check.wrong:,} wrong or unsure"
        if self.disagreed:
            done += f" ({self.disagreed:,} of them answered differently by two people)"
        if self.unsteady:
            twice = f"{self.changed} of {self.repeats} photos shown twice were answered differently"
            rest = "take a break, or say unsure. Nothing is guaranteed on these answers"
            return f"{done}; {twice}: {rest}"
        if self.promise is not None:
            return f"{done}; {self.promise.in_words(self.query)}"
        if check.checked and self.unsure == check.checked:
            why = "every answer was unsure, so nothing can be guaranteed"
            return f"{done}; {why}; ask somebody who can tell, or another query"
        if check.checked == check.listed:
            return f"{done}; the whole list was checked and no photo of it is right"
        fewer = f"; a list of the best {self.shorter:,} may take fewer{way}" if self.shorter else ""
        if self.more is not None:
            return f"{done}; about {self.more:,} more{fewer}"
        fewer = fewer or "; try another query or a larger share"
        return f"{done}; this list holds too many wrong photos to be guaranteed{fewer}"


class CheckSession(AnsweredList):
    """The check of one list of an index: rows best first, in its own order of draws."""

    def __init__(
        self,
        index: Index,
        query: Query,
        *,
        wrong_at_most: float = 0.1,
        confidence: float = 0.95,
        answers: int = ANSWERS,
        cut: float | None = None,
        top: int | None = None,
        distinct: bool = False,
        who: str | None = None,
    ) -> None:
        """Begin or resume a check as long as ``answers`` carry, to a ``cut``, or of the ``top``."""
        if cut is not None and top is not None:
            raise DataError("a list ends at a probability (cut) or after a number (top), not both")
        asked = Asked(index, query, PhotoFilter(distinct=distinct))
        known, ranking = asked.own.tuning or asked.own.held_out, asked.own.ranking
        if top is None:
            scores = ranking.scores_at_least(known.score_at(LEAST_CHECKED if cut is None else cut))
        else:
            scores = ranking.best(top)[1]
        probs = known.probs(scores.astype(np.float64))
        lengths: tuple[int, ...] = (len(scores),) if len(scores) else ()
        if top is None and cut is None:  # as long as the answers carry, and shorter if that fails
            lengths = size_list(probs, answers, wrong_at_most=wrong_at_most, confidence=confidence)
        if not lengths:
            likely = f"is likely to be at most {100 * wrong_at_most:.3g} % wrong"
            ways = "set its length (--top), or let more of it be wrong (--wrong-at-most)"
            raise DataError(f"no list of {query} {likely}; {ways}")
        rows, scores = ranking.best(lengths[0])
        keys = [(wrong_at_most, length, float(scores[length - 1]), distinct) for length in lengths]
        told = partial(labels_told, asked.bound, index.space)
        self._start(index, str(query), rows, keys, confidence, 1 - probs, told, who)

    @classmethod
    def of_ranked(
        cls,
        index: Index,
        name: str,
        hits: Sequence[Hit],
        *,
        wrong_at_most: float = 0.1,
        confidence: float = 0.95,
        who: str | None = None,
    ) -> "CheckSession":
        """Begin or resume the check of hits without probabilities, best first."""
        if not hits:
            raise DataError(f"no photo answers {name}, so there is nothing to check")
        rows, lowest = np.array([hit.row for hit in hits], np.int64), hits[-1].probability
        session, keys = cls.__new__(cls), [(wrong_at_most, len(rows), lowest, False)]
        wrong = np.full(len(rows), 0.5)
        session._start(index, name, rows, keys, confidence, wrong, lambda _: {}, who)
        return session

    def _start(
        self,
        index: Index,
        name: str,
        best: Rows,
        keys: Sequence[ListKey],
        confidence: float,
        wrong: NDArray[np.float64],
        told: Callable[[str], dict[str, Fact]],  # what an answer says of single labels
        who: str | None,
    ) -> None:
        self._index, self._best, self.who, self._told = index, best, who or getuser(), told
        self._what = "distinct photos of the list" if keys[0][3] else "photos of the list"
        self._places = [place_of(index.store, name, key) for key in keys]
        seed = next(iter(_lists_of(index.store, name).values()))
        draws = np.random.default_rng(seed).random(int(best.max(initial=0)) + 1)
        order = np.argsort(draws[best], kind="stable")
        self.rows: Rows = best[order]
        self._ranks = {row: rank for rank, row in enumerate(best.tolist())}
        self._new_audit = partial(
            ListAudit,
            tuple(length for _, length, _, _ in keys),
            wrong_at_most=keys[0][0],
            confidence=confidence,
            prior_wrong=wrong,
            places=self._places,
            order=order,
        )
        self.audit = self._new_audit()
        self._values: dict[int, str] = {}  # yes or no by rank, as the audit knows them
        super().__init__(index.store, name)

    def resume(self) -> None:
        right = self.is_right.items()
        values = {self._ranks[row]: "yes" if r else "no" for row, r in right if row in self._ranks}
        if not self._values.items() <= values.items():  # an answer was changed or taken back
            self.audit = self._new_audit()
        self._values = values
        self.audit.resume(values)

    def ahead(self, assumed: Assumed) -> Iterator[UseQuestion]:
        counts = {key: sum(map(len, people.values())) for key, people in self.said.items()}
        once = [key for key, count in counts.items() if count == 1 and key[0] in self.row_of]
        answers = sum(counts.values())
        if once and answers % REPEAT == 0 and not any(key in self.said for key in assumed):
            yield UseQuestion(*once[answers % len(once)], repeated=True)
        audit = deepcopy(self.audit)
        while (rank := audit.question) is not None:
            key = self._key(int(self._best[rank]))
            if rank not in self._values and key not in assumed:
                yield UseQuestion(*key)
            audit.answer(self._values.get(rank, "yes"))

    def _key(self, row: int) -> Key:
        return self.store.photos_of([row])[row], self.name

    def row(self, question: UseQuestion) -> int:
        return self.store.rows_of_photos([question.photo])[question.photo]

    def path(self, question: UseQuestion) -> str:
        return self.store.paths_of([self.row(question)])[self.row(question)][0]

    def answer(self, question: UseQuestion, answer: Answer, who: str | None = None) -> CheckState:
        """Log an answer, by ``who`` or by the person who opened the session."""
        who, row = who or self.who, self.row(question)
        is_new = question.key not in self.said
        self.record([answered(*question.key, answer, who, self.why)])
        if (facts := self._told(answer)) and is_new:
            self._index.correct(row, facts, who=who, source="check")
        state = self.state()
        if state.promise is not None:
            keep_receipt(self._index, self.name, state.promise, self.left(), who)
        return state

    def undo(self, who: str = "") -> UseQuestion | None:
        """Take back what a person said last, and the guarantee that rests on it."""
        who, standing = who or self.who, self.state().promise
        if standing is not None:
            receipt = keep_receipt(self._index, self.name, standing, self.left(), who)
            withdraw(self._index, receipt.number, who)
        last = self._last.get(who)
        words = self.said[last[-1]][who] if last else ("unsure",)
        question = super().undo(who)
        facts: dict[str, Fact] = dict.fromkeys(self._told(str(words[-1])), "withdrawn")
        if question is not None and facts and question.key not in self.said:
            self._index.correct(self.row(question), facts, who=who, source="check")
        return question

    def state(self) -> CheckState:
        self.refresh()
        check, by_row = self.audit.check, self.by_row
        ranks = (rank for rank in self.audit.ranks if rank < check.listed)
        drawn = [by_row[int(self._best[rank])] for rank in ranks]
        each = [words for people in self.said.values() for words in people.values()]
        twice = [words for words in each if len(words) > 1]
        more = check.more()
        is_short = check.listed < 2 or (more is not None and more <= PATIENCE)
        state = CheckState(
            query=self.name,
            check=check,
            promise=None,
            more=more,
            shorter=None if is_short else max(1, int(SHORTER * check.listed)),
            unsure=sum(_words(people) == {"unsure"} for people in drawn),
            disagreed=sum(len(people) > 1 and len(_words(people)) > 1 for people in drawn),
            repeats=len(twice),
            changed=sum(len({*words}) > 1 for words in twice),
        )
        promise = None if state.unsteady else promised_check(check, self._what)
        return replace(state, promise=promise)

    def left(self) -> Rows:
        """Return the photos of the list that were not found wrong, the most probable first."""
        right = self.is_right
        best = self._best[: self.state().check.listed].tolist()
        return np.array([row for row in best if right.get(row, True)], np.int64)


def place_of(store: Store, query: str, key: ListKey) -> int:
    """Return the number of lists of a query tried before this one, which is noted if it is new."""
    lists = _lists_of(store, query)
    if key not in lists:
        seed = next(iter(lists.values()), None)
        drawn = {"seed": randbits(62) if seed is None else seed, "at": now()}
        note = {"query": query, **dict(zip(KEY, key, strict=True)), **drawn}
        store.answers.append([Note("list", note)])
    return [*_lists_of(store, query)].index(key)


def _lists_of(store: Store, query: str) -> dict[ListKey, int]:
    lists: dict[ListKey, int] = {}
    for note in store.answers.notes("list"):
        if note["query"] == query:
            facts: Any = note  # as it is written above
            lists.setdefault(tuple(facts[name] for name in KEY), facts["seed"])
    return lists
