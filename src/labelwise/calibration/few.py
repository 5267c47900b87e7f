"""Few labels: probabilities and intervals from 10 to 200 labelled photos and a pool without labels.

    z = exp(alpha_k) x + beta_k        x = (u - m) / s     u: log-odds, or raw scores without a link
    alpha_k ~ N(alpha, tau_a^2)        beta_k ~ N(beta + gamma g_k, tau_b^2)

s is the deviation of all scores of the pool and m their mean, or 0 where there is a link. g_k is
the mean x of label k in the pool, less that of all labels: what raw scores such as cosines say of
a label's share; how much that counts (gamma) is shared by all labels. Shared numbers have wide
priors, around "the link is right" where there is one. What labels have for themselves is drawn
towards the shared fit by tau_a and tau_b, as strongly as the labels themselves say (empirical
Bayes): each pair on a grid counts by its prior and its evidence p(y | tau), by Laplace's method,
the mode found by Newton's with alpha_k = alpha + tau_a e_k, beta_k = ... + tau_b f_k and
e, f ~ N(0, 1). The single best pair would be too sure of itself: with few labels it is often 0.

The link averages over what is left open: p = mean over (alpha_k, beta_k) of sigma(z), by 3 x 3
Gauss-Hermite points of the normal approximation. All slopes are positive, so each label keeps its
order. The mean lies nearer to 1/2 than the most probable curve, as much as the labels allow.

With a link, curves are expected to differ little between labels, which makes better probabilities
of a few photos where it is true. Intervals may not rest on it: where labels differ by 0.2 in alpha
and 0.5 in beta, 90 % intervals held the truth in 56 to 78 % of entries. They, the shares and the
expected error take the same fits with a wider law of tau, and then hold it in 89 to 99 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.calibration.entries import OnLogOdds, limited_log_odds, read_entries
from labelwise.calibration.shared_curves import CurveMixture, CurveProblem
from labelwise.links import Link
from labelwise.numeric.array_api import A, like, log_sigmoid, namespace
from labelwise.numeric.arrays import Array, to_numpy
from labelwise.numeric.special import expit, ndtri

Numbers = NDArray[np.float64]
TYPICAL_SPREAD = (1.0, 0.05)  # without, with a link: tau has the density exp(-tau / typical)
TYPICAL_OF_INTERVALS = 0.5  # at least
MOST_TIMES = 1000  # as many labelled photos are tried
WITH_LINK, WITHOUT_LINK = (0.5, 0.2, 0.05), (1.5, 3.0, 1.0)  # deviations of alpha, beta, gamma


class AveragedCurves(OnLogOdds):
    """``p = sum over j of weight_j sigma(slope_jk u + offset_jk)``: curves, averaged per label."""

    kind = "averaged"

    def __init__(
        self,
        link: Link | None,
        slope: Sequence[Sequence[float]],
        offset: Sequence[Sequence[float]],
        weight: Sequence[float],
        limit: float,
    ) -> None:
        super().__init__(link, limit)
        self.slope, self.offset = np.asarray(slope, np.float64), np.asarray(offset, np.float64)
        self.weight = np.asarray(weight, np.float64)
        if not (self.slope > 0).all() or not (self.weight > 0).all():
            raise ValueError("slopes and weights must be positive")

    def log_probs(self, logits: A) -> tuple[A, A]:
        u, xp = limited_log_odds(self.link, logits, self.limit), namespace(logits)
        log_p = log_q = xp.full_like(u, -np.inf)
        shares = np.log(self.weight / self.weight.sum())
        for slope, offset, share in zip(self.slope, self.offset, shares, strict=True):
            z, log_w = like(slope, u) * u + like(offset, u), like(share, u)
            log_p = xp.logaddexp(log_p, log_sigmoid(z) + log_w)
            log_q = xp.logaddexp(log_q, log_sigmoid(-z) + log_w)
        return log_p, log_q

    def numbers_of(self, column: int) -> dict[str, Any]:
        return {
            "slope": self.slope[:, column : column + 1].tolist(),
            "offset": self.offset[:, column : column + 1].tolist(),
            "weight": self.weight.tolist(),
        }

    def spec(self) -> dict[str, Any]:
        return {
            "link": self.link,
            "slope": self.slope.tolist(),
            "offset": self.offset.tolist(),
            "weight": self.weight.tolist(),
            "limit": self.limit,
        }


@dataclass(frozen=True, eq=False)
class FewLabels:
    """The link, and what is left open: per label a normal over (alpha_k, beta_k).

    ``spreads`` are the expected (tau_a, tau_b), ``pool`` (M, K) the log-odds of all photos. What is
    said of the pool is computed when it is asked for.
    """

    link: AveragedCurves
    mean: Numbers  # (K, 2)
    covariance: Numbers  # (K, 2, 2)
    centre: float
    scale: float
    photos: int
    spreads: tuple[float, float]
    mixture: CurveMixture
    pool: Numbers

    def mean_without(self, out: NDArray[np.bool_]) -> Numbers:
        """Return the mean (K, 2) that the labelled photos give which are not ``out`` (n,)."""
        return self.mixture.without(out, _doubting(self.mixture.problem.typical)).mean()

    @cached_property
    def shares(self) -> Numbers:
        """The labels' shares of the pool and the ends of their 90 % intervals, (K, 3)."""
        return _shares(self.link, self.pool, self._pooled, self.mean, self.covariance)

    @cached_property
    def error(self) -> float:
        """The expected error of a probability on the pool (root mean square)."""
        return _error(self._moments, self.covariance)

    @cached_property
    def photos_to_halve(self) -> int | None:
        """How many labelled photos in all would halve the error; None if none would."""
        for times in np.geomspace(1.1, MOST_TIMES, 72).tolist():
            if _error(self._moments, self.mixture.covariance(times)) <= self.error / 2:
                needed: int = ceil(times * self.photos)
                return needed
        return None

    def error_in_words(self, photos: str) -> str:
        """Return how far probabilities are off, and how many ``photos`` in all would halve that."""
        more = self.photos_to_halve
        way = (
            f"{MOST_TIMES:,} times as many {photos} would not"
            if more is None
            else (f"about {more:,} {photos} in all would")
        )
        return (
            f"probabilities are estimated to be {self.error:.2g} too high or too low (root mean "
            f"square); {way} halve that"
        )

    @property
    def _pooled(self) -> Numbers:
        pooled: Numbers = (self.pool - self.centre) / self.scale
        return pooled

    @cached_property
    def _moments(self) -> Numbers:
        return _moments(self._pooled, self.mean)

    def interval(self, logits: Array, confidence: float = 0.9) -> tuple[Numbers, Numbers]:
        """Return the ends (N, K) of the interval of each probability."""
        scores = to_numpy(logits).astype(np.float64)
        u = limited_log_odds(self.link.link, scores, self.link.limit)
        x = (u - self.centre) / self.scale
        z, variance = _spread_of(x, self.mean, self.covariance)
        reach = ndtri((1 + confidence) / 2) * np.sqrt(variance)
        return expit(z - reach), expit(z + reach)


def few(
    logits: Array, labels: Array, link: Link | None, observed: Array | None = None
) -> AveragedCurves:
    """Return the averaged link of few labelled photos; :func:`few_labels` also uses a pool."""
    return few_labels(logits, labels, link, observed).link


def few_labels(
    logits: Array,
    labels: Array,
    link: Link | None,
    observed: Array | None = None,
    *,
    pool: Array | None = None,
) -> FewLabels:
    """Return what few labelled photos say of scores.

    ``pool`` (M, K) holds the scores of all photos, labelled or not; None takes the labelled ones.
    """
    entries = read_entries(logits, labels, link, observed)
    blocks = [(u, y, np.ones_like(y) if w is None else w) for u, y, w in entries.rows()]
    u, y, w = (np.concatenate(part).astype(np.float64) for part in zip(*blocks, strict=True))
    every = u
    if pool is not None:
        every = limited_log_odds(link, to_numpy(pool).astype(np.float64), entries.limit)
    if every.ndim != 2 or every.shape[1] != u.shape[1]:
        raise ValueError(f"pool must be (M, {u.shape[1]}), got {every.shape}")
    scale = max(float(every.std()), 1e-6)
    if link is None:
        centre, prior = float(every.mean()), (np.zeros(3), np.array(WITHOUT_LINK))
    else:  # log-odds turn about 0, as a temperature turns them
        centre, prior = 0.0, (np.array([np.log(scale), 0.0, 0.0]), np.array(WITH_LINK))
    pooled = (every - centre) / scale
    means = pooled.mean(0) - pooled.mean()
    problem = CurveProblem(
        (u - centre) / scale, y, w, means, *prior, TYPICAL_SPREAD[link is not None]
    )
    mixture = CurveMixture.of(problem)
    slope, offset, weight = _points(mixture.mean(), mixture.covariance())
    doubting = mixture.expecting(_doubting(problem.typical))
    averaged = AveragedCurves(
        link,
        (slope / scale).tolist(),
        (offset - slope * centre / scale).tolist(),
        weight.tolist(),
        entries.limit,
    )
    return FewLabels(
        averaged,
        doubting.mean(),
        doubting.covariance(),
        centre,
        scale,
        len(u),
        mixture.spreads(),
        doubting,
        every,
    )


def _doubting(typical: float) -> float:
    """Return the typical spread that intervals expect, of the one that probabilities expect."""
    return max(typical, TYPICAL_OF_INTERVALS)


def _points(mean: Numbers, covariance: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return slopes and offsets (9, K) and weights (9,) of the Gauss-Hermite points."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(2))
    points = mean + np.einsum("kab,jb->jka", root, grid)  # (9, K, 2)
    weight = np.outer(weights, weights).reshape(-1)
    return np.exp(points[..., 0]), points[..., 1], weight / weight.sum()


def _spread_of(x: Numbers, mean: Numbers, covariance: Numbers) -> tuple[Numbers, Numbers]:
    """Return z (N, K) of the mean curve and its variance."""
    rise = np.exp(mean[:, 0]) * x
    variance = covariance[:, 0, 0] * rise**2 + 2 * covariance[:, 0, 1] * rise
    return rise + mean[:, 1], np.maximum(variance + covariance[:, 1, 1], 0.0)


def _moments(x: Numbers, mean: Numbers) -> Numbers:
    """Return what the covariance of a label's curve counts in the error of its mean, (K, 3).

    The variance of p is (p (1 - p))^2 (rise^2 c_aa + 2 rise c_ab + c_bb), which is linear in c.
    """
    rise = np.exp(mean[:, 0]) * x
    p = expit(rise + mean[:, 1])
    steep = (p * (1 - p)) ** 2
    return np.stack([(steep * rise**2).mean(0), 2 * (steep * rise).mean(0), steep.mean(0)], axis=1)


def _error(moments: Numbers, covariance: Numbers) -> float:
    parts = covariance[:, [0, 0, 1], [0, 1, 1]]  # (K, 3)
    return float(np.sqrt((moments * parts).sum(1).mean()))


def _shares(
    link: AveragedCurves, every: Numbers, x: Numbers, mean: Numbers, covariance: Numbers
) -> Numbers:
    """Return the shares of the pool, (K, 3), with their intervals by the delta method."""
    z, _ = _spread_of(x, mean, covariance)
    slope = expit(z) * expit(-z)
    towards = np.stack([(slope * (z - mean[:, 1])).mean(0), slope.mean(0)], axis=1)
    share = np.zeros(x.shape[1])
    for a, b, w in zip(link.slope, link.offset, link.weight, strict=True):
        share += w * expit(a * every + b).mean(0)
    variance = np.einsum("ka,kab,kb->k", towards, covariance, towards)
    # On the log-odds of the share, so that both ends are shares.
    middle = np.clip(share, 1e-9, 1 - 1e-9)
    reach = 1.645 * np.sqrt(variance) / (middle * (1 - middle))
    odds = np.log(middle / (1 - middle))
    return np.stack([share, expit(odds - reach), expit(odds + reach)], axis=1)
