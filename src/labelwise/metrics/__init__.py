"""Metrics: pure functions of (scores, probabilities or sets; labels; observed) on (N, K) arrays.

Numpy or torch, any device, any float type. Unobserved entries are masked, undefined labels and
images are left out of means and named.
"""

from labelwise.metrics.bins import mass_edges, width_edges
from labelwise.metrics.calibration import (
    CalibrationSums,
    Reliability,
    label_reliability,
    reliability,
)
from labelwise.metrics.intervals import (
    BootstrapInterval,
    CalibrationInterval,
    CalibrationTest,
    bootstrap,
    calibration_interval,
    calibration_test,
)
from labelwise.metrics.lines import Averaged
from labelwise.metrics.ranking import (
    PrecisionRecall,
    auroc,
    average_precision,
    coverage_error,
    label_ranking_average_precision,
    mean_average_precision,
    micro_auroc,
    micro_average_precision,
    one_error,
    precision_recall_curve,
)
from labelwise.metrics.score_counts import Bounded, ScoreCounts
from labelwise.metrics.scoring import (
    ProperScore,
    ProperSums,
    brier_score,
    brier_sums,
    log_loss,
    log_loss_from_logs,
    log_loss_sums,
)
from labelwise.metrics.sets import (
    AverageKAccuracy,
    Confusion,
    SetSizes,
    TopKScores,
    average_k_accuracy,
    by_shot,
    confusion,
    hamming_loss,
    set_sizes,
    shot_groups,
    subset_accuracy,
    top_k_scores,
    top_k_sets,
)
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
    "AverageKAccuracy",
    "Averaged",
    "BootstrapInterval",
    "Bounded",
    "CalibrationInterval",
    "CalibrationSums",
    "CalibrationTest",
    "Confusion",
    "PrecisionRecall",
    "ProperScore",
    "ProperSums",
    "Reliability",
    "ScoreCounts",
    "SetSizes",
    "TopKScores",
    "auroc",
    "average_k_accuracy",
    "average_precision",
    "bootstrap",
    "brier_score",
    "brier_sums",
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
    "log_loss_sums",
    "mass_edges",
    "max_confidence",
    "mean_average_precision",
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
