"""scikit-learn estimators for what scikit-learn refuses: multi-label calibration and thresholds.

    MultilabelCalibrator(method="platt").fit(scores, Y).predict_proba(scores)
    MultilabelThreshold(goal="f").fit(P, Y).predict(P)
    make_pipeline(MultilabelCalibrator(), MultilabelThreshold()).fit(scores, Y).predict(scores)

Both take (N, K) arrays, images with no label included, and a mask of the entries that are known;
in a pipeline it goes to a step by its name, as in ``fit(scores, Y, multilabelcalibrator__mask=M)``.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from labelwise.base.arrays import Values
from labelwise.calibration import fit_calibrator
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
from labelwise.errors import LabelwiseError
from labelwise.links import Link, Sigmoid
from labelwise.metrics import confusion, log_loss_from_logs

Array = Values
GOALS: dict[str, tuple[Callable[..., Threshold], str]] = {
    "f": (best_f, "beta"),
    "precision": (precision_at, "precision"),
    "recall": (recall_at, "recall"),
    "cost": (least_cost, "miss"),
    "miss rate": (control_recall, "miss_rate"),
    "false alarm rate": (control_false_alarms, "rate"),
}


class MultilabelCalibrator(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrate scores (N, K) of a multi-label model to probabilities.

    ``method`` is "auto", "none" or a calibrator's name, such as "temperature" or "platt-shared".
    ``scores`` says what the scores are, and is never guessed: "logits" (of sigmoids), "probs", or
    "raw" for scores that only rank.
    """

    def __init__(self, method: str = "platt", scores: str = "logits") -> None:
        self.method = method
        self.scores = scores

    def fit(self, X: Array, y: Array, mask: Array | None = None) -> Self:  # noqa: N803
        """Fit to labels ``y`` (N, K); where ``mask`` is False the label is not known."""
        logits, link = self._logits(X, reset=True)
        labels = checked_labels(self, y, mask)
        try:
            fitted, *_ = fit_calibrator(self.method, logits, labels, link, mask)
        except LabelwiseError as error:
            raise ValueError(str(error)) from None
        if fitted is None and link is None:
            raise ValueError("scores that only rank need a calibrator, got method='none'")
        self.link_: Link = fitted or Sigmoid()
        return self

    def predict_proba(self, X: Array) -> Array:  # noqa: N803
        check_is_fitted(self, "link_")
        return np.asarray(self.link_(self._logits(X, reset=False)[0]))

    def transform(self, X: Array) -> Array:  # noqa: N803
        return self.predict_proba(X)

    def score(self, X: Array, y: Array, mask: Array | None = None) -> float:  # noqa: N803
        """Return the log loss per known entry with its sign turned: higher is better."""
        check_is_fitted(self, "link_")
        log_p, log_q = self.link_.log_probs(self._logits(X, reset=False)[0])
        return -float(log_loss_from_logs(log_p, log_q, np.asarray(y), mask).value)

    def __sklearn_tags__(self) -> Any:
        return needs_labels(super().__sklearn_tags__())

    def _logits(self, scores: Array, *, reset: bool) -> tuple[Array, Link | None]:
        least: Any = {"dtype": [np.float64, np.float32], "ensure_min_samples": 2 if reset else 1}
        values = validate_data(self, scores, reset=reset, **least)
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
    or "average k" (labels per image). ``per_label`` gives each label its own threshold.
    """

    def __init__(self, goal: str = "f", level: float = 1.0, per_label: bool = False) -> None:
        self.goal = goal
        self.level = level
        self.per_label = per_label

    def fit(self, X: Array, y: Array, mask: Array | None = None) -> Self:  # noqa: N803
        """Fit to labels ``y`` (N, K); where ``mask`` is False the label is not known."""
        probs = validate_data(self, X, dtype=[np.float64, np.float32])
        if self.goal == "average k":
            if self.per_label:
                raise ValueError("goal 'average k' has one threshold; per_label does not apply")
            self.rule_ = average_k(probs, self.level)
        elif self.goal in GOALS:
            fit, name = GOALS[self.goal]
            options = {name: self.level, "scope": "label" if self.per_label else "shared"}
            if self.goal == "cost":
                options["false_alarm"] = 1.0
            self.rule_ = fit(probs, checked_labels(self, y, mask), mask, **options)
        else:
            names = ", ".join([*GOALS, "average k"])
            raise ValueError(f"goal must be one of {names}, got {self.goal!r}")
        self.thresholds_ = np.broadcast_to(self.rule_.value, probs.shape[1]).copy()
        return self

    def predict(self, X: Array) -> Array:  # noqa: N803
        check_is_fitted(self, "rule_")
        probs = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return np.asarray(self.rule_(probs), np.int64)

    def score(self, X: Array, y: Array, mask: Array | None = None) -> float:  # noqa: N803
        """Return the mean F1 of the labels; one neither present nor chosen is left out."""
        return confusion(self.predict(X), np.asarray(y), mask).f_score().value

    def __sklearn_tags__(self) -> Any:
        return needs_labels(super().__sklearn_tags__())


def checked_labels(estimator: Any, labels: Any, mask: Array | None) -> Array:
    """Return labels (N, K), or raise a ValueError in scikit-learn's words."""
    if labels is None:
        name = type(estimator).__name__
        raise ValueError(f"{name} requires y to be passed, but the target y is None")
    return np.asarray(check_array(labels, dtype=None, ensure_all_finite=mask is None))


def needs_labels(tags: Any) -> Any:
    """Return the tags of an estimator that is fitted to several targets."""
    tags.target_tags.required = True
    tags.target_tags.multi_output = True
    tags.target_tags.two_d_labels = True
    return tags
