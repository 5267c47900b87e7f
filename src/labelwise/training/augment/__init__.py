"""Augmentation of whole batches on their device, from random numbers that can be drawn again.

Augmentations are names joined by ``+``, applied from left to right:

    none           nothing
    crop-flip      4 zero pixels around, a random crop of the old size, mirrored half the time
    shift          moved by up to a twelfth of the side, edge pixels repeated; never mirrored
    flip           mirrored half the time
    resized-crop   a random window scaled to the input (ImageNet's), mirrored half the time
    trivial        TrivialAugment
    rand           RandAugment, two operations of strength 9
    cutout         one square of half the side, anywhere, set to zero

``crop-flip+trivial+cutout`` is a usual one for CIFAR.
"""

from labelwise.errors import SettingsError
from labelwise.training.augment.base import Augment, Augments, ImageDraws, mix
from labelwise.training.augment.geometry import (
    Crop,
    Cutout,
    Flip,
    ResizedCrop,
    Windows,
    draw_windows,
    zoom,
)
from labelwise.training.augment.policies import RandAugment, TrivialAugment
from labelwise.types import nearest

__all__ = [
    "AUGMENTATIONS",
    "Augment",
    "Augments",
    "ImageDraws",
    "ResizedCrop",
    "Windows",
    "draw_windows",
    "make_augment",
    "mix",
    "zoom",
]

AUGMENTATIONS: dict[str, tuple[Augment, ...]] = {
    "crop-flip": (Crop(pad=4), Flip()),
    "cutout": (Cutout(),),
    "flip": (Flip(),),
    "none": (),
    "rand": (RandAugment(),),
    "resized-crop": (ResizedCrop(), Flip()),
    "shift": (Crop(pad=None, repeat_edge=True),),
    "trivial": (TrivialAugment(),),
}


def make_augment(names: str) -> Augments:
    """Return the augments of names such as ``crop-flip+cutout``."""
    steps: list[Augment] = []
    for name in names.split("+"):
        if name not in AUGMENTATIONS:
            raise SettingsError(f"unknown augmentation {name!r}{nearest(name, AUGMENTATIONS)}")
        steps += AUGMENTATIONS[name]
    return Augments(tuple(steps))
