"""Features of the log-odds, scaled over all observed entries to mean 0 and variance 1.

Scaled features make Newton steps well conditioned whatever the unit of the scores, and give a
penalty on their weights one meaning: squared nats of log-odds.

    z = sum over f of theta_f phi_f(u)  +  theta_last          phi: features of the log-odds
    loss = sum over entries of softplus(z) - y z

The sum of softplus needs one exponential per entry and one logarithm per ROWS of them:
    sum softplus(z) = sum max(z, 0) + log prod (1 + exp(-|z|)), at most 2^ROWS

A block is what a fit reads of its rows again and again: features, their products and labels.
Several problems over the same rows, such as the folds of a cross-validation and the strengths of a
pull, are solved side by side: where entries are few, calls cost more than what they compute.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelwise.calibration.entries import Block, Rows

Raw = Callable[[Tensor], tuple[Tensor, ...]]

MAX_SLOPE = 100.0


@dataclass(frozen=True)
class Features:
    """Scaled features; weights are kept between ``least`` and ``MAX_SLOPE``, the constant free."""

    raw: Raw
    least: float
    mean: Tensor
    deviation: Tensor

    def __call__(self, u: Tensor) -> Tensor:
        """Return the scaled features (..., F) of log-odds; the last is the constant 1."""
        scaled = (torch.stack(self.raw(u), dim=-1) - self.mean) / self.deviation
        return pad(scaled, (0, 1), value=1.0)

    def read(self, rows: Rows) -> "FeatureBlocks":
        """Return the blocks of all rows; a single block is read once, however often asked."""
        entries = rows.rows()
        first, *more = (block for block, _ in zip(entries, range(2), strict=False))
        return _LaterBlocks(self, rows) if more else [FeatureBlock.of(self, first)]

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


@dataclass(frozen=True)
class FeatureBlock:
    """A block of rows: scaled features (K, F, N), their products (K, F F, N), labels (K, 1, N).

    ``weight`` is (K or 1, T, N) where T problems weigh the rows differently, (K, 1, N) where all
    weigh them alike, None where all rows weigh 1.
    """

    phi: Tensor
    products: Tensor
    labels: Tensor
    weight: Tensor | None

    @classmethod
    def of(cls, features: Features, block: Block) -> "FeatureBlock":
        """Return it of a block of entries or bins."""
        u, y, w = block
        phi = features(u.double().T).mT.contiguous()
        products = (phi[:, :, None] * phi[:, None]).flatten(1, 2)
        weight = None if w is None else w.double().T[:, None]
        return cls(phi, products, y.double().T[:, None], weight)

    def weighed(self, rows: Tensor) -> "FeatureBlock":
        """Return it for T problems, each with weights (T, N) of its own."""
        own = rows.double()[None]
        return replace(self, weight=own if self.weight is None else own * self.weight)

    def repeated(self, times: int) -> "FeatureBlock":
        """Return it for so many times the problems, those of a kind after one another."""
        weight = self.weight
        return replace(self, weight=None if weight is None else weight.repeat_interleave(times, 1))


FeatureBlocks = Iterable[FeatureBlock]


@dataclass(frozen=True)
class _LaterBlocks:
    """FeatureBlocks of many rows, made anew whenever they are asked for."""

    features: Features
    rows: Rows

    def __iter__(self) -> Iterator[FeatureBlock]:
        return (FeatureBlock.of(self.features, block) for block in self.rows.rows())


Derivatives = tuple[Tensor, Tensor, Tensor]

ROWS = 1000  # 2^ROWS is still a float64


def derivatives(blocks: FeatureBlocks, theta: Tensor) -> Derivatives:
    """Return loss (T, K), gradient (T, K, F), Hessian (T, K, F, F) at theta (T, K or 1, F)."""
    weights = theta.transpose(0, 1)
    total: list[Tensor] = []
    for block in blocks:
        z, y = weights @ block.phi, block.labels  # (K, T, N)
        small = z.abs().neg_().exp_()
        whole = 1 + small
        p = torch.where(z >= 0, 1.0, small).div_(whole)
        straight, residual, curve = z.clamp(min=0) - y * z, p - y, p - p * p
        if block.weight is None:
            logs = [some.prod(-1).log_() for some in torch.split(whole, ROWS, dim=-1)]
            loss = straight.sum(-1) + sum(logs)
        else:
            loss = (block.weight * (straight + whole.log_())).sum(-1)
            residual, curve = residual * block.weight, curve * block.weight
        sums = [loss, residual @ block.phi.mT, curve @ block.products.mT]
        total = [old + new for old, new in zip(total, sums, strict=True)] if total else sums
    loss, grad, hess = (value.transpose(0, 1) for value in total)
    return loss, grad, hess.reshape(*grad.shape, -1)


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
