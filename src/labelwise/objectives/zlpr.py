"""ZLPR, zero-bounded log-sum-exp and pairwise rank-based loss: Su et al. 2022.

    ZLPR = mean_i log(1 + sum_{n absent} exp(v_n)) + log(1 + sum_{p present} exp(-v_p))

Present labels are pushed above 0, absent ones below, the worst of each most. With one label it is
cross-entropy. With more it is not proper, and no map of single logits makes it so: what a logit
costs depends on the other labels of the image. For K alike labels of probability e that come
independently its minimum is where

    (1 - e) E[x / (1 + (1 + N) x)] = e E[1 / (x + 1 + P)],   x = exp(v), N, P of the others

which for K > 1 is nearer to 1/2 than the log-odds: a sigmoid is too unsure. A cut at 0 is meant.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.numeric.ops import masked_logsumexp, masked_mean, reviewed_rows, split_labels
from labelwise.objectives.base import Objective
from labelwise.types import Outputs, Targets


def zlpr_loss(logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """Return the (B,) loss of every image from its logits and two masks."""
    above = softplus(masked_logsumexp(logits, absent, 1))
    below = softplus(masked_logsumexp(-logits, present, 1))
    return torch.where(absent.any(dim=1), above, 0.0) + torch.where(present.any(dim=1), below, 0.0)


class ZLPR(Objective):
    """Mean over images; unknown labels take no part."""

    def __init__(self) -> None:
        super().__init__(Sigmoid())

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = zlpr_loss(outputs.logits, *split_labels(targets.labels, targets.observed))
        return masked_mean(loss, reviewed_rows(targets.observed))
