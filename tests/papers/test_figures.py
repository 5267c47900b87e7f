"""Figures and the computed table; oracles: closed forms, what a drawing holds, files that open."""

import numpy as np
import official
import pytest
import torch
from PIL import Image

from labelwise.methods import make_objective
from labelwise.papers.computed import minimisers
from labelwise.papers.figures import FIGURES
from labelwise.papers.reproduce import find_experiment
from labelwise.types import DatasetFacts

SMALL = ("backbone=small-cnn", "weights=null", "image_size=16", "recipe.epochs=1", "precision=32")


def test_minimisers_are_the_closed_forms():
    etas = torch.tensor([0.05, 0.3, 0.7], dtype=torch.float64)
    facts = DatasetFacts(1, 1, 0.5, (0.5,))
    logit = torch.logit(etas)
    torch.testing.assert_close(
        minimisers(make_objective("bce", facts), etas), logit, rtol=0, atol=1e-3
    )
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
    losses = ("bce", "focal", "asl", "asl+phi", "spa")
    assert [name for name in losses if rows[name][4] == "yes"] == ["bce", "asl+phi", "spa"]
    assert [name for name in losses if rows[name][6] == "yes"] == ["bce", "focal", "spa"]
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
        for value in () if figure.photos_only else SMALL:
            arguments += ["--set", value]
    code, said = call(*arguments)
    assert code == 0, said
    with Image.open(out / f"{name}.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert pixels.std() > 5  # something is drawn
    assert (out / f"{name}.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("000-table2", "--query=dog", "--query is for 001-fig4"),
        ("001-fig2", "--query=dog", "--query does not apply: 001-fig2 is computed"),
        ("001-table1", "--quick", "--quick does not apply: 001-table1 is computed"),
    ],
)
def test_a_query_is_for_the_figure_of_retrieved_photos(call, name, option, sentence):
    code, said = call("papers", "run", name, option)
    assert code
    assert sentence in said
