"""What rows that a fit did not see say of each row: links and heads fitted over folds.

A model that was fitted on a wrong label believes it, so the labels of a row are only ever judged
by fits on the other rows. Scores that someone brings are taken as held out; their link is fitted
anew on the other folds. Frozen features get a linear head per fold first:

    minimise over W, b:   sum over the other folds' known entries of log(1 + exp(-(2y - 1) z))
                          + l2 n / 2 ||W||^2          z = x W + b,  x: features of unit variance

Given labels with mistakes are not labels to fit a probability to: a head that learns from them that
one certain dog in twenty is not a dog makes all certain dogs look alike. So a share ``missing`` of
the present labels is taken to be lost and a share ``wrong`` of the absent ones to be given by
mistake,

    P(given) = wrong + (1 - missing - wrong) P(there)         log-odds of P(there): z_k

and both shares, the same for all labels, are fitted together with z_k. What is given and what is
likely of the other labels of a photo is evidence too: where there are a fork and a knife, a table
may have been forgotten. In context the log-odds u_k of a label become

    z_k = a_k u_k + c_k + sum over j other than k of B_kj y_j + C_kj p_j      y_j: p_j if unknown

with y and p about their means, fitted on the other folds with ``l2`` / 2 (||B||^2 + ||C||^2).
Since P(there | not given) and P(not there | given) rise and fall with z_k alike for all labels, z
is what suspects are ordered by.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.calibration import platt
from labelwise.errors import SettingsError
from labelwise.links import Link
from labelwise.numeric.arrays import Array, check_shapes, mask_tensor, to_tensor
from labelwise.objectives import bce_loss
from labelwise.system.progress import Silent, Watch

STEPS = 40
HEAD_L2 = 0.1
CONTEXT_L2 = 5.0
USUAL_MISTAKES = (0.05, 0.001)  # missing of the present, wrong of the absent, before any fit


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


@dataclass(frozen=True, eq=False)
class TrueLogOdds:
    """Log-odds (N, K) that labels are there, and the shares of mistakes they were fitted with.

    ``missing`` is the share of the present labels that is not given, ``wrong`` the share of the
    absent ones that is. Both are estimates of a model; only looking tells.
    """

    log_odds: Tensor
    missing: float
    wrong: float


def crossfit_true_log_odds(
    log_odds: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    context: bool = True,
    folds: int = 5,
    seed: int = 0,
    l2: float = CONTEXT_L2,
) -> TrueLogOdds:
    """Return the log-odds that labels are there, where those that are given have mistakes.

    ``log_odds`` are those of :func:`crossfit_log_odds`. With ``context`` the other labels of a row
    count too; what is given of a label itself is never used for it.
    """
    odds, truth = to_tensor(log_odds).float(), to_tensor(labels).float()
    known = None if observed is None else mask_tensor(observed, "observed").float()
    check_shapes(log_odds=odds, labels=truth, observed=known)
    weight = torch.ones_like(truth) if known is None else known
    others = torch.zeros(len(odds), 0)
    if context:
        probs = torch.special.expit(odds)
        others = torch.cat([torch.where(weight > 0, truth, probs), probs], dim=1)
        others = others - others.mean(0)
    found = torch.empty(odds.shape, dtype=torch.float64)
    shares = []
    # Dealt anew: rows that share a fold have log-odds by one fit, whose errors they would share.
    for held in _folds(len(odds), folds, seed + 1):
        fit = _fit_with_mistakes(odds[~held], others[~held], truth[~held], weight[~held], l2)
        found[held] = fit.log_odds(odds[held], others[held]).double()
        shares.append(torch.special.expit(fit.shares))
    missing, wrong = torch.stack(shares).mean(0).tolist()
    return TrueLogOdds(found, missing, wrong)


@dataclass(frozen=True, eq=False)
class _WithMistakes:
    """a (K,), c (K,), B over C (2K or 0, K) with nothing on their diagonals, and the shares (2,).

    ``shares`` are the log-odds of ``missing`` and ``wrong``.
    """

    slope: Tensor
    offset: Tensor
    pairs: Tensor
    shares: Tensor

    def log_odds(self, odds: Tensor, others: Tensor) -> Tensor:
        """Return z (n, K)."""
        return torch.addmm(self.slope * odds + self.offset, others, self.pairs)

    def gradients(
        self, odds: Tensor, others: Tensor, truth: Tensor, weight: Tensor
    ) -> tuple[Tensor, "_WithMistakes"]:
        """Return the negative log likelihood and its derivatives, written out for speed."""
        p = torch.special.expit(self.log_odds(odds, others))
        missing, wrong = torch.special.expit(self.shares).unbind()
        kept = 1 - missing - wrong
        given = wrong + kept * p
        losses = truth * given.log() + (1 - truth) * (1 - given).log()
        loss = -(losses * weight).double().sum()
        by_given = weight * (given - truth) / (given * (1 - given))
        by_z = kept * by_given * p * (1 - p)
        by_share = torch.stack([-(by_given * p).sum(), (by_given * (1 - p)).sum()])
        rates = torch.stack([missing, wrong])
        return loss, _WithMistakes(
            (by_z * odds).sum(0), by_z.sum(0), others.T @ by_z, by_share * rates * (1 - rates)
        )


def _fit_with_mistakes(
    odds: Tensor, others: Tensor, truth: Tensor, weight: Tensor, l2: float
) -> _WithMistakes:
    """Return the fit; the log-odds of both shares have normal priors of deviation 1."""
    rows, labels = odds.shape
    off_diagonal = (1 - torch.eye(labels)).repeat(others.shape[1] // labels, 1)
    usual = torch.tensor(USUAL_MISTAKES).logit()
    slope, offset = torch.ones(labels), torch.zeros(labels)
    pairs, shares = torch.zeros_like(off_diagonal), usual.clone()
    optimizer = torch.optim.LBFGS(
        [slope, offset, pairs, shares],
        max_iter=STEPS,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    @torch.no_grad()
    def closure() -> Tensor:
        fit = _WithMistakes(slope, offset, pairs * off_diagonal, shares)
        loss, by = fit.gradients(odds, others, truth, weight)
        slope.grad, offset.grad = by.slope / rows, by.offset / rows
        pairs.grad = (by.pairs * off_diagonal + l2 * fit.pairs) / rows
        shares.grad = (by.shares + shares - usual) / rows
        penalty = l2 * fit.pairs.square().sum() + (shares - usual).square().sum()
        return ((loss + penalty / 2) / rows).float()

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return _WithMistakes(slope, offset, pairs * off_diagonal, shares)


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
    watch.start("refitting heads", len(inputs))
    logits = torch.empty(truth.shape, dtype=torch.float32)
    for held in _folds(len(inputs), folds, seed):
        mask = None if known is None else known[~held]
        weight, bias = fit_linear_head(inputs[~held], truth[~held], mask, l2=l2)
        logits[held] = inputs[held].float() @ weight + bias
        watch.advance(int(held.sum()))
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
