"""Binary cross-entropy: every label its own coin.

    present(v) = softplus(-v)        absent(v) = softplus(v)        p(v) = 1 / (1 + exp(-v))

Strictly proper: the expected loss of an entry is least where p is its true probability. A weight w
on present(v) moves that to w times the true odds, and the link takes it out again:

    log odds = v - log w
"""

from collections.abc import Sequence
from math import inf
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.links import Sigmoid, WeightedSigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.convex import CoinLoss, ConvexLoss
from labelwise.objectives.ops import masked_mean, reviewed_rows
from labelwise.types import Outputs, Targets

# Distribution-balanced loss for labels of very different shares: Wu et al., ECCV 2020.
#
# With s_k the share of label k in training, P the present labels of an image:
#
#     r_k  = (1 / s_k) / sum_{j in P} 1 / s_j              infinite for an image without labels
#     w_k  = a + sigmoid(b (r_k - m))                      a = 0.1, b = 10, m = 0.2
#     z_k  = v_k - (c / l) log(1 / s_k - 1)                c = 0.05, l = 2
#     present   2 w (1 - sigmoid(z))^g softplus(-z)        g = 2
#     absent    2 w sigmoid(l z)^g softplus(l z) / l
#
# averaged over the observed entries. The settings are those of the authors' configuration for
# MS-COCO; for VOC it has l = 5 and m = 0.3.
#
# Not proper: the weight of an entry depends on which other labels of the image are present, so no
# map of one logit gives its probability back. Where w is the same in all images it cancels, and the
# log-odds of z are those of the slopes of both halves; a sigmoid of z then reads true probabilities
# of 0.1, 0.5 and 0.9 as 0.38, 0.50 and 0.66.


LEAST_SHARE = 1e-6  # of a label that no training image has


def balanced_weights(
    labels: Tensor, shares: Tensor, *, least: float, steepness: float, middle: float
) -> Tensor:
    """Return the (B, K) weights of all entries of images with these present labels."""
    rarity = 1 / shares
    repeated = (labels * rarity).sum(dim=1, keepdim=True)
    ratio = rarity / repeated.clamp(min=torch.finfo(labels.dtype).tiny)
    return least + torch.sigmoid(steepness * (ratio.clamp(max=1e3) - middle))


def distribution_balanced_loss(
    shifted: Tensor, labels: Tensor, weights: Tensor, *, scale: float, gamma: float
) -> Tensor:
    """Return the (B, K) loss of every shifted logit z. Labels are 0 or 1."""
    present = torch.exp(gamma * logsigmoid(-shifted)) * softplus(-shifted)
    steep = scale * shifted
    absent = torch.exp(gamma * logsigmoid(steep)) * softplus(steep) / scale
    return 2 * weights * (labels * present + (1 - labels) * absent)


class DistributionBalanced(Objective):
    """Mean distribution-balanced loss; ``priors`` are the shares of labels in training."""

    def __init__(
        self,
        priors: Sequence[float],
        *,
        least: float = 0.1,
        steepness: float = 10.0,
        middle: float = 0.2,
        scale: float = 2.0,
        bias: float = 0.05,
        gamma: float = 2.0,
    ) -> None:
        super().__init__(Sigmoid())
        if scale <= 0 or gamma < 0 or least < 0:
            raise ValueError(
                "scale must be positive, least and gamma must not be negative, got "
                f"scale={scale}, least={least}, gamma={gamma}"
            )
        self.least, self.steepness, self.middle = least, steepness, middle
        self.scale, self.gamma = scale, gamma
        shares = torch.tensor(priors, dtype=torch.float64).clamp(LEAST_SHARE, 1 - LEAST_SHARE)
        self.register_buffer("shares", shares, persistent=False)
        self.register_buffer("shift", torch.logit(shares) * bias / scale, persistent=False)

    shares: Tensor
    shift: Tensor

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        labels = targets.labels
        weights = balanced_weights(
            labels,
            self.shares.to(labels),
            least=self.least,
            steepness=self.steepness,
            middle=self.middle,
        )
        loss = distribution_balanced_loss(
            outputs.logits + self.shift.to(labels),
            labels,
            weights,
            scale=self.scale,
            gamma=self.gamma,
        )
        return masked_mean(loss, targets.observed)


def bce_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (B, K) cross-entropy of every logit. Labels may be soft, in [0, 1]."""
    return softplus(logits) - labels * logits


class BCE(Objective):
    """Mean cross-entropy of a batch, per observed entry or, summed over labels, per image.

    The two differ by the factor K, and so does the learning rate that suits them. ``pos_weight``
    multiplies the loss of present labels: a number, one per label, or "balanced", (1 - prior) /
    prior of each label with ``priors`` from the training set.
    """

    soft_labels = True

    def __init__(
        self,
        *,
        per: Literal["entry", "image"] = "entry",
        pos_weight: float | Sequence[float] | Literal["balanced"] | None = None,
        priors: Sequence[float] | None = None,
    ) -> None:
        weights = None if pos_weight is None else _weights(pos_weight, priors)
        super().__init__(Sigmoid() if weights is None else WeightedSigmoid(weights))
        if per not in ("entry", "image"):
            raise ValueError(f"per must be 'entry' or 'image', got {per!r}")
        self.per = per
        values = None if weights is None else torch.tensor(weights)
        self.register_buffer("pos_weight", values, persistent=False)

    pos_weight: Tensor | None

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss, observed = bce_loss(outputs.logits, targets.labels), targets.observed
        if self.pos_weight is not None:
            extra = (self.pos_weight.to(loss) - 1) * targets.labels
            loss = loss + extra * softplus(-outputs.logits)
        if self.per == "entry":
            return masked_mean(loss, observed)
        seen = loss if observed is None else torch.where(observed, loss, 0.0)
        return masked_mean(seen.sum(dim=1), reviewed_rows(observed))

    def convex(self, targets: Targets) -> ConvexLoss:
        loss = CoinLoss.of(targets)
        if self.pos_weight is None:
            return loss
        return CoinLoss(loss.present * self.pos_weight.to(loss.present), loss.absent)


def _weights(
    pos_weight: float | Sequence[float] | str, priors: Sequence[float] | None
) -> list[float]:
    if isinstance(pos_weight, str):
        if pos_weight != "balanced" or priors is None:
            raise ValueError(
                "pos_weight must be a number, one per label, or 'balanced' where the labels' "
                f"shares are known, got {pos_weight!r}"
            )
        return [(1 - share) / share if 0 < share < 1 else 1.0 for share in priors]
    weights = [pos_weight] if isinstance(pos_weight, int | float) else list(pos_weight)
    if not all(0 < weight < inf for weight in weights):
        raise ValueError(f"pos_weight must be positive, got {pos_weight}")
    if priors is not None and len(weights) not in (1, len(priors)):
        raise ValueError(f"pos_weight must have {len(priors)} numbers, got {len(weights)}")
    return [float(weight) for weight in weights]
