"""Search: an index of people's photos that answers queries with probabilities.

update_index(Path("photos.index"), ["Photos"], model=Path("runs/photos"), watch=make_watch())
with Index(Path("photos.index")) as index:
    found = Asked(index, Query.parse("dog, -beach")).top(50)
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise.photos.index import Index, model_changed
    from labelwise.photos.ingest import Changes, update_index
    from labelwise.photos.lists import (
        Receipt,
        VerifiedLists,
        read_list_answers,
        receipts_of,
        verify_lists,
    )
    from labelwise.photos.query import Asked, Found, Hit, answer, nearest_photos
    from labelwise.photos.review import Question, corrected_labels, questions
    from labelwise.photos.shift import LibraryLikeness, likeness_of
    from labelwise.queries import Query

__all__ = [
    "Asked",
    "Changes",
    "Found",
    "Hit",
    "Index",
    "LibraryLikeness",
    "Question",
    "Receipt",
    "VerifiedLists",
    "answer",
    "corrected_labels",
    "likeness_of",
    "model_changed",
    "nearest_photos",
    "questions",
    "read_list_answers",
    "receipts_of",
    "search",
    "update_index",
    "verify_lists",
]


def search(index: str | Path, query: "str | Query", **options: Any) -> "Found":
    """Return the photos of an index that answer a query; ``options`` are those of :func:`answer`.

    ``labelwise.search("photos.index", "dog, -beach", top=50)`` opens the index and closes it.
    """
    from labelwise.photos.index import Index
    from labelwise.photos.query import answer
    from labelwise.queries import Query

    wanted = Query.parse(query) if isinstance(query, str) else query
    with Index(Path(index)) as opened:
        return answer(opened, wanted, **options)


if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "index": ("Index", "model_changed"),
            "ingest": ("Changes", "update_index"),
            "query": ("Asked", "Found", "Hit", "answer", "nearest_photos"),
            "lists": (
                *("Receipt", "VerifiedLists", "read_list_answers", "receipts_of", "verify_lists"),
            ),
            "review": ("Question", "corrected_labels", "questions"),
            "shift": ("LibraryLikeness", "likeness_of"),
        },
    )
