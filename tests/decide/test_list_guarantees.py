"""Lists: checks, estimates, verdicts. Oracles: fractions, all orders, scipy's laws, known lists."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import comb, exp, inf, prod

import numpy as np
import pytest
from scipy.special import beta, expit
from scipy.stats import betabinom, binom, binomtest, hypergeom

from labelwise import decide
from labelwise.decide import (
    Answered,
    ListAnswers,
    ListCheck,
    Promise,
    estimate_count,
    estimate_total,
    exact_count_bounds,
    judge_list,
    judge_lists,
)
from labelwise.decide.audits import ListAudit, promised_check, size_list
from labelwise.decide.estimate import (
    WIDEST,
    ListEstimate,
    NoEstimate,
    ScoredSplit,
    betting_total_bounds,
    judge_cut,
)
from labelwise.decide.promises import DOUBTED, MISJUDGED
from labelwise.errors import DataError


def falling(start, count):
    return prod(max(start - step, 0) for step in range(count))


def capital_slowly(check):
    """The least capital over all numbers of wrong photos that are too many, in fractions."""
    a, b = (Fraction(one) for one in check.prior)
    total, drawn, seen = check.listed, check.checked, check.wrong
    mixture = prod(a + step for step in range(seen)) * Fraction(1)
    mixture *= prod(b + step for step in range(drawn - seen))
    mixture /= prod(a + b + step for step in range(drawn))
    allowed = int(Fraction(check.wrong_at_most).limit_denominator(1000) * check.left)
    capitals = [inf]
    for wrong in range(seen + allowed + 1, total + 1):
        if ways := falling(wrong, seen) * falling(total - wrong, drawn - seen):
            capitals.append(mixture * falling(total, drawn) / ways)
    return min(capitals)


@pytest.mark.parametrize("answers", [(0, 0), (5, 0), (9, 3), (20, 1), (25, 20), (30, 0)])
def test_the_capital_is_the_least_over_all_numbers_of_wrong_photos(answers):
    check = ListCheck(30, 0.1, prior=(0.5, 9.5)).after(*answers)
    assert exp(check.log_capital) == pytest.approx(float(capital_slowly(check)), rel=1e-8)


@pytest.mark.parametrize("wrong", range(1, 8))
def test_a_list_with_too_many_wrong_is_promised_in_at_most_delta_of_all_orders(wrong):
    """Oracle: every order of 7 photos; a person stops at the first promise."""
    check = ListCheck(7, 0.3, confidence=0.6, prior=(0.2, 1.8))
    broken = orders = 0
    for wrongs in combinations(range(7), wrong):
        orders, order = orders + 1, [rank in wrongs for rank in range(7)]
        for done in range(8):
            found = sum(order[:done])
            now = check.after(done, found)
            if now.promised:
                broken += wrong - found > 0.3 * now.left + 1e-9
                break
    assert broken / orders <= 0.4


def test_photos_found_wrong_leave_the_list_and_a_list_checked_to_the_end_is_certain():
    one = ListCheck(1, 0.1)
    assert (one.more(), promised_check(one)) == (1, None)
    told = promised_check(one.after(1, 0))
    assert (told.listed, told.checked, told.n) == (1, 1, 0)
    assert str(told) == "this photo matches: known, not estimated, 1 photo checked"
    assert promised_check(one.after(1, 1)) is None  # nothing is left to promise
    assert promised_check(ListCheck(20, 0.1).after(20, 10)).listed == 10
    many = promised_check(ListCheck(214, 0.1, prior=(0.06, 11.94)).after(40, 0))
    assert many.in_words("dog") == (
        "at least 90 % of these 214 photos match dog: 95 % confidence, 40 photos checked"
    )


def test_about_how_many_more_is_where_the_promise_comes():
    """Oracle: answers given one by one, all right, from a list that expects nothing wrong."""
    check = ListCheck(5000, 0.1, prior=(1e-3, 12.0))
    more = check.more()
    assert check.after(more - 1, 0).promised < check.after(more, 0).promised
    assert ListCheck(5000, 0.1).after(40, 20).more() is None


def scored(size, share, rng, gap=2.8):
    truth = rng.random(size) < share
    return rng.normal(size=size) + gap * truth, truth


def test_interval_is_the_beta_binomial_one():
    """Scores that say nothing tell no share: the law is a single beta-binomial, cut at the list."""
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 5 == 0
    scores = np.repeat(rng.permutation(120), 5).astype(float)  # the same for both
    held, library = ScoredSplit(scores, truth), rng.random(400) * 120
    said = judge_cut(held, held, library, 110.0)
    listed, false = int((library >= 110).sum()), 40
    assert (said.listed, said.test_absent, said.test_wrong) == (listed, 480, false)
    assert said.share == 0.0
    law = betabinom.pmf(np.arange(listed + 1), 400, false + 0.5, 480 - false + 0.5)
    law = law.cumsum() / law.sum()
    ends = np.searchsorted(law, [0.015, 0.985], side="right")
    assert (said.low * listed, said.high * listed) == pytest.approx(np.minimum(ends, listed))
    assert said.wrong == pytest.approx(min(false / 480 * 400 / listed, 1.0), abs=1e-9)
    assert said.high - said.low > WIDEST  # so it is not shown as a list
    low = f"{100 * said.low:.2g}"
    assert said.stated().kind == "none"
    assert (
        said.stated().sentence == f"No estimate: between {low} and 100 % of this list may be wrong."
    )
    words = replace(said, low=0.6).stated().sentence
    assert words.startswith(f"About {100 * said.wrong:.2g} % of this list of {listed} photos is ")
    assert words.endswith(": 40 of 480 test photos that do not match score this high.")


def test_a_short_list_is_not_estimated_and_photos_found_wrong_leave_one():
    said = [ListEstimate(0.5, n, 0.2, 0.1, 0.5, 0.1, 480, 8, 0.95).stated() for n in (1, 9, 10)]
    assert [one.kind for one in said] == ["none", "none", "estimate"]
    assert said[0].sentence == "No estimate: a list of 1 photo is too short; look at all of it."
    # 40 photos, 4 to 20 wrong, about 8; 6 of the wrong ones are gone
    said = ListEstimate(0.5, 40, 0.2, 0.1, 0.5, 0.1, 480, 8, 0.95).without(6)
    assert (said.listed, said.low, said.wrong) == (34, 0, pytest.approx(2 / 34))
    assert said.high == pytest.approx(14 / 34)


def test_a_long_list_has_the_interval_of_the_law_at_every_number():
    """Oracle: scipy's quantiles of the beta-binomial, for a list of far more photos than FINE."""
    truth = np.arange(600) % 5 == 0
    scores = np.repeat(np.arange(120.0), 5)
    held, library = ScoredSplit(scores, truth), np.random.default_rng(0).random(60_000) * 120
    said = judge_cut(held, held, library, 20.0)
    law = betabinom(60_000, 400.5, 80.5)
    inside = law.cdf(said.listed)
    ends = [law.ppf(inside * tail) / said.listed for tail in (0.015, 0.985)]
    assert (said.low, said.high) == pytest.approx(ends, rel=2e-3)


def test_lists_and_counts_cover_under_label_shift():
    covers, counts = [], []
    for seed in range(20):
        rng = np.random.default_rng((8, seed))
        splits = [ScoredSplit(*scored(500, 0.2, rng)) for _ in range(2)]
        scores, truth = scored(1500, (0.06, 0.4)[seed % 2], rng)
        said = decide.estimate_list(*splits, scores)
        count = decide.estimate_library_count(*splits, scores)
        if isinstance(said, ListEstimate):
            covers.append(said.low <= (~truth[scores >= said.cut]).mean() <= said.high)
        count = decide.estimate_library_count(*splits, scores)
        counts.append(count.low <= truth.sum() <= count.high)
    assert sum(covers) >= binom.ppf(0.01, len(covers), 0.95) > 8
    assert sum(counts) >= binom.ppf(0.005, 20, 0.95)


def test_no_estimate_says_why():
    rng = np.random.default_rng(2)
    good, library = ScoredSplit(*scored(400, 0.2, rng)), scored(300, 0.2, rng)[0]
    few = ScoredSplit(good.scores[:40], good.present[:40])
    blank = ScoredSplit(good.scores, np.zeros(400, bool))
    absent = int((~few.present).sum())
    for part, splits in (("test", (good, few)), ("validation", (few, good))):
        reason = decide.estimate_list(*splits, library).reason
        counted = f"{absent} {part} photos, counted once per group, are without it"
        assert reason == f"{counted}; 50 are needed"
    assert decide.estimate_list(blank, good, library).reason.startswith("no validation photo")
    useless = [ScoredSplit(*scored(800, 0.1, rng, gap=0.0)) for _ in range(2)]
    assert isinstance(decide.estimate_list(*useless, library), NoEstimate)
    assert isinstance(decide.estimate_library_count(*useless, library), NoEstimate)
    with pytest.raises(DataError, match="between 0 and 1"):
        decide.estimate_list(good, good, library, wrong_at_most=0)


def test_more_answers_carry_a_longer_list():
    probs = 1 / (1 + np.exp(np.linspace(-6, 6, 5000)))
    longest = [size_list(probs, answers)[0] for answers in (12, 30, 80)]
    assert longest[0] < longest[-1] == max(longest)
    assert size_list(np.full(50, 0.2), 20) == ()


def test_list_audit_resumes_and_ends_with_what_is_known():
    audit, told = ListAudit((3,), seed=1), {}
    while (rank := audit.question) is not None:
        told[rank] = "yes"
        audit.answer("yes")
    assert (audit.guaranteed, audit.check.known, len(told)) == (3, True, 3)
    assert ListAudit((3,), seed=1).resume(told).check == audit.check
    with pytest.raises(DataError, match="fall"):
        ListAudit((3, 5))


def promise(listed=100, kind="sure", level=0.9, confidence=0.95):
    sure = None if kind == "expected" else confidence
    said = ("list", level, sure, 400, 50, 0.95, "held-out photos", "2026-01-01", "exact")
    return Promise(*said, kind=kind, listed=listed)


def told(drawn, wrong, more_right=0, more_wrong=0):
    return ListAnswers(drawn - wrong + more_right, wrong + more_wrong, drawn, wrong)


@pytest.mark.parametrize(("drawn", "wrong"), [(30, 0), (30, 2), (60, 3), (90, 25), (3, 1)])
def test_the_bounds_are_the_tails_of_the_law_of_draws(drawn, wrong):
    found = judge_list(promise(), told(drawn, wrong))
    counts = np.arange(wrong, 100 - drawn + wrong + 1)
    above = hypergeom.sf(wrong - 1, 100, counts, drawn)
    below = hypergeom.cdf(wrong, 100, counts, drawn)
    assert found.least == counts[above > MISJUDGED].min()
    assert found.most == max(counts[below > DOUBTED].max(), found.least)
    assert found.share == wrong / drawn


def test_what_is_known_of_every_photo_leaves_no_doubt():
    kept = judge_list(promise(), told(0, 0, more_right=90))
    assert (kept.verdict, kept.certain, kept.most) == ("kept", True, 10)
    assert judge_list(promise(), told(0, 0, more_right=89)).verdict == "cannot tell"
    broken = judge_list(promise(), told(0, 0, more_wrong=11))
    assert (broken.verdict, broken.certain, broken.least) == ("broken", True, 11)
    assert judge_list(promise(), told(0, 0, more_wrong=10)).verdict == "cannot tell"
    whole = judge_list(promise(10, level=0.7), told(10, 3))
    assert (whole.verdict, whole.least, whole.most, whole.share) == ("kept", 3, 3, 0.3)
    assert "kept: 3 of 10 photos drawn from it are wrong; 3 of its 10" in str(whole)


def test_it_says_how_many_more_right_answers_would_tell():
    """Oracle: the same list with as many more, and with one fewer."""
    early = judge_list(promise(), told(5, 0))
    assert f"{early.more} more right answers would tell" in str(early)
    assert judge_list(promise(), told(5 + early.more, 0)).verdict == "kept"
    assert judge_list(promise(), told(4 + early.more, 0)).verdict == "cannot tell"
    assert "no photo of it was answered" in str(judge_list(promise(), told(0, 0)))


def test_lists_together_are_held_to_the_confidence():
    """Oracle: scipy's binomial test of as many broken lists."""
    kept = [judge_list(promise(20), told(20, 1)) for _ in range(19)]
    broken = judge_list(promise(20), told(20, 3))
    one = judge_lists([*kept, broken])
    chance = binomtest(1, 20, 0.05, alternative="greater").pvalue
    assert (one.told, one.kept, one.verdict) == (20, 19, "kept")
    assert one.chance == pytest.approx(chance)
    assert str(one).startswith("kept in 19 of 20; promises that hold break 1 or more of 20 with")
    assert judge_lists([kept[0], broken]).verdict == "cannot tell"  # more than allowed, few lists
    many = judge_lists([*kept[:16], broken, broken, broken, broken])
    assert many.verdict == "broken"
    assert many.chance == pytest.approx(binomtest(4, 20, 0.05, alternative="greater").pvalue)
    drawn = judge_list(promise(100), told(20, 8))  # a sample may mislead, so more is allowed
    seen = judge_lists([*kept, drawn])
    assert seen.chance == pytest.approx(binomtest(1, 20, 0.06, alternative="greater").pvalue)
    nothing = judge_lists([judge_list(promise(), told(0, 0))])
    assert (nothing.verdict, str(nothing)) == ("cannot tell", "1 cannot be decided yet")
    assert str(judge_lists([])) == "nothing was promised"
    # no answers break an expected promise of version 0.2
    bad = judge_list(promise(20, kind="expected"), told(20, 10))
    assert (bad.verdict, bad.more) == ("cannot tell", 0)
    assert "10 of its 20 photos are wrong, 10% may be on average over searches" in str(bad)
    together = judge_lists([bad] * 30)
    assert (together.verdict, together.told, together.untold) == ("cannot tell", 0, 30)


# Counts against all samples of small libraries, scipy's hypergeometric law and numpy's
# regression; coverage in libraries whose probabilities are wrong.


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
