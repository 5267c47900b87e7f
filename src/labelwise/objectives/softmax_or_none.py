"""Softmax with one more answer, "none", whose logit is 0: for images with at most one label.

    p_k  = exp(v_k) / (1 + sum_j exp(v_j))            p_none = 1 / (1 + sum_j exp(v_j))
    loss = - sum_k (y_k / |y|) log p_k                for an image with labels
    loss = - log p_none                               for one reviewed and found without any

Multinomial logistic regression with "none" as the reference class, so no further output is
needed. Where every image has at most one label these are the labels' own probabilities; an image
with several shares one out between them. Only the observed labels of an image compete.
"""

import torch
from torch import Tensor

from labelwise.links import Link
from labelwise.numeric.ops import log_softmax_and_rest, masked_mean, reviewed_rows
from labelwise.objectives.base import Objective
from labelwise.objectives.convex import ConvexLoss, ShareLoss
from labelwise.objectives.softmax import softmax_loss
from labelwise.types import Outputs, Targets

LEAST_NONE = 1e-3  # the share of images without labels that biases start from, if there are none


def log_softmax_or_none(logits: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return log p (..., K) of the labels, 0 at unobserved ones, and log p (...) of none."""
    kept = logits if observed is None else torch.where(observed, logits, float("-inf"))
    log_total = _with_none(kept).logsumexp(dim=-1, keepdim=True)
    log_p = logits - log_total
    if observed is not None:
        log_p = torch.where(observed, log_p, 0.0)
    return log_p, -log_total.squeeze(-1)


def _with_none(logits: Tensor) -> Tensor:
    """Return the logits (..., K + 1) with that of "none", 0, as the last."""
    return torch.cat([logits, torch.zeros_like(logits[..., :1])], dim=-1)


class SoftmaxOrNoneLink(Link):
    """``p = exp(v_k) / (1 + sum_j exp(v_j))``: the labels of an image sum to less than one."""

    kind = "softmax-or-none"

    @property
    def couples_labels(self) -> bool:
        return True

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_rest = log_softmax_and_rest(_with_none(logits))
        return log_p[..., :-1], log_rest[..., :-1]

    def log_none(self, logits: Tensor) -> Tensor:
        return log_softmax_or_none(logits)[1]

    def logits_at(self, probs: Tensor) -> Tensor:
        none = (1 - probs.double().sum(dim=-1, keepdim=True)).clamp(min=LEAST_NONE)
        return probs.double().log() - none.log()


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
