"""Calibrators and rules by name: what is fitted on held-out rows.

Calibrators: ``auto`` (chosen by cross-validated log loss), ``none``, or one by its name, such as
``platt``. Rules: a threshold such as ``0.5``, ``top-4``, ``average-3``, ``best-f``, ``expected-f``,
``precision-0.9``, ``recall-0.9``; tuned thresholds are per label, or one for all with ``-shared``.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.calibrate import CALIBRATORS, auto
from labelwise.decide import (
    ExpectedF,
    Rule,
    Threshold,
    TopK,
    average_k,
    best_f,
    precision_at,
    recall_at,
)
from labelwise.errors import DataError, SettingsError
from labelwise.links import Link
from labelwise.predictions import Predictions
from labelwise.types import nearest

__all__ = ["find_calibrator", "find_rule", "fit_calibrator", "fit_rule"]

Fit = Callable[[Tensor, Tensor, Tensor | None], Rule]

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


def find_rule(text: str) -> tuple[Fit, str]:
    """Return what fits the rule of a text to (probs, labels, observed), and the rule in words."""
    base = text.removesuffix("-shared")
    shared = base != text
    try:
        fit, words = _tuned(base, "shared" if shared else "label")
        if fit is not None:
            return fit, f"{words}, {'one for all labels' if shared else 'per label'}"
        fixed, words = _fixed(base)
        if fixed is not None and not shared:
            return fixed, words
    except ValueError as error:
        raise SettingsError(f"rule {text!r}: {error}") from None
    raise SettingsError(
        f"unknown rule {text!r}; use a threshold such as 0.5, or one of best-f, expected-f, "
        "top-4, average-3, precision-0.9, recall-0.9 (with -shared: one threshold for all labels)"
    )


def fit_rule(text: str, predictions: Predictions, link: Link) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of held-out rows, and what it is in words."""
    fit, words = find_rule(text)
    with torch.no_grad():
        probs = link(predictions.logits.double())
    try:
        return fit(probs, predictions.labels, predictions.observed), words
    except ValueError as error:
        raise SettingsError(f"rule {text!r} cannot be fitted: {error}") from None


def _tuned(text: str, scope: Literal["shared", "label"]) -> tuple[Fit | None, str]:
    kind, _, number = text.rpartition("-")
    if text == "best-f":
        return partial(best_f, scope=scope), "threshold of best F1"
    if kind == "precision":
        return partial(precision_at, precision=float(number), scope=scope), f"precision {number}"
    if kind == "recall":
        return partial(recall_at, recall=float(number), scope=scope), f"recall {number}"
    return None, ""


def _fixed(text: str) -> tuple[Fit | None, str]:
    kind, _, number = text.rpartition("-")
    if text == "expected-f":
        return _given(ExpectedF()), "the set of most expected F1"
    if kind == "average":
        return partial(_average, k=float(number)), f"{number} labels an image on average"
    if kind == "top":
        return _given(TopK(int(number))), f"the {number} surest labels"
    try:
        return _given(Threshold(float(text))), f"p >= {text}"
    except ValueError:
        return None, ""


def _given(rule: Rule) -> Fit:
    return lambda probs, labels, observed: rule


def _average(probs: Tensor, labels: Tensor, observed: Tensor | None, *, k: float) -> Rule:
    return average_k(probs, k)
