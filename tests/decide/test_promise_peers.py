"""Held to: the table in the docs, written again from the figures that are kept; and, where they are
installed, crepes, MAPIE and ppi-python on the same draws. Slow loops that need none of them stand
in the tests of lists, risk control, bounds and estimates.
"""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import promise_peers

    return promise_peers


def test_the_docs_show_the_figures_that_are_kept(peers):
    kept = ROOT / "benchmarks" / "promise_peers.json"
    table = peers.table(json.loads(kept.read_text(encoding="utf-8")))
    assert table in (ROOT / "evidence" / "decide.md").read_text(encoding="utf-8")


def test_p_values_and_thresholds_are_those_of_mapie(peers):
    pytest.importorskip("mapie", reason="extra `bench`")
    assert peers.same_tests()["digits"] >= 10
    assert peers.same_thresholds(1) == {"same": 1, "draws": 1}


def test_counts_are_those_of_ppi_python(peers):
    pytest.importorskip("ppi_py", reason="extra `bench`")
    assert peers.same_counts(3)["digits"] >= 10
