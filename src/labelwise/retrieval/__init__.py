"""Find images by labels wanted and unwanted, and measure how well that works."""

from labelwise.retrieval.bound_query import (
    BoundQuery,
    CalibratedQuery,
    HitCount,
    RankedImages,
    bind,
    calibrate_query,
    rank,
)
from labelwise.retrieval.quality import LengthResult, count_queries, retrieval_map
from labelwise.retrieval.query import Query, complete

__all__ = [
    "BoundQuery",
    "CalibratedQuery",
    "HitCount",
    "LengthResult",
    "Query",
    "RankedImages",
    "bind",
    "calibrate_query",
    "complete",
    "count_queries",
    "rank",
    "retrieval_map",
]
