"""Augment: a random change of a batch of pixels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from labelwise.training.augment.dice import Dice

__all__ = ["Augment", "Chain"]


class Augment(ABC):
    """A random change of uint8 pixels (B, 3, H, W) that keeps their shape, on their device.

    All random numbers come from the dice, and no value is looked at on the host.
    """

    @abstractmethod
    def __call__(self, pixels: Tensor, dice: Dice) -> Tensor:
        """Return the changed pixels."""


@dataclass(frozen=True)
class Chain(Augment):
    """Augments one after the other."""

    steps: tuple[Augment, ...] = ()

    def __call__(self, pixels: Tensor, dice: Dice) -> Tensor:
        for step in self.steps:
            pixels = step(pixels, dice)
        return pixels
