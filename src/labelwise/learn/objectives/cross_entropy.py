"""Binary cross-entropy: every label its own coin.

    present(v) = softplus(-v)        absent(v) = softplus(v)        p(v) = 1 / (1 + exp(-v))

Strictly proper: the expected loss of an entry is least where p is its true probability. A weight w
on present(v) moves that to w times the true odds, and the link takes it out again:

    log odds = v - log w
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.base.convex import CoinLoss, ConvexLoss
from labelwise.errors import require
from labelwise.learn.objectives.base import (
    EpochsSeen,
    Objective,
    Per,
    masked_mean,
    one_of,
    reviewed_rows,
)
from labelwise.links import (
    CROSS_ENTROPY,
    EASY_NEGATIVES,
    FocalMarginLink,
    Focusing,
    PhiLink,
    Side,
    Sigmoid,
    SPALink,
    WeightedSigmoid,
    shifted,
)
from labelwise.types import Outputs, Targets

# Hill and SPLC, Zhang et al. 2021: what is not known to be present is read as absent
# (``reads_unknown``). With w = v - m, p = sigmoid(v):
#
#     present(v) = (1 - sigmoid(w))^g  softplus(-w)         focal margin; m = 1, g = 2
#     absent(v)  = (l - p) p^2                              Hill; l = 1.5
#     absent(v)  = p^g softplus(v)                          SPLC
#
# After SPLC's first epoch an unknown label with p > t (0.6) is taken as present, with m = 0. With
# complete labels both are strictly proper under ``FocalMarginLink``.


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
        self.options = {"lam": lam, "margin": margin, "gamma": gamma}

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        return hill_loss(outputs.logits, targets.labels, **self.options).mean()


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
        require(0 < threshold < 1, f"threshold must lie strictly between 0 and 1, got {threshold}")
        require(wait >= 0, f"wait must not be negative, got {wait}")
        self.threshold, self.wait = threshold, wait
        self.options = {"margin": margin, "gamma": gamma}
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits
        epoch = self.epochs(logits)
        likely = torch.sigmoid(logits.detach()) > self.threshold
        unknown = torch.zeros_like(likely) if targets.observed is None else ~targets.observed
        missing = unknown & likely & (epoch >= self.wait)
        return splc_loss(logits, targets.labels, missing, **self.options).mean()


# Focal, asymmetric focal and asymmetric (ASL, ASY) losses, and the map that mends them.
#
#     p = 1 / (1 + exp(-v)),  q = max(p - m, 0)
#     present(v) = (1 - p)^g+ (-log p)          absent(v) = q^g- (-log(1 - q))
#
# g+ = g- with m = 0 is the focal loss, m = 0 the asymmetric focal loss, g = m = 0 cross-entropy.
# The minimiser p of the expected loss is not the true probability; phi(p) is (Cheng and
# Vasconcelos, eqs. 13 to 15), with z_m = max(z - m, 0):
#
#     phi(z) = h(z_m; g-) / (h(z_m; g-) + h(1 - z; g+))
#     full:      h(z; g) = (z^g - g z^(g-1) (1 - z) log(1 - z)) / (1 - z)
#     detached:  h(z; g) = z^g / (1 - z)
#
# Public code often takes the focusing weights (1 - p)^g+ and q^g- as constants in the gradient:
# that moves the minimiser, and "detached" is its map. ``phi="printed"`` takes the printed one
# ("full") all the same. With m > 0 every p <= m has probability 0: ties, and log p = -inf.

Phi = Literal["right", "printed"]
FOCAL = Focusing(gamma_neg=2.0, gamma_pos=2.0, margin=0.0)
# As ASL's authors train on MS-COCO; of focal, the setting nearest to what SPA's Table 3 prints.
OFFICIAL_ASL = Focusing(gamma_neg=4.0, gamma_pos=0.0, margin=0.05, weight_grad="detached")
OFFICIAL_FOCAL = Focusing(gamma_neg=2.0, gamma_pos=0.0, margin=0.0, weight_grad="detached")


def asymmetric_loss(logits: Tensor, labels: Tensor, focusing: Focusing) -> Tensor:
    """Return the (B, K) loss of every logit. Labels may be soft, in [0, 1]."""

    def weight(log_base: Tensor, gamma: float) -> Tensor:
        weight = torch.exp(gamma * log_base)
        return weight.detach() if focusing.weight_grad == "detached" else weight

    present = weight(logsigmoid(-logits), focusing.gamma_pos) * softplus(-logits)
    if focusing.margin == 0:
        absent = weight(logsigmoid(logits), focusing.gamma_neg) * softplus(logits)
    else:
        above, q = shifted(logits, focusing.margin)
        absent = torch.where(above, weight(q.log(), focusing.gamma_neg) * -torch.log1p(-q), 0.0)
    return labels * present + (1 - labels) * absent


class Asymmetric(Objective):
    """Mean asymmetric loss over the observed entries; its link is a plain sigmoid, or ``phi``."""

    soft_labels = True

    def __init__(self, focusing: Focusing | None = None, *, phi: Phi | None = None) -> None:
        if phi is not None:
            one_of("phi", phi, Phi)
        focusing = focusing or Focusing()
        read = replace(focusing, weight_grad="full") if phi == "printed" else focusing
        super().__init__(Sigmoid() if phi is None else PhiLink(**asdict(read)))
        self.focusing = focusing

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = asymmetric_loss(outputs.logits, targets.labels, self.focusing)
        return masked_mean(loss, targets.observed)

    def start_logits(self, priors: Tensor) -> Tensor:
        # A sigmoid is not where this loss comes to rest, so phi says where to start.
        return PhiLink(**asdict(self.focusing)).logits_at(priors)


# Strictly proper asymmetric (SPA) loss: Cheng and Vasconcelos, eqs. 16 and 17.
#
#     present(v) = softplus(-k+ (v - b+)) / zeta+
#     absent(v)  = softplus(+k- (v - b-)) / zeta-
#     p(v)       = absent'(v) / (absent'(v) - present'(v)),  with log-odds
#     u(v)       = log(k- zeta+ / (k+ zeta-)) - softplus(-k- (v - b-)) + softplus(k+ (v - b+))
#
# The paper prints eq. 17 with the sign inside both sigmoids flipped, so that p falls as v
# grows; this p is where the risk p present(v) + (1 - p) absent(v) is stationary.


def spa_loss(logits: Tensor, labels: Tensor, present: Side, absent: Side) -> Tensor:
    """Return the (B, K) loss of every logit. Labels may be soft, in [0, 1]."""
    loss_present = softplus(-present.k * (logits - present.b)) / present.zeta
    loss_absent = softplus(absent.k * (logits - absent.b)) / absent.zeta
    return labels * loss_present + (1 - labels) * loss_absent


class SPA(Objective):
    """Mean SPA loss over the observed entries of a batch (eq. 21), with its link."""

    soft_labels = True

    def __init__(self, present: Side = CROSS_ENTROPY, absent: Side = EASY_NEGATIVES) -> None:
        super().__init__(SPALink(present, absent))
        self.present, self.absent = present, absent

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = spa_loss(outputs.logits, targets.labels, self.present, self.absent)
        return masked_mean(loss, targets.observed)


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
# averaged over the observed entries, with the authors' settings for MS-COCO.

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
    present, absent = _focal(shifted, gamma), _focal(-scale * shifted, gamma) / scale
    return 2 * weights * (labels * present + (1 - labels) * absent)


class DistributionBalanced(Objective):
    """Mean distribution-balanced loss; ``priors`` are the shares of labels in training."""

    shares: Tensor
    shift: Tensor

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
        require(
            scale > 0 and gamma >= 0 and least >= 0,
            "scale must be positive, least and gamma must not be negative, got "
            f"scale={scale}, least={least}, gamma={gamma}",
        )
        self.weighing = {"least": least, "steepness": steepness, "middle": middle}
        self.options = {"scale": scale, "gamma": gamma}
        shares = torch.tensor(priors, dtype=torch.float64).clamp(LEAST_SHARE, 1 - LEAST_SHARE)
        self.register_buffer("shares", shares, persistent=False)
        self.register_buffer("shift", torch.logit(shares) * bias / scale, persistent=False)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        labels = targets.labels
        weights = balanced_weights(labels, self.shares.to(labels), **self.weighing)
        moved = outputs.logits + self.shift.to(labels)
        loss = distribution_balanced_loss(moved, labels, weights, **self.options)
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
        per: Per = "entry",
        pos_weight: float | Sequence[float] | Literal["balanced"] | None = None,
        priors: Sequence[float] | None = None,
    ) -> None:
        weights = None if pos_weight is None else _weights(pos_weight, priors)
        super().__init__(Sigmoid() if weights is None else WeightedSigmoid(weights))
        self.per = one_of("per", per, Per)
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

    def convex(self, targets: Targets) -> ConvexLoss[Tensor]:
        loss = CoinLoss.of(targets.labels, targets.observed)
        if self.pos_weight is None:
            return loss
        return CoinLoss(loss.present * self.pos_weight.to(loss.present), loss.absent)


def _weights(
    pos_weight: float | Sequence[float] | str, priors: Sequence[float] | None
) -> list[float]:
    if isinstance(pos_weight, str):
        if pos_weight != "balanced" or priors is None:
            known = "a number, one per label, or 'balanced' where the labels' shares are known"
            raise ValueError(f"pos_weight must be {known}, got {pos_weight!r}")
        return [(1 - share) / share if 0 < share < 1 else 1.0 for share in priors]
    weights = [pos_weight] if isinstance(pos_weight, int | float) else list(pos_weight)
    if not all(0 < weight < inf for weight in weights):
        raise ValueError(f"pos_weight must be positive, got {pos_weight}")
    if priors is not None and len(weights) not in (1, len(priors)):
        raise ValueError(f"pos_weight must have {len(priors)} numbers, got {len(weights)}")
    return [float(weight) for weight in weights]
