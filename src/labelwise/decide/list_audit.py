"""Audit of one ranked list by answers alone, of a length that a person's answers can carry.

A list holds L photos, of which an unknown number is wrong. After t checks, photos found wrong (x)
leave the list; of the others at most alpha (L - x) may be wrong, so too many are wrong if

    wrong in all >= k = x + floor(alpha (L - x)) + 1.

If W of the L are wrong, a sequence of t answers with x wrong ones has the chance

    P(W) = [W]_x [L - W]_(t - x) / [L]_t,        [a]_b = a (a - 1) ... (a - b + 1).

Betting against W on a mixture of wrong shares, Beta(a, b), the capital (Waudby-Smith and Ramdas,
2020: prior-posterior ratio, sampling without replacement)

    E(W) = [B(a + x, b + t - x) / B(a, b)] / P(W)

is a martingale of mean 1 if W is the truth, so it ever reaches 1 / delta with chance at most
delta (Ville): a person may stop whenever they like. The list is promised once E, the least E(W)
over W >= k, reaches 1 / delta, whatever (a, b) and the library.

``size_list`` picks nested lengths before the first answer; test number j has delta times
``error_share(j)``. Photos are drawn from the longest list; those inside a shorter one are a random
draw of it. Once a list is hopeless, draws go on inside the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.promises import Promise, check_levels, promised_today
from labelwise.errors import DataError
from labelwise.numeric.arrays import Numbers
from labelwise.numeric.special import betaln, log_falling

FIRST = 0.8  # of delta, for the first list of a query
LOOK_AHEAD = 400  # checks; nobody does more
TOLERANCE = 1e-9
WEIGHT = 12.0  # photos that the probabilities of a list count for, before any answer
FEWEST_WRONG = 0.005  # share that is expected at least, however sure the model is


def error_share(place: int, first: float = FIRST) -> float:
    """Return the share of delta of test number ``place``, from 0; they sum to 1.

    >>> error_share(0), round(error_share(1), 3), round(error_share(2), 3)
    (0.8, 0.1, 0.05)
    """
    return first if place == 0 else (1 - first) / 2**place


def prior_of(expected: float) -> tuple[float, float]:
    """Return the law of a list's wrong share of which this is expected."""
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
            raise ValueError(
                f"of {self.listed} photos {self.checked} cannot be checked and {self.wrong} wrong"
            )

    def after(self, checked: int, wrong: int) -> "ListCheck":
        return replace(self, checked=checked, wrong=wrong)

    @property
    def needed(self) -> float:
        """The log of the capital at which the list is promised."""
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
        """How many photos are on the list without those found wrong."""
        return self.listed - self.wrong

    def more(self) -> int | None:
        """Return about how many more checks are needed; None where checking would not do."""
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
    """Return the promise of a list that was checked, None where it is not earned yet."""
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
            nested = {max(1, round(length * share)) for share in SHRINK}
            return tuple(sorted(nested, reverse=True))
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
