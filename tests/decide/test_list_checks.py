"""Oracles: capital computed with exact fractions over every number of wrong photos, enumeration of
all orders of small lists (Ville's bound), and lists checked to the end.
"""

from fractions import Fraction
from itertools import permutations
from math import exp, inf

import pytest

from labelwise.decide import ListCheck, promised_check


def falling(start, count):
    value = Fraction(1)
    for step in range(count):
        value *= max(start - step, 0)
    return value


def capital_slowly(check):
    """The least capital over all numbers of wrong photos that are too many, in fractions."""
    a, b = (Fraction(one) for one in check.prior)
    total, drawn, seen = check.listed, check.checked, check.wrong
    mixture = Fraction(1)
    for step in range(seen):
        mixture *= a + step
    for step in range(drawn - seen):
        mixture *= b + step
    for step in range(drawn):
        mixture /= a + b + step
    allowed = int(Fraction(check.wrong_at_most).limit_denominator(1000) * check.left)
    least = check.wrong + allowed + 1
    capitals = []
    for wrong in range(least, total + 1):
        chance = falling(wrong, seen) * falling(total - wrong, drawn - seen) / falling(total, drawn)
        if chance > 0:
            capitals.append(mixture / chance)
    return min(capitals) if capitals else inf


@pytest.mark.parametrize("answers", [(0, 0), (5, 0), (9, 3), (20, 1), (25, 20), (30, 0)])
def test_the_capital_is_the_least_over_all_numbers_of_wrong_photos(answers):
    check = ListCheck(30, 0.1, prior=(0.5, 9.5)).after(*answers)
    slow = capital_slowly(check)
    if slow == inf:
        assert check.log_capital == inf
    else:
        assert exp(check.log_capital) == pytest.approx(float(slow), rel=1e-8)


@pytest.mark.parametrize("wrong", range(1, 8))
def test_a_list_with_too_many_wrong_is_promised_in_at_most_delta_of_all_orders(wrong):
    """Oracle: every order of 7 photos; a person stops at the first promise."""
    check = ListCheck(7, 0.3, confidence=0.6, prior=(0.2, 1.8))
    broken = orders = 0
    for order in set(permutations([0] * (7 - wrong) + [1] * wrong)):
        orders += 1
        for done in range(8):
            found = sum(order[:done])
            now = check.after(done, found)
            if now.promised:
                broken += wrong - found > 0.3 * now.left + 1e-9
                break
    assert broken / orders <= 0.4


def test_photos_found_wrong_leave_the_list_and_a_list_checked_to_the_end_is_certain():
    one = ListCheck(1, 0.1)
    assert one.more() == 1
    assert promised_check(one) is None
    told = promised_check(one.after(1, 0))
    assert (told.listed, told.checked, told.n) == (1, 1, 0)
    assert str(told) == "this photo matches: known, not estimated, 1 photo checked"
    assert promised_check(one.after(1, 1)) is None  # nothing is left to promise
    half = ListCheck(20, 0.1).after(20, 10)
    assert half.promised
    assert promised_check(half).listed == 10
    many = promised_check(ListCheck(214, 0.1, prior=(0.06, 11.94)).after(40, 0))
    assert many.in_words("dog") == (
        "at least 90 % of these 214 photos match dog: 95 % confidence, 40 photos checked"
    )


def test_about_how_many_more_is_where_the_promise_comes():
    """Oracle: answers given one by one, all right, from a list that expects nothing wrong."""
    check = ListCheck(5000, 0.1, prior=(1e-3, 12.0))
    more = check.more()
    assert not check.after(more - 1, 0).promised
    assert check.after(more, 0).promised
    assert ListCheck(5000, 0.1).after(40, 20).more() is None
