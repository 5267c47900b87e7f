"""A person checks a list: which photo is next, what the answers say, when it is guaranteed.

Nothing but the answers counts. The list is as long as the answers a person is willing to give can
carry; where it holds too many wrong photos, the check continues with a shorter one of the same
order (:mod:`labelwise.decide.list_audit`).

Answers are in the answer log of the index, with the query as their label, so anyone can resume a
check. A note says which lists of a query were begun, in order: each has its share of the error. A
photo counts as right where everybody who was asked about it said yes.

The photos of a query are drawn in the order of random numbers, one per row, from a seed that is
kept with the query's first list. So the order depends on no answer, photos that come later do not
change it, and within a shorter list the photos already answered come first.

Every REPEAT-th question is about a photo that was answered before. Where one person changes answers
for more than a third of at least three such photos, nothing is guaranteed. Near copies are drawn
one by one, unless the list is of ``distinct`` photos: then the guarantee is of these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from secrets import randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import Answer, Note, answered, now
from labelwise.decide import ListAudit, ListCheck, Promise, Statement, promised_check
from labelwise.errors import DataError
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.index import StoredIndex
from labelwise.photos.query import ANSWERS, Asked, Hit, labels_told
from labelwise.photos.receipts import Said, answers_of, keep_receipt, withdraw
from labelwise.photos.store import Fact, Store
from labelwise.retrieval import Query

REPEAT = 8  # questions from one repeated photo to the next
FEWEST_REPEATS = 3  # of which a third may change before the answers are called unsteady
PATIENCE = 40  # checks; a list that takes more is better made shorter
SHORTER = 0.5  # of a list whose check failed
KEY = ("wrong_at_most", "listed", "cut", "distinct")

ListKey = tuple[float, int, float, bool]


@dataclass(frozen=True)
class PhotoToCheck:
    """The next question: does this photo answer the query?"""

    row: int
    paths: tuple[str, ...]
    repeated: bool


@dataclass(frozen=True)
class CheckState:
    """What is known of the list of a ``query`` now, in numbers and in words.

    ``check`` is of the guaranteed list, or of the one that photos are drawn from now. ``more`` is
    about how many more checks it takes; None where checking would not do. Where it would take many,
    ``shorter`` is the length of a list that is worth a try, if there is one.
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
        """Whether too many repeated photos were answered in another way."""
        return self.repeats >= FEWEST_REPEATS and 3 * self.changed > self.repeats

    @property
    def statement(self) -> Statement | None:
        if self.promise is None:
            return None
        words = self.promise.in_words(self.query)
        words = f"{words[0].upper()}{words[1:]}."
        return Statement("guarantee", words, high=self.check.wrong_at_most)

    def __str__(self) -> str:
        return self.sentence(f": --top {self.shorter}")

    def sentence(self, way: str = "") -> str:
        """Return what is known and what to do; ``way`` says how to take a shorter list."""
        check = self.check
        done = f"{check.checked:,} checked, {check.wrong:,} wrong or unsure"
        if self.disagreed:
            done += f" ({self.disagreed:,} of them answered differently by two people)"
        if self.unsteady:
            return (
                f"{done}; {self.changed} of {self.repeats} photos shown twice were answered "
                "differently. That happens when one is tired or the question is hard: take a "
                "break, or say unsure. Nothing is guaranteed on these answers"
            )
        if self.promise is not None:
            return f"{done}; {self.promise.in_words(self.query)}"
        if check.checked and self.unsure == check.checked:
            return (
                f"{done}; every answer was unsure, so nothing can be guaranteed; "
                "ask somebody who can tell, or another query"
            )
        if check.checked == check.listed:
            return f"{done}; the whole list was checked and no photo of it is right"
        shorter = (
            f"a list of the best {self.shorter:,} may take fewer{way}"
            if self.shorter
            else "try another query or a larger share"
        )
        if self.more is None:
            return f"{done}; this list holds too many wrong photos to be guaranteed; {shorter}"
        return f"{done}; about {self.more:,} more" + (f"; {shorter}" if self.shorter else "")


class CheckSession:
    """The check of one list of an index: rows best first, in its own order of draws."""

    def __init__(
        self,
        index: StoredIndex,
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
        """Begin or resume a check: of our own list, down to a probability, or of the best few.

        Our own list is as long as so many ``answers`` can carry. ``distinct``: near copies are one
        photo, the earliest of them.
        """
        if cut is not None and top is not None:
            raise DataError("a list ends at a probability (cut) or after a number (top), not both")
        asked = Asked(index, query, PhotoFilter(distinct=distinct))
        lengths, wrong = asked.list_to_check(
            wrong_at_most, cut=cut, top=top, answers=answers, confidence=confidence
        )
        if not lengths:
            raise DataError(
                f"no list of {query} is likely to be at most {100 * wrong_at_most:.3g} % wrong; "
                "set its length (--top), or let more of it be wrong (--wrong-at-most)"
            )
        rows, scores = asked.own.ranking.best(lengths[0])
        keys = [(wrong_at_most, length, float(scores[length - 1]), distinct) for length in lengths]
        told = partial(labels_told, asked.bound, index.space)
        self._start(index, str(query), rows, keys, confidence, wrong, told, who)

    @classmethod
    def of_ranked(
        cls,
        index: StoredIndex,
        name: str,
        hits: Sequence[Hit],
        *,
        wrong_at_most: float = 0.1,
        confidence: float = 0.95,
        who: str | None = None,
    ) -> "CheckSession":
        """Begin or resume the check of a list without probabilities: only the answers count.

        ``hits`` come best first. ``name`` is what is asked.
        """
        if not hits:
            raise DataError(f"no photo answers {name}, so there is nothing to check")
        rows, lowest = np.array([hit.row for hit in hits], np.int64), hits[-1].probability
        session, keys = cls.__new__(cls), [(wrong_at_most, len(rows), lowest, False)]
        wrong = np.full(len(rows), 0.5)
        session._start(index, name, rows, keys, confidence, wrong, lambda _: {}, who)
        return session

    def _start(
        self,
        index: StoredIndex,
        name: str,
        best: NDArray[np.int64],
        keys: Sequence[ListKey],
        confidence: float,
        wrong: NDArray[np.float64],
        told: Callable[[Answer], dict[str, Fact]],  # what an answer says of single labels
        who: str | None,
    ) -> None:
        self._index, self._name, self._best, self._who = index, name, best, who
        self._told = told
        self._what = "distinct photos of the list" if keys[0][3] else "photos of the list"
        self._places = [place_of(index.store, name, key) for key in keys]
        seed = next(iter(_lists_of(index.store, name).values()))
        draws = np.random.default_rng(seed).random(int(best.max(initial=0)) + 1)
        order = np.argsort(draws[best], kind="stable")
        self.rows: NDArray[np.int64] = best[order]
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

    def _answers(self) -> list[Said]:
        return answers_of(self._index.store, self._name)

    def _log(self, row: int, answer: str, who: str | None) -> None:
        photo = self._index.store.photos_of([row])[row]
        self._index.store.answers.append([answered(photo, self._name, answer, who, "list")])

    def next_photo(self) -> PhotoToCheck | None:
        """Return the photo to ask about next; None where every photo of the list was answered."""
        said = self._answers()
        by_row = _by_row(said)
        once = [answer.row for answer in said if len(by_row[answer.row]) == 1]
        if once and len(said) % REPEAT == 0:
            row = once[len(said) % len(once)]
            return PhotoToCheck(row, tuple(self._index.store.paths_of([row])[row]), True)
        return self._asked(by_row)

    def photo_after(self, photo: PhotoToCheck) -> PhotoToCheck | None:
        """Return the next photo that was never asked about, so that it can be fetched early."""
        by_row = _by_row(self._answers())
        by_row.setdefault(photo.row, [Said(photo.row, "yes", "")])
        return self._asked(by_row)

    def answer(self, photo: PhotoToCheck, answer: Answer) -> CheckState:
        """Note an answer, and return what is known then."""
        self._log(photo.row, answer, self._who)
        facts = self._told(answer)
        if facts and not photo.repeated:
            self._index.correct(photo.row, facts, who=self._who, source="check")
        state = self.state()
        if state.promise is not None:
            keep_receipt(self._index, self._name, state.promise, self.left(), self._who)
        return state

    def undo(self) -> CheckState:
        standing = self.state().promise
        if standing is not None:  # it rests on an answer that is taken back
            receipt = keep_receipt(self._index, self._name, standing, self.left(), self._who)
            withdraw(self._index, receipt.number, self._who)
        if said := self._answers():
            last = said.pop()
            self._log(last.row, "undo", last.who)
            facts: dict[str, Fact] = dict.fromkeys(self._told(last.answer), "withdrawn")
            if facts and last.row not in {other.row for other in said}:
                self._index.correct(last.row, facts, who=self._who, source="check")
        return self.state()

    def state(self) -> CheckState:
        by_row = _by_row(self._answers())
        audit = self._audit(by_row)
        check = audit.check
        drawn = [by_row[int(self._best[rank])] for rank in audit.ranks if rank < check.listed]
        given = [{said.answer for said in some} for some in drawn]
        people = [{said.who for said in some} for some in drawn]
        by_person: dict[tuple[int, str], list[Answer]] = {}
        for said in chain.from_iterable(by_row.values()):
            by_person.setdefault((said.row, said.who), []).append(said.answer)
        twice = [answers for answers in by_person.values() if len(answers) > 1]
        more = check.more()
        is_short = check.listed < 2 or (more is not None and more <= PATIENCE)
        state = CheckState(
            query=self._name,
            check=check,
            promise=None,
            more=more,
            shorter=None if is_short else max(1, int(SHORTER * check.listed)),
            unsure=given.count({"unsure"}),
            disagreed=sum(
                len(who) > 1 and len(words) > 1 for who, words in zip(people, given, strict=True)
            ),
            repeats=len(twice),
            changed=sum(len(set(answers)) > 1 for answers in twice),
        )
        if state.unsteady:
            return state
        return replace(state, promise=promised_check(check, self._what))

    def left(self) -> NDArray[np.int64]:
        """Return the photos of the list that were not found wrong, the most probable first."""
        wrong = {said.row for said in self._answers() if said.answer != "yes"}
        best = self._best[: self.state().check.listed].tolist()
        return np.array([row for row in best if row not in wrong], np.int64)

    def _audit(self, by_row: Mapping[int, Sequence[Said]]) -> ListAudit:
        """Return the audit after these answers: a photo is right where all of them said yes."""
        told = {
            self._ranks[row]: "yes" if {said.answer for said in some} == {"yes"} else "no"
            for row, some in by_row.items()
            if row in self._ranks
        }
        return self._new_audit().resume(told)

    def _asked(self, by_row: Mapping[int, Sequence[Said]]) -> PhotoToCheck | None:
        rank = self._audit(by_row).question
        if rank is None:
            return None
        row = int(self._best[rank])
        return PhotoToCheck(row, tuple(self._index.store.paths_of([row])[row]), False)


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
    """Return the lists of a query in order, each with the seed of its draws."""
    lists: dict[ListKey, int] = {}
    for note in store.answers.notes("list"):
        if note["query"] == query:
            key: Any = tuple(note[name] for name in KEY)
            lists.setdefault(key, note["seed"])
    return lists


def _by_row(said: Iterable[Said]) -> dict[int, list[Said]]:
    by_row: dict[int, list[Said]] = {}
    for answer in said:
        by_row.setdefault(answer.row, []).append(answer)
    return by_row
