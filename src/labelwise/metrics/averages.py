"""Averaged: one number over labels or images, and what it was taken over.

A label without positives has no average precision; an image without labels has none either. Such
items are NaN, are left out of the mean, and are counted and named. Undefined is not zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.inputs import By

__all__ = ["Averaged"]


@dataclass(frozen=True)
class Averaged:
    """The mean over the defined ``items`` of a metric; NaN if there are none.

    Attributes:
        value: Mean over the defined items.
        items: One value a label or image, NaN where undefined.
        by: What an item is.
    """

    value: float
    items: NDArray[np.float64]
    by: By

    @classmethod
    def over(cls, items: NDArray[np.float64], by: By) -> "Averaged":
        """Return the average over the items that are not NaN."""
        defined = items[~np.isnan(items)]
        return cls(float(defined.mean()) if defined.size else float("nan"), items, by)

    @property
    def undefined(self) -> NDArray[np.intp]:
        """The indices of the items that were left out."""
        return np.flatnonzero(np.isnan(self.items))

    @property
    def num_defined(self) -> int:
        """How many items the mean is over."""
        return len(self.items) - len(self.undefined)

    def undefined_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the items that were left out."""
        if len(names) != len(self.items):
            raise ValueError(f"names must be {len(self.items)}, got {len(names)}")
        return [names[index] for index in self.undefined]
