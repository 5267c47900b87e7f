"""Transform: how a picture of any size becomes the input of a backbone.

crop = c     the shorter side becomes floor(size / c), then the middle size x size is cut out
crop = None  the whole picture is squashed into size x size, so that nothing is cut off
input        (pixels / 255 - mean) / std
bands        (values - mean) / std, mean and deviation of each band in its own units

With ``reduced_jpeg`` a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, as long as both sides
stay as long as the scaled ones. A thin picture is made shorter before it is scaled, so that no
picture takes much memory. Bands are float32, scaled by torch's interpolation with antialiasing,
after pixels without data were given the band's mean, so that they become 0.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, exp, floor, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.base.arrays import Values, require_finite
from labelwise.errors import SettingsError

# The *composite* of three bands, or of one as grey, is for people:
#
#     shown level = 255 (value - (mean - 2 std)) / (4 std), cut to 0..255

Floats = NDArray[np.float32]
ALL = "all"
MOST_BANDS = 1024
SPREAD = 2.0  # deviations on each side of the mean that are told apart when shown


@dataclass(frozen=True)
class Bands:
    """The names of bands in the order a network takes them, and the one or three that are shown.

    ``window`` is for DICOM: ``none`` takes the modality's values, ``file`` the share of the first
    window of each file, ``CENTER,WIDTH`` the share of this one.
    """

    names: tuple[str, ...]
    composite: tuple[str, ...]
    window: str = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # JSON brings lists back
        object.__setattr__(self, "composite", tuple(self.composite))
        if not 1 <= len(self.names) <= MOST_BANDS or len(set(self.names)) < len(self.names):
            raise ValueError(f"bands must be 1 to {MOST_BANDS} different names, got {self.names}")
        if len(self.composite) not in (1, 3) or not set(self.composite) <= set(self.names):
            raise ValueError(
                f"composite must be one or three of the bands {', '.join(self.names)}, got "
                f"{', '.join(self.composite)!r}"
            )
        parse_window(self.window)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shown(self) -> list[int]:
        """The places of the bands that are shown, three of them."""
        places = [self.names.index(name) for name in self.composite]
        return places if len(places) == 3 else places * 3


@dataclass(frozen=True)
class BandScale:
    """Bands with the mean and the deviation of each in training, in its own units."""

    bands: Bands
    mean: tuple[float, ...]
    std: tuple[float, ...]


def parse_window(text: str) -> tuple[float, float] | None:
    """Return the center and width of a window, None for ``none`` and ``file``."""
    if text in ("none", "file"):
        return None
    try:
        center, width = (float(number) for number in text.split(","))
    except ValueError:
        center = width = float("nan")
    if not (np.isfinite(center) and 0 < width < float("inf")):
        raise ValueError(f"window must be none, file or CENTER,WIDTH with WIDTH > 0, got {text!r}")
    return center, width


def named_bands(
    names: str, composite: str | None, window: str, found: Sequence[str] | None
) -> Bands:
    """Return the bands that a person named, or all that were ``found`` in a first picture.

    Shown are the three of ``composite``, otherwise red, green and blue where they are called so,
    else the first.
    """

    def split(text: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in text.split(",") if name.strip())

    chosen, rgb = tuple(found or ()) if names == ALL else split(names), ("red", "green", "blue")
    usual = rgb if set(rgb) <= set(chosen) else chosen[:1]
    try:
        return Bands(chosen, usual if composite is None else split(composite), window)
    except ValueError as error:
        raise SettingsError(str(error)) from None


class Window(NamedTuple):
    """A share ``area`` of a picture, of shape exp(``log_shape``) = width / height.

    ``x`` and ``y``, in [0, 1], say where it lies between the edges. A side longer than the
    picture is cut to it.
    """

    area: float
    log_shape: float
    x: float
    y: float

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in the pixels of a picture."""
        stretch = exp(0.5 * self.log_shape)
        wide = min(1.0, stretch * sqrt(self.area * height / width)) * width
        high = min(1.0, sqrt(self.area * width / height) / stretch) * height
        left, top = self.x * (width - wide), self.y * (height - high)
        return left, top, min(left + wide, width), min(top + high, height)

    def at_least(self, side: int) -> int:
        return ceil(side / (0.75 * sqrt(self.area)))


if TYPE_CHECKING:
    import torch
    from torch import Tensor

Axis = tuple[int, int, int, int]  # length, length it is scaled to, first output kept, outputs kept

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)

MAX_SIZE = 8192  # of the input's side
THIN = 16  # a picture's sides may differ so many times before its ends are cut off
MAX_SCALED = 1 << 26  # pixels while a picture is scaled

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")


@dataclass(frozen=True)
class Transform:
    """Size, crop and normalisation of a backbone's input; ``resize`` then ``normalise``."""

    size: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bilinear"
    crop: float | None = None
    reduced_jpeg: bool = False
    bands: Bands | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))  # JSON brings lists back
        object.__setattr__(self, "std", tuple(self.std))
        if isinstance(self.bands, dict):
            object.__setattr__(self, "bands", Bands(**self.bands))
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"size must lie between 1 and {MAX_SIZE}, got {self.size}")
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise ValueError(f"interpolation must be one of {known}, got {self.interpolation!r}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError(f"crop must lie in (0, 1] or be None, got {self.crop}")
        if {len(self.mean), len(self.std)} != {self.channels} or min(self.std) <= 0:
            needed = "three numbers" if self.bands is None else "one number per band"
            got = f"{self.mean} and {self.std}"
            raise ValueError(f"mean and std must be {needed}, std positive, got {got}")
        if self.bands is not None and (self.reduced_jpeg or self.interpolation == "lanczos"):
            raise ValueError("bands are neither decoded at a reduced scale nor scaled by lanczos")
        require_finite(asdict(self), "transform")

    @staticmethod
    def of_recipe(recipe: Any, size: int | None = None) -> "Transform":
        """Return the transform of torchvision's recipe for a model, for inputs of another size."""
        side, scale = recipe.crop_size[0], (tuple(recipe.mean), tuple(recipe.std))
        share = side / recipe.resize_size[0]
        return Transform(size or side, *scale, recipe.interpolation.value, share)

    def spec(self) -> dict[str, object]:
        """Return the fields as plain data; ``Transform(**spec)`` is the same transform."""
        fields = asdict(self)
        if self.bands is None:  # as versions wrote it that know no bands
            del fields["bands"]
        return fields

    def with_bands(self, scale: BandScale) -> "Transform":
        return replace(self, bands=scale.bands, mean=scale.mean, std=scale.std)

    @property
    def band_scale(self) -> BandScale | None:
        """The bands with their means and deviations; None: the input is 8-bit RGB."""
        return None if self.bands is None else BandScale(self.bands, self.mean, self.std)

    @cached_property
    def channels(self) -> int:
        """How many numbers the input has at a place: three of RGB, or one per band."""
        return 3 if self.bands is None else len(self.bands)

    @property
    def dtype(self) -> "torch.dtype":
        import torch

        return torch.uint8 if self.bands is None else torch.float32

    @cached_property
    def resampling(self) -> Image.Resampling:
        return Image.Resampling[self.interpolation.upper()]

    @property
    def scaled_side(self) -> int:
        return self.scale_size(1, 1)[0]

    def at_least(self, window: Window | None = None) -> int | None:
        """Return the side that a JPEG must not be decoded below; None: at full scale."""
        if not self.reduced_jpeg:
            return None
        return self.scaled_side if window is None else window.at_least(self.size)

    def scale_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) a picture is resized to before the centre crop."""
        if self.crop is None:
            return self.size, self.size
        short = floor(self.size / self.crop)
        if width <= height:
            return short, max(short, int(short * height / width))
        return max(short, int(short * width / height)), short

    def resize(self, image: Image.Image) -> Image.Image:
        """Return the (size, size) RGB picture: scaled, then the middle cut out."""
        if image.mode != "RGB":
            raise ValueError(f"a picture must be RGB, got {image.mode}")
        width, height = image.size
        if self.crop is None:  # Pillow scales rows first: size x height pixels in between
            factor = ceil(self.size * height / MAX_SCALED)
            image = image.reduce((1, factor)) if factor > 1 else image
            whole = (self.size, self.size)
            return image if image.size == whole else image.resize(whole, self.resampling)
        left, top = _thin_ends(width, height)
        if left or top:
            image = image.crop((left, top, width - left, height - top))
        (_, tall, top, size), (_, wide, left, _) = self._axes(*image.size)
        if image.size != (wide, tall):
            image = image.resize((wide, tall), self.resampling)
        return image.crop((left, top, left + size, top + size))

    def resize_window(self, image: Image.Image, window: Window) -> Image.Image:
        return image.resize((self.size, self.size), self.resampling, window.box(*image.size))

    def resize_bands(self, values: Values, window: Window | None = None) -> Floats:
        """Return the (size, size, bands) input of bands (H, W, bands), or of a window of them."""
        height, width = values.shape[:2]
        if window is not None:
            left, top, right, bottom = window.box(width, height)
            rows = slice(floor(top), max(ceil(bottom), floor(top) + 1))
            columns = slice(floor(left), max(ceil(right), floor(left) + 1))
            return self._interpolated(self._filled(values[rows, columns]), self.size, self.size)
        if self.crop is not None:
            left, top = _thin_ends(width, height)
            values = values[top : height - top, left : width - left]
            height, width = values.shape[:2]
        (_, tall, top, size), (_, wide, left, _) = self._axes(width, height)
        scaled = self._interpolated(self._filled(values), tall, wide)
        return scaled[top : top + size, left : left + size]

    def _filled(self, values: Values) -> Floats:
        """Return values as float32, with a band's mean where it has no data."""
        levels = np.ascontiguousarray(values, np.float32)
        gaps = np.isnan(levels) if values.dtype.kind == "f" else None
        if gaps is None or not gaps.any():
            return levels
        return np.where(gaps, np.asarray(self.mean, np.float32), levels)

    def _interpolated(self, values: Floats, tall: int, wide: int) -> Floats:
        if values.shape[:2] == (tall, wide):
            return values
        import torch

        planes = torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))
        return np.asarray(self._scaled_planes(planes, tall, wide).permute(1, 2, 0).numpy())

    def composite(self, values: Values) -> Image.Image:
        if self.bands is None:
            raise ValueError("a picture in RGB is its own composite")
        places = self.bands.shown
        middle, spread = (np.asarray(of, np.float32)[places] for of in (self.mean, self.std))
        levels = (values[:, :, places] - middle) * (255 / (2 * SPREAD) / spread) + 255 / 2
        levels = np.nan_to_num(levels, nan=0.0)  # black where there is no value
        return Image.fromarray(levels.clip(0, 255).round().astype(np.uint8))

    def _axes(self, width: int, height: int) -> tuple[Axis, Axis]:
        """Return how the rows and the columns of a picture are scaled, and which are kept."""
        wide, tall = self.scale_size(width, height)
        left, top = round((wide - self.size) / 2), round((tall - self.size) / 2)
        return (height, tall, top, self.size), (width, wide, left, self.size)

    @property
    def resizes_planes(self) -> bool:
        """Whether :meth:`resize_planes` can scale pictures as this transform asks."""
        return self.bands is None and self.interpolation in ("bilinear", "bicubic")

    def resize_planes(self, planes: "Tensor") -> "Tensor":
        """Return uint8 planes (3, H, W) scaled by torch on their device, then the middle cut out.

        Levels differ from those of :meth:`resize` by rounding.
        """
        height, width = planes.shape[-2:]
        if self.crop is not None:
            left, top = _thin_ends(width, height)
            planes = planes[:, top : height - top, left : width - left]
        (_, tall, top, size), (_, wide, left, _) = self._axes(planes.shape[-1], planes.shape[-2])
        if planes.shape[-2:] != (tall, wide):
            scaled = self._scaled_planes(planes.float(), tall, wide)
            planes = scaled.round().clamp(0, 255).to(planes.dtype)
        return planes[:, top : top + size, left : left + size]

    def _scaled_planes(self, planes: "Tensor", tall: int, wide: int) -> "Tensor":
        from torch.nn.functional import interpolate

        nearest = self.interpolation == "nearest"
        mode = "nearest-exact" if nearest else self.interpolation
        return interpolate(planes[None], (tall, wide), mode=mode, antialias=not nearest)[0]

    def pixels(self, image: Image.Image) -> "Tensor":
        import torch

        return torch.from_numpy(np.array(self.resize(image))).permute(2, 0, 1)

    def statistics(self, device: "torch.device | str" = "cpu") -> "tuple[Tensor, Tensor]":
        """Return mean and std of pixels from 0 to 255, or of bands, each (C, 1, 1), on a device."""
        import torch

        return _on_device(self, torch.device(device))

    def normalised(self, pixels: Values) -> Floats:
        """Return the float32 input (B, C, H, W) of uint8 pixels or of bands, as an array."""
        mean, std = self.mean_and_std
        return np.asarray((pixels - mean) / std)

    @cached_property
    def mean_and_std(self) -> tuple[Floats, Floats]:
        """Mean and std of pixels from 0 to 255, or of bands, each (C, 1, 1)."""
        most = np.float32(255 if self.bands is None else 1)
        both = most * np.array([self.mean, self.std], np.float32)[:, :, None, None]
        return both[0], both[1]

    def normalise(self, pixels: "Tensor") -> "Tensor":
        """Return the float32 input (B, C, H, W) of uint8 pixels or of bands, on their device."""
        mean, std = self.statistics(pixels.device)
        return (pixels - mean) / std

    def inputs(self, values: "Tensor") -> "Tensor":
        """Return what a backbone takes: uint8 pixels and bands normalised, features as they are."""
        import torch

        is_raw = values.dtype == torch.uint8 or self.bands is not None
        return self.normalise(values) if is_raw else values

    def __call__(self, image: Image.Image) -> "Tensor":
        return self.normalise(self.pixels(image))


def _thin_ends(width: int, height: int) -> tuple[int, int]:
    """Return how much of a very thin picture is cut off at each end: (columns, rows)."""
    longest = THIN * min(width, height)
    return max(0, (width - longest) // 2), max(0, (height - longest) // 2)


@lru_cache(maxsize=32)  # a copy to a GPU is waited for
def _on_device(transform: Transform, device: "torch.device") -> "tuple[Tensor, Tensor]":
    import torch

    with torch.inference_mode(False):
        mean, std = (torch.from_numpy(side).to(device) for side in transform.mean_and_std)
        return mean, std
