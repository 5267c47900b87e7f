"""The probability of a query, calibrated as a query on held-out photos.

    logit P = a logit(product) + b,  a ~ N(1, 1/16), b ~ N(0, 1/4) before any photo is seen

so that a query with few positives keeps the product of its labels' probabilities.

Held-out photos that come in groups say less than as many others, and so do the library's: the
variance of a count grows by the design effect of y - P among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import (
    PromisedList,
    cut_to_try,
    expected_list,
    is_believed,
    least_wrong,
    list_above,
    lowest_cut,
    sure_list,
)
from labelwise.numeric.arrays import Array, Mask
from labelwise.numeric.bucket_counts import BucketCounts
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import expit, fit_slope_and_offset, log_expit, logit, ndtri
from labelwise.retrieval.bound_query import BoundQuery

ListKind = Literal["expected", "sure"]

Numbers = NDArray[np.float64]
PRIOR = np.array([16.0, 4.0])  # precision of slope and offset before any photo is seen
LEAST_SCORE = float(np.finfo(np.float32).min)  # below it: minus infinity, left out by a limit
LEAST_SLOPE = 1e-3
LEAST_LISTED = 0.05  # probability of the last photo of a list that is tried
POSSIBLE_FITS = np.random.default_rng(0).standard_normal((24, 2))
LARGER_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # offered where a smaller one fails
FAR = 30.0  # log-odds beyond which a product is as good as sure


@dataclass(frozen=True)
class HitCount:
    """How many images answer a query, expected, with the ends of an interval."""

    expected: float
    lower: float
    upper: float
    confidence: float


@dataclass(frozen=True, eq=False)
class CalibratedQuery:
    """A query's probability, fitted on held-out photos: slope, offset, their covariance.

    ``scores`` are those of the held-out photos of which the answer is known, and ``hits`` says
    which of them answer the query: a promise about a list is made on them, or on their ``groups``.
    """

    query: BoundQuery
    slope: float
    offset: float
    covariance: Numbers
    scores: Numbers
    hits: Mask
    groups: Groups | None = None

    @cached_property
    def design_effect(self) -> float:
        """How many held-out photos say as little as one of its own; 1 without groups."""
        if self.groups is None:
            return 1.0
        return max(1.0, self.groups.design_effect(self.hits - self.probs(self.scores)) or 1.0)

    @property
    def positives(self) -> int:
        """Return how many held-out photos answer the query."""
        return int(self.hits.sum())

    def probs(self, log_scores: Numbers) -> Numbers:
        """Return the (N,) probability of each image; 0 where a limit leaves it out."""
        odds = _log_odds(log_scores)
        values: Numbers = expit(self.slope * odds + self.offset)
        if len(values) and log_scores.min() == -np.inf:
            values[np.isneginf(log_scores)] = 0.0
        return values

    def possible_probs(self, log_scores: Numbers) -> Numbers:
        """Return the probabilities (24, N) of fits as likely as this one, by its covariance."""
        root = np.linalg.cholesky(self.covariance + 1e-12 * np.eye(2))
        slopes, offsets = np.array([[self.slope], [self.offset]]) + root @ POSSIBLE_FITS.T
        return np.asarray(expit(slopes[:, None] * _log_odds(log_scores) + offsets[:, None]))

    def score_at(self, probability: float) -> float:
        """Return the log score at which the query has this probability."""
        if probability <= 0:
            return -np.inf
        if probability >= 1:
            return 0.0
        slope = max(self.slope, LEAST_SLOPE)
        return float(log_expit((logit(probability) - self.offset) / slope))

    def count(self, log_scores: NDArray[Any] | BucketCounts, confidence: float = 0.95) -> HitCount:
        """Return the expected number of hits, with an interval for chance and for the fit's error.

        Scores of 32 bits, of which there may be millions, are binned to one part in 500. The errors
        cancel: for a label in 3 % of a million photos a millionth of the number is left.
        """
        if not isinstance(log_scores, BucketCounts) and log_scores.dtype != np.float32:
            scores, times = log_scores, np.ones(len(log_scores), np.int64)
        else:
            tally = (
                log_scores if isinstance(log_scores, BucketCounts) else BucketCounts.of(log_scores)
            )
            sizes, times = tally.sizes()
            scores = -sizes
        return self._counted(_log_odds(scores), self.probs(scores), times, confidence)

    def count_of_odds(self, odds: NDArray[np.float32], confidence: float = 0.95) -> HitCount:
        """Return the expected number of hits as ``count`` does, from the odds of the products."""
        values, times = BucketCounts.of(odds).sizes()
        with np.errstate(divide="ignore"):
            logs = np.clip(np.log(values), -FAR, FAR)
        p = expit(self.slope * logs + self.offset)
        return self._counted(logs, np.where(values > 0, p, 0.0), times, confidence)

    def _counted(
        self, odds: Numbers, p: Numbers, times: NDArray[np.int64], confidence: float
    ) -> HitCount:
        expected, listed = float(times @ p), int(times[p > 0].sum())
        slopes = times * p * (1 - p)
        variance = float(slopes.sum())
        gradient = np.array([float(slopes @ odds), variance])
        variance += float(gradient @ self.covariance @ gradient)
        variance *= self.design_effect
        reach = float(ndtri((1 + confidence) / 2) * np.sqrt(variance))
        upper = min(float(listed), expected + reach)
        return HitCount(expected, max(0.0, expected - reach), upper, confidence)

    def cut(
        self,
        library: "LibraryScores",
        wrong_at_most: float,
        *,
        kind: ListKind = "expected",
        confidence: float = 0.95,
        least: float = -np.inf,
        tuning: "CalibratedQuery | None" = None,
        seed: int = 0,
    ) -> PromisedList:
        """Return the lowest log score of a library's list of which at most this share is wrong.

        ``kind`` says in which sense: see :mod:`labelwise.decide.promised_lists`. The list holds no
        photo below ``least``, and none that a limit leaves out; held-out photos below it do not
        count either. ``tuning``, the query calibrated on other photos, sets the cut of an expected
        list, without it all cuts are tried (:mod:`labelwise.decide.cut_lists` needs fewer held-out
        photos); and how many held-out misses a sure list may pass, without it a fifth of the
        held-out photos does.
        """
        held = self._above(least)
        size = library.count_at_least(max(least, LEAST_SCORE))
        setter = self._cut_setter(size, tuning)
        if kind == "expected" and setter is not None:
            return self._tried([wrong_at_most], library, least, size, setter)
        if kind == "sure" and held.groups is not None:
            why = (
                f"the {len(held.scores):,} held-out photos come in {held.groups.count:,} groups, "
                "and how wrong this very list may be depends on the groups of its own photos, "
                "which are not known"
            )
            return PromisedList(np.inf, None, why)
        lowest = lowest_cut(held.scores, held.hits, wrong_at_most, held.groups)
        listed = library.scores_at_least(max(least, lowest, LEAST_SCORE))
        if kind == "expected":
            made = expected_list(
                *(held.scores, held.hits, listed),
                wrong_at_most=wrong_at_most,
                size=size,
                photos=self._photos,
                groups=held.groups,
                plausible=True,
            )
            return made if tuning is None else _believed(made, listed, tuning, wrong_at_most)
        return sure_list(
            *(held.scores, held.hits, listed),
            wrong_at_most=wrong_at_most,
            confidence=confidence,
            tuning=None if tuning is None else tuning._chances_above(least),
            size=size,
            seed=seed,
            photos=self._photos,
        )

    def least_wrong(
        self,
        library: "LibraryScores",
        wrong_at_most: float,
        least: float = -np.inf,
        tuning: "CalibratedQuery | None" = None,
    ) -> float | None:
        """Return a share of at least ``wrong_at_most``, up to 0.5, for which a list is expected.

        ``cut`` makes the promise for it. None where there is no such share.
        """
        size = library.count_at_least(max(least, LEAST_SCORE))
        setter = self._cut_setter(size, tuning)
        shares = [wrong_at_most, *(one for one in LARGER_SHARES if one > wrong_at_most)]
        if setter is not None:
            made = self._tried(shares, library, least, size, setter).promise
            return None if made is None else round(1 - made.level, 9)
        if tuning is not None:
            found = (self.cut(library, share, least=least, tuning=tuning) for share in shares)
            first = next((one.promise for one in found if one.promise is not None), None)
            return None if first is None else round(1 - first.level, 9)
        held = self._above(least)
        lowest = lowest_cut(held.scores, held.hits, 0.5, held.groups)
        listed = library.scores_at_least(max(least, lowest, LEAST_SCORE))
        works = least_wrong(
            *(held.scores, held.hits, listed), size=size, groups=held.groups, plausible=True
        )
        return None if works is None else max(works, wrong_at_most)

    def _cut_setter(self, size: int, tuning: "CalibratedQuery | None") -> "CalibratedQuery | None":
        """Return who sets the cut of an expected list beforehand; None where all cuts are tried.

        In a library smaller than the held-out photos, chance decides how many stand above a cut.
        """
        return tuning if self.groups is None and size >= len(self.scores) else None

    def _tried(
        self,
        shares: Sequence[float],
        library: "LibraryScores",
        least: float,
        size: int,
        setter: "CalibratedQuery",
    ) -> PromisedList:
        """Return the expected list of the first share for which there is one, by a cut each."""
        held = self._above(least)
        lowest = float(np.float32(max(least, LEAST_SCORE, setter.score_at(LEAST_LISTED))))
        pooled, times = (library.tally_at_least(lowest) + BucketCounts.of(held.scores)).falling(
            lowest
        )
        tried = []
        for share in shares:
            cut = cut_to_try(
                *(pooled, setter.possible_probs, len(held.scores), size, share),
                times=times,
                seen=(setter.scores, setter.hits),
            )
            cut = np.inf if cut is None else cut
            found = list_above(
                *(cut, held.scores, held.hits, library.scores_at_least(cut)),
                wrong_at_most=share,
                size=size,
                photos=self._photos,
            )
            if found.promise is not None:
                return found
            tried.append(found)
        return tried[0]

    @property
    def _photos(self) -> str:
        return f"held-out photos of {self.query.query}"

    def _above(self, least: float) -> "_Above":
        """Return the held-out photos at or above a score, in 32 bits as the library's are."""
        scores = self.scores.astype(np.float32)
        used = scores >= np.float32(max(least, LEAST_SCORE))
        groups = None if self.groups is None else self.groups.take(used)
        return _Above(scores[used], self.hits[used], groups)

    def _chances_above(self, least: float) -> Numbers:
        """Return the probabilities of its own photos at or above a score."""
        return self.probs(self.scores[self.scores >= max(least, LEAST_SCORE)])


def _believed(
    made: PromisedList, listed: NDArray[Any], tuning: CalibratedQuery, wrong_at_most: float
) -> PromisedList:
    """Return the list, or refuse it where other photos have far more of it wrong."""
    if made.promise is None:
        return made
    scores, seen = listed[listed >= made.threshold], (tuning.scores, tuning.hits)
    if is_believed(scores, lambda some: tuning.probs(some)[None], seen, wrong_at_most):
        return made
    why = (
        f"a list of {made.listed:,} photos passes, but by the validation photos more than twice "
        f"the share of {wrong_at_most:.3g} of it should be wrong"
    )
    return PromisedList(np.inf, None, why)


@dataclass(frozen=True, eq=False)
class _Above:
    """Held-out photos at or above a score."""

    scores: NDArray[np.float32]
    hits: Mask
    groups: Groups | None


class LibraryScores(Protocol):
    """The log scores of a library's photos."""

    def count_at_least(self, least: float) -> int:
        """Return how many photos have a score of at least ``least``."""

    def scores_at_least(self, least: float) -> NDArray[Any]:
        """Return the scores that are at least ``least``, in any order."""

    def tally_at_least(self, least: float) -> BucketCounts:
        """Return how many photos have which score, of those from ``least`` on at least."""


@dataclass(frozen=True, eq=False)
class ScoredLibrary:
    """A library whose scores are at hand as one array."""

    scores: NDArray[Any]

    def count_at_least(self, least: float) -> int:
        return int(np.count_nonzero(self.scores >= least))

    def scores_at_least(self, least: float) -> NDArray[Any]:
        return np.compress(self.scores >= least, self.scores)

    def tally_at_least(self, least: float) -> BucketCounts:
        return BucketCounts.of(self.scores_at_least(least))


def calibrate_query(
    query: BoundQuery,
    log_p: Array,
    log_q: Array,
    labels: Array,
    observed: Array | None = None,
    groups: Groups | None = None,
) -> CalibratedQuery:
    """Return the query calibrated on held-out photos (N, len(query.columns)), with their groups."""
    scores = query.log_scores(log_p, log_q)
    hits, known = query.right(labels, observed)
    scores, hits = scores[known], hits[known]
    odds, outcome = _log_odds(scores), hits.astype(np.float64)
    used = ~np.isneginf(scores)
    weights, covariance = fit_slope_and_offset(odds[used], outcome[used], PRIOR)
    slope, offset = (float(value) for value in weights)
    inside = None if groups is None else groups.take(known)
    return CalibratedQuery(query, slope, offset, covariance, scores, hits, inside)


def _log_odds(log_scores: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds = -np.log(np.expm1(-log_scores))  # p / (1 - p) = 1 / (1 / p - 1)
    return np.asarray(np.fmax(np.fmin(odds, FAR), -FAR))  # FAR in the place of NaN
