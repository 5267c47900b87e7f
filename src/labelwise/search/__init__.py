"""Search: an index of people's photos that answers queries with probabilities."""

from labelwise.search.index import Index
from labelwise.search.indexing import update_index
from labelwise.search.looking import Changes
from labelwise.search.review import Question, corrected_labels, questions

__all__ = ["Changes", "Index", "Question", "corrected_labels", "questions", "update_index"]
