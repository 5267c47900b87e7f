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
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, ndtri
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelwise.calibrate.entries import OnLogOdds, limited_log_odds, read_entries
from labelwise.links import Link
from labelwise.numeric.arrays import Array, to_tensor

__all__ = ["AveragedCurves", "FewLabels", "few", "few_labels"]

Numbers = NDArray[np.float64]
SPREADS = (0.02, 0.1, 0.25, 0.6, 1.5)  # tau
TYPICAL_SPREAD = (1.0, 0.05)  # without, with a link: tau has the density exp(-tau / typical)
TYPICAL_OF_INTERVALS = 0.5  # at least
WITH_LINK, WITHOUT_LINK = (0.5, 0.2, 0.05), (1.5, 3.0, 1.0)  # deviations of alpha, beta, gamma
STEPS, TOLERANCE = 60, 1e-8
LARGEST_SLOPE = 20.0


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
        super().__init__()
        self.link, self.limit = link, limit
        self.slope: Tensor
        self.offset: Tensor
        self.weight: Tensor
        for name, value in (("slope", slope), ("offset", offset), ("weight", weight)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))
        if not (self.slope > 0).all() or not (self.weight > 0).all():
            raise ValueError("slopes and weights must be positive")

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        u = limited_log_odds(self.link, logits, self.limit)
        log_p = torch.full_like(u, -torch.inf)
        log_q = log_p.clone()
        total = self.weight.sum()
        for slope, offset, weight in zip(self.slope, self.offset, self.weight, strict=True):
            z, log_w = slope.to(u.dtype) * u + offset.to(u.dtype), (weight / total).log()
            log_p = torch.logaddexp(log_p, logsigmoid(z) + log_w.to(u.dtype))
            log_q = torch.logaddexp(log_q, logsigmoid(-z) + log_w.to(u.dtype))
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

    ``shares`` (K, 3) are the labels' shares of the pool and the ends of their 90 % intervals.
    ``error`` is the expected error of a probability on the pool (root mean square), and
    ``photos_to_halve`` how many labelled photos in all would halve it; None if none would.
    ``spreads`` are the expected (tau_a, tau_b).
    """

    link: AveragedCurves
    mean: Numbers  # (K, 2)
    covariance: Numbers  # (K, 2, 2)
    centre: float
    scale: float
    photos: int
    spreads: tuple[float, float]
    shares: Numbers
    error: float
    photos_to_halve: int | None

    def interval(self, logits: Array, confidence: float = 0.9) -> tuple[Numbers, Numbers]:
        """Return the ends (N, K) of the interval of each probability."""
        with torch.no_grad():
            u = limited_log_odds(self.link.link, to_tensor(logits).double(), self.link.limit)
        x = (u.numpy() - self.centre) / self.scale
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
    blocks = [
        (u.double(), y.double(), torch.ones_like(y) if w is None else w)
        for u, y, w in entries.rows()
    ]
    u, y, w = (torch.cat(part).double().cpu().numpy() for part in zip(*blocks, strict=True))
    with torch.no_grad():
        every = (
            u
            if pool is None
            else limited_log_odds(link, to_tensor(pool).double(), entries.limit).cpu().numpy()
        )
    if every.ndim != 2 or every.shape[1] != u.shape[1]:
        raise ValueError(f"pool must be (M, {u.shape[1]}), got {every.shape}")
    scale = max(float(every.std()), 1e-6)
    if link is None:
        centre, prior = float(every.mean()), (np.zeros(3), np.array(WITHOUT_LINK))
    else:  # log-odds turn about 0, as a temperature turns them
        centre, prior = 0.0, (np.array([np.log(scale), 0.0, 0.0]), np.array(WITH_LINK))
    pooled = (every - centre) / scale
    means = pooled.mean(0) - pooled.mean()
    problem = _Problem((u - centre) / scale, y, w, means, *prior, TYPICAL_SPREAD[link is not None])
    mixture = _Mixture.of(problem)
    slope, offset, weight = _points(*mixture.posterior())
    doubting = mixture.expecting(max(problem.typical, TYPICAL_OF_INTERVALS))
    mean, covariance = doubting.posterior()
    averaged = AveragedCurves(
        link,
        (slope / scale).tolist(),
        (offset - slope * centre / scale).tolist(),
        weight.tolist(),
        entries.limit,
    )
    error = _error(pooled, mean, covariance)
    return FewLabels(
        averaged,
        mean,
        covariance,
        centre,
        scale,
        len(u),
        mixture.spreads(),
        _shares(averaged, every, pooled, mean, covariance),
        error,
        _photos_to_halve(doubting, pooled, error, len(u)),
    )


@dataclass(frozen=True)
class _Fit:
    """The mode: shared (alpha, beta, gamma), own e and f (K, 2), and the log evidence."""

    shared: Numbers
    own: Numbers
    evidence: float


@dataclass(frozen=True, eq=False)
class _Problem:
    """Entries (n, K) with what is known of the shared numbers beforehand."""

    x: Numbers
    y: Numbers
    w: Numbers
    pool_mean: Numbers
    before: Numbers
    deviation: Numbers
    typical: float

    def curves(self, shared: Numbers, own: Numbers, spreads: tuple[float, float]) -> Numbers:
        """Return (alpha_k, beta_k), (K, 2)."""
        alpha = np.minimum(shared[0] + spreads[0] * own[:, 0], np.log(LARGEST_SLOPE))
        return np.stack(
            [alpha, shared[1] + shared[2] * self.pool_mean + spreads[1] * own[:, 1]], axis=1
        )

    def value(self, shared: Numbers, own: Numbers, spreads: tuple[float, float]) -> float:
        """Return the negative log posterior, without constants."""
        curve = self.curves(shared, own, spreads)
        z = np.exp(curve[:, 0]) * self.x + curve[:, 1]
        loss = (self.w * (np.logaddexp(0, z) - self.y * z)).sum()
        far = ((shared - self.before) / self.deviation) ** 2
        return float(loss + far.sum() / 2 + (own**2).sum() / 2)

    def information(self, curve: Numbers) -> tuple[Numbers, Numbers]:
        """Return gradient (K, 2) and Fisher information (K, 2, 2) in (alpha_k, beta_k)."""
        rise = np.exp(curve[:, 0]) * self.x  # dz / d alpha
        p = expit(rise + curve[:, 1])
        residual, curvature = self.w * (p - self.y), self.w * p * (1 - p)
        gradient = np.stack([(residual * rise).sum(0), residual.sum(0)], axis=1)
        cross = (curvature * rise).sum(0)
        rows = [(curvature * rise * rise).sum(0), cross, cross, curvature.sum(0)]
        return gradient, np.stack(rows, axis=1).reshape(-1, 2, 2)

    def maps(self, spreads: tuple[float, float]) -> tuple[Numbers, Numbers]:
        """Return d(alpha_k, beta_k) / d(shared), (K, 2, 3), and / d(own), (2, 2)."""
        ones, zeros = np.ones_like(self.pool_mean), np.zeros_like(self.pool_mean)
        rows = [[ones, zeros, zeros], [zeros, ones, self.pool_mean]]
        return np.moveaxis(np.array(rows), 2, 0), np.diag(spreads)

    def solve(
        self, spreads: tuple[float, float], start: tuple[Numbers, Numbers] | None = None
    ) -> _Fit:
        """Return the mode by damped Newton steps; own numbers are eliminated per label."""
        shared, own = start or (self.before.copy(), np.zeros((self.x.shape[1], 2)))
        to_shared, to_own = self.maps(spreads)
        value = self.value(shared, own, spreads)
        for _ in range(STEPS):
            gradient, fisher = self.information(self.curves(shared, own, spreads))
            reduced, _, by_label, cross = self._eliminated(fisher, to_shared, to_own)
            own_gradient = gradient @ to_own + own
            pulled = np.linalg.solve(by_label, own_gradient[:, :, None])[:, :, 0]
            shared_gradient = np.einsum("kas,ka->s", to_shared, gradient)
            shared_gradient += (shared - self.before) / self.deviation**2
            step = np.linalg.solve(reduced, shared_gradient - np.einsum("ksa,ka->s", cross, pulled))
            along = np.einsum("ksa,s->ka", cross, step)
            own_step = np.linalg.solve(by_label, (own_gradient - along)[:, :, None])[:, :, 0]
            size, best = 1.0, value
            while size > 1e-6:
                best = self.value(shared - size * step, own - size * own_step, spreads)
                if best <= value:
                    break
                size /= 2
            if best > value:
                break
            shared, own = shared - size * step, own - size * own_step
            if value - best < TOLERANCE * (1 + abs(value)):
                value = best
                break
            value = best
        _, fisher = self.information(self.curves(shared, own, spreads))
        reduced, log_det, _, _ = self._eliminated(fisher, to_shared, to_own)
        evidence = -value - (log_det + np.linalg.slogdet(reduced)[1]) / 2
        return _Fit(shared, own, float(evidence))

    def posterior(
        self, fit: _Fit, spreads: tuple[float, float], times: float = 1.0
    ) -> tuple[Numbers, Numbers]:
        """Return mean and covariance of (alpha_k, beta_k); of ``times`` as many photos."""
        curve = self.curves(fit.shared, fit.own, spreads)
        _, fisher = self.information(curve)
        to_shared, to_own = self.maps(spreads)
        reduced, _, by_label, cross = self._eliminated(times * fisher, to_shared, to_own)
        inverse = np.linalg.inv(by_label)
        moved = to_shared - to_own @ inverse @ np.swapaxes(cross, 1, 2)  # with own following
        covariance = to_own @ inverse @ to_own.T + moved @ np.linalg.inv(reduced) @ np.swapaxes(
            moved, 1, 2
        )
        return curve, covariance

    def _eliminated(
        self, fisher: Numbers, to_shared: Numbers, to_own: Numbers
    ) -> tuple[Numbers, float, Numbers, Numbers]:
        """Return the Hessian of the shared numbers without the own ones, and what it came from."""
        by_label = to_own.T @ fisher @ to_own + np.eye(2)  # (K, 2, 2)
        cross = np.swapaxes(to_shared, 1, 2) @ fisher @ to_own  # (K, 3, 2)
        whole = np.einsum("kas,kab,kbt->st", to_shared, fisher, to_shared)
        whole += np.diag(1 / self.deviation**2)
        back = np.linalg.solve(by_label, np.swapaxes(cross, 1, 2))
        reduced = whole - np.einsum("ksa,kat->st", cross, back)
        return reduced, float(np.linalg.slogdet(by_label)[1].sum()), by_label, cross


@dataclass(frozen=True, eq=False)
class _Mixture:
    """The fits of all pairs of spreads, with their weights."""

    problem: _Problem
    parts: tuple[tuple[float, tuple[float, float], _Fit], ...]

    @classmethod
    def of(cls, problem: _Problem) -> "_Mixture":
        fits: list[tuple[tuple[float, float], _Fit]] = []
        start = None
        for first in SPREADS:
            for second in SPREADS:
                fit = problem.solve((first, second), start)
                start = (fit.shared, fit.own)
                fits.append(((first, second), fit))
        whole = cls(problem, tuple((1.0, *fit) for fit in fits))
        return whole.expecting(problem.typical)

    def expecting(self, typical: float) -> "_Mixture":
        """Return the same fits, weighed by their evidence and another law of the spreads."""
        # A geometric grid of tau covers widths in proportion to tau.
        level = np.array(
            [
                fit.evidence + np.log(pair[0] * pair[1]) - sum(pair) / typical
                for _, pair, fit in self.parts
            ]
        )
        weights = np.exp(level - level.max())
        weights /= weights.sum()
        parts = zip(weights.tolist(), self.parts, strict=True)
        return _Mixture(self.problem, tuple((weight, *rest) for weight, (_, *rest) in parts))

    def _likely(self) -> "tuple[tuple[float, tuple[float, float], _Fit], ...]":
        return tuple(part for part in self.parts if part[0] > 1e-4)

    def spreads(self) -> tuple[float, float]:
        """Return the mean spreads."""
        first, second = (
            sum(weight * pair[axis] for weight, pair, _ in self.parts) for axis in (0, 1)
        )
        return first, second

    def posterior(self, times: float = 1.0) -> tuple[Numbers, Numbers]:
        """Return mean and covariance of (alpha_k, beta_k); of ``times`` as many photos."""
        likely = self._likely()
        weights = np.array([weight for weight, _, _ in likely])
        weights /= weights.sum()
        found = [self.problem.posterior(fit, pair, times) for _, pair, fit in likely]
        means = np.stack([mean for mean, _ in found])
        mean = np.einsum("p,pka->ka", weights, means)
        away = means - mean
        within = np.einsum("p,pkab->kab", weights, np.stack([own for _, own in found]))
        return mean, within + np.einsum("p,pka,pkb->kab", weights, away, away) / times


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


def _error(x: Numbers, mean: Numbers, covariance: Numbers) -> float:
    z, variance = _spread_of(x, mean, covariance)
    p = expit(z)
    return float(np.sqrt(((p * (1 - p)) ** 2 * variance).mean()))


def _shares(
    link: AveragedCurves, every: Numbers, x: Numbers, mean: Numbers, covariance: Numbers
) -> Numbers:
    """Return the shares of the pool, (K, 3), with their intervals by the delta method."""
    z, _ = _spread_of(x, mean, covariance)
    slope = expit(z) * expit(-z)
    towards = np.stack([(slope * (z - mean[:, 1])).mean(0), slope.mean(0)], axis=1)
    share = np.zeros(x.shape[1])
    for a, b, w in zip(link.slope.numpy(), link.offset.numpy(), link.weight.numpy(), strict=True):
        share += w * expit(a * every + b).mean(0)
    variance = np.einsum("ka,kab,kb->k", towards, covariance, towards)
    # On the log-odds of the share, so that both ends are shares.
    middle = np.clip(share, 1e-9, 1 - 1e-9)
    reach = 1.645 * np.sqrt(variance) / (middle * (1 - middle))
    odds = np.log(middle / (1 - middle))
    return np.stack([share, expit(odds - reach), expit(odds + reach)], axis=1)


def _photos_to_halve(mixture: _Mixture, pooled: Numbers, error: float, photos: int) -> int | None:
    """Return how many photos like these would halve the expected error."""
    for times in np.geomspace(1.1, 1000, 72).tolist():
        if _error(pooled, *mixture.posterior(times)) <= error / 2:
            needed: int = ceil(times * photos)
            return needed
    return None
