"""Probabilities: one stage of the model's answers, before or after calibration.

The calibration part: reliability pooled, of the surest labels and per label; proper scores.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.evaluation.evaluation import Calibration, Curve
from labelwise.links import Link, Sigmoid
from labelwise.metrics import (
    ProperScore,
    Reliability,
    brier_score,
    label_reliability,
    log_loss_from_logs,
    reliability,
    top_k_sets,
)
from labelwise.numeric.groups import Groups
from labelwise.predictions import Predictions


@dataclass(frozen=True)
class Probabilities:
    """The pair a link gives, with its exponential, each (N, K)."""

    stage: str
    log_p: NDArray[Any]
    log_q: NDArray[Any]
    probs: NDArray[Any]


@dataclass(frozen=True)
class Known:
    """What is known of the labels: present (N, K), and the mask where some are unknown.

    ``shares`` (N, K) are the labels themselves where some are soft; ``present`` then holds those
    above one half. ``groups`` are those the photos come in, None where each stands for itself.
    """

    present: NDArray[Any]
    observed: NDArray[Any] | None
    shares: NDArray[Any] | None = None
    groups: Groups | None = None

    @property
    def labels(self) -> NDArray[Any]:
        """The labels for what takes soft ones: calibration and proper scores."""
        return self.present if self.shares is None else self.shares

    def soft_entries(self) -> NDArray[Any]:
        """Return the known labels that are soft, as a vector."""
        if self.shares is None:
            return np.zeros(0)
        soft = (self.shares > 0) & (self.shares < 1)
        return self.shares[soft if self.observed is None else soft & self.observed].astype(
            np.float64
        )

    def rows_complete(self) -> NDArray[Any]:
        """Return the (N,) mask of rows whose labels are all known."""
        if self.observed is None:
            return np.ones(len(self.present), bool)
        return np.asarray(self.observed.all(1))


def probabilities(stage: str, logits: NDArray[Any], source: Link | NDArray[Any]) -> Probabilities:
    """Return the probabilities of logits under a link, or those of given log-odds (N, K)."""
    link, values = (Sigmoid(), source) if isinstance(source, np.ndarray) else (source, logits)
    log_p, log_q = link.log_probs(values)
    if np.isnan(log_p).any():
        row = int(np.isnan(log_p).any(1).argmax())
        raise DataError(f"probabilities {stage} must be numbers, got NaN in row {row + 1}")
    return Probabilities(stage, log_p, log_q, link.decision_probs(values))


def known_labels(predictions: Predictions) -> Known:
    """Return the known labels; they must lie in [0, 1], and something must be known."""
    labels, observed = predictions.labels, predictions.observed
    if observed is not None and bool(observed.all()):
        observed = None
    odd = ~((labels >= 0) & (labels <= 1))
    if observed is not None:
        odd &= observed
    if odd.any():
        row, column = np.argwhere(odd)[0].tolist()
        raise DataError(
            f"labels must lie in [0, 1] to be evaluated, got {labels[row, column].item():g} for "
            f"{predictions.names[column]!r} of {predictions.ids[row]!r}"
        )
    if labels.size == 0 or (observed is not None and not observed.any()):
        raise DataError("an evaluation needs at least one known label, got none")
    present = labels > 0.5
    shares = None
    if predictions.has_soft_labels():
        shares = labels if observed is None else np.where(observed, labels, 0)
    known = present if observed is None else present & observed
    return Known(known, observed, shares, predictions.groups)


def defined(value: float | NDArray[np.float64]) -> float | None:
    """Return a number as plain data: ``None`` where it is NaN or infinite."""
    number = float(value)
    return number if np.isfinite(number) else None


CURVES = 24  # labels whose own curve is kept


def label_errors(answers: Probabilities, known: Known, bins: int) -> Reliability:
    """Return every label's reliability, (K, M)."""
    return label_reliability(answers.probs, known.labels, known.observed, bins=bins)


def worst_labels(errors: Reliability) -> list[int]:
    """Return the columns of the labels with the largest ECE, worst first."""
    ece = np.nan_to_num(errors.ece(), nan=-1.0)
    return [int(column) for column in np.argsort(-ece, kind="stable")[:CURVES] if ece[column] >= 0]


def calibration_part(
    answers: Probabilities,
    known: Known,
    names: tuple[str, ...],
    errors: Reliability,
    columns: list[int],
    *,
    bins: int,
    k: int,
) -> Calibration:
    """Return how calibrated one stage is; ``columns`` are the labels whose curves are kept."""
    labels, observed = known.labels, known.observed
    pooled = reliability(answers.probs, labels, observed, bins=bins)
    surest = top_k_sets(answers.probs, k)
    top = reliability(answers.probs, labels, observed, where=surest, bins=bins)
    brier = brier_score(answers.probs, labels, observed, bins=bins)
    loss = log_loss_from_logs(answers.log_p, answers.log_q, labels, observed, bins=bins)
    return calibration_of(answers.stage, names, errors, columns, pooled, top, brier, loss, k=k)


def calibration_of(
    stage: str,
    names: tuple[str, ...],
    errors: Reliability,
    columns: list[int],
    pooled: Reliability,
    top: Reliability,
    brier: ProperScore,
    loss: ProperScore,
    *,
    k: int,
) -> Calibration:
    """Return how calibrated a stage is, from what was counted; all with the same bins."""
    bins = len(pooled.counts)
    per_label = errors.ece()
    some = ~np.isnan(per_label)
    entries = f"{int(pooled.counts.sum()):,} known entries pooled"
    return Calibration(
        stage=stage,
        pooled=curve_of(pooled, entries),
        top_k=curve_of(
            top, f"{int(top.counts.sum()):,} known entries among the top {k} of each row"
        ),
        k=k,
        label_mean_ece=defined(per_label[some].mean()) if some.any() else None,
        log_loss=defined(loss.value),
        brier=defined(brier.value),
        reliability=defined(brier.calibration),
        resolution=defined(brier.resolution),
        uncertainty=defined(brier.uncertainty),
        within_bins=defined(brier.within),
        per_label={
            names[c]: curve_of(_row(errors, c), "known entries of the label") for c in columns
        },
        how=_how(bins, k, entries, int(some.sum()), len(names)),
        infinite=loss.infinite,
    )


def _how(bins: int, k: int, entries: str, counted: int, labels: int) -> str:
    return (
        f"{bins} equal-width bins (lo, hi] of [0, 1], 0 in the first, 1 in the last; per bin the "
        "mean probability and the share truly present. ECE is the mean gap weighted by entries, "
        "ACE the plain mean over non-empty bins, MCE the largest. All entries: "
        f"{entries}. Top {k}: the {k} most probable labels of each image, ties to lower columns. "
        f"Mean over labels: {counted:,} of {labels:,} labels with a known entry. Log loss is in "
        "nats per entry, not clipped. The Brier score is split over the same bins into "
        "miscalibration − resolution + uncertainty + what the bins hide."
    )


def _row(errors: Reliability, column: int) -> Reliability:
    return Reliability(
        errors.edges,
        errors.counts[column],
        errors.confidence_sums[column],
        errors.present_sums[column],
    )


def curve_of(bins: Reliability, entries: str) -> Curve:
    """Return bins as plain data."""
    return Curve(
        edges=tuple(bins.edges.tolist()),
        confidence=_plain(bins.confidence),
        frequency=_plain(bins.accuracy),
        counts=tuple(bins.counts.tolist()),
        ece=defined(bins.ece()),
        ace=defined(bins.ace()),
        mce=defined(bins.mce()),
        entries=entries,
    )


def _plain(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(defined(value) for value in values)
