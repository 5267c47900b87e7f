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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample
from torchvision.transforms.functional import autocontrast
from torchvision.transforms.v2.functional import adjust_sharpness, equalize

from labelwise.errors import SettingsError
from labelwise.learn.objectives.base import uniforms
from labelwise.pictures.transform import Window
from labelwise.types import nearest

AREA = (0.08, 1.0)  # of a random window, as a share of the image
SHAPE = (log(3 / 4), log(4 / 3))  # the log of its width / height


def mix(*numbers: int) -> int:
    """Return one 63-bit key of several numbers, far apart for neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


class ImageDraws:
    """Draws for the images at ``places`` (B,) of an epoch, on the device of ``places``.

    A number follows from key, place and draw alone: not from the batch an image travels in, the
    device, the number of processes, or where a run was resumed.
    """

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
        return self.uniform() < 0.5


# A random change of uint8 pixels (B, 3, H, W) that keeps their shape, on their device. All random
# numbers come from the draws, and no value is looked at on the host.
Augment = Callable[[Tensor, ImageDraws], Tensor]


def crop(
    pixels: Tensor, draws: ImageDraws, *, pad: int | None = 4, repeat_edge: bool = False
) -> Tensor:
    """Return a crop of the old size out of pixels padded by ``pad`` (None: side / 12) around."""
    reach = [side // 12 if pad is None else pad for side in pixels.shape[2:]]
    down, right = (draws.integers(-most, most + 1) for most in reach)
    return shift(pixels, down, right, repeat_edge)


def flip(pixels: Tensor, draws: ImageDraws) -> Tensor:
    """Return the images mirrored left to right half the time."""
    return torch.where(_each(draws.coin()), pixels.flip(3), pixels)


def turn(pixels: Tensor, draws: ImageDraws) -> Tensor:
    """Return one of the eight ways a square can lie: turned by quarters, mirrored half the time."""
    turned, mirrored, upside = (_each(draws.coin()) for _ in range(3))
    pixels = torch.where(turned, pixels.transpose(2, 3), pixels)
    pixels = torch.where(mirrored, pixels.flip(3), pixels)
    return torch.where(upside, pixels.flip(2), pixels)


def cutout(pixels: Tensor, draws: ImageDraws) -> Tensor:
    """Return a square of half the side set to zero; its centre is anywhere, it may overhang."""
    height, width = pixels.shape[2:]
    centre = draws.integers(0, height), draws.integers(0, width)
    return cut_out(pixels, *centre, min(height, width) // 2)


def _each(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def shift(pixels: Tensor, down: Tensor, right: Tensor, repeat_edge: bool = False) -> Tensor:
    """Return each image's window moved by (down, right); outside is zero or the nearest edge."""
    height, width = pixels.shape[2:]
    rows = torch.arange(height, device=pixels.device) + down[:, None]  # (B, H)
    columns = torch.arange(width, device=pixels.device) + right[:, None]  # (B, W)
    return gather_places(pixels, rows[:, :, None], columns[:, None, :], repeat_edge)


def cut_out(pixels: Tensor, centre_y: Tensor, centre_x: Tensor, length: int) -> Tensor:
    """Return the pixels with a square of ``length`` around each centre set to zero."""

    def covers(side: int, centre: Tensor) -> Tensor:
        places, start = torch.arange(side, device=centre.device), centre[:, None] - length // 2
        return (places >= start) & (places < start + length)

    rows, columns = covers(pixels.shape[2], centre_y), covers(pixels.shape[3], centre_x)
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
        return Window(*(float(each[at]) for each in (self.area, self.log_shape, self.x, self.y)))


def draw_windows(draws: ImageDraws) -> Windows:
    """Return the windows of a batch."""
    area, log_shape = draws.uniform(*AREA), draws.uniform(*SHAPE)
    return Windows(area, log_shape, draws.uniform(), draws.uniform())


def resized_crop(pixels: Tensor, draws: ImageDraws) -> Tensor:
    """Return a random window scaled to the whole image."""
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


# TrivialAugment (Muller and Hutter 2021, "wide") takes one of fourteen operations for each image,
# at any of 31 strengths; RandAugment (Cubuk et al. 2020) takes two, each at strength 9 of 30. Every
# operation is computed for the whole batch and kept where it was chosen, as torchvision does.

OPERATIONS = (
    *("identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness"),
    *("colour", "contrast", "sharpness", "posterise", "solarise", "autocontrast", "equalise"),
)
BINS = 31
# The largest shear, shifts to the right and down, angle and blend, and how many bits may go.
Ranges = tuple[float, float, float, float, float, int]


def apply(pixels: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    """Return each image after its own operation (B,), a place in OPERATIONS, at its amount (B,).

    The amount is the shear, the shift in pixels, the angle in degrees, the blend's factor less 1,
    the bits kept or the threshold, whichever the operation needs.
    """
    chosen = {name: operation == place for place, name in enumerate(OPERATIONS)}
    moved = affine(pixels, _maps(pixels, chosen, amount))
    red, green, blue = moved.unbind(1)
    grey = (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[:, None]
    bases = {
        "brightness": torch.zeros_like(moved),
        "colour": grey,
        "contrast": grey.float().mean(dim=(1, 2, 3), keepdim=True),
        "sharpness": adjust_sharpness(moved, 0.0),
    }
    factor = _each(1 + amount)
    results = {
        name: (factor * moved + (1 - factor) * base).clamp_(0, 255).to(torch.uint8)
        for name, base in bases.items()
    }
    step = _each(torch.exp2(8 - amount.trunc().clamp(1, 8))).to(torch.uint8)
    results["posterise"] = moved // step * step  # only the highest bits are kept
    results["solarise"] = torch.where(moved >= _each(amount), 255 - moved, moved)
    results["autocontrast"] = autocontrast(moved)
    results["equalise"] = equalize(moved)
    for name, result in results.items():
        moved = torch.where(_each(chosen[name]), result, moved)
    return moved


def affine(pixels: Tensor, maps: Tensor) -> Tensor:
    """Return the pixels (B, 3, H, W) seen through maps (B, 2, 3), in pixels from the middle.

    At output place (x, y) is the input at (a x + b y + c, d x + e y + f), by the nearest pixel,
    zero outside.
    """
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


def _maps(pixels: Tensor, chosen: dict[str, Tensor], amount: Tensor) -> Tensor:
    """Return the map (B, 2, 3) of each image; shears keep the upper left corner."""
    height, width = pixels.shape[2:]
    zero, one = torch.zeros_like(amount), torch.ones_like(amount)
    whole, angle = -amount.trunc(), torch.deg2rad(amount)
    moves = {
        "shear-x": (one, amount, amount * (height / 2), zero, one, zero),
        "shear-y": (one, zero, zero, amount, one, amount * (width / 2)),
        "translate-x": (one, zero, whole, zero, one, zero),
        "translate-y": (one, zero, zero, zero, one, whole),
        "rotate": (angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero),
    }
    maps = torch.stack((one, zero, zero, zero, one, zero), dim=1)
    for name, entries in moves.items():
        maps = torch.where(chosen[name][:, None], torch.stack(entries, dim=1), maps)
    return maps.view(-1, 2, 3)


def amounts(operation: Tensor, level: Tensor, sign: Tensor, largest: Ranges) -> Tensor:
    """Return the amount (B,) of each operation at strength ``level`` (B,), 0 to 30."""
    share = level / (BINS - 1)
    shear, right, down, degrees, factor, bits = largest
    amount = torch.zeros_like(share)
    for place, most in enumerate([shear, shear, right, down, degrees, *[factor] * 4], 1):
        amount = torch.where(operation == place, sign * share * most, amount)
    posterise = operation == OPERATIONS.index("posterise")
    amount = torch.where(posterise, 8 - (share * bits).round(), amount)
    return torch.where(operation == OPERATIONS.index("solarise"), 255 * (1 - share), amount)


TRIVIAL = (0.99, 32.0, 32.0, 135.0, 0.99, 6)


def rand_ranges(height: int, width: int) -> Ranges:
    """Return the largest amounts of RandAugment."""
    return 0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, 4


def trivial(pixels: Tensor, draws: ImageDraws) -> Tensor:
    """Return the images after one operation each, at any strength."""
    operation = draws.integers(0, len(OPERATIONS))
    level, sign = draws.integers(0, BINS).float(), 1.0 - 2.0 * draws.coin()
    return apply(pixels, operation, amounts(operation, level, sign, TRIVIAL))


def rand(pixels: Tensor, draws: ImageDraws) -> Tensor:
    """Return the images after two operations each, at strength 9 of 30."""
    ranges = rand_ranges(*pixels.shape[2:])
    for _ in range(2):
        operation = draws.integers(0, len(OPERATIONS))
        level = torch.full_like(operation, 9, dtype=torch.float32)
        amount = amounts(operation, level, 1.0 - 2.0 * draws.coin(), ranges)
        pixels = apply(pixels, operation, amount)
    return pixels


AUGMENTATIONS: dict[str, tuple[Augment, ...]] = {
    "crop-flip": (crop, flip),
    "cutout": (cutout,),
    "flip": (flip,),
    "none": (),
    "rand": (rand,),
    "resized-crop": (resized_crop, flip),
    "shift": (partial(crop, pad=None, repeat_edge=True),),
    "trivial": (trivial,),
    "turn": (turn,),
}
OF_COLOURS = ("rand", "trivial")


def make_augment(names: str) -> tuple[Augment, ...]:
    """Return the steps of names such as ``crop-flip+cutout``, in their order."""
    steps: tuple[Augment, ...] = ()
    for name in names.split("+"):
        if name not in AUGMENTATIONS:
            raise SettingsError(f"unknown augmentation {name!r}{nearest(name, AUGMENTATIONS)}")
        steps += AUGMENTATIONS[name]
    return steps


def require_any_bands(names: str) -> None:
    """Raise if an augmentation works on the colours of 8-bit RGB alone."""
    for name in names.split("+"):
        if name in OF_COLOURS:
            kept = ", ".join(sorted(set(AUGMENTATIONS) - {"none", *OF_COLOURS}))
            raise SettingsError(
                f"augment {name!r} changes 8-bit colours, and these pictures are bands; "
                f"take some of {kept}"
            )
