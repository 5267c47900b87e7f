"""A person checks photos of a list, drawn at random, until the list can be promised.

A list holds L photos, of which an unknown number is wrong. After t checks, photos found wrong (x)
leave the list; of the others at most alpha (L - x) may be wrong, so too many are wrong if

    wrong in all >= k = x + floor(alpha (L - x)) + 1.

n held-out photos above the same cut, w of them wrong, may join: with the list they are N = n + L
photos, of which the first n were drawn at random and then t more. If W of the N are wrong, the
sequence of T = n + t answers with y = w + x wrong ones has the chance

    P(W) = [W]_y [N - W]_(T - y) / [N]_T,        [a]_b = a (a - 1) ... (a - b + 1).

Betting against W on a mixture of wrong shares, Beta(a, b), the capital (Waudby-Smith and Ramdas,
2020: prior-posterior ratio, sampling without replacement)

    E(W) = [B(a + y, b + T - y) / B(a, b)] / P(W)

is a martingale of mean 1 if W is the truth, so it ever reaches 1 / delta with chance at most delta
(Ville): a person may stop whenever they like. The list is promised once E, the least E(W) over
W >= w + k, reaches 1 / delta. Whatever (a, b), the promise holds; they say what is expected.

With n = 0 nothing is assumed about the library. With n > 0 the held-out photos must be
exchangeable with the library's, and the cut must be set without their answers.

A list that is shortened after its answers were seen is another hypothesis: the first list has the
share FIRST of delta, the next ones halve what is left (``error_share``). Answers are kept: within
a shorter list, the checked photos are a random draw of it.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.fixed_sequence import check_levels
from labelwise.decide.promises import Promise
from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.arrays import to_numpy as as_numpy
from labelwise.numeric.special import betaln, gammaln

Numbers = NDArray[np.float64]
FIRST = 0.8  # of delta, for the first list of a query
LOOK_AHEAD = 400  # checks; who is told "about 400 more" will not do them
TOLERANCE = 1e-9
CHECKS = 12  # that a list worth checking is expected to take
DOUBT = 1.25  # times as many wrong photos as the probabilities say are reckoned with
WEIGHT = 12.0  # photos that the probabilities of a list count for, before any answer
FEWEST_WRONG = 0.005  # share that is expected at least, however sure the model is


def error_share(place: int) -> float:
    """Return the share of delta of a query's list number ``place``, from 0; they sum to 1.

    >>> error_share(0), round(error_share(1), 3), round(error_share(2), 3)
    (0.8, 0.1, 0.05)
    """
    return FIRST if place == 0 else (1 - FIRST) / 2**place


@dataclass(frozen=True)
class ListToCheck:
    """How long a list is worth checking, and the wrong share expected of it, as Beta(a, b)."""

    length: int
    prior: tuple[float, float]


def list_to_check(
    probs: Matrix, wrong_at_most: float, *, held_out: float = 0.0, confidence: float = 0.95
) -> ListToCheck | None:
    """Return the longest list that should take few checks; None where there is none.

    ``probs`` (m,) are those of the library's photos, the highest first, by a calibration that
    the held-out photos which join the check had no part in; ``held_out`` is how many of these
    there are for each photo of the library.
    """
    misses = DOUBT * (1 - np.asarray(as_numpy(probs), dtype=np.float64)).cumsum()
    places = np.unique(np.rint(np.geomspace(1, max(len(misses), 1), 60)).astype(int))
    for length in places[places <= len(misses)][::-1].tolist():
        expected = float(misses[length - 1]) / length
        if expected >= wrong_at_most:
            continue
        joined = int(held_out * length)
        check = ListCheck(
            length,
            wrong_at_most,
            confidence,
            held_out=joined,
            held_out_wrong=round(expected * joined),
            prior=prior_of(expected),
        )
        more = check.more()
        if more is not None and more <= CHECKS:
            return ListToCheck(length, check.prior)
    return None


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
    held_out: int = 0
    held_out_wrong: int = 0
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
        if not 0 <= self.held_out_wrong <= self.held_out or min(self.prior) <= 0:
            raise ValueError("held-out photos and the prior must be counts and positive numbers")

    def after(self, checked: int, wrong: int) -> "ListCheck":
        """Return the same list with other numbers of checked and of wrong photos."""
        return replace(self, checked=checked, wrong=wrong)

    @property
    def needed(self) -> float:
        """The logarithm of the capital at which the list is promised."""
        return -float(np.log((1 - self.confidence) * error_share(self.place)))

    @property
    def log_capital(self) -> float:
        """The logarithm of E; infinite once the list cannot hold too many wrong photos."""
        return float(self._log_capital(np.array([self.checked]), np.array([float(self.wrong)]))[0])

    @property
    def promised(self) -> bool:
        """Whether the list, without the photos found wrong, is promised now.

        It never is before a person has checked a photo of it, whatever held-out photos say.
        """
        return self.checked > 0 and self.left > 0 and self.log_capital >= self.needed

    @property
    def left(self) -> int:
        """How many photos stand on the list, those found wrong left out."""
        return self.listed - self.wrong

    def more(self) -> int | None:
        """Return about how many more checks are needed; None where checking would not do.

        They are taken to be wrong as often as those before and as was expected.
        """
        if self.promised:
            return 0
        a, b = self.prior
        seen, wrong = self.held_out + self.checked, self.held_out_wrong + self.wrong
        rate = (a + wrong) / (a + b + seen)
        ahead = np.arange(1, min(LOOK_AHEAD, self.listed - self.checked) + 1)
        found = np.asarray(self.wrong + np.floor(rate * ahead + 0.5))
        capital = self._log_capital(self.checked + ahead, found)
        enough = np.flatnonzero(capital >= self.needed)
        return int(ahead[enough[0]]) if len(enough) else None

    def _log_capital(self, checked: NDArray[np.int64], wrong: Numbers) -> Numbers:
        """Return log E (T,) after so many checks and wrong photos."""
        a, b = self.prior
        total = self.held_out + self.listed
        drawn, seen = self.held_out + checked, self.held_out_wrong + wrong
        allowed = np.floor(self.wrong_at_most * (self.listed - wrong) + TOLERANCE)
        least = self.held_out_wrong + wrong + allowed + 1
        most = total - (drawn - seen)  # as many are known to be right
        likeliest = np.clip(seen / np.maximum(drawn, 1) * total, least, np.maximum(least, most))
        chances = [
            _log_chance(np.clip(at, least, np.maximum(least, most)), total, drawn, seen)
            for at in (np.floor(likeliest), np.ceil(likeliest), least)
        ]
        mixture = betaln(a + seen, b + drawn - seen) - betaln(a, b)
        return np.where(least > most + TOLERANCE, np.inf, mixture - np.max(chances, axis=0))


def promised_check(check: ListCheck, photos: str = "photos") -> Promise | None:
    """Return the promise of a list that was checked, None where it is not earned yet."""
    if not check.promised:
        return None
    return Promise(
        "list",
        1 - check.wrong_at_most,
        check.confidence,
        n=check.held_out,
        counted=check.checked,
        observed=1 - check.wrong / max(check.checked, 1),
        photos=photos,
        made=datetime.now(UTC).date().isoformat(),
        test="prior-posterior ratio without replacement",
        kind="checked",
        listed=check.left,
        checked=check.checked,
    )


def _log_chance(
    wrong_in_all: Numbers, total: int, drawn: NDArray[np.int64], seen: Numbers
) -> Numbers:
    """Return the log of the chance of a sequence of answers, by falling factorials."""
    return np.asarray(
        _log_falling(wrong_in_all, seen)
        + _log_falling(total - wrong_in_all, drawn - seen)
        - _log_falling(np.asarray(float(total)), drawn)
    )


def _log_falling(start: Numbers, count: Numbers | NDArray[np.int64]) -> Numbers:
    return np.asarray(gammaln(start + 1) - gammaln(np.maximum(start - count, 0) + 1))
