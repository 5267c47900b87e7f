"""Numbers that plain data brings: a link, a rule or a promise with a NaN answers "none" to all.

Whatever JSON or YAML held is walked once, and every number in it must be finite in float32, which
is how links keep theirs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["require_finite"]

LARGEST = float(np.finfo(np.float32).max)
DEEPEST = 32


def require_finite(value: Any, what: str) -> None:
    """Raise ValueError unless every number in plain data is finite; the error names its place.

    >>> require_finite({"slope": [1.0, float("nan")]}, "link")
    Traceback (most recent call last):
        ...
    ValueError: every number of the link must be finite, got nan at 'slope.1'
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        place, one = waiting.pop()
        if len(place) > DEEPEST:
            raise ValueError(f"the {what} must be at most {DEEPEST} levels deep")
        if isinstance(one, Mapping):
            waiting += [((*place, str(key)), child) for key, child in one.items()]
        elif isinstance(one, list | tuple):
            waiting += [((*place, str(key)), child) for key, child in enumerate(one)]
        elif isinstance(one, int | float) and not abs(one) <= LARGEST:
            got = one if isinstance(one, float) else f"an integer of {one.bit_length()} bits"
            where = f" at {'.'.join(place)!r}" if place else ""
            raise ValueError(f"every number of the {what} must be finite, got {got}{where}")
