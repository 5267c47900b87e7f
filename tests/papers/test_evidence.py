"""Pages of evidence; oracles: cases by hand, closed forms, and the page that is made anew."""

import re
import runpy
from pathlib import Path

import pytest

from labelwise.learn.methods import METHODS, READINGS
from labelwise.papers.listing import NOT_RUN, status_of

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
