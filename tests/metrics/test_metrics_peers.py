"""What the usual libraries answer to a multi-label problem, and what is right.

Each test shows the peer's answer first, so that it says what our users come from.
"""

import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics as sk
import torch
import torchmetrics
import torchmetrics.functional.classification as tm

from labelwise import metrics

SCORES = np.array([[0.9, 0.2, 0.4], [0.1, 0.8, 0.3], [0.7, 0.6, 0.5], [0.2, 0.1, 0.9]])
LABELS = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0]])  # label 2 and image 3 are empty


def test_a_label_without_positives_counts_as_zero_elsewhere():
    with pytest.warns(UserWarning, match="No positive"):
        theirs = sk.average_precision_score(LABELS, SCORES, average="macro")
    defined = sk.average_precision_score(LABELS[:, :2], SCORES[:, :2], average="macro")
    assert theirs == pytest.approx(defined * 2 / 3)
    found = metrics.average_precision(SCORES, LABELS)
    assert found.value == pytest.approx(defined, rel=1e-12)
    assert found.undefined.tolist() == [2]


def test_an_image_without_labels_counts_as_one_elsewhere():
    some = LABELS.any(axis=1)
    defined = sk.label_ranking_average_precision_score(LABELS[some], SCORES[some])
    theirs = sk.label_ranking_average_precision_score(LABELS, SCORES)
    assert theirs == pytest.approx((3 * defined + 1) / 4)
    torch_metric = tm.multilabel_ranking_average_precision(
        torch.from_numpy(SCORES), torch.from_numpy(LABELS), num_labels=3
    )
    assert torch_metric.item() == pytest.approx((3 * defined + 1) / 4, rel=1e-6)
    found = metrics.label_ranking_average_precision(SCORES, LABELS)
    assert found.value == pytest.approx(defined, rel=1e-12)
    assert found.undefined.tolist() == [3]


def test_calibration_error_refuses_many_labels_elsewhere():
    with pytest.raises(ValueError, match="Invalid Classification"):
        torchmetrics.CalibrationError(task="multilabel", num_labels=3)
    with pytest.raises(ValueError, match="1d array"):
        sklearn.calibration.calibration_curve(LABELS, SCORES)
    assert 0 < metrics.reliability(SCORES, LABELS).ece() < 1
    assert metrics.label_reliability(SCORES, LABELS).ece().shape == (3,)


def test_certainty_has_a_bin_of_its_own_elsewhere():
    probs, labels = torch.tensor([1.0, 0.95]), torch.tensor([0, 1])
    theirs = tm.binary_calibration_error(probs, labels, n_bins=10).item()
    assert theirs == pytest.approx(0.525)
    assert metrics.reliability(probs[:, None], labels[:, None]).ece() == pytest.approx(0.475)


def test_counts_stop_at_two_to_the_24_elsewhere():
    """The sum that float32 counters end at, shown without 2^24 additions."""
    stuck = torch.full((1,), 2.0**24).scatter_add_(
        0, torch.zeros(9, dtype=torch.long), torch.ones(9)
    )
    assert stuck.item() == 2**24
    sums = metrics.CalibrationSums.zeros(1, metrics.width_edges(10))
    sums.counts[0, 4] = 2**24
    sums.update(np.full((9, 1), 0.45), np.zeros((9, 1)))
    assert sums.counts[0, 4] == 2**24 + 9


def test_thresholds_of_each_label_are_refused_elsewhere():
    thresholds = np.array([0.5, 0.7, 0.5])
    with pytest.raises(ValueError, match="threshold"):
        torchmetrics.classification.MultilabelF1Score(num_labels=3, threshold=thresholds.tolist())
    found = metrics.confusion(thresholds <= SCORES, LABELS).f_score()
    np.testing.assert_allclose(found.items, [2 / 3, 2 / 3, 0.0], rtol=1e-12)


def test_scores_outside_zero_and_one_are_put_through_a_sigmoid_elsewhere():
    """One logit below 0 changes how its batch mates are read; we refuse to guess."""
    labels = torch.tensor([1, 0, 1])
    small = tm.binary_calibration_error(torch.tensor([0.2, 0.9, 0.1]), labels, n_bins=10)
    guessed = tm.binary_calibration_error(torch.tensor([0.2, 0.9, -0.1]), labels, n_bins=10)
    assert abs(small - guessed) > 0.1
    with pytest.raises(ValueError, match=r"probs must lie in \[0, 1\]"):
        metrics.reliability(torch.tensor([[0.2, 0.9, -0.1]]), labels[None])


def test_macro_f1_falls_with_labels_that_never_occur_elsewhere():
    sets, labels = np.array([[True, False, False]]), np.array([[1, 0, 0]])
    theirs = sk.f1_score(labels, sets, average="macro", zero_division=0)
    assert theirs == pytest.approx(1 / 3)
    assert metrics.confusion(sets, labels).f_score().value == 1
    assert metrics.confusion(sets, labels).f_score(undefined="zero").value == theirs
