"""What is believed of tags by the answers so far: which are good, and how often each is wrong.

Beliefs choose what an audit asks, keeps and bets; no guarantee rests on them. The wrong rate of a
tag has the prior w Beta(GOOD) + (1 - w) Beta(BAD). The share w of good tags is learned over all
tags; where there are scores, so is how much more often uses in each range of scores are wrong.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.special import betaln

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

GOOD, BAD = (1.6, 36.0), (3.0, 6.0)  # wrong rates of tags, Beta(wrong, right)
SHARE_GOOD, SHARE_WEIGHT = 0.65, 4.0  # of the tags, and for how many tags this counts
LINE = 0.11  # wrong rate above which a tag is not worth keeping
MOST_FIRST = 10  # answers per tag in phase one
FIRST_FACTORS = np.array([2.2, 1.3, 0.8, 0.45, 0.25])  # wrong rates by range, before any answer
TILT = 2.0  # power at which a tag's own factor moves its odds of being bad
FACTOR_WEIGHT = 2.0  # wrong answers that these count for
MOST_ODDS = 500.0  # in nats
TOLERANCE = 1e-9


def learned(
    strata: Counts, asked: Counts, wrong: Counts, bayes: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Return per tag the prior chance of a good one and the mean wrong rate, and that per stratum.

    ``strata``, ``asked`` and ``wrong`` count uses by tag and range of scores, ``bayes`` are the
    log odds of a good tag by its answers alone.
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
    for _ in range(4 if known.any() else 0):
        good = 1 / (1 + (1 - share) / share * np.exp(-bayes[known] - tilt[known]))
        share = (good.sum() + SHARE_WEIGHT * SHARE_GOOD) / (known.sum() + SHARE_WEIGHT)
    shares = 1 / (1 + (1 - share) / share * np.exp(-tilt))
    rates = posterior(shares, bayes, total, faults)
    if len(factors) == 1:
        return shares, rates, rates[:, None]
    own = strata @ factors / sizes
    return shares, rates, np.clip((rates / own)[:, None] * factors, 0.004, 0.9)


def asked_on(
    shares: Numbers, asked: Counts, wrong: Counts, price: Numbers, allowed: float
) -> NDArray[np.bool_]:
    """Mask of tags about which one more answer is worth its price before a set is chosen."""
    table, weights, prices = worth_asking(allowed)
    at = np.abs(weights - shares[:, None]).argmin(1)
    inside = np.minimum(asked, MOST_FIRST - 1)
    worth = prices[table[at, inside, np.minimum(wrong, inside)]]
    return np.asarray((asked < MOST_FIRST) & (worth > price))


def posterior(share: Numbers, bayes: Numbers, asked: Counts, wrong: Counts) -> Numbers:
    """Return the mean wrong rate of tags with these answers."""
    good = 1 / (1 + (1 - share) / share * np.exp(-bayes))
    means = [(one[0] + wrong) / (sum(one) + asked) for one in (GOOD, BAD)]
    return np.asarray(good * means[0] + (1 - good) * means[1])


def log_bayes(asked: Counts, wrong: Counts) -> Numbers:
    """Return log P(answers | a good tag) - log P(answers | a bad tag)."""
    logs = [betaln(one[0] + wrong, one[1] + asked - wrong) - betaln(*one) for one in (GOOD, BAD)]
    return np.asarray(np.clip(logs[0] - logs[1], -MOST_ODDS, MOST_ODDS))


@cache
def worth_asking(allowed: float) -> tuple[Counts, Numbers, Numbers]:
    """Return how dear an answer may be (a place in prices) by prior share, asked, and wrong.

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
        table[:, asked] = (go > stop[:, asked]).sum(-1)  # worth it at so many of the prices
        value = np.maximum(go, stop[:, asked])
    return np.maximum(table - 1, 0), weights, prices


def answers_needed(gain: Numbers | float, rate: Numbers | float, allowed: float) -> Numbers:
    """Return about how many answers win ``gain`` nats against ``allowed`` at this wrong rate."""
    p = np.clip(rate, 1e-4, 1 - 1e-4)
    growth = p * np.log(p / allowed) + (1 - p) * np.log((1 - p) / (1 - allowed))
    return np.asarray(
        np.where(p < allowed, np.maximum(gain, 0) / np.maximum(growth, TOLERANCE), np.inf)
    )
