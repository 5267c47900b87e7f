"""Oracles: autograd, a dense solve, and a function on which full Newton steps run away."""

from functools import partial

import numpy as np
import pytest
import torch
from calibration_problems import problem
from torch.nn.functional import binary_cross_entropy_with_logits

from labelwise.calibration import regression
from labelwise.calibration.entries import read_entries
from labelwise.calibration.platt import _both_ends as beta_features

close = partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-7)


def one(u):
    return (u,)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("raw", [one, beta_features])
def test_derivatives_are_autograds(raw, unknown):
    logits, labels, observed = problem(300, unknown=unknown)
    entries = read_entries(logits, labels, None, observed)
    features = regression.scaled(entries, raw, 0.0)
    torch.manual_seed(0)
    theta = torch.randn(5, len(features.mean) + 1, dtype=torch.float64)
    phi = torch.from_numpy(features(logits.numpy()))

    def loss(theta):
        z = theta[:, -1] + (phi[..., :-1] * theta[:, :-1]).sum(-1)
        each = binary_cross_entropy_with_logits(z, labels.double(), reduction="none")
        return (each if observed is None else each * observed).sum(0)

    blocks = features.read(entries)
    value, grad, hess = (each[0] for each in regression.derivatives(blocks, theta.numpy()[None]))
    close(value, loss(theta))
    rows = torch.autograd.functional.jacobian(loss, theta)
    close(grad, rows[range(5), range(5)])
    whole = torch.autograd.functional.hessian(lambda t: loss(t).sum(), theta)
    close(hess, torch.stack([whole[k, :, k] for k in range(5)]))
    close(regression.gradient(entries, features, theta.numpy()), grad)
    several = regression.derivatives(blocks, np.stack([theta + 1, theta]))
    for found, alone in zip(several, (value, grad, hess), strict=True):
        close(found[1], alone)


class Given(regression.Shared):
    """A loss of weights alone, between bounds."""

    def __init__(self, loss, low, high):
        self.__dict__.update(loss=loss, low=np.asarray(low), high=np.asarray(high), asked=0)

    bounds = property(lambda self: (self.low, self.high))

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


def test_the_tied_step_solves_the_whole_system():
    logits, labels, _ = problem(300)
    entries = read_entries(logits, labels, None, None)
    features = regression.scaled(entries, one, 1e-6)
    center = np.array([[1.0, 0.0]])
    tied = regression.PerLabel(features, center, np.full(5, 2.0), np.zeros(5, bool), tied=True)
    theta = np.repeat(center, 5, 0)
    _, grad, hess = tied.evaluate(features.read(entries), theta)
    dense = np.zeros((6, 6))
    dense[0, 0] = hess[:, 0, 0].sum()
    dense[0, 1:] = dense[1:, 0] = hess[:, 0, 1]
    dense[1:, 1:] = np.diag(hess[:, 1, 1])
    step = np.linalg.solve(dense, np.append(grad[:, 0].sum(), grad[:, 1]))
    moved = tied.step(theta, grad, hess)
    close(moved[:, 0], np.full(5, step[0]))
    close(moved[:, 1], step[1:])
    close(tied.gradient(entries, theta), grad)


@pytest.mark.parametrize("strengths", [(50.0, 0.5), (1e4, 1.0, 0.1)])
def test_problems_side_by_side_have_the_answers_they_have_alone(strengths):
    logits, labels, _ = problem(120)
    labels[:, 3] = 0  # of this label no slope can be learned
    entries = read_entries(logits, labels, None, None)
    features = regression.scaled(entries, one, 1e-6)
    center = np.array([[1.0, 0.0]])
    pulls = np.array(strengths)[:, None].repeat(5, 1)
    lacking = np.array([False, False, False, True, False])

    def solved(pull):
        for tied in (False, True):
            problem = regression.PerLabel(features, center, pull, lacking, tied)
            yield problem.solve(features.read(entries), np.repeat(center, pull.size, 0), 1e-12)

    alone = [np.concatenate(some) for some in zip(*map(solved, pulls), strict=True)]
    for found, own in zip(solved(pulls), alone, strict=True):
        close(found, own, atol=1e-5, rtol=0)


def test_polishing_with_a_wrong_hessian_ends_in_full_steps():
    logits, labels, _ = problem(400)
    entries = read_entries(logits, labels, None, None)
    features = regression.scaled(entries, one, 1e-6)
    each = regression.Shared(features)
    exact = each.center(features.read(entries), 1e-12)
    few = entries.subset(slice(0, 8))  # its Hessian is fifty times too small
    found = each.polish(entries, features.read(few), exact + 0.1, 1e-12)
    close(found, exact, atol=1e-5, rtol=0)
