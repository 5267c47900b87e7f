"""Newton: convex losses of a linear model at their optimum, for many labels at once.

    minimise over W, b:    loss(features W + b)  +  sum_k l2_k / 2 ||W_k||^2

with scaled features and a free bias. Features are centred, scaled, and turned once into the
eigenvectors of their Gram matrix, with eigenvalues s^2. There the Hessian of a label, X^T diag(h) X
+ l2, is nearly the diagonal mean(h) s^2 + l2, which preconditions the conjugate gradients of Newton
steps for every label and every weight: a few products with the rows per step, made for all labels
together. Arrays are NumPy's or torch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

from labelwise.base.array_api import A, double, like, namespace
from labelwise.base.convex import ConvexLoss, Derivatives

NEWTON_STEPS, GRADIENT_STEPS, HALVINGS = 100, 50, 40
LOOSEST = 0.3  # of a gradient may be left by the conjugate gradients of one Newton step
ENOUGH = 1e-4  # of the gain that the slope promises, for a step to be taken
EXACT = 1e-8  # of the loss may be left to gain
LEAST_SPREAD = 1e-9  # of a feature, below which it never changes
LEAST_PART = 1e-12  # of the largest eigenvalue, below which it is rounding


@dataclass(frozen=True, eq=False)
class Design(Generic[A]):
    """Rows (N, r + 1) as the solver sees them: scaled, turned, and a last column of ones.

    Of features (N, D): ``(features - mean) / scale @ basis``. ``squares`` (r + 1, 1) are the sums
    of squares of the columns. A bias that is not ``free`` is penalised as the weights are.
    """

    rows: A
    squares: A
    mean: A
    scale: A
    basis: A
    free_bias: bool = True

    @staticmethod
    def of(
        features: A,
        *,
        scaled: bool = True,
        free_bias: bool = True,
        mean: A | None = None,
        parts: Sequence[tuple[int, float]] = (),
    ) -> "Design[A]":
        """Return the design of training features; one that never changes is left out.

        ``mean`` (D,) is taken off, by default that of these rows.

        A feature is divided by sqrt(its deviation x root mean square of all deviations): half way
        between its own deviation, which blows up features that few rows show, and one for all.
        With ``parts``, the width and the weight of each, deviations are compared within a part.
        """
        x, xp = double(features), namespace(features)
        mean = x.mean(0) if mean is None else mean
        x = x - mean
        scale = xp.ones_like(mean)
        if scaled:
            spread = xp.sqrt((x * x).mean(0))
            typical = xp.ones_like(spread)
            end = 0
            for width, weight in parts or [(len(spread), 1.0)]:
                start, end = end, end + width
                part = spread[start:end]
                typical[start:end] = xp.sqrt((part * part).mean()) / weight
            changes = spread > LEAST_SPREAD * (1 + xp.abs(mean))
            x = x * like(changes, x)
            scale = xp.where(changes, xp.sqrt(spread * typical), 1.0)
            x = x / scale
        if len(x) < x.shape[1]:  # the optimum lies in the span of the rows
            values, vectors = xp.linalg.eigh(x @ x.T)
            large = values > LEAST_PART * values[-1]
            basis = x.T @ (vectors[:, large] / xp.sqrt(values[large]))
        else:
            _, basis = xp.linalg.eigh(x.T @ x)
        x = x @ basis
        rows = xp.concat([x, xp.ones_like(x[:, :1])], axis=1)
        return Design(rows, (rows * rows).sum(0)[:, None], mean, scale, basis, free_bias)

    def rough(self) -> "Design[A]":
        """Return the design in float32, whose products take half the time."""
        xp = namespace(self.rows)
        rows, squares = (xp.astype(side, xp.float32) for side in (self.rows, self.squares))
        return replace(self, rows=rows, squares=squares)

    def linear(self, solution: A) -> tuple[A, A]:
        """Return W (D, K) and b (K,) for features as they came."""
        weight = (self.basis @ like(solution[:-1], self.basis)) / self.scale[:, None]
        return weight, like(solution[-1], self.mean) - self.mean @ weight

    def penalty(self, l2: A) -> A:
        """Return what multiplies the squares of a solution (r + 1, K): l2, 0 for a free bias."""
        xp = namespace(self.rows)
        penalty: A = xp.ones_like(self.squares) * like(l2, self.rows)
        if self.free_bias:
            penalty[-1] = 0
        return penalty


def minimise(
    design: Design[A], loss: ConvexLoss[A], l2: A, start: A, *, tolerance: float = EXACT
) -> A:
    """Return the optimum (r + 1, K) for weights l2 (1, K), by Newton steps from ``start``."""
    xp = namespace(start)
    solution, columns = xp.asarray(start, copy=True), xp.arange(start.shape[1], device=start.device)
    w, penalty, logits = start, design.penalty(l2), design.rows @ start
    value = loss.sums(logits) + loss.over_problems(penalty * w * w) / 2
    falling = value == value
    rounding = xp.finfo(value.dtype)
    tiny = float(rounding.smallest_normal)
    for _ in range(NEWTON_STEPS):
        at = loss.derivatives(logits)
        gradient = design.rows.T @ at.gradient + penalty * w
        scaling = (at.curvature * design.squares + penalty).clip(min=tiny)
        gain = loss.over_problems(gradient * gradient / scaling) / 2
        todo = falling & (gain > tolerance * value)
        if not todo.any():
            break
        if not loss.joint and not todo.all():
            chosen = xp.nonzero(todo[0])[0]
            columns, loss, value = columns[chosen], loss.columns(chosen), value[:, chosen]
            w, penalty, logits, gradient, scaling, gain = (
                every[:, chosen] for every in (w, penalty, logits, gradient, scaling, gain)
            )
            at = loss.derivatives(logits)
        forcing = xp.sqrt(gain / value).clip(max=LOOSEST)
        step, change = _newton_step(design.rows, loss, at, penalty, scaling, -gradient, forcing)
        slope = loss.over_problems(gradient * step)
        # A step is halved until the value falls enough.
        size, slack = xp.ones_like(value), 10 * float(rounding.eps) * value
        for _ in range(HALVINGS):
            moved = w + size * step
            reached = loss.sums(logits + size * change)
            reached = reached + loss.over_problems(penalty * moved * moved) / 2
            short = reached > value + ENOUGH * size * slope + slack
            if not short.any():
                break
            size = xp.where(short, size / 2, size)
        falling, value = value - reached > slack, reached
        w, logits = w + size * step, logits + size * change
        solution[:, columns] = w
    return solution  # type: ignore[no-any-return]


def _newton_step(
    rows: A,
    loss: ConvexLoss[A],
    at: Derivatives[A],
    penalty: A,
    preconditioner: A,
    wanted: A,
    forcing: A,
) -> tuple[A, A]:
    """Return d with H d near ``wanted``, and rows d, by preconditioned conjugate gradients."""
    xp, total = namespace(rows), loss.over_problems
    tiny = float(xp.finfo(rows.dtype).smallest_normal)
    step, change = 0 * wanted, rows @ (0 * wanted)
    left = wanted
    ahead = left / preconditioner
    direction, size = ahead, total(left * ahead)
    goal = forcing * forcing * size
    for _ in range(GRADIENT_STEPS):
        moved = rows @ direction
        pull = rows.T @ at.times(moved) + penalty * direction
        bend = total(direction * pull)
        # A problem that is done moves no further: its length is zero.
        going = (size > goal) & (bend > 0)
        length = xp.where(going, size / xp.where(going, bend, 1.0), 0.0)
        step, change = step + length * direction, change + length * moved
        left = left - length * pull
        ahead = left / preconditioner
        before, size = size, total(left * ahead)
        if not (size > goal).any():
            break
        direction = ahead + size / before.clip(min=tiny) * direction
    return step, change
