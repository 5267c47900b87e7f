"""Oracle: SQLite, which answers nothing once its connection is closed."""

import sqlite3

import pytest
from open_indexes import nothing_left_open

from labelwise.errors import CheckpointError
from labelwise.photos import Index
from labelwise.photos.store import Store


@pytest.mark.parametrize("opened", [Index, lambda folder: Store(folder, ["dog"])])
def test_with_closes_an_index_and_its_store(update, opened):
    update()
    with opened(update.folder) as one:
        pass
    store = one.store if isinstance(one, Index) else one
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.roots()
    one.close()  # a second time is allowed


def test_the_guard_names_an_index_that_was_left_open(update):
    update()
    with (
        pytest.raises(
            AssertionError, match=r"left open: .*photos\.sqlite; open an index by `with`"
        ),
        nothing_left_open(),
    ):
        index = Index(update.folder)
    index.close()


def test_a_damaged_database_is_closed_too(update):
    update()
    (update.folder / "photos.sqlite").write_bytes(b"no database" * 999)
    with nothing_left_open(), pytest.raises(CheckpointError, match="cannot be read"):
        Index(update.folder)


def test_a_refused_update_closes_the_index(update, photos):
    update()
    with nothing_left_open(), pytest.raises(Exception, match="--decode"):
        update(photos, decode="cuda")
