"""Find images by labels wanted and unwanted, and measure how well that works."""

from labelwise.retrieval.bound_query import BoundQuery, bind
from labelwise.retrieval.calibrated_query import CalibratedQuery, HitCount, calibrate_query
from labelwise.retrieval.enumeration import count_queries
from labelwise.retrieval.quality import LengthResult, retrieval_map
from labelwise.retrieval.query import Query, complete
from labelwise.retrieval.rank import RankedImages, rank

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
