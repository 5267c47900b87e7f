"""Lists of a library's photos that hold few wrong ones, from held-out photos that were answered.

Both kinds count the misses among n held-out photos: photos that do not answer the query. A list
of L of the library's m photos ends above held-out miss number w + 1, and may hold ``wrong_at_most``
(alpha) wrong ones.

    expected   (w + 1) / (n + 1) <= alpha L / m           the longest such list
    sure       most_misses(w, n, m) <= alpha L            for one w

``expected`` is conformal selection (Jin and Candes, 2023): the photo of score s has the p-value
(1 + held-out misses of at least s) / (n + 1), and Benjamini-Hochberg selects. Over searches like
this one, the mean share of wrong photos in a list is at most alpha. A single list may exceed it.
In a library of few photos chance puts many above a cut, and a model that knows nothing is promised
lists of which half is wrong, though not too often. ``plausible`` lists are only those where at most
alpha of the held-out photos above the cut miss, too. Their p-values are still at most alpha L / m,
and lists do not grow where p-values do, which keeps the mean (Blanchard and Roquain, 2008).

``sure`` speaks of the list in front of a person, with a confidence: the exact law of
:mod:`misses` bounds the misses above held-out miss number w + 1. A test of several cuts one after
another would not do: which of these lists hold too many wrong photos depends on the same draw as
the tests, so there is no first true hypothesis at which a fixed sequence must stop. So w is
chosen once, by other photos, and the held-out misses set the cut.

Held-out photos that come in G groups are exchangeable with photos of new groups, group by group:
a miss in a group of n_g photos counts 1 / n_g, and the p-value is (1 + sum of these) / (G + 1)
(Lee, Barber and Willett, 2023). ``expected`` is then of photos of new groups. How many misses this
very list may hold depends on the groups of the library, which nobody knows: ``sure`` is refused,
and a person's check (:mod:`list_checks`) needs to know nothing of groups.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.fixed_sequence import check_levels
from labelwise.decide.hypergeometric import Counts, Numbers, descending, most_misses
from labelwise.decide.promises import Promise
from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.arrays import to_numpy as as_numpy
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import gammaincc

DOUBT = 0.3  # log of the factor by which the expected number of misses may be off
FEW = 12  # held-out misses of which each number is considered; above, steps of a quarter
CONFORMAL = "conformal selection"
TOLERANCE = 1e-9  # of alpha L, so that a tenth of 30 photos is 3 of them


@dataclass(frozen=True)
class PromisedList:
    """The lowest score of a list and its length; ``promise`` is None where there can be none.

    ``tested`` says whether held-out photos were asked.
    """

    threshold: float
    promise: Promise | None
    refused: str = ""
    listed: int = 0
    tested: bool = True


@dataclass(frozen=True, eq=False)
class ScoredHeldOut:
    """Held-out photos whose score is not minus infinity, and the scores of their misses.

    ``weights`` are what the misses count for, of ``units`` photos or groups in all.
    """

    scores: Numbers
    missed: Numbers  # falling
    weights: Numbers
    units: int

    @classmethod
    def read(cls, scores: Matrix, right: Matrix, groups: Groups | None = None) -> "ScoredHeldOut":
        values = np.asarray(as_numpy(scores), dtype=np.float64).ravel()
        truth = np.asarray(as_numpy(right)).ravel().astype(bool)
        if np.isnan(values).any() or len(values) != len(truth):
            raise ValueError("scores must be numbers, one for each image that is right or wrong")
        kept = ~np.isneginf(values)
        each, units = np.ones(len(values)), int(np.count_nonzero(kept))
        if groups is not None:
            inside = groups.sums(kept)
            each, units = 1 / np.maximum(inside, 1)[groups.codes], int(np.count_nonzero(inside))
        misses = np.flatnonzero(kept & ~truth)
        misses = misses[np.argsort(-values[misses], kind="stable")]
        return cls(values[kept], values[misses], each[misses], units)

    def __len__(self) -> int:
        return len(self.scores)

    def p_values(self) -> Numbers:
        """Return those (misses + 1,) of photos above each miss, the last of the photos below all.

        Photos between miss w and w + 1 have w misses above.
        """
        return np.asarray((1 + np.append(0.0, self.weights.cumsum())) / (self.units + 1))

    def wrong_shares(self) -> Numbers:
        """Return which share (misses + 1,) of the held-out photos above each miss misses."""
        above = np.append(np.searchsorted(np.sort(-self.scores), -self.missed), len(self.scores))
        return np.where(above > 0, np.arange(len(above)) / np.maximum(above, 1), 1.0)

    def lengths(self, ranked: Numbers) -> Counts:
        """Return how long (misses + 1,) a list is above each miss; the last holds everything."""
        above = np.searchsorted(-ranked, -self.missed, side="left")
        return np.append(above, len(ranked)).astype(np.int64)


def expected_list(
    scores: Matrix,
    right: Matrix,
    library: Matrix,
    *,
    wrong_at_most: float,
    size: int | None = None,
    photos: str = "photos",
    groups: Groups | None = None,
    plausible: bool = False,
) -> PromisedList:
    """Return the longest list whose expected share of wrong photos is at most ``wrong_at_most``.

    ``scores`` (n,) of held-out photos and whether they are ``right``; ``library`` (m,) scores.
    Photos of score minus infinity are left out on both sides. Where ``library`` holds only the
    scores above :func:`lowest_cut`, ``size`` is the number of photos of any other score too.
    ``groups`` are those of the held-out photos; the list is then one of photos of new groups.
    With ``plausible`` at most that share of the held-out photos above its cut is wrong, too.
    """
    check_levels(1 - wrong_at_most, 0.5)
    held, ranked = ScoredHeldOut.read(scores, right, groups), descending(library)
    total = len(ranked) if size is None else size
    lengths = held.lengths(ranked)
    needed = total * held.p_values()
    passes = (lengths > 0) & (needed <= wrong_at_most * lengths + TOLERANCE)
    if plausible:
        passes &= held.wrong_shares() <= wrong_at_most + TOLERANCE
    passing = np.flatnonzero(passes)
    if not len(passing):
        return PromisedList(np.inf, None, why_refused(held, total, wrong_at_most))
    listed = ranked[: lengths[passing[-1]]]
    return promised_list(held, listed, wrong_at_most, None, photos, CONFORMAL)


def sure_list(
    scores: Matrix,
    right: Matrix,
    library: Matrix,
    *,
    wrong_at_most: float,
    confidence: float = 0.95,
    tuning: Matrix | None = None,
    size: int | None = None,
    tuning_share: float = 0.2,
    seed: int = 0,
    photos: str = "photos",
) -> PromisedList:
    """Return a list of which at most ``wrong_at_most`` is wrong, with ``confidence``.

    As :func:`expected_list`. ``tuning`` are the probabilities (N,) of other photos, by which the
    number of held-out misses to pass is chosen; if they lie, the promise still holds, and finds
    less. Without them a share of the held-out photos, drawn by ``seed``, does.
    """
    check_levels(1 - wrong_at_most, confidence)
    held, values = ScoredHeldOut.read(scores, right), as_numpy(library)
    total = int(np.count_nonzero(~np.isneginf(values))) if size is None else size
    if tuning is not None:
        chances = np.sort(1 - np.asarray(as_numpy(tuning), dtype=np.float64).ravel())
    else:
        held, chances = _divided(scores, right, tuning_share, seed)
    passed = _misses_to_pass(chances, len(held), total, wrong_at_most, 1 - confidence)
    cut = held.missed[passed] if passed < len(held.missed) else -np.inf
    listed = values[values > cut]
    most = int(most_misses(np.array([passed]), len(held), total, 1 - confidence)[0])
    if not len(listed) or most > wrong_at_most * len(listed) + TOLERANCE:
        why = why_refused(held, total, wrong_at_most, confidence)
        return PromisedList(np.inf, None, why)
    return promised_list(held, listed, wrong_at_most, confidence, photos, "hypergeometric")


def lowest_cut(
    scores: Matrix, right: Matrix, wrong_at_most: float, groups: Groups | None = None
) -> float:
    """Return the score below which no list can be promised, whatever the library holds."""
    held = ScoredHeldOut.read(scores, right, groups)
    last = int(np.searchsorted(held.p_values(), wrong_at_most + TOLERANCE, side="right"))
    return float(held.missed[last]) if last < len(held.missed) else -np.inf


def least_wrong(
    scores: Matrix,
    right: Matrix,
    library: Matrix,
    *,
    size: int | None = None,
    groups: Groups | None = None,
    plausible: bool = False,
) -> float | None:
    """Return the least share, in hundredths up to a half, that an expected list may have wrong."""
    held, ranked = ScoredHeldOut.read(scores, right, groups), descending(library)
    total = len(ranked) if size is None else size
    lengths = held.lengths(ranked)
    shares = np.full(len(lengths), np.inf)
    np.divide(total * held.p_values(), lengths, out=shares, where=lengths > 0)
    if plausible:
        shares = np.maximum(shares, held.wrong_shares())
    least = np.ceil(100 * float(shares.min()) - 1e-6) / 100
    return float(least) if least <= 0.5 else None


def _divided(
    scores: Matrix, right: Matrix, share: float, seed: int
) -> tuple[ScoredHeldOut, Numbers]:
    """Return most held-out photos, and of the others, by falling score, whether they miss."""
    values = np.asarray(as_numpy(scores), dtype=np.float64).ravel()
    truth = np.asarray(as_numpy(right)).ravel().astype(bool)
    kept = np.flatnonzero(~np.isneginf(values))
    order = np.random.default_rng(seed).permutation(kept)
    cut = round(share * len(kept))
    first = order[:cut][np.argsort(-values[order[:cut]], kind="stable")]
    rest = np.sort(order[cut:])
    return ScoredHeldOut.read(values[rest], truth[rest]), (~truth[first]).astype(np.float64)


def _misses_to_pass(
    chances: Numbers, held_out: int, library: int, wrong_at_most: float, delta: float
) -> int:
    """Return the number w of held-out misses whose list is expected to be longest.

    ``chances`` are those of other photos to miss, by falling score. A list needs the share
    most_misses(w) / (alpha m) of all photos; it gets it if among the held-out photos of that share
    at most w miss, whose number is about Poisson.
    """
    last = max(0, int(wrong_at_most * (held_out + 1)) - 1)
    steps = np.unique(np.rint(np.geomspace(FEW, max(last, FEW), 1 + len(bin(last)) * 3)))
    passed = np.unique(np.append(np.arange(FEW), steps)).astype(np.int64)
    passed = passed[passed <= last]
    if not len(chances) or not library:
        return int(passed[0])
    expected = np.append(0.0, (chances.cumsum() + 0.5) * (held_out / len(chances)))
    shares = np.linspace(0.0, 1.0, len(expected))
    needed = most_misses(passed, held_out, library, delta) / (wrong_at_most * library)
    misses = np.interp(needed, shares, expected)
    factors = np.exp([[-DOUBT], [DOUBT]])
    pass_chance = np.where(needed <= 1, gammaincc(passed + 1, misses * factors).mean(0), 0.0)
    length = np.maximum(np.interp(passed + 1, expected, shares), needed)
    return int(passed[np.argmax(pass_chance * length)])


def promised_list(
    held: ScoredHeldOut,
    scores: NDArray[Any],
    wrong_at_most: float,
    confidence: float | None,
    photos: str,
    test: str,
) -> PromisedList:
    """Return the promise of a list of a library's best photos, of these ``scores`` (L,)."""
    listed, threshold = len(scores), float(scores.min())
    counted = int((held.scores >= threshold).sum())
    wrong = int((held.missed >= threshold).sum())
    promise = Promise(
        "list",
        1 - wrong_at_most,
        confidence,
        n=len(held),
        counted=counted,
        observed=1 - wrong / max(counted, 1),
        photos=photos,
        made=datetime.now(UTC).date().isoformat(),
        test=test,
        kind="expected" if confidence is None else "sure",
        listed=listed,
        groups=held.units if held.units < len(held) else None,
    )
    return PromisedList(threshold, promise, listed=listed)


def why_refused(
    held: ScoredHeldOut,
    total: int,
    wrong_at_most: float,
    confidence: float | None = None,
) -> str:
    """Return in words why nothing is promised."""
    if not len(held) or not total:
        return "no held-out photo or no photo of the library passes the query's limits"
    surely = "" if confidence is None else f" with {confidence:.0%} confidence"
    return (
        f"of {len(held):,} held-out photos {len(held) - len(held.missed):,} match, and too few of "
        f"these stand above the others for a list of which {wrong_at_most:.3g} may be wrong{surely}"
    )
