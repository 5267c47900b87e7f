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

import numpy as np

from labelwise.calibration.entries import Block, Floats, Numbers, Rows
from labelwise.numeric.array_api import log_sigmoid
from labelwise.numeric.arrays import Mask

Raw = Callable[[Floats], tuple[Floats, ...]]

MAX_SLOPE = 100.0


@dataclass(frozen=True)
class Features:
    """Scaled features; weights are kept between ``least`` and ``MAX_SLOPE``, the constant free."""

    raw: Raw
    least: float
    mean: Numbers
    deviation: Numbers

    def __call__(self, u: Floats) -> Numbers:
        """Return the scaled features (..., F) of log-odds; the last is the constant 1."""
        scaled = (np.stack(self.raw(u), axis=-1) - self.mean) / self.deviation
        return np.concatenate([scaled, np.ones_like(scaled[..., :1])], axis=-1)

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
    def bounds(self) -> tuple[Numbers, Numbers]:
        """Return the least and largest weights, each (F,)."""
        upper = np.full(self.width, MAX_SLOPE)
        lower = np.full_like(upper, self.least)
        lower[-1], upper[-1] = -np.inf, np.inf
        return lower, upper

    @property
    def starts(self) -> tuple[Numbers, Numbers]:
        """Return two weights (1, F) to start from: the scores as they are, and scaled ones."""
        as_they_are = np.append(self.deviation, self.mean.sum())[None]
        plain = np.ones_like(as_they_are)
        plain[:, -1] = 0.0
        return as_they_are, plain

    def unscale(self, theta: Numbers) -> Numbers:
        """Return the weights (G, F) of the raw features and their constant."""
        slopes = theta[:, :-1] / self.deviation
        offset = theta[:, -1:] - (slopes * self.mean).sum(1, keepdims=True)
        return np.concatenate([slopes, offset], axis=1)


def scaled(rows: Rows, raw: Raw, least: float) -> Features:
    """Return the features scaled by their mean and deviation over the rows."""
    total = np.zeros(())
    for u, _, w in rows.rows():
        u = u.astype(np.float64)
        weight = np.ones_like(u) if w is None else w
        moments = [np.stack([weight, weight * phi, weight * phi * phi]) for phi in raw(u)]
        total = total + np.stack(moments).sum((2, 3))  # (F - 1, 3)
    count, first, second = total.T
    mean = first / count
    return Features(raw, least, mean, np.sqrt((second / count - mean**2).clip(1e-12)))


@dataclass(frozen=True)
class FeatureBlock:
    """A block of rows: scaled features (K, F, N), their products (K, F F, N), labels (K, 1, N).

    ``weight`` is (K or 1, T, N) where T problems weigh the rows differently, (K, 1, N) where all
    weigh them alike, None where all rows weigh 1.
    """

    phi: Numbers
    products: Numbers
    labels: Numbers
    weight: Numbers | None

    @classmethod
    def of(cls, features: Features, block: Block) -> "FeatureBlock":
        """Return it of a block of entries or bins."""
        u, y, w = block
        phi = np.ascontiguousarray(features(u.astype(np.float64).T).swapaxes(1, 2))
        products = (phi[:, :, None] * phi[:, None]).reshape(len(phi), -1, phi.shape[-1])
        weight = None if w is None else w.astype(np.float64).T[:, None]
        return cls(phi, products, y.astype(np.float64).T[:, None], weight)

    def weighed(self, rows: Mask) -> "FeatureBlock":
        """Return it for T problems, each with weights (T, N) of its own."""
        own = rows.astype(np.float64)[None]
        return replace(self, weight=own if self.weight is None else own * self.weight)

    def repeated(self, times: int) -> "FeatureBlock":
        """Return it for so many times the problems, those of a kind after one another."""
        weight = self.weight
        return replace(self, weight=None if weight is None else np.repeat(weight, times, axis=1))


FeatureBlocks = Iterable[FeatureBlock]


@dataclass(frozen=True)
class _LaterBlocks:
    """FeatureBlocks of many rows, made anew whenever they are asked for."""

    features: Features
    rows: Rows

    def __iter__(self) -> Iterator[FeatureBlock]:
        return (FeatureBlock.of(self.features, block) for block in self.rows.rows())


Derivatives = tuple[Numbers, Numbers, Numbers]

ROWS = 1000  # 2^ROWS is still a float64


def derivatives(blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
    """Return loss (T, K), gradient (T, K, F), Hessian (T, K, F, F) at theta (T, K or 1, F)."""
    weights = theta.swapaxes(0, 1)
    total: list[Numbers] = []
    for block in blocks:
        z, y = weights @ block.phi, block.labels  # (K, T, N)
        small = np.exp(-np.abs(z))
        whole = 1 + small
        p = np.where(z >= 0, 1.0, small) / whole
        straight, residual, curve = z.clip(0) - y * z, p - y, p - p * p
        if block.weight is None:
            starts = range(0, z.shape[-1], ROWS)
            logs = [np.log(whole[..., at : at + ROWS].prod(-1)) for at in starts]
            loss = straight.sum(-1) + sum(logs)
        else:
            loss = (block.weight * (straight + np.log(whole))).sum(-1)
            residual, curve = residual * block.weight, curve * block.weight
        sums = [
            loss,
            residual @ block.phi.swapaxes(-1, -2),
            curve @ block.products.swapaxes(-1, -2),
        ]
        total = [old + new for old, new in zip(total, sums, strict=True)] if total else sums
    loss, grad, hess = (value.swapaxes(0, 1) for value in total)
    return loss, grad, hess.reshape(*grad.shape, -1)


def gradient(rows: Rows, features: Features, theta: Numbers) -> Numbers:
    """Return the gradient (K, F) alone, each entry in the precision of its log-odds.

    It is summed over the raw features, which spares every entry the scaling.
    """
    raw = features.unscale(theta)
    sums = np.zeros((theta.shape[1], rows.num_labels))
    for u, y, w in rows.rows():
        phi, (*weights, constant) = features.raw(u), raw.astype(u.dtype).T
        z = sum((weight * values for weight, values in zip(weights, phi, strict=True)), constant)
        residual = np.exp(log_sigmoid(z)) - y
        if w is not None:
            residual *= w
        sums[-1] += residual.sum(0, dtype=np.float64)
        for f in range(len(phi)):
            sums[f] += (residual * phi[f]).sum(0, dtype=np.float64)
    slopes = (sums[:-1] - features.mean[:, None] * sums[-1]) / features.deviation[:, None]
    return np.concatenate([slopes, sums[-1:]]).T
