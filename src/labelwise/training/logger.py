"""Logger: what the records of a run's journal are told to."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite
from typing import Any

Record = Mapping[str, Any]


class Logger(ABC):
    """A place that is told every record of the journal, in order."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Pass on one record."""

    @abstractmethod
    def close(self, *, whole: bool) -> None:
        """End; ``whole`` says whether the training went to its end."""


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a record by name, without its step and what is undefined."""
    numbers = {name: float(value) for name, value in record.items() if value is not None}
    return {name: value for name, value in numbers.items() if name != "step" and isfinite(value)}
