"""Known labels, the probabilities of a stage (before or after calibration), and their calibration.

Reliability is that of all entries pooled, of the surest labels of each image, and of each label.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Floats, Mask, Numbers, Values
from labelwise.base.groups import Groups
from labelwise.errors import DataError
from labelwise.evaluation.evaluation import Calibration, Curve
from labelwise.links import Link, Sigmoid
from labelwise.metrics import (
    CalibrationSums,
    ProperSums,
    Reliability,
    brier_sums,
    log_loss_sums,
    top_k_sets,
    width_edges,
)
from labelwise.metrics.calibration import SmoothSums
from labelwise.predictions import Predictions


@dataclass(frozen=True)
class Probabilities:
    """The pair a link gives, with its exponential, each (N, K)."""

    stage: str
    log_p: Floats
    log_q: Floats
    probs: Floats


@dataclass(frozen=True)
class Known:
    """Which labels are present (N, K), observed (None: all), and ``shares`` where some are soft."""

    present: Mask
    observed: Mask | None
    shares: Values | None = None
    groups: Groups | None = None

    @property
    def labels(self) -> Values:
        """The labels for what takes soft ones: calibration and proper scores."""
        return self.present if self.shares is None else self.shares

    def counts(self) -> NDArray[np.int64]:
        rows, labels = self.present.shape
        return np.full(labels, rows) if self.observed is None else self.observed.sum(0)

    def some(self) -> Mask:
        return np.asarray(self.present.any(1))

    def take(self, rows: Mask) -> "Known":
        observed = None if self.observed is None else self.observed[rows]
        shares = None if self.shares is None else self.shares[rows]
        groups = None if self.groups is None else Groups.of(self.groups.codes[rows])
        return Known(self.present[rows], observed, shares, groups)


def probabilities(stage: str, logits: Floats, source: Link | Values) -> Probabilities:
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
    odd = ~((labels >= 0) & (labels <= 1)) & (True if observed is None else observed)
    if odd.any():
        row, column = np.argwhere(odd)[0].tolist()
        where = f"{predictions.names[column]!r} of {predictions.ids[row]!r}"
        value = labels[row, column].item()
        raise DataError(f"labels must lie in [0, 1] to be evaluated, got {value:g} for {where}")
    if labels.size == 0 or (observed is not None and not observed.any()):
        raise DataError("an evaluation needs at least one known label, got none")
    present, shares = labels > 0.5, labels if predictions.has_soft_labels() else None
    if observed is not None:
        present &= observed
        shares = None if shares is None else np.where(observed, shares, 0)
    return Known(present, observed, shares, predictions.groups)


def defined(value: float | Numbers) -> float | None:
    """Return a number as plain data: ``None`` where it is NaN or infinite."""
    number = float(value)
    return number if np.isfinite(number) else None


CURVES = 24  # labels whose own curve is kept
OF_LABEL = "known entries of the label"


@dataclass(frozen=True)
class StageSums:
    """What the probabilities of one stage add up to."""

    stage: str
    per_label: CalibrationSums
    surest: CalibrationSums
    smooth: SmoothSums
    brier: ProperSums
    log_loss: ProperSums

    @staticmethod
    def of(answers: Probabilities, known: Known, bins: int, k: int) -> "StageSums":
        labels, observed, probs = known.labels, known.observed, answers.probs
        edges = width_edges(bins)
        per_label, surest = (CalibrationSums.zeros(probs.shape[1], edges) for _ in range(2))
        per_label.update(probs, labels, observed)
        surest.update(probs, labels, observed, where=top_k_sets(probs, k))
        return StageSums(
            answers.stage,
            per_label,
            surest,
            SmoothSums.of(probs, labels, observed),
            brier_sums(probs, labels, observed, bins=bins),
            log_loss_sums(answers.log_p, answers.log_q, labels, observed, bins=bins),
        )

    def worst_labels(self) -> list[int]:
        ece = np.nan_to_num(self.per_label.ece(), nan=-1.0)
        order = np.argsort(-ece, kind="stable")[:CURVES]
        return [int(column) for column in order if ece[column] >= 0]

    def calibration(self, names: tuple[str, ...], columns: list[int], k: int) -> Calibration:
        """Return how calibrated the stage is; ``columns`` are the labels whose curves are kept."""
        pooled, top = self.per_label.pooled(), self.surest.pooled()
        brier, loss, per_label = self.brier.score(), self.log_loss.score(), self.per_label.ece()
        some = ~np.isnan(per_label)
        entries = f"{int(pooled.counts.sum()):,} known entries pooled"
        surest = f"{int(top.counts.sum()):,} known entries among the top {k} of each row"
        return Calibration(
            stage=self.stage,
            pooled=curve_of(pooled, entries),
            top_k=curve_of(top, surest),
            k=k,
            label_mean_ece=defined(per_label[some].mean()) if some.any() else None,
            log_loss=defined(loss.value),
            brier=defined(brier.value),
            reliability=defined(brier.calibration),
            resolution=defined(brier.resolution),
            uncertainty=defined(brier.uncertainty),
            within_bins=defined(brier.within),
            per_label={names[c]: curve_of(self.per_label.row(c), OF_LABEL) for c in columns},
            how=(
                f"{len(pooled.counts)} equal-width bins (lo, hi] of [0, 1], 0 in the first, 1 in "
                "the last; per bin the mean probability and the share truly present. ECE is the "
                "mean gap weighted by entries, ACE the plain mean over non-empty bins, MCE the "
                f"largest. All entries: {entries}. Top {k}: the {k} most probable labels of each "
                f"image, ties to lower columns. Mean over labels: {int(some.sum()):,} of "
                f"{len(names):,} labels with a known entry. Log loss is in nats per entry, not "
                "clipped. The Brier score is split over the same bins into miscalibration − "
                "resolution + uncertainty + what the bins hide."
            ),
            infinite=loss.infinite,
            smooth_ece=defined(self.smooth.ece()),
        )


def curve_of(bins: Reliability, entries: str) -> Curve:
    """Return bins as plain data."""
    return Curve(
        edges=tuple(bins.edges.tolist()),
        confidence=tuple(map(defined, bins.confidence)),
        frequency=tuple(map(defined, bins.accuracy)),
        counts=tuple(bins.counts.tolist()),
        ece=defined(bins.ece()),
        ace=defined(bins.ace()),
        mce=defined(bins.mce()),
        entries=entries,
    )
