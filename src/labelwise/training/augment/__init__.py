"""Augmentation of whole batches on their device, from random numbers that can be drawn again."""

from labelwise.training.augment.base import Augment, Chain
from labelwise.training.augment.dice import Dice, mix
from labelwise.training.augment.recipes import RECIPES, make_augment
from labelwise.training.augment.windows import ResizedCrop, Windows, draw_windows, zoom

__all__ = [
    "RECIPES",
    "Augment",
    "Chain",
    "Dice",
    "ResizedCrop",
    "Windows",
    "draw_windows",
    "make_augment",
    "mix",
    "zoom",
]
