"""A flipped bit in photos.sqlite: the answers as they were, or a sentence that names the file."""

import random
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from made_index import made_index

from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.photos import Asked, Index
from labelwise.photos.embedded_tags import KeptSidecar, written_sidecars
from labelwise.photos.filters import PhotoFilter
from labelwise.retrieval import Query
from labelwise.system.progress import Silent

PHOTOS, FLIPS = 60, 150
FOLDERS = [f"holiday-{row % 3}" for row in range(PHOTOS)]


@pytest.fixture(scope="module")
def damaged(model, tmp_path_factory):
    """An index with dates, a dead photo, a correction and a side-car that was written."""
    home = tmp_path_factory.mktemp("damaged")
    logits = np.random.default_rng(3).normal(-1, 2, (PHOTOS, 4))
    folder = made_index(home / "photos.index", model, logits, FOLDERS)
    with Index(folder) as index:
        with index.store.transaction() as database:
            database.execute("UPDATE contents SET taken = '2023-06-0' || row % 10")
            database.seal("contents", "row >= 0")
            index.store.mark_missing(1, FOLDERS[7], ["7.jpg"])
        index.correct(3, {"dog": "absent"}, who="ann")
        written_sidecars(index.store).put("/a.xmp", KeptSidecar(b"before", b"after", {}))
    answers(folder)  # what searches keep
    with closing(sqlite3.connect(folder / "photos.sqlite")) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    return folder


def answers(folder):
    """Return what searches of an index find, with the paths."""
    filters = (PhotoFilter(), PhotoFilter(folder="holiday-1"), PhotoFilter(since="2023-06-05"))
    with Index(folder) as index:
        found = [Asked(index, Query.parse("dog"), one).top(PHOTOS) for one in filters]
        kept = written_sidecars(index.store).find("/a.xmp")
        return [(one.hits, one.count, one.photos) for one in found], kept


def flipped(folder, place):
    """Return the answers once a bit was flipped, or why there are none; the file is as before."""
    path = folder / "photos.sqlite"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    try:
        return answers(folder)
    except LabelwiseError as error:
        return str(error)
    finally:
        path.write_bytes(whole)
        for log in folder.glob("photos.sqlite-*"):
            log.unlink()


def test_a_flipped_bit_of_a_row_never_changes_an_answer_silently(damaged):
    """Rows have sums. The text of the schema has none (SECURITY.md): its pages are left out."""
    expected, draw = answers(damaged), random.Random(0)
    content = (damaged / "photos.sqlite").read_bytes()
    names = [at for at in range(len(content)) if content.startswith(b".jpg", at)]
    schema = {at // 4096 for at in range(len(content)) if content.startswith(b"CREATE ", at)}
    places = [draw.randrange(8 * len(content)) for _ in range(FLIPS)]
    places = [place for place in places if place // 8 // 4096 not in schema]
    places += [8 * (draw.choice(names) - 1) + draw.randrange(8) for _ in range(20)]
    told = 0
    for place in places:
        found = flipped(damaged, place)
        if isinstance(found, str):
            assert "photos.sqlite" in found or "index" in found
            told += 1
        else:
            assert found == expected, f"bit {place}"
    assert told > 20


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("roots", "raw = x'2f62'"),
        ("contents", "taken = '1999-01-01'"),
        ("contents", "alive = 1"),
        ("files", "name = 'other.jpg' WHERE row = 5"),
        ("files", "row = 5 WHERE row = 6"),
        ("sidecars", "before = x'00'"),
    ],
)
def test_a_row_that_is_not_what_was_written_is_named(damaged, table, change):
    path = damaged / "photos.sqlite"
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE {table} SET {change}")
    try:
        with pytest.raises(CheckpointError, match=f"damaged: a row of its {table}"):
            answers(damaged)
    finally:
        path.write_bytes(whole)


def test_rows_of_version_0_2_are_read_and_get_sums_by_the_next_update(update):
    update()
    path = update.folder / "photos.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        for table in ("roots", "contents", "files", "sidecars", "embedded"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN sum")
        database.execute("DROP TABLE photo_headers")
        database.execute("PRAGMA user_version = 3")
    with Index(update.folder) as index:
        assert len(Asked(index, Query.parse("dog")).top().hits) == 12
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(sum) FROM files").fetchone() == (0,)
        update(watch=Silent())
        assert database.execute("SELECT count(sum) FROM files").fetchone() == (12,)
        with database:
            database.execute("UPDATE files SET name = 'x' || name")
    with Index(update.folder) as index, pytest.raises(CheckpointError, match="row of its files"):
        Asked(index, Query.parse("dog")).top()
