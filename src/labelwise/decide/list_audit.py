"""Audit of one ranked list by answers alone, of a length that a person's answers can carry.

``size_list`` picks nested lengths before the first answer: the longest list that is expected to be
guaranteed with the answers a person is willing to give, then shorter ones in case it is not.
Each has its own prior-posterior-ratio test (:mod:`list_checks`), and test number j may err with
chance delta times ``error_share(j)``, so that all hold together at any stopping time. Photos are
drawn from the longest list; those inside a shorter one are a random draw of it, so that every
answer counts for every length. Once a list is hopeless, draws go on inside the next one.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.list_checks import ListCheck, prior_of
from labelwise.errors import DataError

Numbers = NDArray[np.float64]
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
        if length <= answers and rate < wrong_at_most:
            return _nested(length)
        if rate >= wrong_at_most:
            continue
        check = ListCheck(length, wrong_at_most, confidence, prior=prior_of(rate))
        more = check.more()
        if more is not None and more <= answers:
            return _nested(length)
    return ()


def _nested(length: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(length * share)) for share in SHRINK}, reverse=True))


class ListAudit:
    """Which photo of the list to ask about, and the longest length that is guaranteed now.

    ``prior_wrong`` are the expected chances of being wrong, by rank; they only set the bets. An
    answer "unsure" counts as wrong. Photos answered wrong leave the list. ``places`` are those of
    the lengths among all lists tried for a query; ``order`` is that of the draws, as ranks.
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
            ListCheck(length, wrong_at_most, confidence, prior=prior_of(rate), place=place)
            for length, rate, place in zip(
                lengths, rates, places or range(len(lengths)), strict=True
            )
        ]
        if order is None:
            order = np.random.default_rng(seed).permutation(lengths[0])
        self.order = order
        self.ranks: list[int] = []  # of the answered photos
        self.wrong: list[int] = []
        self.level = 0  # the list that photos are drawn from
        self.place = 0

    @property
    def count(self) -> int:
        """How many answers were given."""
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
        """Record yes, no or unsure about ``question``."""
        rank = self.question
        if rank is None or value not in ("yes", "no", "unsure"):
            raise DataError("The audit asks nothing more, or the answer is not yes, no or unsure.")
        self.ranks.append(rank)
        if value != "yes":
            self.wrong.append(rank)
        self.place += 1
        now = [
            check.after(sum(r < check.listed for r in self.ranks), self.found_wrong(check.listed))
            for check in self.checks
        ]
        self.checks = now
        while self.level + 1 < len(now) and self._hopeless(now[self.level]):
            self.level += 1

    def resume(self, answers: Mapping[int, str]) -> "ListAudit":
        """Replay stored answers by rank."""
        while (rank := self.question) is not None and rank in answers:
            self.answer(answers[rank])
        return self

    def found_wrong(self, length: int) -> int:
        """How many photos of the first ``length`` were answered wrong."""
        return sum(rank < length for rank in self.wrong)

    @property
    def guaranteed(self) -> int | None:
        """The length of the longest list that is guaranteed now."""
        return next((check.listed for check in self.checks if check.promised), None)

    @property
    def check(self) -> ListCheck:
        """The check of the guaranteed list, or of the one that photos are drawn from."""
        return next((check for check in self.checks if check.promised), self.checks[self.level])

    @staticmethod
    def _hopeless(check: ListCheck) -> bool:
        return check.checked >= 5 and check.more() is None
