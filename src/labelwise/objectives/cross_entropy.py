"""Binary cross-entropy: every label its own coin.

    present(v) = softplus(-v)        absent(v) = softplus(v)        p(v) = 1 / (1 + exp(-v))

Strictly proper: the expected loss of an entry is least where p is its true probability.
"""

from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.ops import masked_mean
from labelwise.types import Outputs, Targets

__all__ = ["BCE", "bce_loss"]


def bce_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (B, K) cross-entropy of every logit. Labels may be soft, in [0, 1]."""
    return softplus(logits) - labels * logits


class BCE(Objective):
    """Mean cross-entropy over the observed entries of a batch."""

    def __init__(self) -> None:
        super().__init__(Sigmoid())

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        return masked_mean(bce_loss(outputs.logits, targets.labels), targets.observed)
