"""Sums that merge over shards. Oracle: the evaluation of all rows in memory, figure by figure."""

from dataclasses import asdict, replace
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_scores import assert_close, in_memory, sample

from labelwise.decide import Threshold, TopK
from labelwise.evaluation import describe_link, evaluate, measure, mergeable
from labelwise.links import Sigmoid, Softmax


def shards_of(predictions, owner, rule=None, **options):
    for shard in range(owner.max() + 1):
        rows = np.flatnonzero(owner == shard)
        own, given = predictions.take(rows), rule[rows] if isinstance(rule, torch.Tensor) else rule
        yield measure(own.logits, own.labels, own.observed, rule=given, **options)


def with_empty_rows(predictions, share):
    """Return the predictions with some rows that carry no label."""
    labels = predictions.labels.copy()
    labels[: int(len(labels) * share)] = 0
    return replace(predictions, labels=labels)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 5, 60]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from(["sets", Threshold(0.4), TopK(2), None]),
    st.integers(1, 5),
    st.booleans(),
)
def test_shards_have_the_figures_of_all_rows(seed, rows, unknown, empty, rule, shards, certain):
    predictions = with_empty_rows(sample(rows, unknown=unknown, seed=seed), empty)
    if certain and seed % 3:  # with a sigmoid: where the label is absent, the log loss is infinite
        predictions.logits[0, 0] = np.inf
    draw = np.random.default_rng(seed)
    if rule == "sets":
        rule = torch.from_numpy(draw.random((rows, 5)) < 0.3)
    link = Softmax() if seed % 3 == 0 else Sigmoid()
    if predictions.observed is not None and not predictions.observed.any():
        return
    truth = in_memory(predictions, link, rule)
    parts = list(shards_of(predictions, draw.integers(shards, size=rows), rule, link=link))
    for order in (parts, [parts[place] for place in draw.permutation(len(parts))]):
        merged = reduce(lambda one, other: one.merge(other), order)
        given = rule if not isinstance(rule, torch.Tensor) else None
        found = merged.evaluation(
            predictions.names, link=describe_link(link), rule=given, split="test"
        )
        assert_close(asdict(found), asdict(replace(truth, judgement=None)))
        assert found.ranking.map_class_bound == 0


def test_with_few_cells_ranking_figures_are_within_their_bounds(monkeypatch):
    monkeypatch.setattr(mergeable, "FEWEST_CELLS", 20)
    monkeypatch.setattr(mergeable, "ALL_CELLS", 320)
    predictions = with_empty_rows(sample(400), 0.3)
    truth = evaluate(predictions, Sigmoid(), query_length=0)
    found = measure(predictions.logits, predictions.labels, link=Sigmoid()).evaluation(
        predictions.names, link="sigmoid"
    )
    assert 0 < found.ranking.map_class_bound < 0.1
    assert f"{found.ranking.map_class_bound:.2g}" in found.headline[0].how
    off = abs(found.ranking.map_class - truth.ranking.map_class)
    assert 0 < off <= found.ranking.map_class_bound
    for one, other in zip(found.rows, truth.rows, strict=True):
        assert abs(one.ap - other.ap) <= one.ap_bound
    assert "AUROC and FPR are within" in found.zero_label.how
    assert found.zero_label.auroc_max == pytest.approx(truth.zero_label.auroc_max, abs=0.1)
