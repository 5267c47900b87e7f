"""scikit-learn estimators for what scikit-learn refuses: multi-label calibration and thresholds.

    MultilabelCalibrator(method="platt").fit(scores, Y).predict_proba(scores)
    MultilabelThreshold(goal="f").fit(P, Y).predict(P)

Both take (N, K) arrays, images with no label included, and a mask of the entries that are known.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted

from labelwise.calibrate import CALIBRATORS, auto
from labelwise.decide import (
    Threshold,
    average_k,
    best_f,
    control_false_alarms,
    control_recall,
    least_cost,
    precision_at,
    recall_at,
)
from labelwise.links import Link, Sigmoid

__all__ = ["MultilabelCalibrator", "MultilabelThreshold"]

Array = NDArray[Any]
GOALS: dict[str, tuple[Callable[..., Threshold], str]] = {
    "f": (best_f, "beta"),
    "precision": (precision_at, "precision"),
    "recall": (recall_at, "recall"),
    "cost": (least_cost, "miss"),
    "miss rate": (control_recall, "miss_rate"),
    "false alarm rate": (control_false_alarms, "rate"),
}


class MultilabelCalibrator(BaseEstimator):  # type: ignore[misc]
    """Calibrate scores (N, K) of a multi-label model to probabilities.

    ``method`` is "auto" or a calibrator's name, such as "temperature", "platt" or "isotonic".
    ``scores`` says what the scores are, and is never guessed: "logits" (of sigmoids), "probs", or
    "raw" for scores that only rank.
    """

    def __init__(self, method: str = "platt", scores: str = "logits") -> None:
        self.method = method
        self.scores = scores

    def fit(self, X: Array, y: Array, mask: Array | None = None) -> Self:  # noqa: N803
        """Fit to labels ``y`` (N, K); where ``mask`` is False the label is not known."""
        if self.method != "auto" and self.method not in CALIBRATORS:
            names = ", ".join(["auto", *CALIBRATORS])
            raise ValueError(f"method must be one of {names}, got {self.method!r}")
        logits, link = self._logits(X)
        labels = check_array(y, dtype=None, ensure_all_finite=mask is None)
        if self.method == "auto":
            self.link_: Link = auto(logits, labels, link, mask).link
        else:
            self.link_ = CALIBRATORS[self.method](logits, labels, link, mask)
        self.n_features_in_ = logits.shape[1]
        return self

    def predict_proba(self, X: Array) -> Array:  # noqa: N803
        """Return the probability of each label, (N, K)."""
        check_is_fitted(self, "link_")
        logits, _ = self._logits(X)
        if logits.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {logits.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        with torch.no_grad():
            probs: Array = self.link_(torch.from_numpy(logits)).numpy()
        return probs

    def _logits(self, scores: Array) -> tuple[Array, Link | None]:
        values = check_array(scores, dtype=[np.float64, np.float32], ensure_all_finite=False)
        if self.scores == "raw":
            return values, None
        if self.scores == "logits":
            return values, Sigmoid()
        if self.scores != "probs":
            raise ValueError(f"scores must be 'logits', 'probs' or 'raw', got {self.scores!r}")
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError("X must hold probabilities in [0, 1] where scores='probs'")
        with np.errstate(divide="ignore"):
            return np.log(values) - np.log1p(-values), Sigmoid()


class MultilabelThreshold(BaseEstimator):  # type: ignore[misc]
    """Choose thresholds for probabilities (N, K) and turn them into label sets.

    ``goal`` and ``level``: "f" (beta), "precision", "recall" (the share to reach), "cost" (of a
    miss, where a false alarm costs 1), "miss rate", "false alarm rate" (promised on new images),
    or "average k" (labels an image). ``per_label`` gives each label its own threshold.
    """

    def __init__(self, goal: str = "f", level: float = 1.0, per_label: bool = False) -> None:
        self.goal = goal
        self.level = level
        self.per_label = per_label

    def fit(self, X: Array, y: Array, mask: Array | None = None) -> Self:  # noqa: N803
        """Fit to labels ``y`` (N, K); where ``mask`` is False the label is not known."""
        probs = check_array(X, dtype=[np.float64, np.float32])
        if self.goal == "average k":
            self.rule_ = average_k(probs, self.level)
        elif self.goal in GOALS:
            fit, name = GOALS[self.goal]
            options = {name: self.level, "scope": "label" if self.per_label else "shared"}
            if self.goal == "cost":
                options["false_alarm"] = 1.0
            labels = check_array(y, dtype=None, ensure_all_finite=mask is None)
            self.rule_ = fit(probs, labels, mask, **options)
        else:
            names = ", ".join([*GOALS, "average k"])
            raise ValueError(f"goal must be one of {names}, got {self.goal!r}")
        self.thresholds_ = np.broadcast_to(self.rule_.value, probs.shape[1]).copy()
        self.n_features_in_ = probs.shape[1]
        return self

    def predict(self, X: Array) -> Array:  # noqa: N803
        """Return the label sets, (N, K) of 0 and 1."""
        check_is_fitted(self, "rule_")
        probs = check_array(X, dtype=[np.float64, np.float32])
        if probs.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {probs.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        sets: Array = self.rule_(probs).astype(np.int64)
        return sets
