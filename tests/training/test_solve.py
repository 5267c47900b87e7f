"""Solved heads. Oracles: scikit-learn at a tight tolerance, autograd, the optimum's gradient."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import one_hot

from labelwise.base.convex import CoinLoss, ShareLoss
from labelwise.training import solve as solver
from labelwise.training.solve import _Design as Design
from labelwise.training.solve import minimise, solve

TIGHT = 1e-14


def draw(rows, features=7, labels=4, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(features, labels))
    x = rng.normal(size=(rows, features)) * np.geomspace(0.3, 4, features) + 2
    v = (x - 2) @ truth / features**0.5 - 0.5
    y = rng.random((rows, labels)) < 1 / (1 + np.exp(-v / noise))
    return torch.tensor(x), torch.tensor(y).double()


def optimum(x, loss, l2, *, standardise=False, tolerance=TIGHT):
    design = Design.of(x, standardise=standardise)
    start = design.rows.new_zeros(design.rows.shape[1], loss.num_labels)
    weights = torch.as_tensor(l2, dtype=torch.float64).expand(1, loss.num_labels)
    return design.linear(minimise(design, loss, weights, start, tolerance=tolerance))


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
    weight, bias = optimum(x, CoinLoss(y, 1 - y), l2, standardise=True)
    scale = x.std(dim=0, correction=0)
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
    design = Design.of(x).to(torch.float32)
    start = design.rows.new_zeros(design.rows.shape[1], 2)
    loss = CountedSteps(one_hot(classes, 2).float())
    w = minimise(design, loss, torch.full((1, 2), 1e-5), start, tolerance=0)
    assert CountedSteps.steps < solver.NEWTON_STEPS // 2
    assert ((design.rows @ w).argmax(dim=1) == classes).all()


def test_a_label_that_is_never_present_comes_to_rest_at_half_an_entry():
    x, y = draw(80, seed=8)
    y[:, 1], y[:, 2] = 0, 1
    known = torch.ones_like(y)
    known[:40, 1] = 0
    loss = CoinLoss(known * y, known * (1 - y)).bounded()
    weight, bias = optimum(x, loss, 1.0)
    assert bias[2] == pytest.approx(np.log(80 / 0.5), rel=1e-6)
    assert weight[:, 2].abs().max() < 1e-8
    probs = torch.sigmoid(x @ weight + bias)[40:, 1]
    assert probs.mean() == pytest.approx(0.5 / 40.5, rel=0.1)
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
        ones, zeros = known * y, known * (1 - y)
        one = CoinLoss(ones[:60], zeros[:60]).columns(columns)
        other = CoinLoss(ones[60:], zeros[60:]).columns(columns)
        return solve(x[:60], one, x[60:], other).logits(x)

    found = solved(slice(None))
    torch.testing.assert_close(found[:, others], solved(torch.tensor(others)), atol=1e-4, rtol=1e-4)
    assert found[:, 1].abs().max() < 1e-8


def test_a_feature_that_never_changes_has_no_weight():
    x, y = draw(50)
    x[:, 3] = 7.0
    weight, _ = optimum(x, CoinLoss(y, 1 - y), 1.0, standardise=True)
    assert weight[3].abs().max() < 1e-12


@pytest.mark.parametrize("joint", [False, True])
def test_the_weight_is_the_one_that_is_best_on_validation(joint):
    def loss(y):
        return ShareLoss(y / y.sum(1, keepdim=True).clamp(min=1)) if joint else CoinLoss(y, 1 - y)

    x, y = draw(100, features=30, seed=1, noise=2.0)
    vx, vy = draw(4000, features=30, seed=2, noise=2.0)
    solved = solve(x, loss(y), vx, loss(vy), tolerance=TIGHT)

    def validation(l2):
        weight, bias = optimum(x, loss(y).bounded(), l2, standardise=True)
        return loss(vy).sums(vx @ weight + bias).sum().item() / len(vx)

    curve = {l2: validation(l2) for l2 in 100 * np.logspace(-3, 0, 25)}
    weight, bias = optimum(x, loss(y).bounded(), solved.l2, standardise=True)
    torch.testing.assert_close(solved.weight, weight, atol=1e-5, rtol=1e-5)
    shift = (solved.bias - bias).mean() if joint else 0.0  # a softmax does not know its level
    torch.testing.assert_close(solved.bias - shift, bias, atol=1e-4, rtol=1e-5)
    reached = loss(vy).sums(solved.logits(vx)).sum().item() / len(vx)
    assert reached < min(curve.values()) * 1.002


def test_a_label_leaves_the_common_weight_as_far_as_its_validation_rows_speak_for_it():
    rng = np.random.default_rng(0)
    x, vx = torch.tensor(rng.normal(size=(120, 60))), torch.tensor(rng.normal(size=(3000, 60)))

    def labels(rows, seed):
        chance = np.random.default_rng(seed).random((len(rows), 4))
        clear = torch.sigmoid(30 * rows[:, :1])  # learnt with a weak weight; the others are noise
        odds = torch.cat([clear, torch.full((len(rows), 3), 0.3, dtype=rows.dtype)], dim=1)
        return (torch.tensor(chance) < odds).double()

    y, vy = labels(x, 1), labels(vx, 2)
    l2 = solve(x, CoinLoss(y, 1 - y), vx, CoinLoss(vy, 1 - vy)).l2
    assert l2[0] < l2[1:].min() / 3
    few = slice(5)
    l2 = solve(x, CoinLoss(y, 1 - y), vx[few], CoinLoss(vy[few], 1 - vy[few])).l2
    assert l2.max() < 3 * l2.min()


class Counted(CoinLoss):
    """Keeps how many labels it was ever asked for at once."""

    most = 0

    def derivatives(self, logits):
        Counted.most = max(Counted.most, logits.shape[1])
        return super().derivatives(logits)


def test_labels_in_portions_are_solved_as_all_at_once(monkeypatch):
    # Oracle: the solution with all labels in memory.
    x, y = draw(120, labels=7, seed=5)
    vx, vy = draw(200, labels=7, seed=6)
    y, vy = y.to(torch.uint8), vy.to(torch.uint8)  # as they are kept until they are needed
    y[:, 4] = 0  # a label that is never present gets its half entry in its own portion
    tried = {}, {}
    given = {"tolerance": TIGHT, "tried": tried[0].__setitem__}
    expected = solve(x, CoinLoss(y, 1 - y), vx, CoinLoss(vy, 1 - vy), **given)
    monkeypatch.setattr(solver, "AT_ONCE", 3 * 120 + 5)
    monkeypatch.setattr(Counted, "most", 0)
    given["tried"] = tried[1].__setitem__
    found = solve(x, Counted(y, 1 - y), vx, CoinLoss(vy, 1 - vy), **given)
    assert Counted.most == 3
    assert tried[1] == pytest.approx(tried[0], rel=1e-4)
    for name, close in (("l2", 0), ("weight", 1e-4), ("bias", 1e-4)):
        one, other = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=close)
