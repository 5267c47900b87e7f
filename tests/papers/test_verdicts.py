"""Verdicts on the papers' claims; oracles: cases by hand, and the page that is made anew."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from labelwise.errors import SettingsError
from labelwise.papers.listing import NOT_RUN, status_of

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "verdicts.py"))
RunResults, read_claims = SCRIPT["RunResults"], SCRIPT["read_claims"]
Claim, ClaimedRun, figures_in = (SCRIPT[name] for name in ("Claim", "ClaimedRun", "figures_in"))
CLAIMS = (ROOT / "benchmarks" / "claims.yaml").read_text(encoding="utf-8")


def verdict(holds, published, *runs):
    given = tuple(
        run if isinstance(run, ClaimedRun) else ClaimedRun(run, "", 3, "significantly")
        for run in runs
    )
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
def test_only_a_significant_difference_of_several_seeds_comes_out(
    holds, ours, seeds, held, expected
):
    assert verdict(holds, "", ClaimedRun(ours, "", seeds, held)) == expected


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("24.7 ± 0.4, 25.1 ± 1.0", [24.7, 25.1]),
        ("5.3 → 4.2", [5.3, 4.2]),
        (".907, .901; lower on one split of 3", [0.907, 0.901]),
        ("56.3, 55.2 (told apart by 3 seeds)", [56.3, 55.2]),
        ("[3.7](objectives.md#asl-2), 4.0", [3.7, 4.0]),
        ("55.7, 55.9 for 1, 2", [55.7, 55.9]),
    ],
)
def test_figures_are_read_without_what_is_said_about_them(text, figures):
    assert figures_in(text) == figures


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"holds": "a > b", "published": "4, 8"}, "does not hold for what is printed"),
        ({"holds": "a > b", "published": "4"}, "is about a, b, got 1 figures in '4'"),
        ({"holds": "a > B!"}, "compares names or numbers, as 2 x a - 0.5, got 'B!'"),
        ({"runs": (ClaimedRun("1, 2", ""),)}, "say in holds what is claimed"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(claim, reason):
    with pytest.raises(SettingsError, match=re.escape(reason)):
        Claim("x", **claim)


CLAIM_WITH_RESULTS = """
000:
  - claim: "a is above b"
    holds: a > b
    runs:
      - {results: one, run: "`000-x`", figures: [[first row, x], [b, x]]}
"""


def results(**rows):
    return RunResults(
        "labelwise reproduce 000-x", {k: [{"x": v} for v in r] for k, r in rows.items()}
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([3.0, 3.1, 3.2], [2.0, 2.1, 2.2], "comes out"),
        ([3.0, 3.1, 2.1], [2.0, 2.1, 2.2], "in part"),  # not in the last seed
        ([2.1, 3.9, 2.3], [2.0, 2.1, 2.2], "in part"),  # in every seed, and not significantly
        ([3.0], [2.0], "in part"),  # one seed
        ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2], "does not"),
    ],
)
def test_figures_are_read_from_results_seed_by_seed(first, second, expected):
    kept = {"one": results(**{"first row": first, "b": second})}
    ((claim,),) = read_claims(CLAIM_WITH_RESULTS, kept).values()
    (run,) = claim.runs
    assert claim.verdict == expected
    assert run.seeds == len(first)
    assert figures_in(run.ours) == pytest.approx([np.mean(first), np.mean(second)], abs=5e-3)


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        ({}, "there are no results 'one'"),
        ({"one": results(b=[1.0])}, "has no row 'first row'"),
        ({"one": RunResults("x", {"first row": [{}], "b": [{"x": 1}]})}, "has no figure 'x'"),
    ],
)
def test_results_that_are_not_there_are_named(kept, reason):
    with pytest.raises(SettingsError, match=re.escape(reason)):
        read_claims(CLAIM_WITH_RESULTS, kept)


def test_results_are_kept_without_what_runs_cost(tmp_path):
    script = runpy.run_path(str(ROOT / "benchmarks" / "verdicts.py"))
    script["take"].__globals__["RESULTS"] = tmp_path / "results"
    written = {"bce": [{"ACE": 2.03456789, "seconds": 9.0, "MCE": None}, {"ACE": 2.5}]}
    (tmp_path / "figures.json").write_text(json.dumps(written))
    script["take"](tmp_path, "c", "labelwise reproduce 001-table3")
    found = script["kept_results"]()["c"]
    assert found == script["RunResults"](
        "labelwise reproduce 001-table3", {"bce": [{"ACE": 2.03457}, {"ACE": 2.5}]}
    )


def test_every_kept_result_names_a_command_and_is_used_by_a_claim():
    for name, found in SCRIPT["kept_results"]().items():
        assert found.command.startswith("labelwise reproduce "), name
        assert f"results: {name}," in CLAIMS, name


def test_the_page_has_the_verdicts_that_the_rule_gives():
    page = (ROOT / "evidence" / "reproduction.md").read_text(encoding="utf-8")
    assert SCRIPT["with_tables"](page, CLAIMS) == page
    changed = CLAIMS.replace('"54.6 ± 0.3, 49.6 ± 0.3', '"54.6 ± 0.3, 55.6 ± 0.3')
    assert changed != CLAIMS
    assert SCRIPT["with_tables"](page, changed) != page


def test_every_paper_has_claims_that_were_run():
    claims = read_claims(CLAIMS, SCRIPT["kept_results"]())
    assert list(claims) == ["000", "001", "002", "003", "004"]
    assert all(any(claim.runs for claim in found) for found in claims.values())
    # By eye alone: curves, and marks that a test computes.
    assert [claim.claim[:7] for found in claims.values() for claim in found if claim.seen] == [
        "Fig. 2:",
        "Table 1",
    ]


def test_papers_list_says_of_no_table_otherwise_than_the_claims():
    """A table named without a cell among what is to do was not run, and no run names it."""
    todo = " ".join(re.findall(r"todo: (.*)", CLAIMS))
    runs = " ".join(line for line in CLAIMS.splitlines() if "todo:" not in line)
    named = set(re.findall(r"`(00\d-(?:table|supplement|appendix|vqa)\w*(?:-\w+)*)[`\s]", todo))
    assert named == set(NOT_RUN)
    assert not [table for table in NOT_RUN if re.search(rf"`{table}[`.\s]", runs)]
    assert [status_of(name) for name in ("000-table1", "000-table2")] == ["in part", "run"]


def test_verdicts_on_role_agree_with_the_survey():
    """A claim comes out on the survey's sets only if the corrected test finds it on each."""
    survey = runpy.run_path(str(ROOT / "benchmarks" / "survey.py"))
    claims = {one.claim: one for one in read_claims(CLAIMS, SCRIPT["kept_results"]())["004"]}
    cells = [cell for cell in survey["_cells"](survey["KEPT"]) if cell.cell == "single"]
    test = survey["Sentence"]("single", "mAP@class", "role", ("an",), "level")
    found = survey["findings"](cells, [test], check=False)[0]
    verdict = claims["ROLE is above AN (Cole et al.), mAP"].verdict
    assert (verdict == "comes out") == (found.better == len(cells) == found.count)
