"""Softmax over labels, over labels or none of them, and terms for images without labels."""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from labelwise.links import Softmax, SoftmaxOrNoneLink, with_none
from labelwise.objectives.base import Objective
from labelwise.objectives.convex import ConvexLoss, ShareLoss
from labelwise.objectives.ops import masked_mean, reviewed_rows
from labelwise.types import Outputs, Targets

# Multi-label softmax: the present labels of an image share its probability.
#
#     loss = - sum_k (y_k / |y|) log softmax_k(v / temperature)      rows without labels are skipped
#
# Only the observed labels of an image compete. The probabilities of an image sum to one, so they
# cannot be the labels' own probabilities where more or fewer than one is present.


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


# Softmax with one more answer, "none", whose logit is 0: for images with at most one label.
#
#     p_k  = exp(v_k) / (1 + sum_j exp(v_j))            p_none = 1 / (1 + sum_j exp(v_j))
#     loss = - sum_k (y_k / |y|) log p_k                for an image with labels
#     loss = - log p_none                               for one reviewed and found without any
#
# Multinomial logistic regression with "none" as the reference class, so no further output is
# needed. Where every image has at most one label these are the labels' own probabilities; an image
# with several shares one out between them. Only the observed labels of an image compete.


def log_softmax_or_none(logits: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return log p (..., K) of the labels, 0 at unobserved ones, and log p (...) of none."""
    kept = logits if observed is None else torch.where(observed, logits, float("-inf"))
    log_total = with_none(kept).logsumexp(dim=-1, keepdim=True)
    log_p = logits - log_total
    if observed is not None:
        log_p = torch.where(observed, log_p, 0.0)
    return log_p, -log_total.squeeze(-1)


class SoftmaxOrNone(Objective):
    """Mean cross-entropy over the images with anything observed; "none" is a class like others."""

    def __init__(self) -> None:
        super().__init__(SoftmaxOrNoneLink())

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        log_p, log_none = log_softmax_or_none(outputs.logits, targets.observed)
        labelled = targets.labels.sum(dim=1) > 0
        loss = torch.where(labelled, softmax_loss(log_p, targets.labels), -log_none)
        return masked_mean(loss, reviewed_rows(targets.observed))

    def convex(self, targets: Targets) -> ConvexLoss:
        return ShareLoss.of(targets, none=True)


# Softmax with a word for images without labels: uniform KL (Lee et al. 2018), max confidence (Hein
# et al. 2019), the baselines of the quasibinary paper's Table II.
#
#     uniform:  mean_IN CE + beta mean_OUT KL(uniform || softmax(v))
#               KL = -log K - (1/K) sum_k log softmax_k(v)
#     maxconf:  (sum_IN CE + sum_OUT log max_k softmax_k(v)) / (n_IN + n_OUT)
#
# IN are the images with a label, OUT those reviewed and found without any; an image with nothing
# observed is neither. A softmax cannot answer below 1/K: that is a bound from below on the mean
# confidence over OUT images (the paper calls it an upper bound).


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
