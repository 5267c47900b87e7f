"""Indexes that tests open are closed when the test ends, and no other may be left open.

Python 3.13 warns of a database that nobody closed, older ones say nothing; here every connection
to the database of an index is counted, whoever made it.
"""

import sqlite3
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

_OPEN: dict[int, str] = {}
_OF_THE_TEST = ExitStack()


@cache
def counting(kind: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    """Return a kind of connection that is in ``_OPEN`` from its making to its close."""

    class CountedConnection(kind):
        def __init__(self, database, *values, **options) -> None:
            super().__init__(database, *values, **options)
            place = urlsplit(str(database)).path
            if Path(place).name == "photos.sqlite":
                _OPEN[id(self)] = place

        def close(self) -> None:
            super().close()
            _OPEN.pop(id(self), None)

    return CountedConnection


def count_connections() -> None:
    """Count the connections made from now on."""
    connect = sqlite3.connect

    def counted(database, *values, factory=sqlite3.Connection, **options):
        return connect(database, *values, factory=counting(factory), **options)

    sqlite3.connect = counted


def open_index(folder: Path):
    """Open an index that is closed when the running test ends."""
    from labelwise.photos import Index  # not in every process that has tests

    return _OF_THE_TEST.enter_context(Index(folder))


@contextmanager
def nothing_left_open():
    """Raise if an index was opened in the block and is open at its end."""
    before = set(_OPEN)
    yield
    _OF_THE_TEST.close()
    left = [path for key, path in _OPEN.items() if key not in before]
    for key in set(_OPEN) - before:
        del _OPEN[key]  # the next test is not to blame
    if left:
        raise AssertionError(
            f"left open: {', '.join(left)}; open an index by `with`, or in a test by open_index"
        )
