"""Raw: the numbers of a score file before anything is believed about them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError

__all__ = ["Raw"]


@dataclass(frozen=True)
class Raw:
    """Scores (N, K), labels (N, K) with NaN for unknown (or none in this file), names, ids."""

    source: str
    names: tuple[str, ...]
    ids: tuple[str, ...]
    scores: NDArray[np.float64] | None
    labels: NDArray[np.float64] | None
    split: tuple[str, ...] | None = None

    def row(self, number: int) -> str:
        """Return how an error names a row: counted from 1, the header not counted."""
        return f"{self.source}: row {number + 1} (id {self.ids[number]!r})"

    def check_names(self) -> None:
        """Raise unless there are rows and labels, with distinct names and ids."""
        if not self.ids:
            raise DataError(f"{self.source}: the table has no rows")
        if not self.names:
            raise DataError(f"{self.source}: the table has no labels")
        for what, values in (("label", self.names), ("id", self.ids)):
            seen: set[str] = set()
            for value in values:
                if value in seen:
                    raise DataError(f"{self.source}: {what} {value!r} stands there twice")
                seen.add(value)
