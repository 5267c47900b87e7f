"""A slope and an offset of log-odds, fitted to what came out: logistic regression of one variable.

    logit P = a u + b,   (a, b) ~ N(center, diag(1 / precision)) before any outcome is seen;
                         the center is (1, 0), the log-odds as they are, unless another is given

fitted by Newton's method with steps of at most 1; the inverse of the curvature is the covariance.
"""

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.special import expit

Numbers = NDArray[np.float64]
START = np.array([1.0, 0.0])
STEPS = 50


def fit_slope_and_offset(
    odds: Numbers, outcome: Numbers, precision: Numbers, center: Numbers = START
) -> tuple[Numbers, Numbers]:
    """Return (a, b) and their covariance (2, 2) for log-odds (n,) and outcomes in [0, 1] (n,)."""
    design = np.stack([odds, np.ones(len(odds))], 1)
    weights, curvature = center.copy(), np.diag(precision)
    for _ in range(STEPS):
        p = expit(design @ weights)
        gradient = design.T @ (p - outcome) + precision * (weights - center)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 1.0 / max(np.abs(step).max(), 1e-12))
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights, np.asarray(np.linalg.inv(curvature), np.float64)
