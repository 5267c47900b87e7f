"""Oracles: golden vectors, and every possible threshold tried one by one."""

import numpy as np
import pytest
import torch
from golden import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score

from labelwise.decide import (
    NEVER,
    Threshold,
    average_k,
    best_f,
    control_false_alarms,
    control_recall,
    least_cost,
    precision_at,
    recall_at,
)

AVERAGE_K = cases("avgk_threshold")


def problem(seed, images=20, labels=4, *, unknown=False):
    rng = np.random.default_rng(seed)
    probs = rng.random((images, labels)).round(2)
    truth = rng.random((images, labels)) < probs
    truth[0] = True
    observed = rng.random((images, labels)) < 0.7 if unknown else None
    if observed is not None:
        observed[0] = True
    return probs, truth, observed


def every_threshold(probs):
    return [*np.unique(probs), NEVER]


def entries(probs, truth, observed):
    return (probs[observed], truth[observed]) if observed is not None else (probs, truth)


def test_average_k_golden():
    case = AVERAGE_K["K=2, n=3"]
    probs = np.array(case["inputs"]["probs"])
    rule = average_k(probs, case["params"]["K"])
    assert rule.value == pytest.approx(case["expected"]["threshold"], rel=1e-9)
    assert rule(probs).sum(1).tolist() == case["expected"]["set_sizes"]


def test_average_k_warns_of_a_tie_at_the_cut():
    case = AVERAGE_K["tie exactly at the cut: sets average 3 instead of 2"]
    probs = np.array(case["inputs"]["probs"])
    with pytest.warns(UserWarning, match="sets hold 3 labels on average instead of 2"):
        rule = average_k(probs, 2)
    assert rule.value == pytest.approx(case["expected"]["threshold"], rel=1e-6)
    assert rule(probs).sum(1).tolist() == case["expected"]["set_sizes"]


def test_average_k_depends_on_the_link():
    case = AVERAGE_K["same logits, softmax vs sigmoid scores give different sets (K=1)"]
    logits = torch.tensor(case["inputs"]["logits"], dtype=torch.float64)
    for name, probs in (("softmax", logits.softmax(1)), ("sigmoid", logits.sigmoid())):
        rule = average_k(probs, 1)
        assert rule.value == pytest.approx(case["expected"][f"threshold_{name}"], rel=1e-9)
        sets = [row.nonzero().flatten().tolist() for row in rule(probs)]
        assert sets == case["expected"][f"sets_{name}"]


@given(st.integers(0, 10**6), st.floats(0.05, 5))
@settings(max_examples=50, deadline=None)
def test_average_k_sets_hold_k_labels(seed, k):
    probs = np.random.default_rng(seed).random((30, 5)).astype(np.float32)
    size = average_k(probs, k)(probs).sum()
    assert size == max(1, round(30 * k))


def test_average_k_of_all_labels_and_wrong_k():
    probs = np.array([[0.2, 0.5], [0.1, 0.9]])
    assert average_k(probs, 2)(probs).all()
    for k in (0, 2.5):
        with pytest.raises(ValueError, match="k must lie between 0 and the 2 labels"):
            average_k(probs, k)
    with pytest.raises(ValueError, match=r"\(images, labels\)"):
        average_k(probs[0], 1)
    with pytest.raises(ValueError, match="NaN"):
        average_k(np.array([[np.nan, 1]]), 1)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_best_f_beats_every_threshold(beta, unknown):
    probs, truth, observed = problem(1, unknown=unknown)
    p, y = entries(probs, truth, observed)
    best = max(fbeta_score(y.ravel(), (p >= t).ravel(), beta=beta) for t in every_threshold(p)[:-1])
    rule = best_f(probs, truth, observed, beta=beta, scope="shared")
    assert fbeta_score(y.ravel(), rule(p).ravel(), beta=beta) == pytest.approx(best)
    each = best_f(probs, truth, observed, beta=beta, scope="label")
    for k in range(4):
        p, y = entries(probs[:, k], truth[:, k], None if observed is None else observed[:, k])
        best = max(fbeta_score(y, p >= t, beta=beta) for t in every_threshold(p)[:-1])
        assert fbeta_score(y, p >= each.value[k], beta=beta) == pytest.approx(best)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("goal", [0.3, 0.6, 0.9, 1.0])
def test_precision_and_recall_goals_are_met_at_the_best_price(goal, unknown):
    probs, truth, observed = problem(2, unknown=unknown)
    p, y = entries(probs, truth, observed)

    def precision(t):
        return y[p >= t].mean() if (p >= t).any() else 0.0

    def recall(t):
        return (p >= t)[y].mean()

    reached = [t for t in every_threshold(p) if precision(t) >= goal]
    if reached:
        t = precision_at(probs, truth, observed, precision=goal, scope="shared").value
        assert precision(t) >= goal
        assert recall(t) == max(recall(t) for t in reached)
    t = recall_at(probs, truth, observed, recall=goal, scope="shared").value
    assert recall(t) >= goal
    assert (p >= t).sum() == min((p >= t).sum() for t in every_threshold(p) if recall(t) >= goal)


@pytest.mark.parametrize(("false_alarm", "miss"), [(1, 1), (1, 5), (5, 1), (1000, 1)])
def test_least_cost_beats_every_threshold(false_alarm, miss):
    probs, truth, _ = problem(3)

    def cost(t):
        return false_alarm * ((probs >= t) & ~truth).sum() + miss * ((probs < t) & truth).sum()

    t = least_cost(probs, truth, false_alarm=false_alarm, miss=miss, scope="shared").value
    assert cost(t) == min(map(cost, every_threshold(probs)))


def test_labels_that_cannot_be_fitted_take_the_shared_threshold_or_are_never_chosen():
    probs, truth, _ = problem(4)
    truth[:, 2] = False
    with pytest.warns(UserWarning, match="^1 label has no positive and takes"):
        rule = best_f(probs, truth, scope="label")
    assert rule.value[2] == best_f(probs, truth, scope="shared").value
    with pytest.warns(UserWarning, match="does not reach the precision and is never chosen"):
        assert precision_at(probs, truth, precision=0.5, scope="label").value[2] == NEVER
    assert least_cost(probs, truth, false_alarm=1, miss=1, scope="label").value[2] == NEVER
    with pytest.raises(ValueError, match="must hold a present entry"):
        best_f(probs, np.zeros_like(truth), scope="shared")


def test_thresholds_lie_between_scores():
    probs = np.array([[0.2], [0.4], [0.8], [0.9]], dtype=np.float32)
    truth = np.array([[0], [0], [1], [1]])
    assert best_f(probs, truth, scope="shared").value == pytest.approx(0.6)
    assert best_f(probs, np.ones_like(truth), scope="shared").value == pytest.approx(0.1)


@pytest.mark.parametrize("fit", [best_f, lambda *a: recall_at(*a, recall=0.8)])
def test_torch_and_numpy_and_masked_rubbish_agree(fit):
    probs, truth, observed = problem(5, unknown=True)
    tensors = torch.from_numpy(probs), torch.from_numpy(truth), torch.from_numpy(observed)
    rubbish = np.where(observed, truth, -1), np.where(observed, probs, np.nan)
    assert fit(*tensors) == fit(probs, truth, observed) == fit(rubbish[1], rubbish[0], observed)


@pytest.mark.parametrize("levels", [3, 40])
def test_rules_fitted_in_float64_decide_the_same_in_float32(levels):
    """Probabilities of an isotonic or histogram link repeat, and the cut is one of them."""
    rng = np.random.default_rng(levels)
    probs = rng.random(levels)[rng.integers(levels, size=(200, 5))]
    with np.errstate(all="ignore"), pytest.warns(UserWarning, match="several probabilities"):
        average = average_k(probs, 2)
    truth = rng.random(probs.shape) < probs
    rules = [average, best_f(probs, truth), recall_at(probs, truth, recall=0.9, scope="shared")]
    rules += [
        control_recall(probs, truth, miss_rate=0.1),
        control_false_alarms(probs, truth, rate=0.1),
    ]
    for rule in rules:
        np.testing.assert_array_equal(rule(probs.astype(np.float32)), rule(probs))


def test_values_are_plain_numbers():
    assert isinstance(Threshold(np.float32(0.5)).value, float)
    assert Threshold(torch.tensor([0.5, 1])) == Threshold((0.5, 1.0))
