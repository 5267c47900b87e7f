"""Audit of a tag table: answers about (photo, tag) pairs until the kept tags are guaranteed.

A use is one tag on one photo. An answer "unsure" counts as wrong for every guarantee.

**Phase one** decides which tags are kept. The wrong rate of a tag has the prior w Beta(GOOD) +
(1 - w) Beta(BAD); w, and how much more often uses in each range of scores are wrong, are learned
from all answers. A tag is asked about while that is expected to gain more than it costs. Then the
prefix of tags, by posterior mean, of the largest value is kept. No guarantee rests on this.

**Phase two** tests the kept set S (N uses, W wrong) on new answers. Stratum h (a tag, or a tag and
a range of scores) has R_h uses without an answer and is drawn with probability q_h, then a use of
it at random; y = 1 if that is wrong, and x were known before. With predictions g_h made before,

    Z = [x + sum_h R_h g_h + (y - g_h) R_h / q_h] / N,        E[Z | past] = W / N,

so that under W / N >= a = (floor((1 - level) N) + 1) / N the mean over STAKES of the capitals
prod (1 + c (a - Z)) is a nonnegative supermartingale (Waudby-Smith and Ramdas 2024), which ever
reaches 1 / delta with chance at most delta (Ville). When another set promises more, test number j
starts on new answers, with delta times ``error_share(j, FIRST_TEST)``.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.estimate import percent
from labelwise.decide.list_audit import error_share
from labelwise.errors import DataError
from labelwise.numeric.special import betaln
from labelwise.system.text import counted

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
TOLERANCE = 1e-9

GOOD, BAD = (1.6, 36.0), (3.0, 6.0)  # wrong rates of tags, Beta(wrong, right)
SHARE_GOOD, SHARE_WEIGHT = 0.65, 4.0  # of the tags, and for how many tags this counts
LINE = 0.11  # wrong rate above which a tag is not worth keeping
MOST_FIRST = 10  # answers per tag in phase one
FIRST_FACTORS = np.array([2.2, 1.3, 0.8, 0.45, 0.25])  # wrong rates by range, before any answer
TILT = 2.0  # power at which a tag's own factor moves its odds of being bad
FACTOR_WEIGHT = 2.0  # wrong answers that these count for
MOST_ODDS = 500.0  # in nats


def learned(
    strata: Counts, asked: Counts, wrong: Counts, bayes: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Return per tag the prior chance of a good one and the mean wrong rate; that per stratum."""
    sizes, total, faults = strata.sum(1), asked.sum(1), wrong.sum(1)
    factors, tilt = np.ones(strata.shape[1]), np.zeros(len(sizes))
    if len(factors) > 1:
        rates = posterior(np.full(len(sizes), SHARE_GOOD), bayes, total, faults)
        expected = (asked * rates[:, None]).sum(0)
        factors = wrong.sum(0) + FACTOR_WEIGHT * FIRST_FACTORS
        factors /= expected + FACTOR_WEIGHT
        factors = np.minimum.accumulate(factors)  # higher scores are never worse
        factors /= (factors * strata.sum(0)).sum() / strata.sum()
        tilt = -TILT * np.log(strata @ factors / sizes)
    share, known = SHARE_GOOD, total > 0
    for _ in range(4 if known.any() else 0):
        good = 1 / (1 + (1 - share) / share * np.exp(-bayes[known] - tilt[known]))
        share = (good.sum() + SHARE_WEIGHT * SHARE_GOOD) / (known.sum() + SHARE_WEIGHT)
    shares = 1 / (1 + (1 - share) / share * np.exp(-tilt))
    rates = posterior(shares, bayes, total, faults)
    if len(factors) == 1:
        return shares, rates, rates[:, None]
    own = strata @ factors / sizes
    return shares, rates, np.clip((rates / own)[:, None] * factors, 0.004, 0.9)


def posterior(share: Numbers, bayes: Numbers, asked: Counts, wrong: Counts) -> Numbers:
    """Return the mean wrong rate of tags with these answers."""
    good = 1 / (1 + (1 - share) / share * np.exp(-bayes))
    means = [(prior[0] + wrong) / (sum(prior) + asked) for prior in (GOOD, BAD)]
    return np.asarray(good * means[0] + (1 - good) * means[1])


def log_bayes(asked: Counts, wrong: Counts) -> Numbers:
    """Return log P(answers | a good tag) - log P(answers | a bad tag)."""
    logs = [
        betaln(prior[0] + wrong, prior[1] + asked - wrong) - betaln(*prior) for prior in (GOOD, BAD)
    ]
    return np.asarray(np.clip(logs[0] - logs[1], -MOST_ODDS, MOST_ODDS))


@cache
def worth_asking(allowed: float) -> tuple[Counts, Numbers, Numbers]:
    """Return how dear an answer may be (an index of prices) by prior share, asked, and wrong.

    Backward induction: a tag that is kept gains line - wrong rate, a dropped one nothing.
    """
    weights, prices = np.arange(0.05, 1.0, 0.1), np.append(0.0, np.geomspace(1e-5, 0.1, 40))
    line = allowed * LINE / 0.1
    n, x = np.mgrid[0 : MOST_FIRST + 1, 0 : MOST_FIRST + 1]
    x = np.minimum(x, n)
    means = np.array([posterior(np.full(n.shape, w), log_bayes(n, x), n, x) for w in weights])
    stop = np.maximum(line - means, 0.0)[..., None]
    value = np.repeat(stop[:, MOST_FIRST], len(prices), -1)
    table = np.zeros((len(weights), MOST_FIRST, MOST_FIRST + 1), np.int64)
    for asked in range(MOST_FIRST - 1, -1, -1):
        mean = means[:, asked, :-1, None]
        go = mean * value[:, 1:] + (1 - mean) * value[:, :-1] - prices
        go = np.concatenate([go, go[:, -1:]], 1)
        table[:, asked] = (go > stop[:, asked]).sum(-1)  # prices at which it is worth it
        value = np.maximum(go, stop[:, asked])
    return np.maximum(table - 1, 0), weights, prices


def answers_needed(gain: Numbers | float, rate: Numbers | float, allowed: float) -> Numbers:
    """Return about how many answers win ``gain`` nats against ``allowed`` at this wrong rate."""
    p = np.clip(rate, 1e-4, 1 - 1e-4)
    growth = p * np.log(p / allowed) + (1 - p) * np.log((1 - p) / (1 - allowed))
    return np.asarray(
        np.where(p < allowed, np.maximum(gain, 0) / np.maximum(growth, TOLERANCE), np.inf)
    )


Answer = Literal["yes", "no", "unsure"]
Use = tuple[int, int]  # tag, place among the uses of the tag

ASK_PRICE = (0.00007, 0.00012)  # of all uses, for one answer in phase one; with scores
PRICE = (0.0005, 0.00127)  # of all right uses, for one answer in phase two; with scores
FIRST_TEST = 0.85  # of delta
TESTS = 6
SWITCH = 0.07  # by how much another set must be worth more
STAKES = np.array([0.35, 0.5, 0.65, 0.8])  # of the largest stake
BINS = 5  # ranges of scores
GRID = 401  # shares at which an interval is sought
HOPELESS = 300  # answers (per tag)


@dataclass(frozen=True)
class Precision:
    """Estimate of the share of right uses, with an interval that holds at any stopping time."""

    uses: int
    answered: int
    wrong: int
    unsure: int
    estimate: float | None
    low: float
    high: float
    kept: bool


@dataclass(frozen=True)
class AuditVerdict:
    """What an audit can say now. ``certain``: enough uses were answered that no chance is left."""

    guaranteed: bool
    certain: bool
    kept: tuple[int, ...]
    tags: int
    uses: int
    answers: int
    right_at_least: float
    confidence: float
    per_tag: bool
    finished: bool

    def sentence(self) -> str:
        checked, dropped = counted(self.answers, "answer"), self.tags - len(self.kept)
        if not self.guaranteed:
            why = "no tag set reached it" if self.finished else "more answers are needed"
            return f"Nothing is guaranteed yet: {why} ({checked})."
        level, sure = percent(self.right_at_least), f"{percent(self.confidence)} confidence"
        if self.certain:
            sure = "known, not estimated"
        of = f"of their {self.uses:,} uses"
        if self.per_tag:
            of, sure = "of the uses of each", f"{sure} for each tag"
        return (
            f"{len(self.kept):,} of {self.tags:,} tags can be trusted: at least {level} {of} are "
            f"right ({sure}, {checked}). {dropped:,} {'was' if dropped == 1 else 'were'} dropped."
        )


@dataclass(eq=False)
class _Test:
    """A running test of one set of tags: log capital per stake, and Z - its stakes' history."""

    kept: NDArray[np.bool_]
    delta: float
    log_capital: Numbers = field(default_factory=lambda: np.zeros(len(STAKES)))
    seen: list[tuple[float, float, float]] = field(default_factory=list)  # Z, its least, its most

    @property
    def gained(self) -> float:
        return float(np.logaddexp.reduce(self.log_capital) - np.log(len(STAKES)))


class Audit:
    """Which use to ask about next, and what is known, from the answers so far.

    Everything follows from the table, the seed and the answers: ``Audit(...).resume(answers)`` is
    the audit that was interrupted. ``scores`` (one array per tag) only steer: higher means surer.
    Per tag, one that is expected to take more than ``most`` answers is not asked about again.
    """

    def __init__(
        self,
        uses: Sequence[int],
        *,
        scores: Sequence[Numbers] | None = None,
        seed: int = 0,
        right_at_least: float = 0.9,
        confidence: float = 0.95,
        per_tag: bool = False,
        most: int = HOPELESS,
    ) -> None:
        sizes = np.asarray(uses, np.int64)
        if sizes.ndim != 1 or not len(sizes) or (sizes < 1).any():
            raise DataError("An audit needs at least one tag, and each tag at least one use.")
        if not (0 < right_at_least < 1 and 0 < confidence < 1):
            raise DataError("right_at_least and confidence must lie between 0 and 1.")
        self.sizes, self.seed, self.per_tag = sizes, seed, per_tag
        self.level, self.confidence, self.most = right_at_least, confidence, most
        self.bins = _bins(sizes, scores)
        self.scored = scores is not None
        width = BINS if self.scored else 1
        self.strata = np.array([np.bincount(b, minlength=width) for b in self.bins], np.int64)
        self.asked, self.wrong = np.zeros_like(self.strata), np.zeros_like(self.strata)
        self.unsure = np.zeros(len(sizes), np.int64)
        self.own: dict[int, _Test] = {}  # of the tags that were asked about
        self.test: _Test | None = None
        self.tests, self.count, self.done = 0, 0, False
        self._bayes = np.zeros(len(sizes))  # log odds of good over bad, by the answers
        self._beliefs = learned(self.strata, self.asked, self.wrong, self._bayes)
        self._orders: dict[tuple[int, int], Counts] = {}
        self._chances = np.empty(0)
        self._next: tuple[int, int] | None = None  # tag and range of scores of the question
        self._choose()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Audit":
        """Return a copy to look ahead with; what never changes is shared."""
        other = copy(self)
        for name in ("asked", "wrong", "unsure", "_bayes"):
            setattr(other, name, getattr(self, name).copy())
        other.own = {tag: replace(test, seen=[*test.seen]) for tag, test in self.own.items()}
        other.test = None if self.test is None else replace(self.test, seen=[*self.test.seen])
        return other

    @property
    def question(self) -> Use | None:
        """The (tag, use) to ask about now; None once there is nothing left to ask."""
        if self._next is None:
            return None
        tag, bin_ = self._next
        if self._next not in self._orders:
            members = np.flatnonzero(self.bins[tag] == bin_)
            rng = np.random.default_rng((self.seed, 2, tag, bin_))
            self._orders[self._next] = rng.permutation(members)
        return tag, int(self._orders[self._next][self.asked[tag, bin_]])

    def answer(self, value: Answer) -> None:
        if self._next is None:
            raise DataError("The audit asks nothing more.")
        if value not in ("yes", "no", "unsure"):
            raise DataError(f"An answer is yes, no or unsure, got {value!r}.")
        tag, bin_ = self._next
        wrong = value != "yes"
        if tag not in self.own:
            alone = np.repeat(np.arange(len(self.sizes))[:, None] == tag, self.strata.shape[1], 1)
            self.own[tag] = _Test(alone, 1 - self.confidence)
        self._bet(self.own[tag], tag, bin_, wrong)
        if self.test is not None and self.test.kept[tag, bin_]:
            self._bet(self.test, tag, bin_, wrong)
        self.asked[tag, bin_] += 1
        self.wrong[tag, bin_] += wrong
        self.unsure[tag] += value == "unsure"
        self._bayes[tag] = log_bayes(self.asked[tag].sum(), self.wrong[tag].sum())
        self._beliefs = learned(self.strata, self.asked, self.wrong, self._bayes)
        self.count += 1
        self._choose()

    def resume(self, answers: Mapping[Use, Answer]) -> "Audit":
        """Replay stored answers, in whatever order they are stored, as far as they go."""
        while (use := self.question) is not None and use in answers:
            self.answer(answers[use])
        return self

    def verdict(self) -> AuditVerdict:
        kept = self.kept()
        tags = np.flatnonzero(kept.any(1)).tolist()
        sets = [self.own[k].kept for k in tags] if self.per_tag else [kept]
        certain = bool(tags) and all(self._certain(tested) for tested in sets)
        reached = self.per_tag or certain or self._reached(self.test)
        return AuditVerdict(
            bool(tags) and reached,
            certain,
            tuple(tags),
            len(kept),
            int(self.strata[kept].sum()),
            self.count,
            self.level,
            self.confidence,
            self.per_tag,
            finished=self._next is None,
        )

    def kept(self) -> NDArray[np.bool_]:
        """Mask (K, ranges of scores) of what is kept now; in phase one what would be."""
        if self.per_tag:
            made = np.array([self._reached(self.own.get(k)) for k in range(len(self.sizes))])
            return np.repeat(made[:, None], self.strata.shape[1], 1)
        if self.test is not None:
            return self.test.kept
        return self._best_set(0)[0]

    def precision(self, tag: int, kept: NDArray[np.bool_] | None = None) -> Precision:
        """Return the share of right uses of a tag; ``kept`` is :meth:`kept` of all."""
        is_kept = bool((self.kept() if kept is None else kept)[tag].any())
        uses, test = int(self.sizes[tag]), self.own.get(tag)
        if test is None:
            return Precision(uses, 0, 0, 0, None, 0.0, 1.0, is_kept)
        answered, wrong = int(self.asked[tag].sum()), int(self.wrong[tag].sum())
        unsure = int(self.unsure[tag])
        least, most = wrong - unsure, uses - answered + wrong
        low, high = _interval(test.seen, test.delta)
        low, high = max(low - unsure / uses, least / uses), min(high, most / uses)
        centre = wrong / answered
        if test.seen:
            centre = float(np.mean([z for z, _, _ in test.seen]))
        if answered == uses:
            low, high, centre = least / uses, most / uses, (least + wrong) / 2 / uses
        centre = 1 - min(max(centre, low), high)
        return Precision(uses, answered, wrong, unsure, centre, 1 - high, 1 - low, is_kept)

    def unanswered_wrong(self) -> Numbers:
        """Return the estimated share of wrong uses (K, ranges of scores) without an answer.

        Beliefs of a tested set are scaled so that its wrong uses are N mean(Z), which is unbiased.
        """
        rates, left = self._beliefs[2].copy(), self.strata - self.asked
        for test in self.own.values() if self.per_tag else [self.test]:
            if test is not None and test.seen:
                inside = test.kept
                total = np.mean([z for z, _, _ in test.seen]) * self.strata[inside].sum()
                total -= self.wrong[inside].sum()
                rates[inside] *= total / max((left * rates)[inside].sum(), TOLERANCE)
        return np.clip(rates, 0.0, 1.0)

    def _choose(self) -> None:
        """Choose the stratum of the next question; may end phase one or start another test."""
        self._next = None
        if self.done:
            return
        left = self.sizes - self.asked.sum(1)
        if self.per_tag:
            self._choose_per_tag(left)
            return
        if self._certain(np.ones(self.strata.shape, bool)) or not left.any():
            self._settle()
            return
        if self.test is None:
            table, weights, prices = worth_asking(1 - self.level)
            asked, at = self.asked.sum(1), np.abs(weights - self._beliefs[0][:, None]).argmin(1)
            seen = np.minimum(asked, MOST_FIRST - 1)
            worth = prices[table[at, seen, np.minimum(self.wrong.sum(1), seen)]]
            wanted = worth > ASK_PRICE[self.scored] * self.sizes.sum() / self.sizes
            wanted &= (left > 0) & (asked < MOST_FIRST)
            if wanted.any():
                rounds = np.where(wanted, asked, np.iinfo(np.int64).max)
                first = np.flatnonzero(rounds == rounds.min())
                self._draw(first[np.argmax(self.sizes[first])])
                return
            self.test = self._new_test(self._best_set(0)[0])
        elif self._reached(self.test):
            self.done = True
            return
        else:
            self.test = self._reconsidered(self.test)
        if not (self.strata - self.asked)[self.test.kept].any():
            self._settle()
        elif self._certain(self.test.kept):
            self.done = True
        else:
            self._draw(self.test.kept)

    def _choose_per_tag(self, left: Counts) -> None:
        """Ask about the tag that is expected to take the fewest further answers."""
        rate = self._beliefs[1]
        limit = -np.log(1 - self.confidence)
        gained, new = np.zeros(len(left)), self.asked.sum(1) < MOST_FIRST
        gained[list(self.own)] = [test.gained for test in self.own.values()]
        need = np.minimum(answers_needed(limit + 1 - gained, rate, 1 - self.level), left)
        need[[k for k, test in self.own.items() if self._reached(test)]] = np.inf
        need[left == 0] = np.inf
        need[new & (left > 0)] = np.minimum(need[new & (left > 0)], self.most)
        self.done = bool(need.min() > self.most)
        if not self.done:
            self._draw(np.argmin(need))

    def _draw(self, inside: Any) -> None:
        left, width = np.zeros(self.strata.shape), self.strata.shape[1]
        left[inside] = (self.strata - self.asked)[inside]
        chances = left / left.sum()
        uniform = np.random.default_rng((self.seed, 1, self.count // 1024)).random(1024)
        flat = chances.ravel().cumsum()
        choice = int(np.searchsorted(flat, uniform[self.count % 1024] * flat[-1], "right"))
        choice = min(choice, int(np.flatnonzero(chances.ravel())[-1]))
        self._chances, self._next = chances, divmod(choice, width)

    def _bet(self, test: _Test, tag: int, part: int, wrong: bool) -> None:
        """Multiply the capitals of a test by what one answer pays."""
        inside = test.kept
        left = np.where(inside, self.strata - self.asked, 0)
        uses, known = int(self.strata[inside].sum()), int(self.wrong[inside].sum())
        chances = np.where(inside, self._chances, 0.0)
        reached = chances > 0
        if (left[~reached] > 0).any():
            return  # a draw that could not reach all of the set says nothing of it
        weights = left / np.where(reached, chances / chances.sum(), 1.0)
        g = np.where(inside, self._beliefs[2], 0.0)
        base = (known + float((left * g).sum())) / uses
        lows, highs = base - g * weights / uses, base + (1 - g) * weights / uses
        low, high = float(lows[reached].min()), float(highs[reached].max())
        z = float(highs[tag, part] if wrong else lows[tag, part])
        test.seen.append((z, low, high))
        null = (np.floor((1 - self.level) * uses + TOLERANCE) + 1) / uses
        stakes = STAKES / max(high - null, TOLERANCE)
        test.log_capital = test.log_capital + _log(1 + stakes * (null - z))

    def _best_set(self, test: int) -> tuple[NDArray[np.bool_], float]:
        """Return the set that is most worth a new test, and its value."""
        rates, sizes = self._beliefs[2].ravel(), self.strata.ravel()
        order = np.argsort(rates, kind="stable")
        order = order[sizes[order] > 0]
        uses, wrong = sizes[order].cumsum(), (sizes * rates)[order].cumsum()
        value = self._value(
            uses, wrong, 1 - np.log((1 - self.confidence) * error_share(test, FIRST_TEST))
        )
        size = int(np.argmax(value)) + 1
        mask = np.zeros(len(rates), bool)
        mask[order[:size]] = True
        return mask.reshape(self.strata.shape), float(value[size - 1])

    def _value(self, uses: Counts, wrong: Numbers, gain: float) -> Numbers:
        """Return the share of all right uses, less the price of the answers that win ``gain``."""
        right = (self.strata * (1 - self._beliefs[2])).sum()
        needed = answers_needed(gain, wrong / uses, 1 - self.level)
        return np.asarray((uses - wrong) / right - PRICE[self.scored] * needed)

    def _new_test(self, kept: NDArray[np.bool_]) -> _Test:
        self.tests += 1
        return _Test(kept, (1 - self.confidence) * error_share(self.tests - 1, FIRST_TEST))

    def _reconsidered(self, test: _Test) -> _Test:
        """Return another test where a smaller set is worth more than this one's, else this."""
        if self.tests >= TESTS or len(test.seen) < 10:
            return test
        inside, limit = test.kept, 1 - np.log(test.delta) - test.gained
        wrong = (self.strata * self._beliefs[2])[inside].sum()
        value = self._value(self.strata[inside].sum(), wrong, limit)
        other, best = self._best_set(self.tests)
        better = best > value + SWITCH and (other != inside).any()
        return self._new_test(other) if better else test

    def _settle(self) -> None:
        """End with the largest set that is known to be good even if all unanswered are wrong."""
        self.done = True
        sizes, worst = self.strata.ravel(), (self.strata - self.asked + self.wrong).ravel()
        order = np.argsort(worst / np.maximum(sizes, 1), kind="stable")
        order = order[sizes[order] > 0]
        good = worst[order].cumsum() <= (1 - self.level) * sizes[order].cumsum() + TOLERANCE
        if good.any():
            known = np.zeros(len(sizes), bool)
            known[order[: int(np.flatnonzero(good)[-1]) + 1]] = True
            self.test = _Test(known.reshape(self.strata.shape), 1 - self.confidence)

    def _reached(self, test: _Test | None) -> bool:
        if test is None:
            return False
        return bool(test.gained >= -np.log(test.delta)) or self._certain(test.kept)

    def _certain(self, kept: NDArray[np.bool_]) -> bool:
        """Whether the set holds few enough wrong uses even if all others are wrong."""
        uses = int(self.strata[kept].sum())
        worst = uses - int(self.asked[kept].sum()) + int(self.wrong[kept].sum())
        return bool(worst <= (1 - self.level) * uses + TOLERANCE)


def _bins(sizes: Counts, scores: Sequence[Numbers] | None) -> list[Counts]:
    """Return the range of scores of each use, per tag."""
    if scores is None:
        return [np.zeros(n, np.int64) for n in sizes]
    values = [np.asarray(score, np.float64) for score in scores]
    if [len(value) for value in values] != sizes.tolist():
        raise DataError("Scores must be one per use of each tag.")
    everything = np.concatenate(values)
    if not np.isfinite(everything).all():
        raise DataError("Scores must be finite numbers.")
    edges = np.quantile(everything, np.arange(1, BINS) / BINS)
    return [np.searchsorted(edges, value, side="right") for value in values]


def _interval(seen: Sequence[tuple[float, float, float]], delta: float) -> tuple[float, float]:
    """Return the shares that bets on Z, up and down, leave standing (a confidence sequence)."""
    grid, stakes = np.linspace(0, 1, GRID), STAKES[:, None]
    up, down = np.zeros((len(STAKES), GRID)), np.zeros((len(STAKES), GRID))
    for z, low, high in seen:
        down += _log(1 + stakes / np.maximum(high - grid, TOLERANCE) * (grid - z))
        up += _log(1 + stakes / np.maximum(grid - low, TOLERANCE) * (z - grid))
    limit = np.log(2 * len(STAKES) / delta)
    few = np.flatnonzero(np.logaddexp.reduce(up, 0) < limit)  # not shown to be more than this
    many = np.flatnonzero(np.logaddexp.reduce(down, 0) < limit)
    low_end = grid[max(few[0] - 1, 0)] if len(few) else 1.0
    high_end = grid[min(many[-1] + 1, GRID - 1)] if len(many) else 0.0
    return float(low_end), float(high_end)


def _log(factor: Numbers) -> Numbers:
    return np.asarray(np.log(np.maximum(factor, TOLERANCE)))
