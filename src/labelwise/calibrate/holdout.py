"""Choose one number by the log loss of images held out.

Images, not entries, are dealt into folds: the labels of an image are seen together.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from labelwise.calibrate.entries import Entries

__all__ = ["choose", "dealt", "folds_of"]

Part = TypeVar("Part")


def folds_of(count: int, folds: int, seed: int = 0) -> Tensor:
    """Return the fold (count,) of each of ``count`` things, dealt at random in equal parts."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % folds


def dealt(entries: Entries, folds: int) -> list[Entries]:
    """Return the images dealt into folds; with fewer images than folds, one for each image."""
    fold = folds_of(len(entries.logits), folds).to(entries.logits.device)
    return [entries.subset(fold == number) for number in range(min(folds, len(fold)))]


def choose(
    strengths: Sequence[float],
    parts: Sequence[Part],
    losses: Callable[[list[Part], Part], Sequence[float]],
) -> float:
    """Return the strength with the least log loss, each part held out once.

    ``losses(the other parts, the part held out)`` gives one loss for each strength. A single part
    leaves nothing to learn from: the greatest strength is the safe one.
    """
    if len(parts) < 2:
        return max(strengths)
    total = np.zeros(len(strengths))
    for number, part in enumerate(parts):
        total += losses([*parts[:number], *parts[number + 1 :]], part)
    return strengths[int(total.argmin())]
