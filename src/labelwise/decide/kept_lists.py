"""Was the promise of a list kept? What answers about its photos say, of one list and of many.

Of L listed photos floor(alpha L) may be wrong. If x of t photos drawn from them at random are
wrong, the number W of wrong ones lies, by the law of draws without replacement, between

    the least W with P(Hypergeometric(L, W, t) >= x) > MISJUDGED = 0.01
    the most W with  P(Hypergeometric(L, W, t) <= x) > DOUBTED = 0.05

and a promise is broken where the first exceeds floor(alpha L), kept where the second does not.
Answers about photos that nobody drew count as what they are: so many wrong and right ones at least.

Each of m lists promised with confidence 1 - delta is broken with chance at most delta, and called
so by mistake with chance MISJUDGED at most. So b of them are broken, if the promises hold and
are independent, with chance P(Binomial(m, delta + MISJUDGED) >= b).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from labelwise.decide.estimate import exact_count_bounds
from labelwise.decide.promises import Promise, percent
from labelwise.errors import DataError
from labelwise.numeric.special import bdtrc

Verdict = Literal["kept", "broken", "cannot tell"]

MISJUDGED = 0.01
DOUBTED = 0.05
SIGNIFICANT = 0.05  # chance of as many broken promises below which they did not hold
TOLERANCE = 1e-9


@dataclass(frozen=True)
class ListAnswers:
    """Answers about the photos of a list: all of them, and those of the photos drawn at random."""

    right: int
    wrong: int
    drawn: int
    drawn_wrong: int

    def __post_init__(self) -> None:
        if not 0 <= self.drawn_wrong <= min(self.drawn, self.wrong):
            raise ValueError(f"of the wrong photos, {self.drawn_wrong} cannot have been drawn")
        if self.drawn > self.right + self.wrong:
            raise ValueError(f"{self.drawn} drawn photos must be among those answered")


@dataclass(frozen=True)
class ListVerdict:
    """Whether a list kept its promise: between ``least`` and ``most`` of its photos are wrong.

    ``share`` is the estimate of the wrong share, None without a drawn photo; ``more`` is how many
    more photos it takes if all are right, 0 where it is settled.
    """

    verdict: Verdict
    promise: Promise
    answers: ListAnswers
    least: int
    most: int
    share: float | None
    more: int

    @property
    def certain(self) -> bool:
        """Whether enough photos were answered that no chance is left."""
        listed = self.promise.listed or 0
        allowed = _allowed(self.promise)
        return self.answers.wrong > allowed or self.answers.right >= listed - allowed

    def __str__(self) -> str:
        known, listed = self.answers, self.promise.listed or 0
        answered = known.right + known.wrong
        seen = f"{known.drawn_wrong:,} of {known.drawn:,} photos drawn from it are wrong"
        if known.drawn < answered:
            seen += f", {known.wrong:,} of {answered:,} answered in all"
        if not answered:
            seen = "no photo of it was answered"
        over = " on average over searches" if self.promise.kind == "expected" else ""
        wrong = f"{self.least:,}" + (f" to {self.most:,}" if self.most > self.least else "")
        tail = f"; {self.more:,} more right answers would tell" if self.more else ""
        return (
            f"{self.verdict}: {seen}; {wrong} of its {listed:,} photos are wrong, "
            f"{percent(1 - self.promise.level)} may be{over}{tail}"
        )


@dataclass(frozen=True)
class KeptLists:
    """How many of the lists that can be judged kept their promise, and what that says of them all.

    ``allowed`` is how many broken ones the promises let one expect, and ``chance`` that of as many
    as there are, or more, if they hold.
    """

    told: int
    kept: int
    untold: int
    allowed: float
    chance: float

    @property
    def verdict(self) -> Verdict:
        """Whether the promises hold together: kept where no more are broken than allowed."""
        broken = self.told - self.kept
        if broken and self.chance <= SIGNIFICANT + TOLERANCE:
            return "broken"
        return "kept" if self.told and broken <= self.allowed + TOLERANCE else "cannot tell"

    def __str__(self) -> str:
        broken = self.told - self.kept
        parts = {
            f"kept in {self.kept:,} of {self.told:,}": self.told,
            f"promises that hold break {broken:,} or more of {self.told:,} with chance "
            f"{self.chance:.2g}, if they are independent": broken,
            f"{self.untold:,} cannot be told yet": self.untold,
        }
        return "; ".join(text for text, said in parts.items() if said) or "nothing was promised"


def judge_list(promise: Promise, answers: ListAnswers) -> ListVerdict:
    """Return what answers about the photos of a list say of its promise.

    Of an expected promise it is never more than "cannot tell": it speaks of no single list.
    """
    listed = promise.listed
    if promise.what != "list" or listed is None:
        raise DataError(f"only a promise of a list can be judged by its photos, got {promise.what}")
    if answers.right + answers.wrong > listed:
        raise DataError(f"a list of {listed:,} photos cannot have more answers than that")
    least, most = _between(listed, answers)
    share = answers.drawn_wrong / answers.drawn if answers.drawn else None
    if answers.right + answers.wrong == listed:
        share = answers.wrong / listed
    allowed, more = _allowed(promise), 0
    verdict: Verdict = "cannot tell"
    if promise.kind == "expected":
        pass
    elif least > allowed:
        verdict = "broken"
    elif most <= allowed:
        verdict = "kept"
    else:  # how many more drawn photos settle it, if all of them are right
        rest = range(1, listed - answers.right - answers.wrong + 1)

        def settled(more: int) -> bool:
            right, drawn = answers.right + more, answers.drawn + more
            return _between(listed, replace(answers, right=right, drawn=drawn))[1] <= allowed

        position = bisect_left(rest, True, key=settled)
        more = rest[position] if position < len(rest) else 0
    return ListVerdict(verdict, promise, answers, least, most, share, more)


def judge_lists(verdicts: Sequence[ListVerdict]) -> KeptLists:
    """Return how many lists kept their promise, and the chance of as many broken ones."""
    told = [verdict for verdict in verdicts if verdict.verdict != "cannot tell"]
    kept = sum(verdict.verdict == "kept" for verdict in told)
    worst = max(
        (1 - (own.promise.confidence or 0) + MISJUDGED * (not own.certain) for own in told),
        default=0.0,
    )
    broken = len(told) - kept
    chance = float(bdtrc(broken - 1, len(told), worst)) if broken else 1.0
    return KeptLists(len(told), kept, len(verdicts) - len(told), worst * len(told), chance)


def _allowed(promise: Promise) -> int:
    return int((1 - promise.level) * (promise.listed or 0) + TOLERANCE)


def _between(listed: int, answers: ListAnswers) -> tuple[int, int]:
    """Return the bounds of the number of wrong photos."""
    low, high = answers.wrong, listed - answers.right
    if not answers.drawn:
        return low, high
    drawn = answers.drawn_wrong, answers.drawn, listed
    least, _ = exact_count_bounds(*drawn, 1 - 2 * MISJUDGED)
    _, most = exact_count_bounds(*drawn, 1 - 2 * DOUBTED)
    least = max(least, low)
    return least, max(least, min(most, high))
