"""Labels borrow strength from each other: per-label fits drawn towards the shared fit.

A label with many positives moves away from the shared fit, a rare one stays near it. A label
without positives or without negatives keeps the shared slope, and with strength 0 the shared
offset too: on its own it would run to infinity. The strength is given, or is the one with the
least log loss on images held out. Many entries are first fitted in bins; a step or two on all of
them then ends the fit.
"""

from collections.abc import Callable
from warnings import warn

import torch
from torch import Tensor

from labelwise.calibrate.entries import (
    LEAST_BINS,
    Bins,
    Entries,
    Rows,
    choose,
    compressed,
    joined,
)
from labelwise.calibrate.newton import (
    MAX_SLOPE,
    TOLERANCE,
    Features,
    PerLabel,
    Problem,
    Raw,
    Shared,
    derivatives,
    scaled,
)

__all__ = ["fit_labels", "fit_shared"]

STRENGTHS = (1e4, 1e3, 1e2, 1e1, 1.0, 0.1)
FOLDS = 3
ROUGH = 1e-3
FEW = 1 << 15  # entries, counted once for each strength

Each = Callable[[Features, Tensor, Tensor, Tensor], Problem]


def fit_shared(entries: Entries, raw: Raw, least: float) -> Tensor:
    """Return the raw weights (1, F) of one fit for all labels."""
    parts = compressed(entries, 1)
    features = scaled(parts[0], raw, least)
    problem = Shared(features)
    theta = _solve(problem, entries, parts[0], problem.start(parts[0]))
    _warn_of_bounds(theta, features)
    return features.unscale(theta)


def fit_labels(
    entries: Entries, raw: Raw, least: float, strength: float | None, each: Each = PerLabel
) -> Tensor:
    """Return the raw weights (K, F), one row for each label.

    A strength of None is chosen on held-out images.
    """
    if strength is not None and strength < 0:
        raise ValueError(f"strength must not be negative, got {strength}")
    parts = compressed(entries, FOLDS if strength is None else 1)
    rows = joined(parts)
    features = scaled(rows, raw, least)
    if strength is None:
        rough = [_coarse(part) for part in parts]
        strength = choose(
            STRENGTHS, rough, lambda train, test: _losses(joined(train), test, features, each)
        )
    center = _center(rows, features)
    lacking = _one_sided(rows)
    pull = torch.where(lacking, max(strength, 1.0), strength)
    problem = each(features, center, pull, lacking)
    theta = _solve(problem, entries, rows, center.expand(len(lacking), -1))
    if strength == 0:
        theta = torch.where(lacking[:, None], center, theta)
    _warn_of_bounds(theta, features)
    return features.unscale(theta)


def _coarse(part: Rows) -> Rows:
    """Return bins as wide as a choice between strengths, a factor ten apart, allows."""
    return part.coarser(len(part.u) // LEAST_BINS) if isinstance(part, Bins) else part


def _solve(problem: Problem, entries: Entries, rows: Rows, start: Tensor) -> Tensor:
    if not isinstance(rows, Bins):
        return problem.solve(rows, start, TOLERANCE)
    return problem.polish(entries, rows, problem.solve(rows, start, ROUGH), TOLERANCE)


def _center(rows: Rows, features: Features) -> Tensor:
    problem = Shared(features)
    return problem.solve(rows, problem.start(rows), ROUGH)


def _losses(train: Rows, test: Rows, features: Features, each: Each) -> list[float]:
    """Return the held-out log loss of each strength.

    Where entries are few, calls cost more than what they compute: strengths are solved together.
    """
    center, lacking, labels = _center(train, features), _one_sided(train), train.num_labels
    theta, losses = center.expand(labels, -1), list[float]()
    entries = sum(u.numel() for u, _, _ in train.rows())
    together = max(1, min(len(STRENGTHS), FEW // entries))
    for first in range(0, len(STRENGTHS), together):
        strengths = center.new_tensor(STRENGTHS[first : first + together])
        problem = each(features, center, strengths[:, None].expand(-1, labels), lacking)
        theta = problem.solve(train, theta[-labels:].repeat(len(strengths), 1), ROUGH)
        tried = theta.reshape(-1, labels, features.width)
        losses += derivatives(test, features, tried)[0].sum(1).tolist()
    return losses


def _one_sided(rows: Rows) -> Tensor:
    """Return which labels (K,) lack an observed positive or an observed negative."""
    sides = torch.zeros(2, rows.num_labels)
    for _, y, w in rows.rows():
        weight = torch.ones_like(y) if w is None else w
        sides = sides.to(y.device) + torch.stack([(weight * y).sum(0), (weight * (1 - y)).sum(0)])
    return (sides == 0).any(0)


def _warn_of_bounds(theta: Tensor, features: Features) -> None:
    fits = "the fit" if len(theta) == 1 else "the fits of {} labels"
    capped = int((theta[:, :-1] >= MAX_SLOPE).any(1).sum())
    flat = int((theta[:, :-1] <= features.least).all(1).sum())
    if capped:
        warn(
            f"{fits.format(capped)}: scores separate present from absent entries, so the slope "
            f"is capped at {MAX_SLOPE:g} and probabilities lie near 0 and 1",
            stacklevel=4,
        )
    if flat:
        warn(
            f"{fits.format(flat)}: scores do not rise with the labels, so probabilities are flat",
            stacklevel=4,
        )
