"""Average-K two-head loss: Garcin et al., eqs. 10 to 15.

Each image has one label y, and K labels per image are wanted on average. A proposal head z'
(softmax) chooses candidates Q: the (K-1) B most probable entries of the WHOLE batch, the labels
y left out, without gradient. The main head z (sigmoid) learns them as present:

    loss = mean_i [LSE(z'_i) - z'_iy]  +  mean_{(i,y)} sp(-z)  +  alpha mean_Q sp(-z)
         + alpha mean_{not Q, not y} sp(z)

Each mean runs over the entries there are: B, (K-1) B and (L-K) B of them if K is an integer; for
another K, (K-1) B is rounded. K = 1 has no candidates, and with alpha = 1 is cross-entropy plus
the paper's assume-negative loss. Unknown entries are read as in ``single_positive``. An image
with several labels takes part with each of them, one with none only as a place for candidates.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.numeric.ops import masked_mean, select_top_n
from labelwise.objectives.base import Objective
from labelwise.objectives.softmax import softmax_loss
from labelwise.types import Outputs, Targets


class AverageKParts(NamedTuple):
    """The four scalar terms of the loss; ``alpha`` is already in the last two."""

    proposal: Tensor
    present: Tensor
    candidates: Tensor
    absent: Tensor


def average_k_candidates(proposal: Tensor, labels: Tensor, k: float) -> Tensor:
    """Return the (B, K) mask of the (k-1) B most probable entries whose label is 0."""
    if not 1 <= k <= proposal.shape[1]:
        raise ValueError(f"k must lie between 1 and the {proposal.shape[1]} labels, got {k}")
    probs = torch.softmax(proposal.detach(), dim=1).masked_fill(labels > 0, -torch.inf)
    return select_top_n(probs, round((k - 1) * proposal.shape[0])) & (labels == 0)


def average_k_loss(
    logits: Tensor, proposal: Tensor, labels: Tensor, k: float, alpha: float
) -> AverageKParts:
    """Return the four scalar terms for main and proposal logits (B, K) and one-hot labels."""
    candidates = average_k_candidates(proposal, labels, k).to(logits.dtype)
    absent = (1 - labels) * (1 - candidates)
    cross_entropy = softmax_loss(torch.log_softmax(proposal, dim=1), labels)
    return AverageKParts(
        masked_mean(cross_entropy, labels.sum(dim=1) > 0),
        _mean(softplus(-logits), labels),
        alpha * _mean(softplus(-logits), candidates),
        alpha * _mean(softplus(logits), absent),
    )


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum()
    return (weights * values).sum() / torch.where(total > 0, total, 1.0)


class AverageK(Objective):
    """Average-K two-head loss; reads the head output ``proposal``, decides by the main logits."""

    couples_batch = True
    reads_unknown = True
    aux = ("proposal",)

    def __init__(self, k: float, *, alpha: float = 1.0) -> None:
        super().__init__(Sigmoid())
        if k < 1 or alpha < 0:
            raise ValueError(f"k must be at least 1 and alpha not negative, got {k} and {alpha}")
        self.k, self.alpha = k, alpha

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        proposal = outputs.aux["proposal"]
        parts = average_k_loss(outputs.logits, proposal, targets.labels, self.k, self.alpha)
        return parts.proposal + parts.present + parts.candidates + parts.absent
