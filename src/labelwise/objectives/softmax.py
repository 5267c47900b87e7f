"""Multi-label softmax: the present labels of an image share its probability.

    loss = - sum_k (y_k / |y|) log softmax_k(v / temperature)      rows without labels are skipped

Only the observed labels of an image compete. The probabilities of an image sum to one, so they
cannot be the labels' own probabilities where more or fewer than one is present.
"""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from labelwise.links import Softmax
from labelwise.numeric.ops import masked_mean
from labelwise.objectives.base import Objective
from labelwise.objectives.convex import ConvexLoss, ShareLoss
from labelwise.types import Outputs, Targets


def observed_log_softmax(logits: Tensor, observed: Tensor | None) -> Tensor:
    """Return log softmax over the observed entries of each row, and 0 at the others."""
    if observed is None:
        return log_softmax(logits, dim=1)
    some = observed.any(dim=1, keepdim=True)
    kept = torch.where(some, torch.where(observed, logits, float("-inf")), 0.0)
    return torch.where(observed, log_softmax(kept, dim=1), 0.0)


def softmax_loss(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the (B,) cross-entropy between labels shared out over each row and log p."""
    total = labels.sum(dim=1)
    return -(labels * log_probs).sum(dim=1) / torch.where(total > 0, total, 1.0)


class SoftmaxCrossEntropy(Objective):
    """Mean multi-label softmax loss over the images that have a label.

    ``lowest_log_c`` and ``highest_log_c`` are the least and the greatest normaliser, the logarithm
    of sum_k exp(v_k / temperature), among the images of the last training batch: for the journal.
    """

    lowest_log_c: Tensor
    highest_log_c: Tensor

    soft_labels = True

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__(Softmax(temperature))
        self.temperature = temperature
        for name in ("lowest_log_c", "highest_log_c"):
            self.register_buffer(name, torch.tensor(torch.nan), persistent=False)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits / self.temperature
        if self.training:
            lowest, highest = logits.detach().logsumexp(dim=1).aminmax()
            self.lowest_log_c.copy_(lowest)
            self.highest_log_c.copy_(highest)
        log_probs = observed_log_softmax(logits, targets.observed)
        loss = softmax_loss(log_probs, targets.labels)
        return masked_mean(loss, targets.labels.sum(dim=1) > 0)

    def convex(self, targets: Targets) -> ConvexLoss:
        return ShareLoss.of(targets, temperature=self.temperature)
