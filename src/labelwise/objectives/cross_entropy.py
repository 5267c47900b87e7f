"""Binary cross-entropy: every label its own coin.

    present(v) = softplus(-v)        absent(v) = softplus(v)        p(v) = 1 / (1 + exp(-v))

Strictly proper: the expected loss of an entry is least where p is its true probability. A weight w
on present(v) moves that to w times the true odds, and the link takes it out again:

    log odds = v - log w
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.links import Link, Sigmoid
from labelwise.numeric.ops import masked_mean, reviewed_rows
from labelwise.objectives.base import Objective
from labelwise.objectives.convex import CoinLoss, ConvexLoss
from labelwise.types import Outputs, Targets


def bce_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (B, K) cross-entropy of every logit. Labels may be soft, in [0, 1]."""
    return softplus(logits) - labels * logits


class WeightedSigmoid(Link):
    """``log odds = v - log w``: the proper link of cross-entropy with weights on present labels."""

    kind = "weighted-sigmoid"

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("log_weights", torch.tensor(weights, dtype=torch.float64).log())

    log_weights: Tensor

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        odds = self.log_odds(logits)
        return logsigmoid(odds), logsigmoid(-odds)

    def log_odds(self, logits: Tensor) -> Tensor:
        return logits - self.log_weights.to(logits)

    def slope_and_offset(self, labels: int) -> tuple[Tensor, Tensor]:
        slope = torch.ones(labels, dtype=torch.float64)
        return slope, -self.log_weights.double().cpu().expand(labels).clone()

    def of_label(self, column: int) -> "WeightedSigmoid":
        shared = self.log_weights.numel() == 1
        return WeightedSigmoid(
            self.log_weights.exp().reshape(-1)[0 if shared else column, None].tolist()
        )

    def spec(self) -> dict[str, Any]:
        return {"weights": self.log_weights.exp().tolist()}


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
