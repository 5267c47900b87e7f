"""Figures, and what papers compute, count or say in words; oracles: closed forms, label matrices
counted entry by entry, a slow loop over the printed figures, files that open."""

import json
from dataclasses import replace
from math import log
from types import SimpleNamespace

import numpy as np
import official
import pytest
import torch
from PIL import Image

from labelwise.learn.methods import make_objective
from labelwise.learn.objectives import QuasibinaryLink
from labelwise.papers.columns import normaliser_figures
from labelwise.papers.comparison import seed_mean
from labelwise.papers.computed import minimisers
from labelwise.papers.figures import FIGURES, find_figure
from labelwise.papers.protocols import EXPERIMENTS, FigureOf, TableClaim
from labelwise.papers.reproduce import find_experiment
from labelwise.predictions import Predictions
from labelwise.types import DatasetFacts

SMALL = ("backbone=small-cnn", "weights=null", "image_size=16", "recipe.epochs=1", "precision=32")


def test_minimisers_are_the_closed_forms():
    etas = torch.tensor([0.05, 0.3, 0.7], dtype=torch.float64)
    facts = DatasetFacts(1, 1, 0.5, (0.5,))
    found = minimisers(make_objective("bce", facts), etas)
    torch.testing.assert_close(found, torch.logit(etas), rtol=0, atol=1e-3)
    # The optima of ASL with gamma 4 and 1, margin 0.05, as probabilities (found by a grid search).
    for kind, known in (("full", [0.4173, 0.5699, 0.7079]), ("detached", [0.4766, 0.6250, 0.7480])):
        best = minimisers(make_objective("asl", facts, weight_grad=kind), etas)
        assert torch.sigmoid(best).tolist() == pytest.approx(known, abs=2e-4)


def test_the_computed_table_is_shown_and_written(call, tmp_path):
    code, said = call("papers", "run", "001-table1", "-o", tmp_path)
    assert code == 0
    assert " asl 0.371 0.371 all no no no no " in said
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in text.splitlines()}
    for column, yes in ((4, ["bce", "asl+phi", "spa"]), (6, ["bce", "focal", "spa"])):
        losses = ("bce", "focal", "asl", "asl+phi", "spa")
        assert [name for name in losses if rows[name][column] == "yes"] == yes
    # Public code's ASL: its sigmoids are further off, and its own map ends at 0.942.
    assert "| asl-official+phi | 0.000 | 0.492 | up to 0.942 | below 0.942 | – | no | – |" in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where figures of one table share its data and runs."""
    return tmp_path_factory.mktemp("figures")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(call, folder, name):
    figure = FIGURES[name]
    out, root = folder / f"runs-{figure.table}", folder / f"data-{figure.table}"
    arguments = ["papers", "run", name, "-o", out, "--seeds", "1"]
    if figure.table:
        if not root.exists():
            official.write(find_experiment(figure.table).data, root)
        arguments += ["--root", root]
        for value in SMALL:
            arguments += ["--set", value]
    code, said = call(*arguments)
    assert code == 0, said
    with Image.open(out / f"{name}.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 5  # something is drawn
    assert (out / f"{name}.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("002-tableA", "--quick", "no longer a table here; use `labelwise train SET --features"),
        ("004-fig1", "--quick", "no longer a table here; use `labelwise papers run 000-fig1`"),
        ("000-table2", "--query=dog", "--query is for 001-fig4"),
        ("001-fig2", "--query=dog", "--query does not apply: 001-fig2 is computed"),
        ("001-table1", "--quick", "--quick does not apply: 001-table1 is computed"),
    ],
)
def test_options_that_do_not_apply_are_refused(call, name, option, sentence):
    code, said = call("papers", "run", name, option)
    assert code
    assert sentence in said


def test_a_figure_of_another_cell_is_drawn_from_that_cell():
    figure, cell = find_figure("001-fig1.voc.vit-b-32")
    assert f"{figure.table}{cell}" in EXPERIMENTS
    assert find_figure("001-fig2.voc")[0] is None  # drawn from formulas: no cells


def table_of(seeds=1, **columns):
    """Return rows of seeds that differ by a hundredth."""
    seeded = {row: [value + at / 100 for at in range(seeds)] for row, value in columns.items()}
    return {row: {"x": seed_mean(values)} for row, values in seeded.items()}


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
    table = table_of(a=3.0, b=1.0, c=2.5)
    takes = ("highest", "lowest", "range")
    found = [FigureOf("x", ("a", "b", "c"), take).value(table).mean for take in takes]
    assert found == [3.0, 1.0, 2.0]


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
