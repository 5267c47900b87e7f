"""Are photos like those that a model was tested on? A two-sample test, and what explains it.

Every probability, count and promise supposes that new photos are drawn like the held-out ones. On
points x (held-out) and z (new), each number of them scaled to the spread of both together, the
energy distance (Székely and Rizzo 2004)

    2 mean |x - z| - mean |x - x'| - mean |z - z'|

is 0 only where both are drawn alike. Its p-value comes from dealing the points anew to the two
sides, which is exact. Where photos have points of several kinds, such as logits and embeddings,
each kind is tested and the least p-value counts, times the number of kinds. Three outcomes:

    alike            nothing speaks against it, and no label's share moved
    shares differ    labels are more or less frequent, and that explains it: held-out photos drawn
                     with weights w = exp(beta' y), whose labels have the shares estimated for the
                     new photos (raking), cannot be told from them
    pictures differ  neither explains it

A share moved if its estimate says so (Bonferroni over labels), which rests on a fit to few photos
that carry a rare label, and the mean probability of the label differs more than the largest such
difference of any label in 95 of 100 ways to deal the photos anew, which is exact.

With few photos little can be told; below FEWEST on either side nothing is said. A photo is *far* if
its nearest held-out photo is farther than those of 99 in 100 held-out photos are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.drift import HeldOutShare, LabelShare, estimate_share, first_shares

Outcome = Literal["alike", "shares differ", "pictures differ", "unknown"]
Floats = NDArray[np.float64]
Points = NDArray[np.float32]

FEWEST = 50
POINTS = 1000  # of each side in the test
PERMUTATIONS = 499
PICTURES_ALPHA = 0.01
SHARES_ALPHA = 0.05
FAR_QUANTILE = 0.99
ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Likeness:
    """Whether photos are like the held-out ones; ``shares`` are those of the labels now.

    ``p_value`` is of the test of all photos, ``p_adapted`` of the one after the held-out photos
    were drawn with the shares of the new ones; None where it was not needed. ``reason`` says why
    the outcome is unknown, where it is not for too few photos.
    """

    outcome: Outcome
    held_out: int
    photos: int
    p_value: float | None = None
    p_adapted: float | None = None
    shares: tuple[LabelShare, ...] = ()
    reason: str = ""

    @property
    def moved(self) -> tuple[LabelShare, ...]:
        """The labels whose share differs, the largest difference first."""
        found = [one for one in self.shares if one.moved]
        return tuple(sorted(found, key=lambda one: -abs(one.now - one.before)))

    def sentence(self, known: str = "held-out") -> str:
        """Return what a person should know of it, and what to do; ``known`` names the photos."""
        if self.outcome == "unknown":
            reason = self.reason or self._too_few(known)
            return f"Whether these photos are like the {known} ones cannot be known: {reason}."
        sides = f"{self.held_out:,} {known} and {self.photos:,} of these photos compared"
        if self.outcome == "alike":
            return f"These photos cannot be told from the {known} ones ({sides})."
        if self.outcome == "pictures differ":
            return (
                f"These photos do not look like the {known} ones ({sides}, "
                f"p = {self.p_value:.3f}): probabilities and counts may be wrong. A count by "
                "answers holds whatever the photos look like: labelwise count --ask 150."
            )
        named = first_shares(self.moved)
        return (
            f"Labels are more or less frequent than among the {known} photos ({named}; {sides}): "
            "probabilities and counts are off for them. A count by answers holds all the same: "
            "labelwise count --ask 150."
        )

    def _too_few(self, known: str) -> str:
        """Return in words that there are too few photos to compare, on which side."""
        few = self.held_out < FEWEST
        which, there = (f"{known} photos", self.held_out) if few else ("photos", self.photos)
        return f"it takes {FEWEST} {which}, and there {'is' if there == 1 else 'are'} {there}"


@dataclass(frozen=True, eq=False)
class PointsOfPhotos:
    """One more kind of points: those of the held-out photos ``rows`` (n,), and of new photos."""

    rows: NDArray[np.int64]
    held_out: Points
    photos: Points


def compare_photos(
    names: Sequence[str],
    held_out: Points,
    labels: Floats,
    known_shares: Sequence[HeldOutShare | None],
    photos: Points,
    probs: Floats,
    *,
    own_probs: Floats,
    more: PointsOfPhotos | None = None,
    seed: int = 0,
) -> Likeness:
    """Return how like photos are to held-out ones, given as points (n, D) and (m, D).

    ``labels`` (n, K) of the held-out photos may be soft where they are not known, ``own_probs``
    (n, K) are what the model says of them; ``probs`` (m', K) are of photos of the same library,
    from which the shares are estimated. ``more`` are points of another kind, of at least FEWEST
    photos on each side. Points and probabilities must not have been fitted on one side alone.
    """
    random = np.random.default_rng(seed)
    sizes = len(held_out), len(photos)
    if min(sizes) < FEWEST:
        return Likeness("unknown", *sizes)
    differ = different_means(own_probs, probs, np.random.default_rng([seed, 1]))
    estimated = [
        (column, estimate_share(name, probs[:, column], known, 1 - SHARES_ALPHA / len(names)))
        for column, (name, known) in enumerate(zip(names, known_shares, strict=True))
        if known is not None
    ]
    shares = tuple(
        replace(one, moved=one.moved and bool(differ[column])) for column, one in estimated
    )
    moved = [one for one in shares if one.moved]
    own = _drawn(random, len(held_out), POINTS)
    kinds = [PointsOfPhotos(own, held_out[own], photos[_drawn(random, len(photos), POINTS)])]
    if more is not None:
        drawn = _drawn(random, len(more.rows), POINTS), _drawn(random, len(more.photos), POINTS)
        chosen = more.held_out[drawn[0]], more.photos[drawn[1]]
        kinds.append(PointsOfPhotos(more.rows[drawn[0]], *chosen))
    p_value = _least_p(kinds, random)
    counts = len(own), len(kinds[0].photos)
    if p_value > PICTURES_ALPHA:
        return Likeness("shares differ" if moved else "alike", *counts, p_value, shares=shares)
    p_adapted = None
    if moved:
        columns = [list(names).index(one.label) for one in moved]
        weights = raked_weights(labels[:, columns], np.array([one.now for one in moved]))
        kept = random.random(len(weights)) < weights / weights.max()
        every = np.flatnonzero(kept)
        every = every[_drawn(random, len(every), POINTS)]
        adapted = [replace(kinds[0], rows=every, held_out=held_out[every])]
        adapted += [
            replace(one, rows=one.rows[kept[one.rows]], held_out=one.held_out[kept[one.rows]])
            for one in kinds[1:]
        ]
        if min(len(one.rows) for one in adapted) >= FEWEST:
            p_adapted = _least_p(adapted, random)
            if p_adapted > PICTURES_ALPHA:
                return Likeness("shares differ", *counts, p_value, p_adapted, shares)
    return Likeness("pictures differ", *counts, p_value, p_adapted, shares)


def _least_p(kinds: Sequence[PointsOfPhotos], random: np.random.Generator) -> float:
    """Return the p-value of "all kinds of points are drawn alike" (Bonferroni)."""
    least = min(energy_test(one.held_out, one.photos, random) for one in kinds)
    return min(1.0, len(kinds) * least)


def energy_test(first: Points, second: Points, random: np.random.Generator) -> float:
    """Return the p-value of "both are drawn alike" for points (n, D) and (m, D)."""
    distances = _distances(_scaled(np.concatenate([first, second])))
    size, n = len(distances), len(first)
    dealt = _dealt(size, n, random)
    sums = distances @ dealt  # to the first side, of every point
    inside = np.einsum("ij,ij->j", sums, dealt, dtype=np.float64)
    across = sums.sum(axis=0, dtype=np.float64) - inside
    outside = distances.sum(dtype=np.float64) - inside - 2 * across
    m = size - n
    energy = 2 * across / (n * m) - inside / n**2 - outside / m**2
    return float((energy >= energy[0] - 1e-9 * abs(energy[0])).mean())


def different_means(
    first: Floats, second: Floats, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Return which columns (K,) of (n, K) and (m, K) have different means, 5 % for any false one.

    The largest of the standardised differences has the law of dealing the rows anew.
    """
    both = np.concatenate([first, second])
    size, n = len(both), len(first)
    dealt = _dealt(size, n, random)
    sums = (both - both.mean(axis=0)).T @ dealt  # of the first side, (K, deals)
    scale = both.std(axis=0) * np.sqrt(n * (size - n) / size)
    largest = np.abs(sums) / np.where(scale > 0, scale, np.inf)[:, None]
    allowed = int(SHARES_ALPHA * dealt.shape[1]) - 1  # deals, beside ours, that may be as extreme
    limit = np.sort(largest[:, 1:].max(axis=0))[::-1][allowed]
    return np.asarray(largest[:, 0] > limit)


def _dealt(size: int, n: int, random: np.random.Generator) -> Points:
    """Return which of ``size`` rows are on the first side, in ours and in deals at random."""
    dealt = np.zeros((size, PERMUTATIONS + 1), np.float32)
    dealt[:n, 0] = 1
    for column in range(1, PERMUTATIONS + 1):
        dealt[random.permutation(size)[:n], column] = 1
    return dealt


def raked_weights(labels: Floats, shares: Floats) -> Floats:
    """Return weights (n,) = exp(labels beta) under which the labels (n, K) have these shares.

    Shares that no weights give, such as more of a label than any photo has, are met as far as
    possible.
    """
    beta = np.zeros(labels.shape[1])
    weights = np.full(len(labels), 1 / len(labels))
    for _ in range(100):
        gap = shares - weights @ labels
        spread = (labels * weights[:, None]).T @ labels - np.outer(
            weights @ labels, weights @ labels
        )
        # Labels that always add up to 1 leave a direction in which nothing changes.
        step = np.linalg.lstsq(spread, gap, rcond=1e-4)[0]
        beta += step * min(1.0, 1.0 / max(np.abs(step).max(), 1e-12))
        logs = labels @ beta
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        if np.abs(step).max() < 1e-9:
            break
    return weights


def far_points(held_out: Points, photos: Points) -> NDArray[np.float32]:
    """Return how far each photo (m,) is from its nearest held-out one; above 1 it is *far*."""
    mean, spread = _scale(held_out)
    reference = (held_out - mean) / spread
    own = _nearest(reference, reference, apart_from_itself=True)
    limit = max(float(np.quantile(own, FAR_QUANTILE, method="higher")), 1e-12)
    return _nearest((photos - mean) / spread, reference) / np.float32(limit)


def _nearest(points: Points, reference: Points, apart_from_itself: bool = False) -> Points:
    nearest = np.empty(len(points), np.float32)
    squares = (reference**2).sum(axis=1)
    for start in range(0, len(points), ROWS_AT_ONCE):
        part = points[start : start + ROWS_AT_ONCE]
        between = squares - 2 * part @ reference.T
        if apart_from_itself:
            rows = np.arange(len(part))
            between[rows, start + rows] = np.inf
        nearest[start : start + len(part)] = between.min(axis=1) + (part**2).sum(axis=1)
    distances: Points = np.sqrt(np.maximum(nearest, 0))
    return distances


def _scale(points: Points) -> tuple[Points, Points]:
    spread = points.std(axis=0)
    return points.mean(axis=0), np.where(spread > 0, spread, 1).astype(np.float32)


def _scaled(points: Points) -> Points:
    mean, spread = _scale(points)
    scaled: Points = (points - mean) / spread
    return scaled


def _distances(points: Points) -> Points:
    squares = (points**2).sum(axis=1)
    between = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(between, 0)
    distances: Points = np.sqrt(np.maximum(between, 0))
    return distances


def _drawn(random: np.random.Generator, size: int, most: int) -> NDArray[np.int64]:
    return np.arange(size) if size <= most else random.permutation(size)[:most]
