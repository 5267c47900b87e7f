"""Bounds, special functions, groups. Oracles: scipy, products and loops written out, copies."""

import math

import numpy as np
import pytest
import scipy.special
from scipy.stats import binomtest, norm, t

from labelwise.base import bounds, special
from labelwise.base.groups import Groups, error_of_photo_test
from labelwise.errors import DataError


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
        capital = [np.prod(1 - stake * column / 0.8) for stake in bounds.STAKES]
        assert found == pytest.approx(min(1.0, 1 / np.mean(capital)))
    np.testing.assert_array_equal(bounds.betting_p_values(np.zeros((0, 2)), 1.0), 1.0)


@pytest.mark.parametrize(("hits", "count"), [(0, 5), (5, 5), (3, 10), (1, 47), (400, 1000)])
def test_wilson_interval_equals_scipy(hits, count):
    expected = binomtest(hits, count).proportion_ci(method="wilson")
    low, high = bounds.wilson(hits / count, count)
    assert (low, high) == pytest.approx(tuple(expected), abs=1e-6)
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
    counts = rng.integers(0, 4, 80).astype(float)
    losses = rng.binomial(counts.astype(int), truth).astype(float)
    lower, upper = bounds.ratio_interval(losses, counts, 3, 0.95)
    assert lower <= losses.sum() / counts.sum() <= upper
    assert lower <= truth <= upper
    many = bounds.ratio_interval(np.tile(losses, 20), np.tile(counts, 20), 3, 0.95)
    assert many[1] - many[0] < 0.4 * (upper - lower)
    assert bounds.ratio_interval(np.zeros(3), np.zeros(3), 1, 0.95) == (0.0, 1.0)


def test_a_sequence_ends_at_its_first_failure():
    for p_values, end in (([0.01, 0.02, 0.2, 0.001], 2), ([0.2], 0), ([0.05], 1), ([np.nan], 0)):
        assert bounds.first_failure(np.array(p_values), 0.05) == end


ODDS = np.concatenate([np.linspace(-40, 40, 81), [-800.0, -710.0, 710.0, 800.0, -np.inf, np.inf]])
SHARES = np.array([0.0, 1e-300, 1e-9, 0.1, 0.3, 0.5, 0.75, 1 - 1e-9, 1.0, -0.1, 1.1, np.nan])
OWN = {"expit": ODDS, "log_expit": ODDS, "logit": SHARES}


def test_ways_to_choose_are_those_counted_with_whole_numbers():
    for n, k in ((7, 0), (7, 3), (7, 7), (400, 150)):
        ways = math.log(math.perm(n, k)), math.log(math.comb(n, k))
        found = special.log_falling(n, k), special.log_choose(n, k)
        assert found == pytest.approx(ways, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("dtype", "digits"), [(np.float64, 4e-15), (np.float32, 1e-6)])
def test_functions_written_here_are_those_of_scipy(name, dtype, digits):
    given = OWN[name].astype(dtype)
    found, expected = getattr(special, name)(given), getattr(scipy.special, name)(given)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=digits, atol=1e-300)
    one = getattr(special, name)(float(given[3]))
    assert one == pytest.approx(float(getattr(scipy.special, name)(float(given[3]))), rel=digits)


@pytest.mark.parametrize("p", [*SHARES.tolist(), 0.95, 0.975, 0.9999, 1e-20])
def test_normal_quantiles_are_those_of_scipy(p):
    assert special.ndtri(p) == pytest.approx(scipy.special.ndtri(p), rel=4e-15, nan_ok=True)
    assert math.isnan(special.ndtri(p)) == (not 0 <= p <= 1)


# Groups of photos

RANDOM = np.random.default_rng(0)
NAMES = RANDOM.choice(list("abcdefg"), 60)
VALUES = RANDOM.normal(size=(60, 3))


def test_sums_and_ratios_are_those_of_a_loop():
    groups, weights = Groups.of(NAMES), np.abs(VALUES)
    weights[NAMES == "c"] = 0
    for number, name in enumerate(sorted(set(NAMES))):
        rows = name == NAMES
        np.testing.assert_allclose(groups.sums(VALUES)[number], VALUES[rows].sum(0))
        expected = VALUES[rows].sum(0) / weights[rows].sum(0) if name != "c" else np.zeros(3)
        np.testing.assert_allclose(groups.ratios(VALUES, weights)[number], expected)
    with pytest.raises(ValueError, match="60 photos in groups, got 7"):
        groups.sums(VALUES[:7])


def test_the_design_effect_of_copies_is_their_number():
    moved = RANDOM.normal(size=50)
    copies = Groups.of(np.repeat(np.arange(50), 4))
    assert copies.design_effect(np.repeat(moved, 4)) == pytest.approx(4.0)
    assert copies.design_effect(np.zeros(200)) is None
    # The mean of four copies taken as independent is beyond -1.645 as often as half of it is.
    assert error_of_photo_test(0.05, 4) == pytest.approx(norm.cdf(norm.ppf(0.05) / 2))
    assert error_of_photo_test(0.05, 0.5) == pytest.approx(0.05)


def test_groups_are_divided_bundled_and_drawn_from_whole():
    groups = Groups.of(NAMES)
    for share, count in ((0.01, 1), (0.3, 2), (0.5, 4), (0.99, 6)):
        chosen = np.random.default_rng(1).permutation(sorted(set(NAMES)))[:count].tolist()
        rows = [
            [row for row in range(60) if (NAMES[row] in chosen) == own] for own in (True, False)
        ]
        assert [part.tolist() for part in groups.divided(share, seed=1)] == rows
    bundled = groups.bundled(3)
    assert bundled.count == len(np.unique(bundled.codes)) == 3
    assert len(set(zip(NAMES.tolist(), bundled.codes.tolist(), strict=True))) == groups.count
    assert groups.bundled(7) is groups
    drawn = [groups.one_of_each(seed) for seed in range(3)]
    assert all(sorted(NAMES[rows]) == sorted(set(NAMES)) for rows in drawn)
    assert len(set(map(tuple, drawn))) > 1
    assert sorted(map(len, Groups.of(["a", "b", "b"]).divided(0.9, 0))) == [1, 2]
    for names, share, told in (("aa", 0.5, "0.5 .* got 1"), ("ab", 0, "^0 of"), ("ab", 1, "^1 of")):
        with pytest.raises(DataError, match=told):
            Groups.of(names).divided(share, 0)


TO_AND_FRO = (-1.0) ** np.argsort(np.argsort(NAMES, kind="stable"))


@pytest.mark.parametrize("moved", [VALUES[:, 0], VALUES[:, 2], TO_AND_FRO])
def test_what_photos_in_groups_are_worth_is_the_formula(moved):
    """Oracle: the formula of the docstring, group by group; photos of one move alike, or apart."""
    counted = (VALUES[:, 1] > -1) & (NAMES != "g")
    moved = moved * counted
    rows = [name == NAMES for name in set(NAMES[counted])]
    own = [(moved[group].sum(), counted[group].sum()) for group in rows]
    squares = np.array([(total / (1 - size / counted.sum())) ** 2 for total, size in own])
    effect = max(squares.sum() / (moved**2).sum(), 1.0)
    freedom = min(max(2 * squares.sum() ** 2 / (squares**2).sum() - 1, 1), len(own) - 1)
    both = t.ppf(0.975, [counted.sum() - 1, freedom])
    least = counted.sum() ** 2 / sum(size**2 for _, size in own)
    expected = max(least, counted.sum() / effect * (both[0] / both[1]) ** 2)
    assert Groups.of(NAMES).worth(moved, counted) == pytest.approx(expected, rel=1e-9)
    assert Groups.of(NAMES).worth(0 * moved, counted) == len(own)
    assert Groups.of(NAMES).worth(moved, counted & (NAMES == "a")) == 1


def test_photos_that_are_their_own_groups_change_nothing():
    assert Groups.of([3, 1, 2]).are_photos
    assert not Groups.of(["x", "x", "y"]).are_photos
    np.testing.assert_array_equal(Groups.of(NAMES).take(NAMES == "a").sizes, [(NAMES == "a").sum()])
