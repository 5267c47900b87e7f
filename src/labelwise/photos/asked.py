"""A query asked of an index: the ranking of its photos, and what held-out photos say of it.

Held-out photos have no corrections. So whatever is promised is promised of the model's own
ranking, as if nobody had said anything of any photo (``own``): its list may hold a photo that a
person called wrong, and is not worse for leaving it out afterwards (``said_wrong``).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import ListBound, ListCheck, ListToCheck, list_bound, list_to_check, prior_of
from labelwise.photos.check_log import Answer
from labelwise.photos.filters import EVERY_PHOTO, PhotoFilter
from labelwise.photos.index import Index
from labelwise.photos.model_odds import KnownPhotos
from labelwise.photos.rankings import FallingScores, Ranking, ranking_of
from labelwise.photos.store import Fact
from labelwise.retrieval import BoundQuery, CalibratedQuery, Query, calibrate_query
from labelwise.retrieval.expression import AllOf, literal_of
from labelwise.types import LabelSpace

LEAST_CHECKED = 0.2  # probability of a photo on a list that is worth checking


@dataclass(frozen=True, eq=False)
class AskedQuery:
    """A query with its ranking, calibrated on held-out photos, and on other ones (``tuning``)."""

    index: Index
    query: Query
    bound: BoundQuery
    ranking: Ranking
    held_out: CalibratedQuery
    tuning: CalibratedQuery | None
    dead: NDArray[np.int64]

    @classmethod
    def of(
        cls, index: Index, query: Query, *, own: bool, photos: PhotoFilter = EVERY_PHOTO
    ) -> "AskedQuery":
        """Ask an index; ``own`` leaves out what people said of photos, as promises do.

        Photos that do not pass the filter are passed over, as those that are gone.
        """
        bound = index.bound(query)
        dead = index.store.dead_rows()
        if photos:
            dead = np.union1d(dead, photos.left_out(index))
        ranking = ranking_of(index, bound, dead, refit=not own, corrected=not own)
        held_out = _calibrated(index, index.held_out_photos, bound, not own)
        known = index.validation_photos if own else None
        tuning = None if known is None else _calibrated(index, known, bound, refit=False)
        return cls(index, query, bound, ranking, held_out, tuning, dead)

    @property
    def photos(self) -> int:
        """How many photos of the index are there and pass the filter."""
        return len(self.index) - len(self.dead)

    @cached_property
    def falling(self) -> FallingScores:
        """The ranking's scores, sorted once for all that is asked of lists."""
        return FallingScores(self.ranking)

    @property
    def _may_join(self) -> bool:
        """Whether held-out photos may join a check: photo by photo like those of the library."""
        return self.tuning is not None and self.held_out.groups is None

    def score_at(self, probability: float) -> float:
        """Return the log score at which the query has this probability."""
        return self.held_out.score_at(probability)

    def bound_of_lists(self, least: float, confidence: float = 0.95) -> ListBound:
        """Return a bound of the wrong photos of every list of scores of at least ``least``."""
        held = self.held_out
        return list_bound(
            held.scores.astype(np.float32),
            held.hits,
            self.falling.scores_at_least(least),
            confidence=confidence,
            size=self.ranking.count_at_least(float(np.finfo(np.float32).min)),
        )

    def list_to_check(
        self, wrong_at_most: float, *, cut: float | None = None, top: int | None = None
    ) -> ListToCheck | None:
        """Return which list a person should check: down to ``cut``, or ``top`` photos, or our own.

        It is set by photos other than the held-out ones, where there are any. None where no list
        is likely to pass.
        """
        told = self.tuning or self.held_out
        lowest = LEAST_CHECKED if cut is None else cut
        if top is None:
            scores = self.falling.scores_at_least(told.score_at(lowest))
        else:
            _, scores = self.ranking.best(top)
        probs = told.probs(scores.astype(np.float64))
        if top is None and cut is None:
            joined = len(self.held_out.scores) if self._may_join else 0
            chosen = list_to_check(probs, wrong_at_most, held_out=joined / max(self.photos, 1))
            if chosen is None:
                return None
            length = int(np.searchsorted(-scores, -scores[chosen.length - 1], side="right"))
            return ListToCheck(length, chosen.prior)
        if not len(scores):
            return None
        return ListToCheck(len(scores), prior_of(float(1 - probs.mean())))

    def check_of(
        self,
        chosen: ListToCheck,
        wrong_at_most: float,
        *,
        confidence: float = 0.95,
        place: int = 0,
        alone: bool = False,
    ) -> ListCheck:
        """Return the check of a list before its first answer.

        The held-out photos join unless they are all there is to set the list by, they come in
        groups, or the answers are to stand ``alone``.
        """
        joined, wrong = 0, 0
        if self._may_join and not alone:
            lowest = self.falling.lowest_of(chosen.length)
            above = self.held_out.scores.astype(np.float32) >= np.float32(lowest)
            joined, wrong = int(above.sum()), int((above & ~self.held_out.hits).sum())
        return ListCheck(
            chosen.length,
            wrong_at_most,
            confidence,
            held_out=joined,
            held_out_wrong=wrong,
            prior=chosen.prior,
            place=place,
        )


def labels_told(bound: BoundQuery, space: LabelSpace, answer: Answer) -> dict[str, Fact]:
    """Return what an answer to "does it match the query?" says of single labels.

    Where all labels of a query must be there or not, yes tells them all, and no tells the label of
    a query that has only one.
    """
    parts = bound.expression.parts if isinstance(bound.expression, AllOf) else (bound.expression,)
    literals = [one for one in map(literal_of, parts) if one is not None]
    if bound.limits or len(literals) < len(parts) or answer == "unsure":
        return {}
    if answer == "no" and len(literals) > 1:
        return {}
    states: tuple[Fact, Fact] = ("absent", "present")
    return {
        space.names[int(label)]: states[bool(wanted) == (answer == "yes")]
        for label, wanted in literals
    }


def said_wrong(index: Index, bound: BoundQuery) -> NDArray[np.int64]:
    """Return the photos that do not answer a query, by what people said of them, in order."""
    rows, hits, known = said_of(index, bound)
    return rows[known & ~hits]


def said_of(
    index: Index, bound: BoundQuery
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the photos (n,) people spoke of, which of them answer a query, and which are told."""
    said = {column: index.corrections.of(column) for column in bound.columns}
    rows = sorted({one.row for some in said.values() for one in some})
    place = {row: at for at, row in enumerate(rows)}
    labels = np.zeros((len(rows), len(bound.columns)), np.float32)
    observed = np.zeros(labels.shape, np.bool_)
    for at, column in enumerate(bound.columns):
        for one in said[column]:
            if one.state in ("present", "absent"):
                entry = place[one.row], at
                labels[entry], observed[entry] = one.state == "present", True
    hits, known = bound.right(labels, observed)
    return np.array(rows, np.int64), np.asarray(hits), np.asarray(known)


def _calibrated(
    index: Index, photos: KnownPhotos | None, bound: BoundQuery, refit: bool
) -> CalibratedQuery:
    """Return the query's probability as some labelled photos have it; the product without any."""
    columns = list(bound.columns)
    if photos is None:
        nothing = np.empty((0, len(columns)))
        return calibrate_query(bound, nothing, nothing, nothing)
    log_p, log_q = index.known_log_probs(photos, columns, refit=refit)
    observed = None if photos.observed is None else photos.observed[:, columns]
    labels = photos.majority[:, columns]
    return calibrate_query(bound, log_p, log_q, labels, observed, photos.groups)
