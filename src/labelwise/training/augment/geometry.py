"""Changes of place: crops, mirror images, squares cut out, affine maps, random resized crops.

An affine map shows at output place (x, y) the input at (a x + b y + c, d x + e y + f), both
measured from the middle of the image, by the nearest pixel, zero outside. Shears keep the upper
left corner, as torchvision's augmentations do.

A random resized crop is a window of random area and shape, scaled to the size of the input:

    area share ~ U(0.08, 1) of the image        log(width / height) ~ U(log 3/4, log 4/3)

A side longer than the image is cut to it (torchvision draws again instead); the place is uniform.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from labelwise.pictures.window import Window
from labelwise.training.augment.base import Augment, ImageDraws

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
    found = pixels.permute(0, 2, 3, 1)[image, inside_rows, inside_columns]
    if not repeat_edge:
        outside = (rows != inside_rows) | (columns != inside_columns)
        found = found.masked_fill(outside[..., None], 0)
    return found.permute(0, 3, 1, 2)


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
    zero, one = torch.zeros_like(amount), torch.ones_like(amount)
    return _affine_maps(one, amount, amount * (height / 2), zero, one, zero)


def shear_y(amount: Tensor, width: int) -> Tensor:
    """Return maps (B, 2, 3): y + amount (x - left)."""
    zero, one = torch.zeros_like(amount), torch.ones_like(amount)
    return _affine_maps(one, zero, zero, amount, one, amount * (width / 2))


def translation(right: Tensor, down: Tensor) -> Tensor:
    """Return maps (B, 2, 3) that move the picture right and down by whole pixels."""
    zero, one = torch.zeros_like(right), torch.ones_like(right)
    return _affine_maps(one, zero, -right.trunc(), zero, one, -down.trunc())


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
