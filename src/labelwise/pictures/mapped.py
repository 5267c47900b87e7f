"""Features that are larger than memory: rows of mapped files, scaled when they are asked for.

A :class:`MappedFeatures` stands where an array (N, D) or (N, D, h, w) of float32 would: it has its
shape, and indexing gives arrays. Parts are files of the same number of rows, the last may be short.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1 << 26  # numbers

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class MappedFeatures:
    """Some rows (None: all) of mapped parts, as ``(features - mean) / scale`` where that is given.

    ``mean`` and ``scale`` have the shape of one row, or one that it can be spread to.
    """

    parts: Sequence[Floats]
    rows: NDArray[np.int64] | None = None
    mean: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that this stands for."""
        count = sum(map(len, self.parts)) if self.rows is None else len(self.rows)
        return (count, *self.parts[0].shape[1:])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that all of it would take."""
        return 4 * int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Floats:
        """Return one row, or an array of those of a slice, of numbers or of a mask."""
        chosen = np.arange(len(self))[index] if self.rows is None else self.rows[index]
        wanted = np.atleast_1d(chosen)
        values = np.empty((len(wanted), *self.shape[1:]), np.float32)
        part, inside = np.divmod(wanted, len(self.parts[0]))
        for number in np.unique(part).tolist():
            own = part == number
            values[own] = self.parts[number][inside[own]]
        if self.mean is not None and self.scale is not None:
            values = ((values - self.mean) / self.scale).astype(np.float32)
        return values[0] if np.ndim(chosen) == 0 else values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all of it, in memory."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def take(self, rows: NDArray[np.int64]) -> "MappedFeatures":
        """Return some rows, none of which is read."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


Features = Floats | MappedFeatures


def _chunks(features: Features) -> list[slice]:
    """Return slices of rows of at most ``AT_ONCE`` numbers."""
    each = max(1, AT_ONCE // max(1, int(np.prod(features.shape[1:]))))
    return [slice(first, first + each) for first in range(0, len(features), each)]


def moments_of(features: Features) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the standard deviation (D,) of features over rows and places."""
    places = (0, 2, 3) if features.ndim == 4 else (0,)
    if not isinstance(features, MappedFeatures):
        mean = features.mean(axis=places, dtype=np.float64)
        return mean, features.std(axis=places, dtype=np.float64)
    count = features.nbytes // 4 // features.shape[1]
    parts = _chunks(features)
    mean = sum(features[part].sum(axis=places, dtype=np.float64) for part in parts) / count
    shape = (-1, 1, 1) if features.ndim == 4 else (-1,)
    squares = sum(
        np.square(features[part] - mean.reshape(shape)).sum(axis=places) for part in parts
    )
    return mean, np.sqrt(squares / count)


def scaled(features: Features, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Features:
    """Return ``(features - mean) / scale`` of each of D features; of mapped ones, none is read."""
    shape = (-1, 1, 1) if features.ndim == 4 else (-1,)
    mean, scale = mean.reshape(shape), scale.reshape(shape)
    if isinstance(features, MappedFeatures):
        return replace(features, mean=mean, scale=scale)
    values = np.empty(features.shape, np.float32)
    for part in _chunks(features):
        values[part] = (features[part] - mean) / scale
    return values
