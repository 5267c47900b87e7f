"""Metrics: pure functions of (scores, probabilities or sets; labels; observed) on (N, K) arrays.

Numpy or torch, any device, any float type. Unobserved entries are masked, undefined labels and
images are left out of means and named.
"""

from labelwise.metrics.average_k import AverageK, average_k_accuracy, by_shot, shot_groups
from labelwise.metrics.average_precision import (
    average_precision,
    label_ranking_average_precision,
)
from labelwise.metrics.averages import Averaged
from labelwise.metrics.binning import mass_edges, width_edges
from labelwise.metrics.calibration import CalibrationSums, label_reliability, reliability
from labelwise.metrics.curves import (
    PrecisionRecall,
    micro_auroc,
    micro_average_precision,
    precision_recall_curve,
)
from labelwise.metrics.intervals import Interval, bootstrap, calibration_interval
from labelwise.metrics.ranking import auroc, coverage_error, one_error
from labelwise.metrics.reliability import Reliability
from labelwise.metrics.scoring import ProperScore, brier_score, log_loss, log_loss_from_logs
from labelwise.metrics.sets import (
    Confusion,
    SetSizes,
    confusion,
    hamming_loss,
    set_sizes,
    subset_accuracy,
)
from labelwise.metrics.significance import CalibrationTest, calibration_test
from labelwise.metrics.top_k import TopKScores, top_k_scores, top_k_sets
from labelwise.metrics.zero_label import (
    false_alarm_rate,
    false_positive_rate_at,
    max_confidence,
    nothing_here,
    separation_auroc,
    top_accuracy,
    zero_label_rows,
)

__all__ = [
    "AverageK",
    "Averaged",
    "CalibrationSums",
    "CalibrationTest",
    "Confusion",
    "Interval",
    "PrecisionRecall",
    "ProperScore",
    "Reliability",
    "SetSizes",
    "TopKScores",
    "auroc",
    "average_k_accuracy",
    "average_precision",
    "bootstrap",
    "brier_score",
    "by_shot",
    "calibration_interval",
    "calibration_test",
    "confusion",
    "coverage_error",
    "false_alarm_rate",
    "false_positive_rate_at",
    "hamming_loss",
    "label_ranking_average_precision",
    "label_reliability",
    "log_loss",
    "log_loss_from_logs",
    "mass_edges",
    "max_confidence",
    "micro_auroc",
    "micro_average_precision",
    "nothing_here",
    "one_error",
    "precision_recall_curve",
    "reliability",
    "separation_auroc",
    "set_sizes",
    "shot_groups",
    "subset_accuracy",
    "top_accuracy",
    "top_k_scores",
    "top_k_sets",
    "width_edges",
    "zero_label_rows",
]
