"""Oracles: scipy's t interval and paired t test, partitions of methods counted one by one, and
tables of equal methods, in which every claim is false."""

from math import inf

import numpy as np
import pytest
from scipy.stats import norm, t, ttest_rel

from labelwise.papers import comparison
from labelwise.papers.compare import _freedom

RNG = np.random.default_rng(0)


def seeded(values):
    return dict(enumerate(values))


def test_interval_is_students():
    values = RNG.normal(size=7)
    low, high = t.interval(0.95, 6, loc=values.mean(), scale=values.std(ddof=1) / np.sqrt(7))
    assert comparison.seed_mean(values) == comparison.SeedMean(
        pytest.approx(values.mean()), pytest.approx(low), pytest.approx(high), 7
    )
    # Fewer than three runs have no interval, and undefined runs are left out.
    assert comparison.seed_mean([0.5, 0.7]) == comparison.SeedMean(pytest.approx(0.6), -inf, inf, 2)
    assert comparison.seed_mean([0.5]) == comparison.SeedMean(0.5, -inf, inf, 1)
    assert comparison.seed_mean([0.5, float("nan")]).n == 1
    assert comparison.seed_mean([float("nan")]).n == 0


def test_paired_difference_is_the_paired_t_test():
    first, second = RNG.normal(size=5), RNG.normal(size=5)
    gap = comparison.paired_difference("a", "b", {"a": seeded(first), "b": seeded(second)})
    assert gap.p_value == pytest.approx(ttest_rel(first, second).pvalue)
    assert gap.over_seeds.mean == pytest.approx((first - second).mean())
    some = comparison.paired_difference(
        "a", "b", {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 0.0, 1: 1.0}}
    )
    assert (some.over_seeds.n, some.over_seeds.mean) == (2, 1.0)  # the seeds that both have


def test_test_images_widen_what_seeds_alone_would_tell_apart():
    values = {"a": seeded([0.50, 0.51, 0.52]), "b": seeded([0.48, 0.49, 0.50001])}
    alone = comparison.paired_difference("a", "b", values)
    shared = {"a": {"a": 4e-4, "b": 4e-4}, "b": {"a": 4e-4, "b": 4e-4}}
    apart = {"a": {"a": 4e-4, "b": 0.0}, "b": {"a": 0.0, "b": 4e-4}}
    assert comparison.paired_difference("a", "b", values, shared).p_value == alone.p_value < 0.001
    assert comparison.paired_difference("a", "b", values, apart).p_value == pytest.approx(
        2 * norm.sf(alone.over_seeds.mean / np.sqrt(8e-4)), rel=0.01
    )
    equal = {"a": seeded([0.5, 0.5]), "b": seeded([0.4, 0.4])}
    assert comparison.paired_difference("a", "b", equal, apart).p_value == pytest.approx(
        2 * norm.sf(0.1 / np.sqrt(8e-4))
    )


def partitions(items):
    """Every way to put the items into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for place in range(len(groups)):
            yield [*groups[:place], [first, *groups[place]], *groups[place + 1 :]]


@pytest.mark.parametrize("methods", [2, 3, 5, 7])
def test_each_pair_is_held_against_the_pairs_that_can_still_be_equal(methods):
    pairs = methods * (methods - 1) // 2
    possible = {
        sum(len(g) * (len(g) - 1) // 2 for g in p) for p in partitions(list(range(methods)))
    }
    limits = [0.05 / max(s for s in possible if s <= pairs - found) for found in range(pairs)]
    assert all(comparison.shaffer(limits, methods))
    for stop in range(pairs):
        just_above = [*limits[:stop], limits[stop] * 1.0001, *[1.0] * (pairs - stop - 1)]
        assert sum(comparison.shaffer(just_above[::-1], methods)) == stop


def test_what_is_not_told_apart_ends_the_claims():
    noise = np.array([0.0, 0.1, -0.1, 0.05])
    far = 0.2 + noise + np.array([0, 1e-3, 2e-3, 0])
    values = {"best": 1.0 + noise, "near": 1.0 + noise[::-1] - 0.01, "far": far}
    values = {name: seeded(row) for name, row in values.items()}
    gaps = comparison.compare_to_best(values, higher_is_better=True)
    assert {gap.first: gap.distinguishable for gap in gaps} == {"far": True, "near": False}


SAID = {
    "mAP: a is ahead, but one seed cannot tell luck from skill.": {"a": [1.0], "b": [0.5]},
    "mAP: fewer than two methods have a value, so there is nothing to compare.": {},
    "mAP: a is higher than b beyond the spread of 3 seeds; "
    "a does not differ significantly from c.": {
        "a": [1.0, 1.01, 0.99],
        "b": [0.5, 0.51, 0.49],
        "c": [0.9, 1.1, 0.95],
    },
}


@pytest.mark.parametrize("said", SAID)
def test_verdicts_say_what_can_be_said_and_no_more(said):
    values = {name: seeded(row) for name, row in SAID[said].items()}
    gaps = comparison.compare_to_best(values, higher_is_better=True)
    assert comparison.verdict("mAP", gaps, higher_is_better=True) == said
    grouped = comparison.verdict("mAP", gaps, higher_is_better=True, images=True, groups=40)
    assert ("3 seeds and of the 40 groups of test images" in grouped) == ("beyond" in said)


def test_differences_over_few_groups_of_images_have_few_degrees_of_freedom():
    """Oracle: Welch and Satterthwaite's formula by hand, and many groups as many images."""
    values = {"a": {0: 0.5, 1: 0.52, 2: 0.49}, "b": {0: 0.44, 1: 0.47, 2: 0.42}}
    covariance = {"a": {"a": 4e-4, "b": 1e-4}, "b": {"a": 1e-4, "b": 4e-4}}
    many, few, huge = (
        comparison.paired_difference("a", "b", values, covariance, freedom).p_value
        for freedom in (np.inf, 4, 10**9)
    )
    gaps = np.array([0.06, 0.05, 0.07])
    seeds, images = gaps.var(ddof=1) / 3, 6e-4
    freedom = (seeds + images) ** 2 / (seeds**2 / 2 + images**2 / 4)
    assert few == pytest.approx(2 * t.sf(gaps.mean() / np.sqrt(seeds + images), freedom))
    assert huge == pytest.approx(many)
    assert many < few


def test_differences_that_one_group_carries_have_one_degree_of_freedom(tmp_path):
    random = np.random.default_rng(0)
    common = random.normal(size=20)
    apart = {"a": common, "b": common + 9 * np.eye(20)[3]}
    alike = {name: common + random.choice([-1.0, 1.0], 20) for name in "ab"}
    assert _freedom(apart) == pytest.approx(1.0)
    assert _freedom(alike) > 10
    figures = {name: {seed: {"mAP@class": value + seed / 100} for seed in range(3)}
               for name, value in (("a", 0.50), ("b", 0.56))}  # fmt: skip
    covariance = {"mAP@class": {"a": {"a": 4e-4, "b": 1e-4}, "b": {"a": 1e-4, "b": 4e-4}}}
    for freedom, p_value in ((None, t.sf(0.06 / 6e-4**0.5, 19)), (1.0, t.sf(0.06 / 6e-4**0.5, 1))):
        stated = {} if freedom is None else {"mAP@class": freedom}
        comparison.Comparison(figures, {"a": {}, "b": {}}, covariance, (), 20, stated).save(
            tmp_path
        )
        (gap,) = comparison.Comparison.load(tmp_path).differences("mAP@class")
        assert gap.p_value == pytest.approx(2 * p_value)


def test_seeds_that_share_all_images_give_no_interval_of_a_figure_about_images():
    """Oracle: seeds of 0.70, 0.71 and 0.72 say nothing of other images; what runs cost has one."""
    runs = {seed: {"macro F1": 0.7 + seed / 100, "seconds": 5.0 + seed} for seed in range(3)}
    one = comparison.Comparison({"a": runs}, {"a": {}})
    assert one.intervals("macro F1")["a"].half_width == inf
    assert one.intervals("seconds")["a"].half_width < inf
    redrawn = comparison.Comparison({"a": runs}, {"a": {}}, redrawn=0.5)
    assert 0.01 < redrawn.intervals("macro F1")["a"].half_width < inf
