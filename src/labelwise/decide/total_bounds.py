"""Bounds of a total over groups that were each drawn from, from few answers in each.

Of N photos of a group, W unknown ones match; m were drawn without replacement, x of them matched.
A bet on all G groups pays (the prior-posterior ratio of Waudby-Smith and Ramdas 2020)

    E(W) = mean over laws of  prod_g marginal_g(x_g, m_g)  /  prod_g P_g(these answers | W_g)
    P = [W]_x [N - W]_(m - x) / [N]_m,    [n]_k = n (n - 1) ... (n - k + 1)

Groups are drawn independently, so for the true W it is 1 on average, whatever the laws of the
marginals are, and at least 1 / alpha with a chance of at most alpha (Markov). The laws are beta
laws around the share that the model expects, or a third or three times its odds, and Jeffreys'.
The interval holds the totals that some split among the groups explains:

    { T : min over W_1 + ... + W_G = T of  E(W)  <  1 / alpha }

-log P is convex in W, so the best splits take the least steps first, whichever group they are of.
Adding up the ends of an exact interval for each group would hold as well, but errors then add up
instead of cancelling out: with ten groups it is twice to four times as wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.special import betaln, gammaln, logsumexp

Numbers = NDArray[np.float64]
LAWS = ((1.0, 20.0), (1.0, 200.0), (1 / 3, 20.0), (3.0, 20.0))  # factor of the odds, weight
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

    def log_marginals(self) -> Numbers:
        """Return the log chance of these answers, in their order, under each law."""
        share = min(max(self.expected, LEAST_SHARE), 1 - LEAST_SHARE)
        laws = [(0.5, 0.5)]
        for factor, weight in LAWS:
            mean = factor * share / (1 - share + factor * share)
            laws.append((weight * mean, weight * (1 - mean)))
        a, b = np.array(laws).T
        logs: Numbers = betaln(a + self.yes, b + self.drawn - self.yes) - betaln(a, b)
        return logs

    def log_chances(self) -> Numbers:
        """Return log P(these answers | W) from W = ``yes`` to all but those answered no."""
        no = self.drawn - self.yes
        count = np.arange(self.yes, self.photos - no + 1, dtype=np.float64)
        ways = _log_falling(count, self.yes) + _log_falling(self.photos - count, no)
        return np.asarray(ways - _log_falling(self.photos, self.drawn))


def betting_total_bounds(groups: Sequence[DrawnGroup], confidence: float) -> tuple[int, int]:
    """Return the least and the most photos of all groups together that can be yes."""
    chances = [group.log_chances() for group in groups]
    marginals = np.sum([group.log_marginals() for group in groups], axis=0)
    paid = float(logsumexp(marginals)) - np.log(len(marginals))
    steps = np.sort(np.concatenate([-np.diff(one) for one in chances]))
    least = paid - sum(float(one[0]) for one in chances) + np.append(0.0, steps.cumsum())
    held = np.flatnonzero(least < -np.log1p(-confidence))
    first = sum(group.yes for group in groups)
    return first + int(held[0]), first + int(held[-1])


def _log_falling(n: float | Numbers, k: int) -> Numbers:
    return np.asarray(gammaln(np.add(n, 1)) - gammaln(np.subtract(n, k - 1)))
