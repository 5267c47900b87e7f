"""Logistic fits by damped Newton steps: every label at once, in float64, over blocks of rows.

    z = sum over f of theta_f phi_f(u)  +  theta_last          phi: features of the log-odds
    minimise over theta   sum over entries of softplus(z) - y z

The problem is convex. Bounds on theta are kept by freezing a parameter that presses against its
bound. A step that does not lower a group's loss is halved for that group alone.

The sum of softplus needs one exponential an entry and one logarithm a block:
    sum softplus(z) = sum max(z, 0) + log prod (1 + exp(-|z|)), at most 2^ROWS
"""

from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.calibrate.bins import Rows
from labelwise.calibrate.entries import ROWS
from labelwise.calibrate.features import Features

__all__ = [
    "TOLERANCE",
    "Derivatives",
    "derivatives",
    "gradient",
    "minimise",
    "newton_step",
]

Derivatives = tuple[Tensor, Tensor, Tensor]

STEPS = 100
TOLERANCE = 1e-7


def derivatives(rows: Rows, features: Features, theta: Tensor) -> Derivatives:
    """Return loss (K,), gradient (K, F), Hessian (K, F, F) of each label at theta (K or 1, F)."""
    width, last = theta.shape[1], theta.shape[1] - 1
    loss = theta.new_zeros(rows.num_labels)
    grad = theta.new_zeros(width, rows.num_labels)
    hess = theta.new_zeros(width, width, rows.num_labels)
    ones = theta.new_ones(ROWS)
    for u, y, w in rows.rows():
        phi, one = features(u.double()), ones[: len(u)]
        z = _scores(phi, theta)
        small = z.abs().neg_().exp_()
        whole = 1 + small
        p = torch.where(z >= 0, 1.0, small).div_(whole)
        curve, residual = p - p * p, p - y
        if w is None:
            loss += whole.prod(0).log_() + one @ (z.clamp(min=0) - y * z)
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
    hess = hess.permute(2, 0, 1)
    return loss, grad.T, hess + hess.triu(1).mT


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
    z = theta[:, 0] * phi[0]
    for f in range(1, len(phi)):
        z.addcmul_(theta[:, f], phi[f])
    return z.add_(theta[:, -1])


def minimise(
    evaluate: Callable[[Tensor], Derivatives],
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Return theta (G, F) between ``lower`` and ``upper`` with the least loss of each group.

    The search ends where the next step promises each group a gain below ``tolerance`` nats.
    ``evaluate`` maps theta to each group's loss (G,), gradient (G, F) and Hessian (G, F, F).
    """
    theta = start.clamp(lower, upper)
    loss, grad, hess = evaluate(theta)
    damping = torch.ones_like(loss)
    for _ in range(STEPS):
        step = newton_step(theta, grad, hess, lower, upper)
        trial = (theta - damping[:, None] * step).clamp(lower, upper)
        if ((grad * (theta - trial)).sum(1) <= tolerance).all():
            return trial
        new_loss, new_grad, new_hess = evaluate(trial)
        better = new_loss <= loss * (1 + 1e-14)
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
