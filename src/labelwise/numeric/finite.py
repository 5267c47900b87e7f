"""Numbers that plain data brings: a link, a rule or a promise with a NaN answers "none" to all.

Every number must be finite in float32, which is how links keep theirs; integers must be such that
arrays take them. A number that was written as text or as true would not be seen on that walk, so
what was made of the data is compared with it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
LARGEST_WHOLE = 2**53  # float64 holds all up to it; from 2**63 on arrays refuse them
DEEPEST = 32


def require_finite(value: Any, what: str) -> None:
    """Raise ValueError unless every number in plain data is finite; the error names its place.

    >>> require_finite({"slope": [1.0, float("nan")]}, "link")
    Traceback (most recent call last):
        ...
    ValueError: every number of the link must be finite, got nan at 'slope.1'
    """
    for path, leaf in _leaves(value):
        if len(path) > DEEPEST:
            raise ValueError(f"the {what} must be at most {DEEPEST} levels deep")
        if isinstance(leaf, float) and not abs(leaf) <= LARGEST:
            raise ValueError(f"every number of the {what} must be finite, got {leaf}{_at(path)}")
        if isinstance(leaf, int) and abs(leaf) > LARGEST_WHOLE:
            got = f"an integer of {leaf.bit_length()} bits{_at(path)}"
            raise ValueError(f"every whole number of the {what} must be at most 2^53, got {got}")


def require_numbers(value: Any, what: str) -> None:
    """Raise TypeError where plain data has text, true or false: each can be read as a number.

    >>> require_numbers([0.5, "1e999"], "value")
    Traceback (most recent call last):
        ...
    TypeError: value must be numbers, got '1e999'
    """
    for _, leaf in _leaves(value):
        if isinstance(leaf, bool | str):
            raise TypeError(f"{what} must be numbers, got {leaf!r:.60}")


def _leaves(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what plain data holds, each with its path, the last first; too deep, what is there."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, inner = waiting.pop()
        if isinstance(inner, Mapping | list | tuple) and len(path) <= DEEPEST:
            pairs = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
            waiting += [((*path, str(key)), child) for key, child in pairs]
        else:
            yield path, inner


def require_as_stated(made: Any, stated: Any, what: str) -> None:
    """Raise ValueError where a number or truth value was made of something else in plain data.

    >>> require_as_stated({"crop": float("inf")}, {"crop": "1e999"}, "transform")
    Traceback (most recent call last):
        ...
    ValueError: the transform must have a number, got '1e999' at 'crop'
    """
    waiting: list[tuple[tuple[str, ...], Any, Any]] = [((), made, stated)]
    while waiting:
        path, value, given = waiting.pop()
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            waiting += [((*path, key), value[key], given[key]) for key in value if key in given]
        elif isinstance(value, list | tuple):
            many = given if isinstance(given, list | tuple) else [given] * len(value)
            pairs = enumerate(zip(value, many, strict=False))
            waiting += [((*path, str(key)), *pair) for key, pair in pairs]
        elif isinstance(value, bool | int | float) and _kind(value) != _kind(given):
            got = f"{given!r:.60}{_at(path)}"
            raise ValueError(f"the {what} must have {_kind(value)}, got {got}")


def _at(place: tuple[str, ...]) -> str:
    return f" at {'.'.join(place)!r}" if place else ""


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else "something else"
