"""Totals over groups, held to all samples of small groups and to all splits of a total."""

from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from scipy.special import beta

from labelwise.decide import exact_count_bounds
from labelwise.decide.estimate import DrawnGroup, betting_total_bounds


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


def chance(group, count):
    """Return P(these answers | W), from the number of samples."""
    no = group.drawn - group.yes
    ways = comb(count, group.yes) * comb(group.photos - count, no)
    return ways / comb(group.photos, group.drawn) / comb(group.drawn, group.yes)


def marginals(group):
    """Return the chance of the answers under Jeffreys' law and four laws around the share."""
    odds = group.expected / (1 - group.expected)
    laws = [(0.5, 0.5)]
    for factor, weight in ((1, 20), (1, 200), (1 / 3, 20), (3, 20)):
        mean = factor * odds / (1 + factor * odds)
        laws.append((weight * mean, weight * (1 - mean)))
    no = group.drawn - group.yes
    return np.array([beta(a + group.yes, b + no) / beta(a, b) for a, b in laws])


def test_bounds_are_the_outermost_totals_that_some_split_explains():
    groups = [
        DrawnGroup(1, 6, 20, 0.1),
        DrawnGroup(3, 5, 15, 0.4),
        DrawnGroup(0, 4, 25, 0.02),
        DrawnGroup(0, 0, 3, 0.5),
    ]
    paid = np.mean(np.prod([marginals(group) for group in groups], axis=0))
    best = {}
    for split in product(*(range(group.photos + 1) for group in groups)):
        value = np.prod([chance(*one) for one in zip(groups, split, strict=True)])
        best[sum(split)] = max(value, best.get(sum(split), 0.0))
    held = [total for total, value in best.items() if paid < 20 * value]
    assert betting_total_bounds(groups, 0.95) == (min(held), max(held))


def test_ten_groups_have_half_the_width_that_their_exact_intervals_add_up_to():
    low, high = betting_total_bounds([DrawnGroup(1, 10, 500, 0.1)] * 10, 0.95)
    ends = exact_count_bounds(1, 10, 500, 1 - 0.05 / 10)
    assert high - low < 0.5 * 10 * (ends[1] - ends[0])
    assert low <= 500 <= high
