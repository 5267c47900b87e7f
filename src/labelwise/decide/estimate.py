"""How many: a count from probabilities and the answers about photos drawn at random.

N photos have probabilities p; m of them, drawn at random without replacement, were answered (y).
The share that carries what was asked is estimated as prediction-powered inference does (PPI++,
Angelopoulos et al. 2023; survey statistics calls it the regression estimator):

    share = mean over all of  l p  +  mean over the answered of  (y - l p),
    l = cov(y, p) / var(p)  among the answered

Its square error is (1 - m / N) / m times the variance of y - l p, grown by the error of l, with
quantiles of Student's law. A sample may hold none of the rare photos that the model misses; so for
the interval, one yes and one no at the mean p are added to the answers (share becomes
(m share + 1) / (m + 2)), and two of each to the variance. The method is fixed by m and p alone:

    exact               the counts W of N under which as many or as few yes among m drawn without
                        replacement have a chance above 2.5 % each way (hypergeometric)
    prediction-powered  for m > 100, and in one group from 50 on, if p expects 5 yes and 5 no among
                        them; within what the answers prove

An answer "unsure" counts as no for the lower end and as yes for the upper one. Groups are drawn
from separately: the total adds their estimates up, with the square errors added (each group
weighted by its size, l common) or, from 100 answers or fewer, by bets on all G groups:

    E(W) = mean over laws of  prod_g marginal_g(x_g, m_g)  /  prod_g P_g(these answers | W_g)
    P = [W]_x [N - W]_(m - x) / [N]_m,    [n]_k = n (n - 1) ... (n - k + 1)

(Waudby-Smith and Ramdas 2020), which for the true W reaches 1 / alpha with a chance of at most
alpha. The laws are beta laws around the share that the model expects, or a third or three times its
odds, and Jeffreys'. The interval holds { T : min over W_1 + ... + W_G = T of E(W) < 1 / alpha }.
-log P is convex in W, so the best splits take the least steps first.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Mask, Numbers, to_numpy
from labelwise.base.special import (
    betaincinv,
    betaln,
    log_choose,
    log_falling,
    logsumexp,
    stdtrit,
)
from labelwise.base.text import counted
from labelwise.errors import DataError

LAWS = ((1.0, 20.0), (1.0, 200.0), (1 / 3, 20.0), (3.0, 20.0))  # factor of the odds, weight
LEAST_SHARE = 0.002


def betting_total_bounds(
    groups: Sequence[tuple[int, int, int, float]], confidence: float
) -> tuple[int, int]:
    """Return the least and the most photos of all groups together that can be yes.

    A group is (yes, drawn photos, all photos, the share of all that the model expects).
    """
    chances, marginals = [], []
    for yes, drawn, photos, expected in groups:
        count = np.arange(yes, photos - drawn + yes + 1, dtype=np.float64)
        ways = log_falling(count, yes) + log_falling(photos - count, drawn - yes)
        chances.append(ways - log_falling(photos, drawn))  # log P(these answers | W)
        share = min(max(expected, LEAST_SHARE), 1 - LEAST_SHARE)
        laws = [(0.5, 0.5)]
        for factor, weight in LAWS:
            mean = factor * share / (1 - share + factor * share)
            laws.append((weight * mean, weight * (1 - mean)))
        a, b = np.array(laws).T
        marginals.append(betaln(a + yes, b + drawn - yes) - betaln(a, b))
    paid = float(logsumexp(np.sum(marginals, axis=0))) - np.log(1 + len(LAWS))
    steps = np.sort(np.concatenate([-np.diff(chance) for chance in chances]))
    least = paid - sum(float(chance[0]) for chance in chances) + np.append(0.0, steps.cumsum())
    held = np.flatnonzero(least < -np.log1p(-confidence))
    first = sum(group[0] for group in groups)
    return first + int(held[0]), first + int(held[-1])


EstimateMethod = Literal["exact", "prediction-powered", "betting", "all answered"]

EXACT_UP_TO = 100
FEWEST_POWERED, EXPECTED = 50, 5.0  # answers, and yes and no among them


@dataclass(frozen=True)
class CountEstimate:
    """How many of ``photos`` carry what was asked; ``answered`` of them were drawn at random."""

    group: str
    photos: int
    answered: int
    yes: int
    unsure: int
    count: float
    low: float
    high: float
    confidence: float
    method: EstimateMethod

    def sentence(self, what: str) -> str:
        of = f"{self.photos:,} photos" + (f" of {self.group}" if self.group else "")
        unsure = f", {self.unsure:,} unsure" if self.unsure else ""
        return (
            f"about {self.count:,.0f} of {of} match {what} ({self.confidence:.0%} interval: "
            f"{self.low:,.0f} to {self.high:,.0f}; {self.yes:,} of {self.answered:,} photos drawn "
            f"at random match{unsure}; {self.method})"
        )


@dataclass(frozen=True, eq=False)
class Answered:
    """A group of photos: the probabilities (N,) of all, which were drawn, and their answers."""

    probs: Numbers
    drawn: NDArray[np.int64]  # places (m,) among the N photos
    answers: Numbers  # (m,) 1, 0 or NaN for unsure
    group: str = ""

    @classmethod
    def read(cls, probs: Array, drawn: Array, answers: Array, group: str = "") -> "Answered":
        p = np.asarray(to_numpy(probs), np.float64)
        rows, y = np.asarray(to_numpy(drawn), np.int64), np.asarray(to_numpy(answers), np.float64)
        if p.ndim != 1 or not len(p) or not ((p >= 0) & (p <= 1)).all():
            raise DataError(f"probabilities must be one per photo between 0 and 1, got {p.shape}")
        if rows.shape != y.shape or len(np.unique(rows)) != len(rows):
            raise DataError("each photo that was drawn must have one answer")
        if len(rows) and not ((rows >= 0) & (rows < len(p))).all():
            raise DataError(f"photos that were drawn must be among the {len(p)} of the group")
        if not (np.isnan(y) | (y == 0) | (y == 1)).all():
            raise DataError("answers must be 1, 0 or NaN for unsure")
        return cls(p, rows, y, group)

    @property
    def yes(self) -> int:
        return int(np.nansum(self.answers))

    @property
    def unsure(self) -> int:
        return int(np.isnan(self.answers).sum())


def estimate_count(part: Answered, confidence: float = 0.95) -> CountEstimate:
    """Estimate how many photos of one group match, from answers about random ones of them."""
    return estimate_total([part], confidence, part.group)


def estimate_total(
    parts: Sequence[Answered], confidence: float = 0.95, group: str = ""
) -> CountEstimate:
    """Estimate how many photos match in all groups together, each with its own random sample."""
    if not 0 < confidence < 1:
        raise DataError(f"confidence must lie between 0 and 1, got {confidence}")
    answered, photos = sum(len(s.drawn) for s in parts), sum(len(s.probs) for s in parts)
    yes, unsure = sum(s.yes for s in parts), sum(s.unsure for s in parts)
    ends = [
        [replace(s, answers=np.nan_to_num(s.answers, nan=unsure_as)) for s in parts]
        for unsure_as in (0.0, 1.0)
    ]
    method: EstimateMethod = "all answered"
    if answered == photos:
        low, high = float(yes), float(yes + unsure)
        middle = (low + high) / 2
    elif _is_powered(parts):
        method = "prediction-powered"
        first, second = (_powered(end, confidence) for end in ends)
        middle = (first[0] + second[0]) / 2
        low, high = max(first[1], yes), min(second[2], photos - answered + yes + unsure)
        middle = min(max(middle, low), high)
    else:
        method = "exact" if len(parts) == 1 else "betting"
        facts = [
            [(s.yes, len(s.drawn), len(s.probs), float(s.probs.mean())) for s in end]
            for end in ends
        ]
        (low, _), (_, high) = (
            exact_count_bounds(*groups[0][:3], confidence)
            if method == "exact"
            else betting_total_bounds(groups, confidence)
            for groups in facts
        )
        halves = [len(s.probs) * (2 * s.yes + s.unsure) / (2 * max(len(s.drawn), 1)) for s in parts]
        middle = min(max(sum(halves), low), high)
    counts = answered, yes, unsure
    return CountEstimate(group, photos, *counts, middle, low, high, confidence, method)


def exact_count_bounds(yes: int, drawn: int, photos: int, confidence: float) -> tuple[int, int]:
    """Return the exact interval of how many of ``photos`` match, from a random sample of them.

    Each end is exceeded with a chance of at most (1 - confidence) / 2.

    >>> exact_count_bounds(2, 10, 100, 0.95)
    (3, 54)
    """
    alpha = (1 - confidence) / 2
    low, high = yes, photos - drawn + yes
    counts = range(low, high)
    least = bisect_left(counts, True, key=lambda n: _tail(n, photos, drawn, yes, drawn) > alpha)
    most = bisect_left(
        counts, True, key=lambda n: _tail(low + high - n, photos, drawn, 0, yes) > alpha
    )
    return low + least, high - most


def _is_powered(parts: Sequence[Answered]) -> bool:
    answered = sum(len(s.drawn) for s in parts)
    if answered > EXACT_UP_TO or len(parts) > 1 or answered < FEWEST_POWERED:
        return answered > EXACT_UP_TO and all(len(s.drawn) >= 2 for s in parts)
    return EXPECTED <= answered * float(parts[0].probs.mean()) <= answered - EXPECTED


def _powered(parts: Sequence[Answered], confidence: float) -> tuple[float, float, float]:
    """Return the count and the ends of its interval, from two or more answers in each group."""
    photos = sum(len(stratum.probs) for stratum in parts)
    weights = np.array([len(stratum.probs) / photos for stratum in parts])
    sizes = np.array([len(stratum.drawn) for stratum in parts])
    left = 1 - sizes / [len(stratum.probs) for stratum in parts]
    own = [stratum.probs[stratum.drawn] for stratum in parts]
    gaps = np.array([s.probs.mean() - p.mean() for s, p in zip(parts, own, strict=True)])
    scale = weights**2 * left / sizes  # what a variance within a group counts for

    def within(x: Sequence[Numbers], y: Sequence[Numbers]) -> Numbers:
        pairs = ((a - a.mean(), b - b.mean()) for a, b in zip(x, y, strict=True))
        return np.array([float(a @ b) / (len(a) - 1) for a, b in pairs])

    answers = [stratum.answers for stratum in parts]
    spread = float(scale @ within(own, own))
    slope = float(scale @ within(own, answers)) / spread if spread > 0 else 0.0
    rest = [y - slope * p for y, p in zip(answers, own, strict=True)]
    answered = int(sizes.sum())
    degrees = answered - len(parts) - 1
    share = float(weights @ [y.mean() for y in answers]) + slope * float(weights @ gaps)
    centre, share = share, (answered * share + 1) / (answered + 2)
    pairs = 2 * ((1 - share) ** 2 + share**2)
    variance = (float(scale @ within(rest, rest)) * (degrees + 1) + scale.sum() * pairs) / degrees
    if spread > 0:  # the error of the slope, where the answered are not like all in p
        variance *= 1 + float(weights @ gaps) ** 2 / spread / degrees
    reach = float(stdtrit(degrees, (1 + confidence) / 2)) * np.sqrt(variance)
    return photos * centre, photos * (share - reach), photos * (share + reach)


def _tail(count: int, photos: int, drawn: int, least: int, most: int) -> float:
    """Return P(least <= X <= most) for X yes among ``drawn``, ``count`` of all photos being yes."""
    lowest, highest = max(least, drawn - (photos - count)), min(most, drawn, count)
    if lowest > highest:
        return 0.0
    k = np.arange(lowest, highest + 1)
    logs = log_choose(count, k) + log_choose(photos - count, drawn - k) - log_choose(photos, drawn)
    return float(np.exp(min(np.logaddexp.reduce(logs), 0.0)))


@dataclass(frozen=True)
class Recall:
    """How much of a label was tagged, and how many photos were missed, from random photos."""

    photos: int
    answered: int
    tagged: int
    missed: int
    recall: float | None
    low: float
    high: float
    missing: float
    least_missing: int
    most_missing: int

    def sentence(self, name: str) -> str:
        missing = f"about {self.missing:,.0f} photos with {name} were missed "
        missing += f"({self.least_missing:,} to {self.most_missing:,})"
        if self.recall is None:
            return f"{missing}; none of {self.answered:,} random photos shows {name}"
        share = f"{percent(self.recall)} of the photos with {name} are tagged"
        return f"{share} ({percent(self.low)} to {percent(self.high)}); {missing}"


def recall_of(
    photos: int,
    uses: int,
    untagged: tuple[int, int],
    tagged: tuple[int, int],
    *,
    unsure: int = 0,
    confidence: float = 0.95,
) -> Recall:
    """Return recall of a tag on ``uses`` of ``photos``, from photos drawn at random.

    ``untagged`` and ``tagged`` are (drawn, of them showing the label); Clopper and Pearson's
    interval contains the hypergeometric one. ``unsure`` untagged photos widen what was missed
    upwards, and recall downwards.
    """
    (drawn, missed), (drawn_tagged, hits) = untagged, tagged
    if not (0 <= missed + unsure <= drawn <= photos - uses and 0 <= hits <= drawn_tagged <= uses):
        raise DataError("The drawn photos do not fit the table.")
    least, _ = exact_count_bounds(missed, drawn, photos - uses, confidence)
    _, most = exact_count_bounds(missed + unsure, drawn, photos - uses, confidence)
    tail, shown = (1 - confidence) / 2, hits + missed + unsure
    low = float(betaincinv(hits, missed + unsure + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, missed, 1 - tail)) if missed else 1.0
    centre = missed + unsure / 2
    missing = centre * (photos - uses) / drawn if drawn else 0.0
    recall = hits / (hits + centre) if shown else None
    answered = drawn + drawn_tagged
    return Recall(photos, answered, hits, missed, recall, low, high, missing, least, most)


def percent(share: float) -> str:
    """Return a share as it is shown, such as 12.5 %."""
    return f"{100 * share:.3g} %"


# Estimate of how much of a search result is wrong, and of a label's count, under label shift.
#
# Precision above a cut moves with the label's share. The rates at which photos without the label
# (FPR) and with it (TPR) score above the cut do not, as long as the pictures are alike.
#
# 1. *Validation* photos set the cut: the lowest score c of the library, at least five of them with
#    the label above it, with FPR(c) N (1 - s) / L(c) <= wrong_at_most. N is the library, L(c) its
#    photos above c, s = (L / N - FPR) / (TPR - FPR) its share, at the cut where it is known best.
# 2. *Test* photos judge it: f of m photos without the label score above c. The wrong photos W of
#    the list follow BetaBinomial(N (1 - s), f + 1/2, m - f + 1/2), given W <= L, mixed over the
#    doubt in s. A 95 % interval holds the middle 97 % of that law.
#
# The count draws FPR, TPR from their Beta laws and solves L = count TPR + (N - count) FPR + noise.

Rates = tuple[tuple[float, float], tuple[float, float]]  # Beta laws of TPR and FPR
FEWEST_ABSENT = 50  # test photos without the label
FEWEST_PRESENT = 5  # photos with the label, for a count
LEAST_GAP = 0.15  # between TPR and FPR, for a count
FEWEST_HITS = 5  # validation photos with the label above the cut
AIM = 0.84  # of the share asked for: the longest list that seems to keep it is longer by luck
FEWEST_LISTED = 10  # photos of a list that is estimated
WIDEST = 0.5  # interval of its wrong share: beyond it, nothing is said
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
        if self.high - self.low > WIDEST:
            ends = f"between {_percent(self.low)} and {_percent(self.high)} %"
            words = f"No estimate: {ends} of this list may be wrong."
            return Statement("none", words, None, self.low, self.high)
        score = "scores" if self.test_wrong == 1 else "score"
        words = (
            f"About {_percent(self.wrong)} % of this list of {counted(self.listed, 'photo')} is "
            f"wrong ({100 * self.confidence:.3g} % interval: {_percent(self.low)} to "
            f"{_percent(self.high)} %): {self.test_wrong:,} of {self.test_absent:,} {known} photos "
            f"that do not match {score} this high."
        )
        return Statement("estimate", words, self.wrong, self.low, self.high)

    def without(self, found: int) -> "ListEstimate":
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
    for part, known in (("test", test), ("validation", validation)):
        if known.sizes[1] < FEWEST_ABSENT:
            there = f"{known.sizes[1]} {part} photos, counted once per group, are without it"
            return NoEstimate(f"{there}; {FEWEST_ABSENT} are needed")
    if not validation.sizes[0]:
        return NoEstimate("no validation photo shows it")
    cuts = np.unique(np.asarray(library, np.float64))[::-1]
    hits, false = validation.above(cuts)
    best = best_cut(validation, test.sizes, library)[0]
    share = _share(_rates_at(best, validation, None), library, best)
    expected = (false + 0.5) / (validation.sizes[1] + 1) * len(library) * (1 - share)
    expected /= _above(library, cuts)
    fits = np.flatnonzero((expected <= AIM * wrong_at_most) & (hits >= FEWEST_HITS))
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


def best_cut(known: ScoredSplit, sizes: tuple[int, int], library: Numbers) -> tuple[float, float]:
    """Return the validation photos' cut at which the share is known best, and TPR - FPR there."""
    # ``sizes`` of the test photos only say how well rates are known.
    cuts, photos = np.unique(known.scores), len(library)
    hits, false = known.above(cuts)
    tpr, fpr = (hits + 0.5) / (known.sizes[0] + 1), (false + 0.5) / (known.sizes[1] + 1)
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
    with_label, without = [validation] if test is None else [validation, test], test or validation
    hits = sum(int(side.above(np.array([cut]))[0][0]) for side in with_label)
    false, present = int(without.above(np.array([cut]))[1][0]), sum(o.sizes[0] for o in with_label)
    return (hits + 0.5, present - hits + 0.5), (false + 0.5, without.sizes[1] - false + 0.5)


def _share(rates: Rates, library: Numbers, cut: float) -> float:
    """Estimate which share of the library shows the label: (share above - FPR) / (TPR - FPR).

    0 where the two rates are equal, which tells nothing.
    """
    tpr, fpr = (rate[0] / sum(rate) for rate in rates)
    if tpr - fpr < LEAST_GAP:
        return 0.0
    return float(np.clip((np.mean(library >= cut) - fpr) / (tpr - fpr), 0, 1))


def _percent(share: float) -> str:
    return f"{100 * share:.2g}" if share < 0.995 else "100"
