"""Two-way multi-label loss: Kobayashi (CVPR 2023), eqs. 14 to 17, and its supplement.

    unit(x; P, N) = softplus(T_N LSE_N(x / T_N) + T_P LSE_P(-x / T_P) + margin)
    sample-wise   = mean over images of unit(labels of the image)     images with a label present
    class-wise    = mean over labels of unit(images of the label)     labels present in the batch
    two-way       = sample-wise + class-wise

A unit without absent entries is 0 and counts in the mean; a batch without any label is 0. The
loss does not change when a constant is added to all logits, so zero is not a boundary and there is
no link: a sigmoid of these logits means nothing until it is calibrated. T_P LSE is a sum and no
mean, so T_P acts as a margin that grows with the number of labels present and does nothing for
one label. The public code masks with the constant -100, which leaks when logits pass it.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.numeric.ops import masked_logsumexp, masked_mean, split_labels
from labelwise.objectives.base import Objective
from labelwise.types import Outputs, Targets

SIDES = ("both", "sample", "class")


def two_way_unit(
    logits: Tensor,
    present: Tensor,
    absent: Tensor,
    *,
    dim: int,
    temperature_pos: float = 4.0,
    temperature_neg: float = 1.0,
    margin: float = 0.0,
) -> Tensor:
    """Return the unit loss along ``dim``: (B,) for ``dim=1``, (K,) for ``dim=0``."""
    high = temperature_neg * masked_logsumexp(logits / temperature_neg, absent, dim)
    low = temperature_pos * masked_logsumexp(-logits / temperature_pos, present, dim)
    both = present.any(dim=dim) & absent.any(dim=dim)
    return torch.where(both, softplus(high + low + margin), 0.0)


class TwoWay(Objective):
    """Two-way loss of a batch, or only one of its two sides; it has no link."""

    def __init__(
        self,
        *,
        side: Literal["both", "sample", "class"] = "both",
        temperature_pos: float = 4.0,
        temperature_neg: float = 1.0,
        margin: float = 0.0,
    ) -> None:
        super().__init__(None)
        if side not in SIDES:
            raise ValueError(f"side must be one of {SIDES}, got {side!r}")
        if temperature_pos <= 0 or temperature_neg <= 0:
            raise ValueError(
                "temperature_pos and temperature_neg must be positive, "
                f"got {temperature_pos} and {temperature_neg}"
            )
        self.dims = {"both": (1, 0), "sample": (1,), "class": (0,)}[side]
        self.temperature_pos, self.temperature_neg = temperature_pos, temperature_neg
        self.margin = margin
        self.couples_batch = side != "sample"

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, absent = split_labels(targets.labels, targets.observed)
        total = outputs.logits.new_zeros(())
        for dim in self.dims:
            unit = two_way_unit(
                outputs.logits,
                present,
                absent,
                dim=dim,
                temperature_pos=self.temperature_pos,
                temperature_neg=self.temperature_neg,
                margin=self.margin,
            )
            total = total + masked_mean(unit, present.any(dim=dim))
        return total
