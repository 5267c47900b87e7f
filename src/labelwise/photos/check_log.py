"""What people answered when they checked lists of an index, append-only, in its database.

    checked_lists   which lists of a query were begun, in order: each has its share of the error
    check_answers   what was answered about a photo, by whom, when; "undone" takes the last one back

The photos of a query are drawn in the order of random numbers, one per row, from a seed that is
kept with the query's first list. So a list's order of draws does not depend on any answer, photos
that come later do not change it, and within a shorter list the photos already answered come
first in its own order.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from secrets import randbits
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.photos.store import Store

Answer = Literal["yes", "no", "unsure"]
ListKey = tuple[float, int, float, bool]  # share that may be wrong, length, cut, whether distinct

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS checked_lists (id INTEGER PRIMARY KEY, query TEXT NOT NULL,
    wrong_at_most REAL NOT NULL, listed INTEGER NOT NULL, cut REAL NOT NULL, seed INTEGER NOT NULL,
    at TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS check_answers (id INTEGER PRIMARY KEY, query TEXT NOT NULL,
    row INTEGER NOT NULL, answer TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL)""",
)


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
        with store.transaction() as database:
            for statement in SCHEMA:
                database.execute(statement)
            known = {name for _, name, *_ in database.execute("PRAGMA table_info(checked_lists)")}
            if "distinct_photos" not in known:  # of 0.2, whose lists were of all photos
                database.execute(
                    "ALTER TABLE checked_lists ADD COLUMN distinct_photos INTEGER NOT NULL "
                    "DEFAULT 0"
                )

    def place_of(self, key: ListKey) -> int:
        """Return the number of lists tried before this one, which is noted if it is new."""
        with self._store.transaction() as database:
            known = self._known(database)
            lists = [one for one, _ in known]
            if key in lists:
                return lists.index(key)
            seed = known[0][1] if known else randbits(62)
            database.execute(
                "INSERT INTO checked_lists "
                "(query, wrong_at_most, listed, cut, distinct_photos, seed, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._query, *key, seed, _now()),
            )
            return len(lists)

    def _known(self, database: Any) -> list[tuple[ListKey, int]]:
        """Return the lists of the query in order, each with the seed of its draws."""
        found = database.execute(
            "SELECT wrong_at_most, listed, cut, distinct_photos, seed FROM checked_lists "
            "WHERE query = ? ORDER BY id",
            (self._query,),
        )
        return [((share, listed, cut, bool(one)), seed) for share, listed, cut, one, seed in found]

    def order_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of a list in the order in which they are drawn."""
        with self._store.transaction() as database:
            (_, seed), *_ = self._known(database)
        draws = np.random.default_rng(seed).random(int(rows.max(initial=0)) + 1)
        return np.asarray(rows[np.argsort(draws[rows], kind="stable")])

    def answers(self) -> list[Said]:
        """Return every answer that was not taken back, in order."""
        return answers_of(self._store, self._query)

    def add(self, row: int, answer: Answer, who: str | None) -> None:
        """Note an answer."""
        self._note(row, answer, who or getuser())

    def undo(self) -> Said | None:
        """Take the last answer back, and return it; None where there is none."""
        kept = self.answers()
        if not kept:
            return None
        self._note(kept[-1].row, "undone", kept[-1].who)
        return kept[-1]

    def _note(self, row: int, answer: str, who: str) -> None:
        with self._store.transaction() as database:
            database.execute(
                "INSERT INTO check_answers (query, row, answer, who, at) VALUES (?, ?, ?, ?, ?)",
                (self._query, row, answer, who, _now()),
            )


def name_of_text(text: str) -> str:
    """Return what the list of a text is called in the log, where others are called by a query."""
    return f'text "{text}"'


def is_of_text(name: str) -> bool:
    """Return whether a list is that of a text, about which the labels of a model say nothing."""
    return name.startswith('text "') and name.endswith('"')


def answers_of(store: Store, query: str) -> list[Said]:
    """Return every answer about a query that was not taken back, in order; none before any check.

    An index that may only be read can be asked too.
    """
    if not store.has_table("check_answers"):
        return []
    kept: list[Said] = []
    select = "SELECT row, answer, who FROM check_answers WHERE query = ? ORDER BY id"
    for row, answer, who in store.select(select, (query,)):
        if answer == "undone":
            kept.pop()
        else:
            kept.append(Said(int(row), answer, who))
    return kept


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
