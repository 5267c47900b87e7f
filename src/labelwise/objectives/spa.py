"""Strictly proper asymmetric (SPA) loss: Cheng and Vasconcelos, eqs. 16 and 17.

    present(v) = softplus(-k+ (v - b+)) / zeta+
    absent(v)  = softplus(+k- (v - b-)) / zeta-
    p(v)       = absent'(v) / (absent'(v) - present'(v)),  with log-odds
    u(v)       = log(k- zeta+ / (k+ zeta-)) - softplus(-k- (v - b-)) + softplus(k+ (v - b+))

The paper prints eq. 17 with the sign inside both sigmoids flipped, so that p falls as v
grows; this p is where the risk p present(v) + (1 - p) absent(v) is stationary. It is one half
at v = 0.952 for the paper's setting, not at v = 0.
"""

from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import CROSS_ENTROPY, EASY_NEGATIVES, Side, SPALink
from labelwise.objectives.base import Objective
from labelwise.objectives.ops import masked_mean
from labelwise.types import Outputs, Targets


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
