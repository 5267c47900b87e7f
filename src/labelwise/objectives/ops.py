"""Stable primitives shared by objectives; formulas of links are in numeric.array_api."""

from math import pi
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

# Random numbers that depend only on a seed and a position, not on the order of asking.
#
# The mixing function of SplitMix64 (Steele et al. 2014), mix(mix(seed) xor position), its top 24
# bits as a number in [0, 1). Tensor operations only: the same on every device, in every process of
# a distributed run, after a resumed run, and inside ``torch.compile``.


# 64-bit constants of SplitMix64 as signed integers; int64 arithmetic wraps.
GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)
BITS = 24


def uniforms(positions: Tensor, seed: int | Tensor) -> Tensor:
    """Return float32 numbers in [0, 1), one for each of the int64 ``positions``."""
    # Not the generator's sum, start + position * GAMMA: compilers take that for an index and
    # do it in integers without bound.
    mixed = _mix(_mix(positions.new_zeros(()) + seed) ^ positions)
    return _shift(mixed, 64 - BITS).to(torch.float32) * 2.0**-BITS


def normals(positions: Tensor, seed: int | Tensor) -> Tensor:
    """Return float32 standard normal numbers (Box and Muller), one for each of ``positions``."""
    radius = (-2 * torch.log(1 - uniforms(2 * positions, seed))).sqrt()
    return radius * torch.cos(2 * pi * uniforms(2 * positions + 1, seed))


def _mix(state: Tensor) -> Tensor:
    state = state + GAMMA
    state = (state ^ _shift(state, 30)) * MIX_1
    state = (state ^ _shift(state, 27)) * MIX_2
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    return (state >> bits) & ((1 << (64 - bits)) - 1)


Option = TypeVar("Option", bound=str)


def one_of(name: str, value: Option, known: Any) -> Option:
    """Return an option if it is one of the values of a Literal."""
    if value not in get_args(known):
        raise ValueError(f"{name} must be one of {get_args(known)}, got {value!r}")
    return value


def masked_mean(values: Tensor, observed: Tensor | None) -> Tensor:
    """Return the mean over observed entries; 0, still connected to the graph, if there are none."""
    if observed is None:
        return values.sum() / max(values.numel(), 1)
    return torch.where(observed, values, 0.0).sum() / observed.to(values.dtype).sum().clamp(min=1)


def select_top_n(scores: Tensor, n: int) -> Tensor:
    """Return a boolean mask of exactly ``n`` largest entries of the whole array."""
    chosen = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    chosen[scores.flatten().topk(n).indices] = True
    return chosen.view(scores.shape)


def split_labels(labels: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the boolean masks (present, absent); an unobserved entry is in neither."""
    present = labels > 0.5
    if observed is None:
        return present, ~present
    return present & observed, ~present & observed


def reviewed_rows(observed: Tensor | None) -> Tensor | None:
    """Return which rows (B,) have anything observed; None means all of them."""
    return None if observed is None else observed.any(dim=1)


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the log-sum-exp over the masked entries along ``dim``.

    Where the mask is empty the result is finite, has no gradient and no meaning: ask
    ``mask.any(dim)``.
    """
    some = mask.any(dim=dim, keepdim=True)
    return torch.where(some, torch.where(mask, values, float("-inf")), 0.0).logsumexp(dim=dim)
