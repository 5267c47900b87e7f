"""A head with the words as its prior: answers move the text head as far as they speak for it.

    o_ik = s_k t_ik + c_k                                 the text score, calibrated by the answers
    minimise over D, d:  loss(o + features D + d)  +  sum_k l2_k / 2 (||D_k||^2 + d_k^2)

with features centred on the answered photos and divided by their deviations over all. (s_k, c_k) is
the mean curve of ``calibration.few``: labels share what their answers cannot tell apart.
l2_k is chosen by cross-validation over the answers: the log loss of the left-out answers is minus
the log-likelihood of a strength, and the labels' strengths are drawn towards the common one, as
those of solved heads are. An infinite strength, the text score as it is, is among those tried. With
many answers the head is free of the words.

What follows calibrates the left-out logits once more, by the few-label fit with a link. That fit
sees each label's level settled by the first, and so leaves far too little open: its 90 % intervals
of shares held the truth for 33 to 46 % of the labels of 1,000 COCO photos, with 50 to 500 of them
answered at random. What is open is that of the first fit, around the shares of the last: with it
82 to 92 % held it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.calibration import FewLabels, few_labels
from labelwise.links import Sigmoid
from labelwise.numeric.special import expit, logit
from labelwise.objectives.convex import CoinLoss, ShiftedLoss
from labelwise.photos.words.text_image import TextHead
from labelwise.training.solve import Design, minimise
from labelwise.types import Targets

POWERS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0)  # of ten, of l2 as a multiple of the answers
FOLDS = 5
APART = 0.3  # powers of ten by which labels' strengths differ, before their answers are seen
ROUGH, EXACT = 1e-4, 1e-8
LEAST_SHARE = 0.01
LEAST_ODDS = 1e-9


@dataclass(frozen=True, eq=False)
class AnsweredHead:
    """A linear head, the strengths of its labels, and the link of its logits.

    ``left_out`` (n, K) are the logits of the answered photos by heads that had not seen them.
    """

    head: TextHead
    l2: Tensor  # (K,); infinite: the label has the text's scores as they are
    left_out: Tensor
    calibration: FewLabels
    first: FewLabels  # of the text's scores

    @property
    def shares(self) -> NDArray[np.float64]:
        """The labels' shares of the pool and the ends of their 90 % intervals, (K, 3)."""
        share = self.calibration.shares[:, 0]
        middle, low, high = logit(np.clip(self.first.shares, LEAST_ODDS, 1 - LEAST_ODDS)).T
        own = logit(np.clip(share, LEAST_ODDS, 1 - LEAST_ODDS))
        return np.stack([share, expit(own + low - middle), expit(own + high - middle)], axis=1)


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
    every = x if pool is None else pool
    answers = CoinLoss.of(Targets(y, known))
    few = few_labels(text.scores(x), y, None, known, pool=text.scores(every))
    spread = every.std(dim=0, correction=0).double()
    design = Design.of(x, spread=spread, free_bias=False)
    tried, shares = _left_out(text, few, x, answers, design, _folds(len(x), seed))
    powers = torch.tensor(POWERS[: len(tried) - 1], dtype=torch.float64)
    chosen = (shares[1:] * powers[:, None]).sum(dim=0) / shares[1:].sum(dim=0)
    kept = shares[0] > 0.5
    l2 = torch.where(kept, torch.inf, 10**chosen * len(x))
    head = _moved(_calibrated(text, few, few.mean), x, answers, design, l2)
    left_out = torch.einsum("pk,pnk->nk", shares, tried)
    calibration = few_labels(left_out, y, Sigmoid(), known, pool=head.scores(every))
    return AnsweredHead(head, l2, left_out, calibration, few)


def _calibrated(text: TextHead, few: FewLabels, mean: NDArray[np.float64]) -> TextHead:
    """Return the text head as a mean curve (K, 2) of its scores calibrates it."""
    slope = torch.from_numpy(np.exp(mean[:, 0]) / few.scale)
    offset = torch.from_numpy(mean[:, 1]) - slope * few.centre
    return TextHead(text.weight * slope, text.bias * slope + offset)


def _left_out(
    text: TextHead, few: FewLabels, x: Tensor, answers: CoinLoss, design: Design, parts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return logits (P + 1, n, K) by heads that had not seen the photo, and what each counts.

    The text's come first, then those of the powers, until one counts for no label. A label without
    the photos of a fold is a column of its own in one problem, in which these photos weigh nothing;
    the next power starts from the one before.
    """
    folds, (rows, labels) = range(int(parts.max()) + 1), answers.present.shape
    fold_of = [parts == number for number in folds]
    starts = [_calibrated(text, few, few.mean_without(out.numpy())).scores(x) for out in fold_of]
    seen = torch.cat([(~out)[:, None].expand(-1, labels) for out in fold_of], dim=1)
    loss = CoinLoss(
        *(part.repeat(1, len(folds)) * seen for part in (answers.present, answers.absent))
    )
    rough = design.to(torch.float32)
    shifted = ShiftedLoss(loss, torch.cat(starts, dim=1)).to(rough.rows)
    count = seen.sum(dim=0).to(rough.rows)[None]
    found = rough.rows.new_zeros(rough.rows.shape[1], labels * len(folds))
    own = torch.stack(fold_of, dim=1)[:, :, None]  # (n, F, 1): which of a photo's columns counts

    def of_own_fold(logits: Tensor) -> Tensor:
        return (logits.double().reshape(rows, len(folds), labels) * own).sum(dim=1)

    tried = [of_own_fold(shifted.offset)]
    losses = [answers.rows(tried[0]).sum(dim=0)]
    shares = torch.ones(1, labels, dtype=torch.float64)
    for power in POWERS:
        found = minimise(rough, shifted, 10**power * count, found, tolerance=ROUGH)
        tried.append(of_own_fold(shifted.offset + rough.rows @ found))
        losses.append(answers.rows(tried[-1]).sum(dim=0))
        shares = _shares(torch.stack(losses))
        if shares[-1].max() < LEAST_SHARE:  # weaker ones count for less
            break
    return torch.stack(tried), shares


def _moved(start: TextHead, x: Tensor, answers: CoinLoss, design: Design, l2: Tensor) -> TextHead:
    """Return a head that answers move as far as l2 (K,) allows; not at all if it is infinite."""
    columns = l2.isfinite().nonzero()[:, 0]
    moved = torch.zeros(design.rows.shape[1], len(l2), dtype=torch.float64)
    if len(columns):
        loss = ShiftedLoss(answers, start.scores(x)).columns(columns)
        strengths = l2[None, columns]
        moved[:, columns] = minimise(design, loss, strengths, moved[:, columns], tolerance=EXACT)
    weight, bias = design.linear(moved)
    return TextHead(start.weight + weight, start.bias + bias)


def _folds(rows: int, seed: int) -> Tensor:
    """Return the fold of each row, dealt at random."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(rows, generator=generator) % min(FOLDS, rows)


def _shares(losses: Tensor) -> Tensor:
    """Return what each strength counts for each label, (P + 1, K); the first is the text alone.

    The common strength is the one of the least loss over all labels. The text counts as one step
    stronger than the strongest.
    """
    step = POWERS[0] - POWERS[1]
    places = torch.tensor([POWERS[0] + step, *POWERS], dtype=torch.float64)[: len(losses)]
    common = int(losses.sum(dim=1).argmin())
    prior = -((places - places[common]) / APART).square() / 2
    joint = prior[:, None] - losses
    return (joint - joint.logsumexp(dim=0)).exp()
