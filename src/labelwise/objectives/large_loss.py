"""Large losses betray missing labels: LL-R, LL-Ct and LL-Cp, Kim et al., CVPR 2022.

Unknown labels are read as absent (``reads_unknown``), under cross-entropy. A network learns clean
labels first, so that after the first epoch the largest losses among the unknown entries of a batch
are likely to be labels that are present and missing:

    n      = ceil(r t B K)                     r = 0.002, after t whole epochs; the authors tune
                                               it over 0.001, 0.002, 0.003, 0.004 and 0.005
    LL-R   drops the n largest losses of unknown entries
    LL-Ct  takes these entries as present in this step
    LL-Cp  takes ceil(r B K) of them as present for good, from the second epoch on

Losses as large as the n-th go the same way. The mean runs over all B K entries. Known labels are
never touched: the public code compares a table with 0 at known entries, and would correct those
too once n exceeds the unknown entries that cost anything. LL-Cp keeps one bit for each image and
label.

With complete labels this is cross-entropy, strictly proper under a sigmoid. With labels missing it
is not, and the share that is dropped, not the data, decides how far the rest is off; what LL-Cp
has once taken as present is never taken back.
"""

from math import ceil
from typing import Literal, get_args

import torch
from torch import Tensor

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.cross_entropy import bce_loss
from labelwise.objectives.epochs_seen import EpochsSeen
from labelwise.types import Outputs, Targets

Correction = Literal["reject", "correct"]


def largest_unknown(losses: Tensor, unknown: Tensor, count: Tensor) -> Tensor:
    """Return which unknown entries are among the ``count`` largest, those that tie included."""
    of_unknown = torch.where(unknown, losses, float("-inf"))
    falling = of_unknown.flatten().sort(descending=True).values
    last = (count - 1).clamp(0, losses.numel() - 1)
    least = falling.gather(0, last.view(1))  # an index that a compiler can trace
    return unknown & (of_unknown >= least) & (count > 0)


class LargeLossForGood(Objective):
    """LL-Cp: mean cross-entropy; unknown labels of the largest losses become present for good."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True
    taken: Tensor

    def __init__(self, num_images: int, num_labels: int, *, rate: float = 0.002) -> None:
        super().__init__(Sigmoid())
        if not 0 <= rate < 1:
            raise ValueError(f"rate must lie in [0, 1), got {rate}")
        self.rate = rate
        self.epochs = EpochsSeen(num_images)
        self.register_buffer("taken", torch.zeros(num_images, num_labels, dtype=torch.bool))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        epochs = self.epochs(outputs.logits)
        if targets.observed is None:
            return bce_loss(outputs.logits, targets.labels).mean()
        if targets.index is None:
            raise ValueError("ll-cp remembers labels of images, so targets need their index")
        taken = self.taken[targets.index]
        loss = bce_loss(outputs.logits, torch.where(taken, 1.0, targets.labels))
        count = torch.full_like(epochs, ceil(self.rate * loss.numel())) * (epochs > 0)
        missing = largest_unknown(loss.detach(), ~targets.observed & ~taken, count)
        if self.training:
            self.taken[targets.index] = taken | missing
        present = bce_loss(outputs.logits, torch.ones_like(loss))
        return torch.where(missing, present, loss).mean()


class LargeLoss(Objective):
    """Mean cross-entropy, the largest losses of unknown labels rejected or corrected."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True

    def __init__(
        self, num_images: int, *, rate: float = 0.002, correction: Correction = "reject"
    ) -> None:
        super().__init__(Sigmoid())
        if not 0 <= rate < 1:
            raise ValueError(f"rate must lie in [0, 1), got {rate}")
        if correction not in get_args(Correction):
            raise ValueError(
                f"correction must be one of {get_args(Correction)}, got {correction!r}"
            )
        self.rate, self.correction = rate, correction
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = bce_loss(outputs.logits, targets.labels)
        share = (self.rate * self.epochs(loss).float()).clamp(max=1)
        if targets.observed is None:
            return loss.mean()
        count = torch.ceil(share * loss.numel()).long()
        missing = largest_unknown(loss.detach(), ~targets.observed, count)
        instead = (
            bce_loss(outputs.logits, torch.ones_like(loss))
            if self.correction == "correct"
            else torch.zeros_like(loss)
        )
        return torch.where(missing, instead, loss).mean()
