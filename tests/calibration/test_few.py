"""Few labels. Oracles: the exact posterior on a grid, another optimiser, the truth of a simulation,
and shared temperature and per-label Platt scaling as rivals."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit, softmax
from scipy.stats import norm

from labelwise.calibration import (
    AveragedCurves,
    ZeroShare,
    expect_zero_share,
    few_labels,
    platt,
    within_groups,
)
from labelwise.calibration.few import TYPICAL_SPREAD, WITH_LINK, CurveProblem
from labelwise.learn.objectives import SoftmaxOrNoneLink
from labelwise.links import Grouped, Sigmoid
from labelwise.taxonomy import AttributeColumns


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


# Labels that exclude each other, and other shares without labels. Oracles: Bayes' rule, counts.

PAIR = AttributeColumns(((0, 1),), ())


def world(seed, rows, labels, none=False):
    """Return the chances of labels of which a row has one, and who has which; the last is none."""
    rng = np.random.default_rng(seed)
    truth = softmax(2 * rng.normal(size=(rows, labels + none)), axis=1)
    drawn = (truth.cumsum(1) < rng.random(rows)[:, None]).sum(1)
    return truth, np.eye(labels + none)[drawn]


def probs(link, logits):
    return link(torch.tensor(logits)).numpy()


def test_labels_that_know_the_rule_already_are_not_made_surer():
    """Each label's own probability is right here, and three of them add up to 1."""
    truth, labels = world(0, 8000, 3)
    own, three = logit(truth), AttributeColumns(((0, 1, 2),), ())
    link = within_groups(own[:4000], labels[:4000], Sigmoid(), three)
    plain = Grouped(Sigmoid(), three.exactly_one)
    assert np.abs(probs(plain, own) - truth).mean() > 0.05
    assert np.abs(probs(link, own) - truth).mean() < 0.015


@pytest.mark.parametrize("share_known", [1.0, 0.4])
def test_at_most_one_of_three_is_fitted_from_what_is_known(share_known):
    truth, labels = world(2, 8000, 3, none=True)
    truth, labels = truth[:, :3], labels[:, :3]
    rng = np.random.default_rng(3)
    observed = rng.random(labels.shape) < share_known
    own = 3 * logit(truth) + np.array([1.0, 0.0, -1.0])  # too sure, and shifted
    columns = AttributeColumns((), ((0, 1, 2),))
    link = within_groups(own, labels, Sigmoid(), columns, observed)
    plain, fitted = probs(Grouped(Sigmoid(), (), columns.at_most_one), own), probs(link, own)
    assert np.abs(fitted - truth).mean() < np.abs(plain - truth).mean() / 2
    assert fitted.mean(0) == pytest.approx(truth.mean(0), abs=0.02)


def test_labels_outside_the_groups_keep_their_probabilities():
    truth, labels = world(4, 500, 2)
    rng = np.random.default_rng(5)
    logits = np.concatenate([logit(truth), rng.normal(size=(500, 2))], axis=1)
    every = np.concatenate([labels, rng.random((500, 2)) < 0.5], axis=1).astype(float)
    found = probs(within_groups(logits, every, Sigmoid(), PAIR), logits)
    assert found[:, 2:] == pytest.approx(probs(Sigmoid(), logits)[:, 2:], abs=1e-6)
    assert found[:, :2].sum(1) == pytest.approx(np.ones(500))


def test_rows_that_say_nothing_leave_bayes_rule_as_it_is():
    """Nothing is known of the first row, all that may be of the second, and the third conflicts."""
    logits = np.array([[1.0, -2.0], [0.5, 0.2], [2.0, 1.0]])
    labels = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    observed = labels == 1
    link = within_groups(logits, labels, Sigmoid(), PAIR, observed)
    assert probs(link, logits) == pytest.approx(softmax(logits, axis=1), abs=1e-6)
    wider, two = np.array([[1.0, -2.0, 0.5]]), np.array([[1.0, 1.0, 0.0]])  # two of three: a clash
    link = within_groups(wider, two, Sigmoid(), AttributeColumns(((0, 1, 2),), ()))
    assert probs(link, wider) == pytest.approx(softmax(wider, axis=1), abs=1e-6)


def by_counting(probs, ratio):
    """Return p' of independent labels, summed over all label sets."""
    total = marginals = 0.0
    for chosen in product([False, True], repeat=len(probs)):
        chance = np.where(chosen, probs, 1 - probs).prod() * (1.0 if any(chosen) else ratio)
        total, marginals = total + chance, marginals + chance * np.array(chosen)
    return marginals / total


@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_independent_labels_follow_bayes_rule(ratio):
    logits = torch.from_numpy(3 * np.random.default_rng(0).normal(size=(7, 4)))
    expected = np.array([by_counting(row.numpy(), ratio) for row in logits.sigmoid()])
    link = ZeroShare(Sigmoid(), ratio)
    log_p, log_q = link.log_probs(logits)
    torch.testing.assert_close(log_p.exp(), torch.from_numpy(expected))
    torch.testing.assert_close(log_p.exp() + log_q.exp(), torch.ones_like(log_p))
    none = ratio * (1 - logits.sigmoid()).prod(dim=1)
    some = 1 - none / ratio
    torch.testing.assert_close(link.log_none(logits).exp(), none / (some + none))


@pytest.mark.parametrize("link", [Sigmoid(), SoftmaxOrNoneLink()])
def test_rounding_never_makes_a_probability_larger_than_one(link):
    logits = 8 * torch.randn(5000, 6, generator=torch.Generator().manual_seed(2)) - 6
    logits[:3] = torch.tensor([[80.0, -80.0], [-80.0, -80.0], [800.0, 800.0]]).repeat(1, 3)
    for ratio in (1e-3, 5.0):
        shifted = ZeroShare(link, ratio)
        for values in (*shifted.log_probs(logits), shifted.log_none(logits)):
            assert (values <= 0).all()


def test_unreviewed_images_do_not_count():
    labels = torch.tensor([[1, 0], [0, 0], [0, 0], [0, 0]])
    observed = torch.tensor([[True, True], [True, False], [False, False], [False, False]])
    assert expect_zero_share(Sigmoid(), labels, 0.75, observed).ratio == pytest.approx(3.0)
    assert expect_zero_share(Sigmoid(), labels, 0.75).ratio == pytest.approx(1.0)
