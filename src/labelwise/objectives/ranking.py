"""Ranking baselines: pairwise hinge, LSEP, WARP and RML. None has a link: their logits only rank.

    pairwise = mean_i sum_{p, n} max(0, 1 - z_p + z_n)
    LSEP     = mean_i log(1 + sum_{p, n} exp(z_n - z_p))                     Li et al. 2017
    WARP     = mean_i sum_p L(r_p) sum_n max(0, 1 - z_p + z_n)               Gong et al. 2013
    RML      = mean_i c_u sum_p R(z_p) + c_u sum_n R(-z_n)
                      + sum_p L(r_p) sum_n R(z_p - z_n)                      Cevikalp et al. 2020
    R(t)     = max(0, 1 - t) - beta max(0, s - t)

p runs over the present, n over the absent labels of an image; r_p is the rank of p (see
hinge_pairs). Weights L(r) are constants in the gradient. RML's public kernels draw other ranks
for the gradient than for the value and divide by a further 20; ours do neither.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from labelwise.numeric.ops import masked_logsumexp, masked_mean, reviewed_rows, split_labels
from labelwise.objectives.base import Objective
from labelwise.objectives.hinge_pairs import RankWeights, hinge_sum, sort_rivals
from labelwise.types import Outputs, Targets

Rank = Literal["sampled", "exact"]
Rounding = Literal["floor", "round"]


def pairwise_hinge_loss(logits: Tensor, present: Tensor, absent: Tensor, margin: float) -> Tensor:
    """Return the (B,) sum of hinges over the pairs of each image."""
    hinges, _ = hinge_sum(logits, sort_rivals(logits, absent), margin)
    return torch.where(present, hinges, 0.0).sum(dim=1)


def lsep_loss(logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """Return the (B,) log-sum-exp-pairwise loss; 0 without a present or an absent label."""
    gap = masked_logsumexp(logits, absent, 1) + masked_logsumexp(-logits, present, 1)
    return torch.where(present.any(dim=1) & absent.any(dim=1), softplus(gap), 0.0)


class PairwiseHinge(Objective):
    """Mean over images of the hinges of all pairs."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__(None)
        self.margin = _positive("margin", margin)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, absent = split_labels(targets.labels, targets.observed)
        loss = pairwise_hinge_loss(outputs.logits, present, absent, self.margin)
        return masked_mean(loss, reviewed_rows(targets.observed))


class LSEP(Objective):
    """Mean over images of the log-sum-exp-pairwise loss."""

    def __init__(self) -> None:
        super().__init__(None)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, absent = split_labels(targets.labels, targets.observed)
        loss = lsep_loss(outputs.logits, present, absent)
        return masked_mean(loss, reviewed_rows(targets.observed))


class WARP(Objective):
    """Mean over images of the rank-weighted hinges of all pairs."""

    def __init__(
        self,
        *,
        rank: Rank = "sampled",
        rounding: Rounding = "floor",
        margin: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(None)
        self.margin = _positive("margin", margin)
        self.weights = RankWeights(rank, rounding, seed)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, absent = split_labels(targets.labels, targets.observed)
        rivals = sort_rivals(outputs.logits, absent)
        hinges, count = hinge_sum(outputs.logits, rivals, self.margin)
        weights = self.weights(count, rivals, present, absent)
        loss = torch.where(present, weights * hinges, 0.0).sum(dim=1)
        return masked_mean(loss, reviewed_rows(targets.observed))


class RML(Objective):
    """Mean over images of the robust (ramp) rank-weighted loss, with one ramp for each label."""

    def __init__(
        self,
        *,
        rank: Rank = "sampled",
        rounding: Rounding = "round",
        s: float = -0.8,
        beta: float = 0.9,
        c_u: float = 5.0,
        seed: int = 0,
    ) -> None:
        super().__init__(None)
        if s >= 1 or not 0 <= beta <= 1 or c_u < 0:
            raise ValueError(
                f"RML needs s < 1, beta in [0, 1] and c_u >= 0, got s={s}, beta={beta}, c_u={c_u}"
            )
        self.s, self.beta, self.c_u = s, beta, c_u
        self.weights = RankWeights(rank, rounding, seed)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits
        present, absent = split_labels(targets.labels, targets.observed)
        rivals = sort_rivals(logits, absent)
        hinges, count = hinge_sum(logits, rivals, 1.0)
        far, _ = hinge_sum(logits, rivals, self.s)
        weights = self.weights(count, rivals, present, absent)
        at_present = self.c_u * self._ramp(logits) + weights * (hinges - self.beta * far)
        at_absent = self.c_u * self._ramp(-logits)
        loss = torch.where(present, at_present, torch.where(absent, at_absent, 0.0)).sum(dim=1)
        return masked_mean(loss, reviewed_rows(targets.observed))

    def _ramp(self, gap: Tensor) -> Tensor:
        return relu(1 - gap) - self.beta * relu(self.s - gap)


def _positive(name: str, value: float) -> float:
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value
