"""Augment: a random change of a batch of pixels, and the random numbers it is made from.

Each number is a function of key, place and draw alone: an image's numbers depend on its place in
the epoch, not on the batch it travels in, the device, the number of processes or workers, or where
a run was resumed. So any number of batches can be augmented at once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from labelwise.numeric.draws import uniforms


def mix(*numbers: int) -> int:
    """Return one 63-bit key of several numbers, far apart for neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


class ImageDraws:
    """Draws for the images at ``places`` (B,) of an epoch, on the device of ``places``."""

    def __init__(self, key: int, places: Tensor) -> None:
        self._key, self._places, self._draws = key, places, 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return (B,) float32 in [low, high)."""
        self._draws += 1
        return uniforms(self._places, mix(self._key, self._draws)) * (high - low) + low

    def integers(self, low: int, high: int) -> Tensor:
        """Return (B,) int64 in [low, high); evenly, as long as these are far fewer than 2^24."""
        return (self.uniform() * (high - low)).long() + low

    def coin(self) -> Tensor:
        """Return (B,) bool, true with probability one half."""
        return self.uniform() < 0.5


class Augment(ABC):
    """A random change of uint8 pixels (B, 3, H, W) that keeps their shape, on their device.

    All random numbers come from ``draws``, and no value is looked at on the host.
    """

    @abstractmethod
    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        """Return the changed pixels."""


@dataclass(frozen=True)
class Augments(Augment):
    """Augments one after the other."""

    steps: tuple[Augment, ...] = ()

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        for step in self.steps:
            pixels = step(pixels, draws)
        return pixels
