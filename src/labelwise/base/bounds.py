"""Tests that a risk lies at or below a level, valid at every sample size.

    exact binomial     losses 0 or 1:     p = P(Bin(n, level) <= number of losses)
    Hoeffding-Bentkus  losses in [0, 1], nearly 0 or 1 (Bates et al., 2021):
                       p = min(exp(-n h(min(mean, level), level)),
                               e P(Bin(n, level) <= ceil(n mean)))
    betting            z = loss - level <= most, of small variance or not in [0, 1]:
                       p = 1 / mean over stakes s of  prod_i (1 - s z_i / most),   0 < s < 1

Under the hypothesis "risk >= level" each factor of the bet has mean at most 1, so the capital
exceeds 1/delta with probability at most delta (Markov). A mixture of stakes adapts to the variance
of the losses (Waudby-Smith and Ramdas, 2024) and does not depend on the order of the photos. Where
other photos say which stake would have grown most, half of the capital takes it. Which test is
used is fixed by the kind of loss, never by the data.

Fixed sequence (Learn-then-Test, Angelopoulos et al., 2021): candidates are tested in an order
that was set without these photos, until the first that cannot be rejected. All before it keep
the promise, together, with the full confidence: there is no price for their number.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np

from labelwise.base.arrays import Numbers, Values
from labelwise.base.special import betainc, betaincinv, logsumexp

STAKES = np.geomspace(0.02, 0.95, 12)


def binomial_p_values(losses: Values, counts: Values, level: float) -> Numbers:
    """Return the p-values of "risk >= level" for numbers of losses among ``counts`` trials.

    They are P(X <= losses) = I_{1-level}(n - k, k + 1), and 1 where there are no trials. From
    scipy.special, since importing scipy.stats takes longer than a search.
    """
    failures = np.asarray(counts, np.float64) - losses
    inside = betainc(np.maximum(failures, 1.0), np.add(losses, 1.0), 1 - level)
    return np.where(failures > 0, inside, 1.0)


def betting_p_values(excess: Numbers, most: float, stakes: Numbers | None = None) -> Numbers:
    """Return the p-values (T,) of "mean excess >= 0" for values (n, T) that are at most ``most``.

    Rows that do not count hold 0. ``stakes`` (T,) are those of :func:`best_stakes`.
    """
    if not len(excess):
        return np.ones(excess.shape[1])
    average = logsumexp(_capital(excess, most), axis=0) - np.log(len(STAKES))
    if stakes is not None:
        average = np.logaddexp(average, np.log1p(-stakes / most * excess).sum(0)) - np.log(2)
    return np.asarray(np.exp(-np.maximum(average, 0.0)))


def best_stakes(excess: Numbers, most: float) -> Numbers:
    """Return the stakes (T,) that grow most on values (n, T) of other photos and half a loss."""
    capital = _capital(excess, most) + 0.5 * np.log1p(-STAKES)[:, None]
    return np.asarray(STAKES[capital.argmax(axis=0)])


def _capital(excess: Numbers, most: float) -> Numbers:
    """Return the log of the capital (stakes, T) after all photos."""
    return np.stack([np.log1p(-stake / most * excess).sum(0) for stake in STAKES])


def hoeffding_bentkus_p_values(means: Values, counts: Values, level: float) -> Numbers:
    """Return the p-values of "risk >= level" for mean losses in [0, 1]."""
    tested = np.asarray(counts, dtype=np.float64)
    mean = np.minimum(np.asarray(means, dtype=np.float64), level)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(mean > 0, mean * np.log(mean / level), 0.0)
        distance = first + (1 - mean) * np.log((1 - mean) / (1 - level))
    bentkus = np.e * binomial_p_values(np.ceil(tested * np.asarray(means) - 1e-9), tested, level)
    return np.where(tested > 0, np.minimum(np.minimum(np.exp(-tested * distance), bentkus), 1), 1.0)


def clopper_pearson(hits: float, count: float, confidence: float) -> tuple[float, float]:
    """Return the interval of a chance; each end holds with ``confidence`` by itself.

    Numbers that are not whole are those of as many independent trials as others are worth.

    >>> [round(end, 4) for end in clopper_pearson(9, 10, 0.95)]
    [0.6058, 0.9949]
    """
    if count == 0:
        return 0.0, 1.0
    lower = 0.0 if hits == 0 else float(betaincinv(hits, count - hits + 1, 1 - confidence))
    upper = 1.0 if hits == count else float(betaincinv(hits + 1, count - hits, confidence))
    return lower, upper


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share of ``count`` trials.

    It holds the truth in 95 % of cases on average over shares; Clopper and Pearson's holds it in at
    least as many for each share, and is wider.
    """
    z, share = 1.959964, min(max(share, 0.0), 1.0)  # a mean may be off by its rounding
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def ratio_interval(
    losses: Numbers, counts: Numbers, most: float, confidence: float
) -> tuple[float, float]:
    """Return the interval of (sum of losses) / (sum of counts) of independent photos.

    Per photo 0 <= loss <= count <= ``most``. Each end holds with ``confidence``. Losses of 0 and 1
    among counts of 1 give Clopper and Pearson's interval; others the ratios that Hoeffding-Bentkus
    (counts of 1) or betting leaves.
    """
    if not counts.sum():
        return 0.0, 1.0
    single = bool((counts == 1).all())
    if single and ((losses == 0) | (losses == 1)).all():
        return clopper_pearson(int(losses.sum()), len(losses), confidence)
    ratio = float(losses.sum() / counts.sum())

    def rejected(level: float, seen: float, excess: Numbers) -> bool:
        p = (
            hoeffding_bentkus_p_values(np.array([seen]), np.array([len(losses)]), level)
            if single
            else betting_p_values(excess[:, None], (1 - level) * most)
        )
        return bool(p[0] <= 1 - confidence)

    def too_low(level: float) -> bool:
        return rejected(1 - level, 1 - ratio, level * counts - losses)

    def too_high(level: float) -> bool:
        return rejected(level, ratio, losses - level * counts)

    lower = edge(too_low, ratio, 0.0) if ratio > 0 else 0.0
    return lower, edge(too_high, ratio, 1.0) if ratio < 1 else 1.0


def first_failure(p_values: Numbers, delta: float) -> int:
    """Return how many candidates, from the first on, are rejected before one is not."""
    failed = np.flatnonzero(~(p_values <= delta))
    return int(failed[0]) if len(failed) else len(p_values)


def edge(
    excluded: Callable[[float], bool], inside: float, outside: float, steps: int = 30
) -> float:
    """Return the level nearest ``inside`` that is excluded, by bisection; else ``outside``."""
    for _ in range(steps):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if excluded(middle) else (middle, outside)
    return outside
