"""Losses that forgive missing labels: Hill and SPLC, Zhang et al. 2021, and the link of both.

Of an image some present labels are known, and nothing is known of the rest, which is read as
absent (``reads_unknown``). With w = v - m, p = sigmoid(v):

    present(v) = (1 - sigmoid(w))^g  softplus(-w)         focal margin; m = 1, g = 2
    absent(v)  = (l - p) p^2                              Hill; l = 1.5
    absent(v)  = p^g softplus(v)                          SPLC

Hill's absent half is flat near p = 1, so that what is probably a missing label is left alone.
SPLC goes further: after the first epoch an unknown label with p > t (0.6) is taken as present, at
present(v) with m = 0.

With complete labels both are strictly proper, under a link that is not a sigmoid: log odds =
log absent'(v) - log -present'(v), where

    -present'(v) = (1 - s)^g (1 - s + g s softplus(-w)),  s = sigmoid(w)
    absent'(v)   = p^2 (1 - p) (2 l - 3 p)                Hill, l >= 1.5
    absent'(v)   = p^g (p + g (1 - p) softplus(v))        SPLC

which rises from -inf to inf for the settings above; others are refused where it does not.
Read through a sigmoid, probabilities of 0.1, 0.5 and 0.9 come out as 0.27, 0.94 and 0.99 (Hill)
and 0.35, 0.62 and 0.84 (SPLC). With labels missing no link is right: an unknown label counts as an
absence, and once SPLC has taken one as present nothing pushes it down again.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.links import FocalMarginLink
from labelwise.objectives.base import EpochsSeen, Objective
from labelwise.types import Outputs, Targets


def _focal(logits: Tensor, gamma: float) -> Tensor:
    """Return ``(1 - sigmoid(v))^gamma softplus(-v)``, the focal loss of a present label."""
    return torch.exp(gamma * logsigmoid(-logits)) * softplus(-logits)


def hill_loss(
    logits: Tensor, labels: Tensor, *, lam: float = 1.5, margin: float = 1.0, gamma: float = 2.0
) -> Tensor:
    """Return the (B, K) Hill loss of every logit. Labels may be soft, in [0, 1]."""
    p = torch.sigmoid(logits)
    return labels * _focal(logits - margin, gamma) + (1 - labels) * (lam - p) * p.square()


def splc_loss(
    logits: Tensor, labels: Tensor, missing: Tensor, *, margin: float = 1.0, gamma: float = 2.0
) -> Tensor:
    """Return the (B, K) loss of every logit; where ``missing``, of a present label."""
    known = labels * _focal(logits - margin, gamma) + (1 - labels) * _focal(-logits, gamma)
    return torch.where(missing, _focal(logits, gamma), known)


class Hill(Objective):
    """Mean Hill loss over all entries; an unknown label is read as absent."""

    reads_unknown = True
    soft_labels = True

    def __init__(self, *, lam: float = 1.5, margin: float = 1.0, gamma: float = 2.0) -> None:
        super().__init__(FocalMarginLink(gamma, margin, lam))
        self.lam, self.margin, self.gamma = lam, margin, gamma

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = hill_loss(
            outputs.logits, targets.labels, lam=self.lam, margin=self.margin, gamma=self.gamma
        )
        return loss.mean()


class SPLC(Objective):
    """Mean focal-margin loss; after ``wait`` epochs likely unknown labels are taken as present."""

    reads_unknown = True
    soft_labels = True

    def __init__(
        self,
        num_images: int,
        *,
        threshold: float = 0.6,
        wait: int = 1,
        margin: float = 1.0,
        gamma: float = 2.0,
    ) -> None:
        super().__init__(FocalMarginLink(gamma, margin, None))
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must lie strictly between 0 and 1, got {threshold}")
        if wait < 0:
            raise ValueError(f"wait must not be negative, got {wait}")
        self.threshold, self.wait, self.margin, self.gamma = threshold, wait, margin, gamma
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits
        epoch = self.epochs(logits)
        likely = torch.sigmoid(logits.detach()) > self.threshold
        unknown = torch.zeros_like(likely) if targets.observed is None else ~targets.observed
        missing = unknown & likely & (epoch >= self.wait)
        loss = splc_loss(logits, targets.labels, missing, margin=self.margin, gamma=self.gamma)
        return loss.mean()
