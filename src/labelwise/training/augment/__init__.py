"""Augmentation of whole batches on their device, from random numbers that can be drawn again.

Augmentations are names joined by ``+``, applied from left to right:

    none           nothing
    crop-flip      4 zero pixels around, a random crop of the old size, mirrored half the time
    shift          moved by up to a twelfth of the side, edge pixels repeated; never mirrored
    flip           mirrored half the time
    resized-crop   a random window scaled to the input (ImageNet's), mirrored half the time
    turn           one of the eight ways a square can lie, for pictures without an upper edge
    trivial        TrivialAugment
    rand           RandAugment, two operations of strength 9
    cutout         one square of half the side, anywhere, set to zero

``crop-flip+trivial+cutout`` is a usual one for CIFAR. Pictures of bands are normalised before, so
that zero is each band's mean; ``rand`` and ``trivial`` change colours of 8 bits and are refused.
"""

from labelwise.errors import SettingsError
from labelwise.training.augment.base import Augment, Augments, ImageDraws, mix
from labelwise.training.augment.geometry import (
    Crop,
    Cutout,
    Flip,
    ResizedCrop,
    Turn,
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
    "require_any_bands",
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
    "turn": (Turn(),),
}
OF_COLOURS = ("rand", "trivial")


def make_augment(names: str) -> Augments:
    """Return the augments of names such as ``crop-flip+cutout``."""
    steps: list[Augment] = []
    for name in names.split("+"):
        if name not in AUGMENTATIONS:
            raise SettingsError(f"unknown augmentation {name!r}{nearest(name, AUGMENTATIONS)}")
        steps += AUGMENTATIONS[name]
    return Augments(tuple(steps))


def require_any_bands(names: str) -> None:
    """Raise if an augmentation works on the colours of 8-bit RGB alone."""
    for name in names.split("+"):
        if name in OF_COLOURS:
            kept = ", ".join(sorted(set(AUGMENTATIONS) - {"none", *OF_COLOURS}))
            raise SettingsError(
                f"augment {name!r} changes 8-bit colours, and these pictures are bands; "
                f"take some of {kept}"
            )
