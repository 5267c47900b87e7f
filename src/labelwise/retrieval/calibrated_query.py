"""The probability of a query, calibrated as a query on held-out photos.

    logit P = a logit(product) + b,  a ~ N(1, 1/16 s), b ~ N(0, 1/4 s) before any photo is seen

so that a query with few positives keeps the product of its labels' probabilities. How strong the
pull is, s, is learned: the fits for four values of it are averaged, each weighing as likely as it
makes the held-out photos (the evidence, by Laplace's approximation). Where labels are independent
given the photo, the strongest wins, and the product stays.

Held-out photos that come in groups say less than as many others, and so do the library's: the
variance of a count grows by the design effect of y - P among them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import Array, Mask
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import START, expit, fit_slope_and_offset, log_expit, logit, ndtri
from labelwise.retrieval.bound_query import BoundQuery

Numbers = NDArray[np.float64]
PRIOR = np.array([16.0, 4.0])  # precision of slope and offset before any photo is seen
STRENGTHS = (1.0, 8.0, 64.0, 512.0)  # times PRIOR
LEAST_SLOPE = 1e-3
FAR = 30.0  # log-odds beyond which a product is as good as sure
NUMBERS_AT_ONCE = 1 << 17  # as many as a processor keeps near
DROPPED_BITS = 15  # of a float of 32 bits


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

    ``scores`` are those of the held-out photos whose answer is known, and ``hits`` says
    which of them answer the query; ``groups`` are those they come in.
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
        """How many held-out photos answer the query."""
        return int(self.hits.sum())

    def probs(self, log_scores: Numbers) -> Numbers:
        """Return the (N,) probability of each image; 0 where a limit leaves it out."""
        odds = _log_odds(log_scores)
        values: Numbers = expit(self.slope * odds + self.offset)
        if len(values) and log_scores.min() == -np.inf:
            values[np.isneginf(log_scores)] = 0.0
        return values

    def score_at(self, probability: float) -> float:
        """Return the log score at which the query has this probability."""
        if probability <= 0:
            return -np.inf
        if probability >= 1:
            return 0.0
        slope = max(self.slope, LEAST_SLOPE)
        return float(log_expit((logit(probability) - self.offset) / slope))

    def count(self, log_scores: NDArray[Any], confidence: float = 0.95) -> HitCount:
        """Return the expected number of hits, with an interval for chance and for the fit's error.

        Scores of 32 bits, of which there may be millions, are binned to one part in 500. The errors
        cancel: for a label in 3 % of a million photos a millionth of the number is left.
        """
        scores, times = log_scores, np.ones(len(log_scores), np.int64)
        if scores.dtype == np.float32:
            sizes, times = _tallied(scores)
            scores = -sizes
        return self._counted(_log_odds(scores), self.probs(scores), times, confidence)

    def count_of_odds(self, odds: NDArray[np.float32], confidence: float = 0.95) -> HitCount:
        """Return the expected number of hits as ``count`` does, from the odds of the products."""
        values, times = _tallied(odds)
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


def _tallied(values: NDArray[np.float32]) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the different sizes of numbers (N,), to one part in 500, and how many have each.

    A number is taken by its exponent and the first eight bits of its fraction: counting a million
    takes a fraction of the time of a sort, or of a logarithm each.
    """
    counts = np.zeros(1 << (31 - DROPPED_BITS), np.int64)
    for start in range(0, len(values), NUMBERS_AT_ONCE):
        bits = values[start : start + NUMBERS_AT_ONCE].view(np.uint32) & np.uint32(0x7FFFFFFF)
        counts += np.bincount(bits >> np.uint32(DROPPED_BITS), minlength=len(counts))
    buckets = np.flatnonzero(counts)
    bits = buckets.astype(np.uint32) << np.uint32(DROPPED_BITS)
    infinite = 0xFF << (23 - DROPPED_BITS)
    bits[(buckets > 0) & (buckets < infinite)] |= np.uint32(1 << (DROPPED_BITS - 1))
    return bits.view(np.float32).astype(np.float64), counts[buckets]


def calibrate_query(
    query: BoundQuery,
    log_p: Array,
    log_q: Array,
    labels: Array,
    observed: Array | None = None,
    groups: Groups | None = None,
) -> CalibratedQuery:
    """Return the query calibrated on held-out photos (N, len(query.columns))."""
    scores = query.log_scores(log_p, log_q)
    hits, known = query.right(labels, observed)
    scores, hits = scores[known], hits[known]
    odds, outcome = _log_odds(scores), hits.astype(np.float64)
    used = ~np.isneginf(scores)
    (slope, offset), covariance = _averaged_fit(odds[used], outcome[used])
    inside = None if groups is None else groups.take(known)
    return CalibratedQuery(query, float(slope), float(offset), covariance, scores, hits, inside)


def _averaged_fit(odds: Numbers, outcome: Numbers) -> tuple[Numbers, Numbers]:
    """Return slope and offset, averaged over strengths of the prior, and their covariance."""
    fits, evidence = [], []
    for strength in STRENGTHS:
        precision = strength * PRIOR
        weights, covariance = fit_slope_and_offset(odds, outcome, precision)
        x = weights[0] * odds + weights[1]
        likelihood = float((outcome * log_expit(x) + (1 - outcome) * log_expit(-x)).sum())
        pull = float(precision @ (weights - START) ** 2) - np.log(precision).sum()
        evidence.append(likelihood - pull / 2 + np.linalg.slogdet(covariance)[1] / 2)
        fits.append((weights, covariance))
    share = np.exp(np.array(evidence) - max(evidence))
    share /= share.sum()
    weighted = [(weight, *fit) for weight, fit in zip(share, fits, strict=True)]
    mean = np.asarray(sum(weight * own for weight, own, _ in weighted))
    spread = (w * (own + np.outer(at - mean, at - mean)) for w, at, own in weighted)
    return mean, np.asarray(sum(spread))


def _log_odds(log_scores: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds = -np.log(np.expm1(-log_scores))  # p / (1 - p) = 1 / (1 / p - 1)
    return np.asarray(np.fmax(np.fmin(odds, FAR), -FAR))  # FAR in the place of NaN
