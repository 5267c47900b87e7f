"""LL-Ct and LL-Cp (Kim et al., CVPR 2022): `labelwise compare --methods FILE:LargeLossCorrected`.

LL-Ct   takes the n largest losses of unknown entries as present in this step (n: as ll-r)
LL-Cp   takes ceil(r B K) of them as present for good, from the second epoch on
"""

from math import ceil

import torch
from torch import Tensor

from labelwise.errors import require
from labelwise.learn.objectives import Objective
from labelwise.learn.objectives.base import EpochsSeen, row_numbers
from labelwise.learn.objectives.cross_entropy import bce_loss
from labelwise.learn.objectives.missing_labels import largest_unknown
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets


class LargeLossCorrected(Objective):
    """LL-Ct: mean cross-entropy; unknown labels of the largest losses are present in this step."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True

    def __init__(self, num_images: int, *, rate: float = 0.002) -> None:
        super().__init__(Sigmoid())
        require(0 <= rate < 1, f"rate must lie in [0, 1), got {rate}")
        self.rate, self.epochs = rate, EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = bce_loss(outputs.logits, targets.labels)
        share = (self.rate * self.epochs(loss).float()).clamp(max=1)
        if targets.observed is None:
            return loss.mean()
        count = torch.ceil(share * loss.numel()).long()
        missing = largest_unknown(loss.detach(), ~targets.observed, count)
        return torch.where(missing, bce_loss(outputs.logits, torch.ones_like(loss)), loss).mean()


class LargeLossForGood(Objective):
    """LL-Cp: mean cross-entropy; unknown labels of the largest losses become present for good."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True
    taken: Tensor

    def __init__(self, num_images: int, num_labels: int, *, rate: float = 0.002) -> None:
        super().__init__(Sigmoid())
        require(0 <= rate < 1, f"rate must lie in [0, 1), got {rate}")
        self.rate = rate
        self.epochs = EpochsSeen(num_images)
        self.register_buffer("taken", torch.zeros(num_images, num_labels, dtype=torch.bool))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        epochs = self.epochs(outputs.logits)
        if targets.observed is None:
            return bce_loss(outputs.logits, targets.labels).mean()
        index = row_numbers(targets, "ll-cp remembers labels of images")
        taken = self.taken[index]
        loss = bce_loss(outputs.logits, torch.where(taken, 1.0, targets.labels))
        count = torch.full_like(epochs, ceil(self.rate * loss.numel())) * (epochs > 0)
        missing = largest_unknown(loss.detach(), ~targets.observed & ~taken, count)
        if self.training:
            self.taken[index] = taken | missing
        return torch.where(missing, bce_loss(outputs.logits, torch.ones_like(loss)), loss).mean()
