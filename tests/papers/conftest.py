"""Runs of experiments are measured by few queries: no test here looks at those of a run."""

import pytest


@pytest.fixture(autouse=True)
def few_queries(monkeypatch):
    monkeypatch.setattr("labelwise.evaluation.assemble.MOST", 300)
