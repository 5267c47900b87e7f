"""Suspects. Oracles: slow loops, enumeration, an exact binomial test, scikit-learn."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_scores import sample
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from labelwise.answers import suspects
from labelwise.answers.suspects import (
    crossfit_heads,
    crossfit_log_odds,
    crossfit_true_log_odds,
    find_suspects,
    fit_linear_head,
    marked_checks,
    promise_suspects,
)
from labelwise.errors import SettingsError


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["missing", "wrong"]))
def test_suspects_are_those_of_a_slow_loop(seed, kind):
    rng = np.random.default_rng(seed)
    odds = rng.integers(-3, 4, (6, 5)).astype(float)  # with ties
    labels, observed = rng.integers(0, 2, (6, 5)), rng.random((6, 5)) < 0.7
    slow = []
    for row in range(6):
        for column in range(5):
            if observed[row, column] and labels[row, column] == (kind == "wrong"):
                doubt = odds[row, column] if kind == "missing" else -odds[row, column]
                slow.append((-doubt, row, column))
    slow.sort()
    found = find_suspects(odds, labels, observed, kind=kind, most=7)
    assert list(zip(found.rows, found.columns, strict=True)) == [one[1:] for one in slow[:7]]
    np.testing.assert_allclose(found.probs, 1 / (1 + np.exp(-odds[found.rows, found.columns])))


def test_the_test_of_a_stretch_counts_samples():
    # Of all ways to check 6 of 12 suspects with 4 false ones, how many show at most x false?
    level, size, checks = 0.26, 12, 6  # at most 3 of 12 are allowed, so 4 are too many
    seen = [sum(place < 4 for place in drawn) for drawn in combinations(range(size), checks)]
    for false in range(4):
        chance = np.mean(np.array(seen) <= false)
        told = {place: place >= false for place in range(checks)}
        marked = [place < checks for place in range(size)]
        for confidence, promised in ((1 - chance - 1e-6, size), (1 - chance + 1e-6, 0)):
            promise = promise_suspects(marked, told, level=level, confidence=confidence)
            assert promise.count == promised, (false, confidence)


def test_a_promise_ends_where_answers_end_and_strange_input_is_refused():
    marked = marked_checks(400, per_stretch=40, seed=3)
    places = np.flatnonzero(marked)
    told = {int(place): True for place in places if place < 150}
    promise = promise_suspects(marked, told, level=0.2)
    assert promise.count == 100
    assert "first 100 suspects are false; 80 of them were checked, 0 were false" in str(promise)
    assert promise_suspects(marked, {}, level=0.2).count == 0
    doubtful = {int(place): place % 2 == 0 for place in places}
    assert "nothing can be promised" in str(promise_suspects(marked, doubtful, level=0.2))
    with pytest.raises(ValueError, match="must lie in"):
        promise_suspects(marked, told, level=0.0)
    with pytest.raises(ValueError, match="kind must be"):
        find_suspects(np.zeros((2, 2)), np.zeros((2, 2)), kind="odd")
    with pytest.raises(ValueError, match="must not be NaN"):
        find_suspects(np.full((2, 2), np.nan), np.zeros((2, 2)), kind="missing")
    none = find_suspects(np.zeros((2, 2)), np.zeros((2, 2)), kind="wrong")
    assert len(none) == 0


def test_a_row_is_not_judged_by_its_own_labels_nor_by_unknown_ones():
    held = sample(300, unknown=0.2)
    flipped = held.labels.copy()
    flipped[7] = 1 - flipped[7]
    first, second = (
        crossfit_log_odds(held.logits, labels, held.link, held.observed, folds=3)
        for labels in (held.labels, flipped)
    )
    torch.testing.assert_close(first[7], second[7])
    assert not torch.equal(first, second)
    features = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    one, two = (crossfit_heads(features, labels, folds=3) for labels in (held.labels, flipped))
    torch.testing.assert_close(one[7], two[7])
    assert not torch.equal(one, two)
    with pytest.raises(SettingsError, match="folds must lie between"):
        crossfit_heads(features, held.labels, folds=301)
    with pytest.raises(ValueError, match="features must be"):
        crossfit_heads(features[:5], held.labels)
    rng = np.random.default_rng(2)
    labels = rng.random((300, 3)) < 0.4
    odds, observed = rng.normal(size=(300, 3)), rng.random((300, 3)) < 0.7
    one = crossfit_true_log_odds(odds, labels, observed)
    other = crossfit_true_log_odds(odds, labels ^ ~observed, observed)
    torch.testing.assert_close(one.log_odds, other.log_odds)


def test_the_head_is_the_logistic_regression_of_scikit_learn():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 4)).astype(np.float32) * [1, 5, 0.2, 2] + 3
    chance = 1 / (1 + np.exp(-(features - 3) @ [[1], [0.2], [-3], [0.0]]))
    labels = (rng.random((400, 1)) < chance).astype(np.uint8)
    known = rng.random((400, 1)) < 0.8
    weight, bias = fit_linear_head(features, labels, known, l2=0.05)
    scaled = (features - features.mean(0)) / features.std(0)
    rows = known[:, 0]
    other = LogisticRegression(C=1 / (0.05 * rows.sum()), tol=1e-8)
    other.fit(scaled[rows], labels[rows, 0])
    ours = features @ weight.numpy() + bias.numpy()
    np.testing.assert_allclose(ours[:, 0], other.decision_function(scaled), atol=2e-3)


def slow_posterior(numbers, odds, labels, observed, l2):
    """Return the negative log posterior of the notes of suspects.py, entry by entry."""
    count = labels.shape[1]
    slope, offset = numbers[:count], numbers[count : 2 * count]
    pairs = numbers[2 * count : -2].reshape(2, count, count)
    missing, wrong = 1 / (1 + np.exp(-numbers[-2:]))
    p = 1 / (1 + np.exp(-odds))
    known = np.where(observed, labels, p)
    total = ((numbers[-2:] - np.log([0.05 / 0.95, 0.001 / 0.999])) ** 2).sum() / 2
    for k in range(count):
        for row in range(len(labels)):
            z = slope[k] * odds[row, k] + offset[k]
            for j in range(count):
                if j != k:
                    z += pairs[0, j, k] * (known[row, j] - known[:, j].mean())
                    z += pairs[1, j, k] * (p[row, j] - p[:, j].mean())
                    total += l2 / 2 * (pairs[:, j, k] ** 2).sum() / len(labels)
            given = wrong + (1 - missing - wrong) / (1 + np.exp(-z))
            if observed[row, k]:
                total -= np.log(given if labels[row, k] else 1 - given)
    return total


def test_true_log_odds_have_the_largest_posterior():
    rng = np.random.default_rng(0)
    first = rng.random(30) < 0.4
    labels = np.stack([first, first ^ (rng.random(30) < 0.2)], 1).astype(float)
    odds, observed = 2 * labels - 1 + rng.normal(0, 1, (30, 2)), rng.random((30, 2)) < 0.9
    # Both folds are fitted to the same rows, so that their centred labels are those of each.
    twice = [np.concatenate([part, part]) for part in (odds, labels, observed)]
    with pytest.MonkeyPatch.context() as patch:
        halves = [torch.arange(60) < 30, torch.arange(60) >= 30]
        patch.setattr(suspects, "_folds", lambda rows, folds, seed: halves)
        found = crossfit_true_log_odds(*twice, folds=2, l2=1.0)
    start = np.concatenate([np.ones(2), np.zeros(10), np.log([0.05 / 0.95, 0.001 / 0.999])])
    best = minimize(slow_posterior, start, (odds, labels, observed, 1.0)).x
    known = np.where(observed, labels, 1 / (1 + np.exp(-odds)))
    p = 1 / (1 + np.exp(-odds))
    pairs = best[4:12].reshape(2, 2, 2)
    for k, j in ((0, 1), (1, 0)):
        z = best[k] * odds[:, k] + best[2 + k] + pairs[0, j, k] * (known[:, j] - known[:, j].mean())
        z += pairs[1, j, k] * (p[:, j] - p[:, j].mean())
        np.testing.assert_allclose(found.log_odds[:30, k], z, atol=0.02)
    shares = 1 / (1 + np.exp(-best[-2:]))
    np.testing.assert_allclose([found.missing, found.wrong], shares, rtol=0.02)
