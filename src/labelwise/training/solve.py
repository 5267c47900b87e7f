"""Solve: the linear head of a convex loss on frozen features at its optimum, not near it.

    minimise over W, b:    loss(features W + b)  +  sum_k l2_k / 2 ||W_k||^2

with standardised features and a free bias, for all labels at once. The l2 weights are those whose
optimum has the least loss on validation rows.

Features are centred, scaled, and turned once into the eigenvectors of their Gram matrix, with
eigenvalues s^2. There the Hessian of a label, X^T diag(h) X + l2, is nearly the diagonal
mean(h) s^2 + l2, which preconditions the conjugate gradients of Newton steps for every label and
every weight: a few products with the rows per step, made for all labels together. Weights are
tried in float32 and to a rough optimum, the chosen ones are solved in float64 to the end.

Labels whose logits of all rows would be many numbers are solved some at a time, and only these are
in memory: beside the features it grows with the number of labels, not with labels times rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from labelwise.base.allocator import memory_bytes
from labelwise.base.convex import ConvexLoss, Derivatives
from labelwise.errors import SettingsError
from labelwise.learn.heads import LinearHead
from labelwise.models import Model
from labelwise.pictures import FeatureRows
from labelwise.pictures.memory import MappedFeatures
from labelwise.training import checkpoint
from labelwise.training.inference import validation_figures
from labelwise.training.prepare import Training
from labelwise.types import Targets

COPIES = 8  # times the features are in memory while they are solved, most of it in float64


def solve_head(training: Training) -> Model | None:
    """Return the model with its head at the optimum; None if it must be trained in steps."""
    head, rows = training.model.head, training.splits["train"].images
    if training.frozen is None or not isinstance(head, LinearHead):
        return None
    if not isinstance(rows, FeatureRows) or rows.features.ndim != 2:
        return None
    if isinstance(rows.features, MappedFeatures) and COPIES * rows.features.nbytes > memory_bytes():
        training.watch.say(
            f"the features take {rows.features.nbytes / 2**30:,.1f} GiB, too much to solve the "
            "head in this machine's memory: training it in steps"
        )
        return None
    loss = _loss(training, "train")
    if loss is None:
        return None
    val_loss = _loss(training, "val") if "val" in training.splits else None
    if val_loss is None:
        raise SettingsError(
            "the L2 weight of a solved head is chosen on validation, and there is none; give a "
            "val split, or a val_share above 0"
        )
    watch, journal, labels = training.watch, training.run.journal, loss.num_labels
    journal.cut(0)
    watch.say(f"solving the head: {len(rows):,} rows of features, {labels:,} labels")
    step = 0

    def tried(l2: float, value: float) -> None:
        nonlocal step
        step += 1
        watch.say(f"L2 weight {l2:,.4g}: validation loss {value / labels:.4f} per label")
        journal.write({"step": step, "l2": l2, "val_loss": value / labels})

    val = _features(training, "val")
    solution = solve(_features(training, "train"), loss, val, val_loss, tried=tried)
    with torch.no_grad():
        head.classifier.weight.copy_(solution.weight.T)
        head.classifier.bias.copy_(solution.bias)
    logits, link = solution.logits(val).cpu(), training.objective.link
    figures = validation_figures(logits, *training.targets("val"), link)
    found = {f"val_{name}": value for name, value in figures.items()}
    journal.write({"step": step + 1, "l2": solution.l2.log().mean().exp().item(), **found})
    least, most = (f"{end.item():,.4g}" for end in solution.l2.aminmax())
    weights = f"the L2 weight {least}" if least == most else f"L2 weights from {least} to {most}"
    score = figures["map"]
    shown = "undefined" if score is None else f"{score:.4f}"
    watch.say(f"solved with {weights}: val map {shown}")
    model = training.model.to(training.device)
    # What the folder belongs to, for a command that comes back to it.
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    checkpoint.save(training.run.checkpoint, tensors, training.contents)
    return model


def _features(training: Training, split: str) -> Tensor:
    images, device = training.splits[split].images, training.device
    if not isinstance(images, FeatureRows):
        raise TypeError(f"the rows of {split} must be features, got {type(images).__name__}")
    features = torch.from_numpy(np.asarray(images.features))
    return features.to(device) if device.type == "cuda" else features  # others have no float64


def _loss(training: Training, split: str) -> ConvexLoss[Tensor] | None:
    labels, observed = training.targets(split)
    kept = labels.double() if labels.is_floating_point() else labels.float()  # 0 and 1 are exact
    return training.objective.convex(Targets(kept, observed))


FIRST, WEAKEST = -1, -8  # powers of ten of the l2 weight, as a multiple of the number of rows
ROUGH, FINE, EXACT = 1e-3, 1e-6, 1e-8  # of the loss may be left to gain: tried, float32, float64
NEWTON_STEPS, GRADIENT_STEPS, HALVINGS = 100, 50, 40
LOOSEST = 0.3  # of a gradient may be left by the conjugate gradients of one Newton step
ENOUGH = 1e-4  # of the gain that the slope promises, for a step to be taken
NO_LESS = 0.9999  # of the loss of ten times the weight: weaker ones are not tried
AT_ONCE = 1 << 22  # logits: some ten times 8 bytes each, in the products of a float64 step
AT_ONCE_ON_GPU = 1 << 24  # fewer, longer kernels, and fewer answers that are waited for
APART = 0.3  # powers of ten by which labels' weights differ, before their validation rows are seen

P = TypeVar("P", float, Tensor)


@dataclass(frozen=True, eq=False)
class _Design:
    """Rows (N, r + 1) as the solver sees them: standardised, turned, and a last column of ones.

    Of features (N, D): ``(features - mean) / scale @ basis``. ``squares`` (r + 1, 1) are the sums
    of squares of the columns. A bias that is not ``free`` is penalised as the weights are.
    """

    rows: Tensor
    squares: Tensor
    mean: Tensor
    scale: Tensor
    basis: Tensor
    free_bias: bool = True

    @staticmethod
    def of(
        features: Tensor,
        *,
        standardise: bool = True,
        spread: Tensor | None = None,
        free_bias: bool = True,
    ) -> "_Design":
        """Return the design of training features; one that never changes is left as it is.

        ``spread`` (D,) are the deviations of the features where more photos than these say them.
        """
        x = features.double()
        mean = x.mean(dim=0)
        scale = torch.ones_like(mean)
        x = x - mean
        if standardise:
            spread = x.square().mean(dim=0).sqrt() if spread is None else spread
            scale = torch.where(spread > 1e-9 * (1 + mean.abs()), spread, 1.0)
            x /= scale
        basis = None
        if len(x) < x.shape[1]:  # the optimum lies in the span of the rows
            basis, triangle = torch.linalg.qr(x.T)
            x = triangle.T.contiguous()
        _, vectors = torch.linalg.eigh(x.T @ x)
        basis = vectors if basis is None else basis @ vectors
        rows = torch.cat([x @ vectors, torch.ones_like(x[:, :1])], dim=1)
        return _Design(rows, rows.square().sum(dim=0)[:, None], mean, scale, basis, free_bias)

    def to(self, dtype: torch.dtype) -> "_Design":
        return replace(self, rows=self.rows.to(dtype), squares=self.squares.to(dtype))

    def seen(self, features: Tensor) -> Tensor:
        x = (features.to(self.mean) - self.mean) / self.scale
        return torch.cat([x @ self.basis, torch.ones_like(x[:, :1])], dim=1)

    def linear(self, solution: Tensor) -> tuple[Tensor, Tensor]:
        """Return W (D, K) and b (K,) for features as they came."""
        weight = (self.basis @ solution[:-1]) / self.scale[:, None]
        return weight, solution[-1] - self.mean @ weight

    def penalty(self, l2: Tensor) -> Tensor:
        """Return what multiplies the squares of a solution (r + 1, K): l2, 0 for a free bias."""
        penalty = l2.to(self.rows).expand(len(self.squares), -1).clone()
        if self.free_bias:
            penalty[-1] = 0
        return penalty


@dataclass(frozen=True, eq=False)
class Solution:
    """A linear classifier, logits = features W + b, and the l2 weight of each label."""

    weight: Tensor  # (D, K)
    bias: Tensor  # (K,)
    l2: Tensor  # (K,)

    def logits(self, features: Tensor) -> Tensor:
        return features.to(self.weight) @ self.weight + self.bias


def solve(
    features: Tensor,
    loss: ConvexLoss[Tensor],
    val_features: Tensor,
    val_loss: ConvexLoss[Tensor],
    *,
    tolerance: float = EXACT,
    tried: Callable[[float, float], None] = lambda _l2, _loss: None,
) -> Solution:
    """Return the optimum of each label at the l2 weight that is best on validation.

    Weights fall by tens until the validation loss rises, then the place between is sought. A label
    leaves the common weight only for one that is clearly better for it: the best of a few on
    some rows is a guess, more so for rare labels. ``tried`` is told each weight and its loss.
    """
    exact = _Design.of(features)
    loss, val_loss = (
        side.each(lambda values: values.to(features.device)) for side in (loss, val_loss)
    )
    rough = exact.to(torch.float32)
    path = _Path(rough, loss, exact.seen(val_features).to(rough.rows), val_loss, tried)
    path.search()
    l2 = path.chosen()
    w = _solved(path.design, loss, l2[None], path.nearest(l2), tolerance=FINE)
    w = _solved(exact, loss, l2[None], w.to(exact.rows), tolerance=tolerance)
    return Solution(*exact.linear(w), l2)


def _portions(loss: ConvexLoss[Tensor], rows: Tensor) -> Iterator[tuple[slice, ConvexLoss[Tensor]]]:
    """Yield columns and the loss of their labels as the rows are, with so many logits at once."""
    most = AT_ONCE_ON_GPU if rows.is_cuda else AT_ONCE
    together = loss.num_labels if loss.joint else max(1, most // len(rows))
    if loss.num_labels <= together:
        yield slice(None), loss.to(rows)
        return
    for start in range(0, loss.num_labels, together):
        some = slice(start, min(start + together, loss.num_labels))
        yield some, loss.columns(some).to(rows)


def _solved(
    design: _Design, loss: ConvexLoss[Tensor], l2: Tensor, start: Tensor, *, tolerance: float
) -> Tensor:
    """Return what :func:`minimise` does, of a loss in any type, some labels at a time."""
    parts = [
        minimise(design, some.bounded(), l2[:, columns], start[:, columns], tolerance=tolerance)
        for columns, some in _portions(loss, design.rows)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


@dataclass(frozen=True, eq=False)
class _Path:
    """The rough optima of the l2 weights that were tried, and how they do on validation."""

    design: _Design
    loss: ConvexLoss[Tensor]
    val_rows: Tensor
    val_loss: ConvexLoss[Tensor]
    tried: Callable[[float, float], None]
    found: dict[float, Tensor] = field(default_factory=dict)  # by the power of ten of the weight
    sums: dict[float, Tensor] = field(default_factory=dict)  # validation losses of each problem
    losses: dict[float, float] = field(default_factory=dict)

    def _l2(self, power: P) -> P:
        return 10**power * len(self.design.rows)

    def search(self) -> None:
        """Try weights until they help no more, then at half a power of ten around the best."""
        for power in range(FIRST, WEAKEST - 1, -1):
            self._try(float(power))
            if power < FIRST and self.losses[power] > NO_LESS * self.losses[power + 1]:
                break
        if self._best() == FIRST:
            self._try(FIRST + 1.0)
        for distance in (-0.5, 0.5):
            self._try(self._best() + distance)

    def _best(self) -> float:
        return min(self.losses, key=self.losses.__getitem__)

    def _try(self, power: float) -> None:
        if power in self.found:
            return
        weaker = [other for other in self.found if other > power] or list(self.found)
        near = min(weaker, key=lambda other: abs(other - power), default=None)
        rows = self.design.rows
        if near is None:  # the classifier whose logits are the same for all rows
            start = rows.new_zeros(rows.shape[1], self.loss.num_labels)
            for columns, loss in _portions(self.loss, rows):
                start[-1, columns] = loss.bounded().prior()
        else:
            start = self.found[near]
        l2 = torch.full((1, self.loss.num_labels), self._l2(power))
        w = self.found[power] = _solved(self.design, self.loss, l2, start, tolerance=ROUGH)
        parts = [
            loss.rows(self.val_rows @ w[:, columns]).double().sum(dim=0)
            for columns, loss in _portions(self.val_loss, self.val_rows)
        ]
        self.sums[power] = torch.cat(parts).cpu()
        self.losses[power] = self.sums[power].sum().item() / len(self.val_rows)
        self.tried(self._l2(power), self.losses[power])

    def chosen(self) -> Tensor:
        """Return the weight (K,) of each label.

        The power of ten of a label's weight is normal around the common one, and its validation
        loss is minus the log-likelihood of a tried power. The mean of what follows is taken, so
        that a label leaves the common weight as far as its own rows speak for it.
        """
        common = self._best()
        left, right = (self.losses.get(common + distance) for distance in (-0.5, 0.5))
        if left is not None and right is not None:
            bend = left - 2 * self.losses[common] + right
            if bend > 0:  # the bottom of the parabola through these
                common = common + 0.25 * (left - right) / bend
        powers = torch.tensor(sorted(self.found), dtype=torch.float64)
        if self.loss.joint:
            return self._l2(torch.full((self.loss.num_labels,), common, dtype=torch.float64))
        losses = [self.sums[power] for power in powers.tolist()]
        between = torch.nn.functional.pad(powers.diff(), (1, 1))
        share = (between[1:] + between[:-1])[:, None]  # of the powers that a tried one stands for
        prior = share.log() - ((powers[:, None] - common) / APART).square() / 2
        joint = prior - torch.stack(losses)
        posterior = (joint - joint.logsumexp(dim=0)).exp()
        return self._l2((posterior * powers[:, None]).sum(dim=0))

    def nearest(self, l2: Tensor) -> Tensor:
        """Return the rough optimum (r + 1, K) of the tried weight nearest to each label's."""
        powers = torch.tensor(sorted(self.found), dtype=torch.float64)
        wanted = (l2 / len(self.design.rows)).log10()
        which = (wanted[:, None] - powers).abs().argmin(dim=1)
        w = torch.stack([self.found[power] for power in powers.tolist()])
        return w[which, :, torch.arange(len(l2))].T.contiguous()


def minimise(
    design: _Design,
    loss: ConvexLoss[Tensor],
    l2: Tensor,
    start: Tensor,
    *,
    tolerance: float = EXACT,
) -> Tensor:
    """Return the optimum (r + 1, K) for weights l2 (1, K), by Newton steps from ``start``."""
    solution, columns = start.clone(), torch.arange(start.shape[1], device=start.device)
    w, penalty, logits = start, design.penalty(l2), design.rows @ start
    value = loss.sums(logits) + loss.over_problems(penalty * w.square()) / 2
    falling = torch.ones_like(value, dtype=torch.bool)
    for _ in range(NEWTON_STEPS):
        at = loss.derivatives(logits)
        gradient = design.rows.T @ at.gradient + penalty * w
        typical = at.curvature * design.squares + penalty
        scaling = typical.clamp(min=torch.finfo(typical.dtype).tiny)
        gain = loss.over_problems(gradient.square() / scaling) / 2
        todo = falling & (gain > tolerance * value)
        if not todo.any():
            break
        if not loss.joint and not todo.all():
            chosen = todo[0].nonzero()[:, 0]
            columns, loss, value = columns[chosen], loss.columns(chosen), value[:, chosen]
            w, penalty, logits, gradient, scaling, gain = (
                every[:, chosen] for every in (w, penalty, logits, gradient, scaling, gain)
            )
            at = loss.derivatives(logits)
        forcing = (gain / value).sqrt().clamp(max=LOOSEST)
        step, change = _newton_step(design.rows, loss, at, penalty, scaling, -gradient, forcing)
        slope = loss.over_problems(gradient * step)
        # A step is halved until the value falls enough.
        size, slack = torch.ones_like(value), 10 * torch.finfo(value.dtype).eps * value
        for _ in range(HALVINGS):
            reached = loss.sums(logits + size * change)
            reached += loss.over_problems(penalty * (w + size * step).square()) / 2
            short = reached > value + ENOUGH * size * slope + slack
            if not short.any():
                break
            size = torch.where(short, size / 2, size)
        falling, value = value - reached > slack, reached
        w, logits = w + size * step, logits + size * change
        solution[:, columns] = w
    return solution


def _newton_step(
    rows: Tensor,
    loss: ConvexLoss[Tensor],
    at: Derivatives[Tensor],
    penalty: Tensor,
    preconditioner: Tensor,
    wanted: Tensor,
    forcing: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return d with H d near ``wanted``, and rows d, by preconditioned conjugate gradients."""
    total = loss.over_problems
    step, change = torch.zeros_like(wanted), wanted.new_zeros(len(rows), wanted.shape[1])
    left = wanted
    ahead = left / preconditioner
    direction, size = ahead, total(left * ahead)
    goal = forcing.square() * size
    for _ in range(GRADIENT_STEPS):
        moved = rows @ direction
        pull = rows.T @ at.times(moved) + penalty * direction
        bend = total(direction * pull)
        # A problem that is done moves no further: its length is zero.
        length = torch.where((size > goal) & (bend > 0), size / bend, 0.0)
        step, change = step + length * direction, change + length * moved
        left = left - length * pull
        ahead = left / preconditioner
        before, size = size, total(left * ahead)
        if not (size > goal).any():
            break
        direction = ahead + size / before.clamp(min=torch.finfo(before.dtype).tiny) * direction
    return step, change
