"""Random numbers that depend only on a seed and a position, not on the order of asking.

The mixing function of SplitMix64 (Steele et al. 2014), mix(mix(seed) xor position), its top 24
bits as a number in [0, 1). Tensor operations only: the same on every device, in every process of
a distributed run, after a resumed run, and inside ``torch.compile``.
"""

from math import pi

import torch
from torch import Tensor

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
