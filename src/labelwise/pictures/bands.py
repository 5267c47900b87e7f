"""Bands: what a picture that is not 8-bit RGB holds, and how it is shown.

A model of bands keeps their names, the order its network takes them in, and each one's mean and
deviation in training (in its transform); so whoever scores a picture reads the same bands at the
same depth. Values are those of the file, in float32: of a DICOM the modality's, after its rescale.

    shown level = 255 (value - (mean - 2 std)) / (4 std), cut to 0..255

of three bands, or of one as grey: the *composite*, which people look at and no network sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import SettingsError

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
            raise ValueError(
                f"bands must be 1 to {MOST_BANDS} different names, got {', '.join(self.names)!r}"
            )
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
        center, width = (float(part) for part in text.split(","))
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
    chosen = tuple(found or ()) if names == ALL else _split(names)
    if composite is not None:
        shown = _split(composite)
    else:
        rgb = ("red", "green", "blue")
        shown = rgb if set(rgb) <= set(chosen) else chosen[:1]
    try:
        return Bands(chosen, shown, window)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def shown_levels(
    values: NDArray[Any], bands: Bands, mean: Sequence[float], std: Sequence[float]
) -> NDArray[np.uint8]:
    """Return the composite (H, W, 3) of values (H, W, bands); where there is no value, black."""
    places = bands.shown
    middle = np.asarray(mean, np.float32)[places]
    spread = np.asarray(std, np.float32)[places]
    levels = (values[:, :, places] - middle) * (255 / (2 * SPREAD) / spread) + 255 / 2
    return np.nan_to_num(levels, nan=0.0).clip(0, 255).round().astype(np.uint8)
