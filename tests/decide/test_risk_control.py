"""Oracles: the definition on every threshold, MAPIE's grid, and the promise by simulation."""

import numpy as np
import pytest
import torch

from labelwise.decide import NEVER, by_group, control_f, control_precision, control_recall
from labelwise.decide.thresholds import control_false_alarms
from labelwise.errors import DataError


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
