"""Softmax with a word for images without labels: uniform KL (Lee et al. 2018), max confidence
(Hein et al. 2019), the baselines of the quasibinary paper's Table II.

    uniform:  mean_IN CE + beta mean_OUT KL(uniform || softmax(v))
              KL = -log K - (1/K) sum_k log softmax_k(v)
    maxconf:  (sum_IN CE + sum_OUT log max_k softmax_k(v)) / (n_IN + n_OUT)

IN are the images with a label, OUT those reviewed and found without any; an image with nothing
observed is neither. A softmax cannot answer below 1/K: that is a bound from below on the mean
confidence over OUT images (the paper calls it an upper bound).
"""

import torch
from torch import Tensor

from labelwise.links import Softmax
from labelwise.numeric.ops import masked_mean, reviewed_rows
from labelwise.objectives.base import Objective
from labelwise.objectives.softmax import observed_log_softmax, softmax_loss
from labelwise.types import Outputs, Targets


def uniform_kl(log_probs: Tensor, observed: Tensor | None = None) -> Tensor:
    """Return the (B,) divergence KL(uniform || p) over the observed labels of each row."""
    if observed is None:
        observed = torch.ones_like(log_probs, dtype=torch.bool)
    count = observed.sum(dim=1).clamp(min=1).to(log_probs.dtype)
    mean_log_p = torch.where(observed, log_probs, 0.0).sum(dim=1) / count
    return -mean_log_p - count.log()


def max_confidence(log_probs: Tensor, observed: Tensor | None = None) -> Tensor:
    """Return the (B,) log of the largest probability among the observed labels of each row."""
    if observed is None:
        return log_probs.amax(dim=1)
    kept = torch.where(observed, log_probs, float("-inf")).amax(dim=1)
    return torch.where(observed.any(dim=1), kept, 0.0)


class UniformKL(Objective):
    """Softmax cross-entropy, plus ``beta`` times the divergence from uniform without labels."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__(Softmax())
        if beta < 0:
            raise ValueError(f"beta must not be negative, got {beta}")
        self.beta = beta

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        log_probs, inside, outside = _parts(outputs, targets)
        labelled = masked_mean(softmax_loss(log_probs, targets.labels), inside)
        return labelled + self.beta * masked_mean(uniform_kl(log_probs, targets.observed), outside)


class MaxConfidence(Objective):
    """Softmax cross-entropy, and the log of the largest probability for rows without labels."""

    def __init__(self) -> None:
        super().__init__(Softmax())

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        log_probs, inside, outside = _parts(outputs, targets)
        loss = torch.where(
            inside,
            softmax_loss(log_probs, targets.labels),
            max_confidence(log_probs, targets.observed),
        )
        return masked_mean(loss, inside | outside)


def _parts(outputs: Outputs, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p, which rows have a label, and which were reviewed and have none."""
    inside = targets.labels.sum(dim=1) > 0
    reviewed = reviewed_rows(targets.observed)
    outside = ~inside if reviewed is None else ~inside & reviewed
    return observed_log_softmax(outputs.logits, targets.observed), inside, outside
