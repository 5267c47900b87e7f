"""Rule: a map from probabilities (N, K) to label sets, a boolean mask (N, K).

    TopK(k)           the k most probable labels of each image; ties go to the lower column
    Threshold(t)      p >= t, with one t, or one for each label

A rule is frozen and describes itself in plain data (``spec``), so that it is saved with a model.
A threshold of ``NEVER`` lies above every probability.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

__all__ = ["NEVER", "Array", "Rule", "Threshold", "TopK"]

Array = TypeVar("Array", np.ndarray, Tensor)

NEVER = 2.0


class Rule(ABC):
    """A map from probabilities to label sets; subclasses are frozen dataclasses."""

    kind: ClassVar[str]

    @abstractmethod
    def __call__(self, probs: Array) -> Array:
        """Return the (N, K) boolean mask of chosen labels, of the same array type as ``probs``."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain data."""


@dataclass(frozen=True)
class TopK(Rule):
    """The ``k`` most probable labels of each image; equal probabilities go to the lower column."""

    k: int
    kind: ClassVar[str] = "top-k"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")

    def __call__(self, probs: Array) -> Array:
        k = min(self.k, probs.shape[-1])
        if isinstance(probs, Tensor):
            best = probs.argsort(dim=-1, descending=True, stable=True)[..., :k]
            return torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, best, True)
        order = np.argsort(-probs, axis=-1, kind="stable")[..., :k]
        sets = np.zeros(probs.shape, dtype=bool)
        np.put_along_axis(sets, order, True, axis=-1)
        return sets

    def spec(self) -> dict[str, Any]:
        return {"k": self.k}


@dataclass(frozen=True)
class Threshold(Rule):
    """The labels with ``p >= value``; ``value`` is one number, or one for each label."""

    value: float | tuple[float, ...]
    kind: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        numbers = np.asarray(self.value, dtype=np.float64)
        if numbers.ndim > 1 or np.isnan(numbers).any():
            raise ValueError(f"thresholds must be one number or one a label, got {self.value}")
        value = tuple(numbers.tolist()) if numbers.ndim else float(numbers)
        object.__setattr__(self, "value", value)

    def __call__(self, probs: Array) -> Array:
        # Compared in float64, where every float32 probability is itself.
        value = np.atleast_1d(np.asarray(self.value, dtype=np.float64))
        if value.size not in (1, probs.shape[-1]):
            raise ValueError(
                f"probs must have one column for each of the {value.size} thresholds, "
                f"got shape {tuple(probs.shape)}"
            )
        if isinstance(probs, Tensor):
            return probs >= torch.from_numpy(value).to(probs.device)
        return probs >= value

    def spec(self) -> dict[str, Any]:
        return {"value": list(self.value) if isinstance(self.value, tuple) else self.value}
