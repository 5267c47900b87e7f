"""Histogram binning: the share of present labels in each bin of log-odds.

    level_kb = (present_kb + strength level_b) / (entries_kb + strength)
    level_b  = (present_b + 1/2) / (entries_b + 1)        all labels together, never 0 or 1

All labels share the edges of the bins: quantiles of the log-odds in which present and absent
entries weigh the same, so that the few present ones get their share of bins. A bin holds its
upper edge. The levels need not rise from bin to bin.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from labelwise.calibration.entries import (
    Entries,
    Floats,
    Numbers,
    OnLogOdds,
    choose,
    folds_of,
    limited_log_odds,
    read_entries,
)
from labelwise.links import Link
from labelwise.numeric.array_api import A, like, namespace
from labelwise.numeric.arrays import Array

STRENGTHS = (1e4, 1e3, 1e2, 3e1, 1e1, 3.0, 1.0)
FOLDS = 3
SAMPLE = 1 << 20


class Histogram(OnLogOdds):
    """``p = level`` of the bin of the log-odds; one row of levels, or one for each label."""

    kind = "histogram"

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
            raise ValueError(
                f"there must be one level more than edges, got {self.levels.shape[1]} levels "
                f"and {len(self.edges)} edges"
            )
        if not ((self.levels > 0) & (self.levels < 1)).all():
            raise ValueError("levels must lie strictly between 0 and 1")

    def log_probs(self, logits: A) -> tuple[A, A]:
        xp = namespace(logits)
        u = limited_log_odds(self.link, logits, self.limit)
        bins = xp.searchsorted(like(self.edges, u), u)
        first = xp.arange(len(self.levels), device=u.device) * self.levels.shape[1]
        p = like(self.levels.reshape(-1), u)[bins + first]
        return xp.log(p), xp.log1p(-p)

    def numbers_of(self, column: int) -> dict[str, Any]:
        row = column if len(self.levels) > 1 else 0
        return {"edges": self.edges.tolist(), "levels": self.levels[row : row + 1].tolist()}

    def spec(self) -> dict[str, Any]:
        numbers = {"edges": self.edges.tolist(), "levels": self.levels.tolist()}
        return {"link": self.link, **numbers, "limit": self.limit}


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
    """Return the histogram link; ``strength`` counts entries of the shared level lent to a bin.

    A strength of None is chosen by the log loss of held-out images.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    if scope not in ("shared", "label"):
        raise ValueError(f"scope must be 'shared' or 'label', got {scope!r}")
    if strength is not None and strength < 0:
        raise ValueError(f"strength must not be negative, got {strength}")
    entries = read_entries(logits, labels, link, observed)
    edges = _edges(entries, bins)
    parts = _counts(entries, edges)
    counts = parts.sum(0)
    if scope == "shared":
        levels = _pooled(counts)[None]
    else:
        if strength is None:
            strength = choose(STRENGTHS, [*parts], _losses)
        levels = _levels(counts, strength)
    return Histogram(link, edges.tolist(), levels.tolist(), entries.limit)


def _edges(entries: Entries, bins: int) -> Floats:
    """Return at most ``bins - 1`` distinct edges (float32 numbers, as the link keeps them)."""
    step = max(1, entries.logits.size // SAMPLE)
    some = entries.subset(slice(None, None, step))
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
    edges: Floats = np.unique(values[order][np.searchsorted(mass, goals)].astype(np.float32))
    return edges


def _counts(entries: Entries, edges: Floats) -> Numbers:
    """Return how many entries, and how many present ones, fall in each bin: (folds, 2, K, B)."""
    count, labels, bins = len(entries.logits), entries.num_labels, len(edges) + 1
    folds = min(FOLDS, count)
    size = folds * labels * bins
    counts = np.zeros((2, size))
    fold = folds_of(count, folds)[:, None]
    first = np.arange(labels) * bins
    start = 0
    for u, y, w in entries.rows():
        shift = first + fold[start : start + len(u)] * (labels * bins)
        cell = (np.searchsorted(edges.astype(u.dtype), u) + shift).ravel()
        counts[0] += np.bincount(cell, None if w is None else w.ravel(), size)
        counts[1] += np.bincount(cell, y.ravel(), size)
        start += len(u)
    return counts.reshape(2, folds, labels, bins).swapaxes(0, 1)


def _pooled(counts: Numbers) -> Numbers:
    entries, present = counts.sum(1)
    pooled: Numbers = (present + 0.5) / (entries + 1)
    return pooled


def _levels(counts: Numbers, strength: float) -> Numbers:
    """Return the levels (K, B); a bin without entries takes the level of all labels."""
    entries, present = counts
    pooled = _pooled(counts)
    levels = (present + strength * pooled) / (entries + strength).clip(1e-300)
    floor = 0.5 / (entries + 1)
    levels = np.where(entries + strength > 0, levels, pooled)
    return np.clip(levels, floor, 1 - floor) if strength == 0 else levels


def _losses(train: list[Numbers], test: Numbers) -> list[float]:
    whole, (entries, present) = np.stack(train).sum(0), test
    losses = []
    for strength in STRENGTHS:
        levels = _levels(whole, strength)
        loss = present * np.log(levels) + (entries - present) * np.log1p(-levels)
        losses.append(-float(loss.sum()))
    return losses
