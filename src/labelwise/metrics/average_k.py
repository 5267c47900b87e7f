"""Average-K accuracy: sets may differ in size, K labels on average.

    accuracy = mean over images of the share of its present labels that are in the set

which for images with one label is 1{label in set}. Long-tailed problems show it by how often a
class occurs in training: few < 20 <= medium <= 100 < many, each the mean over its classes; classes
absent from the test images are left out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.averages import Averaged
from labelwise.metrics.inputs import Array, host
from labelwise.metrics.sets import confusion, set_sizes

__all__ = ["AverageK", "average_k_accuracy", "by_shot", "shot_groups"]

SHOTS = ("few", "medium", "many")


@dataclass(frozen=True)
class AverageK:
    """Accuracy over images and over labels, and the mean set size it was reached with."""

    per_image: Averaged
    per_label: Averaged
    mean_size: float


def average_k_accuracy(sets: Array, labels: Array, observed: Array | None = None) -> AverageK:
    """Return the accuracy of sets (N, K) bool, over images and over labels."""
    return AverageK(
        confusion(sets, labels, observed, by="image").recall(),
        confusion(sets, labels, observed, by="label").recall(),
        set_sizes(sets).mean,
    )


def shot_groups(train_counts: Array, *, few: int = 20, many: int = 100) -> NDArray[np.str_]:
    """Return "few", "medium" or "many" for every label's number of training images."""
    counts = host(train_counts)
    if counts.ndim != 1 or few > many + 1:
        raise ValueError(
            f"train_counts must be (K,) and few at most many + 1, "
            f"got shape {counts.shape}, few={few}, many={many}"
        )
    return np.array(SHOTS)[(counts >= few).astype(np.intp) + (counts > many)]


def by_shot(
    per_label: NDArray[np.float64], train_counts: Array, *, few: int = 20, many: int = 100
) -> dict[str, Averaged]:
    """Return the mean of a per-label metric over each group; NaN entries are left out."""
    groups = shot_groups(train_counts, few=few, many=many)
    if len(per_label) != len(groups):
        raise ValueError(f"per_label must have {len(groups)} values, got {len(per_label)}")
    return {shot: Averaged.over(per_label[groups == shot], "label") for shot in SHOTS}
