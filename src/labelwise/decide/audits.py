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

**Tags are dropped while S is tested**: those with more wrong answers than right ones, or whose own
interval is below the level. With n uses left, and x uses known to be wrong among the dropped ones,
more than (1 - level) n of what is left are wrong only if W is more than that plus x. The capital
grows with a, so it rules out all shares above one that it rules out, at every moment at once: which
tags are dropped, and when, may depend on all answers.
"""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Numbers
from labelwise.base.special import betaln, log_falling
from labelwise.base.text import counted
from labelwise.decide.estimate import percent
from labelwise.decide.promises import Promise, check_levels, promised_today
from labelwise.errors import DataError

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
EM = 15  # steps that learn the share of good tags
NEAR, NEAR_ASKED = 0.85, 5  # of the allowed share, after so many answers: a tag that is lost


def learned(
    strata: Counts, asked: Counts, wrong: Counts, bayes: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Return what the answers of all tags say of each: empirical Bayes, as in the module's text.

    ``strata``, ``asked`` and ``wrong`` (K, ranges) count uses, answers and wrong answers; ``bayes``
    (K,) is the log-odds of good over bad tags by their own answers (:func:`log_bayes`). The
    results are each tag's chance of being good before its own answers (K,), its expected wrong
    rate (K,), and that rate in each range of scores (K, ranges). The share of good tags is
    learned by EM, the factors of the ranges as the ratio of observed and expected wrong answers.
    """
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
    odds_bad = np.exp(-bayes[known] - tilt[known])
    for _ in range(EM if known.any() else 0):
        good = 1 / (1 + (1 - share) / share * odds_bad)
        share = (good.sum() + SHARE_WEIGHT * SHARE_GOOD) / (known.sum() + SHARE_WEIGHT)
    shares = 1 / (1 + (1 - share) / share * np.exp(-tilt))
    rates = posterior(shares, bayes, total, faults)
    if len(factors) == 1:
        return shares, rates, rates[:, None]
    per_use = rates / (strata @ factors / sizes)
    return shares, rates, np.clip(per_use[:, None] * factors, 0.004, 0.9)


def posterior(share: Numbers, bayes: Numbers, asked: Counts, wrong: Counts) -> Numbers:
    """Return the expected wrong rate (K,) of tags after ``asked`` answers, ``wrong`` of them "no".

    ``share`` is the chance of a good tag before these answers, ``bayes`` their log Bayes factor.
    """
    good = 1 / (1 + (1 - share) / share * np.exp(-bayes))
    means = [(prior[0] + wrong) / (sum(prior) + asked) for prior in (GOOD, BAD)]
    return np.asarray(good * means[0] + (1 - good) * means[1])


def log_bayes(asked: Counts, wrong: Counts) -> Numbers:
    """Return log P(answers | a good tag) - log P(answers | a bad tag)."""
    right = asked - wrong
    good, bad = (betaln(a + wrong, b + right) - betaln(a, b) for a, b in (GOOD, BAD))
    return np.asarray(np.clip(good - bad, -MOST_ODDS, MOST_ODDS))


@cache
def worth_asking(allowed: float) -> tuple[Counts, Numbers, Numbers]:
    """Return when an answer about a tag is worth its price: a table, its shares and its prices.

    ``table[i, n, x]`` is the place in the prices of the highest price at which one more answer is
    worth it, for a tag that is good with chance ``shares[i]``, of whose n answers x were wrong.
    """
    # Backward induction: a tag that is kept gains line - wrong rate, a dropped one nothing.
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
    """Return about how many answers rule out that a share ``allowed`` of the uses is wrong.

    Where a share ``rate`` is wrong, each answer adds the relative entropy of ``rate`` and
    ``allowed`` to the log capital of a bet, which has to gain ``gain`` (Kelly 1956). Infinite
    where ``rate`` is not below ``allowed``.
    """
    p = np.clip(rate, 1e-4, 1 - 1e-4)
    growth = p * np.log(p / allowed) + (1 - p) * np.log((1 - p) / (1 - allowed))
    needed = np.maximum(gain, 0) / np.maximum(growth, TOLERANCE)
    return np.asarray(np.where(p < allowed, needed, np.inf))


Answer = Literal["yes", "no", "unsure"]
Use = tuple[int, int]  # tag, place among the uses of the tag

ASK_PRICE = (0.00011, 0.00018)  # of all uses of good tags, for one answer in phase one; with scores
PRICE = (0.0008, 0.0016)  # of all uses of good tags, for one answer in phase two; with scores
FIRST_TEST = 0.85  # of delta
TESTS = 6
PATIENCE = 250.0  # answers after which one more is twice as dear
SWITCH = 0.07  # by how much another set must be worth more
STAKES = np.array([0.35, 0.5, 0.65, 0.8])  # of the largest stake
BINS = 5  # ranges of scores
GRID = 401  # shares at which an interval is sought
HOPELESS = 300  # answers (per tag)
FEW_LOOKS = 4  # answers about a tag before a test, as forecast
KEPT_RATE = 0.4  # most wrong uses of what is kept in the end, as a share of those allowed
FIRST_FORECAST = 20  # answers before it
FORECAST, FORECAST_SLACK = (0.33, 2.4), 25  # of the expected answers; and answers at both ends


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
        level, verb = percent(self.right_at_least), "is" if len(self.kept) == 1 else "are"
        if not self.guaranteed:
            if self.finished:
                return f"Nothing is guaranteed: no set of tags reached {level} ({checked})."
            return f"Nothing is guaranteed yet: more answers are needed ({checked})."
        sure = f"{percent(self.confidence)} confidence"
        if self.certain:
            sure = "known, not estimated"
        of = f"of these {self.uses:,} uses together"
        if self.per_tag:
            of, sure = "of the uses of each", f"{sure} for each tag"
        return (
            f"{len(self.kept):,} of {self.tags:,} tags {verb} kept: at least {level} {of} are "
            f"right ({sure}, {checked}). {dropped:,} {'was' if dropped == 1 else 'were'} dropped."
        )


@dataclass(eq=False)
class _Test:
    """A running test of one set of tags, which holds on to what its draws were."""

    kept: NDArray[np.bool_]
    delta: float
    seen: list[tuple[float, float, float]] = field(default_factory=list)  # Z, its least, its most

    def gained(self, null: float) -> float:
        """Return the log capital against a wrong share of ``null`` or more, at its highest.

        1 + c (null - Z) with c = stake / (most - null) grows with ``null``, so a share that was
        ruled out once is ruled out for good, with all above it, at any number of looks.
        """
        if not self.seen:
            return 0.0
        z, _, most = np.array(self.seen).T[:, :, None]
        bets = _log(1 + STAKES / np.maximum(most - null, TOLERANCE) * (null - z)).cumsum(0)
        return float(np.logaddexp.reduce(bets, axis=1).max() - np.log(len(STAKES)))

    def lost(self, null: float) -> float:
        """Return the log capital that says that the wrong share is above ``null``."""
        if not self.seen:
            return 0.0
        z, least, _ = np.array(self.seen).T[:, :, None]
        bets = _log(1 + STAKES / np.maximum(null - least, TOLERANCE) * (z - null)).sum(0)
        return float(np.logaddexp.reduce(bets) - np.log(len(STAKES)))


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
        sheets: Mapping[int, int] | None = None,
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
        self.bad = np.zeros(len(sizes), bool)  # tags that are dropped by what they were answered
        self.sheets = sheets or {}  # how many questions were laid down, by the count before them
        self.sheet: list[tuple[tuple[int, int], Numbers]] = []  # those that are not asked yet
        self._is_sheet = False
        self.used: list[Use] = []  # what was answered, in order
        self._bayes = np.zeros(len(sizes))  # log odds of good over bad, by the answers
        self._beliefs = learned(self.strata, self.asked, self.wrong, self._bayes)
        self._orders: dict[tuple[int, int], Counts] = {}
        self._chances = np.empty(0)
        self._next: tuple[int, int] | None = None  # tag and range of scores of the question
        self._choose()
        if 0 in self.sheets:
            self.lay_down(self.sheets[0])

    def __deepcopy__(self, memo: dict[int, object]) -> "Audit":
        """Return a copy to look ahead with; what is as large as the table is shared."""
        other, changing = copy(self), ("asked", "wrong", "unsure", "_bayes", "own", "test", "bad")
        vars(other).update({name: deepcopy(vars(self)[name], memo) for name in changing})
        other.sheet, other.used = [*self.sheet], [*self.used]
        return other

    def lay_down(self, count: int) -> None:
        """Fix the next questions now, whatever is answered: those of a sheet that is printed.

        While tags are chosen these are the ones that follow if every answer is yes. In a test they
        are its next random draws, which never depend on answers.
        """
        ahead, phase = deepcopy(self), self.test is None
        ahead._is_sheet, sheet = True, list[tuple[tuple[int, int], Numbers]]()
        while ahead._next is not None and len(sheet) < count and (ahead.test is None) == phase:
            sheet.append((ahead._next, ahead._chances))
            ahead.answer("yes")
        self.sheet = sheet[1:]  # the first is the question now

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
        use = self.question
        if use is None or self._next is None:
            raise DataError("The audit asks nothing more.")
        if value not in ("yes", "no", "unsure"):
            raise DataError(f"An answer is yes, no or unsure, got {value!r}.")
        tag, bin_ = self._next
        self.used.append(use)
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
        asked, faults = self.asked[[tag]].sum(1), self.wrong[[tag]].sum(1)
        self._bayes[[tag]] = log_bayes(asked, faults)
        is_below = self.own[tag].lost(1 - self.level) >= np.log(2 / (1 - self.confidence))
        self.bad[tag] = bool((faults > max(0.5, 1 - self.level) * asked).any()) or is_below
        self._beliefs = learned(self.strata, self.asked, self.wrong, self._bayes)
        self.count += 1
        self._choose()
        if self.count in self.sheets and not self._is_sheet:
            self.lay_down(self.sheets[self.count])

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

    def forecast(self) -> tuple[int, int] | None:
        """Return between which numbers of answers a guarantee is likely to take; None too early.

        Of audits of simulated tables that end with a guarantee, 90 % keep it (evidence/audit.md).
        """
        if self.per_tag or self.count < FIRST_FORECAST or not np.isfinite(more := self.more()):
            return None
        low, high = (more * factor for factor in FORECAST)
        least, most = max(low - FORECAST_SLACK, 0.0), high + FORECAST_SLACK
        return 10 * int(least / 10), 10 * int(np.ceil(most / 10))

    def more(self) -> float:
        """Return about how many more answers it takes; infinite where no end is in sight.

        Those of a test follow from the growth of its capital at the set's mean wrong rate
        (:func:`answers_needed`); before it, tags that are worth a look take FEW_LOOKS answers each.
        """
        if self._next is None:
            return 0.0
        wrong, sizes, test, looks = self.strata * self._beliefs[2], self.strata, self.test, 0.0
        if test is None:
            asked = self.asked.sum(1)
            wanted = self._is_worth_a_look(self.sizes - asked)
            looks = float(np.clip(FEW_LOOKS - asked, 1, None)[wanted].sum())
            kept = self._best_set(self.tests)[0]
            null, gain = 1 - self.level, 1 - np.log(1 - self.confidence)
        else:
            kept, null = test.kept, self._null(test)
            gain = 1 - np.log(test.delta) - test.gained(null)
        rate = wrong[kept].sum() / sizes[kept].sum()
        if test is not None and rate >= null:
            return np.inf
        # What is kept in the end has fewer wrong uses than what looks best now.
        rate = min(rate, KEPT_RATE * null)
        left = (sizes - self.asked)[kept].sum()
        return looks + float(np.minimum(answers_needed(gain, rate, null), left))

    def kept(self) -> NDArray[np.bool_]:
        """Mask (K, ranges of scores) of what is kept now; in phase one what would be."""
        if self.per_tag:
            made = np.array([self._reached(self.own.get(k)) for k in range(len(self.sizes))])
            return np.repeat(made[:, None], self.strata.shape[1], 1)
        if self.test is not None:
            return self._left(self.test)
        return self._best_set(self.tests)[0] & ~self.bad[:, None]

    def precision(self, tag: int, kept: NDArray[np.bool_] | None = None) -> Precision:
        is_kept = bool((self.kept() if kept is None else kept)[tag].any())
        uses, test = int(self.sizes[tag]), self.own.get(tag)
        if test is None:
            return Precision(uses, 0, 0, 0, None, 0.0, 1.0, is_kept)
        answered, wrong = int(self.asked[tag].sum()), int(self.wrong[tag].sum())
        unsure = int(self.unsure[tag])
        least, most = wrong - unsure, uses - answered + wrong
        low, high = _interval(test.seen, test.delta)
        low, high = max(low - unsure / uses, least / uses), min(high, most / uses)
        centre = float(np.mean([z for z, _, _ in test.seen])) if test.seen else wrong / answered
        if answered == uses:
            low, high, centre = least / uses, most / uses, (least + wrong) / 2 / uses
        centre = 1 - min(max(centre, low), high)
        return Precision(uses, answered, wrong, unsure, centre, 1 - high, 1 - low, is_kept)

    def unanswered_wrong(self) -> Numbers:
        """Estimate the wrong share of unanswered uses (K, ranges); tested sets have N mean(Z)."""
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
        if self.sheet:
            self._next, self._chances = self.sheet.pop(0)
            return
        left = self.sizes - self.asked.sum(1)
        if self.per_tag:
            self._choose_per_tag(left)
            return
        if self._certain(np.ones(self.strata.shape, bool)) or not left.any():
            self._settle()
            return
        if self.test is not None and not self._is_sheet:
            self.done = self._reached(self.test)
            if self.done:
                return
            if not self._left(self.test).any() and (self.tests >= TESTS or self.bad.all()):
                self._settle()
                return
            if self._is_better_without(self.test):
                self.test = None
        if self.test is None:
            tag = self._worth_a_look(left)
            if tag is not None:
                self._draw(tag)
                return
            self.tests += 1
            delta = (1 - self.confidence) * error_share(self.tests - 1, FIRST_TEST)
            self.test = _Test(self._best_set(self.tests - 1)[0], delta)
        if not (self.strata - self.asked)[self.test.kept].any():
            self._settle()
        elif self._certain(self._left(self.test)):
            self.done = True
        else:
            self._draw(self.test.kept)

    def _is_worth_a_look(self, left: Counts) -> NDArray[np.bool_]:
        """Mask (K,) of the tags about which an answer in phase one is worth its price."""
        table, weights, prices = worth_asking(1 - self.level)
        asked, at = self.asked.sum(1), np.abs(weights - self._beliefs[0][:, None]).argmin(1)
        seen = np.minimum(asked, MOST_FIRST - 1)
        worth = prices[table[at, seen, np.minimum(self.wrong.sum(1), seen)]]
        wanted = worth > ASK_PRICE[self.scored] * self._keepable() / self.sizes
        return np.asarray(wanted & (left > 0) & (asked < MOST_FIRST))

    def _worth_a_look(self, left: Counts) -> int | None:
        """Return the tag to ask about in phase one; None where no answer is worth its price."""
        wanted, asked = self._is_worth_a_look(left), self.asked.sum(1)
        if not wanted.any():
            return None
        rounds = np.where(wanted, asked, np.iinfo(np.int64).max)
        first = np.flatnonzero(rounds == rounds.min())
        return int(first[np.argmax(self.sizes[first])])

    def _choose_per_tag(self, left: Counts) -> None:
        """Ask about the tag that is expected to take the fewest further answers."""
        rate = self._beliefs[1]
        limit = -np.log(1 - self.confidence)
        gained, new = np.zeros(len(left)), self.asked.sum(1) < MOST_FIRST
        gained[list(self.own)] = [test.gained(self._null(test)) for test in self.own.values()]
        need = np.minimum(answers_needed(limit + 1 - gained, rate, 1 - self.level), left)
        need[[k for k, test in self.own.items() if self._reached(test)]] = np.inf
        need[left == 0] = np.inf
        need[new & (left > 0)] = np.minimum(need[new & (left > 0)], self.most)
        self.done = bool(need.min() > self.most)
        if not self.done:
            self._draw(np.argmin(need))

    def _draw(self, inside: NDArray[np.bool_] | np.intp | int) -> None:
        left, width = np.zeros(self.strata.shape), self.strata.shape[1]
        left[inside] = (self.strata - self.asked)[inside]
        chances = left / left.sum()
        uniform = np.random.default_rng((self.seed, 1, self.count // 1024)).random(1024)
        flat = chances.ravel().cumsum()
        choice = int(np.searchsorted(flat, uniform[self.count % 1024] * flat[-1], "right"))
        choice = min(choice, int(np.flatnonzero(chances.ravel())[-1]))
        self._chances, self._next = chances, divmod(choice, width)

    def _bet(self, test: _Test, tag: int, part: int, wrong: bool) -> None:
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

    def _left(self, test: _Test) -> NDArray[np.bool_]:
        """Return what a test keeps: its set without the tags that turned out to be bad."""
        return test.kept if self.per_tag else test.kept & ~self.bad[:, None]

    def _null(self, test: _Test) -> float:
        """Return the share of the tested set's wrong uses that must be ruled out.

        With n uses left of the set's N, and x wrong ones known among those that were dropped, more
        than (1 - level) n of what is left are wrong only if x more than that are wrong of the N.
        """
        kept = self._left(test)
        uses, known = int(self.strata[kept].sum()), int(self.wrong[test.kept & ~kept].sum())
        most = np.floor((1 - self.level) * uses + TOLERANCE) + 1 + known
        return float(most / self.strata[test.kept].sum())

    def _best_set(self, test: int) -> tuple[NDArray[np.bool_], float]:
        rates, sizes = np.maximum(self._beliefs[2], self.bad[:, None]).ravel(), self.strata.ravel()
        order = np.argsort(rates, kind="stable")
        order = order[sizes[order] > 0]
        uses, wrong = sizes[order].cumsum(), (sizes * rates)[order].cumsum()
        gain = 1 - np.log((1 - self.confidence) * error_share(test, FIRST_TEST))
        value = self._value(uses, wrong, gain)
        size = int(np.argmax(value)) + 1
        mask = np.zeros(len(rates), bool)
        mask[order[:size]] = True
        return mask.reshape(self.strata.shape), float(value[size - 1])

    def _value(self, uses: Counts, wrong: Numbers, gain: float) -> Numbers:
        needed = answers_needed(gain, wrong / uses, 1 - self.level)
        return np.asarray((uses - wrong) / self._keepable() - self._price() * needed)

    def _price(self) -> float:
        """Return the price of an answer, which rises as a person has given more."""
        return PRICE[self.scored] * (1 + (self.count / PATIENCE) ** 2)

    def _keepable(self) -> float:
        """Return how many uses the tags hold that are good, as far as the answers tell.

        Where a few frequent tags cannot be kept, answers about the rare ones are worth more.
        """
        share, rates, _ = self._beliefs
        good = 1 / (1 + (1 - share) / share * np.exp(-self._bayes))
        near = (self.asked.sum(1) >= NEAR_ASKED) & (rates > NEAR * (1 - self.level))
        return float(max((self.sizes * good)[~near].sum(), self.sizes.sum() / 20))

    def _is_better_without(self, test: _Test) -> bool:
        """Whether another set, or more answers about tags, is worth more than to test on."""
        null, kept = self._null(test), self._left(test)
        if self.tests >= TESTS or (kept.any() and len(test.seen) < 10):
            return False
        if not kept.any():
            return True
        wrong, sizes = self.strata * self._beliefs[2], self.strata
        gain = 1 - np.log(test.delta) - test.gained(null)
        needed = answers_needed(gain, wrong[test.kept].sum() / sizes[test.kept].sum(), null)
        value = (sizes - wrong)[kept].sum() / self._keepable() - self._price() * needed
        other, best = self._best_set(self.tests)
        return bool(best > value + SWITCH and (other != test.kept).any())

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
        kept, null = self._left(test), self._null(test)
        is_ruled_out = kept.any() and test.gained(null) >= -np.log(test.delta)
        return bool(is_ruled_out) or self._certain(kept)

    def _certain(self, kept: NDArray[np.bool_]) -> bool:
        """Whether the set holds few enough wrong uses even if all others are wrong."""
        uses = int(self.strata[kept].sum())
        worst = uses - int(self.asked[kept].sum()) + int(self.wrong[kept].sum())
        return uses > 0 and bool(worst <= (1 - self.level) * uses + TOLERANCE)


def _bins(sizes: Counts, scores: Sequence[Numbers] | None) -> list[Counts]:
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
    """Return the least and the largest wrong share that the answers do not rule out.

    ``seen`` holds Z with its least and largest possible value, of each answer. Two bets are made
    for every share of a grid, that the truth is above it and that it is below; a share is ruled
    out once a bet multiplied its stake by 2 / ``delta``. So at all times together the interval
    misses the truth with chance ``delta`` at most (a confidence sequence).
    """
    grid, stakes = np.linspace(0, 1, GRID), STAKES[:, None]
    up, down = np.zeros((len(STAKES), GRID)), np.zeros((len(STAKES), GRID))
    for z, low, high in seen:
        down += _log(1 + stakes / np.maximum(high - grid, TOLERANCE) * (grid - z))
        up += _log(1 + stakes / np.maximum(grid - low, TOLERANCE) * (z - grid))
    limit = np.log(2 * len(STAKES) / delta)
    few = np.flatnonzero(np.logaddexp.reduce(up, 0) < limit)  # not shown to be more than this
    many = np.flatnonzero(np.logaddexp.reduce(down, 0) < limit)
    low = grid[max(few[0] - 1, 0)] if len(few) else 1.0
    return float(low), float(grid[min(many[-1] + 1, GRID - 1)] if len(many) else 0.0)


def _log(factor: Numbers) -> Numbers:
    return np.asarray(np.log(np.maximum(factor, TOLERANCE)))


# Audit of one ranked list by answers alone, of a length that a person's answers can carry.
#
# A list holds L photos, of which an unknown number is wrong. After t checks, photos found wrong (x)
# leave the list; of the others at most alpha (L - x) may be wrong, so too many are wrong if
#
#     wrong in all >= k = x + floor(alpha (L - x)) + 1.
#
# If W of the L are wrong, a sequence of t answers with x wrong ones has the chance
#
#     P(W) = [W]_x [L - W]_(t - x) / [L]_t,        [a]_b = a (a - 1) ... (a - b + 1).
#
# Betting against W on a mixture of wrong shares, Beta(a, b), the capital (Waudby-Smith and Ramdas,
# 2020: prior-posterior ratio, sampling without replacement)
#
#     E(W) = [B(a + x, b + t - x) / B(a, b)] / P(W)
#
# is a martingale of mean 1 if W is the truth, so it ever reaches 1 / delta with chance at most
# delta (Ville): a person may stop whenever they like. The list is promised once E, the least E(W)
# over W >= k, reaches 1 / delta, whatever (a, b) and the library.
#
# ``size_list`` picks nested lengths before the first answer; test number j has delta times
# ``error_share(j)``. Photos are drawn from the longest list; those inside a shorter one are a
# random draw of it. Once a list is hopeless, draws go on inside the next one.

FIRST = 0.8  # of delta, for the first list of a query
LOOK_AHEAD = 400  # checks; nobody does more
WEIGHT = 12.0  # photos that the probabilities of a list count for, before any answer
FEWEST_WRONG = 0.005  # share that is expected at least, however sure the model is


def error_share(place: int, first: float = FIRST) -> float:
    """Return the share of delta of test number ``place``, from 0; they sum to 1.

    >>> error_share(0), round(error_share(1), 3), round(error_share(2), 3)
    (0.8, 0.1, 0.05)
    """
    return first if place == 0 else (1 - first) / 2**place


def prior_of(expected: float) -> tuple[float, float]:
    """Return (a, b) of the Beta distribution that says how much of a list may be wrong.

    Its mean is ``expected``, the mean chance that a photo of the list is wrong, kept within
    FEWEST_WRONG of 0 and 1. It weighs as much as WEIGHT answers.
    """
    share = min(max(expected, FEWEST_WRONG), 1 - FEWEST_WRONG)
    return WEIGHT * share, WEIGHT * (1 - share)


@dataclass(frozen=True)
class ListCheck:
    """What is known of a list of ``listed`` photos after some checks.

    ``unsure`` answers count as wrong, and leave the list as wrong ones do. ``place`` is the number
    of lists of the same query that were tried before.
    """

    listed: int
    wrong_at_most: float
    confidence: float = 0.95
    prior: tuple[float, float] = (0.5, 9.5)
    place: int = 0
    checked: int = 0
    wrong: int = 0

    def __post_init__(self) -> None:
        check_levels(1 - self.wrong_at_most, self.confidence)
        if self.listed < 1:
            raise ValueError(f"a list to check must hold a photo, got {self.listed}")
        if not 0 <= self.wrong <= self.checked <= self.listed:
            counts = f"{self.checked} cannot be checked and {self.wrong} wrong"
            raise ValueError(f"of {self.listed} photos {counts}")

    def after(self, checked: int, wrong: int) -> "ListCheck":
        return replace(self, checked=checked, wrong=wrong)

    @property
    def needed(self) -> float:
        return -float(np.log((1 - self.confidence) * error_share(self.place)))

    @property
    def log_capital(self) -> float:
        """The log of E; infinite once the list cannot hold too many wrong photos."""
        return float(self._log_capital(np.array([self.checked]), np.array([float(self.wrong)]))[0])

    @property
    def promised(self) -> bool:
        return self.checked > 0 and self.left > 0 and self.log_capital >= self.needed

    @property
    def known(self) -> bool:
        """Whether it holds few enough wrong photos even if all that are not checked are wrong."""
        return self.left > 0 and self.log_capital == np.inf

    @property
    def left(self) -> int:
        return self.listed - self.wrong

    def more(self) -> int | None:
        """Return about how many more checks reach the guarantee; None if LOOK_AHEAD would not."""
        if self.promised:
            return 0
        a, b = self.prior
        rate = (a + self.wrong) / (a + b + self.checked)
        ahead = np.arange(1, min(LOOK_AHEAD, self.listed - self.checked) + 1)
        wrong = np.asarray(self.wrong + np.floor(rate * ahead + 0.5))
        enough = np.flatnonzero(self._log_capital(self.checked + ahead, wrong) >= self.needed)
        return int(ahead[enough[0]]) if len(enough) else None

    def _log_capital(self, checked: NDArray[np.int64], wrong: Numbers) -> Numbers:
        a, b = self.prior
        total = self.listed
        least = wrong + np.floor(self.wrong_at_most * (total - wrong) + TOLERANCE) + 1
        most = total - (checked - wrong)  # the others are known to be right
        likeliest = np.clip(wrong / np.maximum(checked, 1) * total, least, np.maximum(least, most))
        ends = np.stack([np.floor(likeliest), np.ceil(likeliest), least])
        at = np.clip(ends, least, np.maximum(least, most))
        chances = log_falling(at, wrong) + log_falling(total - at, checked - wrong)
        chances = chances - log_falling(total, checked)
        mixture = betaln(a + wrong, b + checked - wrong) - betaln(a, b)
        return np.where(least > most + TOLERANCE, np.inf, mixture - np.max(chances, axis=0))


def promised_check(check: ListCheck, photos: str = "photos") -> Promise | None:
    """Return the guarantee of a list that was checked; None while there is none."""
    if not check.promised:
        return None
    return promised_today(
        "list",
        1 - check.wrong_at_most,
        check.confidence,
        n=0,
        counted=check.checked,
        observed=1 - check.wrong / max(check.checked, 1),
        photos=photos,
        test="known" if check.known else "prior-posterior ratio without replacement",
        kind="checked",
        listed=check.left,
        checked=check.checked,
    )


SHRINK = (1.0, 0.6, 0.35, 0.2)  # of the longest list
CANDIDATES = 60
DOUBT = 1.15  # times as many wrong photos as the probabilities say are reckoned with


def size_list(
    probs: Numbers, answers: int, *, wrong_at_most: float = 0.1, confidence: float = 0.95
) -> tuple[int, ...]:
    """Return the lengths to audit, the longest first; empty where no list is worth it.

    ``probs`` are those of the library's photos, the highest first. They choose the lengths and
    nothing else: the guarantee does not rest on them.
    """
    if answers < 1:
        raise DataError(f"An audit needs at least one answer, got {answers}.")
    expected = np.minimum(DOUBT * (1 - np.asarray(probs, np.float64)).cumsum(), len(probs))
    lengths = np.unique(np.rint(np.geomspace(1, max(len(probs), 1), CANDIDATES)).astype(int))
    for length in lengths[lengths <= len(probs)][::-1].tolist():
        rate = float(expected[length - 1]) / length
        if rate >= wrong_at_most:
            continue
        more = ListCheck(length, wrong_at_most, confidence, prior=prior_of(rate)).more()
        if length <= answers or (more is not None and more <= answers):
            return tuple(sorted({max(1, round(length * share)) for share in SHRINK}, reverse=True))
    return ()


class ListAudit:
    """Which photo of the list to ask about, and the longest length that is guaranteed now.

    ``prior_wrong``, the expected chances of being wrong by rank, only set the bets. ``places`` are
    those of the lengths among all lists tried for a query; ``order`` gives the draws as ranks.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        wrong_at_most: float = 0.1,
        confidence: float = 0.95,
        prior_wrong: Numbers | None = None,
        places: Sequence[int] | None = None,
        order: NDArray[np.int64] | None = None,
        seed: int = 0,
    ) -> None:
        if not lengths or list(lengths) != sorted(set(lengths), reverse=True):
            raise DataError("Lengths must fall from the longest list to the shortest.")
        rates = [0.04] * len(lengths)
        if prior_wrong is not None:
            rates = [float(np.mean(prior_wrong[:length])) for length in lengths]
        self.checks = [
            ListCheck(length, wrong_at_most, confidence, prior_of(rate), place)
            for place, length, rate in zip(places or range(len(rates)), lengths, rates, strict=True)
        ]
        self.order = np.random.default_rng(seed).permutation(lengths[0]) if order is None else order
        self.ranks: list[int] = []  # of the answered photos
        self.wrong: list[int] = []
        self.level = 0  # the list that photos are drawn from
        self.place = 0  # in the order

    @property
    def count(self) -> int:
        return len(self.ranks)

    @property
    def question(self) -> int | None:
        """The rank of the photo to ask about; None once a list is guaranteed or none can be."""
        if self.guaranteed is not None:
            return None
        limit = self.checks[self.level].listed
        while self.place < len(self.order) and self.order[self.place] >= limit:
            self.place += 1
        return int(self.order[self.place]) if self.place < len(self.order) else None

    def answer(self, value: str) -> None:
        rank = self.question
        if rank is None or value not in ("yes", "no", "unsure"):
            raise DataError("The audit asks nothing more, or the answer is not yes, no or unsure.")
        self.ranks.append(rank)
        if value != "yes":
            self.wrong.append(rank)
        self.place += 1
        self.checks = [
            check.after(sum(r < check.listed for r in self.ranks), self.found_wrong(check.listed))
            for check in self.checks
        ]
        while self.level + 1 < len(self.checks):
            check = self.checks[self.level]
            if check.checked < 5 or check.more() is not None:
                break
            self.level += 1

    def resume(self, answers: Mapping[int, str]) -> "ListAudit":
        while (rank := self.question) is not None and rank in answers:
            self.answer(answers[rank])
        return self

    def found_wrong(self, length: int) -> int:
        return sum(rank < length for rank in self.wrong)

    @property
    def guaranteed(self) -> int | None:
        return self.check.listed if self.check.promised else None

    @property
    def check(self) -> ListCheck:
        """The check of the guaranteed list, or of the one that photos are drawn from."""
        return next((check for check in self.checks if check.promised), self.checks[self.level])
