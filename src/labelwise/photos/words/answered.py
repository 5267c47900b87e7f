"""A head with the words as its prior: answers move the text head as far as they speak for it.

    o_ik = s_k t_ik + c_k                                 the text score, calibrated by the answers
    minimise over D, d:  loss(o + features D + d)  +  sum_k l2_k / 2 (||D_k||^2 + d_k^2)

Features are standardised; beside them stand the scores of all words and, where known, the
directions of captions, so a word learns from others that occur with it. (s_k, c_k) is the mean
curve of ``calibration.few``. l2_k is chosen by cross-validation: the log loss of the left-out
answers is minus the log-likelihood of a strength, drawn towards that of all labels.

The left-out logits are calibrated once more. That fit leaves too little open (90 % intervals held
33 to 46 % of the shares of COCO labels), so its shares get the width of the first (82 to 92 %).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.base.convex import CoinLoss
from labelwise.base.newton import Design, minimise
from labelwise.base.special import expit, logit
from labelwise.calibration import FewLabels, few_labels
from labelwise.links import Sigmoid
from labelwise.photos.words.text_image import TextHead

POWERS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0)  # of ten, of l2 as a multiple of the answers
FOLDS = 5
APART = 0.3  # powers of ten by which labels' strengths differ, before their answers are seen
ROUGH, TINY = 1e-4, 1e-9
SPARSE = 3  # times as many photos as any word has answers: each word then has its own
WORDS, CAPTIONS = 0.3, 1.0  # variance of what words share, per that of the features
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
) -> AnsweredHead:
    """Return the head of a text head and answers: ``features`` (n, D), ``labels`` (n, K).

    ``pool`` (M, D) are the features of all photos, None for the answered ones.
    """
    x, y = features.double(), labels.double()
    known = torch.ones_like(y, dtype=torch.bool) if observed is None else observed
    every = x if pool is None else pool
    answers = CoinLoss.of(y, known)
    scores = text.scores(every)
    few = few_labels(text.scores(x), y, None, known, pool=scores)
    spread = every.std(dim=0, correction=0).double()
    scale = torch.where(spread > TINY, spread, 1.0)
    common = _common(text, x, scores)
    seen = torch.cat([x / scale, x @ common], dim=1)
    sparse = SPARSE * int(known.sum(dim=0).max()) <= len(x)
    heads = _Apart(seen, answers, known) if sparse else _Shared(seen, answers)
    tried, shares = _left_out(text, few, x, answers, heads, _folds(len(x)))
    powers = torch.tensor(POWERS[: len(tried) - 1], dtype=torch.float64)
    chosen = (shares[1:] * powers[:, None]).sum(dim=0) / shares[1:].sum(dim=0)
    l2 = torch.where(shares[0] > 0.5, torch.inf, 10**chosen * len(x))
    start = _calibrated(text, few, few.mean)
    moved, bias = heads.moved(start.scores(x), l2)
    weight = moved[: len(scale)] / scale[:, None] + common @ moved[len(scale) :]
    head = TextHead(start.weight + weight, start.bias + bias)
    left_out = torch.einsum("pk,pnk->nk", shares, tried)
    calibration = few_labels(left_out, y, Sigmoid(), known, pool=head.scores(every))
    return AnsweredHead(head, l2, left_out, calibration, few)


def _common(text: TextHead, x: Tensor, scores: Tensor) -> Tensor:
    """Return directions (D, E) that words share, with shares of the features' variance D."""
    parts = [(WORDS, text.weight / scores.std(dim=0).clamp(min=TINY))]
    if text.common is not None:
        parts.append((CAPTIONS, text.common.double()))
    scaled = []
    for share, directions in parts:
        total = (x @ directions).var(dim=0, correction=0).sum().clamp(min=TINY)
        scaled.append(directions * (share * len(directions) / total).sqrt())
    return torch.cat(scaled, dim=1)


def _calibrated(text: TextHead, few: FewLabels, mean: NDArray[np.float64]) -> TextHead:
    slope = torch.from_numpy(np.exp(mean[:, 0]) / few.scale)
    offset = torch.from_numpy(mean[:, 1]) - slope * few.centre
    return TextHead(text.weight * slope, text.bias * slope + offset)


def _left_out(
    text: TextHead,
    few: FewLabels,
    x: Tensor,
    answers: CoinLoss[Tensor],
    heads: "_Shared | _Apart",
    parts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return logits (P + 1, n, K), the text's first, by heads that had not seen the photo, and what
    each counts; the last power that is tried counts for no label.
    """
    fold_of = [parts == number for number in range(int(parts.max()) + 1)]
    starts = [_calibrated(text, few, few.mean_without(out.numpy())).scores(x) for out in fold_of]
    own = torch.stack(fold_of)[:, :, None]  # (F, n, 1)
    heads.begin(torch.stack(starts), ~own, (~own).sum(dim=1))
    tried = [(torch.stack(starts) * own).sum(dim=0)]
    losses = [answers.rows(tried[0]).sum(dim=0)]
    shares = torch.ones(1, len(losses[0]), dtype=torch.float64)
    for power in POWERS:
        tried.append((heads.logits(10**power) * own).sum(dim=0))
        losses.append(answers.rows(tried[-1]).sum(dim=0))
        shares = _shares(torch.stack(losses))
        if shares[-1].max() < LEAST_SHARE:  # weaker ones count for less
            break
    return torch.stack(tried), shares


class _Shared:
    """Heads of words that were answered on much the same photos: one design for all of them.

    A label without the photos of a fold is a column of its own in one problem, in which these
    photos weigh nothing; the next strength starts from the one before.
    """

    def __init__(self, x: Tensor, answers: CoinLoss[Tensor], mean: Tensor | None = None) -> None:
        self._design = Design.of(x, scaled=False, free_bias=False, mean=mean)
        self._answers = answers

    def begin(self, starts: Tensor, seen: Tensor, count: Tensor) -> None:
        """Take the logits (F, n, K) that folds start from, which photos (F, n, 1) they see, and how
        many these are in all (F, 1), by which l2 grows.
        """
        rows, labels = self._answers.present.shape
        every = seen.expand(-1, -1, labels).movedim(0, 1).reshape(rows, -1)
        halves = (self._answers.present, self._answers.absent)
        present, absent = (half.repeat(1, len(seen)) * every for half in halves)
        self._rough = self._design.rough()
        offset = starts.movedim(0, 1).reshape(rows, -1)
        self._folds = CoinLoss(present, absent, offset).to(self._rough.rows)
        self._offset = offset.to(self._rough.rows)
        self._count = count.expand(-1, labels).reshape(1, -1).to(self._rough.rows)
        self._found = self._rough.rows.new_zeros(self._rough.rows.shape[1], every.shape[1])

    def logits(self, strength: float) -> Tensor:
        l2 = strength * self._count
        self._found = minimise(self._rough, self._folds, l2, self._found, tolerance=ROUGH)
        logits = (self._offset + self._rough.rows @ self._found).double()
        rows, labels = self._answers.present.shape
        return logits.reshape(rows, -1, labels).movedim(1, 0)

    def moved(self, start: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far answers move weights (D, K) and biases (K,); not if l2 is infinite."""
        columns = l2.isfinite().nonzero()[:, 0]
        moved = torch.zeros(self._design.rows.shape[1], len(l2), dtype=torch.float64)
        if len(columns):
            loss, own = replace(self._answers, offset=start).columns(columns), moved[:, columns]
            moved[:, columns] = minimise(self._design, loss, l2[None, columns], own)
        return self._design.linear(moved)


class _Apart:
    """Heads of words that were answered on different photos: a design of its own for each word.

    It holds the word's photos, centred by the mean of all, so its optimum is that of one design for
    all words, in a fraction of the time.
    """

    def __init__(self, x: Tensor, answers: CoinLoss[Tensor], known: Tensor) -> None:
        mean, some = x.mean(dim=0), known | ~known.any(dim=0)  # a word without answers has them all
        self._photos = [
            own.nonzero()[: max(1, said), 0] for own, said in zip(some.T, known.sum(0), strict=True)
        ]
        self._heads = [
            _Shared(x[rows], answers.each(lambda part: part[rows, word, None]), mean)  # noqa: B023
            for word, rows in enumerate(self._photos)
        ]

    def begin(self, starts: Tensor, seen: Tensor, count: Tensor) -> None:
        self._starts = starts
        for word, (rows, head) in enumerate(zip(self._photos, self._heads, strict=True)):
            head.begin(starts[:, rows, word, None], seen[:, rows], count)

    def logits(self, strength: float) -> Tensor:
        logits = self._starts.clone()
        for word, (rows, head) in enumerate(zip(self._photos, self._heads, strict=True)):
            logits[:, rows, word] = head.logits(strength)[:, :, 0]
        return logits

    def moved(self, start: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
        moved = [
            head.moved(start[rows, word, None], l2[word, None])
            for word, (rows, head) in enumerate(zip(self._photos, self._heads, strict=True))
        ]
        weight, bias = zip(*moved, strict=True)
        return torch.cat(weight, dim=1), torch.cat(bias)


def _folds(rows: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(rows, generator=draw) % min(FOLDS, rows)


def _shares(losses: Tensor) -> Tensor:
    """Return what each strength counts for each label, (P + 1, K).

    The first, the text alone, is taken for one step stronger than the strongest.
    """
    step = POWERS[0] - POWERS[1]
    places = torch.tensor([POWERS[0] + step, *POWERS], dtype=torch.float64)[: len(losses)]
    common = places[int(losses.sum(dim=1).argmin())]
    joint = -((places - common) / APART).square()[:, None] / 2 - losses
    return (joint - joint.logsumexp(dim=0)).exp()
