"""Search: an index of people's photos that answers queries with probabilities.

update_index(Path("photos.index"), ["Photos"], model=Path("runs/photos"), watch=make_watch())
with Index(Path("photos.index")) as index:
    found = answer(index, Query.parse("dog, -beach"), top=50)
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from labelwise.retrieval import Query
from labelwise.search.answering import Found, Hit, answer, nearest_photos
from labelwise.search.index import Index
from labelwise.search.indexing import update_index
from labelwise.search.likeness import LibraryLikeness, likeness_of
from labelwise.search.looking import Changes
from labelwise.search.review import Question, corrected_labels, questions

__all__ = [
    "Changes",
    "Found",
    "Hit",
    "Index",
    "LibraryLikeness",
    "Question",
    "answer",
    "corrected_labels",
    "likeness_of",
    "nearest_photos",
    "questions",
    "search",
    "update_index",
]


def search(index: str | Path, query: str | Query, **options: Any) -> Found:
    """Return the photos of an index that answer a query; ``options`` are those of :func:`answer`.

    ``labelwise.search("photos.index", "dog, -beach", top=50)`` opens the index and closes it.
    """
    wanted = Query.parse(query) if isinstance(query, str) else query
    with Index(Path(index)) as opened:
        return answer(opened, wanted, **options)


class _Search(ModuleType):
    """This module, so that ``labelwise.search(...)`` is what people guess it to be."""

    def __call__(self, index: str | Path, query: str | Query, **options: Any) -> Found:
        return search(index, query, **options)


sys.modules[__name__].__class__ = _Search
