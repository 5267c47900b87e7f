"""Losses that rank: pairs of labels, thresholds at zero, and ranks within a batch."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu, softplus

from labelwise.errors import require
from labelwise.learn.objectives.base import (
    Objective,
    masked_logsumexp,
    masked_mean,
    one_of,
    reviewed_rows,
    running_sum,
    split_labels,
    uniforms,
)
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets

# Hinges over (present, absent) pairs without visiting the pairs, and WARP's rank weights.
#
#     sum_{n absent} max(0, offset - z_p + z_n) = c_p (offset - z_p) + S_p
#
# The absent scores above z_p - offset are a head of the row's absent scores sorted from above: c_p
# is its length, S_p its sum.
#
# WARP weighs a present label by L(r) = 1 + 1/2 + ... + 1/r. Its rank r is c_p at offset 1
# ("exact"), or (T - 1) / s ("sampled"): absent labels are drawn without replacement, one draw an
# image, and the first of that head appears at trial s. T counts the observed labels of the image.


Rank = Literal["sampled", "exact"]
Rounding = Literal["floor", "round"]


@dataclass(frozen=True)
class Rivals:
    """The absent scores of each row: rising behind -inf, their running sums from above, columns."""

    rising: Tensor
    sums: Tensor
    order: Tensor


def sort_rivals(logits: Tensor, absent: Tensor) -> Rivals:
    """Return each row's absent scores sorted."""
    falling, order = torch.where(absent, logits, float("-inf")).sort(dim=1, descending=True)
    finite = torch.where(falling > float("-inf"), falling, 0.0)
    return Rivals(falling.detach().flip(1), pad(running_sum(finite, 1), (1, 0)), order)


def hinge_sum(logits: Tensor, rivals: Rivals, offset: float) -> tuple[Tensor, Tensor]:
    """Return for every entry (B, K) its sum of hinges against the absent, and how many are > 0."""
    floor = logits.detach() - offset
    count = logits.shape[1] - torch.searchsorted(rivals.rising, floor, right=True)
    return count * (offset - logits) + rivals.sums.gather(1, count), count


def harmonic_numbers(count: int, like: Tensor) -> Tensor:
    """Return ``H_0, ..., H_count`` with the dtype and device of ``like``."""
    ranks = torch.arange(1, count + 1, dtype=like.dtype, device=like.device)
    return torch.cat([ranks.new_zeros(1), running_sum(ranks.reciprocal(), 0)])


class RankWeights(nn.Module):
    """``L(rank)`` of every entry; sampled ranks follow ``seed`` and a step counter in a buffer."""

    step: Tensor

    def __init__(self, rank: Rank = "sampled", rounding: Rounding = "floor", seed: int = 0) -> None:
        super().__init__()
        self.rank, self.seed = one_of("rank", rank, Rank), seed
        self.rounding = one_of("rounding", rounding, Rounding)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, count: Tensor, rivals: Rivals, present: Tensor, absent: Tensor) -> Tensor:
        """Return the (B, K) weights of entries with ``count`` violating rivals."""
        rank = count if self.rank == "exact" else self._sampled(count, rivals, present, absent)
        return harmonic_numbers(count.shape[1], rivals.sums)[rank]

    def _sampled(self, count: Tensor, rivals: Rivals, present: Tensor, absent: Tensor) -> Tensor:
        places = torch.arange(count.numel(), device=count.device).view(count.shape)
        keys = uniforms(places, (self.seed << 32) + self.step.to(count.device))
        if self.training:
            self.step.add_(1)  # not "+=", which assigns: hooks of other libraries are not traced
        turn = torch.where(absent, keys, 2.0).argsort(dim=1).argsort(dim=1)  # when one is drawn
        first = turn.gather(1, rivals.order).cummin(dim=1).values
        trials = 1 + first.gather(1, (count - 1).clamp(min=0))
        others = (present | absent).sum(dim=1, keepdim=True).sub(1).clamp(min=0)
        if self.rounding == "floor":
            return others // trials
        return (2 * others + trials) // (2 * trials)


# Ranking baselines: pairwise hinge, LSEP, WARP and RML. None has a link: their logits only rank.
#
#     pairwise = mean_i sum_{p, n} max(0, 1 - z_p + z_n)
#     LSEP     = mean_i log(1 + sum_{p, n} exp(z_n - z_p))                     Li et al. 2017
#     WARP     = mean_i sum_p L(r_p) sum_n max(0, 1 - z_p + z_n)               Gong et al. 2013
#     RML      = mean_i c_u sum_p R(z_p) + c_u sum_n R(-z_n)
#                       + sum_p L(r_p) sum_n R(z_p - z_n)                      Cevikalp et al. 2020
#     R(t)     = max(0, 1 - t) - beta max(0, s - t)
#
# p runs over the present, n over the absent labels of an image; r_p is the rank of p. Weights L(r)
# are constants in the gradient. RML's public kernels divide by a further 20; ours do not.


def pairwise_hinge_loss(logits: Tensor, present: Tensor, absent: Tensor, margin: float) -> Tensor:
    """Return the (B,) sum of hinges over the pairs of each image."""
    hinges, _ = hinge_sum(logits, sort_rivals(logits, absent), margin)
    return torch.where(present, hinges, 0.0).sum(dim=1)


def lsep_loss(logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """Return the (B,) log-sum-exp-pairwise loss; 0 without a present or an absent label."""
    gap = masked_logsumexp(logits, absent, 1) + masked_logsumexp(-logits, present, 1)
    return torch.where(present.any(dim=1) & absent.any(dim=1), softplus(gap), 0.0)


class ImageLoss(Objective):
    """Mean over the images of which anything is observed; unknown labels take no part."""

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = self.images(outputs.logits, *split_labels(targets.labels, targets.observed))
        return masked_mean(loss, reviewed_rows(targets.observed))

    @abstractmethod
    def images(self, logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
        """Return the (B,) losses of images from two masks."""


class PairwiseHinge(ImageLoss):
    """Mean over images of the hinges of all pairs."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        require(margin > 0, f"margin must be positive, got {margin}")
        self.margin = margin

    def images(self, logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
        return pairwise_hinge_loss(logits, present, absent, self.margin)


class LSEP(ImageLoss):
    """Mean over images of the log-sum-exp-pairwise loss."""

    images = staticmethod(lsep_loss)


class WARP(ImageLoss):
    """Mean over images of the rank-weighted hinges of all pairs."""

    def __init__(
        self,
        *,
        rank: Rank = "sampled",
        rounding: Rounding = "floor",
        margin: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require(margin > 0, f"margin must be positive, got {margin}")
        self.margin = margin
        self.weights = RankWeights(rank, rounding, seed)

    def images(self, logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
        rivals = sort_rivals(logits, absent)
        hinges, count = hinge_sum(logits, rivals, self.margin)
        weights = self.weights(count, rivals, present, absent)
        return torch.where(present, weights * hinges, 0.0).sum(dim=1)


class RML(ImageLoss):
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
        super().__init__()
        require(
            s < 1 and 0 <= beta <= 1 and c_u >= 0,
            f"RML needs s < 1, beta in [0, 1] and c_u >= 0, got s={s}, beta={beta}, c_u={c_u}",
        )
        self.s, self.beta, self.c_u = s, beta, c_u
        self.weights = RankWeights(rank, rounding, seed)

    def images(self, logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
        rivals = sort_rivals(logits, absent)
        hinges, count = hinge_sum(logits, rivals, 1.0)
        far, _ = hinge_sum(logits, rivals, self.s)
        weights = self.weights(count, rivals, present, absent)
        at_present = self.c_u * self._ramp(logits) + weights * (hinges - self.beta * far)
        at_absent = self.c_u * self._ramp(-logits)
        return torch.where(present, at_present, torch.where(absent, at_absent, 0.0)).sum(dim=1)

    def _ramp(self, gap: Tensor) -> Tensor:
        return relu(1 - gap) - self.beta * relu(self.s - gap)


# ZLPR, zero-bounded log-sum-exp and pairwise rank-based loss: Su et al. 2022.
#
#     ZLPR = mean_i log(1 + sum_{n absent} exp(v_n)) + log(1 + sum_{p present} exp(-v_p))
#
# A cut at 0 is meant. No map of one logit is proper: its cost depends on the image's other labels.


def zlpr_loss(logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """Return the (B,) loss of every image from its logits and two masks."""
    above = softplus(masked_logsumexp(logits, absent, 1))
    below = softplus(masked_logsumexp(-logits, present, 1))
    return torch.where(absent.any(dim=1), above, 0.0) + torch.where(present.any(dim=1), below, 0.0)


class ZLPR(ImageLoss):
    """Mean over images; the link is a plain sigmoid."""

    default_link = Sigmoid()
    images = staticmethod(zlpr_loss)


# Two-way multi-label loss: Kobayashi (CVPR 2023), eqs. 14 to 17, and its supplement.
#
#     unit(x; P, N) = softplus(T_N LSE_N(x / T_N) + T_P LSE_P(-x / T_P) + margin)
#     sample-wise   = mean over images of unit(labels of the image)     images with a label present
#     class-wise    = mean over labels of unit(images of the label)     labels present in the batch
#     two-way       = sample-wise + class-wise
#
# A unit without absent entries is 0 and counts in the mean; a batch without any label is 0.

TwoWaySide = Literal["both", "sample", "class"]


def two_way_unit(
    logits: Tensor,
    present: Tensor,
    absent: Tensor,
    *,
    dim: int,
    temperature_pos: float = 4.0,
    temperature_neg: float = 1.0,
    margin: float = 0.0,
) -> Tensor:
    """Return the unit loss along ``dim``: (B,) for ``dim=1``, (K,) for ``dim=0``."""
    high = temperature_neg * masked_logsumexp(logits / temperature_neg, absent, dim)
    low = temperature_pos * masked_logsumexp(-logits / temperature_pos, present, dim)
    both = present.any(dim=dim) & absent.any(dim=dim)
    return torch.where(both, softplus(high + low + margin), 0.0)


class TwoWay(Objective):
    """Two-way loss of a batch, or only one of its two sides; it has no link."""

    def __init__(
        self,
        *,
        side: TwoWaySide = "both",
        temperature_pos: float = 4.0,
        temperature_neg: float = 1.0,
        margin: float = 0.0,
    ) -> None:
        super().__init__()
        require(
            temperature_pos > 0 and temperature_neg > 0,
            "temperature_pos and temperature_neg must be positive, "
            f"got {temperature_pos} and {temperature_neg}",
        )
        dims = {"both": (1, 0), "sample": (1,), "class": (0,)}
        self.dims = dims[one_of("side", side, TwoWaySide)]
        temperatures = {"temperature_pos": temperature_pos, "temperature_neg": temperature_neg}
        self.options = {**temperatures, "margin": margin}
        self.couples_batch = side != "sample"

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, absent = split_labels(targets.labels, targets.observed)
        total = outputs.logits.new_zeros(())
        for dim in self.dims:
            unit = two_way_unit(outputs.logits, present, absent, dim=dim, **self.options)
            total = total + masked_mean(unit, present.any(dim=dim))
        return total
