"""A query over the columns of a label space: its probability, and which images answer it.

    product  log P of the query, the labels being independent given the image:
             all of: sum of logs; any of, and not: through the pair (log P, log(1 - P))
    odds     P / (1 - P) by sums and products of (P, 1 - P) alone, which never cancel: a tenth of
             the time of logarithms, and the same to rounding

Labels that occur twice in a query are conditioned on, so the product is exact. Labels of a group
that exclude each other (:mod:`labelwise.taxonomy`) are not independent: with such groups

    P(query) = sum over the group's labels k in it of p_k P(query | k alone)
               + (1 - sum of p_k) P(query | none of them)

where p_k are divided by their sum if it exceeds 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.array_api import log1mexp
from labelwise.base.arrays import Array, Floats, Mask, Numbers, as_mask, to_numpy
from labelwise.base.groups import Groups
from labelwise.base.special import START, expit, fit_slope_and_offset, log_expit, logit, ndtri
from labelwise.queries.query import (
    AllOf,
    AnyOf,
    Expression,
    Has,
    Not,
    Query,
    given,
    independent_parts,
    labels_of,
    repeated_labels,
    simplified,
)
from labelwise.taxonomy import AttributeColumns, Taxonomy
from labelwise.types import LabelSpace


@dataclass(frozen=True)
class RankedImages:
    """Rows of images, best first, their log joint probability and itself; ties in order of rows."""

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
        shapes = f"{tuple(log_p.shape)} and {tuple(log_q.shape)}"
        raise ValueError(f"log_p and log_q must have one shape, got {shapes}")
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


PairOf = tuple[Floats, Floats]


@dataclass(frozen=True)
class BoundQuery:
    """A query over the ``columns`` of a label space that it needs.

    Every method takes these columns in this order: arrays (N, len(columns)), or one (N,) each.
    ``limits`` are (column, bound, above): only images with p above, or below, the bound count.
    ``groups`` are columns of which at most one is present, where the query names two or more.
    """

    query: Query
    columns: tuple[int, ...]
    expression: Expression
    limits: tuple[tuple[int, float, bool], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()

    def log_scores(self, log_p: Array, log_q: Array) -> Numbers:
        """Return the (N,) log of the product; -inf where a limit leaves an image out."""
        present, absent = (np.asarray(to_numpy(side), dtype=np.float64) for side in (log_p, log_q))
        self._check(present, absent)
        if np.isnan(present).any() or np.isnan(absent).any():
            row = int((np.isnan(present) | np.isnan(absent)).any(1).argmax())
            raise ValueError(f"log_p and log_q must not hold NaN, got one in row {row}")
        logs = _Pairs(self._named(present.T, absent.T), np.zeros(len(present)))
        scores: Numbers = np.asarray(_grouped(self.expression, logs, self.groups))
        inside = self.inside(list(present.T))
        return scores if inside is None else np.where(inside, scores, -np.inf)

    @property
    def is_impossible(self) -> bool:
        """Whether no image can answer the query, since it asks for labels that exclude others."""
        if not self.groups:
            return False
        p = np.full((1, len(self.columns)), 0.5 / len(self.columns))
        logs = _Pairs(self._named(np.log(p).T, np.log1p(-p).T), np.zeros(1))
        return bool(np.isneginf(_grouped(self.expression, logs, self.groups)).all())

    def inside(self, log_p: Sequence[Floats]) -> Mask | None:
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
        truth = to_numpy(labels) > 0.5
        known = np.ones_like(truth) if observed is None else as_mask(to_numpy(observed), "observed")
        self._check(truth, known)
        present, absent = truth & known, ~truth & known
        holds, fails = _states(self.expression, self._named(present.T, absent.T))
        return holds, holds | fails

    def _named(self, present: np.ndarray, absent: np.ndarray) -> dict[str, tuple[Any, Any]]:
        return dict(zip(map(str, self.columns), zip(present, absent, strict=True), strict=True))

    def _check(self, *arrays: NDArray[np.generic]) -> None:
        for array in arrays:
            if array.shape != (len(arrays[0]), len(self.columns)):
                needed = f"one column for each of {self.columns}"
                raise ValueError(f"arrays must have {needed}, got {array.shape}")


def bind(
    query: Query,
    space: LabelSpace,
    taxonomy: Taxonomy | None = None,
    attributes: AttributeColumns | None = None,
) -> BoundQuery:
    """Return the query over the columns of a label space; a parent's labels are any of them.

    It is put in its simplest form: ``animal, pet`` asks for pets. What then still names many labels
    more than once is an error, since each of them doubles the work.
    """
    tree = taxonomy or Taxonomy()

    def bound(expression: Expression) -> Expression:
        match expression:
            case Has(name):
                labels = [Has(str(space.column(label))) for label in tree.labels(name, space)]
                return labels[0] if len(labels) == 1 else AnyOf(tuple(labels))
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
    known = () if attributes is None else attributes.groups
    groups = tuple(group for group in known if len(touched.keys() & set(group)) > 1)
    return BoundQuery(query, tuple(touched), expression, limits, groups)


def _grouped(
    expression: Expression | bool, logs: "_Pairs", groups: Sequence[tuple[int, ...]]
) -> Floats:
    """Return log P of an expression; groups of which it names two labels are gone through."""
    if isinstance(expression, bool) or not groups:
        return logs.of(expression)[0]
    mentioned = set(labels_of(expression))
    named = [name for name in map(str, groups[0]) if name in mentioned]
    if len(named) < 2:
        return _grouped(expression, logs, groups[1:])
    chance = np.exp([logs.pairs[name][0] for name in named])
    both = chance.sum(axis=0)  # above 1 where people, or a fit of one label, moved some of them
    total = np.full_like(logs.sure, -np.inf)
    shares = zip((*named, None), (*(chance / np.maximum(both, 1.0)), 1 - both), strict=True)
    for present, share in shares:
        reduced: Expression | bool = expression
        for name in named:
            if not isinstance(reduced, bool):
                reduced = given(reduced, name, name == present)
        with np.errstate(divide="ignore"):
            weight = np.log(np.maximum(share, 0.0))
        total = np.logaddexp(total, weight + _grouped(reduced, logs, groups[1:]))
    return total


@dataclass
class _Pairs:
    """(log P, log(1 - P)) of expressions, over columns with given pairs; each is computed once."""

    pairs: Mapping[str, PairOf]
    sure: Floats  # the logs of certainty
    known: dict[Expression, PairOf] = field(default_factory=dict)

    def of(self, expression: Expression | bool) -> PairOf:
        match expression:
            case bool():
                never = np.full_like(self.sure, -np.inf)
                return (self.sure, never) if expression else (never, self.sure)
            case Has(name):
                return self.pairs[name]
            case Not(part):
                return self.of(part)[::-1]
        if expression not in self.known:
            groups = independent_parts(expression)
            if len(groups) > 1:
                pairs = [self.of(group) for group in groups]
                if isinstance(expression, AllOf):
                    pair = self._all_of(pairs)
                else:
                    pair = self._all_of([pair[::-1] for pair in pairs])[::-1]
            elif repeated := repeated_labels(expression):
                # P = P(label) P(rest | label) + P(no label) P(rest | no label)
                p, q = self.pairs[repeated[0]]
                with_it, without = (
                    self.of(given(expression, repeated[0], known)) for known in (True, False)
                )
                pair = (
                    np.logaddexp(p + with_it[0], q + without[0]),
                    np.logaddexp(p + with_it[1], q + without[1]),
                )
            else:  # all of one part, or any of it
                pair = self.of(groups[0])
            self.known[expression] = pair
        return self.known[expression]

    def _all_of(self, pairs: Sequence[PairOf]) -> PairOf:
        """Return the pair of several independent expressions together."""
        total = sum((log_p for log_p, _ in pairs), self.sure)
        return total, log1mexp(np.minimum(total, 0.0))


def _states(expression: Expression, states: dict[str, tuple[Mask, Mask]]) -> tuple[Mask, Mask]:
    """Return where an expression holds and where it fails; neither where that is unknown."""
    match expression:
        case Has(name):
            return states[name]
        case Not(part):
            return _states(part, states)[::-1]
        case AllOf(parts):
            holds, fails = zip(*(_states(operand, states) for operand in parts), strict=True)
            return np.logical_and.reduce(holds), np.logical_or.reduce(fails)
        case AnyOf(parts):
            return _states(AllOf(tuple(map(Not, parts))), states)[::-1]
    raise ValueError("an expression must be bound to columns first")


# The probability of a query, calibrated as a query on held-out photos.
#
#     logit P = a logit(product) + b,  a ~ N(1, 1/16 s), b ~ N(0, 1/4 s) before any photo is seen
#
# so that a query with few positives keeps the product of its labels' probabilities. How strong the
# pull is, s, is learned: the fits for four values of it are averaged, each weighing as likely as it
# makes the held-out photos (the evidence, by Laplace's approximation). Where labels are independent
# given the photo, the strongest wins, and the product stays.
#
# Held-out photos that come in groups say less than as many others, and so do the library's: the
# variance of a count grows by the design effect of y - P among them.

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
    """A query's probability, fitted on held-out photos: slope, offset, their covariance."""

    query: BoundQuery
    slope: float
    offset: float
    covariance: Numbers
    scores: Numbers  # of the held-out photos whose answer is known
    hits: Mask  # which of them answer the query
    groups: Groups | None = None

    @cached_property
    def design_effect(self) -> float:
        """How many held-out photos say as little as one of its own; 1 without groups."""
        if self.groups is None:
            return 1.0
        return max(1.0, self.groups.design_effect(self.hits - self.probs(self.scores)) or 1.0)

    @property
    def positives(self) -> int:
        return int(self.hits.sum())

    def probs(self, log_scores: Numbers) -> Numbers:
        """Return the (N,) probability of each image; 0 where a limit leaves it out."""
        values: Numbers = expit(self.slope * _log_odds(log_scores) + self.offset)
        if len(values) and log_scores.min() == -np.inf:
            values[np.isneginf(log_scores)] = 0.0
        return values

    def score_at(self, probability: float) -> float:
        if probability <= 0:
            return -np.inf
        if probability >= 1:
            return 0.0
        return float(log_expit((logit(probability) - self.offset) / max(self.slope, LEAST_SLOPE)))

    def count(self, log_scores: Floats, confidence: float = 0.95) -> HitCount:
        """Return the expected number of hits, with an interval for chance and for the fit's error.

        Scores of 32 bits, of which there may be millions, are binned to one part in 500. The errors
        cancel: for a label in 3 % of a million photos a millionth of the number is left.
        """
        times = np.ones(len(log_scores), np.int64)
        if log_scores.dtype == np.float32:
            sizes, times = _tallied(log_scores.astype(np.float32, copy=False))
            log_scores = -sizes
        scores = log_scores.astype(np.float64, copy=False)
        odds, p = _log_odds(scores), self.probs(scores)
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
    """Return the different sizes of numbers (N,), to one part in 500, and how many have each."""
    # By exponent and eight bits of the fraction: a fraction of the time of a sort or of logarithms.
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
