"""Reading probabilities, labels and mask for the fits of rules, as numpy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.arrays import as_mask, check_shapes
from labelwise.numeric.arrays import to_numpy as as_numpy


@dataclass(frozen=True)
class Answers:
    """Probabilities (N, K), and which labels are present and absent; both are False if unknown."""

    probs: NDArray[Any]
    present: NDArray[np.bool_]
    absent: NDArray[np.bool_]

    def labels(self) -> Iterator["Answers"]:
        """Yield the answers of each label, as one column (N, 1)."""
        for k in range(self.probs.shape[1]):
            column = slice(k, k + 1)
            yield Answers(self.probs[:, column], self.present[:, column], self.absent[:, column])


def read_answers(probs: Matrix, labels: Matrix, observed: Matrix | None) -> Answers:
    """Check the arrays and return them."""
    answers, truth = as_numpy(probs), as_numpy(labels)
    seen = None if observed is None else as_mask(as_numpy(observed), "observed")
    check_shapes(probs=answers, labels=truth, observed=seen)
    present, absent = truth == 1, truth == 0
    known = present | absent
    if seen is not None:
        present, absent = present & seen, absent & seen
        known = known | ~seen
    if not known.all():
        raise ValueError(
            f"labels must be 0 or 1 where observed, got {truth[~known][0]}; cut soft labels first, "
            "as labels > 0.5"
        )
    if np.isnan(answers).any() and np.isnan(answers[present | absent]).any():
        raise ValueError("probs must not be NaN where observed, got NaN")
    return Answers(answers, present, absent)
