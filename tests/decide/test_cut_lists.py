"""Oracles: every way to deal photos to held-out ones and library with exact fractions, the largest
expectation over all numbers of misses one by one, and the wrong share counted over many draws.
"""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, poisson

from labelwise.decide import cut_to_try, expected_list, is_believed, list_above, most_to_expect
from labelwise.errors import SettingsError

DRAWS = 200


def most_slowly(misses, hits, listed, held_out, library):
    """The definition: for every number of misses above the cut, all ways to hold photos out."""
    above, pooled = misses + hits, misses + hits + listed
    rest, most = held_out + library - pooled, Fraction(0)
    for total in range(1, pooled + 1):
        mean = Fraction(0)
        for h in range(min(total, held_out) + 1):
            for k in range(min(pooled - total, held_out - h) + 1):
                better = (h + 0.7) * above <= (misses + 0.7) * (h + k) + 1e-9
                if better and h + k < pooled and held_out - h - k <= rest:
                    ways = comb(total, h) * comb(pooled - total, k) * comb(rest, held_out - h - k)
                    mean += Fraction(ways * (total - h), pooled - h - k)
        most = max(most, mean / comb(held_out + library, held_out))
    return float(most)


@pytest.mark.parametrize(
    "numbers",
    [(0, 1, 1, 1, 1), (0, 3, 4, 10, 9), (2, 5, 8, 30, 20), (1, 0, 6, 4, 6), (1, 6, 30, 20, 100)],
)
def test_the_most_misses_to_expect_are_the_largest_sum(numbers):
    assert most_to_expect(*numbers) == pytest.approx(most_slowly(*numbers), rel=1e-9)


def test_numbers_in_blocks_are_on_the_safe_side():
    """Oracle: the definition; 48 blocks stand for some 80 numbers of held-out photos here."""
    numbers = 5, 45, 70, 100, 140
    assert 1 < most_to_expect(*numbers) / most_slowly(*numbers) < 1.2


@pytest.mark.parametrize(("misses", "above", "likely"), [(0, 3, 3.0), (2, 14, 12.0)])
def test_many_photos_have_the_limit_of_poisson(misses, above, likely):
    """Oracle: photos above the cut are a Poisson number, and each is wrong by itself."""
    n, m = 3000, 30_000_000
    listed = round(likely * (n + m) / n) - above
    counts, shares = np.arange(1, 80), np.linspace(0.001, 1, 1000)[:, None]
    allowed = np.floor((misses + 0.7) / above * counts - 0.7 + 1e-9)
    chance = np.where(allowed >= 0, binom.cdf(allowed, counts, shares), 0.0)
    most = (shares[:, 0] * (chance @ poisson.pmf(counts, likely))).max()
    found = most_to_expect(misses, above - misses, listed, n, m)
    assert most * 0.999 < found < most * 1.05


def test_photos_that_are_not_there_promise_nothing():
    assert most_to_expect(0, 0, 50, 100, 1000) == 1.0


@pytest.mark.parametrize("wrong", [0.1, 0.3, 0.5])
def test_no_number_of_misses_and_hits_breaks_the_mean(wrong):
    """Oracle: the mean wrong share over all ways to deal T misses and S hits, with exact weights.

    The largest of these means is near the level: a test that allowed more would fail.
    """
    n, m, worst = 12, 15, 0.0
    promised = {
        (h, k, listed): most_to_expect(h, k, listed, n, m) <= wrong + 1e-9
        for h in range(n + 1)
        for k in range(n + 1 - h)
        for listed in range(1, m + 1)
    }
    for hits in range(n + m + 1):
        for misses in range(1, n + m + 1 - hits):
            mean, ways = 0.0, comb(n + m, n)
            for k in range(max(0, hits - m), min(hits, n) + 1):
                for h in range(max(0, misses - (m - hits + k)), min(misses, n - k) + 1):
                    listed = hits - k + misses - h
                    rest = n + m - hits - misses
                    if listed and promised[h, k, listed] and 0 <= n - k - h <= rest:
                        dealt = comb(hits, k) * comb(misses, h) * comb(rest, n - k - h)
                        mean += dealt / ways * (misses - h) / listed
            worst = max(worst, mean)
    assert wrong / 3 < worst <= wrong + 1e-9


def drawn(rng, count):
    scores = np.round(3 * rng.standard_normal(count) - 4, 2)
    return scores, rng.random(count) < expit(scores)


def test_lists_hold_their_share_and_find_more_than_conformal_selection():
    """Oracle: the wrong ones counted; the probabilities that set the cut are right, or lie."""
    rng = np.random.default_rng(3)
    for shift in (0.0, 2.0):
        shares, listed, others = [], 0, 0
        for _ in range(DRAWS):
            scores, right = drawn(rng, 150)
            library, truth = drawn(rng, 2000)

            def chances(some, shift=shift):
                return expit(some + shift)[None]

            pooled = np.append(scores, library)
            cut = cut_to_try(pooled, chances, len(scores), len(library), 0.1)
            found = list_above(cut, scores, right, library, wrong_at_most=0.1)
            chosen = library >= found.threshold
            assert chosen.sum() == found.listed
            assert (found.promise is None) == (not chosen.any())
            shares.append((~truth[chosen]).mean() if chosen.any() else 0.0)
            listed += found.listed
            others += expected_list(scores, right, library, wrong_at_most=0.1).listed
        assert np.mean(shares) < 0.1 + 3 * np.std(shares) / np.sqrt(DRAWS)
        if not shift:
            assert listed > 1.5 * others > 0


def test_a_cut_follows_the_probabilities():
    """Oracle: photos of probability 0 below a score, 1 above it; and none where all are wrong."""
    pooled = np.linspace(-1, 1, 4001)

    def sharp(scores):
        return (scores >= 0.4).astype(float)[None]

    assert cut_to_try(pooled, sharp, 1000, 3001, 0.1) == pytest.approx(0.4, abs=0.05)
    assert cut_to_try(pooled, lambda scores: np.zeros((1, len(scores))), 1000, 3001, 0.1) is None
    assert cut_to_try(np.empty(0), sharp, 10, 0, 0.1) is None
    assert cut_to_try(pooled, sharp, 0, 4001, 0.1) is None  # there is no held-out photo


def test_a_cut_follows_photos_that_were_seen_where_the_fit_is_off():
    """Oracle: photos that are right above a score alone, of which the fit knows nothing."""
    pooled, scores = np.linspace(-1, 1, 4001), np.linspace(-1, 1, 1000)

    def blind(some):
        return np.full((2, len(some)), 0.97)

    def cut(seen):
        return cut_to_try(pooled, blind, 1000, 3001, 0.1, seen=seen)

    assert cut(None) == pytest.approx(-1)
    assert cut((scores, scores >= 0.4)) == pytest.approx(0.4, abs=0.1)
    assert cut((scores, np.zeros(1000, bool))) > 0.9


def test_a_list_is_believed_up_to_twice_its_share():
    """Oracle: probabilities that sum to so many misses, times what other photos say of them."""
    scores = np.linspace(1, 2, 50)
    nobody = np.empty(0), np.empty(0)

    def chances(some):
        return np.full((3, len(some)), 0.8)

    assert is_believed(scores, chances, nobody, 0.1)
    assert not is_believed(scores, chances, nobody, 0.099)
    others = np.full(100, 1.5)  # of which 20 should miss
    for missed, least in ((20, 0.1), (42, 0.2), (9, 0.05)):  # (2 + missed) / 22 of 0.2, halved
        right = np.arange(100) >= missed
        assert is_believed(scores, chances, (others, right), least)
        assert not is_believed(scores, chances, (others, right), least - 0.001)
    below = np.full(100, 0.5), np.zeros(100)  # not of the list's scores
    assert is_believed(scores, chances, below, 0.1)


def test_refusals_say_what_was_seen():
    scores, right = np.linspace(0, 1, 100), np.arange(100) >= 80
    found = list_above(0.5, scores, right, scores, wrong_at_most=0.1)
    assert found.promise is None
    assert found.refused == (
        "of 50 held-out photos above the cut that other photos set, 30 do not match, too many for "
        "a list of which 0.1 may be wrong"
    )
    above = list_above(0.9, scores, right, scores, wrong_at_most=0.5)
    assert (above.listed, above.threshold) == (10, pytest.approx(scores[90]))
    assert (
        "too few of these" in list_above(np.inf, scores, right, scores, wrong_at_most=0.1).refused
    )
    with pytest.raises(SettingsError):
        list_above(0.5, scores, right, scores, wrong_at_most=1.5)
