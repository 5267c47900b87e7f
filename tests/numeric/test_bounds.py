"""Oracles: scipy's exact test and interval, products written out, and errors counted in draws."""

import numpy as np
import pytest
from scipy.stats import binomtest

from labelwise.numeric import bounds


@pytest.mark.parametrize(("losses", "count"), [(0, 30), (12, 40), (40, 40), (0, 0)])
def test_binomial_p_values_are_the_exact_test(losses, count):
    expected = binomtest(losses, count, 0.1, alternative="less").pvalue if count else 1.0
    found = bounds.binomial_p_values(np.array([losses]), np.array([count]), 0.1)
    np.testing.assert_allclose(found, [expected])


@pytest.mark.parametrize(("hits", "count"), [(0, 12), (5, 12), (12, 12)])
def test_clopper_pearson_is_the_exact_interval(hits, count):
    two_sided = binomtest(hits, count).proportion_ci(0.9, method="exact")
    np.testing.assert_allclose(bounds.clopper_pearson(hits, count, 0.95), two_sided, atol=1e-12)
    assert bounds.clopper_pearson(0, 0, 0.9) == (0.0, 1.0)


def test_betting_is_the_mean_capital_of_constant_stakes():
    excess = np.random.default_rng(0).choice([-0.2, 0.1, 0.8], size=(50, 3), p=[0.8, 0.15, 0.05])
    for column, found in zip(excess.T, bounds.betting_p_values(excess, 0.8), strict=True):
        capital = []
        for stake in bounds.STAKES:
            product = 1.0
            for value in column:
                product *= 1 - stake * value / 0.8
            capital.append(product)
        assert found == pytest.approx(min(1.0, 1 / np.mean(capital)))
    np.testing.assert_array_equal(bounds.betting_p_values(np.zeros((0, 2)), 1.0), 1.0)


@pytest.mark.parametrize(("hits", "count"), [(0, 5), (5, 5), (3, 10), (1, 47), (400, 1000)])
def test_wilson_interval_equals_scipy_and_holds_its_own_share(hits, count):
    expected = binomtest(hits, count).proportion_ci(method="wilson")
    low, high = bounds.wilson(hits / count, count)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert 0 <= low <= hits / count <= high <= 1


def test_hoeffding_bentkus_is_its_formula_and_weaker_than_the_exact_test():
    p = bounds.hoeffding_bentkus_p_values(np.array([0.05]), np.array([200]), 0.1)[0]
    entropy = 0.05 * np.log(0.05 / 0.1) + 0.95 * np.log(0.95 / 0.9)
    exact = binomtest(10, 200, 0.1, alternative="less").pvalue
    assert p == pytest.approx(min(np.exp(-200 * entropy), np.e * exact))
    assert p > exact


def test_the_best_stake_is_the_one_that_grew_most_on_the_other_photos():
    excess = np.random.default_rng(2).choice([-0.1, 0.9], size=(50, 3), p=[0.96, 0.04])
    for column, found in zip(excess.T, bounds.best_stakes(excess, 0.9), strict=True):
        grown = [np.log1p(-s * column / 0.9).sum() + 0.5 * np.log1p(-s) for s in bounds.STAKES]
        assert found == bounds.STAKES[int(np.argmax(grown))]
        capital = [np.prod(1 - s * column / 0.9) for s in (*bounds.STAKES, found)]
        mixed = (np.mean(capital[:-1]) + capital[-1]) / 2
        p_values = bounds.betting_p_values(column[:, None], 0.9, np.array([found]))
        assert p_values[0] == pytest.approx(min(1 / mixed, 1))


def test_ratio_intervals_hold_their_ratio_and_shrink():
    rng, truth = np.random.default_rng(2), 0.2
    for _ in range(3):
        counts = rng.integers(0, 4, 80).astype(float)
        losses = rng.binomial(counts.astype(int), truth).astype(float)
        lower, upper = bounds.ratio_interval(losses, counts, 3, 0.95)
        assert lower <= losses.sum() / counts.sum() <= upper
        assert lower <= truth <= upper
    many = bounds.ratio_interval(np.tile(losses, 20), np.tile(counts, 20), 3, 0.95)
    assert many[1] - many[0] < 0.4 * (upper - lower)
    assert bounds.ratio_interval(np.zeros(3), np.zeros(3), 1, 0.95) == (0.0, 1.0)


def test_a_sequence_ends_at_its_first_failure():
    assert bounds.first_failure(np.array([0.01, 0.02, 0.2, 0.001]), 0.05) == 2
    assert bounds.first_failure(np.array([0.2, 0.01]), 0.05) == 0
    assert bounds.first_failure(np.array([0.01, 0.05]), 0.05) == 2
    assert bounds.first_failure(np.array([np.nan]), 0.05) == 0
