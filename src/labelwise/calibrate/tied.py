"""One slope for all labels, one offset for each: a Newton step by elimination.

The Hessian is an arrow: offsets touch only the slope. Eliminating them leaves one equation,
    slope step = (g_a - sum h_ab g_b / h_bb) / (h_aa - sum h_ab^2 / h_bb).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.calibrate.bins import Rows
from labelwise.calibrate.newton import STEPS, Derivatives, derivatives, gradient
from labelwise.calibrate.problem import Problem

__all__ = ["TiedSlope"]


@dataclass(frozen=True)
class TiedSlope(Problem):
    """Weights (K, 2) with equal slopes, and offsets pulled towards that of ``center`` (1, 2)."""

    center: Tensor
    pull: Tensor

    def evaluate(self, rows: Rows, theta: Tensor) -> Derivatives:
        loss, grad, hess = derivatives(rows, self.features, theta)
        away = theta[:, 1] - self.center[:, 1]
        grad[:, 1] += self.pull * away
        hess[:, 1, 1] += self.pull
        return loss + self.pull / 2 * away.square(), grad, hess

    def gradient(self, rows: Rows, theta: Tensor) -> Tensor:
        grad = gradient(rows, self.features, theta)
        grad[:, 1] += self.pull * (theta[:, 1] - self.center[:, 1])
        return grad

    def step(self, theta: Tensor, grad: Tensor, hess: Tensor) -> Tensor:
        lower, upper = self.bounds
        ratio = hess[:, 0, 1] / hess[:, 1, 1]
        left = (grad[:, 0] - ratio * grad[:, 1]).sum()
        slope = left / (hess[:, 0, 0] - ratio * hess[:, 0, 1]).sum()
        slope = slope.clamp(theta[0, 0] - upper[0], theta[0, 0] - lower[0])
        offset = grad[:, 1] / hess[:, 1, 1] - ratio * slope
        return theta - torch.stack([slope.expand_as(offset), offset], dim=1)

    def solve(self, rows: Rows, start: Tensor, tolerance: float) -> Tensor:
        theta = start.clamp(*self.bounds)
        loss, grad, hess = self.evaluate(rows, theta)
        damping = 1.0
        for _ in range(STEPS):
            trial = theta + damping * (self.step(theta, grad, hess) - theta)
            if (grad * (theta - trial)).sum() <= tolerance:
                return trial
            new = self.evaluate(rows, trial)
            if new[0].sum() <= loss.sum() * (1 + 1e-14):
                theta, damping = trial, 1.0
                loss, grad, hess = new
            else:
                damping /= 2
        return theta
