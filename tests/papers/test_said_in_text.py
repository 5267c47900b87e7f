"""What papers count or say in words; oracles: label matrices counted entry by entry, closed forms.

The counts of Table 3 are held to a slow loop over the figures as the paper prints them.
"""

import json
from dataclasses import replace
from math import log
from types import SimpleNamespace

import official
import pytest
import torch

from labelwise.data import load
from labelwise.errors import DataError
from labelwise.objectives import QuasibinaryLink
from labelwise.papers.columns import normaliser_figures
from labelwise.papers.comparison import seed_mean
from labelwise.papers.computed import best_counts, statistics_of
from labelwise.papers.figures import find_figure
from labelwise.papers.protocols import DATASETS, EXPERIMENTS, PUBLISHED, FigureOf, TableClaim
from labelwise.predictions import Predictions


def table_of(seeds=1, **columns):
    """Return rows of seeds that differ by a hundredth."""
    return {
        row: {"x": seed_mean([value + at / 100 for at in range(seeds)])}
        for row, value in columns.items()
    }


@pytest.mark.parametrize(
    ("values", "seeds", "verdict"),
    [((2.0, 1.0), 3, "comes out"), ((2.0, 1.0), 1, "in part"), ((1.0, 2.0), 3, "does not")],
)
def test_a_claim_is_judged_by_the_rule_of_the_page(values, seeds, verdict):
    figures = {"a": FigureOf("x", ("a", "c")), "b": FigureOf("x", ("b",))}
    claim = TableClaim("a above b", "a > b", figures)
    table = table_of(seeds, a=values[0], b=values[1], c=0.0)
    means = "a {:.4g}, b {:.4g}".format(*(table[row]["x"].mean for row in "ab"))
    assert claim.verdict(table, seeds) == f"a above b: {verdict} ({means})."
    assert claim.verdict({"a": table["a"]}, seeds) is None  # rows that were not run


def test_a_figure_is_the_highest_lowest_or_range_of_rows():
    table = table_of(a=3.0, b=1.0, c=2.5)
    rows = ("a", "b", "c")
    found = [FigureOf("x", rows, take).value(table) for take in ("highest", "lowest", "range")]
    assert [value.mean for value in found] == [3.0, 1.0, 2.0]


def test_shares_of_q_above_one_and_the_variance_of_c(tmp_path):
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.5, 0.0]])
    labels = torch.tensor([[1, 0, 0], [1, 0, 0]], dtype=torch.uint8)
    test = Predictions(["0", "1"], logits, labels, None, tuple("abc"), "test")
    test = replace(test, link=QuasibinaryLink(log(4.0)))
    c = [9.0, 1.0, 2.0, 4.0, 1.0, 2.0, 3.0, 5.0]  # the last quarter: 3 and 5
    lines = [json.dumps({"step": at, "link.log_normalizer": log(x)}) for at, x in enumerate(c)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = normaliser_figures(SimpleNamespace(folder=tmp_path, test=test))
    # e^2 and e^1.5 are above 4, and one of two images has another label first.
    expected = {"q > 1": 100 * 2 / 6, "C": 4.0, "variance of C": 1.0, "error": 50}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "last"), [("voc", "present / absent labels"), ("nus-wide", "labels per image")]
)
def test_statistics_are_those_of_the_label_matrix(tmp_path, name, last):
    official.write(name, tmp_path)
    table = load(f"{DATASETS[name].format}:{tmp_path / DATASETS[name].folder}")
    labels, observed = table.targets()
    known = labels.ravel() if observed is None else labels[observed]
    present, absent = (known == 1).sum(), (known == 0).sum()
    in_test = int((table.split == "test").sum())
    expected = present / absent if "absent" in last else present / len(table)
    sizes = len(table.space), len(table) - in_test, in_test
    assert statistics_of(table, last) == (*sizes, pytest.approx(expected))
    with pytest.raises(DataError, match="has no test images"):
        statistics_of(table.subset(table.split == "train"), last)


def test_statistics_stand_beside_the_printed_ones(call, tmp_path):
    official.write("voc", tmp_path)
    assert call("papers", "run", "001-table2", "--root", tmp_path, "-o", tmp_path / "out")[0] == 0
    text = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "| voc | paper | 20 | 5,717 | 5,823 | 0.08 |" in text
    assert "- voc: differs from what is printed." in text
    assert "- coco: not counted; put into" in text
    code, said = call("papers", "run", "001-table2", "--root", tmp_path / "nothing")
    assert code
    assert "none of the data sets" in said


@pytest.mark.parametrize("rows", [("spa", "spa+lpr"), ("spa+lpr",)])
def test_best_results_of_the_printed_table_are_counted(rows):
    best = total = 0
    for data in ("coco", "voc", "wider"):
        for network in ("ecaresnet50t", "vit-b-32"):
            printed = PUBLISHED[f"001-table3.{data}.{network}"].rows
            for at, better in enumerate((max, max, min, min)):
                column = [cells[at] for cells in printed.values() if cells[at] is not None]
                total += 1
                best += better(column) in [printed[row][at] for row in rows]
    assert best_counts(rows) == (best, total)
    assert total == 24


def test_counts_say_what_the_missing_rows_would_have_to_be(call, tmp_path):
    assert call("papers", "run", "001-counts", "-o", tmp_path)[0] == 0
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    best, _ = best_counts(("spa", "spa+lpr"))
    assert f"| spa or spa+lpr | 29 of 32 | {best} of 24 |" in text
    assert f"29 are reached if {29 - best} of them are won" in text
    code, said = call("papers", "run", "001-counts", "--source", "x.csv")
    assert code
    assert "--source does not apply: 001-counts is computed" in said


def test_a_figure_of_another_cell_is_drawn_from_that_cell():
    figure, cell = find_figure("001-fig1.voc.vit-b-32")
    assert f"{figure.table}{cell}" in EXPERIMENTS
    assert find_figure("001-fig1")[1] == ""
    assert find_figure("001-fig2.voc")[0] is None  # drawn from formulas: no cells
    assert find_figure("001-table3.voc.vit-b-32")[0] is None
