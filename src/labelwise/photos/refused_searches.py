"""Searches for an expected list that were refused, noted in the index.

What an expected promise says is said of all searches, those refused among them, which count as
none wrong. So whoever holds it to answers must know how many there were. The same query of as many
photos by the same model is one search, as the same promise has one receipt. Searches that nobody
could promise anything of, because the photos differ or no held-out ones are there, are not noted.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from labelwise.photos.store import Store

TABLE = "refused_searches"
COLUMNS = "query, wrong_at_most, photos, weights, link, at"
SCHEMA = f"""CREATE TABLE IF NOT EXISTS {TABLE} (query TEXT NOT NULL, wrong_at_most REAL NOT NULL,
    photos INTEGER NOT NULL, weights TEXT NOT NULL, link TEXT NOT NULL, at TEXT NOT NULL,
    UNIQUE (query, wrong_at_most, photos, weights, link))"""

Line = tuple[str, float, int, str, str, str]


def note_refused(
    store: Store, query: str, wrong_at_most: float, photos: int, weights: str, link: str
) -> None:
    """Note that a list of a query was refused, among so many photos, by a model."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    _add(store, [(query, round(wrong_at_most, 9), photos, weights, link, at)])


def refused_by_share(store: Store) -> Counter[float]:
    """Return how many searches were refused, by the share that was asked for."""
    return Counter(line[1] for line in _lines(store))


def carry_refused(before: Store, store: Store) -> None:
    """Copy what was noted in an index that is built anew."""
    lines = _lines(before)
    if lines:
        _add(store, lines)


def _add(store: Store, lines: Iterable[Line]) -> None:
    with store.transaction() as database:
        database.execute(SCHEMA)
        database.executemany(
            f"INSERT OR IGNORE INTO {TABLE} ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", lines
        )


def _lines(store: Store) -> list[Line]:
    if not store.has_table(TABLE):
        return []
    found = store.select(f"SELECT {COLUMNS} FROM {TABLE}")
    return [
        (query, share, photos, weights, link, at)
        for query, share, photos, weights, link, at in found
    ]
