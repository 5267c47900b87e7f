"""Strictly proper asymmetric (SPA) loss: Cheng and Vasconcelos, eqs. 16 and 17.

    present(v) = softplus(-k+ (v - b+)) / zeta+
    absent(v)  = softplus(+k- (v - b-)) / zeta-
    p(v)       = absent'(v) / (absent'(v) - present'(v)),  with log-odds
    u(v)       = log(k- zeta+ / (k+ zeta-)) - softplus(-k- (v - b-)) + softplus(k+ (v - b+))

The paper prints eq. 17 with the sign inside both sigmoids flipped, so that p falls as v
grows; this p is where the risk p present(v) + (1 - p) absent(v) is stationary. It is one half
at v = 0.952 for the paper's setting, not at v = 0.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log
from typing import Any

from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Link
from labelwise.numeric.ops import masked_mean
from labelwise.objectives.base import Objective
from labelwise.types import Outputs, Targets


@dataclass(frozen=True)
class Side:
    """Shape of one half of the loss: scale 1/zeta, slope k, offset b."""

    zeta: float = 1.0
    k: float = 1.0
    b: float = 0.0

    def __post_init__(self) -> None:
        if self.zeta <= 0 or self.k <= 0:
            raise ValueError(f"zeta and k must be positive, got {self}")


CROSS_ENTROPY = Side()
EASY_NEGATIVES = Side(zeta=5.0, k=3.0, b=1.0)  # section 5.1: one setting, all datasets


def spa_loss(logits: Tensor, labels: Tensor, present: Side, absent: Side) -> Tensor:
    """Return the (B, K) loss of every logit. Labels may be soft, in [0, 1]."""
    loss_present = softplus(-present.k * (logits - present.b)) / present.zeta
    loss_absent = softplus(absent.k * (logits - absent.b)) / absent.zeta
    return labels * loss_present + (1 - labels) * loss_absent


class SPALink(Link):
    """The link under which :func:`spa_loss` is strictly proper."""

    kind = "spa"

    def __init__(
        self,
        present: Side | Mapping[str, float] = CROSS_ENTROPY,
        absent: Side | Mapping[str, float] = EASY_NEGATIVES,
    ) -> None:
        super().__init__()
        self.present = present if isinstance(present, Side) else Side(**present)
        self.absent = absent if isinstance(absent, Side) else Side(**absent)

    def log_odds(self, logits: Tensor) -> Tensor:
        present, absent = self.present, self.absent
        at_zero = log(absent.k * present.zeta / (present.k * absent.zeta))
        rise = softplus(-absent.k * (logits - absent.b))
        return at_zero - rise + softplus(present.k * (logits - present.b))

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_odds = self.log_odds(logits)
        return -softplus(-log_odds), -softplus(log_odds)

    def spec(self) -> dict[str, Any]:
        return {"present": asdict(self.present), "absent": asdict(self.absent)}


class SPA(Objective):
    """Mean SPA loss over the observed entries of a batch (eq. 21), with its link."""

    soft_labels = True

    def __init__(self, present: Side = CROSS_ENTROPY, absent: Side = EASY_NEGATIVES) -> None:
        super().__init__(SPALink(present, absent))
        self.present, self.absent = present, absent

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = spa_loss(outputs.logits, targets.labels, self.present, self.absent)
        return masked_mean(loss, targets.observed)
