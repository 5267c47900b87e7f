"""Oracles: every threshold tried one by one, counts of scikit-learn, exact intervals of scipy."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix

from labelwise import decide


def problem(seed, images=60, labels=3):
    rng = np.random.default_rng(seed)
    probs = rng.random((images, labels)).round(2)
    truth = rng.random((images, labels)) < probs
    observed = rng.random((images, labels)) < 0.8
    truth[0], observed[0] = True, True
    return probs, truth, observed


def counts_at(threshold, probs, truth):
    """Return true negatives, false alarms and hits by scikit-learn."""
    table = confusion_matrix(truth, probs >= threshold, labels=[False, True])
    return table[0, 0], table[0, 1], table[1, 1]


def best(probs, truth, allowed):
    """Return the most hits of any threshold that is allowed, and the fewest alarms with them."""
    found = []
    for threshold in (*np.unique(probs), decide.NEVER):
        negatives, alarms, hits = counts_at(threshold, probs, truth)
        if allowed(negatives, alarms):
            found.append((hits, -alarms))
    return max(found)


@pytest.mark.filterwarnings("ignore:.*never chosen")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("goal", [0.5, 0.9, 1.0])
def test_specificity_has_the_most_hits_of_all_thresholds_that_reach_it(seed, goal):
    probs, truth, observed = problem(seed)
    rule = decide.specificity_at(probs, truth, observed, specificity=goal)
    for k, threshold in enumerate(rule.value):
        known = observed[:, k]
        p, y = probs[known, k], truth[known, k]
        absent = (~y).sum()
        _, alarms, hits = counts_at(threshold, p, y)
        assert absent - alarms >= goal * absent
        assert (hits, -alarms) == best(p, y, lambda tn, fp, n=absent: n - fp >= goal * n)


@pytest.mark.filterwarnings("ignore:.*never chosen")
@pytest.mark.parametrize("seed", range(2))
def test_false_alarms_per_photo_have_the_most_hits_of_all_thresholds_that_keep_them(seed):
    probs, truth, observed = problem(seed)
    rule, words = decide.fit_rule("false-alarms-50/1000", probs, truth, observed)
    assert words == "at most 50 false alarms per 1,000 photos, per label"
    for k, threshold in enumerate(rule.value):
        known = observed[:, k]
        p, y = probs[known, k], truth[known, k]
        _, alarms, hits = counts_at(threshold, p, y)
        limit = 0.05 * len(y)
        assert alarms <= limit
        assert (hits, -alarms) == best(p, y, lambda tn, fp, most=limit: fp <= most)


def test_shared_false_alarms_count_all_labels_against_the_photos():
    probs, truth, _ = problem(1, images=400)
    rule = decide.false_alarms_at(probs, truth, per_photo=0.25, scope="shared")
    alarms = ((probs >= rule.value) & ~truth).sum()
    assert alarms <= 100
    lower = np.max(probs[probs < rule.value])
    assert ((probs >= lower) & ~truth).sum() > 100 or not truth[probs == lower].any()


def test_a_day_holds_as_many_photos_as_it_is_said_to():
    probs, truth, _ = problem(3, images=200)
    rule, words = decide.fit_rule("false-alarms-2/day", probs, truth, photos_per_day=40.0)
    assert rule == decide.false_alarms_at(probs, truth, per_photo=0.05)
    assert words == "at most 2 false alarms per day, at 40 photos a day, per label"


def test_a_goal_that_no_score_reaches_is_never_chosen():
    probs, truth = np.array([[0.9], [0.5]]), np.array([[False], [True]])
    with pytest.warns(UserWarning, match="does not reach the specificity and is never chosen"):
        assert decide.specificity_at(probs, truth, specificity=0.9) == decide.Threshold(
            (decide.NEVER,)
        )


def test_figures_have_the_exact_intervals_of_scipy():
    probs, truth, observed = problem(4, images=300)
    sets = probs >= 0.6
    figures = decide.label_figures(sets, truth, observed, names=("a", "b", "c"))
    for k, one in enumerate(figures):
        known = observed[:, k]
        negatives, alarms, _ = counts_at(0.6, probs[known, k], truth[known, k])
        for (value, low, high), hits, count in (
            (one.specificity, negatives, negatives + alarms),
            (one.false_alarms, alarms, int(known.sum())),
        ):
            exact = binomtest(int(hits), int(count)).proportion_ci(0.95, "exact")
            assert (value, low, high) == pytest.approx((hits / count, exact.low, exact.high))
