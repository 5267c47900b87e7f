"""Power of promises: how much of what is there the lists with a promised error find.

For each label the test images are dealt into two halves. One half is the library, the other the
held-out images: the longest list of the library of which at most a tenth is expected to be wrong
(``expected_list``: conformal selection), then the same with the halves exchanged.

    power   right images on the list / images with the label in the library, 0 without a list
    wrong   wrong images on the list / images on it, 0 without a list: promised to be 0.1 at most

Both are means over labels and halves; ``power`` over those with an image to find. Neither half
fitted anything, so the promise holds; images are ranked by logits, since a calibrated link of one
label keeps their order.
"""

from dataclasses import dataclass
from math import nan

import numpy as np

from labelwise.decide import expected_list
from labelwise.predictions import Predictions

WRONG_AT_MOST = 0.1


@dataclass(frozen=True)
class PromisePower:
    """The share found and the share wrong of promised lists.

    ``power`` is NaN where no label has an image.
    """

    power: float
    wrong: float


def promise_power(test: Predictions, *, seed: int = 0) -> PromisePower:
    """Return the power of the lists of single labels, by images that fitted nothing.

    ``seed`` deals the images; where they come in groups, whole groups.
    """
    groups = test.groups
    units = np.arange(len(test)) if groups is None else groups.codes
    side = np.random.default_rng(seed).permutation(int(units.max()) + 1) % 2
    half = side[units]
    scores, labels = test.logits.astype(np.float64), test.majority
    known = np.ones_like(labels) if test.observed is None else test.observed
    found: list[float] = []
    wrong: list[float] = []
    for column in range(labels.shape[1]):
        for one in (0, 1):
            library = np.flatnonzero(known[:, column] & (half == one))
            held = np.flatnonzero(known[:, column] & (half != one))
            if not len(library) or not len(held):
                continue
            truth = labels[library, column]
            answer = expected_list(
                scores[held, column],
                labels[held, column],
                scores[library, column],
                wrong_at_most=WRONG_AT_MOST,
                groups=None if groups is None else groups.take(held),
            )
            listed = scores[library, column] >= answer.threshold
            wrong.append(float((~truth[listed]).mean()) if listed.any() else 0.0)
            if truth.any():
                found.append(float(truth[listed].sum() / truth.sum()))
    return PromisePower(
        float(np.mean(found)) if found else nan, float(np.mean(wrong)) if wrong else nan
    )
