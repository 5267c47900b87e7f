"""Focal, asymmetric focal and asymmetric (ASL, ASY) losses, and the map that mends them.

    p = 1 / (1 + exp(-v)),  q = max(p - m, 0)
    present(v) = (1 - p)^g+ (-log p)          absent(v) = q^g- (-log(1 - q))

g+ = g- with m = 0 is the focal loss, m = 0 the asymmetric focal loss, g = m = 0 cross-entropy.
The minimiser p of the expected loss is not the true probability; phi(p) is (Cheng and
Vasconcelos, eqs. 13 to 15), with z_m = max(z - m, 0):

    phi(z) = h(z_m; g-) / (h(z_m; g-) + h(1 - z; g+))
    full:      h(z; g) = (z^g - g z^(g-1) (1 - z) log(1 - z)) / (1 - z)
    detached:  h(z; g) = z^g / (1 - z)

Public code often takes the focusing weights (1 - p)^g+ and q^g- as constants in the gradient.
That moves the minimiser, so the printed phi ("full") is wrong for it and "detached" is right:
``phi="right"`` reads each loss through its own map, ``phi="printed"`` through the printed one.
With m > 0 every p <= m has probability 0: ties, and log p = -inf.
"""

from dataclasses import asdict, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.links import Focusing, Link, PhiLink, Sigmoid, shifted
from labelwise.objectives.base import Objective
from labelwise.objectives.ops import masked_mean
from labelwise.types import Outputs, Targets

Phi = Literal["right", "printed"]


FOCAL = Focusing(gamma_neg=2.0, gamma_pos=2.0, margin=0.0)
# As ASL's authors train on MS-COCO; of focal, the setting nearest to what SPA's Table 3 prints.
OFFICIAL_ASL = Focusing(gamma_neg=4.0, gamma_pos=0.0, margin=0.05, weight_grad="detached")
OFFICIAL_FOCAL = Focusing(gamma_neg=2.0, gamma_pos=0.0, margin=0.0, weight_grad="detached")


def asymmetric_loss(logits: Tensor, labels: Tensor, focusing: Focusing) -> Tensor:
    """Return the (B, K) loss of every logit. Labels may be soft, in [0, 1]."""
    present = _weight(logsigmoid(-logits), focusing.gamma_pos, focusing) * softplus(-logits)
    if focusing.margin == 0:
        absent = _weight(logsigmoid(logits), focusing.gamma_neg, focusing) * softplus(logits)
    else:
        above, q = shifted(logits, focusing.margin)
        weight = _weight(q.log(), focusing.gamma_neg, focusing)
        absent = torch.where(above, weight * -torch.log1p(-q), 0.0)
    return labels * present + (1 - labels) * absent


class Asymmetric(Objective):
    """Mean asymmetric loss over the observed entries; its link is a plain sigmoid, or ``phi``."""

    soft_labels = True

    def __init__(self, focusing: Focusing | None = None, *, phi: Phi | None = None) -> None:
        self_focusing = Focusing() if focusing is None else focusing
        super().__init__(_link(self_focusing, phi))
        self.focusing = self_focusing

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = asymmetric_loss(outputs.logits, targets.labels, self.focusing)
        return masked_mean(loss, targets.observed)

    def start_logits(self, priors: Tensor) -> Tensor:
        # A sigmoid is not where this loss comes to rest, so phi says where to start.
        return PhiLink(**asdict(self.focusing)).logits_at(priors)


def _link(focusing: Focusing, phi: Phi | None) -> Link:
    if phi is None:
        return Sigmoid()
    if phi not in ("right", "printed"):
        raise ValueError(f"phi must be 'right' or 'printed', got {phi!r}")
    read = replace(focusing, weight_grad="full") if phi == "printed" else focusing
    return PhiLink(**asdict(read))


def _weight(log_base: Tensor, gamma: float, focusing: Focusing) -> Tensor:
    weight = torch.exp(gamma * log_base)
    return weight.detach() if focusing.weight_grad == "detached" else weight
