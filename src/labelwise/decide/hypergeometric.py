"""How many misses a library's list holds, from the misses of held-out photos: an exact law.

Held-out photos (n) and a library's photos (m) are exchangeable. Give each photo its score if it
misses, that is, does not answer the query, and minus infinity if it answers: these n + m numbers
are exchangeable too, so that walking down the misses, each next one belongs to the held-out
photos or to the library as in a draw without replacement. The number G of library misses above
the (w + 1)-th held-out miss then has a law that depends on n and m alone,

    P(G >= g) = P(Hypergeometric(n + m, n, w + g) <= w),

whatever the scores, their ties (broken at random; a list that stops above a tie holds no more
misses), how many photos answer, and how long the list is. ``most_misses`` is its quantile.

One w that was chosen without the held-out answers gives a bound for one list. Several, each with
a share of delta, give a bound that holds for all lists at once, and so for a cut that is chosen
after looking (the idea of uniform bounds for conformal p-values, Gazin, Blanchard and Roquain,
2024): a list with w held-out misses has at most as many misses as for the next larger w of the
grid, and at most as many more than a shorter list as it has more photos.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.arrays import to_numpy as as_numpy
from labelwise.numeric.special import betaincinv, betaln

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
GRID = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)  # held-out misses at which every list is bounded
NEAR = 32  # photos by which a library's quantile is off that of a large one, seldom more


def chance_of_misses(
    passed: Counts, misses: Counts, held_out: int, library: Counts | int
) -> Numbers:
    """Return P(G >= misses) above held-out miss number ``passed`` + 1; both (T,)."""
    passed, misses, library = np.broadcast_arrays(passed, misses, library)
    library = library[:, None]
    drawn = np.minimum(passed + misses, held_out + library[:, 0])[:, None]
    hit = np.arange(int(passed.max(initial=0)) + 1)
    possible = (hit <= passed[:, None]) & (hit <= held_out)
    possible &= (drawn - hit <= library) & (hit <= drawn)
    row, column = np.nonzero(possible)  # often a small part of all
    logs = np.full(possible.shape, -np.inf)
    logs[row, column] = (
        log_choose(held_out, hit)[column]
        + log_choose(library[row, 0], drawn[row, 0] - column)
        - log_choose(held_out + library, drawn)[row, 0]
    )
    chances = np.exp(logs).sum(1)
    return np.asarray(np.minimum(np.where(misses <= 0, 1.0, chances), 1.0))


def most_misses(passed: Counts, held_out: int, library: int, delta: Numbers | float) -> Counts:
    """Return the least numbers (T,) that G exceeds with chance at most ``delta``.

    They are sought around the quantiles of the law of a large library, a beta one: G / m is like
    the (w + 1)-th smallest of n uniform numbers.
    """
    passed = np.asarray(passed, np.int64)
    low, high = np.full(passed.shape, -1), np.full(passed.shape, library)
    share = betaincinv(passed + 1, np.maximum(held_out - passed, 1), 1 - np.asarray(delta))
    about = (library * share).astype(np.int64)
    first = [about - NEAR, about + NEAR]
    while (high - low > 1).any():
        middle = np.clip(first.pop(), low, high) if first else (low + high) // 2
        rare = chance_of_misses(passed, middle + 1, held_out, library) <= delta
        low, high = np.where(rare, low, middle), np.where(rare, middle, high)
    return high


@dataclass(frozen=True, eq=False)
class ListBound:
    """A bound of the misses of every list of a library at once, held with ``confidence``.

    ``cuts`` are the scores of the library, falling; a list holds the photos at or above a cut, and
    ``misses`` bounds its misses.
    """

    cuts: Numbers
    misses: Counts
    confidence: float

    def wrong_at_most(self, cut: float, listed: int) -> float:
        """Return the share of a list of ``listed`` photos at or above a cut that may be wrong."""
        if listed == 0:
            return 0.0
        place = int(np.searchsorted(-self.cuts, -cut, side="right")) - 1  # its lowest photo
        return min(1.0, int(self.misses[place]) / listed)


def list_bound(
    scores: Matrix,
    right: Matrix,
    library: Matrix,
    *,
    confidence: float = 0.95,
    size: int | None = None,
) -> ListBound:
    """Return the bound for every list of a library of scores (m,), from held-out photos (n,).

    Where ``library`` holds only the highest scores, ``size`` is the number of all its photos.
    """
    scores_of, library_of = as_numpy(scores).astype(np.float64), descending(library)
    truth = as_numpy(right).astype(bool) | np.isneginf(scores_of)
    missed = np.sort(scores_of[~truth])[::-1]
    scores_of = scores_of[~np.isneginf(scores_of)]
    total = len(library_of) if size is None else size
    grid = np.array([one for one in GRID if one <= len(scores_of)], np.int64)
    most = most_misses(grid, len(scores_of), total, (1 - confidence) / len(grid))
    cuts = np.unique(library_of)[::-1]
    listed = np.searchsorted(-library_of, -cuts, side="right")
    passed = np.searchsorted(-missed, -cuts, side="right")
    place = np.searchsorted(grid, passed)
    bounds = np.where(place < len(grid), most[np.minimum(place, len(grid) - 1)], listed)
    right_ones = np.maximum.accumulate(np.maximum(listed - bounds, 0))
    return ListBound(cuts, listed - right_ones, confidence)


def descending(scores: Matrix) -> Numbers:
    """Return scores that are not minus infinity, the highest first.

    Scores that come so are not sorted again, which would take longer than all else that is done
    with a million of them.
    """
    values = np.asarray(as_numpy(scores))
    if (values[:-1] >= values[1:]).all():
        least = np.searchsorted(values[::-1], -np.inf, side="right")
        return values[: len(values) - least].astype(np.float64)
    return np.sort(values[~np.isneginf(values)])[::-1].astype(np.float64)


def chance_at_most(most: Counts, drawn: Counts, marked: Counts, of: int) -> Numbers:
    """Return P(Hypergeometric(of, marked, drawn) <= most) for each of (T,); all at least 0.

    Terms follow from each other by a factor, which is faster than the logarithm of each where
    there are many; those that are too small for a float are nothing.
    """
    first = np.maximum(0, marked - (of - drawn))
    term = np.exp(
        log_choose(drawn, first) + log_choose(of - drawn, marked - first) - log_choose(of, marked)
    )
    chance = np.where(first <= most, term, 0.0)
    for step in range(int((most - first).max(initial=0))):
        hits = first + step
        term = (
            term
            * ((drawn - hits) * (marked - hits))
            / ((hits + 1) * (of - drawn - marked + hits + 1))
        )
        chance += np.where(hits < most, term, 0.0)
    return np.asarray(np.minimum(chance, 1.0))


def log_choose(total: Counts | int, chosen: Counts) -> Numbers:
    """Return log C(total, chosen); betaln keeps its digits where gammaln would lose them."""
    inside = np.clip(chosen, 0, total)
    return np.asarray(-betaln(inside + 1, total - inside + 1) - np.log(total + 1))
