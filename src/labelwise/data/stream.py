"""Stream: a tabular file as a header and Arrow batches, whatever its format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Stream"]


def _no_names(header: str) -> list[str] | None:
    return None


@dataclass(frozen=True)
class Stream:
    """``batches(headers)`` yields record batches of these columns.

    ``class_names(header)`` gives the names a file states for a column's classes, or None;
    ``meanings`` are the columns whose meaning it states, such as {"labels": "label"}; a
    ``text_only`` format cannot hold the bytes of images.
    """

    header: Sequence[str]
    batches: Callable[[list[str]], Iterator[Any]]
    class_names: Callable[[str], list[str] | None] = _no_names
    meanings: Mapping[str, str] = field(default_factory=dict)
    text_only: bool = False
