"""Expected lists above a cut that was set before the held-out answers were looked at.

Conformal selection (:mod:`promised_lists`) tries every cut at once and needs (w + 1) / n of the
library on a list that passes w held-out misses. A cut that is set beforehand needs less: the list
is promised only where the held-out photos above the cut look right, and where many photos there
are wrong that seldom happens. Of n held-out and m library photos let N stand above the cut, T of
them misses; c of the N are held-out photos, h of these misses. The list has N - c photos, of which
T - h are wrong. Photos are exchangeable, so which of them are held out is a random draw: c is
Hypergeometric(n + m, N, n), and given c, each miss is on the list with chance (N - c) / N, where
the others have h misses among c held-out photos. So the mean wrong share of lists of h <= w is

    sum over h <= w of P(h) (T - h) / (N - c) = T / N P(Hypergeometric(N - 1, T - 1, c) <= w)

Lists are promised by falling evidence, the score s = (h + 0.7) / c. Those of a score up to s have

    B(s) = max over T of  T / N  sum over c < N of  P(c) P(Hypergeometric(N - 1, T - 1, c) <= w(c))

of wrong photos at most, on average over searches, where w(c) = s c - 0.7 and a search that is
refused counts as none. The list is promised if B(s) <= alpha. N does not say which photos are held
out, and B rises with s, so this keeps the mean at alpha whatever T is. Which score orders the pairs
(h, c) is a matter of power alone.

The cut may depend on other photos, and on the scores of held-out and library photos that do not say
which is which. :func:`cut_to_try` takes the one at which the list, promised or not, has the largest
share of the hits on the longest list that is right, as probabilities fitted to other photos and the
misses among these have it. It tries no list
that by these has more than twice the wrong photos where it passes: such a one would pass now and
then, within the mean over all searches, and people see those that passed.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from labelwise.decide.fixed_sequence import check_levels
from labelwise.decide.hypergeometric import (
    Counts,
    Numbers,
    chance_at_most,
    chance_of_misses,
    descending,
    log_choose,
)
from labelwise.decide.promised_lists import (
    TOLERANCE,
    PromisedList,
    ScoredHeldOut,
    promised_list,
    why_refused,
)
from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.arrays import to_numpy as as_numpy
from labelwise.numeric.special import betainc

TRIED = 12  # numbers of misses that are tried at once
CLOSE = 1.002  # factor between two of them that is taken for none, on the safe side
STEPS = 32  # numbers of photos above a cut for which the highest score is known
BLOCKS = 48  # numbers of held-out photos above a cut that are told apart, where there are more
FAR = 5.0  # standard deviations within which that number lies, but for what counts as all wrong
MANY = 200  # such photos, from which on their number is taken as it is
BEFORE = 0.7  # of a miss, before any is seen
PLACES = 96  # cuts among which one is chosen, and a third as many above them
BELIEVED = 2  # times the share that lists should hold by fits that see few photos
MENDED = 2  # misses by which a fit is believed, beside those that were seen
SPREAD = (-1.47, -0.79, -0.37, 0.0, 0.37, 0.79, 1.47)  # sevenths of a normal law, by their middles


def most_to_expect(misses: int, hits: int, listed: int, held_out: int, library: int) -> float:
    """Return B: the largest mean share of wrong photos, if lists with such evidence are promised.

    ``misses`` and ``hits`` are those of the held-out photos above the cut of a list of ``listed``
    of the library's photos.
    """
    above, pooled = misses + hits, misses + hits + listed
    if not above:
        return 1.0
    score = (misses + BEFORE) / above
    first, last, chances, beyond = _counts_above(above, pooled, held_out, library)
    allowed = np.floor(score * last - BEFORE + TOLERANCE).astype(np.int64)
    used = allowed >= 0
    first, allowed, chances = first[used], np.minimum(allowed, first)[used], chances[used]

    def expected(total: Counts) -> Numbers:
        if len(first) == 1:  # which may allow for hundreds of misses
            most, count = allowed[0], int(first[0])
            chance = chance_of_misses(most, total - 1 - most, count, pooled - 1 - count)
            return np.asarray(total / pooled * chances[0] * chance)
        shape = len(first), len(total)
        counts, most, others = (
            np.broadcast_to(one, shape).ravel()
            for one in (first[:, None], allowed[:, None], total[None] - 1)
        )
        chance = chance_at_most(most, counts, others, pooled - 1)
        return np.asarray(total / pooled * (chances @ chance.reshape(shape)))

    likely = np.array([max(1, int(score * pooled))])
    low, high = max(1, int(pooled * expected(likely)[0])), pooled  # fewer have a smaller share
    while high - low > TRIED and high > low * CLOSE**TRIED:  # it rises and falls once
        grid = np.unique(np.geomspace(low, high, TRIED).astype(np.int64))
        best = int(np.argmax(expected(grid)))
        low, high = int(grid[max(best - 1, 0)]), int(grid[min(best + 1, len(grid) - 1)])
    grid = np.unique(np.linspace(low, high, TRIED + 1).astype(np.int64))
    between = grid[1:] / (grid[:-1] + (np.diff(grid) == 1))  # chances fall where misses grow
    return float(expected(grid).max()) * float(between.max(initial=1.0)) + beyond


def _counts_above(
    above: int, pooled: int, held_out: int, library: int
) -> tuple[Counts, Counts, Numbers, float]:
    """Return the numbers c of held-out photos above a cut, in blocks, and their chances.

    That is, the first and last number of each block, which stand for it so that no chance is taken
    too small, and the chance of a number that lies beyond all blocks. Where it is large, c varies
    so little that the one that was seen is taken alone, as if it had been given.
    """
    mean = pooled * (held_out / (held_out + library))
    if mean > MANY:
        return np.array([above]), np.array([above]), np.ones(1), 0.0
    reach = FAR * np.sqrt(mean) + FAR
    low = max(0, pooled - library, int(mean - reach))
    counts = np.arange(low, min(held_out, pooled, int(mean + reach)) + 1)
    chances = np.exp(
        log_choose(pooled, counts)
        + log_choose(held_out + library - pooled, held_out - counts)
        - log_choose(held_out + library, np.array([held_out]))
    )
    beyond = max(0.0, 1 - float(chances.sum()))
    counts = counts[counts < pooled]  # with none in the library there is no list
    chances = chances[: len(counts)]
    starts = np.arange(len(counts))
    if len(counts) > BLOCKS:  # as likely as each other
        places = np.searchsorted(chances.cumsum(), np.linspace(0, chances.sum(), BLOCKS + 1)[:-1])
        starts = np.unique(np.append(0, places))
    ends = np.append(starts[1:], len(counts)) - 1
    return counts[starts], counts[ends], np.add.reduceat(chances, starts), beyond


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
    if most > wrong_at_most + TOLERANCE:
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
    seen: tuple[Matrix, Matrix] | None = None,
) -> float | None:
    """Return the score at which a list should be tried, None where none is likely to pass.

    ``pooled`` are the scores of held-out and library photos together, at least the highest of
    them, or different falling scores and how many ``times`` there is each. ``chances`` returns the
    probabilities (D, N) that photos of these scores are right, as each of D fits to other photos
    has them; ``seen`` are the scores (V,) of these other photos and whether they are right, by
    which the misses of the fits are mended.
    """
    ranked = descending(pooled)
    total = held_out + library
    if not len(ranked) or not held_out:
        return None
    upto = np.arange(1, len(ranked) + 1) if times is None else times.cumsum()
    photos = int(upto[-1])
    shortest = min(max(total / held_out, 1), photos)
    above = np.geomspace(1, shortest, PLACES // 3)  # of lists too short to pass
    ranks = np.append(above, np.geomspace(shortest, photos, PLACES)).astype(np.int64)
    places = np.unique(np.searchsorted(upto, ranks))
    ends = upto[places]
    widths = np.diff(ends, prepend=0)
    middles = np.searchsorted(upto, ends - widths // 2)  # they stand for those between two ends
    p = chances(ranked[middles])
    misses = ((1 - p) * widths).cumsum(1)
    if seen is not None:
        mended = np.minimum(misses * _mend(ranked[places], *seen, chances), ends)
        misses = np.maximum.accumulate(mended, axis=1)
    hits = ends - misses
    sizes, scores = _highest_scores(held_out, library, wrong_at_most)
    highest = np.interp(np.log(ends), np.log(sizes), scores)
    counts = _likely_counts(ends, held_out, library)
    allowed = np.floor(highest * counts - BEFORE + TOLERANCE)
    chance = [_about_at_most(*one, misses, ends) for one in zip(allowed, counts, strict=True)]
    passing = np.mean(chance, axis=0)
    good = np.where(misses <= wrong_at_most * ends, hits, 0.0).max(1, keepdims=True)
    share = np.minimum(hits / np.where(good > 0, good, np.inf), 1)
    wrong = (passing * misses).mean(0)  # of lists that pass
    likely = wrong <= BELIEVED * wrong_at_most * ends * passing.mean(0)
    value = np.where(likely, (passing * share).mean(0), 0.0)
    best = int(value.argmax())
    return float(ranked[places[best]]) if value[best] > 0 else None


def is_believed(
    listed: Matrix,
    chances: Callable[[Numbers], Numbers],
    seen: tuple[Matrix, Matrix],
    wrong_at_most: float,
) -> bool:
    """Return whether a list should hold at most twice the share, as other photos have it.

    ``listed`` are the scores of its photos; ``chances`` and ``seen`` as for :func:`cut_to_try`. A
    list that is refused for this has no wrong photo, so no mean of any promise grows by it.
    """
    scores = as_numpy(listed).astype(np.float64)
    mend = _mend(scores.min(keepdims=True), *seen, chances)
    misses = (1 - chances(scores)).mean(0).sum() * float(mend[0])
    return bool(misses <= BELIEVED * wrong_at_most * len(scores) + TOLERANCE)


def _mend(
    cuts: Numbers, scores: Matrix, right: Matrix, chances: Callable[[Numbers], Numbers]
) -> Numbers:
    """Return by which factor (N,) photos above each cut, falling, miss more than the fits say.

    That is (M + misses) / (M + expected misses) of the photos seen there: a fit of a line is off
    where few photos stand, at the top.
    """
    values, truth = as_numpy(scores).astype(np.float64), as_numpy(right).astype(bool)
    order = np.argsort(-values, kind="stable")
    order = order[values[order] >= cuts[-1]]
    ranked = values[order]
    above = np.searchsorted(-ranked, -cuts, side="right")
    missed = np.append(0, (~truth[order]).cumsum())[above]
    expected = np.append(0.0, (1 - chances(ranked).mean(0)).cumsum())[above]
    return np.asarray((MENDED + missed) / (MENDED + expected))


@lru_cache(maxsize=64)
def _highest_scores(held_out: int, library: int, wrong_at_most: float) -> tuple[Numbers, Numbers]:
    """Return numbers N of photos above a cut, and about the highest score that is promised there.

    For a choice that need not be exact: by a few numbers c, and binomial laws.
    """
    total = held_out + library
    sizes = np.unique(np.geomspace(max(total / held_out / 2, 1), total, STEPS).astype(np.int64))
    counts = _likely_counts(sizes, held_out, library)
    shares = np.geomspace(wrong_at_most / 4, 1, STEPS)[:, None, None]
    low, high = np.zeros(len(sizes)), np.ones(len(sizes))
    for _ in range(10):
        middle = (low + high) / 2
        allowed = np.floor(middle * counts - BEFORE + TOLERANCE)
        chance = _about_at_most(allowed, counts, np.maximum(shares * sizes - 1, 0), sizes - 1)
        kept = (shares[:, 0] * chance.mean(1)).max(0) <= wrong_at_most
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return sizes.astype(np.float64), low


def _likely_counts(sizes: Counts, held_out: int, library: int) -> Numbers:
    """Return numbers (7, N) of held-out photos among so many, each as likely as the others."""
    share = held_out / (held_out + library)
    places = np.array(SPREAD)[:, None]
    skewed = places * np.sqrt(sizes * share * (1 - share)) + (places**2 - 1) * (1 - 2 * share) / 6
    return np.asarray(np.clip(np.rint(sizes * share + skewed), 0, np.minimum(sizes, held_out)))


def _about_at_most(most: Numbers, drawn: Numbers, marked: Numbers, of: Counts) -> Numbers:
    """Return about P(Hypergeometric(of, marked, drawn) <= most), 0 where that is negative.

    The fewer of drawn and marked ones are taken as draws with replacement.
    """
    draws, others = np.minimum(drawn, marked), np.maximum(drawn, marked)
    chance = betainc(
        np.maximum(draws - most, 1e-9),
        np.maximum(most, 0) + 1,
        1 - np.minimum(others / np.maximum(of, 1), 1),
    )
    return np.asarray(np.where(most < 0, 0.0, np.where(most >= draws, 1.0, chance)))
