"""Calibrators: functions that fit a link to held-out logits and labels, and the links they make."""

from labelwise.calibration.auto import (
    CALIBRATORS,
    Candidate,
    Choice,
    auto,
    find_calibrator,
    fit_calibrator,
)
from labelwise.calibration.few import AveragedCurves, FewLabels, few, few_labels
from labelwise.calibration.isotonic import Histogram, Isotonic, histogram, isotonic
from labelwise.calibration.regression import (
    Beta,
    Platt,
    Temperature,
    ZeroShare,
    beta,
    expect_zero_share,
    platt,
    temperature,
    within_groups,
)

__all__ = [
    "CALIBRATORS",
    "AveragedCurves",
    "Beta",
    "Candidate",
    "Choice",
    "FewLabels",
    "Histogram",
    "Isotonic",
    "Platt",
    "Temperature",
    "ZeroShare",
    "auto",
    "beta",
    "expect_zero_share",
    "few",
    "few_labels",
    "find_calibrator",
    "fit_calibrator",
    "histogram",
    "isotonic",
    "platt",
    "temperature",
    "within_groups",
]
