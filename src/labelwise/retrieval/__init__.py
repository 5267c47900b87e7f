"""Find images by labels wanted and unwanted, and measure how well that works."""

from labelwise.retrieval.evaluate import LengthResult, retrieval_map
from labelwise.retrieval.queries import count_queries
from labelwise.retrieval.query import Query
from labelwise.retrieval.rank import Ranking, query_log_scores, rank

__all__ = [
    "LengthResult",
    "Query",
    "Ranking",
    "count_queries",
    "query_log_scores",
    "rank",
    "retrieval_map",
]
