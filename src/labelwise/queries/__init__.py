"""Find images by labels wanted and unwanted, and measure how well that works."""

from labelwise.queries.bound_query import (
    BoundQuery,
    CalibratedQuery,
    HitCount,
    RankedImages,
    bind,
    calibrate_query,
    rank,
)
from labelwise.queries.quality import LengthResult, count_queries, retrieval_map
from labelwise.queries.query import Query, complete

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
