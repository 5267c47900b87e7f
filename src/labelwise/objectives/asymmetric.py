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

from dataclasses import asdict, dataclass, replace
from math import log
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.links import Link, Sigmoid
from labelwise.numeric.ops import log_softplus, masked_mean
from labelwise.objectives.base import Objective
from labelwise.types import Outputs, Targets

WeightGrad = Literal["full", "detached"]
Phi = Literal["right", "printed"]


@dataclass(frozen=True)
class Focusing:
    """Exponents of the absent and the present half, probability margin, gradient of the weights."""

    gamma_neg: float = 4.0
    gamma_pos: float = 1.0
    margin: float = 0.05
    weight_grad: WeightGrad = "full"

    def __post_init__(self) -> None:
        if self.gamma_neg < 0 or self.gamma_pos < 0:
            raise ValueError(f"gamma_neg and gamma_pos must not be negative, got {self}")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must lie in [0, 1), got {self.margin}")
        if self.weight_grad not in ("full", "detached"):
            raise ValueError(f"weight_grad must be 'full' or 'detached', got {self.weight_grad!r}")


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
        above, q = _shifted(logits, focusing.margin)
        weight = _weight(q.log(), focusing.gamma_neg, focusing)
        absent = torch.where(above, weight * -torch.log1p(-q), 0.0)
    return labels * present + (1 - labels) * absent


class PhiLink(Link):
    """The link under which :func:`asymmetric_loss` recovers probabilities (``phi`` of ``p``)."""

    kind = "phi"

    def __init__(
        self,
        gamma_neg: float = 4.0,
        gamma_pos: float = 1.0,
        margin: float = 0.05,
        weight_grad: WeightGrad = "full",
    ) -> None:
        super().__init__()
        self.focusing = Focusing(gamma_neg, gamma_pos, margin, weight_grad)

    def log_odds(self, logits: Tensor) -> Tensor:
        focusing = self.focusing
        full = focusing.weight_grad == "full"
        fall = log_h(-logits, focusing.gamma_pos, full)
        if focusing.margin == 0:
            return log_h(logits, focusing.gamma_neg, full) - fall
        above, q = _shifted(logits, focusing.margin)
        rise = _log_h_of_probability(q, focusing.gamma_neg, full)
        return torch.where(above, rise - fall, float("-inf"))

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_odds = self.log_odds(logits)
        return -softplus(-log_odds), -softplus(log_odds)

    def spec(self) -> dict[str, Any]:
        return asdict(self.focusing)


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


def _shifted(logits: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Return where p > m, and q = p - m there and 1/2 elsewhere, so that its log has a gradient."""
    q = torch.sigmoid(logits) - margin
    above = q > 0
    return above, torch.where(above, q, 0.5)


def log_h(logits: Tensor, gamma: float, full: bool) -> Tensor:
    """Return ``log h(sigmoid(v); gamma)``, finite for every v."""
    found = softplus(logits)
    if gamma == 0:
        return found
    if full:
        found = torch.logaddexp(found, log(gamma) + log_softplus(logits) - logsigmoid(logits))
    return gamma * logsigmoid(logits) + found


def _log_h_of_probability(q: Tensor, gamma: float, full: bool) -> Tensor:
    log_h = -torch.log1p(-q)
    if gamma == 0:
        return log_h
    if full:
        log_h = torch.logaddexp(log_h, log(gamma) + log_h.log() - q.log())
    return gamma * q.log() + log_h
