"""Oracles: golden vectors, scikit-learn, and counts made by hand."""

import json
from pathlib import Path

import metrics_reference as slow
import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from labelwise import metrics

GOLDEN = json.loads((Path(__file__).parents[1] / "golden.json").read_text())["ood"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden(case):
    inside, outside = (np.array(case["inputs"][f"max_conf_{key}"]) for key in ("in", "out"))
    auroc = metrics.separation_auroc(inside, outside)
    assert auroc == pytest.approx(case["expected"]["auroc"], rel=1e-12)
    probs = np.column_stack([outside / 2, outside])
    mmc = metrics.max_confidence(probs).mean()
    assert mmc == pytest.approx(case["expected"]["mmc_out"], rel=1e-12)


@pytest.mark.parametrize("device", slow.DEVICES)
def test_separation_equals_scikit_learn(device):
    random = np.random.default_rng(0)
    inside, outside = random.normal(1, 1, 150).round(1), random.normal(0, 1, 90).round(1)
    labels = np.repeat([1, 0], [150, 90])
    expected = sk.roc_auc_score(labels, np.concatenate([inside, outside]))
    tensors = torch.from_numpy(inside).to(device), torch.from_numpy(outside).to(device)
    assert metrics.separation_auroc(*tensors) == pytest.approx(expected, rel=1e-12)
    flipped = metrics.separation_auroc(outside, inside)
    assert flipped == pytest.approx(1 - expected, rel=1e-12)
    fpr, tpr, _ = sk.roc_curve(labels, np.concatenate([inside, outside]), drop_intermediate=False)
    for recall in (0.5, 0.9, 0.95, 1.0):
        expected = fpr[np.argmax(tpr >= recall - 1e-12)]
        assert metrics.false_positive_rate_at(*tensors, recall) == pytest.approx(expected)


def test_reviewed_and_empty_is_not_unlabelled():
    labels = np.array([[0, 0], [0, 0], [1, 0], [0, 0]])
    observed = np.array([[True, True], [True, False], [True, True], [False, False]])
    assert metrics.zero_label_rows(labels).tolist() == [True, True, False, True]
    assert metrics.zero_label_rows(labels, observed).tolist() == [True, False, False, False]


def test_false_alarms_are_counted_on_zero_label_images_only():
    labels = np.array([[0, 0], [0, 0], [1, 0], [0, 0]])
    sets = np.array([[1, 0], [0, 0], [1, 1], [1, 1]], dtype=bool)
    found = metrics.false_alarm_rate(sets, labels)
    assert found.value == pytest.approx(2 / 3)
    assert found.undefined.tolist() == [2]


def test_top_accuracy_is_that_of_the_argmax():
    scores, labels, observed = slow.problem(1, rows=60, columns=6, levels=5)
    hits = labels[np.arange(60), scores.argmax(axis=1)] == 1
    some = labels.any(axis=1)
    found = metrics.top_accuracy(scores, labels)
    assert found.value == hits[some].mean()
    assert found.undefined.tolist() == np.flatnonzero(~some).tolist()
    masked = metrics.top_accuracy(scores, labels, observed)
    top = np.where(observed, scores, -np.inf).argmax(axis=1)
    hits, some = labels[np.arange(60), top] == 1, (labels & observed).any(axis=1)
    assert masked.value == hits[some].mean()


@pytest.mark.parametrize("device", slow.DEVICES)
def test_nothing_here_is_the_log_of_the_product(device):
    probs = np.random.default_rng(2).random((20, 7))
    log_q = torch.from_numpy(np.log1p(-probs)).to(device)
    np.testing.assert_allclose(metrics.nothing_here(log_q), np.log(np.prod(1 - probs, axis=1)))
    many = torch.full((1, 10_000), -100.0)
    assert metrics.nothing_here(many).tolist() == [-1e6]
    with pytest.raises(ValueError, match="at most 0"):
        metrics.nothing_here(-log_q)


def test_the_least_recall_accepts_the_surest_image():
    """However small the recall, the threshold is the highest score of an IN image."""
    inside, outside = np.array([0.2, 0.9]), np.array([0.9, 0.95, 0.1, 0.3])
    assert metrics.false_positive_rate_at(inside, outside, 1e-12) == 0.5
    scores, present = np.concatenate([inside, outside]), np.arange(6) < 2
    counts = metrics.ScoreCounts.of(scores, present)
    assert counts.false_positive_rate_at(1e-12) == (0.5, 0.0)
