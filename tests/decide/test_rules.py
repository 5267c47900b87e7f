"""Oracles: a sort of each row by hand, brute force over all sets, plain comparisons, JSON."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from labelwise.decide import NEVER, AtMost, ExpectedF, OnePerGroup, Threshold, TopK
from labelwise.decide.rules import WithParents, expected_f
from labelwise.learn.methods import rule_from_spec, rule_to_spec

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
