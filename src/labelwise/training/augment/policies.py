"""TrivialAugment and RandAugment: one or more of fourteen operations, chosen for each image.

TrivialAugment (Muller and Hutter 2021, "wide") takes one operation and any of 31 strengths;
RandAugment (Cubuk et al. 2020) takes two, each at strength 9 of 30. Every operation is computed
for the whole batch and kept where it was chosen, so nothing waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.training.augment import colour
from labelwise.training.augment.base import Augment, ImageDraws
from labelwise.training.augment.geometry import affine, rotation, shear_x, shear_y, translation

OPERATIONS = (
    "identity",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "rotate",
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "posterise",
    "solarise",
    "autocontrast",
    "equalise",
)

BINS = 31


def apply(pixels: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    """Return each image after its own operation (B,), a place in OPERATIONS, at its amount (B,).

    The amount is the shear, the shift in pixels, the angle in degrees, the blend's factor less 1,
    the bits kept or the threshold, whichever the operation needs.
    """
    chosen = {name: _is(operation, name) for name in OPERATIONS}
    moved = affine(pixels, _maps(pixels, chosen, amount))
    bases = {
        "brightness": torch.zeros_like(moved),
        "colour": colour.grey(moved),
        "contrast": colour.mean_grey(moved),
        "sharpness": colour.blurred(moved),
    }
    results = {name: colour.blend(moved, base, 1 + amount) for name, base in bases.items()}
    results["posterise"] = colour.posterise(moved, amount.trunc().clamp(1, 8))
    results["solarise"] = colour.solarise(moved, amount)
    results["autocontrast"] = colour.autocontrast(moved)
    results["equalise"] = colour.equalise(moved)
    for name, result in results.items():
        moved = torch.where(chosen[name][:, None, None, None], result, moved)
    return moved


def _maps(pixels: Tensor, chosen: dict[str, Tensor], amount: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    still = torch.zeros_like(amount)
    maps = translation(still, still)
    for name, moved in (
        ("shear-x", shear_x(amount, height)),
        ("shear-y", shear_y(amount, width)),
        ("translate-x", translation(amount, still)),
        ("translate-y", translation(still, amount)),
        ("rotate", rotation(amount)),
    ):
        maps = torch.where(chosen[name][:, None, None], moved, maps)
    return maps


@dataclass(frozen=True)
class Ranges:
    """The largest amounts of the operations; posterise keeps 8 less up to ``bits`` bits."""

    shear: float
    shift_x: float
    shift_y: float
    degrees: float
    factor: float
    bits: int

    def amounts(self, operation: Tensor, level: Tensor, sign: Tensor) -> Tensor:
        """Return the amount (B,) of each operation at strength ``level`` (B,), 0 to 30."""
        share = level / (BINS - 1)
        signed = (
            ("shear-x", self.shear),
            ("shear-y", self.shear),
            ("translate-x", self.shift_x),
            ("translate-y", self.shift_y),
            ("rotate", self.degrees),
            *((name, self.factor) for name in ("brightness", "colour", "contrast", "sharpness")),
        )
        amount = torch.zeros_like(share)
        for name, largest in signed:
            amount = torch.where(_is(operation, name), sign * share * largest, amount)
        amount = torch.where(_is(operation, "posterise"), 8 - (share * self.bits).round(), amount)
        return torch.where(_is(operation, "solarise"), 255 * (1 - share), amount)


@dataclass(frozen=True)
class TrivialAugment(Augment):
    """One operation an image, at any strength."""

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        ranges = Ranges(0.99, 32.0, 32.0, 135.0, 0.99, 6)
        operation = draws.integers(0, len(OPERATIONS))
        level = draws.integers(0, BINS).float()
        return apply(pixels, operation, ranges.amounts(operation, level, _sign(draws)))


@dataclass(frozen=True)
class RandAugment(Augment):
    """``count`` operations an image, each at strength ``level`` of 30."""

    count: int = 2
    level: int = 9

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        height, width = pixels.shape[2:]
        ranges = Ranges(0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, 4)
        for _ in range(self.count):
            operation = draws.integers(0, len(OPERATIONS))
            level = torch.full_like(operation, self.level, dtype=torch.float32)
            pixels = apply(pixels, operation, ranges.amounts(operation, level, _sign(draws)))
        return pixels


def _sign(draws: ImageDraws) -> Tensor:
    return 1.0 - 2.0 * draws.coin()


def _is(operation: Tensor, name: str) -> Tensor:
    return operation == OPERATIONS.index(name)
