"""Groups of photos, held to slow loops, to copies of photos, and to known design effects."""

import numpy as np
import pytest
from scipy.stats import norm

from labelwise.errors import DataError
from labelwise.numeric.groups import Groups, error_of_photo_test

RANDOM = np.random.default_rng(0)
NAMES = RANDOM.choice(list("abcdefg"), 60)
VALUES = RANDOM.normal(size=(60, 3))


def test_sums_and_ratios_are_those_of_a_loop():
    groups, weights = Groups.of(NAMES), np.abs(VALUES)
    weights[NAMES == "c"] = 0
    for number, name in enumerate(sorted(set(NAMES))):
        rows = name == NAMES
        np.testing.assert_allclose(groups.sums(VALUES)[number], VALUES[rows].sum(0))
        total = weights[rows].sum(0)
        expected = VALUES[rows].sum(0) / total if name != "c" else np.zeros(3)
        np.testing.assert_allclose(groups.ratios(VALUES, weights)[number], expected)
    assert groups.sizes.sum() == 60
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
    first, others = groups.divided(0.3, seed=1)
    assert not set(NAMES[first]) & set(NAMES[others])
    assert sorted([*first, *others]) == list(range(60))
    assert len(set(NAMES[first])) == 2
    bundled = groups.bundled(3)
    assert bundled.count == len(np.unique(bundled.codes)) == 3
    assert len(set(zip(NAMES.tolist(), bundled.codes.tolist(), strict=True))) == groups.count
    assert groups.bundled(7) is groups
    drawn = [groups.one_of_each(seed) for seed in range(3)]
    assert all(sorted(NAMES[rows]) == sorted(set(NAMES)) for rows in drawn)
    assert len(set(map(tuple, drawn))) > 1
    with pytest.raises(DataError, match="two or more are needed, got 1"):
        Groups.of(["a", "a"]).divided(0.5, 0)


def test_photos_that_are_their_own_groups_change_nothing():
    assert Groups.of([3, 1, 2]).are_photos
    assert not Groups.of(["x", "x", "y"]).are_photos
    np.testing.assert_array_equal(Groups.of(NAMES).take(NAMES == "a").sizes, [(NAMES == "a").sum()])
