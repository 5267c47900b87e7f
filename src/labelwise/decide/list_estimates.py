"""Estimate of how much of a search result is wrong, and of a label's count, under label shift.

Precision above a cut moves with the label's share. The rates at which photos without the label
(FPR) and with it (TPR) score above the cut do not, as long as the pictures are alike.

1. *Validation* photos set the cut: the lowest score c of the library, at least five of them with
   the label above it, with FPR(c) N (1 - s) / L(c) <= wrong_at_most. N is the library, L(c) its
   photos above c, s = (L / N - FPR) / (TPR - FPR) its share, at the cut where it is known best.
2. *Test* photos judge it: f of m photos without the label score above c. The wrong photos W of the
   list follow BetaBinomial(N (1 - s), f + 1/2, m - f + 1/2), given W <= L, mixed over the doubt in
   s. A 95 % interval holds the middle 97 % of that law.

The count draws FPR and TPR from their Beta laws and solves L = count TPR + (N - count) FPR + noise.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.numeric.arrays import Mask, Numbers
from labelwise.numeric.special import betaln, log_choose
from labelwise.system.text import counted

Rates = tuple[tuple[float, float], tuple[float, float]]  # Beta laws of TPR and FPR
FEWEST_ABSENT = 50  # test photos without the label
FEWEST_PRESENT = 5  # photos with the label, for a count
LEAST_GAP = 0.15  # between TPR and FPR, for a count
FEWEST_HITS = 5  # validation photos with the label above the cut
FEWEST_LISTED = 10  # photos of a list that is estimated
DRAWS, SHARES = 4000, 60
CAUTION = 0.6  # of each tail: the interval then covers in every simulated world, heavy tails too
FINE = 4000  # wrong photos up to which each number is considered


@dataclass(frozen=True)
class Statement:
    """What is said of a list. ``wrong`` is the share of wrong photos, from ``low`` to ``high``."""

    kind: Literal["estimate", "guarantee", "none"]
    sentence: str
    wrong: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class NoEstimate:
    """Why nothing is estimated."""

    reason: str


@dataclass(frozen=True)
class ListEstimate:
    """The list above ``cut``: ``listed`` photos, of which a share from low to high is wrong."""

    cut: float
    listed: int
    wrong: float
    low: float
    high: float
    share: float
    test_absent: int
    test_wrong: int
    confidence: float

    def stated(self, known: str = "test") -> Statement:
        if self.listed < FEWEST_LISTED:  # such lists are there by luck as often as not
            short = f"a list of {counted(self.listed, 'photo')} is too short; look at all of it"
            return Statement("none", f"No estimate: {short}.")
        score = "scores" if self.test_wrong == 1 else "score"
        words = (
            f"About {_percent(self.wrong)} % of this list of {counted(self.listed, 'photo')} is "
            f"wrong ({100 * self.confidence:.3g} % interval: {_percent(self.low)} to "
            f"{_percent(self.high)} %): {self.test_wrong:,} of {self.test_absent:,} {known} photos "
            f"that do not match {score} this high."
        )
        return Statement("estimate", words, self.wrong, self.low, self.high)

    def without(self, found: int) -> "ListEstimate":
        """Return the estimate of the list after photos that were found wrong have left it."""
        left = self.listed - found
        low, wrong, high = (
            max(0.0, share * self.listed - found) / max(left, 1)
            for share in (self.low, self.wrong, self.high)
        )
        return replace(self, listed=left, low=low, wrong=wrong, high=high)


@dataclass(frozen=True)
class LibraryCount:
    """How many photos of the library show the label."""

    photos: int
    count: float
    low: int
    high: int
    confidence: float


@dataclass(frozen=True, eq=False)
class ScoredSplit:
    """Scores (n,) of photos whose truth (n,) is known, of one split."""

    scores: Numbers
    present: Mask

    def above(self, cuts: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many photos with and without the label score at or above each cut."""
        return _above(self.scores[self.present], cuts), _above(self.scores[~self.present], cuts)

    @property
    def sizes(self) -> tuple[int, int]:
        present = int(self.present.sum())
        return present, len(self.present) - present


def estimate_list(
    validation: ScoredSplit,
    test: ScoredSplit,
    library: Numbers,
    *,
    wrong_at_most: float = 0.1,
    confidence: float = 0.95,
) -> ListEstimate | NoEstimate:
    """Return the longest list whose estimated wrong share is at most this, and its interval."""
    if not 0 < wrong_at_most < 1 or not 0 < confidence < 1:
        raise DataError("wrong_at_most and confidence must lie between 0 and 1.")
    if test.sizes[1] < FEWEST_ABSENT or validation.sizes[1] < FEWEST_ABSENT:
        return NoEstimate(f"fewer than {FEWEST_ABSENT} test photos are without it")
    if not validation.sizes[0]:
        return NoEstimate("no validation photo shows it")
    cuts = np.unique(np.asarray(library, np.float64))[::-1]
    hits, false = validation.above(cuts)
    best = best_cut(validation, test.sizes, library)[0]
    share = _share(_rates_at(best, validation, None), library, best)
    expected = (false + 0.5) / (validation.sizes[1] + 1) * len(library) * (1 - share)
    expected /= _above(library, cuts)
    fits = np.flatnonzero((expected <= wrong_at_most) & (hits >= FEWEST_HITS))
    if not len(fits):
        return NoEstimate(f"no list is expected to be at most {_percent(wrong_at_most)} % wrong")
    return judge_cut(validation, test, library, float(cuts[fits[-1]]), confidence=confidence)


def judge_cut(
    validation: ScoredSplit,
    test: ScoredSplit,
    library: Numbers,
    cut: float,
    *,
    confidence: float = 0.95,
) -> ListEstimate:
    """Return what test photos say of the list at or above a cut that others chose."""
    photos, listed, absent = len(library), int((library >= cut).sum()), test.sizes[1]
    false = int(test.above(np.array([cut]))[1][0])
    best = best_cut(validation, test.sizes, library)[0]
    rates = _rates_at(best, validation, test)
    share, grid = _share(rates, library, best), np.arange(min(listed, FINE) + 1)
    if listed > FINE:  # steps far below the law's own width
        rest = np.geomspace(FINE, listed, 2 * FINE)
        grid = np.unique(np.rint(np.append(np.arange(FINE), rest)).astype(np.int64))
    law, widths = np.zeros(len(grid)), np.diff(grid, append=listed + 1)
    shares = np.zeros(1)
    if share:  # what the doubt in both rates and the library's size allow
        rng = np.random.default_rng(0)
        tpr, fpr = (rng.beta(*rate, SHARES) for rate in rates)
        gap, above = np.maximum(tpr - fpr, LEAST_GAP / 2), float(np.mean(library >= best))
        noise = rng.normal(size=SHARES) * np.sqrt(above * (1 - above) / photos) / gap
        shares = np.clip((above - fpr) / gap + noise, 0, 1)
    a, b = false + 0.5, absent - false + 0.5
    for without in np.rint(photos * (1 - shares)).astype(int).tolist():
        wrong = grid[grid <= without]
        logs = log_choose(without, wrong) + betaln(wrong + a, without - wrong + b) - betaln(a, b)
        law[: len(wrong)] += np.exp(logs) * widths[: len(wrong)]
    tail, law = CAUTION * (1 - confidence) / 2, law.cumsum() / law.sum()
    ends = np.searchsorted(law, [tail, 1 - tail], side="right")
    low, high = (float(grid[min(end, len(grid) - 1)]) / listed for end in ends)
    centre = min(max(min(false / absent * photos * (1 - share) / listed, 1.0), low), high)
    return ListEstimate(cut, listed, centre, low, high, share, absent, false, confidence)


def estimate_library_count(
    validation: ScoredSplit, test: ScoredSplit, library: Numbers, *, confidence: float = 0.95
) -> LibraryCount | NoEstimate:
    """Return how many photos of the library show the label, by the rates above the best cut."""
    present, absent = test.sizes
    if absent < FEWEST_ABSENT or min(present, validation.sizes[0]) < FEWEST_PRESENT:
        return NoEstimate("too few test photos show it")
    (cut, gap), tail = best_cut(validation, test.sizes, library), 1 - confidence
    hits, false = (int(count[0]) for count in test.above(np.array([cut])))
    rng, photos = np.random.default_rng(0), len(library)
    tprs = rng.beta(hits + 0.5, present - hits + 0.5, DRAWS)
    fprs = rng.beta(false + 0.5, absent - false + 0.5, DRAWS)
    if gap < LEAST_GAP or np.mean(tprs - fprs < LEAST_GAP / 2) > tail / 2:
        return NoEstimate("the scores do not separate it")
    listed, fpr = int((library >= cut).sum()), false / absent
    centre = (listed - photos * fpr) / max(hits / present - fpr, LEAST_GAP / 2)
    about = np.clip((listed - photos * fprs) / np.maximum(tprs - fprs, 1e-3), 0.5, photos - 0.5)
    noise = about * tprs * (1 - tprs) + (photos - about) * fprs * (1 - fprs)
    counts = about + rng.normal(size=DRAWS) * np.sqrt(noise) / np.maximum(tprs - fprs, 1e-3)
    low, high = np.clip(np.quantile(counts, [tail / 2, 1 - tail / 2]), 0, photos)
    ends = int(np.floor(low)), int(np.ceil(high))
    return LibraryCount(photos, min(max(centre, ends[0]), ends[1]), *ends, confidence)


def best_cut(
    validation: ScoredSplit, sizes: tuple[int, int], library: Numbers
) -> tuple[float, float]:
    """Return the cut at which the library's share is known best, and TPR - FPR there.

    Only validation photos choose it; ``sizes`` of the test photos say how well rates are known.
    """
    cuts, photos = np.unique(validation.scores), len(library)
    hits, false = validation.above(cuts)
    tpr, fpr = (hits + 0.5) / (validation.sizes[0] + 1), (false + 0.5) / (validation.sizes[1] + 1)
    above = _above(library, cuts) / photos
    gap = tpr - fpr
    share = np.clip((above - fpr) / np.maximum(gap, LEAST_GAP), 0, 1)
    present, absent = max(sizes[0], 1), max(sizes[1], 1)
    spread = (1 - share) * fpr * (1 - fpr) * (1 / photos + (1 - share) / absent)
    spread += share * tpr * (1 - tpr) * (1 / photos + share / present)
    best = int(np.argmin(spread / np.maximum(gap, 1e-3) ** 2))
    return float(cuts[best]), float(gap[best])


def _above(scores: Numbers, cuts: Numbers) -> NDArray[np.int64]:
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), cuts, side="left"))


def _rates_at(cut: float, validation: ScoredSplit, test: ScoredSplit | None) -> Rates:
    """Return the Beta laws of TPR (of all photos) and FPR (of test photos) at a cut."""
    with_label, without = [validation] if test is None else [validation, test], test or validation
    hits = sum(int(side.above(np.array([cut]))[0][0]) for side in with_label)
    false, present = int(without.above(np.array([cut]))[1][0]), sum(o.sizes[0] for o in with_label)
    return (hits + 0.5, present - hits + 0.5), (false + 0.5, without.sizes[1] - false + 0.5)


def _share(rates: Rates, library: Numbers, cut: float) -> float:
    """Return the library's share of the label; 0 where the rates do not tell."""
    tpr, fpr = (rate[0] / sum(rate) for rate in rates)
    if tpr - fpr < LEAST_GAP:
        return 0.0
    return float(np.clip((np.mean(library >= cut) - fpr) / (tpr - fpr), 0, 1))


def _percent(share: float) -> str:
    return f"{100 * share:.2g}" if share < 0.995 else "100"
