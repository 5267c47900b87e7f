"""Expected lists above a cut that was set before the held-out misses were looked at.

Conformal selection (:mod:`promised_lists`) tries every cut at once and needs (w + 1) / n of the
library on a list that passes w held-out misses. A cut that is set beforehand needs less: the list
is promised only where few held-out photos above the cut miss, and where the misses are many that
seldom happens. Of n held-out and m library photos let T misses and S hits stand above the cut, k of
these hits and h of the misses among the held-out photos. The list has L = S - k + T - h photos, of
which T - h are wrong. Photos are exchangeable, so given the hits the misses are dealt at random to
n' = n - k and m' = m - (S - k) places: h is Hypergeometric(n' + m', T, n'), and

    A(h, L, k) = max over T of  sum over i <= h of  P(i) (T - i)
               = max over T of  T m' / (n' + m') P(Hypergeometric(n' + m' - 1, T - 1, n') <= h)

with m' = m - L + T - h. The list is promised if A(h, L, k) <= alpha L. For given T and hits let h*
be the largest h that is promised and L* its list. For a smaller h the list is longer, and
(T - h) / L at most (T - h) / L*, so that the mean wrong share, 0 where nothing is promised, is at
most A(h*, L*, k) / L* <= alpha.

The cut may depend on other photos, and on the scores of held-out and library photos that do not say
which is which. :func:`cut_to_try` takes the one at which the list, promised or not, has the largest
share of the hits on the longest list that is right, as the probabilities have it. It tries no list
that by these has more than twice the wrong photos where it passes: such a one would pass now and
then, within the mean over all searches, and people see those that passed.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Matrix, as_numpy
from labelwise.decide.misses import Counts, Numbers, chance_of_misses, descending
from labelwise.decide.promised_lists import (
    TOLERANCE,
    PromisedList,
    ScoredHeldOut,
    promised_list,
    why_refused,
)
from labelwise.decide.sequences import check_levels
from labelwise.numeric.special import betainc, gammaincc

__all__ = ["cut_to_try", "list_above", "most_to_expect"]

STEPS = 32  # numbers of misses that are tried at once
PLACES = 96  # cuts among which one is chosen, and a third as many above them
BELIEVED = 2  # times the share that lists should hold by fits that see few photos
SPREAD = (-1.28, -0.52, 0.0, 0.52, 1.28)  # fifths of a normal law, by their middles


def most_to_expect(misses: int, hits: int, listed: int, held_out: int, library: int) -> float:
    """Return A: the most wrong photos to expect on a list of ``listed`` of the library's photos.

    ``misses`` and ``hits`` are those of the held-out photos above its cut.
    """
    places = held_out - hits

    def expected(total: NDArray[np.int64]) -> Numbers:
        others = library - listed + total - misses
        seen = np.full(len(total), misses)
        chance = chance_of_misses(seen, total - 1 - misses, places, np.maximum(others - 1, 0))
        return np.asarray(total * others / (places + others) * chance)

    low, high = max(misses, 1), misses + listed  # of T
    while high - low > STEPS:  # it rises and falls once
        grid = np.unique(np.geomspace(low, high, STEPS).astype(np.int64))
        best = int(np.argmax(expected(grid)))
        low, high = int(grid[max(best - 1, 0)]), int(grid[min(best + 1, len(grid) - 1)])
    return float(expected(np.arange(low, high + 1)).max())


def list_above(
    cut: float,
    scores: Matrix,
    right: Matrix,
    library: Matrix,
    *,
    wrong_at_most: float,
    size: int | None = None,
    photos: str = "photos",
) -> PromisedList:
    """Return the list above a cut, promised to have ``wrong_at_most`` wrong in expectation.

    As :func:`~labelwise.decide.expected_list`. The cut must have been set without the answers of
    the held-out photos that miss.
    """
    check_levels(1 - wrong_at_most, 0.5)
    held, values = ScoredHeldOut.read(scores, right), as_numpy(library)
    total = int(np.count_nonzero(~np.isneginf(values))) if size is None else size
    listed = values[values >= cut]
    above = int(np.count_nonzero(held.scores >= cut))
    misses = int(np.count_nonzero(held.missed >= cut))
    if not len(listed) or not len(held):
        return PromisedList(np.inf, None, why_refused(held, total, wrong_at_most))
    most = most_to_expect(misses, above - misses, len(listed), len(held), total)
    if most > wrong_at_most * len(listed) + TOLERANCE:
        why = (
            f"of {above:,} held-out photos above the cut that other photos set, {misses:,} do not "
            f"match, too many for a list of which {wrong_at_most:.3g} may be wrong"
        )
        return PromisedList(np.inf, None, why)
    return promised_list(held, listed, wrong_at_most, None, photos, "misses above a cut")


def cut_to_try(
    pooled: Matrix,
    chances: Callable[[Numbers], Numbers],
    held_out: int,
    library: int,
    wrong_at_most: float,
    *,
    times: Counts | None = None,
) -> float | None:
    """Return the score at which a list should be tried, None where none is likely to pass.

    ``pooled`` are the scores of held-out and library photos together, at least the highest of
    them, or different falling scores and how many ``times`` there is each. ``chances`` returns the
    probabilities (D, N) that photos of these scores are right, as each of D fits to other photos
    has them.
    """
    ranked = descending(pooled)
    total = held_out + library
    if not len(ranked) or not held_out:
        return None
    upto = np.arange(1, len(ranked) + 1) if times is None else times.cumsum()
    photos = int(upto[-1])
    steps, needed = _needed(wrong_at_most * photos, held_out, library)
    shortest = min(max(needed[0] * total / (2 * wrong_at_most * max(library, 1)), 1), photos)
    above = np.geomspace(1, shortest, PLACES // 3)  # of lists too short to pass
    ranks = np.append(above, np.geomspace(shortest, photos, PLACES)).astype(np.int64)
    places = np.unique(np.searchsorted(upto, ranks))
    ends = upto[places]
    widths = np.diff(ends, prepend=0)
    middles = np.searchsorted(upto, ends - widths // 2)  # they stand for those between two ends
    p = chances(ranked[middles])
    hits, misses = (p * widths).cumsum(1), ((1 - p) * widths).cumsum(1)
    listed = ends * (library / total)
    spread = np.sqrt(listed * held_out / total)
    passing = np.zeros(p.shape)
    for place in SPREAD:
        allowed = np.searchsorted(needed, wrong_at_most * (listed + place * spread), "right") - 1
        long = allowed >= 0
        chance = gammaincc(steps[allowed[long]] + 1, misses[:, long] * (held_out / total))
        passing[:, long] += chance / len(SPREAD)
    good = np.where(misses <= wrong_at_most * ends, hits, 0.0).max(1, keepdims=True)
    share = np.minimum(hits / np.where(good > 0, good, np.inf), 1)
    wrong = (passing * misses).mean(0)  # of lists that pass
    likely = wrong <= BELIEVED * wrong_at_most * ends * passing.mean(0)
    value = np.where(likely, (passing * share).mean(0), 0.0)
    best = int(value.argmax())
    return float(ranked[places[best]]) if value[best] > 0 else None


def _needed(
    wrong: float, held_out: int, library: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return numbers of held-out misses, and how many wrong photos a list may have to pass each.

    Up to lists with ``wrong`` of them. The hypergeometric law is taken as a binomial one, for a
    choice that need not be exact.
    """
    share = library / (held_out + library)
    most = 2 * wrong * held_out / max(library, 1) + 10
    steps = np.unique(np.geomspace(1, most + 1, STEPS).astype(np.int64)) - 1
    total = np.geomspace(1, (steps + 2) * 3 / (1 - share), STEPS, axis=1)
    more = np.maximum(total - 1 - steps[:, None], 1e-9)
    below = betainc(more, steps[:, None] + 1, share)
    return steps, np.maximum.accumulate((total * share * below).max(1))
