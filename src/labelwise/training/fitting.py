"""Calibrators and rules, by their names in calibrate and decide, fitted on held-out rows."""

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise import calibrate, decide
from labelwise.decide import Rule
from labelwise.links import Link
from labelwise.predictions import Predictions

__all__ = ["fit_calibrator", "fit_rule"]


def fit_calibrator(
    name: str,
    predictions: Predictions,
    link: Link | None,
    groups: NDArray[np.str_] | None = None,
) -> tuple[Link | None, str]:
    """Return the fitted link and its name in words; (None, "") where the link stays as it is."""
    logits, labels, observed = predictions.logits, predictions.labels, predictions.observed
    fitted, words, _ = calibrate.fit_calibrator(
        name, logits, labels, link, observed, groups=groups, source=predictions.split
    )
    return fitted, words


def fit_rule(text: str, predictions: Predictions, link: Link) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of held-out rows, and what it is in words."""
    with torch.no_grad():
        probs = link.decision_probs(predictions.logits)
    return decide.fit_rule(text, probs, predictions.labels, predictions.observed)
