"""Features of the log-odds, scaled over all observed entries to mean 0 and variance 1.

Scaled features make Newton steps well conditioned whatever the unit of the scores, and give a
penalty on their weights one meaning: squared nats of log-odds.

Logistic fits by damped Newton steps: every label at once, in float64, over blocks of rows.

    z = sum over f of theta_f phi_f(u)  +  theta_last          phi: features of the log-odds
    minimise over theta   sum over entries of softplus(z) - y z

The problem is convex. Bounds on theta are kept by freezing a parameter that presses against its
bound. A step that does not lower a group's loss is halved for that group alone.

The sum of softplus needs one exponential per entry and one logarithm per ROWS of them:
    sum softplus(z) = sum max(z, 0) + log prod (1 + exp(-|z|)), at most 2^ROWS

Problem: the loss that a logistic calibrator minimises, for all labels at once.

Shared      sum over labels of loss_k(theta)
PerLabel    loss_k(theta_k) + pull_k / 2 |theta_k - center|^2, for each label

One slope for all labels, one offset for each: a Newton step by elimination.

The Hessian is an arrow: offsets touch only the slope. Eliminating them leaves one equation,
    slope step = (g_a - sum h_ab g_b / h_bb) / (h_aa - sum h_ab^2 / h_bb).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from labelwise.calibrate.entries import Rows

__all__ = [
    "MAX_SLOPE",
    "TOLERANCE",
    "Derivatives",
    "Features",
    "PerLabel",
    "Problem",
    "Raw",
    "Shared",
    "TiedSlope",
    "derivatives",
    "gradient",
    "minimise",
    "newton_step",
    "scaled",
]

Raw = Callable[[Tensor], tuple[Tensor, ...]]

MAX_SLOPE = 100.0


@dataclass(frozen=True)
class Features:
    """Scaled features; weights are kept between ``least`` and ``MAX_SLOPE``, the constant free."""

    raw: Raw
    least: float
    mean: Tensor
    deviation: Tensor

    def __call__(self, u: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            (phi - mean) / deviation
            for phi, mean, deviation in zip(
                self.raw(u), self.mean.tolist(), self.deviation.tolist(), strict=True
            )
        )

    @property
    def width(self) -> int:
        """Return the number of weights, the constant included."""
        return len(self.mean) + 1

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the least and largest weights, each (F,)."""
        upper = self.mean.new_full((self.width,), MAX_SLOPE)
        lower = torch.full_like(upper, self.least)
        lower[-1], upper[-1] = -torch.inf, torch.inf
        return lower, upper

    @property
    def starts(self) -> tuple[Tensor, Tensor]:
        """Return two weights (1, F) to start from: the scores as they are, and scaled ones."""
        as_they_are = torch.cat([self.deviation, self.mean.sum(0, keepdim=True)])[None]
        plain = torch.ones_like(as_they_are)
        plain[:, -1] = 0.0
        return as_they_are, plain

    def unscale(self, theta: Tensor) -> Tensor:
        """Return the weights (G, F) of the raw features and their constant."""
        slopes = theta[:, :-1] / self.deviation
        offset = theta[:, -1:] - (slopes * self.mean).sum(1, keepdim=True)
        return torch.cat([slopes, offset], dim=1)


def scaled(rows: Rows, raw: Raw, least: float) -> Features:
    """Return the features scaled by their mean and deviation over the rows."""
    total: float | Tensor = 0.0
    for u, _, w in rows.rows():
        u = u.double()
        weight = torch.ones_like(u) if w is None else w
        moments = [torch.stack([weight, weight * phi, weight * phi * phi]) for phi in raw(u)]
        total = total + torch.stack(moments).sum((2, 3))  # (F - 1, 3)
    count, first, second = torch.as_tensor(total).T
    mean = first / count
    return Features(raw, least, mean, (second / count - mean.square()).clamp(min=1e-12).sqrt())


Derivatives = tuple[Tensor, Tensor, Tensor]

STEPS = 100
TOLERANCE = 1e-7
ROWS = 1000  # 2^ROWS is still a float64


def derivatives(rows: Rows, features: Features, theta: Tensor) -> Derivatives:
    """Return loss (K,), gradient (K, F), Hessian (K, F, F) of each label at theta (K or 1, F).

    Of several theta at once, (T, K or 1, F), they are (T, K), (T, K, F) and (T, K, F, F).
    """
    *tries, _, width = theta.shape
    last = width - 1
    loss = theta.new_zeros(*tries, rows.num_labels)
    grad = theta.new_zeros(width, *loss.shape)
    hess = theta.new_zeros(width, width, *loss.shape)
    for u, y, w in rows.rows():
        phi, one = features(u.double()), theta.new_ones(len(u))
        z = _scores(phi, theta)
        small = z.abs().neg_().exp_()
        whole = 1 + small
        p = torch.where(z >= 0, 1.0, small).div_(whole)
        curve, residual = p - p * p, p - y
        if w is None:
            loss += one @ (z.clamp(min=0) - y * z)
            for some in torch.split(whole, ROWS, dim=-2):
                loss += some.prod(-2).log_()
        else:
            loss += one @ (w * (whole.log_() + z.clamp(min=0) - y * z))
            curve, residual = curve * w, residual * w
        grad[last] += one @ residual
        hess[last, last] += one @ curve
        for f in range(last):
            grad[f] += one @ (residual * phi[f])
            weighted = curve * phi[f]
            hess[f, last] += one @ weighted
            for g in range(f, last):
                hess[f, g] += one @ (weighted * phi[g])
    hess = hess.movedim((0, 1), (-2, -1))
    return loss, grad.movedim(0, -1), hess + hess.triu(1).mT


def gradient(rows: Rows, features: Features, theta: Tensor) -> Tensor:
    """Return the gradient (K, F) alone, each entry in the precision of its log-odds.

    It is summed over the raw features, which spares every entry the scaling.
    """
    raw = features.unscale(theta)
    sums = theta.new_zeros(theta.shape[1], rows.num_labels)
    for u, y, w in rows.rows():
        phi, one = features.raw(u), u.new_ones(len(u))
        residual = _scores(phi, raw.to(u.dtype)).sigmoid_().sub_(y)
        if w is not None:
            residual *= w
        sums[-1] += one @ residual
        for f in range(len(phi)):
            sums[f] += one @ (residual * phi[f])
    slopes = (sums[:-1] - features.mean[:, None] * sums[-1]) / features.deviation[:, None]
    return torch.cat([slopes, sums[-1:]]).T


def _scores(phi: tuple[Tensor, ...], theta: Tensor) -> Tensor:
    """Return the scores (..., N, K) of all rows at theta (..., K or 1, F)."""
    *weights, constant = theta[..., None, :, :].unbind(-1)
    z = weights[0] * phi[0]
    for weight, values in zip(weights[1:], phi[1:], strict=True):
        z.addcmul_(weight, values)
    return z.add_(constant)


def minimise(
    evaluate: Callable[[Tensor], Derivatives],
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    tolerance: float = TOLERANCE,
    *,
    step: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    summed: Callable[[Tensor], Tensor] = lambda values: values,
) -> Tensor:
    """Return theta (G, F) between ``lower`` and ``upper`` with the least loss of each group.

    The search ends where the next step promises each group a gain below ``tolerance`` nats.
    ``evaluate`` maps theta to each group's loss (G,), gradient (G, F) and Hessian (G, F, F).
    Groups that have a weight in common bring the ``step`` (G, F) from theta, gradient and Hessian,
    and ``summed``, which gives each of them (G,) the sum over all of them.
    """
    theta = start.clamp(lower, upper)
    loss, grad, hess = evaluate(theta)
    damping = torch.ones_like(loss)
    step = step or partial(newton_step, lower=lower, upper=upper)
    for _ in range(STEPS):
        trial = (theta - damping[:, None] * step(theta, grad, hess)).clamp(lower, upper)
        if (summed((grad * (theta - trial)).sum(1)) <= tolerance).all():
            return trial
        new_loss, new_grad, new_hess = evaluate(trial)
        better = summed(new_loss) <= summed(loss) * (1 + 1e-14)
        theta = torch.where(better[:, None], trial, theta)
        loss = torch.where(better, new_loss, loss)
        grad = torch.where(better[:, None], new_grad, grad)
        hess = torch.where(better[:, None, None], new_hess, hess)
        damping = torch.where(better, 1.0, damping / 2)
    return theta


def newton_step(theta: Tensor, grad: Tensor, hess: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the step (G, F) of the parameters that do not press against a bound."""
    frozen = ((theta <= lower) & (grad > 0)) | ((theta >= upper) & (grad < 0))
    free = (~frozen).to(theta.dtype)
    hess = hess * free[:, :, None] * free[:, None, :]
    diagonal = hess.diagonal(dim1=1, dim2=2)
    # A flat direction (no information left) must not make the system singular.
    floor = 1e-12 * diagonal.amax(dim=1, keepdim=True) + 1e-12
    solved: Tensor = torch.linalg.solve(
        hess + torch.diag_embed(floor + (1 - free)), (grad * free)[..., None]
    )
    return solved[..., 0]


POLISHING = 4


@dataclass(frozen=True)
class Problem(ABC):
    """A loss over weights (G, F) of some features; subclasses give it and its gradient."""

    features: Features

    @abstractmethod
    def evaluate(self, rows: Rows, theta: Tensor) -> Derivatives:
        """Return loss (G,), gradient (G, F) and Hessian (G, F, F) over the rows."""

    @abstractmethod
    def gradient(self, rows: Rows, theta: Tensor) -> Tensor:
        """Return the gradient (G, F) alone."""

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the least and largest weights, (F,) or (G, F)."""
        return self.features.bounds

    def step(self, theta: Tensor, grad: Tensor, hess: Tensor) -> Tensor:
        """Return the weights one full Newton step further, within the bounds."""
        lower, upper = self.bounds
        return (theta - newton_step(theta, grad, hess, lower, upper)).clamp(lower, upper)

    def solve(self, rows: Rows, start: Tensor, tolerance: float) -> Tensor:
        """Return the weights of the least loss over the rows."""
        return minimise(partial(self.evaluate, rows), start, *self.bounds, tolerance)

    def polish(self, rows: Rows, bins: Rows, theta: Tensor, tolerance: float) -> Tensor:
        """Return the weights of the least loss over the rows, from those over their bins.

        The Hessian of the bins is within a percent of the true one, so a step leaves about a
        ten-thousandth of its gain. Should the steps not end, full Newton steps take over.
        """
        hess = self.evaluate(bins, theta)[2]
        for _ in range(POLISHING):
            grad = self.gradient(rows, theta)
            moved = self.step(theta, grad, hess)
            gain = (grad * (theta - moved)).sum()
            theta = moved
            if gain <= 1e4 * tolerance * len(theta):
                return theta
        return self.solve(rows, theta, tolerance)


@dataclass(frozen=True)
class Shared(Problem):
    """One fit (1, F) for all labels."""

    def evaluate(self, rows: Rows, theta: Tensor) -> Derivatives:
        loss, grad, hess = derivatives(rows, self.features, theta)
        return loss.sum(0, keepdim=True), grad.sum(0, keepdim=True), hess.sum(0, keepdim=True)

    def gradient(self, rows: Rows, theta: Tensor) -> Tensor:
        return gradient(rows, self.features, theta).sum(0, keepdim=True)

    def start(self, rows: Rows) -> Tensor:
        """Return the better of the two starts; far from the scores' unit Newton steps get lost."""
        return min(self.features.starts, key=lambda theta: self.evaluate(rows, theta)[0].item())


def side_by_side(rows: Rows, features: Features, theta: Tensor) -> Derivatives:
    """Return the derivatives at several theta, one after the other (T K, F), of each."""
    found = derivatives(rows, features, theta.reshape(-1, rows.num_labels, features.width))
    loss, grad, hess = (value.flatten(0, 1) for value in found)
    return loss, grad, hess


@dataclass(frozen=True)
class PerLabel(Problem):
    """A fit (K, F) for each label, pulled towards ``center`` (1, F) with strength ``pull`` (K,).

    Labels that are ``lacking`` (K,) positives or negatives say nothing of slopes: they keep those
    of the center. A ``pull`` (T, K) makes T such problems, with their fits one after the other.
    """

    center: Tensor
    pull: Tensor
    lacking: Tensor

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        fixed = self.lacking.expand_as(self.pull).flatten()[:, None].repeat(1, self.features.width)
        fixed[:, -1] = False
        lower, upper = self.features.bounds
        return torch.where(fixed, self.center, lower), torch.where(fixed, self.center, upper)

    def evaluate(self, rows: Rows, theta: Tensor) -> Derivatives:
        loss, grad, hess = side_by_side(rows, self.features, theta)
        away, pull = theta - self.center, self.pull.flatten()[:, None]
        ridge = torch.diag_embed(pull.expand_as(away))
        return loss + (pull / 2 * away.square()).sum(1), grad + pull * away, hess + ridge

    def gradient(self, rows: Rows, theta: Tensor) -> Tensor:
        pulled = self.pull[:, None] * (theta - self.center)
        return gradient(rows, self.features, theta) + pulled


@dataclass(frozen=True)
class TiedSlope(Problem):
    """Weights (K, 2) with equal slopes, and offsets pulled towards that of ``center`` (1, 2).

    A ``pull`` (T, K) makes T such problems, each with a slope of its own.
    """

    center: Tensor
    pull: Tensor

    def evaluate(self, rows: Rows, theta: Tensor) -> Derivatives:
        loss, grad, hess = side_by_side(rows, self.features, theta)
        away, pull = theta[:, 1] - self.center[:, 1], self.pull.flatten()
        grad[:, 1] += pull * away
        hess[:, 1, 1] += pull
        return loss + pull / 2 * away.square(), grad, hess

    def gradient(self, rows: Rows, theta: Tensor) -> Tensor:
        grad = gradient(rows, self.features, theta)
        grad[:, 1] += self.pull * (theta[:, 1] - self.center[:, 1])
        return grad

    def step(self, theta: Tensor, grad: Tensor, hess: Tensor) -> Tensor:
        return theta - self._eliminated(theta, grad, hess)

    def solve(self, rows: Rows, start: Tensor, tolerance: float) -> Tensor:
        evaluate, step = partial(self.evaluate, rows), self._eliminated
        return minimise(evaluate, start, *self.bounds, tolerance, step=step, summed=self._summed)

    def _eliminated(self, theta: Tensor, grad: Tensor, hess: Tensor) -> Tensor:
        """Return the Newton step, its slopes found first."""
        lower, upper = self.bounds
        ratio = hess[:, 0, 1] / hess[:, 1, 1]
        left = self._summed(grad[:, 0] - ratio * grad[:, 1])
        slope = left / self._summed(hess[:, 0, 0] - ratio * hess[:, 0, 1])
        slope = slope.clamp(theta[:, 0] - upper[0], theta[:, 0] - lower[0])
        return torch.stack([slope, grad[:, 1] / hess[:, 1, 1] - ratio * slope], dim=1)

    def _summed(self, values: Tensor) -> Tensor:
        labels = self.pull.shape[-1]
        return values.view(-1, labels).sum(1).repeat_interleave(labels)
