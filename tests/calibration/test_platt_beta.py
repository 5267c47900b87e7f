"""Oracles: sklearn's logistic regression, scipy's minimisers, and held-out log loss."""

import numpy as np
import pytest
import torch
from calibration_problems import log_loss, problem
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from labelwise.calibration import beta, platt
from labelwise.calibration.entries import Bins, compressed, joined, read_entries
from labelwise.calibration.regression import scaled
from labelwise.links import Sigmoid

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
            mine = loss([link.a[at].item(), link.b[at].item(), link.c[at].item()])
            assert mine <= best.fun + 1e-9


def test_strength_pulls_each_label_as_the_penalty_says():
    logits, labels, _ = problem(200, labels=3)
    entries = read_entries(logits, labels, Sigmoid(), None)
    features = scaled(entries, lambda u: (u,), 0.0)
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
    ends = {0.0: [], 1e9: [], None: []}
    for seed in range(4):
        logits, labels, _ = problem(300, 30, seed=seed, shift=6.0, spread=1.0)
        new, truth, _ = problem(4000, 30, seed=seed + 100, shift=6.0, spread=0.0)
        rng = np.random.default_rng(seed)
        rng.normal(size=(300, 30)), rng.random((300, 30))
        new = new + torch.from_numpy(rng.normal(size=30))  # the offsets the labels were fitted with
        for strength in ends:
            link = platt(logits, labels, Sigmoid(), strength=strength, scope="offset")
            ends[strength].append(log_loss(link, new, truth))
    means = {strength: np.mean(losses) for strength, losses in ends.items()}
    assert means[None] < means[1e9]
    assert means[None] < means[0.0]


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
    with pytest.warns(UserWarning, match="scores") as caught:
        link = platt(logits, labels, Sigmoid(), strength=0.0)
    messages = " ".join(str(warning.message) for warning in caught)
    assert "1 labels: scores separate" in messages
    assert "1 labels: scores do not rise" in messages
    assert (link.slope > 0).all()
    assert torch.isfinite(link.log_probs(logits)[0]).all()
    p = link(logits)[:, 1]
    assert p.max() - p.min() < 1e-3
    with pytest.warns(UserWarning, match="the fit: scores separate"):
        platt(logits[:, :1], labels[:, :1], Sigmoid(), scope="shared")


@pytest.mark.parametrize(("scale", "shift"), [(1e-3, 0), (1, 500.0), (1e3, -1e5)])
def test_raw_scores_of_any_unit_are_calibrated_alike(scale, shift):
    logits, labels, _ = problem()
    plain = platt(logits, labels, None, strength=3.0)
    other = platt(scale * logits + shift, labels, None, strength=3.0)
    torch.testing.assert_close(
        other(scale * logits + shift), plain(logits), atol=1e-2 if shift else 1e-4, rtol=0
    )


def test_outliers_do_not_spoil_the_bins():
    logits, labels, _ = problem(6000)
    logits[0, 0], logits[1, 1] = 9000.0, -9000.0
    labels[0, 0], labels[1, 1] = True, False
    link = platt(logits, labels, Sigmoid(), scope="shared")
    slope, offset = logistic_regression(logits.numpy().reshape(-1, 1), labels.numpy().ravel())
    np.testing.assert_allclose(link.slope.tolist(), slope, rtol=1e-3)
    np.testing.assert_allclose(link.offset.tolist(), offset, rtol=1e-3)


def test_joined_and_coarser_bins_keep_sums():
    logits, labels, observed = problem(6000, unknown=True)
    parts = compressed(read_entries(logits, labels, None, observed), 3)
    whole = joined(parts)
    assert isinstance(whole, Bins)
    for bins in (whole, whole.coarser(4)):
        odds, present, weight = (total.sum(0) for total in bins.sums())
        np.testing.assert_allclose(weight, observed.sum(0))
        np.testing.assert_allclose(present, (labels & observed).sum(0))
        expected = (logits * observed).sum(0).double()
        np.testing.assert_allclose(odds, expected, atol=1e-2, rtol=1e-5)
    assert len(whole.u) == len(parts[0].u) == 4 * len(whole.coarser(4).u)


def test_a_sample_of_images_without_known_labels_does_not_spoil_the_bins():
    logits, labels, _ = problem(9000)
    observed = torch.ones_like(labels)
    observed[:: 9000 * 5 // (1 << 14)] = False  # the very images that are sampled
    link = platt(logits, labels, Sigmoid(), observed, scope="shared")
    slope, _ = logistic_regression(logits[observed].numpy()[:, None], labels[observed].numpy())
    np.testing.assert_allclose(link.slope.tolist(), slope, rtol=1e-3)
