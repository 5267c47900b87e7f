"""Held to: the table in the docs, written again from the figures that are kept."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_docs_show_the_figures_that_are_kept(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import promise_peers

    kept = ROOT / "benchmarks" / "promise_peers.json"
    table = promise_peers.table(json.loads(kept.read_text(encoding="utf-8")))
    assert table in (ROOT / "evidence" / "decide.md").read_text(encoding="utf-8")
