"""A head with the words as its prior: answers move the text head as far as they speak for it.

    o_ik = s_k t_ik + c_k                                 the text score, calibrated by the answers
    minimise over D, d:  loss(o + features D + d)  +  sum_k l2_k / 2 (||D_k||^2 + d_k^2)

with features standardised by their deviations over all photos. (s_k, c_k) is the mean curve of
:mod:`labelwise.calibrate.few`: labels share what their answers cannot tell apart. l2_k is chosen by
cross-validation over the answers: the log loss of the left-out answers is minus the log-likelihood
of a strength, and the labels' strengths are drawn towards the common one, as those of solved heads
are. An infinite strength, the text score as it is, is among those tried. With many answers the head
is free of the words.

What follows calibrates the left-out logits once more, by the few-label fit with a link.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.calibrate import FewLabels, few_labels
from labelwise.links import Sigmoid
from labelwise.objectives.convex import CoinLoss, ShiftedLoss
from labelwise.training.solve import Design, minimise
from labelwise.types import Targets
from labelwise.words.classes import TextHead

__all__ = ["AnsweredHead", "answered_head"]

POWERS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0)  # of ten, of l2 as a multiple of the answers
FOLDS = 5
APART = 0.3  # powers of ten by which labels' strengths differ, before their answers are seen
ROUGH, EXACT = 1e-4, 1e-8


@dataclass(frozen=True, eq=False)
class AnsweredHead:
    """A linear head, the strengths of its labels, and the link of its logits.

    ``left_out`` (n, K) are the logits of the answered photos by heads that had not seen them.
    """

    head: TextHead
    l2: Tensor  # (K,); infinite: the label has the text's scores as they are
    left_out: Tensor
    calibration: FewLabels


def answered_head(
    text: TextHead,
    features: Tensor,
    labels: Tensor,
    observed: Tensor | None,
    *,
    pool: Tensor | None = None,
    seed: int = 0,
) -> AnsweredHead:
    """Return the head of a text head and answers.

    ``features`` (n, D) and ``labels`` (n, K) are those of the answered photos; ``pool`` (M, D) are
    the features of all photos, None for the answered ones.
    """
    x, y = features.double(), labels.double()
    known = torch.ones_like(y, dtype=torch.bool) if observed is None else observed
    every = x if pool is None else pool.double()
    parts = _folds(len(x), seed)
    powers = torch.tensor(POWERS, dtype=torch.float64)
    tried = torch.zeros(len(POWERS) + 1, *y.shape, dtype=torch.float64)  # first: the text alone
    for number in range(int(parts.max()) + 1):
        out = parts == number
        fit = _Fit.of(text, x[~out], y[~out], known[~out], every)
        tried[0][out] = fit.start.scores(x[out])
        previous = None
        for place, power in enumerate(POWERS, 1):
            l2 = torch.full((y.shape[1],), 10**power * float((~out).sum()), dtype=torch.float64)
            previous = fit.moved(l2, previous, ROUGH)
            tried[place][out] = fit.head(previous).scores(x[out])
    losses = CoinLoss.of(Targets(y, known))
    by_label = torch.stack([losses.rows(logits).sum(dim=0) for logits in tried])
    shares = _shares(by_label, powers)
    chosen = (shares[1:] * powers[:, None]).sum(dim=0) / shares[1:].sum(dim=0)
    kept = shares[0] > 0.5
    l2 = torch.where(kept, torch.inf, 10**chosen * len(x))
    fit = _Fit.of(text, x, y, known, every)
    head = fit.head(fit.moved(l2, None, EXACT))
    left_out = torch.einsum("pk,pnk->nk", shares, tried)
    calibration = few_labels(left_out, y, Sigmoid(), known, pool=head.scores(every))
    return AnsweredHead(head, l2, left_out, calibration)


@dataclass(frozen=True, eq=False)
class _Fit:
    """The text head as its answers calibrate it, and what moves it further."""

    start: TextHead
    design: Design
    loss: ShiftedLoss

    @classmethod
    def of(cls, text: TextHead, x: Tensor, y: Tensor, known: Tensor, every: Tensor) -> "_Fit":
        scores = text.scores(x)
        few = few_labels(scores, y, None, known, pool=text.scores(every))
        slope = torch.from_numpy(np.exp(few.mean[:, 0]) / few.scale)
        offset = torch.from_numpy(few.mean[:, 1]) - slope * few.centre
        start = TextHead(text.weight * slope, text.bias * slope + offset)
        loss = ShiftedLoss(CoinLoss.of(Targets(y, known)), start.scores(x))
        spread = every.std(dim=0, correction=0)
        return cls(start, Design.of(x, spread=spread, free_bias=False), loss)

    def moved(self, l2: Tensor, start: Tensor | None, tolerance: float) -> Tensor:
        """Return how far each label's weights move (r + 1, K); not at all for an infinite l2."""
        columns = l2.isfinite().nonzero()[:, 0]
        found = torch.zeros(self.design.rows.shape[1], len(l2), dtype=torch.float64)
        if len(columns):
            begin = found if start is None else start
            loss = self.loss.columns(columns)
            found[:, columns] = minimise(
                self.design, loss, l2[None, columns], begin[:, columns], tolerance=tolerance
            )
        return found

    def head(self, moved: Tensor) -> TextHead:
        weight, bias = self.design.linear(moved)
        return TextHead(self.start.weight + weight, self.start.bias + bias)


def _folds(rows: int, seed: int) -> Tensor:
    """Return the fold of each row, dealt at random."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(rows, generator=generator) % min(FOLDS, rows)


def _shares(losses: Tensor, powers: Tensor) -> Tensor:
    """Return what each strength counts for each label, (P + 1, K); the first is the text alone.

    The common strength is the one of the least loss over all labels.
    """
    common = int(losses.sum(dim=1).argmin())
    places = torch.cat([powers[:1] + powers[0] - powers[1], powers])  # the text: one step stronger
    prior = -((places - places[common]) / APART).square() / 2
    joint = prior[:, None] - losses
    return (joint - joint.logsumexp(dim=0)).exp()
