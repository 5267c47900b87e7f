"""ROLE, regularised online label estimation: Cole et al., CVPR 2021.

One logit theta for every (training image, label) holds the estimate y~ = sigmoid(theta) of a label
nobody saw. Classifier f = sigmoid(v) and estimates teach each other; sg stops gradients:

    main  = mean over the B K entries of  1/2 [ P nl(f) + P nl(y~) + H(sg y~, f) + H(sg f, y~) ]
    reg   = 1/2 [ ((k^(f) - k) / K)^2 + ((k^(y~) - k) / K)^2 ]
    H(a, b) = a nl(b) + (1 - a) nl(1 - b),     P = 1 at observed positives, k^ as in EPR

The estimates are found by ``Targets.index`` and trained by Adam at 10 times the classifier's
learning rate, without weight decay: all rows in every step, since momentum moves those outside the
batch.

An unknown entry starts at q (2r - 1), r uniform in [0, 1), q = logit(start), start = 0.6; an
observed one at logit(0.995), or minus that if absent.

``table`` says where they live:

    "memory"   in the computer's memory: 3 N K numbers with Adam's; a batch's rows go to the device
    "device"   the same beside the model: nothing waits for the host
    "dense"    an ordinary parameter, trained by your optimiser: put ``objective.parameters()``
               into an Adam group with ``objective.lr_scale`` times the learning rate

For the first two call ``objective.step(lr)`` after each optimiser step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import Literal, Self

import torch
from torch import Tensor, nn

from labelwise.base.tensors import part_of
from labelwise.errors import require
from labelwise.learn.objectives.base import Objective, one_of, row_numbers, uniforms
from labelwise.learn.objectives.missing_labels import EpsMode, expected_positives, neg_logs
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets

Table = Literal["memory", "device", "dense"]
KNOWN_LOGIT = log(0.995 / 0.005)
CLIP = 1e-5
BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8  # of Adam


@dataclass(frozen=True)
class Start:
    """Where unknown entries start: at random between ``1 - highest`` and ``highest``."""

    highest: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        require(0.5 <= self.highest < 1, f"start must lie in [0.5, 1), got {self.highest}")

    def logits(self, rows: Tensor, num_labels: int) -> Tensor:
        positions = rows.unsqueeze(1) * num_labels + torch.arange(num_labels, device=rows.device)
        return self.between(uniforms(positions, self.seed))

    def between(self, r: Tensor) -> Tensor:
        return log(self.highest / (1 - self.highest)) * (2 * r - 1)


def logits_of(probs: Tensor) -> Tensor:
    """Return the logits of probabilities, which are clipped to [1e-5, 1 - 1e-5] first."""
    return torch.logit(probs, eps=CLIP)


class DenseEstimates(nn.Module):
    """Estimate logits of N images by K labels as one parameter, moved by the model's optimiser."""

    seen: Tensor

    def __init__(self, shape: tuple[int, int], start: Start) -> None:
        super().__init__()
        self.theta = nn.Parameter(start.logits(torch.arange(shape[0]), shape[1]))
        self.register_buffer("seen", torch.zeros(shape[0], dtype=torch.bool))

    def forward(self, index: Tensor, start: Tensor) -> Tensor:
        """Return theta (B, K) of a batch; new rows begin at ``start`` where that is not 0."""
        if self.training:
            with torch.no_grad():
                fresh = ~self.seen[index].unsqueeze(1) & (start != 0)
                self.theta[index] = torch.where(fresh, start.to(self.theta), self.theta[index])
                self.seen[index] = True
        return self.theta[index].to(start)

    def probabilities(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(self.theta.detach()[rows])

    @torch.no_grad()
    def assign(self, rows: Tensor, probs: Tensor) -> None:
        self.theta[rows] = logits_of(probs).to(self.theta)
        self.seen[rows] = True


class MovedEstimates(nn.Module):
    """Estimates that move themselves by Adam, once the gradient of a batch's rows is known.

    ``moments`` (3, N, K) are theta and Adam's m and v; ``seen`` are the rows met so far. On the
    host they stay on the CPU in float32, wherever the objective goes.
    """

    moments: Tensor
    seen: Tensor
    clock: Tensor

    def __init__(self, shape: tuple[int, int], start: Start, *, on_host: bool) -> None:
        super().__init__()
        self.start, self.on_host = start, on_host
        theta = start.logits(torch.arange(shape[0]), shape[1])
        rest = torch.zeros_like(theta)
        self.register_buffer("moments", torch.stack([theta, rest, rest]))
        self.register_buffer("seen", torch.zeros(shape[0], dtype=torch.bool))
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self if self.on_host else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def forward(self, index: Tensor, start: Tensor) -> Tensor:
        where = index.to(self.seen.device)
        fresh = ~self.seen[where].unsqueeze(1).to(start.device) & (start != 0)
        return torch.where(fresh, start, self.moments[0, where].to(start))

    @torch.no_grad()
    def step(self, index: Tensor, theta: Tensor, gradient: Tensor, lr: float) -> None:
        """Move all rows; those of a batch were at ``theta`` and have a gradient, each (B, K)."""
        index = index.to(self.seen.device)
        self.moments[0, index] = theta.to(self.moments)
        self.seen[index] = True
        total = torch.zeros_like(self.moments[0]).index_add_(0, index, gradient.to(self.moments))
        self.clock += 1
        self.moments.copy_(adam_step(self.moments, total, self.clock.double(), lr))

    def probabilities(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(self.moments[0, rows.to(self.seen.device)])

    @torch.no_grad()
    def assign(self, rows: Tensor, probs: Tensor) -> None:
        rows = rows.to(self.seen.device)
        self.moments[:, rows] = 0.0
        self.moments[0, rows] = logits_of(probs).to(self.moments)
        self.seen[rows] = True


def new_table(kind: Table, shape: tuple[int, int], start: Start) -> DenseEstimates | MovedEstimates:
    """Return the estimates of a training set before its first batch."""
    if kind == "dense":
        return DenseEstimates(shape, start)
    return MovedEstimates(shape, start, on_host=kind == "memory")


def adam_step(rows: Tensor, gradient: Tensor, step: int | Tensor, lr: float) -> Tensor:
    """Return rows (3, n, K) of theta, m, v after Adam's step number ``step`` (from 1)."""
    theta, m, v = rows.unbind()
    m = torch.lerp(m, gradient, 1 - BETA_1)
    v = BETA_2 * v + (1 - BETA_2) * gradient.square()
    root = (v / (1 - BETA_2**step)).sqrt()
    return torch.stack([theta - lr / (1 - BETA_1**step) * m / (root + EPS), m, v])


def role_loss(
    logits: Tensor, theta: Tensor, labels: Tensor, k: float, eps_mode: EpsMode = "stable"
) -> tuple[Tensor, Tensor]:
    """Return the scalars ``(main, reg)`` of classifier logits and estimate logits, each (B, K)."""
    halves, expected = [], []
    for learner, teacher in ((logits, theta), (theta, logits)):
        present, absent = neg_logs(learner, eps_mode)
        taught = torch.sigmoid(teacher.detach())
        halves.append((labels * present + taught * present + (1 - taught) * absent).mean())
        expected.append(expected_positives(learner) - k)
    excess = torch.stack(expected) / logits.shape[1]
    return torch.stack(halves).mean(), excess.square().mean()


class ROLE(Objective):
    """Regularised online label estimation of N images by K labels, k of them present on average."""

    couples_batch = True
    reads_unknown = True
    lr_scale = 10.0

    def __init__(
        self,
        num_images: int,
        num_labels: int,
        k: float,
        *,
        table: Table = "memory",
        start: float = 0.6,
        seed: int = 0,
        eps_mode: EpsMode = "stable",
    ) -> None:
        super().__init__(Sigmoid())
        require(
            num_images >= 1 and num_labels >= 1 and k > 0,
            "num_images, num_labels and k must be positive, "
            f"got {num_images}, {num_labels} and {k}",
        )
        self.k, self.eps_mode = k, one_of("eps_mode", eps_mode, EpsMode)
        self.shape = shape = (num_images, num_labels)
        self.table = new_table(one_of("table", table, Table), shape, Start(start, seed))
        # What ``step`` needs of the last training batch: index, theta, logits, labels.
        self._pending: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        index = row_numbers(targets, "ROLE keeps estimates of the training images")
        logits, labels = outputs.logits, targets.labels
        theta = self.table(index, _start(targets))
        if isinstance(self.table, MovedEstimates) and self.training and torch.is_grad_enabled():
            self._pending = (index, theta.detach(), logits.detach(), labels)
        main, reg = role_loss(logits, theta, labels, self.k, self.eps_mode)
        return main + reg

    def start_from(self, state: Mapping[str, Tensor]) -> bool:
        """Take over the estimates of an earlier run, at rest and clipped to [1e-5, 1 - 1e-5]."""
        own = part_of(state, "table")
        if not own.keys() & {"moments", "theta"}:  # of another method
            return False
        earlier = new_table("dense" if "theta" in own else "memory", self.shape, Start())
        earlier.load_state_dict(own)
        rows = earlier.seen.nonzero().squeeze(1)
        self.set_estimates(rows, earlier.probabilities(rows))
        return True

    def step(self, lr: float) -> None:
        pending, self._pending = self._pending, None
        if pending is None or not isinstance(self.table, MovedEstimates):
            return
        index, theta, logits, labels = pending
        with torch.enable_grad():
            moved = theta.clone().requires_grad_()
            main, reg = role_loss(logits, moved, labels, self.k, self.eps_mode)
            (gradient,) = torch.autograd.grad(main + reg, moved)
        self.table.step(index, theta, gradient, self.lr_scale * lr)

    def estimates(self, rows: Tensor) -> Tensor:
        return self.table.probabilities(rows)

    def set_estimates(self, rows: Tensor, probs: Tensor) -> None:
        """Start images of the training set from given probabilities, as a second stage does."""
        self.table.assign(rows, probs)


def _start(targets: Targets) -> Tensor:
    """Return the logits (B, K) at which observed entries start, 0 at unknown ones."""
    signed = KNOWN_LOGIT * (2 * targets.labels - 1)
    observed = targets.labels > 0 if targets.observed is None else targets.observed
    return torch.where(observed, signed, 0.0)
