"""Acknowledging the unknown by maximal entropy (EM): Zhou et al., ECCV 2022.

    known     softplus(-v) at present, softplus(v) at absent labels
    unknown   -a H(p),  H(p) = -p log p - (1 - p) log(1 - p)           a = 0.1

averaged over all entries. With the authors' asymmetric pseudo-labels it stands in
``pseudo_labels``.

With complete labels this is cross-entropy, strictly proper under a sigmoid. Where a label is known
to be present with chance s and unknown otherwise, the expected loss rests where

    s / (1 - s) = a v sigmoid(v)

so that v > 0 for every label, however rare: a sigmoid calls all of them likelier than not. The
chance that a label is *known* rises with v, so the ranking is right; to say how likely a label is
present needs a calibrator.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.cross_entropy import bce_loss
from labelwise.types import Outputs, Targets


def negative_entropy(logits: Tensor) -> Tensor:
    """Return ``p log p + (1 - p) log(1 - p)`` of every logit."""
    p = torch.sigmoid(logits)
    return p * logsigmoid(logits) + (1 - p) * logsigmoid(-logits)


class EntropyMaximisation(Objective):
    """Cross-entropy at known labels; at unknown ones ``alpha`` times the negative entropy."""

    reads_unknown = True
    soft_labels = True

    def __init__(self, *, alpha: float = 0.1) -> None:
        super().__init__(Sigmoid())
        if alpha < 0:
            raise ValueError(f"alpha must not be negative, got {alpha}")
        self.alpha = alpha

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = bce_loss(outputs.logits, targets.labels)
        if targets.observed is not None:
            unknown = self.alpha * negative_entropy(outputs.logits)
            loss = torch.where(targets.observed, loss, unknown)
        return loss.mean()
