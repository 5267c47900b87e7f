"""Adam on the rows of a large table, exactly as if every row were updated in every step.

A row that is not in the batch has gradient 0 but still moves by its momentum. After its last visit
at step s, with moments m and v, zero-gradient steps s+1 .. s+n leave

    m beta1^n,   v beta2^n,   theta - m sum_i lr_{s+i} a_i / (sqrt(v) b_i + eps)
    a_i = beta1^i / (1 - beta1^(s+i)),      b_i = sqrt(beta2^i / (1 - beta2^(s+i)))

so the motion can be made up when the row is next asked for. The summands shrink as 0.9^i; after
WINDOW steps less than 1e-7 of the sum is left and it is cut there.
"""

import torch
from torch import Tensor

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
WINDOW = 160
SETTLED = 300
CHUNK = 1 << 22


def advance(rows: Tensor, last: Tensor, clock: Tensor, rates: Tensor) -> Tensor:
    """Return rows (3, n, K) of theta, m, v moved from their steps ``last`` (n,) to ``clock``.

    ``rates[t % len(rates)]`` is the learning rate of step t; of steps too far back the oldest
    rate is taken. ``last``, ``clock`` and ``rates`` are on the CPU; the rows may be anywhere.
    """
    theta, m, v = rows.unbind()
    missed = clock - last
    traced = torch.compiler.is_compiling()  # the short ways below depend on the numbers
    window = WINDOW if traced else min(WINDOW, int(missed.max()))
    ages = torch.arange(1, window + 1).unsqueeze(1)  # (W, 1)
    steps = last + ages  # (W, n)
    known = torch.maximum(steps, clock + 1 - len(rates)) % len(rates)
    lr = torch.where(ages <= missed, rates[known], 0.0)
    a = lr * _power(BETA_1, ages) / (1 - _power(BETA_1, steps))
    b = (_power(BETA_2, ages) / (1 - _power(BETA_2, steps))).sqrt()
    settled = not traced and bool((last >= SETTLED).all())
    motion = (settled_sum if settled else exact_sum)(a, b, v.sqrt())
    decay_1, decay_2 = (_power(beta, missed).to(theta).unsqueeze(1) for beta in (BETA_1, BETA_2))
    return torch.stack([theta - m * motion, m * decay_1, v * decay_2])


def exact_sum(a: Tensor, b: Tensor, root: Tensor) -> Tensor:
    """Return ``sum_i a_i / (b_i root + eps)``, (n, K), of coefficients (W, n) and root (n, K)."""
    a, b = (part.to(root).unsqueeze(2) for part in (a, b))
    size = max(1, CHUNK // max(root.numel(), 1))
    total = torch.zeros_like(root)
    for first in range(0, len(a), size):
        window = slice(first, first + size)
        total = total + (a[window] / (b[window] * root + EPS)).sum(dim=0)
    return total


def settled_sum(a: Tensor, b: Tensor, root: Tensor) -> Tensor:
    """Return the same by a series about the mean of b, to 1e-7 once ``last`` is SETTLED.

    Then b_i falls by less than 1/500 a step, while a_i falls by a tenth.
    """
    weight = a.sum(dim=0)
    mean = torch.where(weight > 0, (a * b).sum(dim=0) / weight, 1.0)
    moments = [weight, *((a * (mean - b) ** power).sum(dim=0) for power in (2, 3, 4))]
    zeroth, second, third, fourth = (moment.to(root).unsqueeze(1) for moment in moments)
    near = 1 / (mean.to(root).unsqueeze(1) * root + EPS)
    ratio = root * near
    return near * (zeroth + ratio.square() * (second + ratio * (third + ratio * fourth)))


def update(rows: Tensor, gradient: Tensor, step: int | Tensor, lr: float) -> Tensor:
    """Return rows (3, n, K) of theta, m, v after Adam's step number ``step`` (from 1)."""
    theta, m, v = rows.unbind()
    m = torch.lerp(m, gradient, 1 - BETA_1)
    v = BETA_2 * v + (1 - BETA_2) * gradient.square()
    root = (v / (1 - BETA_2**step)).sqrt()
    return torch.stack([theta - lr / (1 - BETA_1**step) * m / (root + EPS), m, v])


def _power(base: float, exponents: Tensor) -> Tensor:
    return base ** exponents.double()  # a whole exponent would give single precision
