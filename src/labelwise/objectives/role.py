"""ROLE, regularised online label estimation: Cole et al., CVPR 2021.

One logit theta for every (training image, label) holds the estimate y~ = sigmoid(theta) of a label
nobody saw. Classifier f = sigmoid(v) and estimates teach each other; sg stops gradients:

    main  = mean over the B K entries of  1/2 [ P nl(f) + P nl(y~) + H(sg y~, f) + H(sg f, y~) ]
    reg   = 1/2 [ ((k^(f) - k) / K)^2 + ((k^(y~) - k) / K)^2 ]
    H(a, b) = a nl(b) + (1 - a) nl(1 - b),     P = 1 at observed positives, k^ as in EPR

Both halves have one shape, so the loss is symmetric under f <-> y~. Islam et al. misplace a bracket
of it (its eq. 5); the "bi-level" optimisation is plain joint descent. The estimates are found by
``Targets.index``, start as ``estimates`` says, and are trained by Adam at 10 times the
classifier's learning rate, without weight decay. They are not deployed.

``table`` says where they live:

    "memory"   in the computer's memory: 3 N K numbers with Adam's; a batch's rows go to the device
    a path     the same in a file, for tables larger than memory
    "device"   beside the model, all rows moved in every step: nothing waits for the host
    "dense"    an ordinary parameter, trained by your optimiser: put ``objective.parameters()``
               into an Adam group with ``objective.lr_scale`` times the learning rate

For the first three call ``objective.step(lr)`` after each optimiser step. All follow the same
path up to rounding: rows that are not in a batch keep moving by their momentum, as under dense
Adam, which is nine tenths of all their motion. Only, in memory and in a file it is made up when
the row is next asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.device_estimates import DeviceEstimates
from labelwise.objectives.estimates import (
    KNOWN_LOGIT,
    DenseEstimates,
    Estimates,
    MovedEstimates,
    RowEstimates,
    Start,
)
from labelwise.objectives.expected_positives import expected_positives
from labelwise.objectives.single_positive import (
    EpsMode,
    checked_eps_mode,
    neg_logs,
)
from labelwise.system.tensors import part_of
from labelwise.types import Outputs, Targets


def role_loss(
    logits: Tensor, theta: Tensor, labels: Tensor, k: float, eps_mode: EpsMode = "stable"
) -> tuple[Tensor, Tensor]:
    """Return the scalars ``(main, reg)`` of classifier logits and estimate logits, each (B, K)."""
    sides = ((logits, theta), (theta, logits))
    main = torch.stack([_half(*side, labels, eps_mode) for side in sides]).mean()
    excess = torch.stack([expected_positives(side) - k for side, _ in sides]) / logits.shape[1]
    return main, excess.square().mean()


def _half(learner: Tensor, teacher: Tensor, labels: Tensor, eps_mode: EpsMode) -> Tensor:
    present, absent = neg_logs(learner, eps_mode)
    taught = torch.sigmoid(teacher.detach())
    return (labels * present + taught * present + (1 - taught) * absent).mean()


@dataclass(frozen=True)
class _Pending:
    """What ``step`` needs of the last training batch."""

    index: Tensor
    rows: Tensor
    logits: Tensor
    labels: Tensor


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
        table: str | Path = "memory",
        start: float = 0.6,
        seed: int = 0,
        eps_mode: EpsMode = "stable",
    ) -> None:
        super().__init__(Sigmoid())
        if num_images < 1 or num_labels < 1 or k <= 0:
            raise ValueError(
                "num_images, num_labels and k must be positive, "
                f"got {num_images}, {num_labels} and {k}"
            )
        self.k, self.eps_mode = k, checked_eps_mode(eps_mode)
        self.shape = shape = (num_images, num_labels)
        begin = Start(start, seed)
        self.table: Estimates
        if table == "dense":
            self.table = DenseEstimates(shape, begin)
        elif table == "device":
            self.table = DeviceEstimates(shape, begin)
        else:
            self.table = RowEstimates(shape, begin, None if table == "memory" else Path(table))
        self._pending: _Pending | None = None

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        if targets.index is None:
            raise ValueError(
                "ROLE needs the row numbers of the images in the training set, "
                "got Targets without index; call it with Targets(labels, observed, index)"
            )
        logits, labels = outputs.logits, targets.labels
        rows = self.table(targets.index, _start(targets))
        if isinstance(self.table, MovedEstimates) and self.training and torch.is_grad_enabled():
            self._pending = _Pending(targets.index, rows.detach(), logits.detach(), labels)
        main, reg = role_loss(logits, rows[0], labels, self.k, self.eps_mode)
        return main + reg

    def start_from(self, state: Mapping[str, Tensor]) -> bool:
        """Take over the estimates of an earlier run, at rest and clipped to [1e-5, 1 - 1e-5]."""
        own = part_of(state, "table")
        if not own.keys() & {"records", "theta"}:  # of another method, or kept in a file
            return False
        kind = DenseEstimates if "theta" in own else DeviceEstimates
        earlier = kind(self.shape, Start())
        earlier.load_state_dict(own)
        rows = earlier.seen.nonzero().squeeze(1)
        self.set_estimates(rows, earlier.probabilities(rows))
        return True

    def step(self, lr: float) -> None:
        pending, self._pending = self._pending, None
        if pending is None or not isinstance(self.table, MovedEstimates):
            return
        with torch.enable_grad():
            theta = pending.rows[0].clone().requires_grad_()
            main, reg = role_loss(pending.logits, theta, pending.labels, self.k, self.eps_mode)
            (gradient,) = torch.autograd.grad(main + reg, theta)
        self.table.step(pending.index, pending.rows, gradient, self.lr_scale * lr)

    def estimates(self, rows: Tensor) -> Tensor:
        """Return the estimated probabilities (n, K) of images of the training set.

        Of several processes the first one knows them.
        """
        return self.table.probabilities(rows)

    def set_estimates(self, rows: Tensor, probs: Tensor) -> None:
        """Start images of the training set from given probabilities, as a second stage does."""
        self.table.assign(rows, probs)


def _start(targets: Targets) -> Tensor:
    """Return the logits (B, K) at which observed entries start, 0 at unknown ones."""
    signed = KNOWN_LOGIT * (2 * targets.labels - 1)
    observed = targets.labels > 0 if targets.observed is None else targets.observed
    return torch.where(observed, signed, 0.0)
