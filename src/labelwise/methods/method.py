"""Method: a named way to train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from labelwise.objectives import Objective

__all__ = ["Method"]

Honesty = Literal["proper", "improper", "ranking only"]


@dataclass(frozen=True)
class Method:
    """A named way to train: how its objective is made, which head it needs, what it promises.

    ``make(facts, **options)`` returns the objective; ``options`` are all its knobs with their
    defaults.
    """

    make: Callable[..., Objective]
    probabilities: Honesty
    sentence: str
    source: str
    head: str = "linear"
    options: Mapping[str, Any] = field(default_factory=dict)
