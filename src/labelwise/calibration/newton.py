"""Logistic fits by damped Newton steps: every label at once, in float64, over blocks of rows.

    minimise over theta   sum over entries of softplus(z) - y z        z: see features.py

The problem is convex. Bounds on theta are kept by freezing a parameter that presses against its
bound. A step that does not lower a group's loss is halved for that group alone.

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

import numpy as np

from labelwise.calibration.entries import Numbers, Rows
from labelwise.calibration.features import (
    Derivatives,
    FeatureBlocks,
    Features,
    derivatives,
    gradient,
)
from labelwise.numeric.arrays import Mask

STEPS = 100
TOLERANCE = 1e-7


def minimise(
    evaluate: Callable[[Numbers], Derivatives],
    start: Numbers,
    lower: Numbers,
    upper: Numbers,
    tolerance: float = TOLERANCE,
    *,
    step: Callable[[Numbers, Numbers, Numbers], Numbers] | None = None,
    summed: Callable[[Numbers], Numbers] = lambda values: values,
) -> Numbers:
    """Return theta (G, F) between ``lower`` and ``upper`` with the least loss of each group.

    The search ends where the next step promises each group a gain below ``tolerance`` nats.
    ``evaluate`` maps theta to each group's loss (G,), gradient (G, F) and Hessian (G, F, F).
    Groups that have a weight in common bring the ``step`` (G, F) from theta, gradient and Hessian,
    and ``summed``, which gives each of them (G,) the sum over all of them.
    """
    theta = start.clip(lower, upper)
    loss, grad, hess = evaluate(theta)
    damping = np.ones_like(loss)
    step = step or partial(newton_step, lower=lower, upper=upper)
    for _ in range(STEPS):
        trial = (theta - damping[:, None] * step(theta, grad, hess)).clip(lower, upper)
        promised = summed((grad * (theta - trial)).sum(1))  # below 0: cut at a bound, it climbs
        if (np.abs(promised) <= tolerance).all():
            return trial
        new_loss, new_grad, new_hess = evaluate(trial)
        better = summed(new_loss) <= summed(loss) * (1 + 1e-14)
        if better.all():
            theta, loss, grad, hess = trial, new_loss, new_grad, new_hess
            damping = np.ones_like(loss)
            continue
        theta = np.where(better[:, None], trial, theta)
        loss = np.where(better, new_loss, loss)
        grad = np.where(better[:, None], new_grad, grad)
        hess = np.where(better[:, None, None], new_hess, hess)
        damping = np.where(better, 1.0, damping / 2)
    return theta


def newton_step(
    theta: Numbers, grad: Numbers, hess: Numbers, lower: Numbers, upper: Numbers
) -> Numbers:
    """Return the step (G, F) of the parameters that do not press against a bound."""
    frozen = ((theta <= lower) & (grad > 0)) | ((theta >= upper) & (grad < 0))
    free = (~frozen).astype(np.float64)
    hess = hess * free[:, :, None] * free[:, None, :]
    diagonal = np.diagonal(hess, axis1=1, axis2=2)
    # A flat direction (no information left) must not make the system singular.
    floor = 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-12
    system = hess + (floor + (1 - free))[:, :, None] * np.eye(theta.shape[1])
    solved: Numbers = np.linalg.solve(system, (grad * free)[:, :, None])[:, :, 0]
    return solved


POLISHING = 4


@dataclass(frozen=True)
class Problem(ABC):
    """A loss over weights (G, F) of some features; subclasses give it and its gradient."""

    features: Features

    @abstractmethod
    def evaluate(self, blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
        """Return loss (G,), gradient (G, F) and Hessian (G, F, F) over the rows."""

    @abstractmethod
    def gradient(self, rows: Rows, theta: Numbers) -> Numbers:
        """Return the gradient (G, F) alone."""

    @property
    def bounds(self) -> tuple[Numbers, Numbers]:
        """Return the least and largest weights, (F,) or (G, F)."""
        return self.features.bounds

    def step(self, theta: Numbers, grad: Numbers, hess: Numbers) -> Numbers:
        """Return the weights one full Newton step further, within the bounds."""
        lower, upper = self.bounds
        return (theta - newton_step(theta, grad, hess, lower, upper)).clip(lower, upper)

    def solve(self, blocks: FeatureBlocks, start: Numbers, tolerance: float) -> Numbers:
        """Return the weights of the least loss over the rows."""
        return minimise(partial(self.evaluate, blocks), start, *self.bounds, tolerance)

    def polish(self, rows: Rows, bins: FeatureBlocks, theta: Numbers, tolerance: float) -> Numbers:
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
        return self.solve(self.features.read(rows), theta, tolerance)


@dataclass(frozen=True)
class Shared(Problem):
    """One fit for all labels; (T, F) where blocks weigh the rows of T problems."""

    def evaluate(self, blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
        loss, grad, hess = derivatives(blocks, theta[:, None])
        return loss.sum(1), grad.sum(1), hess.sum(1)

    def gradient(self, rows: Rows, theta: Numbers) -> Numbers:
        total: Numbers = gradient(rows, self.features, theta).sum(0, keepdims=True)
        return total

    def start(self, blocks: FeatureBlocks) -> Numbers:
        """Return the better of the two starts; far from the scores' unit Newton steps get lost."""
        first, second = self.features.starts
        losses = [self.evaluate(blocks, theta)[0] for theta in (first, second)]
        return np.where((losses[0] <= losses[1])[:, None], first, second)


def side_by_side(blocks: FeatureBlocks, theta: Numbers, labels: int) -> Derivatives:
    """Return the derivatives at several theta, one after the other (T K, F), of each."""
    found = derivatives(blocks, theta.reshape(-1, labels, theta.shape[-1]))
    loss, grad, hess = (value.reshape(-1, *value.shape[2:]) for value in found)
    return loss, grad, hess


@dataclass(frozen=True)
class PerLabel(Problem):
    """A fit (K, F) for each label, pulled towards ``center`` (1, F) with strength ``pull`` (K,).

    Labels that are ``lacking`` (K,) positives or negatives say nothing of slopes: they keep those
    of the center. A ``pull`` (T, K) makes T such problems, with their fits one after the other;
    their centers may differ (T K, F), and what they lack (T, K).
    """

    center: Numbers
    pull: Numbers
    lacking: Mask

    @property
    def bounds(self) -> tuple[Numbers, Numbers]:
        fixed = np.repeat(
            np.broadcast_to(self.lacking, self.pull.shape).reshape(-1, 1), self.features.width, 1
        )
        fixed[:, -1] = False
        lower, upper = self.features.bounds
        return np.where(fixed, self.center, lower), np.where(fixed, self.center, upper)

    def evaluate(self, blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
        loss, grad, hess = side_by_side(blocks, theta, self.pull.shape[-1])
        away, pull = theta - self.center, self.pull.reshape(-1, 1)
        ridge = pull[:, :, None] * np.eye(away.shape[1])
        return loss + (pull / 2 * away**2).sum(1), grad + pull * away, hess + ridge

    def gradient(self, rows: Rows, theta: Numbers) -> Numbers:
        pulled = self.pull[:, None] * (theta - self.center)
        return gradient(rows, self.features, theta) + pulled


@dataclass(frozen=True)
class TiedSlope(Problem):
    """Weights (K, 2) with equal slopes, and offsets pulled towards that of ``center`` (1, 2).

    A ``pull`` (T, K) makes T such problems, each with a slope of its own; their centers may differ
    (T K, 2).
    """

    center: Numbers
    pull: Numbers

    def evaluate(self, blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
        loss, grad, hess = side_by_side(blocks, theta, self.pull.shape[-1])
        away, pull = theta[:, 1] - self.center[:, 1], self.pull.ravel()
        grad[:, 1] += pull * away
        hess[:, 1, 1] += pull
        return loss + pull / 2 * away**2, grad, hess

    def gradient(self, rows: Rows, theta: Numbers) -> Numbers:
        grad = gradient(rows, self.features, theta)
        grad[:, 1] += self.pull * (theta[:, 1] - self.center[:, 1])
        return grad

    def step(self, theta: Numbers, grad: Numbers, hess: Numbers) -> Numbers:
        return theta - self._eliminated(theta, grad, hess)

    def solve(self, blocks: FeatureBlocks, start: Numbers, tolerance: float) -> Numbers:
        evaluate, step = partial(self.evaluate, blocks), self._eliminated
        return minimise(evaluate, start, *self.bounds, tolerance, step=step, summed=self._summed)

    def _eliminated(self, theta: Numbers, grad: Numbers, hess: Numbers) -> Numbers:
        """Return the Newton step, its slopes found first."""
        lower, upper = self.bounds
        ratio = hess[:, 0, 1] / hess[:, 1, 1]
        left = self._summed(grad[:, 0] - ratio * grad[:, 1])
        slope = left / self._summed(hess[:, 0, 0] - ratio * hess[:, 0, 1])
        slope = slope.clip(theta[:, 0] - upper[0], theta[:, 0] - lower[0])
        return np.stack([slope, grad[:, 1] / hess[:, 1, 1] - ratio * slope], axis=1)

    def _summed(self, values: Numbers) -> Numbers:
        labels = self.pull.shape[-1]
        return np.repeat(values.reshape(-1, labels).sum(1), labels)
