"""Rules. Oracles: every possible threshold tried one by one, golden vectors, intervals of scipy."""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from golden import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.special import expit, logit
from scipy.stats import binomtest

from labelwise import decide
from labelwise.decide import (
    NEVER,
    AtMost,
    ExpectedF,
    OnePerGroup,
    Threshold,
    TopK,
    average_k,
    best_f,
    by_group,
    control_f,
    control_precision,
    control_recall,
    find_rule,
    fit_rule,
    precision_at,
    recall_at,
)
from labelwise.decide.audits import Audit
from labelwise.decide.estimate import recall_of
from labelwise.decide.parse_rule import CANDIDATES, choose_rule, mean_f_of
from labelwise.decide.rules import WithParents, expected_f
from labelwise.decide.thresholds import HALF_WAY, control_false_alarms, shrunken_f
from labelwise.errors import DataError, SettingsError
from labelwise.learn.methods import rule_from_spec, rule_to_spec


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


# Oracles: the definition on every threshold, MAPIE's grid, and the promise by simulation.


def draw(rng, images, labels=6, empty=0.3):
    """Images with labels of chance p, a share of them without any; scores are not calibrated."""
    logits = rng.normal(size=(images, labels)) * 1.5 - 0.5
    truth = rng.random((images, labels)) < 1 / (1 + np.exp(-logits))
    truth[rng.random(images) < empty] = False
    return 1 / (1 + np.exp(-(0.5 * logits + 0.3 * rng.normal(size=logits.shape)))), truth


def part(some, of):
    """Return the share of each row's ``of`` that is ``some``; 0 of none."""
    return (some & of).sum(1) / of.sum(1).clip(1)


def f1(probs, truth, t):
    chosen = probs >= t
    total = chosen.sum(1) + truth.sum(1)
    return np.where(total > 0, 2 * (chosen & truth).sum(1) / np.maximum(total, 1), 1.0)


@pytest.mark.parametrize("level", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("decimals", [2, 12])
def test_thresholds_are_the_extreme_ones_that_the_definition_allows(level, decimals):
    rng = np.random.default_rng(0)
    probs, truth = draw(rng, 60)
    probs = probs.round(decimals)
    candidates = np.unique(np.r_[0.0, probs.ravel(), np.nextafter(probs.ravel(), 2), NEVER])

    def assert_extreme(found, losses, last, default, p=probs):
        risks = np.array([(loss.sum() + 1) / (len(loss) + 1) for loss in losses])
        fine = candidates[risks <= level + 1e-12].tolist()
        np.testing.assert_array_equal(p >= found, p >= last(fine, default=default))

    missed = np.array([part(probs < c, truth) for c in candidates])
    assert_extreme(control_recall(probs, truth, miss_rate=level).value, missed, max, 0.0)
    found = control_recall(probs, truth, miss_rate=level, among="labelled").value
    assert_extreme(found, missed[:, truth.any(1)], max, 0.0)
    found = control_recall(probs, truth, miss_rate=level, scope="label").value[0]
    own = probs[truth[:, 0], 0]
    assert_extreme(found, [own < c for c in candidates], max, 0.0, probs[:, 0])
    alarms = np.array([part(probs >= c, ~truth) for c in candidates])
    assert_extreme(control_false_alarms(probs, truth, rate=level).value, alarms, min, NEVER)
    found = control_false_alarms(probs, truth, rate=level, count="any").value
    assert_extreme(found, alarms > 0, min, NEVER)
    wrong = np.array([part(~truth, probs >= c) for c in candidates])
    worst = np.maximum.accumulate(wrong[::-1])[::-1]
    assert_extreme(control_precision(probs, truth, wrong_rate=level).value, worst, min, NEVER)


def test_the_f_that_can_be_shown_is_that_of_the_best_threshold_less_its_doubt():
    probs, truth = draw(np.random.default_rng(8), 500)
    best = max(f1(probs, truth, t / 10).mean() for t in range(1, 10))
    shown = best - np.sqrt(np.log(10) / 1000)
    found = control_f(probs, truth, level=shown - 1e-9)
    assert f1(probs, truth, found.value).mean() == best
    with pytest.raises(ValueError, match=f"{shown:.3f} can; use more images"):
        control_f(probs, truth, level=shown + 1e-9)
    single = control_f(probs, truth, level=shown, thresholds=[found.value])
    assert single == found


def test_unknown_entries_leave_sums_and_counts():
    rng = np.random.default_rng(3)
    probs, truth = draw(rng, 100)
    observed = np.ones_like(truth)
    observed[50:] = False
    hidden = np.where(observed, truth, 1)
    options = {control_recall: "miss_rate", control_false_alarms: "rate"}
    for fit, option in {**options, control_precision: "wrong_rate", control_f: "level"}.items():
        expected = fit(probs[:50], truth[:50], **{option: 0.2})
        assert fit(probs, hidden, observed, **{option: 0.2}) == expected
        assert fit(*map(torch.from_numpy, (probs, hidden, observed)), **{option: 0.2}) == expected


def test_too_few_images_give_the_safe_answer():
    probs, truth = np.array([[0.5, 0.6]]), np.array([[1, 0]])
    assert control_recall(probs, truth, miss_rate=0.1).value == 0.0
    assert control_false_alarms(probs, truth, rate=0.1).value == NEVER
    assert control_precision(probs, truth, wrong_rate=0.1).value == NEVER
    label = control_recall(probs, truth, miss_rate=0.1, scope="label")
    assert label.value == (0.0, 0.0)
    assert control_false_alarms(probs, truth, rate=0.1, scope="label").value == (NEVER, NEVER)


def test_each_group_keeps_its_own_promise():
    rng = np.random.default_rng(5)
    probs, truth = draw(rng, 400)
    groups = np.where(np.arange(400) % 2 == 0, "day", "night")
    probs[groups == "night"] **= 3
    rules = by_group(control_recall, probs, truth, groups, miss_rate=0.1)
    for name in ("day", "night"):
        rows = groups == name
        rule = rules.rules[name]
        assert rule == control_recall(probs[rows], truth[rows], miss_rate=0.1)
        np.testing.assert_array_equal(rules(probs, groups)[rows], probs[rows] >= rule.value)
    observed = rng.random(truth.shape) < 0.5
    masked = by_group(control_recall, probs, truth, groups, observed, miss_rate=0.1)
    rows = groups == "day"
    expected = control_recall(probs[rows], truth[rows], observed[rows], miss_rate=0.1)
    assert masked.rules["day"] == expected != rules.rules["day"]
    with pytest.raises(DataError, match="no rule was fitted for group 'nigh'; did you mean"):
        rules(probs[:1], np.array(["nigh"]))
    with pytest.raises(ValueError, match="groups must name each of the 400 images"):
        by_group(control_recall, probs, truth, groups[:3], miss_rate=0.1)


# Oracles: a sort of each row by hand, brute force over all sets, plain comparisons, JSON.

PROBS = arrays(
    np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(0, 1)
)


@given(PROBS, st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_top_k_takes_lower_columns_of_equal_ones(probs, k):
    expected = np.zeros(probs.shape, bool)
    for row, values in enumerate(probs):
        best = sorted(range(len(values)), key=lambda column: (-values[column], column))[:k]
        expected[row, best] = True
    np.testing.assert_array_equal(TopK(k)(probs), expected)
    np.testing.assert_array_equal(TopK(k)(torch.from_numpy(probs)).numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_threshold_compares_each_label_with_its_own(dtype):
    probs = torch.tensor([[0.5, 0.25, 1.0], [0.75, 0.5, 0.0]], dtype=dtype)
    assert Threshold(0.5)(probs).tolist() == [[True, False, True], [True, True, False]]
    each = Threshold((0.75, 0.25, NEVER))
    assert each(probs).tolist() == [[False, True, False], [True, True, False]]
    if dtype != torch.bfloat16:
        assert each(probs.numpy()).tolist() == each(probs).tolist()


def test_threshold_tells_neighbouring_float32_numbers_apart():
    for low in np.linspace(0.1, 0.9, 20, dtype=np.float32):
        high = np.nextafter(low, np.float32(1))
        middle = (float(low) + float(high)) / 2
        for probs in (np.array([[low, high]]), torch.tensor([[low, high]])):
            assert Threshold(middle)(probs).tolist() == [[False, True]]


RULES = [TopK(3), Threshold(0.1), Threshold((0.1, NEVER)), ExpectedF(2.0)]
RULES += [AtMost(Threshold(0.4), 3), OnePerGroup(TopK(1), ((0, 3, 1),), ((2, 5),))]


@pytest.mark.parametrize("rule", RULES)
def test_rules_survive_json(rule):
    assert rule_from_spec(json.loads(json.dumps(rule_to_spec(rule)))) == rule


def brute_force(p, beta, chosen):
    """Expected F of one set: the sum over all label sets."""
    total = 0.0
    for truth in product([0, 1], repeat=len(p)):
        chance = np.prod(np.where(truth, p, 1 - p))
        size = chosen.sum() + beta**2 * sum(truth)
        total += chance * ((1 + beta**2) * (chosen * truth).sum() / size if size else 1.0)
    return total


@given(
    arrays(np.float64, st.integers(1, 5), elements=st.floats(0, 1)),
    st.sampled_from([0.5, 1.0, 2.0]),
)
@settings(max_examples=25, deadline=None)
def test_expected_f_is_the_best_of_all_sets(p, beta):
    sets = [np.array(chosen) for chosen in product([0, 1], repeat=len(p))]
    best = max(brute_force(p, beta, chosen) for chosen in sets)
    found = ExpectedF(beta)(p[None])[0]
    assert brute_force(p, beta, found) == pytest.approx(best, abs=1e-9)


def test_expected_f_of_each_size_is_exact():
    p = np.array([0.9, 0.6, 0.3, 0.2])
    found = expected_f(p[None], 1.0)[0]
    expected = [brute_force(p, 1.0, np.arange(4) < size) for size in range(len(found))]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_expected_f_of_many_labels_drops_nothing_that_matters():
    rng = np.random.default_rng(0)
    ranked = -np.sort(-(rng.random((3, 300)) ** 20), axis=1)
    found = expected_f(ranked, 1.0)
    draws = rng.random((20_000, 300)) < ranked[0]
    hits, size = draws[:, :5].sum(1), 5 + draws.sum(1)
    assert found[0, 5] == pytest.approx((2 * hits / size).mean(), abs=1e-2)
    assert found.shape[1] < 300


def test_a_rule_says_what_it_chooses():
    assert str(AtMost(TopK(3), 2)).startswith("the 3 most probable labels of each image, and of")
    assert "with what these are kinds of" in str(WithParents(TopK(3), (-1, 0)))
    assert "with one label of each group" in str(OnePerGroup(TopK(3), ((0, 1),)))
    assert "at its own threshold (2 different ones)" in str(Threshold((0.1, 0.2, 0.2)))


# Rules, thresholds, checks and answers that cannot be meant get one sentence.

RNG = np.random.default_rng(0)
P = expit(RNG.normal(size=(20, 4)))
Y = RNG.random((20, 4)) < P
Y[0] = True
LIST = decide.Promise("list", 0.9, 0.95, 400, 50, 0.95, "photos", "2026-01-01", "exact", listed=5)
EXPECTED = replace(LIST, kind="expected", confidence=None)
RECALL = decide.Promise("recall", 0.9, 0.95, 400, 400, 0.92, "photos", "2026-01-01", "exact")

WRONG = [
    (lambda: decide.TopK(0), "k must be at least 1, got 0"),
    (lambda: decide.Threshold(float("nan")), "must be one number or one per label"),
    (lambda: decide.Threshold((0.1, 0.2))(np.zeros((4, 3))), "one column per threshold"),
    (lambda: decide.ExpectedF(0), "beta must be positive"),
    (lambda: decide.ExpectedF()(np.zeros(3)), r"probs must be \(N, K\), got shape \(3,\)"),
    (lambda: decide.ExpectedF()(np.array([[1.5]])), r"probs must lie in \[0, 1\]"),
    (lambda: decide.best_f(P, Y[:2]), "shape of probs"),
    (lambda: decide.best_f(P[0], Y[0]), "must be .N, K."),
    (lambda: decide.best_f(P, Y * 0.5), "labels must be 0 or 1 where they are observed, got 0.5"),
    (lambda: decide.best_f(P * np.nan, Y), "must not be NaN"),
    (lambda: decide.best_f(P, Y, beta=0), "beta must be positive"),
    (lambda: decide.best_f(P, Y, scope="all"), "scope must be"),
    (lambda: decide.precision_at(P, Y, precision=0), "precision must lie in"),
    (lambda: decide.recall_at(P, Y, recall=1.1), "recall must lie in"),
    (lambda: decide.least_cost(P, Y, false_alarm=0, miss=1), "costs must be positive"),
    (lambda: decide.control_recall(P, Y, miss_rate=0), "miss_rate must lie strictly"),
    (lambda: decide.control_recall(P, Y, miss_rate=0.1, among="some"), "no such among"),
    (lambda: decide.control_recall(P, Y, miss_rate=0.1, scope="x"), "scope must be"),
    (lambda: decide.control_false_alarms(P, Y, rate=1), "rate must lie strictly"),
    (lambda: decide.control_false_alarms(P, Y, rate=0.1, count="x"), "no such count"),
    (lambda: decide.control_precision(P, Y, wrong_rate=1), "wrong_rate must lie strictly"),
    (lambda: decide.control_f(P, Y, level=0), "level must lie strictly"),
    (lambda: decide.control_f(P, Y, level=0.1, thresholds=[]), "a threshold and an image"),
    (lambda: decide.ListCheck(0, 0.1), "must hold a photo"),
    (lambda: decide.ListCheck(5, 0.1, checked=6), "6 cannot be checked"),
    (lambda: decide.ListAnswers(1, 0, 2, 0), "must be among those answered"),
    (lambda: decide.ListAnswers(1, 0, 1, 1), "cannot have been drawn"),
    (lambda: decide.check_promise(EXPECTED, P > 2, Y), "such lists on average"),
    (lambda: decide.judge_list(LIST, decide.ListAnswers(6, 0, 6, 0)), "cannot have more answers"),
    (lambda: decide.judge_list(RECALL, decide.ListAnswers(1, 0, 1, 0)), "only a promise of a list"),
    (lambda: decide.Answered.read([0.5, 1.5], [0], [1.0]), "between 0 and 1"),
    (lambda: decide.Answered.read([0.5, 0.5], [0, 0], [1.0, 1.0]), "one answer"),
    (lambda: decide.Answered.read([0.5, 0.5], [2], [1.0]), "among the 2"),
    (lambda: decide.Answered.read([0.5, 0.5], [1], [0.5]), "1, 0 or NaN"),
    (lambda: Audit([3, 0]), "at least one use"),
    (lambda: Audit([3], scores=[np.zeros(2)]), "one per use"),
    (lambda: Audit([3]).answer("maybe"), "yes, no or unsure"),
    (lambda: recall_of(10, 5, (6, 0), (0, 0)), "do not fit"),
]


@pytest.mark.parametrize(("call", "rule"), WRONG)
def test_what_cannot_be_meant_is_refused(call, rule):
    with pytest.raises((ValueError, DataError), match=rule):
        call()


# Rules by name. Oracles: the functions that names stand for; folds and thresholds by hand.

NAMED = RNG.random((80, 4))
LABELS = RNG.random((80, 4)) < NAMED


def of(fit, **options):
    return fit(NAMED, LABELS, **options)


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("0.25", Threshold(0.25), "p >= 0.25"),
        ("top-3", TopK(3), "the 3 most probable labels"),
        ("expected-f", ExpectedF(), "the set of most expected F1"),
        ("average-2", decide.average_k(NAMED, 2), "2 labels per image on average"),
        ("best-f", best_f(NAMED, LABELS, scope="label"), "best F1, per label"),
        ("best-f-shared", best_f(NAMED, LABELS, scope="shared"), "best F1, one for all"),
        ("precision-0.6", of(decide.precision_at, precision=0.6), "precision 0.6, per label"),
        ("precision-60", of(decide.precision_at, precision=0.6), "precision 0.6"),
        ("precision-60%", of(decide.precision_at, precision=0.6), "precision 0.6"),
        ("recall-1", of(decide.recall_at, recall=1.0), "recall 1"),
        ("sensitivity-95%", of(decide.recall_at, recall=0.95), "sensitivity 0.95, per label"),
        ("cost-1-5", of(decide.least_cost, false_alarm=1, miss=5), "false alarm 1 and a miss 5"),
        ("miss-rate-0.1", of(decide.control_recall, miss_rate=0.1), "at most 0.1, one for all"),
        ("miss-rate-0.1-per-label", of(decide.control_recall, miss_rate=0.1, scope="label"), "per"),
        ("wrong-rate-30%", of(decide.control_precision, wrong_rate=0.3), "at most 0.3"),
        ("mean-f-0.2", of(decide.control_f, level=0.2), "at least 0.2"),
        ("false-alarms-20%", of(decide.control_false_alarms, rate=0.2), "at most 0.2"),
    ],
)
def test_a_name_is_the_function_it_stands_for(text, expected, words):
    rule, description = fit_rule(text, NAMED, LABELS)
    assert rule == expected
    assert words in description


NAMES = {
    "besst": "unknown rule 'besst'; use one like",
    "top-4-shared": "unknown rule",
    "wrong-rate-0.1-per-label": "unknown rule",
    "top-x": "must be whole, got 'x'",
    "top-0": "k must be at least 1",
    "precision-x": "must hold a number, got 'x'",
    "precision-101": r"must lie in \(0, 1\], got 101",
    "precision-0": r"must lie in \(0, 1\]",
    "cost-1": "must hold 2 number",
    "cost-0-1": "costs must be positive",
    "average-0": "must be positive",
    "false-alarms-2/day": "need the time of each row",
    "false-alarms-0/1000": "must be positive",
    "false-alarms-5/0": "must be positive",
    "false-alarms-5/week": "must hold a number, got 'week'",
    "specificity-1.5%%": "must hold a number",
    "specificity-0": r"must lie in \(0, 1\]",
}


@pytest.mark.parametrize("text", NAMES)
def test_a_wrong_name_gets_one_sentence_before_anything_is_fitted(text):
    with pytest.raises(SettingsError, match=NAMES[text]):
        find_rule(text)


def test_what_cannot_be_fitted_names_the_rule():
    with pytest.raises(SettingsError, match="rule 'best-f' cannot be fitted: labels must hold"):
        fit_rule("best-f", NAMED, np.zeros_like(LABELS))
    with pytest.raises(SettingsError, match=r"rule 'mean-f-0\.9' cannot be fitted: an expected F1"):
        fit_rule("mean-f-0.9", NAMED, LABELS)


def world(rows=600, labels=12, seed=0, positives=0.1):
    """Return calibrated probabilities and labels that are drawn from them."""
    rng = np.random.default_rng(seed)
    probs = rng.beta(positives * 2, 2 - positives * 2, (rows, labels))
    return probs, (rng.random(probs.shape) < probs).astype(float)


def test_each_fold_is_judged_by_a_rule_that_did_not_see_it():
    """Oracle: a rule that remembers its rows would be perfect on them, and is wrong on others."""
    probs, labels = world(rows=50)
    known = []

    def remembering(part, truth, observed):
        seen = {row.tobytes(): y for row, y in zip(part, truth, strict=True)}
        known.append(len(seen))
        every = np.ones(labels.shape[1])
        return lambda values: np.array([seen.get(row.tobytes(), every) > 0.5 for row in values])

    found = mean_f_of(remembering, probs, labels)
    everything = 2 * labels.sum(1) / (labels.sum(1) + labels.shape[1])  # all are chosen
    assert found == pytest.approx(everything.mean())
    assert known == [40] * 5


def test_few_positives_are_drawn_to_the_shared_threshold():
    """Oracle: the weighted mean of the log-odds of both."""
    probs, labels = world(rows=3000, labels=4)
    own = np.array(best_f(probs, labels).value)
    shared = best_f(probs, labels, scope="shared").value
    count = labels.sum(0)
    odds = (count * logit(own) + HALF_WAY * logit(shared)) / (count + HALF_WAY)
    np.testing.assert_allclose(shrunken_f(probs, labels).value, expit(odds))


def test_the_best_by_cross_validation_is_chosen_and_said():
    probs, labels = world()
    name, scores = choose_rule(probs, labels)
    assert scores == {one: mean_f_of(find_rule(one).fit, probs, labels) for one in CANDIDATES}
    assert scores[name] == max(scores.values())
    rule, words = fit_rule("auto", probs, labels)
    assert rule == find_rule(name)(probs, labels) == find_rule("auto")(probs, labels)
    assert words.startswith(find_rule(name).words)
    assert all(f"{other} {score:.3f}" in words for other, score in scores.items())


def test_without_positives_or_rows_the_expected_f_is_left():
    probs = world(rows=20)[0]
    rule, words = fit_rule("auto", probs, np.zeros_like(probs))
    assert isinstance(rule, ExpectedF)
    assert "best-f" not in words
    rule, _ = fit_rule("auto", probs[:1], (probs[:1] > 0.5).astype(float))
    assert not isinstance(rule, TopK)


def test_auto_needs_no_absences():
    """Oracle: as many labels as are noted; with each label known to be present all would win."""
    rng = np.random.default_rng(0)
    probs = rng.random((60, 8))
    labels = np.zeros((60, 8))
    labels[np.arange(60), probs.argmax(1)] = 1
    rule, words = fit_rule("auto", probs, labels, labels > 0)
    assert rule(probs).sum(1).mean() == pytest.approx(1, abs=0.05)
    assert "none is known to be absent" in words
