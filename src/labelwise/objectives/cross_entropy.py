"""Binary cross-entropy: every label its own coin.

    present(v) = softplus(-v)        absent(v) = softplus(v)        p(v) = 1 / (1 + exp(-v))

Strictly proper: the expected loss of an entry is least where p is its true probability.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.ops import masked_mean, reviewed_rows
from labelwise.types import Outputs, Targets

__all__ = ["BCE", "bce_loss"]


def bce_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (B, K) cross-entropy of every logit. Labels may be soft, in [0, 1]."""
    return softplus(logits) - labels * logits


class BCE(Objective):
    """Mean cross-entropy of a batch, per observed entry or, summed over labels, per image.

    The two differ by the factor K, and so does the learning rate that suits them.
    """

    def __init__(self, *, per: Literal["entry", "image"] = "entry") -> None:
        super().__init__(Sigmoid())
        if per not in ("entry", "image"):
            raise ValueError(f"per must be 'entry' or 'image', got {per!r}")
        self.per = per

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss, observed = bce_loss(outputs.logits, targets.labels), targets.observed
        if self.per == "entry":
            return masked_mean(loss, observed)
        seen = loss if observed is None else torch.where(observed, loss, 0.0)
        return masked_mean(seen.sum(dim=1), reviewed_rows(observed))
