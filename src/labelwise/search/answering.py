"""Answers to queries over an index: which photos, how probable, how many, how many of them wrong.

Photos are ranked by the product of their labels' probabilities, the labels being independent given
the photo. They are not quite, so what is shown is calibrated: the same query is asked of the photos
that the model was not trained on, whose answers are known, and its probability is fitted there.
``wrong_at_most`` cuts the list where a promise holds on those photos, whatever the library's size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, logit

from labelwise.decide import PromisedList
from labelwise.errors import DataError
from labelwise.predictions import Predictions
from labelwise.retrieval import (
    BoundQuery,
    CalibratedQuery,
    HitCount,
    Query,
    bind,
    calibrate_query,
)
from labelwise.search.index import Index
from labelwise.search.rankings import ranking_of

__all__ = ["Found", "Hit", "answer", "nearest_photos"]

Sort = Literal["score", "date"]
Scores = NDArray[np.float64]
LEAST_SLOPE = 1e-3


@dataclass(frozen=True)
class Hit:
    """A photo that answers: where it lies, how probable it is, and the labels' probabilities."""

    row: int
    probability: float
    reasons: dict[str, float]
    paths: tuple[str, ...]
    taken: str | None = None
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True)
class Found:
    """The best photos, and how many of all photos are expected to answer.

    ``above`` counts the photos at or above the cut, where there is one; ``checked_on`` the held-out
    photos, and ``positives`` those among them that answer: the probabilities rest on them.
    """

    query: str
    hits: tuple[Hit, ...]
    photos: int
    count: HitCount
    above: int | None = None
    promise: PromisedList | None = None
    checked_on: int = 0
    positives: int = 0


def answer(
    index: Index,
    query: Query,
    *,
    top: int = 50,
    at_least: float = 0.0,
    wrong_at_most: float | None = None,
    confidence: float = 0.95,
    sort: Sort = "score",
) -> Found:
    """Return the ``top`` photos of a query, the most probable first.

    ``at_least`` is the least probability of a photo that is listed. ``wrong_at_most`` cuts the
    list where at most that share of it is wrong, promised with ``confidence``. ``sort="date"``
    lists the newest photos above these cuts first.
    """
    if not 0 <= at_least <= 1:
        raise DataError(f"a probability must lie between 0 and 1, got {at_least}")
    if sort not in get_args(Sort):
        raise DataError(f"photos are sorted by {' or '.join(get_args(Sort))}, got {sort!r}")
    bound = bind(query, index.space, index.query_taxonomy)
    refit = wrong_at_most is None  # corrections fit links on the photos that promises are made on
    dead = index.store.dead_rows()
    ranking = ranking_of(index, bound, dead, refit=refit)
    calibrated = _calibrated(index, index.held_out, bound, refit)
    cut, promise = _score_at(calibrated, at_least), None
    if wrong_at_most is not None:
        index.evidence()  # refuses where the held-out photos fitted something
        known = index.validation
        tuning = None if known is None else _calibrated(index, known, bound, refit=False)
        promise = calibrated.cut(wrong_at_most, confidence, tuning=tuning)
        if promise.promise is None:
            raise DataError(f"no list can be promised for {query}: {promise.refused}")
        cut = max(cut, promise.threshold)
    above = ranking.count_at_least(cut) if cut > -np.inf else None
    # By date, the newest photos above the cut come first, not the most probable ones.
    rows, scores = ranking.best(above if sort == "date" and above is not None else top)
    kept = scores >= cut
    labels = [index.space.names[column] for column in bound.columns]
    probs = calibrated.probs(scores[kept].astype(np.float64))
    shown = labels if len(labels) < len(index.space) else []
    hits = _hits(index, shown, rows[kept], probs, refit)
    if sort == "date":
        hits.sort(key=lambda hit: hit.taken or "", reverse=True)
    return Found(
        str(query),
        tuple(hits[:top]),
        len(index) - len(dead),
        ranking.expected(calibrated),
        above,
        promise,
        len(calibrated.scores),
        calibrated.positives,
    )


def nearest_photos(index: Index, row: int, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like one of the index: equal copies of it, and similar ones.

    The probability of a similar photo is the cosine of the embeddings, which is not a probability.
    """
    near = index.similar(index.store.embeddings()[row], count, without=[row])
    rows, cosines = [row for row, _ in near], [cosine for _, cosine in near]
    similar = _hits(index, (), np.array(rows, np.int64), np.array(cosines))
    (own,) = _hits(index, (), np.array([row]), np.ones(1))
    return [replace(own, paths=(path,)) for path in own.paths[1:]], similar


def _hits(
    index: Index,
    labels: Sequence[str],
    rows: NDArray[np.int64],
    probs: Scores,
    refit: bool = True,
) -> list[Hit]:
    paths = index.store.paths_of(rows.tolist())
    contents = index.store.contents_of(rows.tolist())
    columns = {name: index.space.column(name) for name in labels}
    odds = {name: index.odds(k, refit=refit).log_p.values for name, k in columns.items()}
    hits = []
    for row, chance in zip(rows.tolist(), probs.tolist(), strict=True):
        reasons = {name: float(np.exp(values[row])) for name, values in odds.items()}
        one = contents[row]
        facts = (one.taken, one.width, one.height)
        hits.append(Hit(row, chance, reasons, tuple(paths[row]), *facts))
    return hits


def _calibrated(
    index: Index, photos: Predictions | None, bound: BoundQuery, refit: bool
) -> CalibratedQuery:
    """Return the query's probability as some labelled photos have it; the product without any."""
    columns = list(bound.columns)
    if photos is None:
        nothing = np.empty((0, len(columns)))
        return calibrate_query(bound, nothing, nothing, nothing)
    log_p, log_q = index.held_out_log_probs(photos, columns, refit=refit)
    observed = None if photos.observed is None else photos.observed[:, columns]
    return calibrate_query(bound, log_p, log_q, photos.majority[:, columns], observed)


def _score_at(calibrated: CalibratedQuery, probability: float) -> float:
    """Return the log score at which a query has this probability."""
    if probability <= 0:
        return -np.inf
    if probability >= 1:
        return 0.0
    slope = max(calibrated.slope, LEAST_SLOPE)
    return float(log_expit((logit(probability) - calibrated.offset) / slope))
