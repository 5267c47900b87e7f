"""Convex losses and their solver.

Oracles: scikit-learn at a tight tolerance, autograd, the gradient at the optimum, NumPy and torch.
"""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import one_hot

from labelwise.base import newton
from labelwise.base.convex import CoinLoss, ShareLoss
from labelwise.base.newton import Design, minimise

TIGHT = 1e-14


def draw(rows, features=7, labels=4, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(features, labels))
    x = rng.normal(size=(rows, features)) * np.geomspace(0.3, 4, features) + 2
    v = (x - 2) @ truth / features**0.5 - 0.5
    y = rng.random((rows, labels)) < 1 / (1 + np.exp(-v / noise))
    return torch.tensor(x), torch.tensor(y).double()


def optimum(x, loss, l2, *, scaled=False, tolerance=TIGHT):
    design = Design.of(x, scaled=scaled)
    start = design.rows.new_zeros(design.rows.shape[1], loss.num_labels)
    weights = torch.as_tensor(l2, dtype=torch.float64).expand(1, loss.num_labels)
    return design.linear(minimise(design, loss, weights, start, tolerance=tolerance))


def test_parts_of_features_are_scaled_apart():
    """Oracle: the formula, by NumPy; a heavier part counts as larger features do."""
    x, _ = draw(60, seed=4)
    spread = x.numpy().std(0)
    parts = [np.sqrt((own**2).mean()) for own in (spread[:3], spread[3:])]
    typical = np.repeat([parts[0], parts[1] / 2], [3, 4])
    scale = Design.of(x.numpy(), parts=((3, 1.0), (4, 2.0))).scale
    np.testing.assert_allclose(scale, np.sqrt(spread * typical), rtol=1e-12)
    plain = np.sqrt(spread * np.sqrt((spread**2).mean()))
    np.testing.assert_allclose(Design.of(x).scale, plain, rtol=1e-12)


@pytest.mark.parametrize("rows", [200, 5])  # more rows than features, and fewer
@pytest.mark.parametrize("l2", [1e-2, 1.0, 100.0])
def test_the_optimum_is_scikit_learns(rows, l2):
    x, y = draw(rows, seed=3)
    y[0], y[1] = 0, 1  # both kinds in every label
    weight, bias = optimum(x, CoinLoss(y, 1 - y), l2)
    for label in range(4):
        assert_scikit_learns(weight[:, label], bias[label], 1 / l2, x, y[:, label])


def assert_scikit_learns(weight, bias, inverse, *rows):
    peer = LogisticRegression(C=inverse, solver="newton-cholesky", tol=1e-12, max_iter=500)
    peer.fit(*rows)
    np.testing.assert_allclose(weight, peer.coef_[0], atol=1e-6)
    np.testing.assert_allclose(bias, peer.intercept_[0], atol=1e-5)


def test_weights_masks_and_soft_labels_are_rows_of_scikit_learn_with_weights():
    x, _ = draw(150, seed=1)
    rng = np.random.default_rng(0)
    soft = torch.tensor(rng.random((150, 4)))
    known = torch.tensor(rng.random((150, 4)) < 0.7).double()
    weight, bias = optimum(x, CoinLoss(known * soft, 3 * known * (1 - soft)), 0.5)
    for label in range(4):
        w, share = known[:, label], soft[:, label]
        rows = (
            torch.cat([x, x]),
            np.repeat([1, 0], 150),
            torch.cat([w * share, 3 * w * (1 - share)]),
        )
        assert_scikit_learns(weight[:, label], bias[label], 2, *rows)


def test_the_softmax_is_scikit_learns():
    x, _ = draw(200, seed=2)
    classes = torch.tensor(np.random.default_rng(5).integers(0, 4, 200))
    classes[x[:, 6] > 3] = 2
    weight, bias = optimum(x, ShareLoss(one_hot(classes, 4).double()), 2.0)
    peer = LogisticRegression(C=0.5, solver="lbfgs", tol=1e-10, max_iter=5000).fit(x, classes)
    np.testing.assert_allclose((x @ weight + bias).softmax(1), peer.predict_proba(x), atol=1e-5)
    np.testing.assert_allclose(weight.T, peer.coef_, atol=1e-4)


def losses():
    rng = np.random.default_rng(0)
    part = torch.tensor(rng.random((2, 9, 5)))
    compete = torch.tensor(rng.random((9, 5)) < 0.6)
    compete[0] = False  # a row of which nothing is known
    shares = part[0] * compete
    return {
        "coins": CoinLoss(*part),
        "softmax": ShareLoss(part[0], temperature=0.7),
        "masked": ShareLoss(shares, compete),
        "none": ShareLoss(shares, compete, part[1, :, 0]),
    }


@pytest.mark.parametrize("name", losses())
def test_gradient_and_curvature_are_autograds(name):
    loss = losses()[name]
    logits = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(loss.sums(logits).sum(), logits, create_graph=True)
    found = loss.derivatives(logits)
    torch.testing.assert_close(found.gradient, gradient)
    u = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (bent,) = torch.autograd.grad((gradient * u).sum(), logits)
    torch.testing.assert_close(found.times(u), bent)
    eye = torch.eye(5, dtype=torch.float64)
    diagonal = torch.stack([found.times(eye[k].expand(9, 5))[:, k] for k in range(5)], dim=1)
    torch.testing.assert_close(found.curvature, diagonal.mean(dim=0, keepdim=True))


def test_the_gradient_vanishes_also_where_labels_can_be_separated():
    x, y = draw(60, features=40, seed=7, noise=0.1)
    l2 = torch.tensor([1e-4, 1e-2, 1.0, 1e4], dtype=torch.float64)
    weight, bias = optimum(x, CoinLoss(y, 1 - y), l2, scaled=True)
    spread = x.std(dim=0, correction=0)
    scale = (spread * spread.square().mean().sqrt()).sqrt()
    residual = torch.sigmoid(x @ weight + bias) - y
    gradient = x.T @ residual / scale[:, None] + l2 * weight * scale[:, None]
    at_zero = (x.T @ (0.5 - y)).abs().max()
    assert (gradient.abs().max() / at_zero) < 1e-6
    assert residual.sum(dim=0).abs().max() < 1e-5


def test_a_sure_and_right_logit_keeps_its_digits():
    # Oracle: log(1 + exp(-|v|)) and exp(-|v|) / (1 + exp(-|v|)) in float64.
    v = torch.tensor([[0.5, 5.0, 12.0, 18.0, 30.0, 80.0]])
    small = (-v.double()).exp()
    one, zero = torch.ones_like(v), torch.zeros_like(v)
    for sign, loss in ((1, CoinLoss(one, zero)), (-1, CoinLoss(zero, one))):
        at = loss.derivatives(sign * v)
        expected = small / (1 + small)
        exactly = {"rtol": 1e-5, "atol": 0, "check_dtype": False}
        torch.testing.assert_close(loss.rows(sign * v), small.log1p(), **exactly)
        torch.testing.assert_close(at.gradient, -sign * expected, **exactly)
        torch.testing.assert_close(at.times(one), expected / (1 + small), **exactly)


class CountedSteps(ShareLoss):
    """A softmax whose derivatives are counted: one per Newton step."""

    steps = 0

    def derivatives(self, logits):
        CountedSteps.steps += 1
        return super().derivatives(logits)


def test_a_problem_that_only_rounding_keeps_from_its_tolerance_ends():
    x, _ = draw(60)
    classes = (x[:, 6] > 2).long()
    design = Design.of(x).rough()
    start = design.rows.new_zeros(design.rows.shape[1], 2)
    loss = CountedSteps(one_hot(classes, 2).float())
    w = minimise(design, loss, torch.full((1, 2), 1e-5), start, tolerance=0)
    assert CountedSteps.steps < newton.NEWTON_STEPS // 2
    assert ((design.rows @ w).argmax(dim=1) == classes).all()


def test_a_label_that_is_never_present_comes_to_rest_at_half_an_entry():
    """Oracle: log-odds of counts, half an entry more of what lacks, a quarter of the rest."""
    x, y = draw(80, seed=8)
    y[:, 1], y[:, 2] = 0, 1
    known = torch.ones_like(y)
    known[:40, 1] = 0
    loss = CoinLoss(known * y, known * (1 - y)).bounded()
    weight, bias = optimum(x, loss, 1.0)
    assert bias[2] == pytest.approx(np.log(80.25 / 0.5), rel=1e-6)
    assert weight[:, 2].abs().max() < 1e-8
    probs = torch.sigmoid(x @ weight + bias)[40:, 1]
    assert probs.mean() == pytest.approx(0.5 / 40.75, rel=0.1)
    shares = one_hot(torch.arange(80) % 3, 4).double()
    _, bias = optimum(x, ShareLoss(shares).bounded(), 1.0)
    assert bias.isfinite().all()


def test_a_label_of_which_nothing_is_known_leaves_the_others_as_they_are():
    """Oracle: the same labels without it; it says one half of every row."""
    x, y = draw(80, seed=8)
    known = torch.ones_like(y)
    known[:, 1] = 0
    others = [column for column in range(y.shape[1]) if column != 1]

    def solved(columns):
        loss = CoinLoss(known * y, known * (1 - y)).columns(columns).bounded()
        weight, bias = optimum(x, loss, 1.0)
        return x @ weight + bias

    found = solved(slice(None))
    torch.testing.assert_close(found[:, others], solved(torch.tensor(others)), atol=1e-4, rtol=1e-4)
    assert found[:, 1].abs().max() < 1e-8


@pytest.mark.parametrize("name", ["coins", "softmax", "masked", "none"])
def test_arrays_give_what_tensors_give(name):
    loss = losses()[name]
    arrays = loss.each(lambda values: values.numpy())
    logits = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, theirs = arrays.derivatives(logits.numpy()), loss.derivatives(logits)
    np.testing.assert_allclose(arrays.rows(logits.numpy()), loss.rows(logits), rtol=1e-12)
    np.testing.assert_allclose(ours.gradient, theirs.gradient, atol=1e-14)
    np.testing.assert_allclose(ours.times(logits.numpy()), theirs.times(logits), atol=1e-14)
    np.testing.assert_allclose(arrays.bounded().prior(), loss.bounded().prior(), rtol=1e-12)


def test_a_feature_that_never_changes_has_no_weight():
    x, y = draw(50)
    x[:, 3] = 7.0
    weight, _ = optimum(x, CoinLoss(y, 1 - y), 1.0, scaled=True)
    assert weight[3].abs().max() < 1e-12
