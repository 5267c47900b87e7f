"""The bands of a run: which its pictures hold, and the scale of each in the training split.

    mean_b = sum of values / n        std_b = sqrt(sum of squares / n - mean_b^2)

over all pixels with data of up to 1,024 training pictures, spread evenly over the split. They are
summed about the first picture's mean, so that large offsets cost no digits.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable
from labelwise.errors import DataError, ImageError
from labelwise.pictures import ImageSource
from labelwise.pictures.bands import ALL, Bands, BandScale, named_bands
from labelwise.training.settings import Settings

LOOKED_AT = 1024

Moments = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]


def bands_of(bands: str, settings: Settings, images: ImageSource) -> Bands:
    """Return the bands that a run was told of; ``all`` are those of its first picture."""
    window = settings.window or "none"
    found = images.cube(0, window).found_names if bands == ALL and len(images) else None
    return named_bands(bands, settings.composite, window, found)


def scale_of(named: str, settings: Settings, table: LabelTable) -> BandScale:
    """Return the ``named`` bands of a run with their means and deviations in its training split."""
    train = table.splits().get("train", table)
    bands = bands_of(named, settings, train.images)
    if not len(train):
        raise DataError(f"{table.name} has no training pictures to take the scale of bands from")
    rows = np.unique(np.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).astype(int))
    offset = np.nan_to_num(_mean(train.images.read_bands(int(rows[0]), bands)))

    def moments(row: int) -> Moments | None:
        try:
            values = train.images.read_bands(row, bands).reshape(-1, len(bands)).astype(np.float64)
        except ImageError:  # whoever reads it next says so
            return None
        known = ~np.isnan(values)
        values = np.where(known, values - offset, 0.0)
        return values.sum(0), np.square(values).sum(0), known.sum(0)

    with ThreadPoolExecutor(settings.hardware.workers or None) as pool:
        parts = [one for one in pool.map(moments, rows.tolist()) if one is not None]
    total, squares, count = (np.sum([part[at] for part in parts], axis=0) for at in range(3))
    for name, known in zip(bands.names, count, strict=True):
        if not known:
            raise DataError(f"band {name!r} has no data in the training pictures; leave it out")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    for name, spread, middle in zip(bands.names, std, mean + offset, strict=True):
        if not spread > 1e-6 * max(abs(float(middle)), 1e-30):
            raise DataError(
                f"band {name!r} is {middle:g} in every training picture; leave it out of --bands"
            )
    return BandScale(bands, tuple(map(float, mean + offset)), tuple(map(float, std)))


def _mean(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of each band where it has data, NaN where it has none."""
    known = ~np.isnan(values)
    count = known.sum((0, 1))
    total = np.where(known, values, 0.0).sum((0, 1), dtype=np.float64)
    mean: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
