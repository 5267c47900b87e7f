"""Oracles: golden vectors, every possible threshold tried one by one, exact intervals of scipy."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from golden import cases
from scipy.stats import binomtest

from labelwise import decide
from labelwise.decide import NEVER, average_k, best_f, fit_rule, precision_at, recall_at


def problem(seed, images=20, labels=4, *, unknown=False):
    rng = np.random.default_rng(seed)
    probs = rng.random((images, labels)).round(2)
    truth = rng.random((images, labels)) < probs
    truth[0] = True
    observed = rng.random((images, labels)) < 0.7 if unknown else None
    if observed is not None:
        observed[0] = True
    return probs, truth, observed


def f_score(beta):
    def f(hits, alarms, positives, negatives, photos):
        both = (1 + beta**2) * hits
        return both / (both + beta**2 * (positives - hits) + alarms)

    return f


def where(reached, price=lambda hits, alarms: (hits, -alarms)):
    """Return what to maximise where a goal is reached: hits, then the fewest alarms."""
    return lambda hits, alarms, *of: price(hits, alarms) if reached(hits, alarms, *of) else None


def cost(alarm, miss):
    return lambda hits, alarms, positives, *of: -alarm * alarms - miss * (positives - hits)


CASES = [(partial(best_f, beta=beta), f_score(beta)) for beta in (0.5, 1.0, 2.0)]
CASES += [
    (partial(decide.least_cost, false_alarm=alarm, miss=miss), cost(alarm, miss))
    for alarm, miss in ((1, 1), (1, 5), (5, 1), (1000, 1))
]
for goal in (0.3, 0.6, 0.9, 1.0):
    precise = partial(lambda goal, hits, alarms, *of: hits >= goal * (hits + alarms), goal)
    found = partial(lambda goal, hits, alarms, of, *_: hits >= goal * of, goal)
    quiet = partial(lambda goal, hits, alarms, p, of, *_: of - alarms >= goal * of, goal)
    rare = partial(lambda most, hits, alarms, p, n, photos: alarms <= most * photos, 1.05 - goal)
    CASES += [
        (partial(precision_at, precision=goal), where(precise)),
        (partial(recall_at, recall=goal), where(found, lambda hits, alarms: -hits - alarms)),
        (partial(decide.specificity_at, specificity=goal), where(quiet)),
        (partial(decide.false_alarms_at, per_photo=1.05 - goal), where(rare)),
    ]


@pytest.mark.filterwarnings("ignore:.*never chosen")
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(("fit", "worth"), CASES)
def test_no_threshold_is_better(fit, worth, unknown):
    """Oracle: every threshold tried one by one, for all labels together and for each."""
    probs, truth, observed = problem(1, unknown=unknown)
    known = np.ones_like(truth) if observed is None else observed
    each = fit(probs, truth, observed, scope="label").value
    shared = fit(probs, truth, observed, scope="shared").value
    for columns, threshold in [(slice(None), shared), *enumerate(each)]:
        seen = known[:, columns]
        p, y = probs[:, columns][seen], truth[:, columns][seen]
        photos = known.any(1).sum() if columns == slice(None) else len(y)
        values = []
        for t in (threshold, *np.unique(p), NEVER):
            counts = (y & (p >= t)).sum(), (~y & (p >= t)).sum(), y.sum(), (~y).sum()
            values.append(worth(*counts, photos))
        assert values[0] == pytest.approx(max(value for value in values if value is not None))


@pytest.mark.parametrize("tie", [False, True])
def test_average_k_golden(tie):
    name = "tie exactly at the cut: sets average 3 instead of 2" if tie else "K=2, n=3"
    case = cases("avgk_threshold")[name]
    probs = np.array(case["inputs"]["probs"])
    warned = pytest.warns(UserWarning, match="sets hold 3 labels on average instead of 2")
    with warned if tie else nullcontext():
        rule = average_k(probs, 2)
    assert rule.value == pytest.approx(case["expected"]["threshold"], rel=1e-6)
    assert rule(probs).sum(1).tolist() == case["expected"]["set_sizes"]


def test_average_k_sets_hold_k_labels():
    probs = np.random.default_rng(0).random((30, 5)).astype(np.float32)
    for k in (0.01, 0.7, 1, 2.33, 5):
        assert average_k(probs, k)(probs).sum() == max(1, round(30 * k))
    probs = probs[:, :2]
    between = "k must lie between 0 and the 2 labels"
    wrong = [(probs, 0, between), (probs, 2.5, between), (probs[0], 1, r"\(images, labels\)")]
    for values, k, words in [*wrong, (np.array([[np.nan, 1]]), 1, "NaN")]:
        with pytest.raises(ValueError, match=words):
            average_k(values, k)


def test_labels_that_cannot_be_fitted_take_the_shared_threshold_or_are_never_chosen():
    probs, truth, _ = problem(4)
    truth[:, 2] = False
    with pytest.warns(UserWarning, match="^1 label has no positive and takes"):
        rule = best_f(probs, truth, scope="label")
    assert rule.value[2] == best_f(probs, truth, scope="shared").value
    with pytest.warns(UserWarning, match="does not reach the precision and is never chosen"):
        assert precision_at(probs, truth, precision=0.5, scope="label").value[2] == NEVER
    loud = np.array([[0.9], [0.5]]), np.array([[0], [1]])
    with pytest.warns(UserWarning, match="does not reach the specificity and is never chosen"):
        assert decide.specificity_at(*loud, specificity=0.9).value == (NEVER,)
    assert decide.least_cost(probs, truth, false_alarm=1, miss=1, scope="label").value[2] == NEVER
    with pytest.raises(ValueError, match="must hold a present entry"):
        best_f(probs, np.zeros_like(truth), scope="shared")


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
    rules.append(decide.control_recall(probs, truth, miss_rate=0.1))
    rules.append(decide.control_false_alarms(probs, truth, rate=0.1))
    for rule in rules:
        np.testing.assert_array_equal(rule(probs.astype(np.float32)), rule(probs))


def test_a_day_holds_as_many_photos_as_it_is_said_to():
    probs, truth, _ = problem(3, images=200)
    rule, words = fit_rule("false-alarms-2/day", probs, truth, photos_per_day=40.0)
    assert rule == fit_rule("false-alarms-50/1000", probs, truth)[0]
    assert rule == decide.false_alarms_at(probs, truth, per_photo=0.05)
    assert words == "at most 2 false alarms per day, at 40 photos a day, per label"


def test_figures_have_the_exact_intervals_of_scipy():
    probs, truth, observed = problem(4, images=300, unknown=True)
    sets, labels = probs >= 0.6, truth
    every = decide.label_figures(sets, labels, observed, names=("a", "b", "c", "d"))
    for k, figures in enumerate(every):
        chosen, present = (side[observed[:, k], k] for side in (sets, labels))
        for found, hits, counted in (
            (figures.specificity, ~chosen & ~present, ~present),
            (figures.false_alarms, chosen & ~present, np.ones_like(chosen)),
            (figures.precision, chosen & present, chosen),
            (figures.recall, chosen & present, present),
        ):
            share = binomtest(int(hits.sum()), int(counted.sum()))
            exact = share.proportion_ci(0.95, "exact")
            assert found == pytest.approx((share.statistic, exact.low, exact.high))
