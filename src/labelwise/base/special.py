"""Special functions: four that every search needs, and those of scipy, imported when first called.

    expit(x) = 1 / (1 + exp(-x))      logit(p) = log(p / (1 - p))      log_expit(x) = log(expit(x))
    ndtri(p) = the x below which a standard normal number lies with probability p

Importing ``scipy.special`` was a fifth of the processor time of a search. So modules take special
functions from here, where the names and arguments are scipy's; ``ndtri`` takes one number.
"""

from collections.abc import Callable
from math import inf, nan
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labelwise.base.arrays import Numbers

# Logistic regression of one variable by Newton's method: logit P = a u + b, with a normal prior
# around the center, (1, 0) unless another is given.

START = np.array([1.0, 0.0])
STEPS = 50


def fit_slope_and_offset(
    odds: Numbers,
    outcome: Numbers,
    precision: Numbers,
    center: Numbers = START,
    weight: Numbers | float = 1.0,
    flipped: float = 0.0,
) -> tuple[Numbers, Numbers]:
    """Return (a, b) and their covariance (2, 2) for log-odds (n,) and outcomes in [0, 1] (n,).

    Log-odds (n, K) make K fits at once: (K, 2) and (K, 2, 2). ``center`` is one or of each fit.
    Where a share e of the outcomes is ``flipped``, P(outcome) is q = e + (1 - 2 e) p. Steps then
    use the expected curvature, (dq/dz)^2 / (q (1 - q)), which is positive (Fisher scoring).
    """
    weights = np.broadcast_to(center, (*odds.shape[1:], 2)).astype(np.float64)
    for _ in range(STEPS):
        p = expit(odds * weights[..., 0] + weights[..., 1])
        wrong, bend = weight * (p - outcome), weight * p * (1 - p)
        if flipped:
            q = flipped + (1 - 2 * flipped) * p
            slope = (1 - 2 * flipped) * p * (1 - p)
            wrong = weight * (q - outcome) * slope / (q * (1 - q))
            bend = weight * slope**2 / (q * (1 - q))
        gradient = np.stack([(wrong * odds).sum(0), wrong.sum(0)], -1)
        gradient += precision * (weights - center)
        cross = (bend * odds).sum(0)
        rows = [(bend * odds * odds).sum(0), cross, cross, bend.sum(0)]
        curvature = np.stack(rows, -1).reshape(*weights.shape, 2) + np.diag(precision)
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        largest = np.abs(step).max(-1, keepdims=True)
        weights = weights - step / np.maximum(largest, 1.0)
        if largest.max(initial=0.0) < 1e-9:
            break
    return weights, np.asarray(np.linalg.inv(curvature), np.float64)


def expit(x: ArrayLike) -> Any:
    """Return 1 / (1 + exp(-x)) of a number or of each of an array."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(np.negative(x)))


def log_expit(x: ArrayLike) -> Any:
    """Return the logarithm of ``expit(x)``, exact where that is almost 0 or 1."""
    return -np.logaddexp(0, np.negative(x))


def logit(p: ArrayLike) -> Any:
    """Return log(p / (1 - p)): infinite at 0 and 1, not a number outside."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.divide(p, np.subtract(1, p)))


def ndtri(p: float) -> float:
    """Return the number below which a standard normal one lies with probability ``p``."""
    if 0 < p < 1:
        return NormalDist().inv_cdf(p)
    return {0.0: -inf, 1.0: inf}.get(p, nan)


def log_falling(n: ArrayLike, k: ArrayLike) -> Any:
    """Return log n (n - 1) ... (n - k + 1), of whole numbers k <= n."""
    return gammaln(np.add(n, 1)) - gammaln(np.maximum(np.subtract(n, k), 0) + 1)


def log_choose(n: ArrayLike, k: ArrayLike) -> Any:
    """Return the log of in how many ways k of n are chosen."""
    return gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)


def _of_scipy(name: str) -> Callable[..., Any]:
    def function(*given: object, **options: object) -> Any:
        from scipy import special

        return getattr(special, name)(*given, **options)

    return function


bdtrc = _of_scipy("bdtrc")
betainc = _of_scipy("betainc")
betaincinv = _of_scipy("betaincinv")
betaln = _of_scipy("betaln")
entr = _of_scipy("entr")
erf = _of_scipy("erf")
gammaincc = _of_scipy("gammaincc")
gammaln = _of_scipy("gammaln")
log_ndtr = _of_scipy("log_ndtr")
logsumexp = _of_scipy("logsumexp")
ndtr = _of_scipy("ndtr")
stdtr = _of_scipy("stdtr")
stdtrit = _of_scipy("stdtrit")
