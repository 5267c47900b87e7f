"""Curves of labels that are drawn towards a shared one: their modes, and what is left open.

    z = exp(alpha_k) x + beta_k
    alpha_k = alpha + tau_a e_k        beta_k = beta + gamma g_k + tau_b f_k        e, f ~ N(0, 1)

For a pair of spreads (tau_a, tau_b) the mode is found by Newton's method, and the evidence
p(y | tau) by Laplace's. A mixture weighs the pairs of a grid by their evidence and a law of tau.
What a mixture says without some of its rows starts from its own modes, and asks only the pairs
that have any weight: a few steps where a fresh fit takes hundreds.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Spreads = tuple[float, float]
SPREADS = (0.02, 0.1, 0.25, 0.6, 1.5)  # tau
STEPS, TOLERANCE = 60, 1e-6  # of the value: the step after it gains its square
LARGEST_SLOPE = 20.0
LIKELY = 1e-4  # of the weight: pairs below it are left out of means
FACTORS = 1000
NEAR = 1e-6  # of the weight with all rows: pairs below it are not asked without some of them


@dataclass(frozen=True, eq=False)
class Mode:
    """The mode: shared (alpha, beta, gamma), own e and f (K, 2), and the log evidence.

    ``curve`` (K, 2) are its (alpha_k, beta_k), and ``fisher`` (K, 2, 2) what is known of them.
    """

    shared: Numbers
    own: Numbers
    evidence: float
    curve: Numbers
    fisher: Numbers


@dataclass(frozen=True, eq=False)
class CurveProblem:
    """Entries (n, K) with what is known of the shared numbers beforehand; w is 1 or 0."""

    x: Numbers
    y: Numbers
    w: Numbers
    pool_mean: Numbers
    before: Numbers
    deviation: Numbers
    typical: float

    def without(self, out: NDArray[np.bool_]) -> "CurveProblem":
        """Return the problem without some of its rows."""
        return replace(self, x=self.x[~out], y=self.y[~out], w=self.w[~out])

    def curves(self, shared: Numbers, own: Numbers, spreads: Spreads) -> Numbers:
        """Return (alpha_k, beta_k), (K, 2)."""
        alpha = np.minimum(shared[0] + spreads[0] * own[:, 0], np.log(LARGEST_SLOPE))
        return np.stack(
            [alpha, shared[1] + shared[2] * self.pool_mean + spreads[1] * own[:, 1]], axis=1
        )

    def value(self, shared: Numbers, own: Numbers, spreads: Spreads) -> float:
        """Return the negative log posterior, without constants."""
        return self._at(shared, own, spreads)[0]

    def information(self, curve: Numbers) -> tuple[Numbers, Numbers]:
        """Return gradient (K, 2) and Fisher information (K, 2, 2) in (alpha_k, beta_k)."""
        return self._of_curve(curve)[1:]

    def _at(
        self, shared: Numbers, own: Numbers, spreads: Spreads
    ) -> tuple[float, Numbers, Numbers]:
        """Return the negative log posterior, and the information of its curves."""
        loss, gradient, fisher = self._of_curve(self.curves(shared, own, spreads))
        far = ((shared - self.before) / self.deviation) ** 2
        return float(loss + far.sum() / 2 + (own**2).sum() / 2), gradient, fisher

    def _of_curve(self, curve: Numbers) -> tuple[float, Numbers, Numbers]:
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
        value, gradient, fisher = self._at(shared, own, spreads)
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
                at = self._at(shared - size * step, own - size * own_step, spreads)
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
        """Return the covariance (K, 2, 2) of the curves; of ``times`` as many photos."""
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
        back = np.linalg.solve(by_label, np.swapaxes(cross, 1, 2))
        reduced = whole - (cross @ back).sum(0)
        return reduced, float(np.linalg.slogdet(by_label)[1].sum()), by_label, cross


@dataclass(frozen=True, eq=False)
class CurveMixture:
    """The modes of pairs of spreads, with their weights."""

    problem: CurveProblem
    parts: tuple[tuple[float, Spreads, Mode], ...]

    @classmethod
    def of(cls, problem: CurveProblem) -> "CurveMixture":
        """Return the mixture of all pairs of the grid, weighed by the problem's typical spread."""
        modes: dict[Spreads, Mode] = {}
        for row, first in enumerate(SPREADS):
            for column, second in enumerate(SPREADS):
                near = (first, SPREADS[column - 1]) if column else (SPREADS[row - 1], second)
                start = None
                if near in modes:  # the same curves, as these spreads say them
                    ratio = np.array(near) / np.array([first, second])
                    start = modes[near].shared, modes[near].own * ratio
                modes[first, second] = problem.solve((first, second), start)
        return cls._weighed(problem, modes, problem.typical)

    @classmethod
    def _weighed(
        cls, problem: CurveProblem, modes: dict[Spreads, Mode], typical: float
    ) -> "CurveMixture":
        # A geometric grid of tau covers widths in proportion to tau.
        level = np.array(
            [
                mode.evidence + np.log(pair[0] * pair[1]) - sum(pair) / typical
                for pair, mode in modes.items()
            ]
        )
        weights = np.exp(level - level.max())
        weights /= weights.sum()
        parts = zip(weights.tolist(), modes.items(), strict=True)
        return cls(problem, tuple((weight, *rest) for weight, rest in parts))

    def expecting(self, typical: float) -> "CurveMixture":
        """Return the same modes, weighed by their evidence and another law of the spreads."""
        modes = {pair: mode for _, pair, mode in self.parts}
        return self._weighed(self.problem, modes, typical)

    def without(self, out: NDArray[np.bool_], typical: float) -> "CurveMixture":
        """Return the mixture without some rows, weighed by a law of the spreads."""
        problem = self.problem.without(out)
        modes = {
            pair: problem.solve(pair, (mode.shared, mode.own))
            for weight, pair, mode in self.parts
            if weight > NEAR
        }
        return self._weighed(problem, modes, typical)

    def _likely(self) -> tuple[tuple[float, Spreads, Mode], ...]:
        likely = [part for part in self.parts if part[0] > LIKELY]
        total = sum(weight for weight, _, _ in likely)
        return tuple((weight / total, pair, mode) for weight, pair, mode in likely)

    def spreads(self) -> Spreads:
        """Return the mean spreads."""
        first, second = (
            sum(weight * pair[axis] for weight, pair, _ in self.parts) for axis in (0, 1)
        )
        return first, second

    def mean(self) -> Numbers:
        """Return the mean of (alpha_k, beta_k), (K, 2)."""
        return sum((weight * mode.curve for weight, _, mode in self._likely()), np.zeros(()))

    def covariance(self, times: float = 1.0) -> Numbers:
        """Return the covariance of (alpha_k, beta_k), (K, 2, 2); of ``times`` as many photos."""
        mean, whole = self.mean(), np.zeros(())
        for weight, pair, mode in self._likely():
            away = mode.curve - mean
            between = away[:, :, None] * away[:, None, :] / times
            whole = whole + weight * (self.problem.covariance(mode, pair, times) + between)
        return whole
