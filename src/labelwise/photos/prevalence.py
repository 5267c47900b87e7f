"""Photos of an index drawn at random to be answered, and the estimates from their answers.

A draw is noted in the answer log before anyone looks, so nobody can draw until the answers please.
Every photo of the sample must be answered: stopping where the figure pleases would choose it.
Photos that came after the draw are not part of the estimate; those that are gone leave both the
library and the sample.

What is answered about a single label becomes a correction, too. The estimate takes the model's
probabilities from before all corrections, since those of answered photos would be right by now.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from getpass import getuser
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from labelwise.answers.log import Answer, Line, LoggedAnswer, Note, answer_of, answered, now
from labelwise.answers.session import Assumed, Key, Session, UseQuestion, as_answer
from labelwise.base.table_files import write_csv
from labelwise.base.text import from_cell
from labelwise.decide import Answered, CountEstimate, estimate_count, estimate_total
from labelwise.errors import DataError
from labelwise.photos.filters import EVERYTHING, PhotoGroups, pictures_of
from labelwise.photos.index import Index
from labelwise.photos.query import labels_told
from labelwise.photos.store import Fact
from labelwise.photos.topk import Rows, stacked
from labelwise.queries import Query
from labelwise.tables.tabular import read_csv_rows

AnsweredLine = tuple[str, str, Answer, Mapping[str, str]]


def read_answered(path: Path) -> list[AnsweredLine]:
    """Return of each answered line of a table its place, its photo, the answer, and its cells."""
    answers: list[AnsweredLine] = []
    for number, line in enumerate(read_csv_rows(path, ("path", "answer")), start=2):
        if line["answer"].strip():
            where = f"{path}, line {number}"
            answers.append((where, from_cell(line["path"]), answer_of(line["answer"], where), line))
    return answers


def read_answers(path: Path) -> dict[str, Answer]:
    """Return the answers of a table by path."""
    answers: dict[str, Answer] = {}
    for place, photo, answer, _ in read_answered(path):
        if answers.setdefault(photo, answer) != answer:
            raise DataError(f"{place}: {photo} has two different answers; leave one of them")
    return answers


VALUES: dict[Answer, float] = {"yes": 1.0, "no": 0.0, "unsure": np.nan}


@dataclass(frozen=True)
class PhotoSample:
    """Photos drawn at random for a query: hashes by group, of the first ``rows`` rows.

    ``by`` and ``table`` (its digest) say how photos were grouped. Only ``distinct`` photos count.
    """

    query: str
    by: str
    table: str
    answers: int
    rows: int
    seed: int
    at: str
    drawn: Mapping[str, tuple[str, ...]]
    distinct: bool = False

    @property
    def photos(self) -> list[str]:
        return [photo for group in self.drawn.values() for photo in group]


SAMPLE = TypeAdapter(PhotoSample)


@dataclass(frozen=True)
class LibraryEstimate:
    """The estimate of the whole library, of each group, and how many photos came after the draw."""

    sample: PhotoSample
    total: CountEstimate
    groups: tuple[CountEstimate, ...]
    newer: int


def draw_sample(
    index: Index,
    query: Query,
    answers: int,
    groups: PhotoGroups = EVERYTHING,
    *,
    distinct: bool = False,
    seed: int | None = None,
) -> PhotoSample:
    """Return ``answers`` random photos, spread over groups; those that were drawn before.

    Each group has about the same number; a small one leaves its rest to the larger ones.
    """
    if answers < 1:
        raise DataError(f"at least one photo must be answered, got {answers}")
    for sample in _samples(index, query, groups, distinct):
        if sample.answers == answers:
            return sample
    seed = secrets.randbits(63) if seed is None else seed
    random, drawn = np.random.default_rng(seed), dict[str, tuple[str, ...]]()
    members = groups.of(index, _countable(index, distinct))
    if not members:
        raise DataError(f"{index.folder} holds no photos to draw from")
    if len(members) > answers:
        few = f"{len(members)} groups need an answer each, and {answers} are asked for"
        raise DataError(f"{few}; ask for at least {len(members)} (--ask), or leave out --by")
    left = answers
    for asked, group in enumerate(sorted(members, key=lambda group: len(members[group]))):
        chosen = random.permutation(members[group])[: left // (len(members) - asked)].tolist()
        drawn[group] = tuple(index.store.photos_of(chosen).values())
        left -= len(chosen)
    kind, drawn = (groups.by, groups.digest), dict(sorted(drawn.items()))
    sample = PhotoSample(str(query), *kind, answers, len(index), seed, now(), drawn, distinct)
    index.store.answers.append([Note("count", vars(sample))])
    return sample


def write_questions(index: Index, sample: PhotoSample, path: Path) -> None:
    """Write the table to answer: path, question, and an empty answer for each photo."""
    paths = index.store.paths_of(index.store.rows_of_photos(sample.photos).values())
    question = f"does it match {sample.query}?"
    rows = [(own[0], question, "") for own in paths.values() if own]
    write_csv(path, ("path", "question", "answer"), rows)


def estimate_from_answers(
    index: Index,
    query: Query,
    answers: Mapping[str, Answer],
    groups: PhotoGroups = EVERYTHING,
    *,
    distinct: bool = False,
    who: str | None = None,
) -> LibraryEstimate:
    """Return how many photos match a query, given answers by path for all photos of a sample."""
    if not answers:
        raise DataError("no photo has an answer yet: write yes, no or unsure for each")
    told = {index.row_of(path): value for path, value in answers.items()}
    for sample in _samples(index, query, groups, distinct):
        asked = SampleAnswers(index, query, sample, who=who)
        alive = set(asked.rows)
        if told.keys() == alive:
            asked.note(told)
            return asked.estimate(groups)
        if others := told.keys() & alive and told.keys() - alive:
            raise DataError(f"{len(others)} answers are of photos that were not drawn for {query}")
        if told and told.keys() < alive:
            missing = f"{len(alive - told.keys())} of the {len(alive)} photos drawn for {query}"
            raise DataError(f"{missing} have no answer; answer each, if need be with unsure")
    by = (f" by {groups.by}" if groups.by else "") + (" as distinct photos" * distinct)
    table = f" of {groups.table} as it is now" if groups.table else ""
    way = "draw some with `labelwise count --ask`, and answer those"
    raise DataError(f"these photos were not drawn for {query}{by}{table}; {way}")


class SampleAnswers(Session):
    """The answers about the photos (``rows``, as drawn) of a sample, and the estimate.

    The latest answer about a photo counts, whoever gave it.
    """

    why = "count"

    def __init__(
        self, index: Index, query: Query, sample: PhotoSample, *, who: str | None = None
    ) -> None:
        self._index, self.sample, self.who = index, sample, who or getuser()
        self._bound = index.bound(query)
        known, dead = index.store.rows_of_photos(sample.photos), {*index.store.dead_rows().tolist()}
        self._rows = {photo: row for photo, row in known.items() if row not in dead}
        self.rows = list(self._rows.values())
        super().__init__(index.store.answers)

    def restart(self) -> None:
        self.answers: dict[int, Answer] = {}

    def covers(self, line: LoggedAnswer) -> bool:
        is_drawn = line.draw == str(self.sample.seed) and line.photo in self._rows
        return is_drawn and (line.why, line.label) == (self.why, self.sample.query)

    def take(self, key: Key, line: Line) -> None:
        self.answers.pop(row := self._rows[key[0]], None)
        if people := self.said.get(key):
            self.answers[row] = as_answer([*people.values()][-1][-1])

    def ahead(self, assumed: Assumed) -> Iterator[UseQuestion]:
        for photo, row in self._rows.items():
            key = photo, self.sample.query
            if row not in self.answers and key not in assumed:
                yield UseQuestion(*key)

    def path(self, question: UseQuestion) -> str:
        row = self._rows[question.photo]
        return self._index.store.paths_of([row])[row][0]

    def answer(self, question: UseQuestion, answer: Answer) -> None:
        self.note({self._rows[question.photo]: answer})

    def note(self, told: Mapping[int, Answer]) -> None:
        """Log answers by row, and what they say of single labels."""
        photos, before = {row: photo for photo, row in self._rows.items()}, {**self.answers}
        new = {row: answer for row, answer in told.items() if before.get(row) != answer}
        line = partial(answered, who=self.who, why=self.why, draw=str(self.sample.seed))
        self.record([line(photos[row], self.sample.query, new[row]) for row in new])
        for row, answer in new.items():
            self._correct(row, before.get(row, ""), answer)

    def undoing(self, key: Key, who: str) -> Line:
        return answered(*key, "undo", who, self.why, draw=str(self.sample.seed))

    def undo(self, who: str = "") -> UseQuestion | None:
        self.refresh()
        before = {**self.answers}
        if question := super().undo(who or self.who):
            row = self._rows[question.photo]
            self._correct(row, before[row], self.answers.get(row, ""))
        return question

    def _correct(self, row: int, before: str, after: str) -> None:
        told = partial(labels_told, self._bound, self._index.space)
        source = "audit" if told("no") and not self.sample.by else "estimate"
        facts: dict[str, Fact] = dict.fromkeys(told(before), "withdrawn")
        if facts := facts | told(after):
            self._index.correct(row, facts, who=self.who, source=source)

    def estimate(self, groups: PhotoGroups = EVERYTHING) -> LibraryEstimate:
        self.refresh()
        index, told = self._index, self.answers
        if len(told) < len(self.rows):
            raise DataError(f"{len(self.rows) - len(told)} photos have no answer yet")
        # The probability of the query for all rows, as the model alone says it.
        odds = [index.odds(column, corrected=False) for column in self._bound.columns]
        scores = self._bound.log_scores(*stacked(odds, slice(None)))
        probs = np.clip(np.exp(scores), 0.0, 1.0)
        parts = []
        alive = _countable(index, self.sample.distinct, self.sample.rows, self.rows)
        for group, members in groups.of(index, alive).items():
            drawn = np.intersect1d(members, self.rows)
            places = np.searchsorted(members, drawn)
            values = np.array([VALUES[told[row]] for row in drawn.tolist()])
            parts.append(Answered.read(probs[members], places, values, group))
        return LibraryEstimate(
            self.sample,
            estimate_total(parts),
            tuple(map(estimate_count, parts)) if groups.by else (),
            len(_countable(index, self.sample.distinct)) - len(alive),
        )


def _countable(
    index: Index, distinct: bool, rows: int | None = None, drawn: Sequence[int] = ()
) -> Rows:
    """Return the photos that are counted: all of the first ``rows``, or one of each picture."""
    alive = index.store.alive_rows(rows)
    if not distinct:
        return alive
    firsts, chosen = pictures_of(index)[alive], np.isin(alive, np.asarray(drawn, np.int64))
    order = np.lexsort((alive, ~chosen, firsts))
    return np.sort(alive[order[np.unique(firsts[order], return_index=True)[1]]])


def _samples(
    index: Index, query: Query, groups: PhotoGroups, distinct: bool
) -> Sequence[PhotoSample]:
    try:
        samples = [SAMPLE.validate_python(note) for note in index.store.answers.notes("count")]
    except ValidationError:
        path = index.store.answers.path
        raise DataError(f"{path} holds a sample that is damaged; bring back a copy") from None
    kind = (str(query), groups.by, groups.digest, distinct)
    return [s for s in samples if (s.query, s.by, s.table, s.distinct) == kind][::-1]
