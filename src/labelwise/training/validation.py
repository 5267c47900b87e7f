"""Figures of a validation split after each epoch, any of which can choose the epoch to deploy.

map         mean over labels of average precision (mAP@class)
map_sample  mean over images of average precision (mAP@sample)
log_loss    mean of -y log p - (1 - y) log(1 - p) under the objective's link, if it has one
            Soft labels are cut at one half for the first two and average-K.
brier, ece, ace, mce   under the same link, over all known entries, 10 bins; only if asked for
average-K   accuracy of sets of K labels on average, such as average-5: softmax scores of the
            logits above the threshold that makes them so here; only if asked for
"""

import re
from math import isfinite
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from labelwise.decide import average_k
from labelwise.errors import SettingsError
from labelwise.links import Link, Softmax
from labelwise.metrics import (
    average_k_accuracy,
    average_precision,
    brier_score,
    log_loss_from_logs,
    reliability,
)
from labelwise.types import nearest

CALIBRATION_ERRORS = ("ece", "ace", "mce")
VALIDATION_METRICS = {  # is higher better?
    "map": True,
    "map_sample": True,
    "log_loss": False,
    "brier": False,
    **dict.fromkeys(CALIBRATION_ERRORS, False),
}
AVERAGE_K = re.compile(r"average-(\d+(?:\.\d+)?)")


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is better; an unknown name says which is nearest."""
    if AVERAGE_K.fullmatch(metric):
        return True
    if metric not in VALIDATION_METRICS:
        if metric.startswith("average"):
            raise SettingsError(f"a metric average-K names its K, as average-5, got {metric!r}")
        raise SettingsError(f"unknown metric {metric!r}{nearest(metric, VALIDATION_METRICS)}")
    return VALIDATION_METRICS[metric]


@torch.no_grad()
def validation_figures(
    logits: Tensor,
    labels: Tensor,
    observed: Tensor | None,
    link: Link | None,
    metric: str = "map",
) -> dict[str, float | None]:
    """Return the figures, ``metric`` among them; None stands for one that is not defined.

    ``link`` moves to the CPU.
    """
    present = labels > 0.5
    figures: dict[str, float | None] = {
        "map": _defined(average_precision(logits, present, observed).value),
        "map_sample": _defined(average_precision(logits, present, observed, by="image").value),
    }
    if link is not None:
        log_p, log_q = link.cpu().log_probs(logits.double())
        figures["log_loss"] = _defined(log_loss_from_logs(log_p, log_q, labels, observed).value)
        if metric == "brier":
            figures[metric] = _defined(brier_score(log_p.exp(), labels, observed).value)
        elif metric in CALIBRATION_ERRORS:
            bins = reliability(log_p.exp(), labels, observed)
            errors = {"ece": bins.ece, "ace": bins.ace, "mce": bins.mce}
            figures[metric] = _defined(float(errors[metric]()))
    chosen = AVERAGE_K.fullmatch(metric)
    if chosen is not None:
        figures[metric] = _average_k(logits, present, observed, float(chosen[1]))
    return {metric: None, **figures}


def _average_k(logits: Tensor, labels: Tensor, observed: Tensor | None, k: float) -> float | None:
    if k > logits.shape[1]:
        raise SettingsError(f"average-{k:g} needs as many labels, got {logits.shape[1]}")
    scores = Softmax()(logits.double())
    with catch_warnings():
        simplefilter("ignore")  # ties are common in the first epochs
        rule = average_k(scores, k)
    return _defined(average_k_accuracy(rule(scores), labels, observed).per_image.value)


def _defined(value: float) -> float | None:
    return value if isfinite(value) else None
