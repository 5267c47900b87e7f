"""Rules by name. Oracles: the functions that names stand for; folds and thresholds by hand."""

import numpy as np
import pytest
from scipy.special import expit, logit

from labelwise import decide
from labelwise.decide import ExpectedF, Threshold, TopK, best_f, find_rule, fit_rule
from labelwise.decide.parse_rule import CANDIDATES, choose_rule, mean_f_of
from labelwise.decide.thresholds import HALF_WAY, shrunken_f
from labelwise.errors import SettingsError

RNG = np.random.default_rng(0)
PROBS = RNG.random((80, 4))
LABELS = RNG.random((80, 4)) < PROBS


def of(fit, **options):
    return fit(PROBS, LABELS, **options)


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("0.25", Threshold(0.25), "p >= 0.25"),
        ("top-3", TopK(3), "the 3 most probable labels"),
        ("expected-f", ExpectedF(), "the set of most expected F1"),
        ("average-2", decide.average_k(PROBS, 2), "2 labels per image on average"),
        ("best-f", best_f(PROBS, LABELS, scope="label"), "best F1, per label"),
        ("best-f-shared", best_f(PROBS, LABELS, scope="shared"), "best F1, one for all"),
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
    rule, description = fit_rule(text, PROBS, LABELS)
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
        fit_rule("best-f", PROBS, np.zeros_like(LABELS))
    with pytest.raises(SettingsError, match=r"rule 'mean-f-0\.9' cannot be fitted: an expected F1"):
        fit_rule("mean-f-0.9", PROBS, LABELS)


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
