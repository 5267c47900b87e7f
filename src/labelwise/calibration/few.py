"""Few labels: probabilities and intervals from 10 to 200 labelled photos and a pool without labels.

    z = exp(alpha_k) x + beta_k        x = (u - m) / s     u: log-odds, or raw scores without a link
    alpha_k ~ N(alpha, tau_a^2)        beta_k ~ N(beta + gamma g_k, tau_b^2)

s is the deviation of all scores of the pool and m their mean, or 0 where there is a link. g_k is
the mean x of label k in the pool, less that of all labels. Shared numbers have wide priors, around
"the link is right" where there is one. With alpha_k = alpha + tau_a e_k and beta_k = beta +
gamma g_k + tau_b f_k the mode is found by Newton's method for each pair (tau_a, tau_b) of a grid,
and pairs are weighed by a law of tau and by Laplace's evidence p(y | tau).

The link averages over what is left open: p = mean over (alpha_k, beta_k) of sigma(z), by 3 x 3
Gauss-Hermite points of the normal approximation. All slopes are positive, so each label keeps its
order. Intervals, shares and the expected error take a wider law of tau: with the link's own they
were too narrow where labels differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from labelwise.base.array_api import A, like, log_sigmoid, namespace
from labelwise.base.arrays import Array, Numbers, to_numpy
from labelwise.base.special import expit, ndtri
from labelwise.calibration.entries import OnLogOdds, limited_log_odds, read_entries
from labelwise.links import Link

Spreads = tuple[float, float]
SPREADS = (0.02, 0.1, 0.25, 0.6, 1.5)  # tau
STEPS, TOLERANCE = 60, 1e-6  # of the value: the step after it gains its square
LARGEST_SLOPE = 20.0
LIKELY = 1e-4  # of the weight: pairs below it are left out of means
FACTORS = 1000
NEAR = 1e-6  # of the weight with all rows: pairs below it are not asked without some of them


@dataclass(frozen=True, eq=False)
class Mode:
    """The mode of a problem under some spreads."""

    shared: Numbers  # alpha, beta, gamma
    own: Numbers  # e and f (K, 2)
    evidence: float
    curve: Numbers  # (alpha_k, beta_k), (K, 2)
    fisher: Numbers  # their information (K, 2, 2)


@dataclass(frozen=True, eq=False)
class CurveProblem:
    """Entries (n, K) with what is known of the shared numbers beforehand; w is 1 or 0.

    Each label's known entries come first, as far as any label has some, of these ``photo``s.
    """

    x: Numbers
    y: Numbers
    w: Numbers
    pool_mean: Numbers
    before: Numbers
    deviation: Numbers
    typical: float
    photo: NDArray[np.int64]

    def without(self, out: NDArray[np.bool_]) -> "CurveProblem":
        return replace(self, w=self.w * ~out[self.photo])

    def curves(self, shared: Numbers, own: Numbers, spreads: Spreads) -> Numbers:
        alpha = np.minimum(shared[0] + spreads[0] * own[:, 0], np.log(LARGEST_SLOPE))
        beta = shared[1] + shared[2] * self.pool_mean + spreads[1] * own[:, 1]
        return np.stack([alpha, beta], axis=1)

    def at(self, shared: Numbers, own: Numbers, spreads: Spreads) -> tuple[float, Numbers, Numbers]:
        loss, gradient, fisher = self.of_curve(self.curves(shared, own, spreads))
        far = ((shared - self.before) / self.deviation) ** 2
        return float(loss + far.sum() / 2 + (own**2).sum() / 2), gradient, fisher

    def of_curve(self, curve: Numbers) -> tuple[float, Numbers, Numbers]:
        """Return loss, gradient (K, 2) and Fisher information (K, 2, 2) in (alpha_k, beta_k)."""
        rise = np.exp(curve[:, 0]) * self.x  # dz / d alpha
        z = rise + curve[:, 1]
        small = np.exp(-np.abs(z))
        whole = 1 + small
        p = np.where(z >= 0, 1.0, small) / whole
        # Logarithms are dear: one of a product, which is below 2^FACTORS, instead of many.
        firsts = np.arange(0, len(z), FACTORS)
        products = np.multiply.reduceat(np.where(self.w > 0, whole, 1.0), firsts, axis=0)
        loss = np.log(products).sum() + (self.w * (np.maximum(z, 0) - self.y * z)).sum()
        residual, curvature = self.w * (p - self.y), self.w * p * (1 - p)
        bent = curvature * rise
        gradient = np.stack([(residual * rise).sum(0), residual.sum(0)], axis=1)
        cross = bent.sum(0)
        rows = [(bent * rise).sum(0), cross, cross, curvature.sum(0)]
        return float(loss), gradient, np.stack(rows, axis=1).reshape(-1, 2, 2)

    def maps(self, spreads: Spreads) -> tuple[Numbers, Numbers]:
        """Return d(alpha_k, beta_k) / d(shared), (K, 2, 3), and / d(own), (2, 2)."""
        ones, zeros = np.ones_like(self.pool_mean), np.zeros_like(self.pool_mean)
        rows = [[ones, zeros, zeros], [zeros, ones, self.pool_mean]]
        return np.moveaxis(np.array(rows), 2, 0), np.diag(spreads)

    def solve(self, spreads: Spreads, start: tuple[Numbers, Numbers] | None = None) -> Mode:
        """Return the mode by damped Newton steps; own numbers are eliminated per label."""
        shared, own = start or (self.before.copy(), np.zeros((self.x.shape[1], 2)))
        to_shared, to_own = self.maps(spreads)
        value, gradient, fisher = self.at(shared, own, spreads)
        for _ in range(STEPS):
            reduced, _, by_label, cross = self._eliminated(fisher, to_shared, to_own)
            own_gradient = gradient @ to_own + own
            pulled = np.linalg.solve(by_label, own_gradient[:, :, None])[:, :, 0]
            shared_gradient = np.einsum("kas,ka->s", to_shared, gradient)
            shared_gradient += (shared - self.before) / self.deviation**2
            step = np.linalg.solve(reduced, shared_gradient - np.einsum("ksa,ka->s", cross, pulled))
            along = np.einsum("ksa,s->ka", cross, step)
            own_step = np.linalg.solve(by_label, (own_gradient - along)[:, :, None])[:, :, 0]
            size, at = 1.0, (value, gradient, fisher)
            while size > 1e-6:
                at = self.at(shared - size * step, own - size * own_step, spreads)
                if at[0] <= value:
                    break
                size /= 2
            if at[0] > value:
                break
            shared, own = shared - size * step, own - size * own_step
            gain, (value, gradient, fisher) = value - at[0], at
            if gain < TOLERANCE * (1 + abs(value)):
                break
        reduced, log_det, _, _ = self._eliminated(fisher, to_shared, to_own)
        evidence = -value - (log_det + np.linalg.slogdet(reduced)[1]) / 2
        return Mode(shared, own, float(evidence), self.curves(shared, own, spreads), fisher)

    def covariance(self, mode: Mode, spreads: Spreads, times: float = 1.0) -> Numbers:
        to_shared, to_own = self.maps(spreads)
        reduced, _, by_label, cross = self._eliminated(times * mode.fisher, to_shared, to_own)
        inverse = np.linalg.inv(by_label)
        moved = to_shared - to_own @ inverse @ np.swapaxes(cross, 1, 2)  # with own following
        own: Numbers = to_own @ inverse @ to_own.T
        return own + moved @ np.linalg.inv(reduced) @ np.swapaxes(moved, 1, 2)

    def _eliminated(
        self, fisher: Numbers, to_shared: Numbers, to_own: Numbers
    ) -> tuple[Numbers, float, Numbers, Numbers]:
        """Return the Hessian of the shared numbers without the own ones, and what it came from."""
        by_label = to_own.T @ fisher @ to_own + np.eye(2)  # (K, 2, 2)
        cross = np.swapaxes(to_shared, 1, 2) @ fisher @ to_own  # (K, 3, 2)
        whole = (np.swapaxes(to_shared, 1, 2) @ fisher @ to_shared).sum(0)
        whole += np.diag(1 / self.deviation**2)
        reduced = whole - (cross @ np.linalg.solve(by_label, np.swapaxes(cross, 1, 2))).sum(0)
        return reduced, float(np.linalg.slogdet(by_label)[1].sum()), by_label, cross


@dataclass(frozen=True, eq=False)
class CurveMixture:
    """The modes of pairs of spreads, weighed by their evidence and a law of the spreads."""

    problem: CurveProblem
    modes: dict[Spreads, Mode]
    typical: float

    @classmethod
    def of(cls, problem: CurveProblem) -> "CurveMixture":
        modes: dict[Spreads, Mode] = {}
        for row, first in enumerate(SPREADS):
            for column, second in enumerate(SPREADS):
                near = (first, SPREADS[column - 1]) if column else (SPREADS[row - 1], second)
                start = None
                if near in modes:  # the same curves, as these spreads say them
                    ratio = np.array(near) / np.array([first, second])
                    start = modes[near].shared, modes[near].own * ratio
                modes[first, second] = problem.solve((first, second), start)
        return cls(problem, modes, problem.typical)

    def _likely(self, least: float) -> list[tuple[float, Spreads, Mode]]:
        # A geometric grid of tau covers widths in proportion to tau.
        level = [
            mode.evidence + np.log(pair[0] * pair[1]) - sum(pair) / self.typical
            for pair, mode in self.modes.items()
        ]
        weights = np.exp(np.array(level) - max(level))
        pairs = zip((weights / weights.sum()).tolist(), self.modes.items(), strict=True)
        likely = [(weight, *rest) for weight, rest in pairs if weight > least]
        total = sum(weight for weight, _, _ in likely)
        return [(weight / total, pair, mode) for weight, pair, mode in likely]

    def without(self, out: NDArray[np.bool_]) -> "CurveMixture":
        problem, likely = self.problem.without(out), self._likely(NEAR)
        modes = {pair: problem.solve(pair, (mode.shared, mode.own)) for _, pair, mode in likely}
        return CurveMixture(problem, modes, self.typical)

    def mean(self) -> Numbers:
        curves = (weight * mode.curve for weight, _, mode in self._likely(LIKELY))
        return sum(curves, np.zeros(()))

    def covariance(self, times: float = 1.0) -> Numbers:
        mean, whole = self.mean(), np.zeros(())
        for weight, pair, mode in self._likely(LIKELY):
            away = mode.curve - mean
            between = away[:, :, None] * away[:, None, :] / times
            whole = whole + weight * (self.problem.covariance(mode, pair, times) + between)
        return whole


TYPICAL_SPREAD = (1.0, 0.05)  # without, with a link: tau has the density exp(-tau / typical)
TYPICAL_OF_INTERVALS = 0.5  # at least
MOST_TIMES = 1000  # as many labelled photos are tried
WITH_LINK, WITHOUT_LINK = (0.5, 0.2, 0.05), (1.5, 3.0, 1.0)  # deviations of alpha, beta, gamma


class AveragedCurves(OnLogOdds):
    """``p = sum over j of weight_j sigma(slope_jk u + offset_jk)``: curves, averaged per label."""

    kind = "averaged"
    numbers = ("slope", "offset", "weight")

    def __init__(
        self,
        link: Link | None,
        slope: Sequence[Sequence[float]] | Numbers,
        offset: Sequence[Sequence[float]] | Numbers,
        weight: Sequence[float] | Numbers,
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

    def numbers_of(self, column: int) -> dict[str, object]:
        own = slice(column, column + 1)
        slope, offset = (side[:, own].tolist() for side in (self.slope, self.offset))
        return {"slope": slope, "offset": offset, "weight": self.weight.tolist()}


@dataclass(frozen=True, eq=False)
class FewLabels:
    """The link, and what is left open: per label a normal over (alpha_k, beta_k).

    ``mixture`` expects what intervals expect; ``pool`` (M, K) are the log-odds of all photos.
    """

    link: AveragedCurves
    mixture: CurveMixture
    centre: float
    scale: float
    photos: int
    pool: Numbers

    @cached_property
    def mean(self) -> Numbers:
        return self.mixture.mean()

    @cached_property
    def covariance(self) -> Numbers:
        return self.mixture.covariance()

    def mean_without(self, out: NDArray[np.bool_]) -> Numbers:
        return self.mixture.without(out).mean()

    @cached_property
    def shares(self) -> Numbers:
        """The labels' shares of the pool and the ends of their 90 % intervals, (K, 3).

        By the delta method, on the log-odds of the share, so that both ends are shares.
        """
        z, _ = _spread_of((self.pool - self.centre) / self.scale, self.mean, self.covariance)
        slope = expit(z) * expit(-z)
        towards = np.stack([(slope * (z - self.mean[:, 1])).mean(0), slope.mean(0)], axis=1)
        share = np.zeros(z.shape[1])
        for a, b, w in zip(self.link.slope, self.link.offset, self.link.weight, strict=True):
            share += w * expit(a * self.pool + b).mean(0)
        variance = np.einsum("ka,kab,kb->k", towards, self.covariance, towards)
        middle = np.clip(share, 1e-9, 1 - 1e-9)
        reach = 1.645 * np.sqrt(variance) / (middle * (1 - middle))
        odds = np.log(middle / (1 - middle))
        return np.stack([share, expit(odds - reach), expit(odds + reach)], axis=1)

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
        more = self.photos_to_halve
        way = f"about {more or 0:,} {photos} in all would"
        if more is None:
            way = f"{MOST_TIMES:,} times as many {photos} would not"
        return (
            f"probabilities are estimated to be {self.error:.2g} too high or too low (root mean "
            f"square); {way} halve that"
        )

    @cached_property
    def _moments(self) -> Numbers:
        """What c_aa, c_ab and c_bb of a label's curve count in the error of its mean, (K, 3)."""
        # The variance of p is (p (1 - p))^2 (rise^2 c_aa + 2 rise c_ab + c_bb), linear in c.
        rise = np.exp(self.mean[:, 0]) * ((self.pool - self.centre) / self.scale)
        p = expit(rise + self.mean[:, 1])
        steep = (p * (1 - p)) ** 2
        moments = (steep * rise**2).mean(0), 2 * (steep * rise).mean(0), steep.mean(0)
        return np.stack(moments, axis=1)

    def interval(self, logits: Array, confidence: float = 0.9) -> tuple[Numbers, Numbers]:
        u = limited_log_odds(self.link.link, to_numpy(logits).astype(np.float64), self.link.limit)
        z, variance = _spread_of((u - self.centre) / self.scale, self.mean, self.covariance)
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
    """Return what few labelled photos say of scores; ``pool`` (M, K) holds those of all photos."""
    entries = read_entries(logits, labels, link, observed)
    u, y, w = entries.whole()
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
    photo = np.argsort(w <= 0, axis=0, kind="stable")[: max(1, int((w > 0).sum(0).max()))]
    x, y, w = (np.take_along_axis(part, photo, 0) for part in ((u - centre) / scale, y, w))
    problem = CurveProblem(x, y, w, means, *prior, TYPICAL_SPREAD[link is not None], photo)
    mixture = CurveMixture.of(problem)
    slope, offset, weight = _points(mixture.mean(), mixture.covariance())
    doubting = replace(mixture, typical=max(problem.typical, TYPICAL_OF_INTERVALS))
    offset = offset - slope * centre / scale
    averaged = AveragedCurves(link, slope / scale, offset, weight, entries.limit)
    return FewLabels(averaged, doubting, centre, scale, len(u), every)


def _points(mean: Numbers, covariance: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(2))
    points = mean + np.einsum("kab,jb->jka", root, grid)  # (9, K, 2)
    weight = np.outer(weights, weights).reshape(-1)
    return np.exp(points[..., 0]), points[..., 1], weight / weight.sum()


def _spread_of(x: Numbers, mean: Numbers, covariance: Numbers) -> tuple[Numbers, Numbers]:
    rise = np.exp(mean[:, 0]) * x
    variance = covariance[:, 0, 0] * rise**2 + 2 * covariance[:, 0, 1] * rise
    return rise + mean[:, 1], np.maximum(variance + covariance[:, 1, 1], 0.0)


def _error(moments: Numbers, covariance: Numbers) -> float:
    return float(np.sqrt((moments * covariance[:, [0, 0, 1], [0, 1, 1]]).sum(1).mean()))
