"""Recipes: names joined by ``+``, applied from left to right.

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
from labelwise.training.augment.base import Augment, Chain
from labelwise.training.augment.geometry import Crop, Cutout, Flip
from labelwise.training.augment.policies import RandAugment, TrivialAugment
from labelwise.training.augment.windows import ResizedCrop
from labelwise.types import nearest

__all__ = ["RECIPES", "make_augment"]

RECIPES: dict[str, tuple[Augment, ...]] = {
    "crop-flip": (Crop(pad=4), Flip()),
    "cutout": (Cutout(),),
    "flip": (Flip(),),
    "none": (),
    "rand": (RandAugment(),),
    "resized-crop": (ResizedCrop(), Flip()),
    "shift": (Crop(pad=None, repeat_edge=True),),
    "trivial": (TrivialAugment(),),
}


def make_augment(recipe: str) -> Chain:
    """Return the augments of a recipe such as ``crop-flip+cutout``."""
    steps: list[Augment] = []
    for name in recipe.split("+"):
        if name not in RECIPES:
            raise SettingsError(f"unknown augmentation {name!r}{nearest(name, RECIPES)}")
        steps += RECIPES[name]
    return Chain(tuple(steps))
