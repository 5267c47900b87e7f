"""Random numbers of one batch: the same for every device count, number of workers and resume.

A generator is seeded from (seed, epoch, batch). Each draw is made for the joined batch of all
processes, and a process keeps its own rows of it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Dice", "mix"]


def mix(*numbers: int) -> int:
    """Return one 63-bit seed of several numbers, far apart for neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class Dice:
    """Draws for the rows ``start`` to ``stop`` of a joined batch of ``total`` rows."""

    generator: torch.Generator
    total: int
    start: int
    stop: int

    @classmethod
    def of(cls, seed: int, rows: int, device: torch.device | str = "cpu") -> "Dice":
        """Return dice for a batch of one process."""
        return cls(torch.Generator(device).manual_seed(seed), rows, 0, rows)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return (B,) float32 in [low, high)."""
        device = self.generator.device
        draw = torch.rand(self.total, generator=self.generator, device=device)
        return draw[self.start : self.stop] * (high - low) + low

    def integers(self, low: int, high: int) -> Tensor:
        """Return (B,) int64 in [low, high)."""
        device = self.generator.device
        draw = torch.randint(low, high, (self.total,), generator=self.generator, device=device)
        return draw[self.start : self.stop]

    def coin(self) -> Tensor:
        """Return (B,) bool, true with probability one half."""
        return self.uniform() < 0.5
