"""Figures of a validation split after each epoch, any of which can choose the epoch to deploy.

map         mean over labels of average precision (mAP@class)
map_sample  mean over images of average precision (mAP@sample)
log_loss    mean of -y log p - (1 - y) log(1 - p) under the objective's link, if it has one
"""

from math import isfinite

import torch
from torch import Tensor

from labelwise.links import Link
from labelwise.metrics import average_precision, log_loss_from_logs

__all__ = ["VALIDATION_METRICS", "validation_figures"]

VALIDATION_METRICS = {"map": True, "map_sample": True, "log_loss": False}  # is higher better?


@torch.no_grad()
def validation_figures(
    logits: Tensor, labels: Tensor, observed: Tensor | None, link: Link | None
) -> dict[str, float | None]:
    """Return the figures; None stands for one that is not defined. ``link`` moves to the CPU."""
    figures: dict[str, float | None] = {
        "map": _defined(average_precision(logits, labels, observed).value),
        "map_sample": _defined(average_precision(logits, labels, observed, by="image").value),
    }
    if link is not None:
        log_p, log_q = link.cpu().log_probs(logits.double())
        figures["log_loss"] = _defined(log_loss_from_logs(log_p, log_q, labels, observed).value)
    return figures


def _defined(value: float) -> float | None:
    return value if isfinite(value) else None
