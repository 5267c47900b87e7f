"""Shared by tests of papers: few queries, because no test looks at those of a run; commands."""

import sys

import pytest

from labelwise.cli import main


@pytest.fixture(autouse=True)
def few_queries(monkeypatch):
    monkeypatch.setattr("labelwise.evaluation.assemble.MOST", 300)


@pytest.fixture
def call(monkeypatch, capsys):
    """Return a function that types a command: its exit code, and what it said in one line."""

    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["labelwise", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, " ".join((said.out + said.err).split())

    return typed
