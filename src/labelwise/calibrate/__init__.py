"""Calibrators: functions that fit a link to held-out logits and labels, and the links they make."""

from labelwise.calibrate.auto import (
    CALIBRATORS,
    Candidate,
    Choice,
    auto,
    find_calibrator,
    fit_calibrator,
)
from labelwise.calibrate.beta import Beta, beta
from labelwise.calibrate.few import AveragedCurves, FewLabels, few, few_labels
from labelwise.calibrate.histogram import Histogram, histogram
from labelwise.calibrate.isotonic import Isotonic, isotonic
from labelwise.calibrate.platt import Platt, platt
from labelwise.calibrate.temperature import Temperature, temperature
from labelwise.calibrate.within_groups import within_groups
from labelwise.calibrate.zero_share import ZeroShare, expect_zero_share

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
