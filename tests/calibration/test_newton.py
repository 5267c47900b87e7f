"""Oracles: minima by hand, and a function on which full Newton steps run away."""

from functools import partial

import numpy as np
import pytest
from calibration_problems import problem

from labelwise.calibration import regression
from labelwise.calibration.entries import read_entries

close = partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-7)


class Given(regression.Problem):
    """A loss of weights alone, between bounds."""

    def __init__(self, loss, low, high):
        self.__dict__.update(loss=loss, low=np.asarray(low), high=np.asarray(high), asked=0)

    bounds = property(lambda self: (self.low, self.high))
    gradient = None

    def evaluate(self, blocks, theta):
        self.__dict__["asked"] += 1
        return self.loss(theta)


def quadratic(hess, goal):
    def loss(theta):
        grad = (theta - goal) @ hess
        return 0.5 * (grad * (theta - goal)).sum(1), grad, np.array([hess])

    return loss


def log_cosh(theta):
    return np.log(np.cosh(theta))[:, 0], np.tanh(theta), (1 / np.cosh(theta) ** 2)[..., None]


@pytest.mark.parametrize(
    ("loss", "bounds", "start", "best"),
    [
        # From 3 a full Newton step lands at -97.
        (log_cosh, ([-50.0], [50.0]), [[3.0], [0.1]], [[0.0], [0.0]]),
        # The free optimum lies outside: the other weight moves to its best.
        (quadratic([[2.0, 1], [1, 2]], [-3.0, 1]), ([0, 0], [9, 9]), [[5.0, 5.0]], [[0.0, 0.0]]),
        # Cut at 0, the full step raises the loss: it is shortened.
        (quadratic([[1, 0.9], [0.9, 1]], [-9.0, 9]), ([0, 0], [99] * 2), [[1.0, 0.5]], [[0, 0.9]]),
    ],
)
def test_the_minimum_between_bounds_is_found_in_few_steps(loss, bounds, start, best):
    problem = Given(loss, *bounds)
    found = problem.solve([], np.array(start), regression.TOLERANCE)
    close(found, np.array(best), atol=1e-6)
    assert loss is log_cosh or problem.asked <= 9


def test_polishing_with_a_wrong_hessian_ends_in_full_steps():
    logits, labels, _ = problem(400)
    entries = read_entries(logits, labels, None, None)
    features = regression.scaled(entries, lambda u: (u,), 1e-6)
    each = regression.Problem(features)
    exact = regression.shared_fit(features, features.read(entries), 1e-12)
    few = entries.subset(slice(0, 8))  # its Hessian is fifty times too small
    found = each.polish(entries, features.read(few), exact + 0.1, 1e-12)
    close(found, exact, atol=1e-5, rtol=0)
