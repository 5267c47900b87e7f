"""Hinges over (present, absent) pairs without visiting the pairs, and WARP's rank weights.

    sum_{n absent} max(0, offset - z_p + z_n) = c_p (offset - z_p) + S_p

The absent scores above z_p - offset are a head of the row's absent scores sorted from above:
c_p is its length, S_p its sum. One sort a row, O(B K log K), and no table of pairs.

WARP weighs a present label by L(r) = 1 + 1/2 + ... + 1/r. Its rank r is c_p at offset 1
("exact"), or (T - 1) / s ("sampled"): absent labels are drawn without replacement, one draw an
image, and the first of that head appears at trial s. T counts the observed labels of the image.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from labelwise.numeric.draws import uniforms
from labelwise.numeric.ops import harmonic_numbers


@dataclass(frozen=True)
class Rivals:
    """The absent scores of each row: rising behind -inf, their running sums from above, columns."""

    rising: Tensor
    sums: Tensor
    order: Tensor


def sort_rivals(logits: Tensor, absent: Tensor) -> Rivals:
    """Return each row's absent scores sorted."""
    kept = torch.where(absent, logits, float("-inf"))
    falling, order = kept.sort(dim=1, descending=True)
    finite = torch.where(falling > float("-inf"), falling, 0.0)
    return Rivals(falling.detach().flip(1), pad(finite.cumsum(dim=1), (1, 0)), order)


def hinge_sum(logits: Tensor, rivals: Rivals, offset: float) -> tuple[Tensor, Tensor]:
    """Return for every entry (B, K) its sum of hinges against the absent, and how many are > 0."""
    floor = logits.detach() - offset
    count = logits.shape[1] - torch.searchsorted(rivals.rising, floor, right=True)
    return count * (offset - logits) + rivals.sums.gather(1, count), count


class RankWeights(nn.Module):
    """``L(rank)`` of every entry; sampled ranks follow ``seed`` and a step counter in a buffer."""

    step: Tensor

    def __init__(
        self,
        rank: Literal["sampled", "exact"] = "sampled",
        rounding: Literal["floor", "round"] = "floor",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if rank not in ("sampled", "exact"):
            raise ValueError(f"rank must be 'sampled' or 'exact', got {rank!r}")
        if rounding not in ("floor", "round"):
            raise ValueError(f"rounding must be 'floor' or 'round', got {rounding!r}")
        self.rank, self.rounding, self.seed = rank, rounding, seed
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
        return (
            others // trials if self.rounding == "floor" else (2 * others + trials) // (2 * trials)
        )
