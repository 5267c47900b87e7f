"""Rank images by the joint probability of a query, in logs.

    s = log P(query), for wanted and unwanted labels  sum of log p  +  sum of log(1 - p)

The labels are taken as independent given the image. Products of many small probabilities
underflow; their logs do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.arrays import Array, to_numpy
from labelwise.retrieval.bound_query import bind
from labelwise.retrieval.query import Query
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

__all__ = ["RankedImages", "query_log_scores", "rank"]


@dataclass(frozen=True)
class RankedImages:
    """Rows of the images, best first, with the log of the joint probability, and itself.

    All three are in ranked order; equal scores keep the order of the rows.
    """

    order: np.ndarray
    log_scores: np.ndarray
    probs: np.ndarray


def query_log_scores(
    log_p: Array, log_q: Array, wanted: Sequence[int], unwanted: Sequence[int]
) -> np.ndarray:
    """Return the (N,) float64 log joint probability of wanted and unwanted columns."""
    _same_shape(log_p, log_q)
    scores = np.zeros(log_p.shape[0])
    for table, columns in ((log_p, wanted), (log_q, unwanted)):
        for column in columns:
            scores += to_numpy(table[:, column])
    return scores


def rank(
    log_p: Array,
    log_q: Array,
    query: Query,
    space: LabelSpace,
    *,
    top: int | None = None,
    taxonomy: Taxonomy | None = None,
) -> RankedImages:
    """Return the images (all, or the ``top`` first) in order of the query's joint probability."""
    _same_shape(log_p, log_q)
    bound = bind(query, space, taxonomy)
    columns = list(bound.columns)
    scores = bound.log_scores(log_p[:, columns], log_q[:, columns])
    count = len(scores) if top is None else min(top, len(scores))
    rows = np.arange(len(scores))
    if 0 < count < len(scores):
        cut = np.partition(scores, len(scores) - count)[len(scores) - count]
        rows = np.flatnonzero(scores >= cut)
    order = rows[np.argsort(-scores[rows], kind="stable")][:count]
    return RankedImages(order, scores[order], np.exp(scores[order]))


def _same_shape(log_p: Array, log_q: Array) -> None:
    if log_p.shape != log_q.shape:
        raise ValueError(
            "log_p and log_q must have one shape, "
            f"got {tuple(log_p.shape)} and {tuple(log_q.shape)}"
        )
