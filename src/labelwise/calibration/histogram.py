"""Histogram binning: the share of present labels in each bin of log-odds.

    level_kb = (present_kb + strength level_b) / (entries_kb + strength)
    level_b  = (present_b + 1/2) / (entries_b + 1)        all labels together, never 0 or 1

All labels share the edges of the bins: quantiles of the log-odds in which present and absent
entries weigh the same, so that the few present ones get their share of bins. A bin holds its
upper edge. The levels need not rise from bin to bin.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.calibration.entries import (
    Entries,
    OnLogOdds,
    choose,
    folds_of,
    limited_log_odds,
    read_entries,
)
from labelwise.links import Link
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
        super().__init__()
        self.link, self.limit = link, limit
        self.edges: Tensor
        self.levels: Tensor
        self.register_buffer("edges", torch.tensor(edges, dtype=torch.float32))
        self.register_buffer("levels", torch.tensor(levels, dtype=torch.float32))
        if self.levels.shape[1] != len(self.edges) + 1:
            raise ValueError(
                f"there must be one level more than edges, got {self.levels.shape[1]} levels "
                f"and {len(self.edges)} edges"
            )
        if not ((self.levels > 0) & (self.levels < 1)).all():
            raise ValueError("levels must lie strictly between 0 and 1")

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        u = limited_log_odds(self.link, logits, self.limit)
        bins = torch.bucketize(u, self.edges.to(u.dtype))
        if len(self.levels) == 1:
            p = self.levels[0][bins]
        else:
            p = self.levels[torch.arange(len(self.levels), device=u.device), bins]
        p = p.to(u.dtype)
        return p.log(), torch.log1p(-p)

    def numbers_of(self, column: int) -> dict[str, Any]:
        row = column if len(self.levels) > 1 else 0
        return {"edges": self.edges.tolist(), "levels": self.levels[row : row + 1].tolist()}

    def spec(self) -> dict[str, Any]:
        numbers = {"edges": self.edges.tolist(), "levels": self.levels.tolist()}
        return {"link": self.link, **numbers, "limit": self.limit}


def histogram(
    logits: Array,
    labels: Array,
    link: Link | None,
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


def _edges(entries: Entries, bins: int) -> Tensor:
    """Return at most ``bins - 1`` distinct edges (float32 numbers, as the link keeps them)."""
    step = max(1, entries.logits.numel() // SAMPLE)
    some = entries.subset(slice(None, None, step))
    sides = [
        torch.cat([u[y > 0.5] for u, y, _ in entries.rows()]),
        torch.cat([u[(y <= 0.5) & (w is None or w > 0)] for u, y, w in some.rows()]),
    ]
    values = torch.cat(sides).double()
    weights = torch.cat([side.new_full((len(side),), 1 / max(len(side), 1)) for side in sides])
    values, order = values.sort()
    mass = weights.double()[order].cumsum(0)
    goals = mass[-1] * torch.arange(1, bins, device=mass.device) / bins
    edges: Tensor = torch.unique(values[torch.searchsorted(mass, goals)].float())
    return edges


def _counts(entries: Entries, edges: Tensor) -> Tensor:
    """Return how many entries, and how many present ones, fall in each bin: (folds, 2, K, B)."""
    count, labels, bins = len(entries.logits), entries.num_labels, len(edges) + 1
    folds = min(FOLDS, count)
    counts = torch.zeros(2, folds * labels * bins, dtype=torch.float64, device=edges.device)
    fold = folds_of(count, folds).to(edges.device)[:, None]
    first = torch.arange(labels, device=edges.device) * bins
    start = 0
    for u, y, w in entries.rows():
        shift = first + fold[start : start + len(u)] * (labels * bins)
        cell = torch.bucketize(u, edges.to(u.dtype)).add_(shift).flatten()
        weight = torch.ones_like(u) if w is None else w
        for total, values in zip(counts, (weight, y), strict=True):
            total.scatter_add_(0, cell, values.double().flatten())
        start += len(u)
    return counts.view(2, folds, labels, bins).transpose(0, 1)


def _pooled(counts: Tensor) -> Tensor:
    entries, present = counts.sum(1).unbind(0)
    return (present + 0.5) / (entries + 1)


def _levels(counts: Tensor, strength: float) -> Tensor:
    """Return the levels (K, B); a bin without entries takes the level of all labels."""
    entries, present = counts
    pooled = _pooled(counts)
    levels = (present + strength * pooled) / (entries + strength).clamp(min=1e-300)
    floor = 0.5 / (entries + 1)
    levels = torch.where(entries + strength > 0, levels, pooled)
    return levels.clamp(floor, 1 - floor) if strength == 0 else levels


def _losses(train: list[Tensor], test: Tensor) -> list[float]:
    whole, (entries, present) = torch.stack(train).sum(0), test
    losses = []
    for strength in STRENGTHS:
        levels = _levels(whole, strength)
        loss = present * levels.log() + (entries - present) * torch.log1p(-levels)
        losses.append(-loss.sum().item())
    return losses
