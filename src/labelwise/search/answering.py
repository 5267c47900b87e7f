"""Answers to queries over an index: which photos, how probable, how many, how many of them wrong.

    P(query) = product of p over wanted and of 1 - p over unwanted labels
    hits     = sum of P over all photos, with the interval sum P -+ 1.96 sqrt(sum P (1 - P))

``wrong_at_most`` cuts the list where a promise holds: on photos that the model was not fitted on,
the query is asked too, and the cut is the lowest at which the share of wrong photos is shown to be
small enough, whatever the size of the library.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import PromisedList, promise_list
from labelwise.errors import DataError
from labelwise.retrieval import Query, query_log_scores
from labelwise.search.index import Index
from labelwise.search.ranked import Term, best_rows, count_at_least
from labelwise.types import LabelSpace

__all__ = ["Found", "Hit", "answer", "nearest_photos"]

Sort = Literal["score", "date"]
ROWS_AT_ONCE = 1 << 16


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
    """The best photos, and what is expected of all photos.

    ``above`` counts the photos at or above the cut, where there is one.
    """

    query: str
    hits: tuple[Hit, ...]
    photos: int
    expected: float
    low: float
    high: float
    above: int | None = None
    promise: PromisedList | None = None


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
    """Return the ``top`` photos of a query, of those that are probable or promised enough."""
    if not 0 <= at_least <= 1:
        raise DataError(f"a probability must lie between 0 and 1, got {at_least}")
    wanted, unwanted = _columns(query, index.space)
    terms = [index.odds(k).log_p for k in wanted] + [index.odds(k).log_q for k in unwanted]
    dead = index.store.dead_rows()
    cut = log(at_least) if at_least > 0 else -np.inf
    promise = None
    if wrong_at_most is not None:
        promise = _promised(index, query, wrong_at_most, confidence)
        if promise.promise is None:
            raise DataError(f"no list can be promised for {query}: {promise.refused}")
        cut = max(cut, promise.threshold)
    bounded = cut > -np.inf
    above = count_at_least(terms, cut, dead) if bounded else None
    # By date, the newest photos above the cut come first, not the most probable ones.
    wanted_rows = above if sort == "date" and above is not None else top
    rows, scores = best_rows(terms, wanted_rows, dead)
    kept = scores >= cut
    hits = _hits(index, [*query.wanted, *query.unwanted], rows[kept], scores[kept])
    if sort == "date":
        hits.sort(key=lambda hit: hit.taken or "", reverse=True)
    expected, spread = _expected(terms, dead)
    low, high = max(0.0, expected - 1.96 * spread), expected + 1.96 * spread
    photos = len(index) - len(dead)
    found = tuple(hits[:top])
    return Found(str(query), found, photos, expected, low, min(high, photos), above, promise)


def nearest_photos(index: Index, row: int, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like one of the index: equal copies of it, and similar ones.

    The probability of a similar photo is the cosine of the embeddings, which is no probability.
    """
    vectors = index.store.embeddings()
    near = index.similar(vectors[row], count, without=[row])
    similar = _hits(index, (), np.array([r for r, _ in near], np.int64), np.zeros(len(near)))
    similar = [
        Hit(hit.row, cosine, {}, hit.paths, hit.taken, hit.width, hit.height)
        for hit, (_, cosine) in zip(similar, near, strict=True)
    ]
    (own,) = _hits(index, (), np.array([row]), np.zeros(1))
    copies = [
        Hit(row, 1.0, {}, (path,), own.taken, own.width, own.height) for path in own.paths[1:]
    ]
    return copies, similar


def _hits(
    index: Index, labels: Sequence[str], rows: NDArray[np.int64], scores: NDArray[np.floating]
) -> list[Hit]:
    paths = index.store.paths_of(rows.tolist())
    contents = index.store.contents_of(rows.tolist())
    odds = {name: index.odds(index.space.column(name)).log_p.values for name in labels}
    hits = []
    for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
        reasons = {name: float(np.exp(values[row])) for name, values in odds.items()}
        facts = contents[row]
        hits.append(
            Hit(
                row,
                float(np.exp(score)),
                reasons,
                tuple(paths[row]),
                facts.taken,
                facts.width,
                facts.height,
            )
        )
    return hits


def _expected(terms: Sequence[Term], dead: NDArray[np.int64]) -> tuple[float, float]:
    """Return the sum of P over the photos that are there, and its standard deviation."""
    mean = variance = 0.0
    alive = np.ones(len(terms[0]), np.bool_)
    alive[dead] = False
    for start in range(0, len(alive), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        total = terms[0].values[part].astype(np.float64)
        for term in terms[1:]:
            total += term.values[part]
        probs = np.exp(total)[alive[part]]
        mean += float(probs.sum())
        variance += float((probs * (1 - probs)).sum())
    return mean, variance**0.5


def _columns(query: Query, space: LabelSpace) -> tuple[list[int], list[int]]:
    """Return the columns wanted and unwanted, of a query that is no more than those."""
    if query.limits or len(query.wanted) + len(query.unwanted) != len(query.names()):
        raise DataError(
            f"an index answers labels joined by commas, as in 'dog, -beach'; got {query}"
        )
    wanted = [space.column(name) for name in query.wanted]
    return wanted, [space.column(name) for name in query.unwanted]


def _promised(index: Index, query: Query, wrong_at_most: float, confidence: float) -> PromisedList:
    """Return the cut of a query's list, tested on photos that fitted nothing."""
    evidence = index.evidence()
    answers = evidence.answers
    wanted, unwanted = _columns(query, index.space)
    present, absent = answers.present, answers.absent
    known = np.all((present | absent)[:, [*wanted, *unwanted]], axis=1)
    right = np.all(present[:, wanted], axis=1) & np.all(absent[:, unwanted], axis=1)
    with np.errstate(divide="ignore"):
        scores = query_log_scores(np.log(answers.probs), np.log1p(-answers.probs), wanted, unwanted)
    return promise_list(
        scores[known],
        right[known],
        wrong_at_most=wrong_at_most,
        confidence=confidence,
        photos=evidence.photos,
    )
