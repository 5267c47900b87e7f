"""Average-K: one threshold under which sets hold K labels on average (Garcin et al., Algorithm 1).

    n = images, m = K n:   t = (P_[m] + P_[m+1]) / 2,  P sorted from the largest, 1-based
    set(x) = {j : P_j(x) >= t}

Values are pooled over images, so the link that made them matters although it changes no image's
ranking. With K equal to the number of labels there is no P_[m+1], and t is the smallest value.
"""

from warnings import warn

import numpy as np

from labelwise.decide.arrays import Matrix, as_numpy
from labelwise.decide.rules import Threshold

__all__ = ["average_k"]


def average_k(probs: Matrix, k: float) -> Threshold:
    """Return the threshold whose sets hold ``k`` labels on average over these images.

    ``k`` need not be whole; ``k`` times the number of images is rounded. A tie at the cut makes
    the sets larger, with a warning: probabilities in float64 have fewer.
    """
    values = as_numpy(probs)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"probs must be (images, labels), got shape {values.shape}")
    images, labels = values.shape
    if not 0 < k <= labels:
        raise ValueError(f"k must lie between 0 and the {labels} labels, got {k}")
    if np.isnan(values).any():
        raise ValueError("probs must not be NaN, got NaN")
    count = max(1, round(k * images))
    if count == values.size:
        return Threshold(float(values.min()))
    position = values.size - count
    parts = np.partition(values.ravel(), (position - 1, position))
    above, below = float(parts[position]), float(parts[position - 1])
    if above == below:
        size = np.count_nonzero(values >= above) / images
        warn(
            f"several probabilities equal the cut {above:g}: sets hold {size:g} labels on average"
            f" instead of {k:g}",
            stacklevel=2,
        )
        return Threshold(above)
    middle = (above + below) / 2
    return Threshold(middle if middle > below else above)
