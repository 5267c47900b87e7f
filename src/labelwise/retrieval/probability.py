"""The probability of a query: of its labels' probabilities, and calibrated as a query.

    product         log P of the query, the labels being independent given the image:
                    all of: sum of logs; any of, and not: through the pair (log P, log(1 - P))
    odds            P / (1 - P) by sums and products of (P, 1 - P) alone, which never cancel: a
                    tenth of the time of logarithms, and the same to rounding
    calibrated      logit P = a logit(product) + b,  a ~ N(1, 1/16), b ~ N(0, 1/4) before held-out
                    photos are seen: with few positives a query keeps its product

Labels that occur twice in a query are conditioned on, so the product is exact.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from labelwise.arrays import Array, Mask, as_mask, to_numpy
from labelwise.decide import PromisedList, list_candidates, promise_list
from labelwise.retrieval.logic import (
    given,
    independent_parts,
    labels_of,
    repeated_labels,
    simplified,
)
from labelwise.retrieval.query import (
    AllOf,
    AnyOf,
    Expression,
    Has,
    Not,
    Query,
)
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

__all__ = ["BoundQuery", "CalibratedQuery", "HitCount", "bind", "calibrate_query"]

Numbers = NDArray[np.float64]
PRIOR = np.array([16.0, 4.0])  # precision of slope and offset before any photo is seen
ROWS_AT_ONCE = 1 << 17  # as many as a processor keeps near
DROPPED_BITS = 15
BUCKETS, MIDDLE = 1 << (31 - DROPPED_BITS), 1 << (DROPPED_BITS - 1)
INFINITE = 0xFF << (23 - DROPPED_BITS)  # the bucket of it
FAR = 30.0  # log-odds beyond which a product is as good as sure


@dataclass(frozen=True)
class BoundQuery:
    """A query over columns: ``columns`` of the label space are what it needs to be given.

    Every method takes arrays (N, len(columns)), in this order.
    """

    query: Query
    columns: tuple[int, ...]
    expression: Expression
    limits: tuple[tuple[int, float, bool], ...] = ()

    def log_scores(self, log_p: Array, log_q: Array) -> Numbers:
        """Return the (N,) log of the product; -inf where a limit leaves an image out."""
        present, absent = (np.asarray(to_numpy(part), dtype=np.float64) for part in (log_p, log_q))
        self._check(present, absent)
        if np.isnan(present).any() or np.isnan(absent).any():
            row = int((np.isnan(present) | np.isnan(absent)).any(1).argmax())
            raise ValueError(f"log_p and log_q must not hold NaN, got one in row {row}")
        place = {str(column): number for number, column in enumerate(self.columns)}
        pairs = {name: (present[:, k], absent[:, k]) for name, k in place.items()}
        scores: Numbers = np.asarray(
            _LogPairs(pairs, np.zeros(len(present))).of(self.expression)[0]
        )
        inside = self.inside(list(present.T))
        return scores if inside is None else np.where(inside, scores, -np.inf)

    def odds(
        self, present: Sequence[NDArray[np.float32]], absent: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Return the (N,) odds of the product, from p and 1 - p of each column; no limits apply.

        They lose their digits below 1e-30 and above 1e30, and end as 0 or infinity.
        """
        names = map(str, self.columns)
        pairs = dict(zip(names, zip(present, absent, strict=True), strict=True))
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            over, under = _PlainPairs(pairs, np.ones_like(present[0])).of(self.expression)
            return np.asarray(over / under, np.float32)

    def inside(self, log_p: Sequence[NDArray[np.floating[Any]]]) -> Mask | None:
        """Return which images (N,) the limits leave, from log p of each column; None: all."""
        kept: Mask | None = None
        for column, bound, above in self.limits:
            logs = log_p[self.columns.index(column)]
            with np.errstate(divide="ignore"):
                edge = np.log(np.float64(bound))
            passed = logs > edge if above else logs < edge
            kept = passed if kept is None else kept & passed
        return kept

    def right(self, labels: Array, observed: Array | None = None) -> tuple[Mask, Mask]:
        """Return which images (N,) answer the query, and of which that is known."""
        truth = to_numpy(labels) == 1
        known = np.ones_like(truth) if observed is None else as_mask(to_numpy(observed), "observed")
        self._check(truth, known)
        place = {str(column): number for number, column in enumerate(self.columns)}
        states = {
            name: (truth[:, k] & known[:, k], ~truth[:, k] & known[:, k])
            for name, k in place.items()
        }
        holds, fails = _states(self.expression, states, len(truth))
        return holds, holds | fails

    def _check(self, *arrays: NDArray[np.generic]) -> None:
        for array in arrays:
            if array.shape != (len(arrays[0]), len(self.columns)):
                raise ValueError(
                    f"arrays must have one column for each of {self.columns}, got {array.shape}"
                )


def bind(query: Query, space: LabelSpace, taxonomy: Taxonomy | None = None) -> BoundQuery:
    """Return the query over the columns of a label space; a parent's labels are any of them.

    It is put in its simplest form: ``animal, pet`` asks for pets. What then still names many labels
    more than once is refused, since each of them doubles the work.
    """
    tree = taxonomy or Taxonomy()

    def bound(expression: Expression) -> Expression:
        match expression:
            case Has(name):
                found = [Has(str(space.column(label))) for label in tree.labels(name, space)]
                return found[0] if len(found) == 1 else AnyOf(tuple(found))
            case Not(part):
                return Not(bound(part))
            case AllOf(parts):
                return AllOf(tuple(map(bound, parts)))
            case AnyOf(parts):
                return AnyOf(tuple(map(bound, parts)))
            case _:
                return AllOf(tuple(Not(Has(str(k))) for k in range(len(space))))

    expression = simplified(bound(query.expression))
    limits = tuple((space.column(at.name), at.bound, at.above) for at in query.limits)
    touched = dict.fromkeys(map(int, labels_of(expression))) | dict.fromkeys(at[0] for at in limits)
    return BoundQuery(query, tuple(touched), expression, limits)


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

    ``scores`` and ``right`` are the held-out photos of which the answer is known: a promise about
    the list is made on them.
    """

    query: BoundQuery
    slope: float
    offset: float
    covariance: Numbers
    scores: Numbers
    hits: Mask

    @property
    def positives(self) -> int:
        """Return how many held-out photos answer the query."""
        return int(self.hits.sum())

    def probs(self, log_scores: Numbers) -> Numbers:
        """Return the (N,) probability of each image; 0 where a limit leaves it out."""
        odds = _log_odds(log_scores)
        with np.errstate(over="ignore"):  # faster than expit, and as good for |odds| <= FAR
            values: Numbers = 1 / (1 + np.exp(-(self.slope * odds + self.offset)))
        if len(values) and log_scores.min() == -np.inf:
            values[np.isneginf(log_scores)] = 0.0
        return values

    def count(self, log_scores: NDArray[Any], confidence: float = 0.95) -> HitCount:
        """Return the expected number of hits; the interval holds chance and the fit's own doubt.

        Scores of 32 bits, which are many, are told apart to one part in 500; what that errs by
        cancels (a millionth of the number for a label in 3 % of a million photos).
        """
        if log_scores.dtype != np.float32:
            scores, times = log_scores, np.ones(len(log_scores), np.int64)
        else:
            sizes, times = _tallied(log_scores)
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
        reach = float(ndtri((1 + confidence) / 2) * np.sqrt(variance))
        upper = min(float(listed), expected + reach)
        return HitCount(expected, max(0.0, expected - reach), upper, confidence)

    def cut(
        self,
        wrong_at_most: float,
        confidence: float = 0.95,
        *,
        tuning: "CalibratedQuery | None" = None,
        seed: int = 0,
    ) -> PromisedList:
        """Return the lowest log score of a list of which at most this share is wrong.

        The held-out photos alone decide, so the size of a library plays no part. ``tuning``, the
        query calibrated on other photos, says which cuts to try; these may have been used before.
        Without it a fifth of the held-out photos does, and less is promised.
        """
        listed = ~np.isneginf(self.scores)
        if listed.sum() < 2:
            return PromisedList(np.inf, None, "too few held-out photos pass the query's limits")
        candidates = None
        if tuning is not None:
            candidates = tuning._cuts(int(listed.sum()), wrong_at_most, confidence)
        return promise_list(
            self.scores[listed],
            self.hits[listed],
            candidates=candidates,
            wrong_at_most=wrong_at_most,
            confidence=confidence,
            seed=seed,
            photos=f"held-out photos of {self.query.query}",
        )

    def _cuts(self, photos: int, wrong_at_most: float, confidence: float) -> Numbers:
        """Return the log scores that are worth a test on so many photos, the strictest first."""
        scores = np.sort(self.scores[~np.isneginf(self.scores)])
        probs = self.probs(scores) if self.slope > 0 else np.exp(scores)
        chosen = list_candidates(probs, photos, wrong_at_most=wrong_at_most, confidence=confidence)
        return np.asarray(scores[np.searchsorted(probs, chosen)])


def calibrate_query(
    query: BoundQuery, log_p: Array, log_q: Array, labels: Array, observed: Array | None = None
) -> CalibratedQuery:
    """Return the query calibrated on held-out photos (N, len(query.columns))."""
    scores = query.log_scores(log_p, log_q)
    hits, known = query.right(labels, observed)
    scores, hits = scores[known], hits[known]
    odds, outcome = _log_odds(scores), hits.astype(np.float64)
    used = ~np.isneginf(scores)
    design = np.stack([odds[used], np.ones(int(used.sum()))], 1)
    start = np.array([1.0, 0.0])
    weights, curvature = start.copy(), np.diag(PRIOR)
    for _ in range(50):
        p = expit(design @ weights)
        gradient = design.T @ (p - outcome[used]) + PRIOR * (weights - start)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + np.diag(PRIOR)
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 1.0 / max(np.abs(step).max(), 1e-12))
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    slope, offset = (float(value) for value in weights)
    return CalibratedQuery(query, slope, offset, np.linalg.inv(curvature), scores, hits)


def _tallied(values: NDArray[np.float32]) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the sizes of values, whatever their sign, and how often there is each of them.

    A float of 32 bits is taken by its exponent and the first eight bits of its fraction, and stands
    in the middle of those that share them: a table takes a fraction of the time of a logarithm.
    """
    tally = np.zeros(BUCKETS, np.int64)
    for start in range(0, len(values), ROWS_AT_ONCE):
        bits = values[start : start + ROWS_AT_ONCE].view(np.uint32) & np.uint32(0x7FFFFFFF)
        tally += np.bincount(bits >> np.uint32(DROPPED_BITS), minlength=BUCKETS)
    found = np.flatnonzero(tally)
    bits = found.astype(np.uint32) << np.uint32(DROPPED_BITS)
    bits[(found > 0) & (found < INFINITE)] |= np.uint32(MIDDLE)
    return bits.view(np.float32).astype(np.float64), tally[found]


def _log_odds(log_scores: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = log_scores - _log1mexp(log_scores)
    return np.asarray(np.fmax(np.fmin(odds, FAR), -FAR))  # FAR in the place of NaN


def _log1mexp(values: Numbers) -> Numbers:
    """Return log(1 - exp(values)) for values <= 0."""
    with np.errstate(divide="ignore"):
        return np.where(values > -0.6931, np.log(-np.expm1(values)), np.log1p(-np.exp(values)))


Values = NDArray[np.floating[Any]]
PairOf = tuple[Values, Values]


class _Pairs(ABC):
    """What an expression and its opposite have, over columns with given pairs; each is found once.

    ``sure`` and ``never`` are what certainty and its opposite have.
    """

    def __init__(self, pairs: Mapping[str, PairOf], sure: Values, never: Values) -> None:
        self.pairs, self.sure, self.never = pairs, sure, never
        self.known: dict[Expression, PairOf] = {}

    @abstractmethod
    def all_of(self, pairs: Sequence[PairOf]) -> PairOf:
        """Return the pair of all parts, which are independent."""

    @abstractmethod
    def mixed(self, label: PairOf, present: PairOf, absent: PairOf) -> PairOf:
        """Return the pair of what has one pair with a label and another without it."""

    def of(self, expression: Expression | bool) -> PairOf:
        """Return the pair of an expression, or of a certainty."""
        match expression:
            case bool():
                return (self.sure, self.never) if expression else (self.never, self.sure)
            case Has(name):
                return self.pairs[name]
            case Not(part):
                return self.of(part)[::-1]
        if expression not in self.known:
            self.known[expression] = self._computed(expression)
        return self.known[expression]

    def _computed(self, expression: Expression) -> PairOf:
        groups = independent_parts(expression)
        if len(groups) > 1:
            pairs = [self.of(part) for part in groups]
            if isinstance(expression, AllOf):
                return self.all_of(pairs)
            return self.all_of([pair[::-1] for pair in pairs])[::-1]
        if not (repeated := repeated_labels(expression)):  # all of one part, or any of it
            return self.of(groups[0])
        # P = P(label) P(rest | label) + P(no label) P(rest | no label)
        name = repeated[0]
        present, absent = (self.of(given(expression, name, known)) for known in (True, False))
        return self.mixed(self.pairs[name], present, absent)


class _LogPairs(_Pairs):
    """(log P, log(1 - P))."""

    def __init__(self, pairs: Mapping[str, PairOf], zeros: Numbers) -> None:
        super().__init__(pairs, zeros, np.full_like(zeros, -np.inf))

    def all_of(self, pairs: Sequence[PairOf]) -> PairOf:
        total = sum((log_p for log_p, _ in pairs), self.sure)
        return total, _log1mexp(np.minimum(total, 0.0))

    def mixed(self, label: PairOf, present: PairOf, absent: PairOf) -> PairOf:
        log_p, log_q = (
            np.logaddexp(label[0] + present[side], label[1] + absent[side]) for side in (0, 1)
        )
        return log_p, log_q


class _PlainPairs(_Pairs):
    """(P, 1 - P): of all parts, 1 - P is the chance that the first fails, or the second, ..."""

    def __init__(self, pairs: Mapping[str, PairOf], ones: Values) -> None:
        super().__init__(pairs, ones, np.zeros_like(ones))

    def all_of(self, pairs: Sequence[PairOf]) -> PairOf:
        p, q = pairs[0]
        for one, other in pairs[1:]:
            q = q + p * other
            p = p * one
        return p, q

    def mixed(self, label: PairOf, present: PairOf, absent: PairOf) -> PairOf:
        p, q = (label[0] * present[side] + label[1] * absent[side] for side in (0, 1))
        return p, q


def _states(
    expression: Expression, states: dict[str, tuple[Mask, Mask]], count: int
) -> tuple[Mask, Mask]:
    """Return where an expression holds and where it fails; neither where that is unknown."""
    match expression:
        case Has(name):
            return states[name]
        case Not(part):
            holds, fails = _states(part, states, count)
            return fails, holds
        case AllOf(parts):
            holds, fails = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
            for part in parts:
                yes, no = _states(part, states, count)
                holds, fails = holds & yes, fails | no
            return holds, fails
        case AnyOf(parts):
            fails, holds = _states(AllOf(tuple(Not(part) for part in parts)), states, count)
            return holds, fails
        case _:
            raise ValueError("an expression must be bound to columns first")
