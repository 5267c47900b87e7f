"""Features of the log-odds, scaled over all observed entries to mean 0 and variance 1.

Scaled features make Newton steps well conditioned whatever the unit of the scores, and give a
penalty on their weights one meaning: squared nats of log-odds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.calibrate.bins import Rows

__all__ = ["MAX_SLOPE", "Features", "Raw", "scaled"]

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
