"""Oracles: enumeration of every allocation of photos to held-out ones and library, exact fractions,
Benjamini-Hochberg photo by photo, and the wrong share counted over many draws (binomial tests).
"""

from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from scipy.stats import binomtest, false_discovery_control, hypergeom

from labelwise.decide import expected_list, least_wrong, list_bound, lowest_cut, sure_list
from labelwise.decide.hypergeometric import (
    chance_at_most,
    chance_of_misses,
    descending,
    most_misses,
)
from labelwise.errors import SettingsError

DRAWS = 200


def drawn(rng, count, sharp=2.0, shift=-2.0):
    """Scores, and whether photos answer, with the chance that the score says."""
    scores = np.round(sharp * rng.standard_normal(count) + shift, 2)  # there are ties
    return scores, rng.random(count) < 1 / (1 + np.exp(-scores))


def selected_slowly(scores, right, library, wrong_at_most):
    """Benjamini-Hochberg over conformal p-values, photo by photo."""
    misses = [s for s, hit in zip(scores, right, strict=True) if not hit]
    p = np.array([(1 + sum(s >= one for s in misses)) / (len(scores) + 1) for one in library])
    ranked, chosen = np.sort(p), 0.0
    for place, value in enumerate(ranked, start=1):
        if value <= wrong_at_most * place / len(library):
            chosen = value
    return p <= chosen, p


@pytest.mark.parametrize("wrong", [0.1, 0.25, 0.5])
def test_an_expected_list_is_what_benjamini_hochberg_selects(wrong):
    rng = np.random.default_rng(1)
    made = 0
    for _ in range(60):
        scores, right = drawn(rng, int(rng.integers(5, 80)), sharp=3.0, shift=0.0)
        library, _ = drawn(rng, int(rng.integers(1, 60)), sharp=3.0, shift=0.0)
        slow, p = selected_slowly(scores, right, library, wrong)
        np.testing.assert_array_equal(slow, false_discovery_control(p) <= wrong + 1e-12)
        found = expected_list(scores, right, library, wrong_at_most=wrong)
        np.testing.assert_array_equal(library >= found.threshold, slow)
        assert found.listed == slow.sum()
        assert (found.promise is None) == (not slow.any())
        made += slow.any()
    assert made > 5


def test_the_top_of_a_library_is_enough_where_its_size_is_given():
    """Oracle: the same list from all scores, those left out by a limit among them."""
    rng = np.random.default_rng(2)
    scores, right = drawn(rng, 900, shift=0.0)
    library, _ = drawn(rng, 700, shift=0.0)
    limit = np.full(50, -np.inf)
    lowest = lowest_cut(scores, right, 0.1)
    top = library[library >= lowest]
    assert len(top) < len(library)
    for make in (expected_list, sure_list):
        with_all = make(
            np.append(scores, limit), np.append(right, limit == 0), np.append(library, limit),
            wrong_at_most=0.1,
        )  # fmt: skip
        with_top = make(scores, right, top, size=len(library), wrong_at_most=0.1)
        assert with_all.listed == with_top.listed
        assert with_top.listed > 0 or make is sure_list


def test_the_chance_of_at_most_so_many_is_that_of_scipy():
    most, drawn, marked = np.array(list(product((0, 1, 5, 9), (0, 3, 9, 20), (0, 2, 9, 20)))).T
    found = chance_at_most(most, drawn, marked, 20)
    np.testing.assert_allclose(found, hypergeom.cdf(most, 20, marked, drawn), rtol=1e-9)


def test_the_chance_of_misses_is_the_hypergeometric_sum():
    """Oracle: exact sums of binomial coefficients."""
    for n, m, w, g in [(5, 7, 0, 3), (20, 30, 4, 9), (60, 5, 2, 4), (3, 400, 1, 90)]:
        total = Fraction(0)
        for hit in range(w + 1):
            if hit <= n and 0 <= w + g - hit <= m:
                total += Fraction(comb(n, hit) * comb(m, w + g - hit), comb(n + m, w + g))
        found = chance_of_misses(np.array([w]), np.array([g]), n, m)[0]
        assert found == pytest.approx(float(total), rel=1e-9)
    most = most_misses(np.array([3]), 400, 1_000_000, 0.05)
    ends = chance_of_misses(np.array([3, 3]), np.array([most[0], most[0] + 1]), 400, 1_000_000)
    assert ends[0] > 0.05 >= ends[1]


@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (7, 1), (40, 9), (300, 40), (20, 5000), (1000, 100_000), (12_000, 9000)]
)
def test_most_misses_are_the_least_number_that_is_rarely_exceeded(n, m):
    """Oracle: the hypergeometric law of scipy, beside each number."""
    passed = np.unique(np.append(np.geomspace(1, n + 2, 12).astype(np.int64), 0))
    for delta in (0.3, 0.05, 0.0005):
        most = most_misses(passed, n, m, delta)

        def exceeded(number):
            drawn = np.minimum(passed + number + 1, n + m)
            chance = hypergeom.cdf(passed, n + m, n, drawn)
            return np.where(number >= m, 0.0, np.where(number < 0, 1.0, chance))

        assert (exceeded(most) <= delta * (1 + 1e-9)).all()
        assert (exceeded(most - 1) > delta * (1 - 1e-9)).all()


@pytest.mark.parametrize("values", [[], [2.0], [-np.inf], [1.0, 1.0, -np.inf, 3.0, -2.5, -np.inf]])
def test_scores_that_fall_already_stay_as_they_are(values):
    """Oracle: Python's sort of those that are not minus infinity, whatever the order they come."""
    expected = sorted((one for one in values if one > -np.inf), reverse=True)
    for order in (values, sorted(values), sorted(values, reverse=True)):
        found = descending(np.array(order, np.float32))
        assert found.dtype == np.float64
        assert found.tolist() == expected


@pytest.mark.parametrize("wrong_photos", [2, 3, 5, 8])
def test_misses_of_every_allocation_exceed_their_bound_as_rarely_as_said(wrong_photos):
    """Oracle: all ways to draw 5 held-out photos from 13, whose misses stand at the top."""
    n, m, delta = 5, 8, 0.3
    bounds = most_misses(np.arange(n), n, m, delta)
    exceeded = np.zeros(n)
    ways = list(combinations(range(n + m), n))
    for held in ways:
        owners = [place in held for place in range(wrong_photos)]  # True: of the held-out photos
        for w in range(n):
            library = held_misses = 0
            for own in owners:
                held_misses += own
                if held_misses == w + 1:
                    break
                library += not own
            exceeded[w] += library > bounds[w]
    assert (exceeded / len(ways) <= delta).all()
    if wrong_photos == 8:
        assert exceeded.max() / len(ways) > 0.03


def test_expected_lists_hold_their_share_on_average_and_sure_lists_nearly_always():
    """Oracle: the wrong ones counted in the library's own list, small and large."""
    rng = np.random.default_rng(3)
    for size in (60, 600):
        shares, broken, made, beyond = [], 0, 0, 0
        for _ in range(DRAWS):
            scores, right = drawn(rng, 500, sharp=3.0, shift=-1.0)
            library, truth = drawn(rng, size, sharp=3.0, shift=-1.0)
            other, _ = drawn(rng, 500, sharp=3.0, shift=-1.0)
            listed = library >= expected_list(scores, right, library, wrong_at_most=0.1).threshold
            shares.append((~truth[listed]).mean() if listed.any() else 0.0)
            found = sure_list(
                scores, right, library, wrong_at_most=0.1, confidence=0.9,
                tuning=1 / (1 + np.exp(-other)),
            )  # fmt: skip
            listed = library >= found.threshold
            made += found.promise is not None
            broken += bool(listed.any()) and (~truth[listed]).mean() > 0.1
            bound = list_bound(scores, right, library, confidence=0.9)
            for cut, most in zip(bound.cuts, bound.misses, strict=True):
                if (~truth[library >= cut]).sum() > most:
                    beyond += 1
                    break
        error = np.std(shares) / np.sqrt(DRAWS)
        assert 0.03 < np.mean(shares) < 0.1 + 3 * error
        assert binomtest(broken, DRAWS, 0.1, alternative="greater").pvalue > 0.01
        assert binomtest(beyond, DRAWS, 0.1, alternative="greater").pvalue > 0.01
        assert made > DRAWS / 3


def test_a_bound_of_all_lists_speaks_of_the_list_at_a_cut():
    """Oracle: 200 held-out photos without a miss above 0, and the quantile of that law."""
    scores = np.r_[np.linspace(0.1, 1, 200), np.linspace(-1, -0.1, 200)]
    right = scores > 0
    library = np.linspace(-1, 1, 400)
    bound = list_bound(scores, right, library)
    most = most_misses(np.array([0]), 400, 400, 0.05 / 10)[0]
    above = int((library >= 0.1).sum())
    assert bound.wrong_at_most(0.1, above) == pytest.approx(most / above)
    highest = list_bound(scores, right, library[library >= 0.1], size=400)  # as a search asks
    assert highest.wrong_at_most(0.1, above) == pytest.approx(most / above)
    assert bound.wrong_at_most(-1.0, 400) <= 1
    assert bound.wrong_at_most(2.0, 0) == 0
    few = int((library >= 0.9).sum())
    assert bound.wrong_at_most(0.9, few) == pytest.approx(most / few)


def test_sentences_say_of_what_and_under_which_condition():
    scores, right = np.linspace(0, 1, 200), np.linspace(0, 1, 200) > 0.2
    library = np.linspace(0, 1, 50)
    found = expected_list(scores, right, library, wrong_at_most=0.1)
    assert str(found.promise) == (
        "on average over searches like this, at most 10% of a list is wrong, where a search "
        "that is refused counts as none; this one has "
        f"{found.listed} photos and may be better or worse; it holds if these photos are like the "
        "200 held-out ones"
    )
    assert (found.promise.about, found.promise.condition) == (
        "such lists on average",
        "photos like the held-out ones",
    )
    sure = sure_list(scores, right, library, wrong_at_most=0.125, tuning=right)
    assert str(sure.promise).startswith(
        f"with 95% confidence at most 12.5% of this list of {sure.listed} photos is wrong; it holds"
    )
    assert sure.promise.about == "this list"


def test_refusals_and_what_would_work():
    """Oracle: the list is made at the share that is said to work, and not at a hundredth less."""
    rng = np.random.default_rng(5)
    scores, right = drawn(rng, 60)
    library, _ = drawn(rng, 200)
    found = expected_list(scores, right, library, wrong_at_most=0.05)
    assert found.promise is None
    assert "of 60 held-out photos" in found.refused
    works = least_wrong(scores, right, library)
    assert expected_list(scores, right, library, wrong_at_most=works).promise is not None
    assert expected_list(scores, right, library, wrong_at_most=works - 0.01).promise is None
    assert least_wrong(scores, np.zeros(60), library) is None
    assert least_wrong(scores, right, np.empty(0)) is None
    nothing = expected_list(np.full(3, -np.inf), np.ones(3), library, wrong_at_most=0.1)
    assert "passes the query's limits" in nothing.refused
    low, nobody = library.min(keepdims=True), library[:0]
    for one in (low, nobody):
        for make in (expected_list, sure_list):
            assert make(scores, right, one, wrong_at_most=0.1).promise is None
    with pytest.raises(SettingsError, match="strictly between 0 and 1"):
        expected_list(scores, right, library, wrong_at_most=1.0)
    with pytest.raises(ValueError, match="must be numbers"):
        sure_list([np.nan], [1], library, wrong_at_most=0.1)


def test_a_plausible_list_needs_right_held_out_photos_above_its_cut():
    """By hand: all 15 photos stand above the cut by chance, where 2 of 4 held-out photos miss."""
    scores = np.concatenate([[0.95, 0.9, 0.85, 0.8], np.linspace(0.5, 0.1, 96)])
    right = np.isin(np.arange(100), [0, 2])
    library = np.full(15, 0.7)
    asked = {"wrong_at_most": 0.3}
    assert expected_list(scores, right, library, **asked).listed == 15
    assert expected_list(scores, right, library, plausible=True, **asked).promise is None
    assert least_wrong(scores, right, library) == 0.03
    assert least_wrong(scores, right, library, plausible=True) == 0.5
    above = np.append(library, 0.93)  # one more above the first miss, below the hit
    assert expected_list(scores, right, above, plausible=True, **asked).listed == 1


def test_a_model_that_knows_nothing_is_seldom_promised_a_plausible_list():
    """Of 15 photos of which half match: conformal selection may promise more than half of tries."""
    random, made = np.random.default_rng(0), {False: [], True: []}
    for _ in range(300):
        right, match = random.random(300) < 0.5, random.random(15) < 0.5
        scores, library = random.normal(size=300), random.normal(size=15)
        for plausible, lists in made.items():
            found = expected_list(scores, right, library, wrong_at_most=0.3, plausible=plausible)
            if found.promise is not None:
                lists.append((~match[library >= found.threshold]).mean())
    assert len(made[False]) > 150
    assert len(made[True]) < 90
    assert np.sum(made[True]) / 300 <= 0.3
