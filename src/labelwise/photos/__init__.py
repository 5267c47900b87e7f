"""Search: an index of people's photos that answers queries with probabilities.

update_index(Path("photos.index"), ["Photos"], model=Path("runs/photos"), watch=make_watch())
with Index(Path("photos.index")) as index:
    found = answer(index, Query.parse("dog, -beach"), top=50)
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.system.later import imported_later

if TYPE_CHECKING:
    from labelwise.photos.answering import Found, Hit, answer, nearest_photos
    from labelwise.photos.index import Index
    from labelwise.photos.indexing import update_index
    from labelwise.photos.likeness import LibraryLikeness, likeness_of
    from labelwise.photos.looking import Changes
    from labelwise.photos.model_changes import model_changed
    from labelwise.photos.receipts import Receipt, keep_found, receipts_of
    from labelwise.photos.review import Question, corrected_labels, questions
    from labelwise.photos.verifying import VerifiedLists, read_list_answers, verify_lists
    from labelwise.retrieval import Query

__all__ = [
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
    "keep_found",
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

    ``labelwise.search("photos.index", "dog, -beach", top=50)`` opens the index and closes it. What
    it promises is kept as a receipt, which :func:`verify_lists` holds it to.
    """
    from labelwise.photos.answering import answer
    from labelwise.photos.index import Index
    from labelwise.photos.receipts import keep_found
    from labelwise.retrieval import Query

    wanted = Query.parse(query) if isinstance(query, str) else query
    with Index(Path(index)) as opened:
        found = answer(opened, wanted, **options)
        keep_found(opened, wanted, found)
        return found


if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "answering": ("Found", "Hit", "answer", "nearest_photos"),
            "index": ("Index",),
            "indexing": ("update_index",),
            "likeness": ("LibraryLikeness", "likeness_of"),
            "looking": ("Changes",),
            "model_changes": ("model_changed",),
            "receipts": ("Receipt", "keep_found", "receipts_of"),
            "review": ("Question", "corrected_labels", "questions"),
            "verifying": ("VerifiedLists", "read_list_answers", "verify_lists"),
        },
    )
