"""Totals over groups, held to all samples of small groups and to all splits of a total."""

from itertools import combinations, product
from math import comb, log

import numpy as np
import pytest
from scipy.special import beta

from labelwise.decide import exact_count_bounds
from labelwise.decide.total_bounds import DrawnGroup, betting_total_bounds


@pytest.mark.parametrize("truths", [(0, 0, 0), (1, 0, 4), (3, 2, 0), (5, 4, 4), (2, 2, 2)])
def test_bounds_hold_in_nearly_all_samples_of_small_groups(truths):
    sizes, drawn = (5, 4, 4), (2, 2, 1)
    shares = [
        [int((np.array(rows) < truth).sum()) for rows in combinations(range(size), m)]
        for size, m, truth in zip(sizes, drawn, truths, strict=True)
    ]
    held = []
    for yes in product(*shares):
        groups = [DrawnGroup(*one, 0.9) for one in zip(yes, drawn, sizes, strict=True)]
        low, high = betting_total_bounds(groups, 0.6)
        held.append(low <= sum(truths) <= high)
    assert np.mean(held) >= 0.6


def bet(group, count):
    """Return E(W) from the number of samples, and the marginal from beta functions."""
    no, share = group.drawn - group.yes, group.expected
    ways = comb(count, group.yes) * comb(group.photos - count, no)
    likelihood = ways / comb(group.photos, group.drawn) / comb(group.drawn, group.yes)
    priors = [(20 * share, 20 * (1 - share)), (0.5, 0.5)]
    marginal = np.mean([beta(a + group.yes, b + no) / beta(a, b) for a, b in priors])
    return marginal / likelihood if likelihood else np.inf


def test_bounds_are_the_outermost_totals_that_some_split_explains():
    groups = [
        DrawnGroup(1, 6, 20, 0.1),
        DrawnGroup(3, 5, 15, 0.4),
        DrawnGroup(0, 4, 25, 0.02),
        DrawnGroup(0, 0, 3, 0.5),
    ]
    least = {}
    for split in product(*(range(group.photos + 1) for group in groups)):
        value = sum(log(bet(*one)) for one in zip(groups, split, strict=True))
        least[sum(split)] = min(value, least.get(sum(split), np.inf))
    held = [total for total, value in least.items() if value < log(20)]
    assert betting_total_bounds(groups, 0.95) == (min(held), max(held))


def test_ten_groups_have_half_the_width_that_their_exact_intervals_add_up_to():
    low, high = betting_total_bounds([DrawnGroup(1, 10, 500, 0.1)] * 10, 0.95)
    ends = exact_count_bounds(1, 10, 500, 1 - 0.05 / 10)
    assert high - low < 0.5 * 10 * (ends[1] - ends[0])
    assert low <= 500 <= high
