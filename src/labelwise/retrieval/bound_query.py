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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.array_api import log1mexp
from labelwise.numeric.arrays import Array, Mask, as_mask, to_numpy
from labelwise.retrieval.query import (
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


Numbers = NDArray[np.float64]
Values = NDArray[np.floating[Any]]
PairOf = tuple[Values, Values]


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
        logs = _log_pairs(self._named(present.T, absent.T), np.zeros(len(present)))
        scores: Numbers = np.asarray(_grouped(self.expression, logs, self.groups))
        inside = self.inside(list(present.T))
        return scores if inside is None else np.where(inside, scores, -np.inf)

    def odds(
        self, present: Sequence[NDArray[np.float32]], absent: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Return the (N,) odds of the product, from p and 1 - p of each column; no limits apply.

        They lose their digits below 1e-30 and above 1e30, and end as 0 or infinity.
        """
        if self.groups:
            raise ValueError("odds are of labels that do not exclude each other; use log_scores")
        pairs = self._named(present, absent)
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            over, under = _plain_pairs(pairs, np.ones_like(present[0])).of(self.expression)
            return np.asarray(over / under, np.float32)

    @property
    def is_impossible(self) -> bool:
        """Whether no image can answer the query, since it asks for labels that exclude others."""
        if not self.groups:
            return False
        p = np.full((1, len(self.columns)), 0.5 / len(self.columns))
        logs = _log_pairs(self._named(np.log(p).T, np.log1p(-p).T), np.zeros(1))
        return bool(np.isneginf(_grouped(self.expression, logs, self.groups)).all())

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
        """Return which images (N,) answer the query, and where it is known; labels cut at 1/2."""
        truth = to_numpy(labels) > 0.5
        known = np.ones_like(truth) if observed is None else as_mask(to_numpy(observed), "observed")
        self._check(truth, known)
        present, absent = truth & known, ~truth & known
        holds, fails = _states(self.expression, self._named(present.T, absent.T))
        return holds, holds | fails

    def _named(self, present: Any, absent: Any) -> dict[str, tuple[Any, Any]]:
        """Return both sides of each column, by what the expression calls it."""
        names = map(str, self.columns)
        return dict(zip(names, zip(present, absent, strict=True), strict=True))

    def _check(self, *arrays: NDArray[np.generic]) -> None:
        for array in arrays:
            if array.shape != (len(arrays[0]), len(self.columns)):
                raise ValueError(
                    f"arrays must have one column for each of {self.columns}, got {array.shape}"
                )


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
) -> Values:
    """Return log P of an expression; groups of which it names two labels are gone through."""
    if isinstance(expression, bool) or not groups:
        return logs.of(expression)[0]
    mentioned = set(labels_of(expression))
    named = [str(column) for column in groups[0] if str(column) in mentioned]
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
    """The pair (of an expression, of its opposite) over columns with given pairs; computed once.

    ``sure`` and ``never`` are the numbers of certainty and of its opposite. ``all_of`` gives the
    pair of independent parts, ``mixed`` that of an expression with and without a label.
    """

    pairs: Mapping[str, PairOf]
    sure: Values
    never: Values
    all_of: Callable[[Sequence[PairOf]], PairOf]
    mixed: Callable[[PairOf, PairOf, PairOf], PairOf]
    known: dict[Expression, PairOf] = field(default_factory=dict)

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
            groups = independent_parts(expression)
            if len(groups) > 1:
                pairs = [self.of(group) for group in groups]
                if isinstance(expression, AllOf):
                    pair = self.all_of(pairs)
                else:
                    pair = self.all_of([pair[::-1] for pair in pairs])[::-1]
            elif repeated := repeated_labels(expression):
                # P = P(label) P(rest | label) + P(no label) P(rest | no label)
                name = repeated[0]
                rest = [self.of(given(expression, name, known)) for known in (True, False)]
                pair = self.mixed(self.pairs[name], *rest)
            else:  # all of one part, or any of it
                pair = self.of(groups[0])
            self.known[expression] = pair
        return self.known[expression]


def _plain_pairs(pairs: Mapping[str, PairOf], sure: Values) -> _Pairs:
    """(P, 1 - P): of all parts, 1 - P is the chance that the first fails, or the second, ..."""

    def all_of(pairs: Sequence[PairOf]) -> PairOf:
        p, q = pairs[0]
        for holds, other in pairs[1:]:
            q = q + p * other
            p = p * holds
        return p, q

    def mixed(label: PairOf, present: PairOf, absent: PairOf) -> PairOf:
        p, q = (label[0] * present[side] + label[1] * absent[side] for side in (0, 1))
        return p, q

    return _Pairs(pairs, sure, np.zeros_like(sure), all_of, mixed)


def _log_pairs(pairs: Mapping[str, PairOf], sure: Values) -> _Pairs:
    """(log P, log(1 - P))."""

    def all_of(pairs: Sequence[PairOf]) -> PairOf:
        total = sum((log_p for log_p, _ in pairs), sure)
        return total, log1mexp(np.minimum(total, 0.0))

    def mixed(label: PairOf, present: PairOf, absent: PairOf) -> PairOf:
        log_p, log_q = (
            np.logaddexp(label[0] + present[side], label[1] + absent[side]) for side in (0, 1)
        )
        return log_p, log_q

    return _Pairs(pairs, sure, np.full_like(sure, -np.inf), all_of, mixed)


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
