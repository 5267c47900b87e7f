"""Calibrators and rules fitted on held-out predictions.

Calibrators: ``auto`` (chosen by cross-validated log loss), ``none``, or one by its name, such as
``platt``. Rules by the text that ``decide.find_rule`` reads.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise import decide
from labelwise.calibrate import CALIBRATORS, auto
from labelwise.decide import Rule
from labelwise.errors import DataError, SettingsError
from labelwise.links import Link
from labelwise.predictions import Predictions
from labelwise.types import nearest

__all__ = ["find_calibrator", "fit_calibrator", "fit_rule"]

FOLDS = 5
AUTO, NONE = "auto", "none"


def find_calibrator(name: str) -> Callable[..., Link] | None:
    """Return the calibrator of a name, None for "auto" and "none"."""
    if name in (AUTO, NONE):
        return None
    named = {key.replace(" ", "-"): fit for key, fit in CALIBRATORS.items()}
    if name not in named:
        raise SettingsError(f"unknown calibrator {name!r}{nearest(name, [AUTO, NONE, *named])}")
    return named[name]


def fit_calibrator(
    name: str,
    predictions: Predictions,
    link: Link | None,
    groups: NDArray[np.str_] | None = None,
) -> tuple[Link | None, str]:
    """Return the fitted link and its name in words; (None, "") where the link stays as it is."""
    fit = find_calibrator(name)
    rows = (predictions.logits, predictions.labels, link, predictions.observed)
    try:
        if name == AUTO:
            folds = min(FOLDS, len(predictions) if groups is None else len(np.unique(groups)))
            choice = auto(*rows, groups=groups, folds=folds)
            if choice.link is link:
                return None, ""
            return choice.link, f"{choice.name}, chosen by log loss over {choice.folds} folds"
        return (None, "") if fit is None else (fit(*rows), name)
    except ValueError as error:
        raise DataError(f"no calibrator can be fitted on {predictions.split}: {error}") from None


def fit_rule(text: str, predictions: Predictions, link: Link) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of held-out rows, and what it is in words."""
    with torch.no_grad():
        probs = link(predictions.logits.double())
    return decide.fit_rule(text, probs, predictions.labels, predictions.observed)
