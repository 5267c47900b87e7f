"""The rule ``auto`` and the thresholds it may choose.

Oracles: scikit-learn's F1 of each image, a loop over folds by hand, worlds in which one of the
rules is right by construction, and thresholds computed by hand for two labels.
"""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from labelwise.decide import ExpectedF, TopK, find_rule, fit_rule
from labelwise.decide.arrays import read_answers
from labelwise.decide.parse_rule import CANDIDATES, choose_rule, mean_f_of
from labelwise.decide.thresholds import HALF_WAY, best_f, shrunken_f


def world(rows=600, labels=12, seed=0, positives=0.1):
    """Return calibrated probabilities and labels that are drawn from them."""
    rng = np.random.default_rng(seed)
    probs = rng.beta(positives * 2, 2 - positives * 2, (rows, labels))
    return probs, (rng.random(probs.shape) < probs).astype(float)


def rare(rows, seed):
    """Return the same for 40 labels, of which an image has 1.8, and none is ever sure."""
    rng = np.random.default_rng(seed)
    probs = 1 / (1 + np.exp(4 - 1.5 * rng.normal(size=(rows, 40))))
    return probs, (rng.random(probs.shape) < probs).astype(float)


def test_the_f_of_an_image_is_that_of_scikit_learn():
    probs, labels = world(rows=100)
    sets = probs > 0.3
    found = read_answers(probs, labels, None).f1(sets)
    rows = [f1_score(y, s, zero_division=1.0) for y, s in zip(labels, sets, strict=True)]
    np.testing.assert_allclose(found, rows)


def test_unknown_labels_are_left_out_of_an_image():
    """Oracle: the same image with its unknown label taken away."""
    labels, sets = np.array([[1.0, 0.0, 1.0]]), np.array([[True, True, False]])
    seen = np.array([[True, False, True]])
    found = read_answers(sets * 1.0, labels, seen).f1(sets)
    np.testing.assert_allclose(found, f1_score(labels[0, [0, 2]], sets[0, [0, 2]]))


def test_each_fold_is_judged_by_a_rule_that_did_not_see_it():
    """Oracle: a rule that remembers its rows would be perfect on them, and is wrong on others."""
    probs, labels = world(rows=50)
    known = {}

    def remembering(part, truth, observed):
        seen = {row.tobytes(): y for row, y in zip(part, truth, strict=True)}

        class Memory:
            def __call__(self, values):
                return np.array([seen.get(row.tobytes(), 1 - 0 * row) > 0.5 for row in values])

        known[len(known)] = len(seen)
        return Memory()

    found = mean_f_of(remembering, probs, labels)
    everything = [f1_score(y, np.ones_like(y), zero_division=1.0) for y in labels]
    assert found == pytest.approx(np.mean(everything))
    assert known == dict.fromkeys(range(5), 40)


def test_few_positives_are_drawn_to_the_shared_threshold():
    """Oracle: the weighted mean of the log-odds of both, and the label's own in the limit."""
    probs, labels = world(rows=3000, labels=4)
    own = np.array(best_f(probs, labels).value)
    shared = best_f(probs, labels, scope="shared").value
    count = labels.sum(0)
    odds = (count * np.log(own / (1 - own)) + HALF_WAY * np.log(shared / (1 - shared))) / (
        count + HALF_WAY
    )
    np.testing.assert_allclose(shrunken_f(probs, labels).value, 1 / (1 + np.exp(-odds)))
    rare = labels.copy()
    rare[1:, 0] = 0
    rare[0, 0] = 1
    near = shrunken_f(probs, rare).value[0]
    alone, common = best_f(probs, rare).value[0], best_f(probs, rare, scope="shared").value
    assert abs(near - common) < 0.2 * abs(alone - common)


def test_a_label_without_positives_takes_the_shared_threshold():
    probs, labels = world(labels=3)
    labels[:, 2] = 0
    shared = best_f(probs, labels, scope="shared").value
    assert shrunken_f(probs, labels).value[2] == pytest.approx(shared)


def test_the_best_by_cross_validation_is_chosen_and_said():
    probs, labels = world()
    name, scores = choose_rule(probs, labels)
    assert list(scores) == list(CANDIDATES)
    assert scores[name] == max(scores.values())
    for candidate in CANDIDATES:
        fit = find_rule(candidate).fit
        assert scores[candidate] == mean_f_of(fit, probs, labels)
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
