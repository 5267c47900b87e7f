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

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

from labelwise.errors import SettingsError
from labelwise.objectives.ops import uniforms
from labelwise.pictures.transform import Window
from labelwise.types import nearest

# Augment: a random change of a batch of pixels, and the random numbers it is made from.
#
# Each number is a function of key, place and draw alone: an image's numbers depend on its place in
# the epoch, not on the batch it travels in, the device, the number of processes or workers, or
# where a run was resumed. So any number of batches can be augmented at once.


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


# Changes of place: crops, mirror images, squares cut out, affine maps, random resized crops.
#
# An affine map shows at output place (x, y) the input at (a x + b y + c, d x + e y + f), both
# measured from the middle of the image, by the nearest pixel, zero outside. Shears keep the upper
# left corner, as torchvision's augmentations do.
#
# A random resized crop is a window of random area and shape, scaled to the size of the input:
#
#     area share ~ U(0.08, 1) of the image        log(width / height) ~ U(log 3/4, log 4/3)
#
# A side longer than the image is cut to it (torchvision draws again instead); the place is uniform.


AREA = (0.08, 1.0)
SHAPE = (log(3 / 4), log(4 / 3))


@dataclass(frozen=True)
class Crop(Augment):
    """A crop of the old size out of pixels padded by ``pad`` (None: side / 12) on each side."""

    pad: int | None = 4
    repeat_edge: bool = False

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        height, width = pixels.shape[2:]
        pad_y, pad_x = (side // 12 if self.pad is None else self.pad for side in (height, width))
        down = draws.integers(-pad_y, pad_y + 1)
        right = draws.integers(-pad_x, pad_x + 1)
        return shift(pixels, down, right, self.repeat_edge)


@dataclass(frozen=True)
class Flip(Augment):
    """Mirrored left to right half the time."""

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        return torch.where(draws.coin()[:, None, None, None], pixels.flip(3), pixels)


@dataclass(frozen=True)
class Turn(Augment):
    """One of the eight ways a square can lie: turned by quarters, mirrored half the time."""

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        turn, mirror, upside = (draws.coin()[:, None, None, None] for _ in range(3))
        pixels = torch.where(turn, pixels.transpose(2, 3), pixels)
        pixels = torch.where(mirror, pixels.flip(3), pixels)
        return torch.where(upside, pixels.flip(2), pixels)


@dataclass(frozen=True)
class Cutout(Augment):
    """A square of ``share`` of the side set to zero; its centre is anywhere, so it may overhang."""

    share: float = 0.5

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        height, width = pixels.shape[2:]
        length = int(self.share * min(height, width))
        return cut_out(pixels, draws.integers(0, height), draws.integers(0, width), length)


def shift(pixels: Tensor, down: Tensor, right: Tensor, repeat_edge: bool = False) -> Tensor:
    """Return each image's window moved by (down, right); outside is zero or the nearest edge."""
    height, width = pixels.shape[2:]
    rows = torch.arange(height, device=pixels.device) + down[:, None]  # (B, H)
    columns = torch.arange(width, device=pixels.device) + right[:, None]  # (B, W)
    return gather_places(pixels, rows[:, :, None], columns[:, None, :], repeat_edge)


def cut_out(pixels: Tensor, centre_y: Tensor, centre_x: Tensor, length: int) -> Tensor:
    """Return the pixels with a square of ``length`` around each centre set to zero."""
    height, width = pixels.shape[2:]
    rows = _covers(height, centre_y, length)
    columns = _covers(width, centre_x, length)
    return pixels.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0)


def gather_places(
    pixels: Tensor, rows: Tensor, columns: Tensor, repeat_edge: bool = False
) -> Tensor:
    """Return the pixels at whole places (B, H, W), broadcast; outside is zero or the edge."""
    batch, _, height, width = pixels.shape
    image = torch.arange(batch, device=pixels.device)[:, None, None]
    inside_rows, inside_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    moved = pixels.permute(0, 2, 3, 1)[image, inside_rows, inside_columns]
    if not repeat_edge:
        outside = (rows != inside_rows) | (columns != inside_columns)
        moved = moved.masked_fill(outside[..., None], 0)
    return moved.permute(0, 3, 1, 2)


def _covers(side: int, centre: Tensor, length: int) -> Tensor:
    places = torch.arange(side, device=centre.device)
    start = centre[:, None] - length // 2
    return (places >= start) & (places < start + length)


def affine(pixels: Tensor, maps: Tensor) -> Tensor:
    """Return the pixels (B, 3, H, W) seen through maps (B, 2, 3), in pixels from the middle."""
    height, width = pixels.shape[2:]
    x = torch.arange(width, device=pixels.device) + 0.5 - width / 2
    y = torch.arange(height, device=pixels.device) + 0.5 - height / 2
    coefficients = maps[:, :, :, None, None]
    x_in, y_in = (
        coefficients[:, axis, 0] * x
        + coefficients[:, axis, 1] * y[:, None]
        + coefficients[:, axis, 2]
        for axis in range(2)
    )
    columns = (x_in + (width / 2 - 0.5)).round().long()
    rows = (y_in + (height / 2 - 0.5)).round().long()
    return gather_places(pixels, rows, columns)


def shear_x(amount: Tensor, height: int) -> Tensor:
    """Return maps (B, 2, 3): x + amount (y - top)."""
    zero, ones = torch.zeros_like(amount), torch.ones_like(amount)
    return _affine_maps(ones, amount, amount * (height / 2), zero, ones, zero)


def shear_y(amount: Tensor, width: int) -> Tensor:
    """Return maps (B, 2, 3): y + amount (x - left)."""
    zero, ones = torch.zeros_like(amount), torch.ones_like(amount)
    return _affine_maps(ones, zero, zero, amount, ones, amount * (width / 2))


def translation(right: Tensor, down: Tensor) -> Tensor:
    """Return maps (B, 2, 3) that move the picture right and down by whole pixels."""
    zero, ones = torch.zeros_like(right), torch.ones_like(right)
    return _affine_maps(ones, zero, -right.trunc(), zero, ones, -down.trunc())


def rotation(degrees: Tensor) -> Tensor:
    """Return maps (B, 2, 3) that turn the picture about its middle, counter-clockwise."""
    cosine, sine = torch.deg2rad(degrees).cos(), torch.deg2rad(degrees).sin()
    zero = torch.zeros_like(cosine)
    return _affine_maps(cosine, -sine, zero, sine, cosine, zero)


def _affine_maps(*entries: Tensor) -> Tensor:
    return torch.stack(entries, dim=1).view(-1, 2, 3)


@dataclass(frozen=True)
class Windows:
    """Windows of a batch, before the sizes of the images are known; all (B,)."""

    area: Tensor
    log_shape: Tensor
    x: Tensor
    y: Tensor

    def boxes(self, aspect: float | Tensor = 1.0) -> Tensor:
        """Return (B, 4) left, top, right, bottom as shares of images of width / height."""
        wide = torch.exp(0.5 * self.log_shape) * (self.area / aspect).sqrt()
        high = torch.exp(-0.5 * self.log_shape) * (self.area * aspect).sqrt()
        wide, high = wide.clamp(max=1), high.clamp(max=1)
        left, top = self.x * (1 - wide), self.y * (1 - high)
        return torch.stack([left, top, left + wide, top + high], dim=1)

    def one(self, at: int) -> Window:
        """Return the window of one image, in plain numbers."""
        values = (self.area[at], self.log_shape[at], self.x[at], self.y[at])
        return Window(*(float(value) for value in values))


def draw_windows(draws: ImageDraws) -> Windows:
    """Return the windows of a batch."""
    area, log_shape = draws.uniform(*AREA), draws.uniform(*SHAPE)
    return Windows(area, log_shape, draws.uniform(), draws.uniform())


@dataclass(frozen=True)
class ResizedCrop(Augment):
    """A random window scaled to the whole image."""

    def __call__(self, pixels: Tensor, draws: ImageDraws) -> Tensor:
        return zoom(pixels, draw_windows(draws).boxes(pixels.shape[3] / pixels.shape[2]))


def zoom(pixels: Tensor, boxes: Tensor, side: int | None = None) -> Tensor:
    """Return each image's window, given as shares (B, 4), scaled to the image or to a square."""
    left, top, right, bottom = boxes.unbind(1)
    zero = torch.zeros_like(left)
    rows = [right - left, zero, left + right - 1, zero, bottom - top, top + bottom - 1]
    maps = torch.stack(rows, dim=1).view(-1, 2, 3)
    shape = pixels.shape if side is None else (*pixels.shape[:2], side, side)
    grid = affine_grid(maps, list(shape), align_corners=False)
    window = grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False)
    return window.round_().to(torch.uint8) if pixels.dtype == torch.uint8 else window


# Colour changes of a batch of uint8 pixels (B, 3, H, W), with an amount (B,) for each image.
#
# The four blends are ``factor * image + (1 - factor) * base``, cut to 0..255 and truncated, with
# base black, grey, mean grey or blurred; like torchvision's, value for value.


def blend(pixels: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """Return ``factor * pixels + (1 - factor) * base``; ``factor`` (B,) may exceed 1."""
    weight = factor[:, None, None, None]
    return (weight * pixels + (1 - weight) * base).clamp_(0, 255).to(torch.uint8)


def grey(pixels: Tensor) -> Tensor:
    """Return the brightness (B, 1, H, W), truncated to whole numbers."""
    red, green, blue = pixels.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[:, None]


def mean_grey(pixels: Tensor) -> Tensor:
    """Return the mean brightness (B, 1, 1, 1)."""
    return grey(pixels).float().mean(dim=(1, 2, 3), keepdim=True)


def blurred(pixels: Tensor) -> Tensor:
    """Return each inner pixel as the mean of its nine, itself counted five times; edges stay."""
    if min(pixels.shape[2:]) <= 2:
        return pixels
    kernel = torch.full((3, 1, 3, 3), 1 / 13, device=pixels.device)
    kernel[:, :, 1, 1] = 5 / 13
    result = pixels.clone()
    result[:, :, 1:-1, 1:-1] = conv2d(pixels.float(), kernel, groups=3).round_().to(torch.uint8)
    return result


def posterise(pixels: Tensor, bits: Tensor) -> Tensor:
    """Return the pixels with only the highest ``bits`` (B,) bits kept."""
    step = torch.exp2(8 - bits)[:, None, None, None].to(torch.uint8)
    return pixels // step * step


def solarise(pixels: Tensor, threshold: Tensor) -> Tensor:
    """Return the pixels with those at or above ``threshold`` (B,) turned into their negative."""
    return torch.where(pixels >= threshold[:, None, None, None], 255 - pixels, pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Return each channel stretched to 0..255; a channel of one value stays."""
    low = pixels.amin(dim=(2, 3), keepdim=True).float()
    high = pixels.amax(dim=(2, 3), keepdim=True).float()
    flat = low == high
    scale = torch.where(flat, 1.0, 255 / (high - low))
    return ((pixels - torch.where(flat, 0.0, low)) * scale).clamp_(0, 255).to(torch.uint8)


def equalise(pixels: Tensor) -> Tensor:
    """Return each channel with its histogram flattened."""
    values = pixels.flatten(2).long()  # (B, 3, H W)
    counts = torch.zeros((*values.shape[:2], 256), dtype=torch.int64, device=pixels.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    highest = values.amax(dim=2, keepdim=True)
    step = (values.shape[2] - counts.gather(2, highest)) // 255  # (B, 3, 1)
    below = counts.cumsum(2) - counts  # pixels darker than each value
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    table = torch.where(step == 0, torch.arange(256, device=pixels.device), table)
    return table.gather(2, values).to(torch.uint8).view(pixels.shape)


# TrivialAugment and RandAugment: one or more of fourteen operations, chosen for each image.
#
# TrivialAugment (Muller and Hutter 2021, "wide") takes one operation and any of 31 strengths;
# RandAugment (Cubuk et al. 2020) takes two, each at strength 9 of 30. Every operation is computed
# for the whole batch and kept where it was chosen, so nothing waits for the device.


OPERATIONS = [
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
]

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
        "colour": grey(moved),
        "contrast": mean_grey(moved),
        "sharpness": blurred(moved),
    }
    results = {name: blend(moved, base, 1 + amount) for name, base in bases.items()}
    results["posterise"] = posterise(moved, amount.trunc().clamp(1, 8))
    results["solarise"] = solarise(moved, amount)
    results["autocontrast"] = autocontrast(moved)
    results["equalise"] = equalise(moved)
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
