"""What rows that a fit did not see say of each row: links and heads fitted over folds.

A model that was fitted on a wrong label believes it, so the labels of a row are only ever judged
by fits on the other rows. Scores that someone brings are taken as held out; their link is fitted
anew on the other folds. Frozen features get a linear head per fold first:

    minimise over W, b:   sum over the other folds' known entries of log(1 + exp(-(2y - 1) z))
                          + l2 n / 2 ||W||^2          z = x W + b,  x: features of unit variance

What is said of the other labels of a photo is evidence too: where there are a fork and a knife, a
table may have been forgotten. In context the log-odds u_k of a label become

    a_k u_k + c_k + sum over j other than k of B_kj (y_j - mean of y_j)       y_j: p_j if unknown

with a, B and c fitted on the other folds by the same loss and ``l2`` / 2 ||B||^2.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from labelwise.arrays import Array, check_shapes, mask_tensor, to_tensor
from labelwise.calibrate import platt
from labelwise.errors import SettingsError
from labelwise.links import Link
from labelwise.objectives import bce_loss
from labelwise.progress import Silent, Watch

__all__ = [
    "crossfit_heads",
    "crossfit_in_context",
    "crossfit_log_odds",
    "deal_folds",
    "fit_linear_head",
]

STEPS = 40
HEAD_L2 = 0.1
CONTEXT_L2 = 10.0


def crossfit_log_odds(
    logits: Array,
    labels: Array,
    link: Link | None,
    observed: Array | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
) -> Tensor:
    """Return calibrated log-odds (N, K): each row's by the Platt link of the other folds."""
    scores, truth = to_tensor(logits), to_tensor(labels)
    known = None if observed is None else mask_tensor(observed, "observed")
    check_shapes(logits=scores, labels=truth, observed=known)
    odds = torch.empty(scores.shape, dtype=torch.float64)
    for held in _folds(len(scores), folds, seed):
        mask = None if known is None else known[~held]
        fitted = platt(scores[~held], truth[~held], link, mask)
        with torch.no_grad():
            odds[held] = fitted.log_odds(scores[held]).double()
    return odds


def crossfit_in_context(
    log_odds: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
    l2: float = CONTEXT_L2,
) -> Tensor:
    """Return log-odds (N, K) that also know what is said of the other labels of each row.

    ``log_odds`` are those of :func:`crossfit_log_odds`. What is said of a label itself is never
    used for it.
    """
    odds, truth = to_tensor(log_odds).double(), to_tensor(labels).double()
    known = None if observed is None else mask_tensor(observed, "observed").double()
    check_shapes(log_odds=odds, labels=truth, observed=known)
    told = torch.ones_like(truth) if known is None else known
    probs = torch.from_numpy(expit(odds.numpy()))
    others = torch.where(told > 0, truth, probs)
    others = others - others.mean(0)
    found = torch.empty(odds.shape, dtype=torch.float64)
    # Dealt anew: rows that share a fold have log-odds by one fit, whose errors they would share.
    for held in _folds(len(odds), folds, seed + 1):
        fit = _fit_context(odds[~held], others[~held], truth[~held], told[~held], l2)
        slope, pairs, offset = fit
        found[held] = slope * odds[held] + others[held] @ pairs + offset
    return found


def _fit_context(
    odds: Tensor, others: Tensor, truth: Tensor, told: Tensor, l2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a (K,), B (K, K) with nothing on its diagonal, and c (K,)."""
    rows, labels = odds.shape
    off_diagonal = 1 - torch.eye(labels, dtype=torch.float64)
    slope = torch.ones(labels, dtype=torch.float64, requires_grad=True)
    offset = torch.zeros(labels, dtype=torch.float64, requires_grad=True)
    pairs = torch.zeros(labels, labels, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [slope, pairs, offset], max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        own = pairs * off_diagonal
        losses = bce_loss(slope * odds + others @ own + offset, truth) * told
        loss = (losses.sum() + l2 / 2 * own.square().sum()) / rows
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return slope.detach(), (pairs * off_diagonal).detach(), offset.detach()


def crossfit_heads(
    features: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
    l2: float = HEAD_L2,
    watch: Watch | None = None,
) -> Tensor:
    """Return logits (N, K): each row's by a linear head fitted on the other folds' features."""
    inputs, truth = to_tensor(features), to_tensor(labels)
    known = None if observed is None else mask_tensor(observed, "observed")
    if inputs.ndim != 2 or len(inputs) != len(truth):
        raise ValueError(
            f"features must be (N, D) for {len(truth)} rows, got {tuple(inputs.shape)}"
        )
    watch = watch or Silent()
    watch.start("refitting heads", folds)
    logits = torch.empty(truth.shape, dtype=torch.float32)
    for held in _folds(len(inputs), folds, seed):
        mask = None if known is None else known[~held]
        weight, bias = fit_linear_head(inputs[~held], truth[~held], mask, l2=l2)
        logits[held] = inputs[held].float() @ weight + bias
        watch.advance(1)
    watch.finish()
    return logits


def fit_linear_head(
    features: Array, labels: Array, observed: Array | None = None, *, l2: float = HEAD_L2
) -> tuple[Tensor, Tensor]:
    """Return weight (D, K) and bias (K,) of a logistic head on features as they are."""
    inputs, truth = to_tensor(features).float(), to_tensor(labels).float()
    known = (
        torch.ones_like(truth) if observed is None else mask_tensor(observed, "observed").float()
    )
    mean, spread = inputs.mean(0), inputs.std(0, correction=0) + 1e-6
    scaled = (inputs - mean) / spread
    count = known.sum(0).clamp(min=1)
    share = ((truth * known).sum(0) + 0.5) / (count + 1)
    weight = torch.zeros(inputs.shape[1], truth.shape[1], requires_grad=True)
    bias = share.logit().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = bce_loss(scaled @ weight + bias, truth) * known
        loss = (losses.sum(0) / count).sum() + l2 / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    own = weight.detach() / spread[:, None]
    return own, bias.detach() - mean @ own


def deal_folds(
    rows: int, folds: int, *, seed: int = 0, group: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return the fold of each row (N,); rows of one ``group`` (N,) share theirs."""
    units = np.arange(rows) if group is None else np.unique(group, return_inverse=True)[1]
    count = int(units.max(initial=-1)) + 1
    if not 2 <= folds <= count:
        what = "rows" if group is None else "groups"
        raise SettingsError(f"folds must lie between 2 and the {count} {what}, got {folds}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % folds
    dealt: NDArray[np.int64] = order.numpy()[units]
    return dealt


def _folds(rows: int, folds: int, seed: int) -> list[Tensor]:
    """Return for each fold which rows (N,) it holds out."""
    dealt = torch.from_numpy(deal_folds(rows, folds, seed=seed))
    return [dealt == number for number in range(folds)]
