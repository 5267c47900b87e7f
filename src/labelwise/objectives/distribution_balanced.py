"""Distribution-balanced loss for labels of very different shares: Wu et al., ECCV 2020.

With s_k the share of label k in training, P the present labels of an image:

    r_k  = (1 / s_k) / sum_{j in P} 1 / s_j              infinite for an image without labels
    w_k  = a + sigmoid(b (r_k - m))                      a = 0.1, b = 10, m = 0.2
    z_k  = v_k - (c / l) log(1 / s_k - 1)                c = 0.05, l = 2
    present   2 w (1 - sigmoid(z))^g softplus(-z)        g = 2
    absent    2 w sigmoid(l z)^g softplus(l z) / l

averaged over the observed entries. The settings are those of the authors' configuration for
MS-COCO; for VOC it has l = 5 and m = 0.3.

Not proper: the weight of an entry depends on which other labels of the image are present, so no
map of one logit gives its probability back. Where w is the same in all images it cancels, and the
log-odds of z are those of the slopes of both halves; a sigmoid of z then reads true probabilities
of 0.1, 0.5 and 0.9 as 0.38, 0.50 and 0.66.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.links import Sigmoid
from labelwise.numeric.ops import masked_mean
from labelwise.objectives.base import Objective
from labelwise.types import Outputs, Targets

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
