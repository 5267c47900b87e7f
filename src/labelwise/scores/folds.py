"""Honest figures from one unsplit file: every row is judged by a fit that did not see it.

The rows are dealt into folds by a seeded shuffle. For each fold the link and the rule are fitted
on the other folds and applied to it. What is saved is fitted on all rows; the figures speak of
the procedure, and err a little on the cautious side, since each fit saw fewer rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.decide import Rule
from labelwise.errors import SettingsError
from labelwise.links import Link
from labelwise.predictions import Predictions
from labelwise.scores.read import take

__all__ = ["CrossFit", "crossfit", "folds_of"]

Fit = Callable[[Predictions], tuple[Link | None, Rule | None]]


@dataclass(frozen=True)
class CrossFit:
    """Out-of-fold log-odds and sets, each (N, K); ``None`` where nothing of the kind was fitted."""

    log_odds: Tensor | None
    sets: Tensor | None


def folds_of(rows: int, folds: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of every row; sizes differ by at most one."""
    if not 2 <= folds <= rows:
        raise SettingsError(f"folds must lie between 2 and the {rows} rows, got {folds}")
    return np.random.default_rng(seed).permutation(np.arange(rows) % folds)


@torch.no_grad()
def crossfit(predictions: Predictions, fit: Fit, *, folds: int = 5, seed: int = 0) -> CrossFit:
    """Return what fits on the other folds say of each row.

    ``fit`` maps predictions to a link (``None``: none is fitted) and a rule.
    """
    fold = folds_of(len(predictions), folds, seed)
    shape = predictions.logits.shape
    log_odds = torch.empty(shape, dtype=torch.float64)
    sets = torch.zeros(shape, dtype=torch.bool)
    fitted_link = fitted_rule = False
    for number in range(folds):
        held = np.flatnonzero(fold == number)
        own = take(predictions, held)
        link, rule = fit(take(predictions, np.flatnonzero(fold != number)))
        rows = torch.from_numpy(held)
        fitted_link, fitted_rule = link is not None, rule is not None
        if link is not None:
            log_odds[rows] = link.log_odds(own.logits).double()
        last = link or predictions.link
        if rule is not None and last is not None:
            sets[rows] = rule(last.decision_probs(own.logits))
    return CrossFit(log_odds if fitted_link else None, sets if fitted_rule else None)
