"""Search: an index of people's photos that answers queries with probabilities.

update_index(Path("photos.index"), ["Photos"], model=Path("runs/photos"), watch=make_watch())
with Index(Path("photos.index")) as index:
    found = answer(index, Query.parse("dog, -beach"), top=50)
"""

from labelwise.search.answering import Found, Hit, answer, nearest_photos
from labelwise.search.index import Index
from labelwise.search.indexing import update_index
from labelwise.search.looking import Changes
from labelwise.search.review import Question, corrected_labels, questions

__all__ = [
    "Changes",
    "Found",
    "Hit",
    "Index",
    "Question",
    "answer",
    "corrected_labels",
    "nearest_photos",
    "questions",
    "update_index",
]
