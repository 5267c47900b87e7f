"""Labels borrow strength from each other: per-label fits drawn towards the shared fit.

A label with many positives moves away from the shared fit, a rare one stays near it. A label
without positives or without negatives keeps the shared slope, and with strength 0 the shared
offset too: on its own it would run to infinity. The strength is given, or is the one with the
least log loss on images held out. Many entries are first fitted in bins; a step or two on all of
them then ends the fit. Few are fitted without each fold and with each strength side by side.
"""

from collections.abc import Callable
from warnings import warn

import numpy as np

from labelwise.calibration.entries import (
    LEAST_BINS,
    Bins,
    Entries,
    Numbers,
    Rows,
    choose,
    compressed,
    folds_of,
    joined,
)
from labelwise.calibration.features import (
    MAX_SLOPE,
    FeatureBlocks,
    Features,
    Raw,
    derivatives,
    scaled,
)
from labelwise.calibration.newton import TOLERANCE, PerLabel, Problem, Shared
from labelwise.numeric.arrays import Mask

STRENGTHS = (1e4, 1e3, 1e2, 1e1, 1.0, 0.1)
FOLDS = 3
ROUGH = 1e-3
FEW = 1 << 15  # entries, counted once for each problem that is solved beside others

Each = Callable[[Features, Numbers, Numbers, Mask], Problem]


def fit_shared(entries: Entries, raw: Raw, least: float) -> Numbers:
    """Return the raw weights (1, F) of one fit for all labels."""
    parts = compressed(entries, 1)
    features = scaled(parts[0], raw, least)
    problem, blocks = Shared(features), features.read(parts[0])
    theta = _solve(problem, entries, parts[0], blocks, problem.start(blocks))
    _warn_of_bounds(theta, features)
    return features.unscale(theta)


def fit_labels(
    entries: Entries, raw: Raw, least: float, strength: float | None, each: Each = PerLabel
) -> Numbers:
    """Return the raw weights (K, F), one row for each label.

    A strength of None is chosen on held-out images.
    """
    if strength is not None and strength < 0:
        raise ValueError(f"strength must not be negative, got {strength}")
    parts = compressed(entries, FOLDS if strength is None else 1)
    rows = joined(parts)
    features = scaled(rows, raw, least)
    blocks = features.read(rows)
    if strength is None:
        strength, center = _chosen(entries, parts, features, each)
    else:
        center = _center(blocks, features)
    lacking = _one_sided(blocks)[0]
    pull = np.where(lacking, max(strength, 1.0), strength)
    problem = each(features, center, pull, lacking)
    theta = _solve(problem, entries, rows, blocks, np.repeat(center, len(lacking), 0))
    if strength == 0:
        theta = np.where(lacking[:, None], center, theta)
    _warn_of_bounds(theta, features)
    return features.unscale(theta)


def _chosen(
    entries: Entries, parts: list[Rows], features: Features, each: Each
) -> tuple[float, Numbers]:
    """Return the strength with the least log loss, each part held out once, and the shared fit.

    Where entries are few, calls cost more than what they compute: all parts are held out at once.
    """
    many = isinstance(parts[0], Bins) or entries.logits.size * FOLDS > FEW
    if many or len(parts) < 2:

        def alone(train: list[Rows], test: Rows) -> list[float]:
            seen = features.read(joined(train))
            return _losses(seen, features.read(test), features, each, _center(seen, features))

        strength = choose(STRENGTHS, [_coarse(part) for part in parts], alone)
        return strength, _center(features.read(joined(parts)), features)
    [block] = features.read(entries)
    numbers = np.arange(len(parts))[:, None]
    out = folds_of(len(entries.logits), FOLDS) == numbers
    centers = _center([block.weighed(~np.concatenate([out, np.zeros_like(out[:1])]))], features)
    losses = _losses([block.weighed(~out)], [block.weighed(out)], features, each, centers[:-1])
    return STRENGTHS[losses.index(min(losses))], centers[-1:]


def _coarse(part: Rows) -> Rows:
    """Return bins as wide as a choice between strengths, a factor ten apart, allows."""
    return part.coarser(len(part.u) // LEAST_BINS) if isinstance(part, Bins) else part


def _solve(
    problem: Problem, entries: Entries, rows: Rows, blocks: FeatureBlocks, start: Numbers
) -> Numbers:
    if not isinstance(rows, Bins):
        return problem.solve(blocks, start, TOLERANCE)
    return problem.polish(entries, blocks, problem.solve(blocks, start, ROUGH), TOLERANCE)


def _center(blocks: FeatureBlocks, features: Features) -> Numbers:
    problem = Shared(features)
    return problem.solve(blocks, problem.start(blocks), ROUGH)


def _losses(
    train: FeatureBlocks, test: FeatureBlocks, features: Features, each: Each, center: Numbers
) -> list[float]:
    """Return the held-out log loss of each strength, summed over the problems of the blocks.

    ``center`` (T, F) is the shared fit of each problem. Where entries are few, strengths are solved
    together.
    """
    lacking = _one_sided(train)  # (T, K)
    problems, labels = lacking.shape
    entries = sum(block.labels.size for block in train) * problems
    together = max(1, min(len(STRENGTHS), FEW // entries))
    theta, losses = np.repeat(center[:, None], labels, 1), list[float]()
    for first in range(0, len(STRENGTHS), together):
        strengths = np.array(STRENGTHS[first : first + together])
        count = len(strengths)
        problem = each(
            features,
            np.repeat(center, count * labels, axis=0),
            np.repeat(np.tile(strengths, problems)[:, None], labels, axis=1),
            np.repeat(lacking, count, axis=0),
        )
        start = np.repeat(theta, count, axis=0).reshape(-1, theta.shape[-1])
        solved = problem.solve(_repeated(train, problems, count), start, ROUGH)
        tried = solved.reshape(-1, labels, features.width)
        found = derivatives(_repeated(test, problems, count), tried)[0].sum(1)
        losses += found.reshape(problems, count).sum(0).tolist()
        theta = tried[count - 1 :: count]
    return losses


def _repeated(blocks: FeatureBlocks, problems: int, times: int) -> FeatureBlocks:
    """Return the blocks for so many times the problems; a single one weighs rows for all."""
    return blocks if problems == 1 else [block.repeated(times) for block in blocks]


def _one_sided(blocks: FeatureBlocks) -> Mask:
    """Return which labels (T, K) lack an observed positive or an observed negative."""
    sides = np.zeros(())
    for block in blocks:
        y = block.labels
        both = np.stack([y, 1 - y])
        sides = sides + (both if block.weight is None else both * block.weight).sum(-1)
    return np.asarray((sides == 0).any(0).T)


def _warn_of_bounds(theta: Numbers, features: Features) -> None:
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
