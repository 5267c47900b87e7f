"""Problem: the loss that a logistic calibrator minimises, for all labels at once.

Shared      sum over labels of loss_k(theta)
PerLabel    loss_k(theta_k) + pull_k / 2 |theta_k - center|^2, for each label
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from labelwise.calibrate.bins import Rows
from labelwise.calibrate.features import Features
from labelwise.calibrate.newton import Derivatives, derivatives, gradient, minimise, newton_step

__all__ = ["PerLabel", "Problem", "Shared"]

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


@dataclass(frozen=True)
class PerLabel(Problem):
    """A fit (K, F) for each label, pulled towards ``center`` (1, F) with strength ``pull`` (K,).

    Labels that are ``lacking`` (K,) positives or negatives say nothing of slopes: they keep those
    of the center.
    """

    center: Tensor
    pull: Tensor
    lacking: Tensor

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        fixed = self.lacking[:, None].repeat(1, self.features.width)
        fixed[:, -1] = False
        lower, upper = self.features.bounds
        return torch.where(fixed, self.center, lower), torch.where(fixed, self.center, upper)

    def evaluate(self, rows: Rows, theta: Tensor) -> Derivatives:
        loss, grad, hess = derivatives(rows, self.features, theta)
        away, pull = theta - self.center, self.pull[:, None]
        ridge = torch.diag_embed(pull.expand_as(away))
        return loss + (pull / 2 * away.square()).sum(1), grad + pull * away, hess + ridge

    def gradient(self, rows: Rows, theta: Tensor) -> Tensor:
        pulled = self.pull[:, None] * (theta - self.center)
        return gradient(rows, self.features, theta) + pulled
