"""Few labels. Oracles: the exact posterior on a grid, another optimiser, the truth of a simulation,
and shared temperature and per-label Platt scaling as rivals."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import norm

from labelwise.calibration import AveragedCurves, few_labels, platt
from labelwise.calibration.few import TYPICAL_SPREAD, WITH_LINK, CurveProblem
from labelwise.links import Sigmoid


def simulated(photos, labels, seed, *, slope=0.6, spread=0.3):
    """Return scores, labels and true probabilities; labels differ a little from each other."""
    rng = np.random.default_rng(seed)
    u = rng.normal(-2, 2, (photos, labels))
    truth = expit(slope * u + rng.normal(-0.5, spread, labels))
    return u, (rng.random(u.shape) < truth).astype(float), truth


def log_loss(link, u, truth):
    log_p, log_q = (side.numpy() for side in link.log_probs(torch.from_numpy(u)))
    return -(truth * log_p + (1 - truth) * log_q).mean()


def test_the_mode_is_that_of_another_optimiser():
    u, y, _ = simulated(30, 4, 1)
    w = (np.random.default_rng(0).random(u.shape) < 0.8).astype(float)
    spreads = (0.3, 0.5)
    g = np.array([0.5, -0.2, 0.1, -0.4])
    photo = np.arange(30)[:, None].repeat(4, 1)
    problem = CurveProblem(u / 2, y, w, g, np.array([0.5, 0.0, 0.0]), np.ones(3), 1.0, photo)
    fit = problem.solve(spreads)
    value = lambda theta: problem.at(theta[:3], theta[3:].reshape(4, 2), spreads)[0]  # noqa: E731
    other = minimize(value, np.zeros(11), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(np.concatenate([fit.shared, fit.own.ravel()]), other.x, atol=2e-3)
    # the covariance of the first label's curve, from the whole information at once
    _, _, fisher = problem.of_curve(problem.curves(fit.shared, fit.own, spreads))
    to_shared, to_own = problem.maps(spreads)
    whole = np.diag([1.0] * 11)
    for k in range(4):
        full = np.zeros((2, 11))
        full[:, :3], full[:, 3 + 2 * k : 5 + 2 * k] = to_shared[k], to_own
        whole += full.T @ fisher[k] @ full
    first = np.zeros((2, 11))
    first[:, :3], first[:, 3:5] = to_shared[0], to_own
    expected = first @ np.linalg.inv(whole) @ first.T
    np.testing.assert_allclose(problem.covariance(fit, spreads)[0], expected, rtol=1e-6)


def test_cosines_are_read_with_what_the_pool_says_of_each_label():
    # Scores without a link, each label with an offset of its own that says nothing of its share.
    rng = np.random.default_rng(3)
    u, y, truth = simulated(4000, 20, 3, slope=1.0, spread=0.1)
    cosines = 0.2 + 0.01 * u + rng.normal(0, 0.03, 20)
    few = few_labels(cosines[:100], y[:100], None, pool=cosines)
    plain = platt(cosines[:100], y[:100], None, scope="shared")
    assert log_loss(few.link, cosines, truth) < log_loss(plain, cosines, truth) - 0.02


def test_intervals_and_shares_hold_the_truth_at_least_as_often_as_they_say():
    # The truth is drawn from the prior, as the intervals assume.
    rng, inside, within = np.random.default_rng(4), [], []
    tau_a, tau_b = TYPICAL_SPREAD[1], TYPICAL_SPREAD[1]
    for _ in range(4):
        u = rng.normal(-2, 2, (500, 20))
        slope = np.exp(rng.normal(0, WITH_LINK[0]) + rng.exponential(tau_a) * rng.normal(size=20))
        offset = rng.normal(0, WITH_LINK[1]) + rng.exponential(tau_b) * rng.normal(size=20)
        truth = expit(slope * u + offset)
        y = rng.random(u.shape) < truth
        few = few_labels(u[:60], y[:60], Sigmoid(), pool=u)
        low, high = few.interval(u)
        inside.append(((low <= truth) & (truth <= high)).mean())
        share = truth.mean(0)
        within.append(((few.shares[:, 1] <= share) & (share <= few.shares[:, 2])).mean())
        assert (high - low).mean() < 0.2
    assert np.mean(inside) > 0.85
    assert np.mean(within) > 0.85


def test_the_link_averages_its_curves_and_keeps_the_order():
    u, y, _ = simulated(40, 3, 5)
    few = few_labels(u, y, Sigmoid())
    link = few.link
    v = torch.linspace(-30, 30, 301, dtype=torch.float64)[:, None].expand(-1, 3)
    probs = link(v)
    assert (probs.diff(dim=0) >= 0).all()
    curves = zip(link.slope, link.offset, link.weight, strict=True)
    slow = sum(w * expit(a * v.numpy() + b) for a, b, w in curves)
    np.testing.assert_allclose(probs, slow / link.weight.sum())
    twice = AveragedCurves(None, [[1.0]], [[0.0]], [2.0], 10.0)  # weights need not add up to 1
    torch.testing.assert_close(twice(v[:, :1]), torch.sigmoid(v[:, :1].clip(-10, 10)))
    with pytest.raises(ValueError, match="must be positive"):
        AveragedCurves(None, [[-1.0]], [[0.0]], [1.0], 10.0)
    with pytest.raises(ValueError, match="pool must be"):
        few_labels(u, y, Sigmoid(), pool=u[:, :2])


@pytest.mark.parametrize("link", [Sigmoid(), None])
def test_without_some_photos_the_mean_is_that_of_a_fresh_fit_of_the_others(link):
    # The pool stays the same, so the scale does.
    u, y, _ = simulated(120, 8, 9, spread=0.8)
    out = np.arange(120) % 5 == 2
    known = np.random.default_rng(1).random(u.shape) < 0.9
    few = few_labels(u, y, link, known, pool=u)
    fresh = few_labels(u[~out], y[~out], link, known[~out], pool=u)
    np.testing.assert_allclose(few.mean_without(out), fresh.mean, atol=1e-3)
    assert np.abs(few.mean - fresh.mean).max() > 0.02


def test_intervals_are_those_of_curves_drawn_from_their_law():
    u, y, _ = simulated(200, 4, 3)
    few = few_labels(u[:40], y[:40], Sigmoid(), pool=u)
    low, high = (logit(end) for end in few.interval(u, confidence=0.9))
    narrow = np.subtract(*(logit(end) for end in few.interval(u, confidence=0.5)[::-1]))
    np.testing.assert_allclose((high - low) / narrow, norm.ppf(0.95) / norm.ppf(0.75), rtol=1e-9)
    rng = np.random.default_rng(0)
    for label in range(4):
        drawn = rng.multivariate_normal(few.mean[label], few.covariance[label], 4000)
        rise = np.exp(drawn[:, :1]) * (u[:, label] / few.scale)
        spread = logit(expit(rise + drawn[:, 1:]).mean(1)).std()
        ends = logit(few.shares[label, 1:])
        assert (ends[1] - ends[0]) / 2 == pytest.approx(norm.ppf(0.95) * spread, rel=0.12)


def test_the_error_is_the_mean_over_the_pool_of_what_the_curves_leave_open():
    u, y, _ = simulated(80, 4, 3)
    few = few_labels(u[:30], y[:30], Sigmoid(), pool=u)
    x = u / few.scale
    rise = np.exp(few.mean[:, 0]) * x
    p = expit(rise + few.mean[:, 1])
    towards = np.stack([rise, np.ones_like(rise)], axis=-1)
    variance = np.einsum("nka,kab,nkb->nk", towards, few.covariance, towards)
    expected = np.sqrt(((p * (1 - p)) ** 2 * variance).mean())
    assert few.error == pytest.approx(expected, rel=1e-9)
    assert few.photos_to_halve > 60  # twice as many and more
