"""A person checks a list: which photo is next, what the answers say, when the list is promised.

``CheckSession`` keeps nothing but its list; answers stand in the index (:mod:`check_log`), so a
check goes on where it was left, by whoever opens it next. A photo counts as right where everybody
who was asked about it said yes; "no", "unsure" and answers that disagree count as wrong. Those
photos leave the list.

Every REPEAT-th question is about a photo that was answered before. Where one person changes answers
for more than a third of at least three such photos, no promise is made: they then say little
about the photos.

Copies of one file are one photo of the index already. Near copies are drawn one by one, unless the
list is of ``distinct`` photos, one of each picture: then the promise is of these.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import Answer
from labelwise.decide import ListCheck, Promise, prior_of, promised_check
from labelwise.errors import DataError
from labelwise.photos.check_log import CheckLog, ListKey, Said
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.index import Index
from labelwise.photos.query import Asked, labels_told
from labelwise.photos.receipts import keep_receipt, withdraw
from labelwise.photos.shift import promise_photos
from labelwise.photos.store import Fact
from labelwise.retrieval import Query

REPEAT = 8  # questions from one repeated photo to the next
FEWEST_REPEATS = 3  # of which a third may change before the answers are called unsteady
PATIENCE = 40  # checks; a list that takes more is better made shorter
SHORTER = 0.5  # of a list whose check failed


@dataclass(frozen=True)
class PhotoToCheck:
    """The next question: does this photo answer the query?"""

    row: int
    paths: tuple[str, ...]
    repeated: bool


@dataclass(frozen=True)
class CheckState:
    """What is known of the list now, in numbers and in words.

    ``more`` is about how many more checks it takes; None where checking would not do. Where it
    would take many, ``shorter`` is the length of a list that is worth a try, if there is one.
    """

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
                "break, or say unsure. Nothing is promised on these answers"
            )
        if self.promise is not None:
            return f"{done}; {self.promise}"
        if check.checked and self.unsure == check.checked:
            return (
                f"{done}; every answer was unsure, so nothing can be promised; "
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
            return f"{done}; this list holds too many wrong photos to be promised; {shorter}"
        return f"{done}; about {self.more:,} more" + (f"; {shorter}" if self.shorter else "")


class CheckSession:
    """The check of one list of an index."""

    _told: Callable[[Answer], dict[str, Fact]]  # what an answer says of single labels
    _check: ListCheck

    def __init__(
        self,
        index: Index,
        query: Query,
        *,
        wrong_at_most: float = 0.1,
        confidence: float = 0.95,
        cut: float | None = None,
        top: int | None = None,
        alone: bool = False,
        distinct: bool = False,
        who: str | None = None,
    ) -> None:
        """Begin or resume a check: of our own list, down to a probability, or of the best few.

        ``alone``: the answers are all that counts, whatever held-out photos say. ``distinct``: near
        copies are one photo, the earliest of them.
        """
        if cut is not None and top is not None:
            raise DataError("a list ends at a probability (cut) or after a number (top), not both")
        asked = Asked(index, query, PhotoFilter(distinct=distinct))
        chosen = asked.list_to_check(wrong_at_most, cut=cut, top=top)
        if chosen is None:
            raise DataError(
                f"no list of {query} is likely to pass a check at {wrong_at_most:g}; "
                "say how many of the best photos to check, or let more of them be wrong"
            )
        rows, scores = asked.own.ranking.best(chosen.length)
        kind = (wrong_at_most, len(rows), float(scores[-1]), distinct)
        self._begin(index, str(query), rows, kind, who)
        self._told = partial(labels_told, asked.bound, index.space)
        self._check = asked.check_of(
            replace(chosen, length=len(rows)),
            wrong_at_most,
            confidence=confidence,
            place=self._place,
            alone=alone or not _may_join(index),
        )

    @classmethod
    def of_ranked(
        cls,
        index: Index,
        name: str,
        rows: NDArray[np.int64],
        lowest: float,
        *,
        wrong_at_most: float = 0.1,
        confidence: float = 0.95,
        who: str | None = None,
    ) -> "CheckSession":
        """Begin or resume the check of a list without probabilities: only the answers count.

        ``rows`` come best first, ``lowest`` is the score of the last. ``name`` is what is asked.
        """
        if not len(rows):
            raise DataError(f"no photo answers {name}, so there is nothing to check")
        session = cls.__new__(cls)
        session._begin(index, name, rows, (wrong_at_most, len(rows), lowest, False), who)
        session._told = _nothing_told
        session._check = ListCheck(
            len(rows), wrong_at_most, confidence, prior=prior_of(0.5), place=session._place
        )
        return session

    def _begin(
        self,
        index: Index,
        name: str,
        best: NDArray[np.int64],
        kind: ListKey,
        who: str | None,
    ) -> None:
        self._index, self._name, self._best, self._who = index, name, best, who
        self._log = CheckLog(index.store, name)
        self._place = self._log.place_of(kind)
        self._what = "distinct photos of the list" if kind[-1] else "photos of the list"
        self.rows: NDArray[np.int64] = self._log.order_of(best)

    def next_photo(self) -> PhotoToCheck | None:
        """Return the photo to ask about next; None where every photo of the list was answered."""
        said = self._log.answers()
        repeated = self._to_repeat(said)
        if repeated is not None:
            return self._photo(repeated, True)
        fresh = self._fresh(said)
        return None if fresh is None else self._photo(fresh, False)

    def photo_after(self, photo: PhotoToCheck) -> PhotoToCheck | None:
        """Return the next photo that was never asked about, so that it can be fetched early."""
        fresh = self._fresh(self._log.answers(), photo.row)
        return None if fresh is None else self._photo(fresh, False)

    def answer(self, photo: PhotoToCheck, answer: Answer) -> CheckState:
        """Note an answer, and return what is known then."""
        self._log.add(photo.row, answer, self._who)
        facts = self._told(answer)
        if facts and not photo.repeated:
            self._index.correct(photo.row, facts, who=self._who, source="check")
        state = self.state()
        if state.promise is not None:
            keep_receipt(self._index, self._name, state.promise, self.left(), self._who)
        return state

    def undo(self) -> CheckState:
        """Take the last answer back."""
        standing = self.state().promise
        if standing is not None:  # it rests on an answer that is taken back
            receipt = keep_receipt(self._index, self._name, standing, self.left(), self._who)
            withdraw(self._index, receipt.number, self._who)
        last = self._log.undo()
        if last is not None and last.row not in {one.row for one in self._log.answers()}:
            facts: dict[str, Fact] = dict.fromkeys(self._told(last.answer), "withdrawn")
            if facts:
                self._index.correct(last.row, facts, who=self._who, source="check")
        return self.state()

    def state(self) -> CheckState:
        """Return what the answers say of the list now."""
        said = self._log.answers()
        by_row: dict[int, list[Said]] = {}
        for one in said:
            by_row.setdefault(one.row, []).append(one)
        done = 0
        while done < len(self.rows) and int(self.rows[done]) in by_row:
            done += 1
        drawn = [by_row[int(row)] for row in self.rows[:done]]
        wrong = sum({one.answer for one in some} != {"yes"} for some in drawn)
        check = self._check.after(done, wrong)
        repeats, changed = _repeats(by_row.values())
        state = CheckState(
            check=check,
            promise=None,
            more=check.more(),
            shorter=None,
            unsure=sum({one.answer for one in some} == {"unsure"} for some in drawn),
            disagreed=sum(
                len({one.who for one in some}) > 1 and len({one.answer for one in some}) > 1
                for some in drawn
            ),
            repeats=repeats,
            changed=changed,
        )
        if (state.more is None or state.more > PATIENCE) and len(self.rows) > 1:
            state = replace(state, shorter=max(1, int(SHORTER * len(self.rows))))
        if state.unsteady:
            return state
        return replace(state, promise=promised_check(check, self._what))

    def left(self) -> NDArray[np.int64]:
        """Return the photos of the list that were not found wrong, the most probable first."""
        said = {one.row for one in self._log.answers() if one.answer != "yes"}
        return np.array([row for row in self._best.tolist() if row not in said], np.int64)

    def _fresh(self, said: Sequence[Said], *others: int) -> int | None:
        """Return the first photo of the order drawn that nobody answered, nor is one of others."""
        answered = {one.row for one in said}.union(others)
        return next((int(row) for row in self.rows if int(row) not in answered), None)

    def _to_repeat(self, said: Sequence[Said]) -> int | None:
        """Return a photo to ask about again, where it is time for one."""
        if not said or len(said) % REPEAT:
            return None
        once = [one.row for one in said if sum(one.row == other.row for other in said) == 1]
        return once[len(said) % len(once)] if once else None

    def _photo(self, row: int, repeated: bool) -> PhotoToCheck:
        return PhotoToCheck(row, tuple(self._index.store.paths_of([row])[row]), repeated)


def _repeats(answered: Iterable[Sequence[Said]]) -> tuple[int, int]:
    """Return how many photos one person answered twice, and how many in another way."""
    repeats = changed = 0
    for some in answered:
        by_who: dict[str, list[str]] = {}
        for one in some:
            by_who.setdefault(one.who, []).append(one.answer)
        for given in by_who.values():
            repeats += len(given) > 1
            changed += len(given) > 1 and len(set(given)) > 1
    return repeats, changed


def _nothing_told(_: Answer) -> dict[str, Fact]:
    """Return what an answer about a text says of the labels of a model."""
    return {}


def _may_join(index: Index) -> bool:
    """Return whether held-out photos fitted nothing, and so may join a check."""
    try:
        promise_photos(index)
    except DataError:
        return False
    return True
