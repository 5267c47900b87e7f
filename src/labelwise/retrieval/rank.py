"""Rank images by the joint probability of a query, in logs.

    s = log P(query), for wanted and unwanted labels  sum of log p  +  sum of log(1 - p)

The labels are taken as independent given the image, but for those that exclude each other.
Products of many small probabilities underflow; their logs do not.
"""

from dataclasses import dataclass

import numpy as np

from labelwise.numeric.arrays import Array
from labelwise.retrieval.bound_query import bind
from labelwise.retrieval.query import Query
from labelwise.taxonomy import AttributeColumns, Taxonomy
from labelwise.types import LabelSpace


@dataclass(frozen=True)
class RankedImages:
    """Rows of the images, best first, with the log of the joint probability, and itself.

    All three are in ranked order; equal scores keep the order of the rows.
    """

    order: np.ndarray
    log_scores: np.ndarray
    probs: np.ndarray


def rank(
    log_p: Array,
    log_q: Array,
    query: Query,
    space: LabelSpace,
    *,
    top: int | None = None,
    taxonomy: Taxonomy | None = None,
    attributes: AttributeColumns | None = None,
) -> RankedImages:
    """Return the images (all, or the ``top`` first) in order of the query's joint probability.

    ``attributes`` are labels that exclude each other: of two such labels none has both.
    """
    if log_p.shape != log_q.shape:
        raise ValueError(
            "log_p and log_q must have one shape, "
            f"got {tuple(log_p.shape)} and {tuple(log_q.shape)}"
        )
    bound = bind(query, space, taxonomy, attributes)
    columns = list(bound.columns)
    scores = bound.log_scores(log_p[:, columns], log_q[:, columns])
    count = len(scores) if top is None else min(top, len(scores))
    rows = np.arange(len(scores))
    if 0 < count < len(scores):
        cut = np.partition(scores, len(scores) - count)[len(scores) - count]
        rows = np.flatnonzero(scores >= cut)
    order = rows[np.argsort(-scores[rows], kind="stable")][:count]
    return RankedImages(order, scores[order], np.exp(scores[order]))
