"""What metrics cannot read is refused with the rule and the value."""

import numpy as np
import pytest

from labelwise import metrics
from labelwise.metrics import CalibrationSums, ScoreCounts, mass_edges, reliability, width_edges

RANDOM = np.random.default_rng(4)
PROBS = RANDOM.random((10, 3))
LABELS = RANDOM.random((10, 3)) < PROBS
SETS = PROBS > 0.5
TWO, EYE, NAN = np.zeros((2, 2)), np.eye(2), np.full((2, 2), np.nan)
OWN = mass_edges(PROBS, per_label=True)
SUMS = CalibrationSums.zeros(4, width_edges(10))
SCORES = np.zeros(2, np.float32), np.array([True, False])

REFUSED = [
    (lambda: metrics.average_precision(TWO[0], TWO[0]), r"scores must be \(N, K\), got .*\(2,\)"),
    (lambda: metrics.average_precision(TWO, LABELS), "labels must have the shape of scores"),
    (lambda: metrics.average_precision(TWO, TWO + 0.5), "labels must be 0 or 1"),
    (lambda: metrics.average_precision(NAN, TWO), "must not be NaN"),
    (lambda: metrics.average_precision(TWO, TWO, TWO + 0.5), "observed must be boolean"),
    (lambda: metrics.average_precision(EYE, EYE, by="class"), "by must be .* got 'class'"),
    (lambda: metrics.average_precision(EYE, EYE, variant="coco"), "variant must be"),
    (lambda: reliability(PROBS * 0 - 1, LABELS), r"probs must lie in \[0, 1\], .* from -1.0"),
    (lambda: reliability(PROBS, LABELS, bins=0), "bins must be at least 1, got 0"),
    (lambda: reliability(PROBS, LABELS, binning="adaptive"), "binning must be"),
    (lambda: reliability(PROBS, LABELS, where=PROBS), "where must be boolean, or 0 and 1, got 0"),
    (lambda: SUMS.update(PROBS, LABELS), "probs must have 4 columns, got 3"),
    (lambda: SUMS.merge(CalibrationSums.zeros(4, width_edges(11))), "same labels and edges"),
    (lambda: CalibrationSums.zeros(4, np.zeros((3, 11))), "edges must be"),
    (lambda: CalibrationSums.zeros(3, OWN).pooled(), "bins shared by all labels"),
    (lambda: metrics.calibration_interval(PROBS, LABELS, level=1.0), "level must lie"),
    (lambda: metrics.calibration_interval(PROBS, LABELS, metric="brier"), "metric must be"),
    (lambda: metrics.confusion(SETS / 2 + 0.5, LABELS), "sets must be boolean, .* got 0.5"),
    (lambda: metrics.confusion(SETS, LABELS).f_score(undefined="nan"), "undefined must be"),
    (lambda: metrics.confusion(SETS, LABELS).f_score(beta=0), "beta must be positive"),
    (lambda: metrics.top_k_sets(PROBS, 0), "k must be between 1 and 3"),
    (lambda: metrics.set_sizes(np.zeros((0, 3), bool)), "at least one set"),
    (lambda: metrics.shot_groups(TWO), "train_counts must be"),
    (lambda: metrics.by_shot(np.zeros(3), np.zeros(2)), "per_label must have 2 values, got 3"),
    (lambda: metrics.separation_auroc(TWO, TWO[0]), "inside must be"),
    (lambda: metrics.false_positive_rate_at(TWO[0], TWO[0], 0), "recall must lie"),
    (lambda: ScoreCounts.of(np.array([np.nan]), np.array([True])), "must not be NaN"),
    (lambda: ScoreCounts.of(*SCORES, limit=1), "at least 2"),
    (lambda: ScoreCounts.of(*SCORES, 4).merge(ScoreCounts.of(*SCORES, 5)), "one limit and one"),
]


@pytest.mark.parametrize(("call", "rule"), REFUSED)
def test_what_cannot_be_read_is_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
