"""Counts against all samples of small libraries, scipy's hypergeometric law and numpy's regression;
coverage in libraries whose probabilities are wrong."""

from itertools import product
from math import comb

import numpy as np
import pytest
from scipy.special import beta, expit
from scipy.stats import binom, hypergeom

from labelwise.decide import Answered, estimate_count, estimate_total, exact_count_bounds
from labelwise.decide.estimate import betting_total_bounds


@pytest.mark.parametrize(("yes", "drawn", "photos"), [(0, 20, 500), (7, 20, 500), (20, 20, 90)])
def test_exact_bounds_are_the_outermost_counts_that_scipy_does_not_exclude(yes, drawn, photos):
    possible = np.arange(yes, photos - drawn + yes + 1)
    above = hypergeom.sf(yes - 1, photos, possible, drawn) > 0.025
    below = hypergeom.cdf(yes, photos, possible, drawn) > 0.025
    expected = possible[above].min(), possible[below].max()
    assert exact_count_bounds(yes, drawn, photos, 0.95) == expected


def library(random, world, photos=3000, share=0.1):
    """Return probabilities of a model that was right before the world changed, and the truth."""
    y = random.random(photos) < share * (3 if world == "three times as many" else 1)
    x = random.normal(np.where(y, 2.5, 0.0))
    if world == "blur":
        x = 0.5 * x + random.normal(0, 0.4, photos)
    return expit(2.5 * x - 3.125 + np.log(share / (1 - share))), y


def drawn_from(random, probs, truth, answers, group=""):
    rows = random.choice(len(probs), answers, replace=False)
    return Answered.read(probs, rows, truth[rows].astype(float), group)


@pytest.mark.parametrize(("answers", "world"), [(60, "three times as many"), (150, "blur")])
def test_intervals_hold_however_wrong_the_probabilities_are(answers, world):
    random = np.random.default_rng(0)
    draws, held, widths, alone = 30, 0, [], []
    for _ in range(draws):
        probs, truth = library(random, world)
        found = estimate_count(drawn_from(random, probs, truth, answers))
        held += found.low <= truth.sum() <= found.high
        widths.append(found.high - found.low)
        low, high = exact_count_bounds(found.yes, answers, len(probs), 0.95)
        alone.append(high - low)
    assert held >= binom.ppf(0.001, draws, 0.95)
    assert found.method == "prediction-powered"
    assert np.mean(widths) < 0.95 * np.mean(alone)  # probabilities are worth something


def test_the_count_is_that_of_a_regression_and_not_shrunk():
    random = np.random.default_rng(1)
    probs, truth = library(random, "calm")
    part = drawn_from(random, probs, truth, 200)
    slope, offset = np.polyfit(probs[part.drawn], part.answers, 1)
    share = offset + slope * probs.mean()
    assert estimate_count(part).count == pytest.approx(len(probs) * share)


def test_unsure_answers_widen_the_interval_both_ways():
    random = np.random.default_rng(3)
    probs, truth = library(random, "calm")
    part = drawn_from(random, probs, truth, 80)
    unsure = part.answers.copy()
    unsure[:5] = np.nan
    found = estimate_count(Answered.read(probs, part.drawn, unsure))
    no, yes = (np.nan_to_num(unsure, nan=value) for value in (0.0, 1.0))
    assert found.low == estimate_count(Answered.read(probs, part.drawn, no)).low
    assert found.high == estimate_count(Answered.read(probs, part.drawn, yes)).high
    assert found.unsure == 5
    every = estimate_count(Answered.read(probs, part.drawn, np.full(80, np.nan)))
    assert (every.low, every.high) == (0, len(probs))
    ends = f"(95% interval: 0 to {len(probs):,}; 0 of 80 photos drawn at random match, 80 unsure; "
    assert f" of {len(probs):,} photos match dog {ends}" in every.sentence("dog")


def test_groups_drawn_unevenly_add_up():
    random = np.random.default_rng(4)
    draws, held, ratios = 20, 0, []
    for _ in range(draws):
        parts, total, variance = [], 0, 0.0
        for size, share in ((2500, 0.05), (400, 0.5), (300, 0.2)):
            probs, truth = library(random, "blur", size, share)
            parts.append(drawn_from(random, probs, truth, 60))
            total += truth.sum()
            variance += size**2 * (1 - 60 / size) * parts[-1].answers.var(ddof=1) / 60
        found = estimate_total(parts)
        held += found.low <= total <= found.high
        ratios.append((found.high - found.low) / (2 * 1.96 * np.sqrt(variance)))
    assert (found.method, found.answered) == ("prediction-powered", 180)
    assert held >= binom.ppf(0.001, draws, 0.95)
    assert 0.4 < np.mean(ratios) < 1.3  # of the interval of a stratified sample without a model


def test_few_answers_in_groups_have_the_bounds_of_their_bets():
    random = np.random.default_rng(5)
    parts = [drawn_from(random, *library(random, "calm", 200), 20, group) for group in "ab"]
    groups = [(part.yes, 20, 200, part.probs.mean()) for part in parts]
    found = estimate_total(parts)
    assert (found.low, found.high, found.method) == (*betting_total_bounds(groups, 0.95), "betting")


def chance(group, count):
    """Return P(these answers | W), from the number of samples."""
    yes, drawn, photos, _ = group
    ways = comb(count, yes) * comb(photos - count, drawn - yes)
    return ways / comb(photos, drawn) / comb(drawn, yes)


def marginals(group):
    """Return the chance of the answers under Jeffreys' law and four laws around the share."""
    yes, drawn, _, expected = group
    odds, laws = expected / (1 - expected), [(0.5, 0.5)]
    for factor, weight in ((1, 20), (1, 200), (1 / 3, 20), (3, 20)):
        mean = factor * odds / (1 + factor * odds)
        laws.append((weight * mean, weight * (1 - mean)))
    return np.array([beta(a + yes, b + drawn - yes) / beta(a, b) for a, b in laws])


def test_bounds_are_the_outermost_totals_that_some_split_explains():
    groups = [(1, 6, 20, 0.1), (3, 5, 15, 0.4), (0, 4, 25, 0.02), (0, 0, 3, 0.5)]
    paid = np.mean(np.prod([marginals(group) for group in groups], axis=0))
    best = {}
    for split in product(*(range(group[2] + 1) for group in groups)):
        value = np.prod([chance(*pair) for pair in zip(groups, split, strict=True)])
        best[sum(split)] = max(value, best.get(sum(split), 0.0))
    held = [total for total, value in best.items() if paid < 20 * value]
    assert betting_total_bounds(groups, 0.95) == (min(held), max(held))


def test_a_library_of_one_photo_and_one_that_was_answered_whole():
    one = estimate_count(Answered.read([0.2], [0], [1.0]))
    assert (one.count, one.low, one.high, one.method) == (1, 1, 1, "all answered")
    none = estimate_count(Answered.read([0.2], np.empty(0, int), np.empty(0)))
    assert (none.low, none.high, none.method) == (0, 1, "exact")
    rare = estimate_count(Answered.read(np.full(900, 0.02), np.arange(60), np.zeros(60)))
    assert rare.method == "exact"  # too few yes are expected among the answers
