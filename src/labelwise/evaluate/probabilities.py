"""Probabilities: one stage of the model's answers, before or after calibration."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import DataError
from labelwise.links import Link, Sigmoid
from labelwise.predictions import Predictions

__all__ = ["Known", "Probabilities", "defined", "known_labels", "probabilities"]


@dataclass(frozen=True)
class Probabilities:
    """The pair a link gives, with its exponential, each (N, K)."""

    stage: str
    log_p: Tensor
    log_q: Tensor
    probs: Tensor


@dataclass(frozen=True)
class Known:
    """What is known of the labels: present (N, K), and the mask where some are unknown."""

    present: Tensor
    observed: Tensor | None

    def rows_complete(self) -> Tensor:
        """Return the (N,) mask of rows whose labels are all known."""
        if self.observed is None:
            return torch.ones(len(self.present), dtype=torch.bool)
        return self.observed.all(1)


@torch.no_grad()
def probabilities(stage: str, logits: Tensor, source: Link | Tensor) -> Probabilities:
    """Return the probabilities of logits under a link, or those of given log-odds (N, K)."""
    if isinstance(source, Tensor):
        log_p, log_q = Sigmoid().log_probs(source)
        # Back in float32 a probability given as 0.3 is again the 0.3 of the bin edges.
        probs = log_p.exp().float()
    else:
        log_p, log_q = source.log_probs(logits)
        probs = source.decision_probs(logits)
    if torch.isnan(log_p).any():
        row = int(torch.isnan(log_p).any(1).nonzero()[0])
        raise DataError(f"probabilities {stage} must be numbers, got NaN in row {row + 1}")
    return Probabilities(stage, log_p, log_q, probs)


def known_labels(predictions: Predictions) -> Known:
    """Return the known labels; they must be 0 or 1, and something must be known."""
    labels, observed = predictions.labels, predictions.observed
    if observed is not None and bool(observed.all()):
        observed = None
    odd = (labels != 0) & (labels != 1)
    if observed is not None:
        odd &= observed
    if odd.any():
        row, column = odd.nonzero()[0].tolist()
        raise DataError(
            f"labels must be 0 or 1 to be evaluated, got {labels[row, column].item():g} for "
            f"{predictions.names[column]!r} of {predictions.ids[row]!r}"
        )
    if labels.numel() == 0 or (observed is not None and not observed.any()):
        raise DataError("an evaluation needs at least one known label, got none")
    present = labels == 1
    return Known(present if observed is None else present & observed, observed)


def defined(value: float | NDArray[np.float64]) -> float | None:
    """Return a number as plain data: ``None`` where it is NaN or infinite."""
    number = float(value)
    return number if np.isfinite(number) else None
