"""Isotonic calibration: the best map that never falls, by pooling adjacent violators.

    p = (1 - share_k) f_k(u) + share_k f(u)        share_k = strength / (strength + rarer_k)

f_k is fitted to the entries of label k, f to those of all labels; rarer_k counts the label's
present or absent entries, whichever are fewer, so rare labels lean on f. Between its steps a map
is linear in the log-odds u, and constant beyond its ends. Levels keep half an entry away from 0
and 1: with n entries none is below 1 / (2n + 2).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from labelwise.base.array_api import A, like, namespace, search_rows, taken
from labelwise.base.arrays import Array, Floats, Numbers
from labelwise.calibration.entries import (
    Entries,
    OnLogOdds,
    check_options,
    choose,
    folds_of,
    limited_log_odds,
    read_entries,
    tallied,
)
from labelwise.links import Link

# Histogram binning: the share of present labels in each bin of log-odds.
#
#     level_kb = (present_kb + strength level_b) / (entries_kb + strength)
#     level_b  = (present_b + 1/2) / (entries_b + 1)        all labels together, never 0 or 1
#
# Edges are quantiles in which present and absent entries weigh the same, for all labels alike.


LENT = (1e4, 1e3, 1e2, 3e1, 1e1, 3.0, 1.0)


class Histogram(OnLogOdds):
    """``p = level`` of the bin of the log-odds; one row of levels, or one for each label."""

    kind = "histogram"
    numbers = ("edges", "levels")

    def __init__(
        self,
        link: Link | None,
        edges: Sequence[float],
        levels: Sequence[Sequence[float]],
        limit: float,
    ) -> None:
        super().__init__(link, limit)
        self.edges, self.levels = np.asarray(edges, np.float32), np.asarray(levels, np.float32)
        if self.levels.shape[1] != len(self.edges) + 1:
            got = f"{self.levels.shape[1]} levels and {len(self.edges)} edges"
            raise ValueError(f"there must be one level more than edges, got {got}")
        if not ((self.levels > 0) & (self.levels < 1)).all():
            raise ValueError("levels must lie strictly between 0 and 1")

    def log_probs(self, logits: A) -> tuple[A, A]:
        xp = namespace(logits)
        u = limited_log_odds(self.link, logits, self.limit)
        bins = xp.searchsorted(like(self.edges, u), u)
        first = xp.arange(len(self.levels), device=u.device) * self.levels.shape[1]
        p = taken(like(self.levels.reshape(-1), u), bins + first)
        return xp.log(p), xp.log1p(-p)

    def numbers_of(self, column: int) -> dict[str, object]:
        row = column if len(self.levels) > 1 else 0
        return {"edges": self.edges.tolist(), "levels": self.levels[row : row + 1].tolist()}


def histogram(
    logits: Array,
    labels: Array,
    link: Link | None = None,
    observed: Array | None = None,
    *,
    bins: int = 20,
    scope: Literal["shared", "label"] = "label",
    strength: float | None = None,
) -> Histogram:
    """Return the histogram link; ``strength`` counts entries of the shared level lent to a bin."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    check_options(scope, ("shared", "label"), strength)
    entries = read_entries(logits, labels, link, observed)
    edges, folds = _edges(entries, bins), min(FOLDS, len(entries.logits))
    known, _, present = tallied(
        entries, folds, len(edges) + 1, lambda u: np.searchsorted(edges.astype(u.dtype), u)
    )
    parts = np.stack([known, present], axis=1)  # (folds, 2, K, B)
    counts = parts.sum(0)
    if scope == "shared":
        levels = _pooled(counts)[None]
    else:
        if strength is None:
            strength = choose(LENT, [*parts], _level_losses)
        levels = _levels(counts, strength)
    return Histogram(link, edges.tolist(), levels.tolist(), entries.limit)


def _edges(entries: Entries, bins: int) -> Floats:
    """Return at most ``bins - 1`` distinct edges (float32 numbers, as the link keeps them)."""
    some = entries.subset(slice(None, None, max(1, entries.logits.size // SAMPLE)))
    sides = [
        np.concatenate([u[y > 0.5] for u, y, _ in entries.rows()]),
        np.concatenate([u[(y <= 0.5) & (w is None or w > 0)] for u, y, w in some.rows()]),
    ]
    values = np.concatenate(sides)
    kind = values.dtype.type
    weights = np.concatenate([np.full(len(side), kind(1 / max(len(side), 1))) for side in sides])
    order = np.argsort(values)
    mass = weights[order].astype(np.float64).cumsum()
    goals = mass[-1] * np.arange(1, bins) / bins
    return np.unique(values[order][np.searchsorted(mass, goals)].astype(np.float32))


def _pooled(counts: Numbers) -> Numbers:
    entries, present = counts.sum(1)
    return np.asarray((present + 0.5) / (entries + 1))


def _levels(counts: Numbers, strength: float) -> Numbers:
    """Return the levels (K, B); a bin without entries takes the level of all labels."""
    entries, present = counts
    pooled = _pooled(counts)
    levels = (present + strength * pooled) / (entries + strength).clip(1e-300)
    floor = 0.5 / (entries + 1)
    levels = np.where(entries + strength > 0, levels, pooled)
    return np.clip(levels, floor, 1 - floor) if strength == 0 else levels


def _level_losses(train: list[Numbers], test: Numbers) -> list[float]:
    whole, (entries, present) = np.stack(train).sum(0), test
    losses = []
    for strength in LENT:
        levels = _levels(whole, strength)
        loss = present * np.log(levels) + (entries - present) * np.log1p(-levels)
        losses.append(-float(loss.sum()))
    return losses


STRENGTHS = (1e4, 1e3, 3e2, 1e2, 3e1, 1e1, 3.0)
FOLDS = 3
SAMPLE = 1 << 20

Curve = tuple[list[float], list[float]]  # knots and levels


class Isotonic(OnLogOdds):
    """A rising piecewise linear map of the log-odds for each label, mixed with a shared one.

    ``curves`` holds (knots, levels) of the shared map, then of each label if they have their own;
    ``shares`` is how much each label takes of the shared map.
    """

    kind = "isotonic"
    numbers = ("curves", "shares")

    def __init__(
        self, link: Link | None, curves: Sequence[Curve], shares: Sequence[float], limit: float
    ) -> None:
        if len(curves) != 1 + len(shares):
            got = f"{len(curves)} curves and {len(shares)} shares"
            raise ValueError(f"there must be one curve more than shares, got {got}")
        super().__init__(link, limit)
        self.knots = _padded([knots for knots, _ in curves])
        self.levels = _padded([levels for _, levels in curves])
        pairs = zip(curves, self.knots.tolist(), self.levels.tolist(), strict=True)
        self.curves: list[Curve] = [
            (knots[: len(given)], levels[: len(given)]) for (given, _), knots, levels in pairs
        ]
        self.shares = np.asarray(shares, np.float32)
        if (np.diff(self.levels) < 0).any() or (np.diff(self.knots) < 0).any():
            raise ValueError("knots and levels must not fall along a curve")
        if not ((self.levels > 0) & (self.levels < 1)).all():
            raise ValueError("levels must lie strictly between 0 and 1")

    def curves_at(self, u: A) -> tuple[A, A]:
        shared = _interpolate(u.reshape(1, -1), self.knots[:1], self.levels[:1]).reshape(u.shape)
        if not len(self.shares):
            return shared, shared
        columns = u.reshape(-1, u.shape[-1]).T  # (K, n)
        own = _interpolate(columns, self.knots[1:], self.levels[1:])
        return own.T.reshape(u.shape), shared

    def log_probs(self, logits: A) -> tuple[A, A]:
        own, shared = self.curves_at(limited_log_odds(self.link, logits, self.limit))
        share = like(self.shares if len(self.shares) else 0.0, own)
        xp, p = namespace(logits), own + share * (shared - own)
        return xp.log(p), xp.log1p(-p)

    def numbers_of(self, column: int) -> dict[str, object]:
        curves, shares = self.curves, self.shares.tolist()
        own = [curves[0], curves[1 + column]] if shares else curves
        return {"curves": own, "shares": shares[column : column + 1]}


def isotonic(
    logits: Array,
    labels: Array,
    link: Link | None = None,
    observed: Array | None = None,
    *,
    scope: Literal["shared", "label"] = "label",
    strength: float | None = None,
) -> Isotonic:
    """Return the isotonic link.

    ``strength`` is the number of rarer entries at which a label takes half of the shared map;
    None chooses it by the log loss of held-out images.
    """
    check_options(scope, ("shared", "label"), strength)
    entries = read_entries(logits, labels, link, observed)
    if scope == "shared":
        return Isotonic(link, [_shared(entries)], [], entries.limit)
    if strength is None:
        some = entries.subset(slice(None, None, 1 + entries.logits.size // SAMPLE))
        fold = folds_of(len(some.logits), FOLDS)
        strength = choose(
            STRENGTHS,
            range(min(FOLDS, len(fold))),
            lambda _, out: _losses(some.subset(fold != out), some.subset(fold == out)),
        )
    curves, rarer = _per_label(entries)
    return Isotonic(link, [_shared(entries), *curves], _shares(rarer, strength), entries.limit)


def _shares(rarer: Numbers, strength: float) -> list[float]:
    """Return each label's share of the shared map; a label with one side only takes it whole."""
    share = strength / (strength + np.where(rarer > 0, rarer, 1))
    shares: list[float] = np.where(rarer > 0, share, 1.0).tolist()
    return shares


def _shared(entries: Entries) -> Curve:
    some = entries.subset(slice(None, None, 1 + entries.logits.size // SAMPLE))
    blocks = [(u, y) if w is None else (u[w > 0], y[w > 0]) for u, y, w in some.rows()]
    u, y = (np.concatenate([block.ravel() for block in side]) for side in zip(*blocks, strict=True))
    return _curve(u.astype(np.float64), y.astype(np.float64))


def _per_label(entries: Entries) -> tuple[list[Curve], Numbers]:
    curves, rarer = [], []
    for u, y in entries.columns():
        rarer.append(min(float(y.sum()), float((1 - y).sum())))
        curves.append(_curve(u, y))
    return curves, np.array(rarer)


def _curve(u: np.ndarray, y: np.ndarray) -> Curve:
    # Imported here because it takes longer to import than most fits take to run.
    from scipy.optimize import isotonic_regression

    if not len(u):
        return [0.0], [0.5]
    order = np.argsort(u, kind="stable")
    u, y = u[order], y[order]
    starts = np.flatnonzero(np.r_[True, u[1:] != u[:-1]])
    counts = np.diff(np.r_[starts, len(u)])
    fit = isotonic_regression(np.add.reduceat(y, starts) / counts, weights=counts)
    first, last = fit.blocks[:-1], fit.blocks[1:] - 1
    ends = np.stack([first, last], axis=1)
    keep = np.stack([np.full(len(first), True), first != last], axis=1)
    floor = 0.5 / (len(u) + 1)
    levels = fit.x[ends].clip(floor, 1 - floor)
    return u[starts][ends][keep].tolist(), levels[keep].tolist()


def _losses(train: Entries, test: Entries) -> list[float]:
    curves, rarer = _per_label(train)
    maps = Isotonic(None, [_shared(train), *curves], _shares(rarer, 0.0), test.limit)
    losses = np.zeros(len(STRENGTHS))
    for u, y, w in test.rows():
        own, pooled = maps.curves_at(u.astype(np.float64))
        for number, strength in enumerate(STRENGTHS):
            share = np.array(_shares(rarer, strength), np.float32)
            p = (1 - share) * own + share * pooled
            loss = y * np.log(p) + (1 - y) * np.log1p(-p)
            losses[number] -= float((loss if w is None else loss * w).sum())
    return losses.tolist()


def _padded(rows: Sequence[Sequence[float]]) -> Floats:
    """Return rows of unequal length as (rows, M >= 2) float32, each ending in its last number."""
    width = max(2, *(len(row) for row in rows))
    return np.asarray([np.r_[row, np.full(width - len(row), row[-1])] for row in rows], np.float32)


def _interpolate(x: A, knots: Floats, levels: Floats) -> A:
    """Return each row of ``x`` (L, n) on its own curve (L, M), constant beyond the ends."""
    xp, knots_of_rows, levels_of_rows = namespace(x), like(knots, x), like(levels, x)
    right = search_rows(knots_of_rows, x).clip(1, knots.shape[1] - 1)
    ends = (right - 1, right)
    start, end = (xp.take_along_axis(knots_of_rows, at, axis=1) for at in ends)
    low, high = (xp.take_along_axis(levels_of_rows, at, axis=1) for at in ends)
    width = (end - start).clip(float(xp.finfo(x.dtype).smallest_normal))
    with np.errstate(over="ignore"):  # beyond the ends
        values: A = low + (high - low) * xp.clip((x - start) / width, 0, 1)
    return values
