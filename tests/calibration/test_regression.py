"""Oracles: sklearn's logistic regression, scipy's minimisers, golden vectors, minima by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from calibration_problems import log_loss, problem
from golden import assert_golden, cases, tensor
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from labelwise.calibration import (
    Temperature,
    beta,
    histogram,
    isotonic,
    platt,
    regression,
    temperature,
)
from labelwise.calibration.entries import choose, compressed, joined, read_entries
from labelwise.links import Sigmoid, Softmax

SIZES = pytest.mark.parametrize("images", [300, 6000])  # exact from the start, and through bins
UNKNOWN = pytest.mark.parametrize("unknown", [False, True])


def logistic_regression(x, y):
    """Weights and constant of sklearn's unpenalised fit."""
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, y)
    return fit.coef_[0], fit.intercept_[0]


def seen(values, observed, column):
    mask = torch.ones_like(values, dtype=torch.bool) if observed is None else observed
    return values[..., column][mask[..., column]].numpy().ravel()


@SIZES
@UNKNOWN
def test_platt_is_logistic_regression_of_all_labels_or_of_each(images, unknown):
    logits, labels, observed = problem(images, unknown=unknown)
    for scope, columns in (("shared", [...]), ("label", range(5))):
        link = platt(logits, labels, Sigmoid(), observed, scope=scope, strength=0.0)
        for number, column in enumerate(columns):
            x, y = seen(logits, observed, column), seen(labels, observed, column)
            slope, offset = logistic_regression(x[:, None], y)
            assert link.slope.ravel()[number] == pytest.approx(slope[0], rel=1e-4)
            assert link.offset.ravel()[number] == pytest.approx(offset, rel=1e-4, abs=1e-4)


@SIZES
def test_platt_offset_is_one_slope_and_an_offset_each(images):
    logits, labels, _ = problem(images)
    link = platt(logits, labels, Sigmoid(), scope="offset", strength=0.0)
    rows = np.arange(labels.numel()) % 5
    x = np.column_stack([logits.numpy().ravel(), rows[:, None] == np.arange(1, 5)])
    weights, constant = logistic_regression(x, labels.numpy().ravel())
    np.testing.assert_allclose(link.slope.tolist(), weights[0], rtol=1e-4)
    expected = constant + np.r_[0, weights[1:]]
    np.testing.assert_allclose(link.offset.tolist(), expected, rtol=1e-3, atol=1e-3)


@SIZES
def test_beta_is_scipys_bounded_minimum(images):
    logits, labels, _ = problem(images, labels=2)
    for scope in ("shared", "label"):
        link = beta(logits, labels, Sigmoid(), scope=scope, strength=0.0)
        for k in range(2):
            u = logits[:, k].numpy() if scope == "label" else logits.numpy().ravel()
            y = labels[:, k].numpy() if scope == "label" else labels.numpy().ravel()

            def loss(w, u=u, y=y):
                z = -w[0] * np.logaddexp(0, -u) + w[1] * np.logaddexp(0, u) + w[2]
                return np.mean(np.logaddexp(0, z) - y * z)

            best = minimize(loss, [1, 1, 0], bounds=[(0, None), (0, None), (None, None)], tol=1e-12)
            at = k if scope == "label" else 0
            assert loss([link.a[at], link.b[at], link.c[at]]) <= best.fun + 1e-9


def test_strength_pulls_each_label_as_the_penalty_says():
    logits, labels, _ = problem(200, labels=3)
    entries = read_entries(logits, labels, Sigmoid(), None)
    features = regression.scaled(entries, lambda u: (u,), 0.0)
    mean, deviation = features.mean.item(), features.deviation.item()
    shared = platt(logits, labels, Sigmoid(), scope="shared")
    center = np.array([shared.slope.item() * deviation, 0.0])
    center[1] = shared.offset.item() + shared.slope.item() * mean
    link = platt(logits, labels, Sigmoid(), strength=7.0)
    for k in range(3):
        x, y = (logits[:, k].numpy() - mean) / deviation, labels[:, k].numpy()

        def loss(w, x=x, y=y):
            z = w[0] * x + w[1]
            return np.sum(np.logaddexp(0, z) - y * z) + 3.5 * np.sum((w - center) ** 2)

        best = minimize(loss, center, tol=1e-12).x
        assert link.slope[k].item() == pytest.approx(best[0] / deviation, rel=1e-4)
        offset = best[1] - best[0] / deviation * mean
        assert link.offset[k].item() == pytest.approx(offset, rel=1e-4, abs=1e-4)


def test_rare_labels_borrow_strength():
    """The chosen strength must beat both ends on new images."""
    strengths, losses = (0.0, 1e9, None), []
    for seed in range(3):
        logits, labels, _ = problem(300, 30, seed=seed, shift=6.0, spread=1.0)
        new, truth, _ = problem(4000, 30, seed=seed + 100, shift=6.0, spread=0.0)
        rng = np.random.default_rng(seed)
        rng.normal(size=(300, 30)), rng.random((300, 30))
        new = new + torch.from_numpy(rng.normal(size=30))  # the offsets the labels were fitted with
        fits = [platt(logits, labels, Sigmoid(), strength=one, scope="offset") for one in strengths]
        losses.append([log_loss(link, new, truth) for link in fits])
    *ends, chosen = np.mean(losses, axis=0)
    assert chosen < min(ends)


@pytest.mark.parametrize("images", [40, 5000])
@pytest.mark.parametrize("scope", ["offset", "label"])
def test_labels_without_positives_or_negatives_take_the_shared_fit(images, scope):
    logits, labels, _ = problem(images)
    labels[:, 1], labels[:, 2] = False, True
    link = platt(logits, labels, Sigmoid(), scope=scope, strength=0.0)
    shared = platt(logits, labels, Sigmoid(), scope="shared")
    for k in (1, 2):
        assert link.offset[k].item() == pytest.approx(shared.offset.item(), abs=1e-2)
        if scope == "label":
            assert link.slope[k].item() == pytest.approx(shared.slope.item(), rel=1e-2)
    drawn = platt(logits, labels, Sigmoid(), scope=scope, strength=1.0)
    assert drawn.offset[1] < shared.offset < drawn.offset[2]


def test_separable_and_reversed_labels_are_bounded_with_a_warning():
    logits, labels, _ = problem(200)
    labels[:, 0] = logits[:, 0] > 1
    labels[:, 1] = logits[:, 1] < 1
    with (
        pytest.warns(UserWarning, match="1 labels: scores separate"),
        pytest.warns(UserWarning, match="1 labels: scores do not rise"),
    ):
        link = platt(logits, labels, Sigmoid(), strength=0.0)
    assert (link.slope > 0).all()
    assert torch.isfinite(link.log_probs(logits)[0]).all()
    assert np.ptp(link(logits)[:, 1].numpy()) < 1e-3
    with pytest.warns(UserWarning, match="the fit: scores separate"):
        platt(logits[:, :1], labels[:, :1], Sigmoid(), scope="shared")


@pytest.mark.parametrize(("scale", "shift"), [(1e-3, 0), (1, 500.0), (1e3, -1e5)])
def test_raw_scores_of_any_unit_are_calibrated_alike(scale, shift):
    logits, labels, _ = problem()
    plain, moved = platt(logits, labels, None, strength=3.0)(logits), scale * logits + shift
    other = platt(moved, labels, None, strength=3.0)(moved)
    torch.testing.assert_close(other, plain, atol=1e-2 if shift else 1e-4, rtol=0)


def test_joined_and_coarser_bins_keep_sums():
    logits, labels, observed = problem(6000, unknown=True)
    parts = compressed(read_entries(logits, labels, None, observed), 3)
    whole = joined(parts)
    expected = [(part * observed).sum(0).double() for part in (logits, labels, observed)]
    for bins in (whole, whole.coarser(4)):
        sums = [total.sum(0) for total in bins.sums()]
        np.testing.assert_allclose(sums, np.stack(expected), atol=1e-2, rtol=1e-5)
    assert len(whole.u) == len(parts[0].u) == 4 * len(whole.coarser(4).u)


def test_a_sample_of_images_without_known_labels_does_not_spoil_the_bins():
    logits, labels, _ = problem(9000)
    observed = torch.ones_like(labels)
    observed[:: 9000 * 5 // (1 << 14)] = False  # the very images that are sampled
    link = platt(logits, labels, Sigmoid(), observed, scope="shared")
    slope, _ = logistic_regression(logits[observed].numpy()[:, None], labels[observed].numpy())
    np.testing.assert_allclose(link.slope.tolist(), slope, rtol=1e-3)


def test_golden():
    case = cases("temperature_scaling")["sigmoid, 8 pairs"]
    logits, labels = tensor(case["inputs"]["logits"]), tensor(case["inputs"]["targets"])
    link = temperature(logits, labels, Sigmoid())
    assert_golden(tensor(link.temperature), case["expected"]["T"])
    assert_golden(tensor(log_loss(Sigmoid(), logits, labels)), case["expected"]["nll_before"])
    assert_golden(tensor(log_loss(link, logits, labels)), case["expected"]["nll_after"])


@pytest.mark.parametrize("link", [Sigmoid(), None])
@pytest.mark.parametrize(("scale", "images"), [(0.1, 400), (30.0, 400), (1.0, 20_000)])
def test_sigmoid_is_scipys_minimum(scale, images, link):
    logits, labels, observed = problem(images, unknown=link is None)
    logits = logits * scale
    link = temperature(logits, labels, link, observed)

    def loss(a):
        return log_loss(Temperature(Sigmoid(), 1 / a, 1e9), logits, labels, observed)

    best = minimize_scalar(loss, bounds=(1e-3, 50), method="bounded", options={"xatol": 1e-10})
    assert link.temperature == pytest.approx(1 / best.x, rel=1e-5)


def test_softmax_is_scipys_minimum_and_stays_a_softmax():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(300, 6)) * 3)
    labels = torch.from_numpy(rng.random((300, 6)) < logits.softmax(1).numpy() ** 0.5)
    labels[:40] = False  # images without labels have no target
    link = temperature(logits, labels, Softmax())
    assert isinstance(link, Softmax)
    kept, y = logits[40:][labels[40:].any(1)], labels[labels.any(1)].double()

    def loss(a):
        return -(y * (a * kept).log_softmax(1)).sum(1).div(y.sum(1)).mean().item()

    best = minimize_scalar(loss, bounds=(1e-3, 50), method="bounded", options={"xatol": 1e-10})
    assert link.temperature == pytest.approx(1 / best.x, rel=1e-5)
    warm = temperature(logits, labels, Softmax(temperature=4.0))
    assert warm.temperature == pytest.approx(link.temperature, rel=1e-9)


def test_separable_scores_are_capped_and_reversed_ones_flattened_with_a_warning():
    logits = torch.tensor([[-1.0, 1], [-2, 2], [-3, 3]])
    labels = torch.tensor([[0, 1]] * 3)
    with pytest.warns(UserWarning, match="how sure to be: the temperature is the least"):
        assert temperature(logits, labels, Sigmoid()).temperature == pytest.approx(0.01)
    with pytest.warns(UserWarning, match="do not rise with the labels"):
        link = temperature(logits, 1 - labels, Sigmoid())
    assert link.temperature == pytest.approx(1e6)
    torch.testing.assert_close(link(logits), torch.full((3, 2), 0.5), atol=1e-5, rtol=0)
    with pytest.warns(UserWarning, match="do not rise"):
        temperature(-logits, labels, Softmax())


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
    np.testing.assert_allclose(found, best, atol=1e-6)
    assert loss is log_cosh or problem.asked <= 9


def test_polishing_with_a_wrong_hessian_ends_in_full_steps():
    logits, labels, _ = problem(400)
    entries = read_entries(logits, labels, None, None)
    features = regression.scaled(entries, lambda u: (u,), 1e-6)
    each = regression.Problem(features)
    exact = regression.shared_fit(features, features.read(entries), 1e-12)
    few = entries.subset(slice(0, 8))  # its Hessian is fifty times too small
    found = each.polish(entries, features.read(few), exact + 0.1, 1e-12)
    np.testing.assert_allclose(found, exact, atol=1e-5, rtol=0)


# Oracles: sklearn's isotonic regression, counting in bins by hand, and held-out log loss.

DECIMALS = pytest.mark.parametrize("decimals", [1, 12])  # many ties, and none


def sklearn_isotonic(u, y, at):
    fit = IsotonicRegression(out_of_bounds="clip").fit(u, y)
    floor = 0.5 / (len(u) + 1)
    return fit.predict(at).clip(floor, 1 - floor)


def test_a_strength_is_judged_on_the_part_that_it_was_not_fitted_to():
    asked = []

    def losses(train, test):
        asked.append((train, test))
        return [1.0, 0.5, 0.7]

    assert choose((10.0, 1.0, 0.1), "abc", losses) == 1.0
    assert asked == [(["b", "c"], "a"), (["a", "c"], "b"), (["a", "b"], "c")]


@UNKNOWN
@DECIMALS
def test_isotonic_is_sklearns_of_each_label_or_of_everything(decimals, unknown):
    logits, labels, observed = problem(unknown=unknown)
    logits = logits.round(decimals=decimals)
    mask = torch.ones_like(labels) if observed is None else observed
    link = isotonic(logits, labels, Sigmoid(), observed, strength=0.0)
    at = torch.linspace(-9, 12, 500, dtype=torch.float64)
    for k in range(5):
        u, y = logits[mask[:, k], k].numpy(), labels[mask[:, k], k].double().numpy()
        # Between knots both interpolate, on knots rounded to float32 in ours.
        for own in (at, logits[:, k]):
            found = link(own[:, None].expand(-1, 5))[:, k]
            np.testing.assert_allclose(found, sklearn_isotonic(u, y, own.numpy()), atol=2e-3)
    link = isotonic(logits, labels, Sigmoid(), observed, scope="shared")
    u, y = logits[mask].numpy(), labels[mask].double().numpy()
    expected = sklearn_isotonic(u, y, logits.numpy().ravel()).reshape(logits.shape)
    np.testing.assert_allclose(link(logits), expected, atol=2e-3)


def test_isotonic_labels_share_as_their_rarer_side_says():
    logits, labels, _ = problem()
    labels[:, 3], labels[:, 4] = False, True
    link = isotonic(logits, labels, Sigmoid(), strength=50.0)
    shares = torch.from_numpy(link.shares)
    present = labels.double().sum(0)
    rarer = torch.minimum(present, 400 - present)
    torch.testing.assert_close(shares.double(), 50 / (50 + rarer), rtol=1e-6, atol=0)
    own, shared = link.curves_at(logits)
    mixed = (1 - shares) * own + shares * shared
    torch.testing.assert_close(link(logits), mixed)
    alone = isotonic(logits, labels, Sigmoid(), strength=0.0)
    assert alone.shares.tolist() == [0, 0, 0, 1, 1]
    torch.testing.assert_close(shared, isotonic(logits, labels, Sigmoid(), scope="shared")(logits))


@pytest.mark.parametrize("fit", [isotonic, histogram])
def test_the_chosen_strength_beats_the_ends_on_new_images(fit):
    strengths, losses = (0.0, 1e9, None), []
    for seed in range(3):
        logits, labels, _ = problem(400, 20, seed=seed, spread=1.0)
        links = [fit(logits[:200], labels[:200], Sigmoid(), strength=one) for one in strengths]
        losses.append([log_loss(link, logits[200:], labels[200:]) for link in links])
    none, all_shared, chosen = np.mean(losses, axis=0)
    assert chosen < min(none, all_shared + 1e-3)


@UNKNOWN
def test_histogram_levels_are_shares_of_present_labels(unknown):
    logits, labels, observed = problem(unknown=unknown)
    logits = logits.float()
    mask = torch.ones_like(labels) if observed is None else observed
    link = histogram(logits, labels, Sigmoid(), observed, bins=8, strength=5.0)
    shared = histogram(logits, labels, Sigmoid(), observed, bins=8, scope="shared")
    np.testing.assert_array_equal(link.edges, shared.edges)
    edges = [-np.inf, *link.edges.tolist(), np.inf]
    for b, (low, high) in enumerate(pairwise(edges)):
        inside = (logits > low) & (logits <= high) & mask
        pooled = (labels[inside].sum() + 0.5) / (inside.sum() + 1)
        assert shared.levels[0, b].item() == pytest.approx(pooled.item(), rel=1e-5)
        for k in range(5):
            count, present = inside[:, k].sum(), (labels & inside)[:, k].sum()
            level = (present + 5 * pooled) / (count + 5)
            assert link.levels[k, b].item() == pytest.approx(level.item(), rel=1e-5)
    lowest = link(logits)[logits[:, 0] <= edges[1], 0]
    torch.testing.assert_close(lowest, torch.full_like(lowest, link.levels[0, 0].item()))


def test_histogram_gives_rare_present_entries_their_share_of_bins():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=(3000, 5)) * 1.5 - 6
    labels = torch.from_numpy(rng.random((3000, 5)) < 1 / (1 + np.exp(-odds)))
    assert labels.double().mean() < 0.02
    link = histogram(odds, labels, Sigmoid(), bins=10, scope="shared")
    inside = np.searchsorted(link.edges, odds[labels.numpy()].astype(np.float32))
    assert (np.bincount(inside, minlength=10) / int(labels.sum())).max() < 0.25


def test_empty_bins_and_constant_scores():
    labels = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]])
    flat = torch.zeros(4, 2)
    for fit in (histogram, isotonic):
        link = fit(flat, labels, Sigmoid(), strength=1.0)
        torch.testing.assert_close(link(flat), torch.full((4, 2), 0.5), atol=0.1, rtol=0)
        assert torch.isfinite(link.log_probs(torch.tensor([[1e4, -1e4]]))[0]).all()
    assert histogram(flat, labels, Sigmoid(), strength=0.0).levels.shape[1] <= 2


def test_labels_without_any_observed_entry_take_the_shared_map():
    logits, labels, _ = problem(100)
    observed = torch.ones_like(labels)
    observed[:, 2] = False
    for fit in (histogram, isotonic):
        link = fit(logits, labels, Sigmoid(), observed, strength=3.0)
        shared = fit(logits, labels, Sigmoid(), observed, scope="shared")
        torch.testing.assert_close(link(logits)[:, 2], shared(logits)[:, 2])
