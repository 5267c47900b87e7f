"""What methods read as; oracles: closed forms of the optimum, and the page that shows them."""

import runpy
from math import exp, log
from pathlib import Path

import pytest

from labelwise.methods import METHODS, READINGS

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "links.py"))
CHANCES, reading_of = SCRIPT["CHANCES"], SCRIPT["reading_of"]
PAGE = (Path(__file__).parents[2] / "evidence" / "links.md").read_text(encoding="utf-8")
SHOWN = {
    line.split("`")[1]: [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
}


def odds(value):
    return 1 / (1 + exp(-value))


# Where the expected loss is least, solved by hand for three independent labels.
CLOSED = {
    "bce-ls": lambda e: 0.1 + 0.8 * e,
    "wan": lambda e: odds(log(e / (1 - e)) + log(2)),  # K - 1 = 2
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_sigmoid_reads_the_closed_form(name):
    found = reading_of(name).by_sigmoid
    assert found == pytest.approx([CLOSED[name](chance) for chance in CHANCES], abs=2e-3)


def test_the_flat_optimum_of_hill_is_reached_as_the_page_has_it():
    found = reading_of("hill")
    assert SHOWN["hill"][4] == ", ".join(f"{value:.2f}" for value in found.by_sigmoid)


@pytest.mark.parametrize("name", ["asl-official+phi", "spa"])
def test_links_give_back_what_a_sigmoid_does_not(name):
    found = reading_of(name)
    assert found.own == pytest.approx(CHANCES, abs=2e-3)
    assert abs(found.by_sigmoid[0] - CHANCES[0]) > 0.4
    cells = SHOWN[name]
    assert cells[3] == ", ".join(f"{value:.2f}" for value in found.own)
    assert cells[4] == ", ".join(f"{value:.2f}" for value in found.by_sigmoid)


def test_every_method_has_a_sentence_and_a_row():
    assert set(READINGS) == set(METHODS) == set(SHOWN)
    words = {"proper": "yes", "improper": "no", "ranking only": "no link"}
    for name, cells in SHOWN.items():
        assert cells[1] == words[METHODS[name].probabilities], name
        assert cells[5] == READINGS[name], name
        assert READINGS[name].endswith("."), name
        assert (cells[2] == "–") == (METHODS[name].probabilities == "ranking only"), name
        if cells[1] == "yes":
            assert cells[3] == "0.10, 0.50, 0.90", name
