"""Vocabulary: label names to numbers, while a table is being read."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.types import LabelSpace, nearest

__all__ = ["Vocabulary"]


class Vocabulary:
    """Numbers names as they come; if the names were given beforehand, any other is an error."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.closed = names is not None
        self._space = LabelSpace(tuple(names or ()))
        self._numbers = {name: number for number, name in enumerate(self._space.names)}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def number(self, name: str, where: str) -> int:
        """Return the number of a name; ``where`` goes before the error."""
        if name not in self._numbers:
            if self.closed:
                raise DataError(f"{where}: unknown label {name!r}{nearest(name, self._numbers)}")
            self._numbers[name] = len(self._numbers)
        return self._numbers[name]

    def finish(self) -> tuple[LabelSpace, NDArray[np.int32]]:
        """Return the space (as given, else sorted by name), and each number's column in it."""
        if self.closed:
            return self._space, np.arange(len(self), dtype=np.int32)
        names = sorted(self._numbers)
        columns = np.empty(len(names), np.int32)
        columns[[self._numbers[name] for name in names]] = np.arange(len(names))
        return LabelSpace(tuple(names)), columns
