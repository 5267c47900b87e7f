"""Oracles: scipy's t interval and paired t test, partitions of methods counted one by one, and
tables of equal methods, in which every claim is false."""

import re
import runpy
from math import inf
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, t, ttest_rel

from labelwise.learn.methods import METHODS, READINGS
from labelwise.papers import comparison
from labelwise.papers.compare import _freedom
from labelwise.papers.listing import NOT_RUN, status_of

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


# Pages of evidence; oracles: cases by hand, closed forms, and the page that is made anew.

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "verdicts.py"))
read_claims = SCRIPT["read_claims"]
Claim, ClaimedRun = (SCRIPT[name] for name in ("Claim", "ClaimedRun"))
CLAIMS = (ROOT / "benchmarks" / "claims.yaml").read_text(encoding="utf-8")


def verdict(holds, published, *runs):
    texts = (run if isinstance(run, tuple) else (run, 3, "significantly") for run in runs)
    given = tuple(ClaimedRun(ours, "", seeds, held) for ours, seeds, held in texts)
    return Claim("x", holds, published, given).verdict


@pytest.mark.parametrize(
    ("holds", "published", "runs", "expected"),
    [
        ("a > b", "8, 4", ["6, 4"], "comes out"),  # half the gap
        ("a > b", "8, 4", ["5.9, 4"], "in part"),
        ("a > b", "8, 4", ["12, 4"], "comes out"),  # twice the gap
        ("a > b", "8, 4", ["12.1, 4"], "in part"),
        ("a > b", "8, 4", ["3, 4"], "does not"),
        ("a > b", "8, 4", ["8, 4", "3, 4"], "in part"),
        ("a > b", "", ["3.1, 3"], "comes out"),  # no gap is printed
        ("a <= b", "4, 4", ["4, 40"], "comes out"),  # no less: of any size
        ("a > b > c", "9, 6, 3", ["9, 6, 7"], "in part"),
        ("a > b; c > b", "9, 6, 8", ["9, 6, 5"], "in part"),
        ("a < 0.5 x b", "1, 9", ["4, 9"], "in part"),
        ("a - 0.5 <= b", "77.8, 77.7", ["56.9, 56.5"], "comes out"),
        ("a > 15", "30", ["20"], "in part"),
        ("a > b", "8, 4", [], "not run"),
    ],
)
def test_the_rule(holds, published, runs, expected):
    assert verdict(holds, published, *runs) == expected


@pytest.mark.parametrize(
    ("holds", "ours", "seeds", "held", "expected"),
    [
        ("a > b", "8, 4", 1, None, "in part"),
        ("a <= b", "4, 8", 1, None, "in part"),  # no worse than: one seed shows neither
        ("a > b", "8, 4", 3, None, "in part"),  # no spread is known
        ("a > b", "8 ± 1, 4 ± 1", 3, None, "comes out"),
        ("a > b", "8 ± 3, 4 ± 3", 3, None, "in part"),  # sqrt(18) > 4
        ("a <= b", "24.7 ± 0.4, 25.1 ± 1.0", 3, None, "in part"),
        ("a > b", "8, 4", None, None, "comes out"),  # computed without chance
    ],
)
def test_only_significant_differences_of_seeds_come_out(holds, ours, seeds, held, expected):
    assert verdict(holds, "", (ours, seeds, held)) == expected


def test_the_page_has_the_verdicts_that_the_rule_gives_and_every_paper_was_run():
    page = (ROOT / "evidence" / "reproduction.md").read_text(encoding="utf-8")
    assert SCRIPT["with_tables"](page, CLAIMS) == page
    changed = CLAIMS.replace('"54.6 ± 0.3, 49.6 ± 0.3', '"54.6 ± 0.3, 55.6 ± 0.3')
    assert changed != CLAIMS
    assert SCRIPT["with_tables"](page, changed) != page
    claims = read_claims(CLAIMS, SCRIPT["kept_results"]())
    assert list(claims) == ["000", "001", "002", "003", "004"]
    assert all(any(claim.runs for claim in found) for found in claims.values())
    seen = [claim.claim[:7] for found in claims.values() for claim in found if claim.seen]
    assert seen == ["Fig. 2:", "Table 1"]  # by eye: curves, and marks that a test computes


def test_papers_list_says_of_no_table_otherwise_than_the_claims():
    """A table named without a cell among what is to do was not run, and no run names it."""
    todo = " ".join(re.findall(r"todo: (.*)", CLAIMS))
    runs = " ".join(line for line in CLAIMS.splitlines() if "todo:" not in line)
    named = set(re.findall(r"`(00\d-(?:table|supplement|appendix|vqa)\w*(?:-\w+)*)[`\s]", todo))
    assert named == set(NOT_RUN)
    assert not [table for table in NOT_RUN if re.search(rf"`{table}[`.\s]", runs)]
    assert [status_of(name) for name in ("000-table1", "000-table2")] == ["in part", "run"]


# What methods read as.

PAGE = (ROOT / "evidence" / "links.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]
SHOWN = {row.split("`")[1]: [cell.strip() for cell in row.strip("| ").split(" | ")] for row in ROWS}


def test_every_method_has_a_sentence_and_a_row():
    assert set(READINGS) == set(METHODS) == set(SHOWN)
    names = {"proper": "yes", "improper": "no", "ranking only": "no link"}
    for name, cells in SHOWN.items():
        assert cells[1] == names[METHODS[name].probabilities], name
        assert cells[5] == READINGS[name], name
        assert READINGS[name].endswith("."), name
        assert (cells[2] == "–") == (METHODS[name].probabilities == "ranking only"), name
        if cells[1] == "yes":
            assert cells[3] == "0.10, 0.50, 0.90", name
