"""Bounds of a total over groups that were each drawn from, from few answers in each.

Of N photos of a group, W unknown ones match; m were drawn without replacement, x of them matched.
A bet on the group pays (the prior-posterior ratio of Waudby-Smith and Ramdas 2020)

    E(W) = marginal(x, m) / P(these answers | W),    P = [W]_x [N - W]_(m - x) / [N]_m

with [n]_k = n (n - 1) ... (n - k + 1). For the true W it is 1 on average, whatever the marginal is:
here half of a beta law around the share that the model expects, half of Jeffreys' law. Groups are
drawn independently, so that the product over groups is 1 on average too, and at least 1 / alpha
with a chance of at most alpha (Markov). The interval holds the totals that some split among the
groups explains:

    { T : min over W_1 + ... + W_G = T of  prod E_g(W_g)  <  1 / alpha }

-log P is convex in W, so the best splits take the least steps first, whichever group they are of.
Adding up the ends of an exact interval for each group would hold as well, but errors then add up
instead of cancelling out: with ten groups it is twice to three times as wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln

from labelwise.decide.misses import Numbers

__all__ = ["DrawnGroup", "betting_total_bounds"]

WEIGHT = 20.0  # answers that the share expected by the model is worth
LEAST_SHARE = 0.002


@dataclass(frozen=True)
class DrawnGroup:
    """How many of ``drawn`` photos, of all ``photos`` of a group, were ``yes``.

    ``expected`` is the share that the model expects among all of them.
    """

    yes: int
    drawn: int
    photos: int
    expected: float

    def log_bets(self) -> Numbers:
        """Return log E(W) for the W from ``yes`` to all but the photos answered no, in order."""
        share = min(max(self.expected, LEAST_SHARE), 1 - LEAST_SHARE)
        no = self.drawn - self.yes
        halves = [
            betaln(a + self.yes, b + no) - betaln(a, b)
            for a, b in ((WEIGHT * share, WEIGHT * (1 - share)), (0.5, 0.5))
        ]
        count = np.arange(self.yes, self.photos - no + 1, dtype=np.float64)
        ways = _log_falling(count, self.yes) + _log_falling(self.photos - count, no)
        bets: Numbers = (
            np.logaddexp(*halves) - np.log(2) - ways + _log_falling(self.photos, self.drawn)
        )
        return bets


def betting_total_bounds(groups: Sequence[DrawnGroup], confidence: float) -> tuple[int, int]:
    """Return the least and the most photos of all groups together that can be yes."""
    bets = [group.log_bets() for group in groups]
    steps = np.sort(np.concatenate([np.diff(one) for one in bets]))
    least = np.append(0.0, steps.cumsum()) + sum(float(one[0]) for one in bets)
    held = np.flatnonzero(least < -np.log1p(-confidence))
    first = sum(group.yes for group in groups)
    return first + int(held[0]), first + int(held[-1])


def _log_falling(n: float | Numbers, k: int) -> Numbers:
    return np.asarray(gammaln(np.add(n, 1)) - gammaln(np.subtract(n, k - 1)))
