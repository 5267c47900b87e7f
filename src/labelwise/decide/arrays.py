"""Probabilities, labels and mask, read once for everything that fits or tests a rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from labelwise.base.arrays import (
    Array,
    Floats,
    Mask,
    Numbers,
    Values,
    as_mask,
    check_shapes,
    present_labels,
    to_numpy,
)

Scope = Literal["shared", "label"]


def check_scope(scope: str) -> None:
    """Raise unless thresholds are shared by all labels or each label's own."""
    if scope not in ("shared", "label"):
        raise ValueError(f"scope must be 'shared' or 'label', got {scope!r}")


@dataclass(frozen=True)
class Answers:
    """Probabilities (N, K), and which labels are present and absent; both are False if unknown."""

    probs: Floats
    present: Mask
    absent: Mask

    def __getitem__(self, index: Values | tuple[slice, slice | list[int]]) -> "Answers":
        return Answers(self.probs[index], self.present[index], self.absent[index])

    @property
    def known(self) -> Mask:
        return self.present | self.absent

    @property
    def judged(self) -> Mask:
        """Which images (N,) have a known label."""
        return np.asarray(self.known.any(1))

    def labels(self) -> Iterator["Answers"]:
        return (self[:, k : k + 1] for k in range(self.probs.shape[1]))

    def f1(self, sets: Mask) -> Numbers:
        """Return the F1 (N,) of each image's set over its known labels; 1 if both are empty."""
        chosen = sets & self.known
        both = 2.0 * (chosen & self.present).sum(1)
        size = chosen.sum(1) + self.present.sum(1)
        return np.where(size > 0, both / np.maximum(size, 1), 1.0)


def read_answers(probs: Array, labels: Array, observed: Array | None) -> Answers:
    """Check the arrays and return them."""
    answers, truth = to_numpy(probs), to_numpy(labels)
    seen = None if observed is None else as_mask(to_numpy(observed), "observed")
    check_shapes(probs=answers, labels=truth, observed=seen)
    present = present_labels(truth, seen)
    absent = ~present if seen is None else seen & ~present
    if np.isnan(answers).any() and np.isnan(answers[present | absent]).any():
        raise ValueError("probs must not be NaN where observed, got NaN")
    return Answers(answers, present, absent)
