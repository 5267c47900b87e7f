"""What people answered when they checked lists of an index, in its answer log.

A line's label is the query; an "undo" takes the last answer about the query back. A note says which
lists of a query were begun, in order: each has its share of the error.

The photos of a query are drawn in the order of random numbers, one per row, from a seed that is
kept with the query's first list. So a list's order of draws does not depend on any answer, photos
that come later do not change it, and within a shorter list the photos already answered come
first in its own order.
"""

from dataclasses import dataclass
from secrets import randbits

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import Answer, Note, answered, now
from labelwise.photos.store import Store

ListKey = tuple[float, int, float, bool]  # share that may be wrong, length, cut, whether distinct


@dataclass(frozen=True)
class Said:
    """One answer about one photo."""

    row: int
    answer: Answer
    who: str


class CheckLog:
    """The lists and answers of one query."""

    def __init__(self, store: Store, query: str) -> None:
        self._store, self._query = store, query

    def place_of(self, key: ListKey) -> int:
        """Return the number of lists tried before this one, which is noted if it is new."""
        lists = self._lists()
        if key not in lists:
            seed = next(iter(lists.values()), None)
            named = dict(zip(("wrong_at_most", "listed", "cut", "distinct"), key, strict=True))
            drawn = {"seed": randbits(62) if seed is None else seed, "at": now()}
            self._store.answers.append([Note("list", {"query": self._query, **named, **drawn})])
        return [*self._lists()].index(key)

    def _lists(self) -> dict[ListKey, int]:
        """Return the lists of the query in order, each with the seed of its draws."""
        lists: dict[ListKey, int] = {}
        for note in self._store.answers.notes("list"):
            if note["query"] == self._query:
                key = (note["wrong_at_most"], note["listed"], note["cut"], note["distinct"])
                lists.setdefault(key, note["seed"])
        return lists

    def order_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of a list in the order in which they are drawn."""
        seed = next(iter(self._lists().values()))
        draws = np.random.default_rng(seed).random(int(rows.max(initial=0)) + 1)
        return np.asarray(rows[np.argsort(draws[rows], kind="stable")])

    def answers(self) -> list[Said]:
        """Return every answer that was not taken back, in order."""
        return answers_of(self._store, self._query)

    def add(self, row: int, answer: str, who: str | None) -> None:
        """Note an answer."""
        photo = self._store.photos_of([row])[row]
        self._store.answers.append([answered(photo, self._query, answer, who, "list")])

    def undo(self) -> Said | None:
        """Take the last answer back, and return it; None where there is none."""
        kept = self.answers()
        if not kept:
            return None
        self.add(kept[-1].row, "undo", kept[-1].who)
        return kept[-1]


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
    """Return every answer about a query that was not taken back, in order.

    An index that may only be read can be asked too.
    """
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
