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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.array_api import like
from labelwise.base.arrays import Mask, Numbers
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
    l2: Numbers  # (K,); infinite: the label has the text's scores as they are
    left_out: Numbers
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
    features: NDArray[Any],
    labels: NDArray[Any],
    observed: Mask | None,
    *,
    pool: NDArray[Any] | None = None,
) -> AnsweredHead:
    """Return the head of a text head and answers: ``features`` (n, D), ``labels`` (n, K).

    ``pool`` (M, D) are the features of all photos, None for the answered ones.
    """
    x, y = features.astype(np.float64), labels.astype(np.float64)
    known = np.ones(y.shape, bool) if observed is None else observed
    every = x if pool is None else pool
    answers = CoinLoss.of(y, known)
    scores = text.scores(every)
    few = few_labels(text.scores(x), y, None, known, pool=scores)
    spread = every.std(0, dtype=np.float64)
    scale = np.where(spread > TINY, spread, 1.0)
    common = _common(text, x, scores)
    seen = np.concatenate([x / scale, x @ common], axis=1)
    sparse = SPARSE * int(known.sum(0).max()) <= len(x)
    heads = _Apart(seen, answers, known) if sparse else _Shared(seen, answers)
    tried, shares = _left_out(text, few, x, answers, heads, _folds(len(x)))
    powers = np.array(POWERS[: len(tried) - 1])
    chosen = (shares[1:] * powers[:, None]).sum(0) / shares[1:].sum(0)
    l2 = np.where(shares[0] > 0.5, np.inf, 10**chosen * len(x))
    start = _calibrated(text, few, few.mean)
    moved, bias = heads.moved(start.scores(x), l2)
    weight = moved[: len(scale)] / scale[:, None] + common @ moved[len(scale) :]
    head = TextHead(start.weight + weight, start.bias + bias)
    left_out = np.einsum("pk,pnk->nk", shares, tried)
    calibration = few_labels(left_out, y, Sigmoid(), known, pool=head.scores(every))
    return AnsweredHead(head, l2, left_out, calibration, few)


def _common(text: TextHead, x: Numbers, scores: Numbers) -> Numbers:
    """Return directions (D, E) that words share, with shares of the features' variance D."""
    parts = [(WORDS, text.weight / scores.std(0, ddof=1).clip(TINY))]
    if text.common is not None:
        parts.append((CAPTIONS, text.common.astype(np.float64)))
    scaled = []
    for share, directions in parts:
        total = max(float((x @ directions).var(0).sum()), TINY)
        scaled.append(directions * (share * len(directions) / total) ** 0.5)
    return np.concatenate(scaled, axis=1)


def _calibrated(text: TextHead, few: FewLabels, mean: NDArray[np.float64]) -> TextHead:
    slope = np.exp(mean[:, 0]) / few.scale
    offset = mean[:, 1] - slope * few.centre
    return TextHead(text.weight * slope, text.bias * slope + offset)


def _left_out(
    text: TextHead,
    few: FewLabels,
    x: Numbers,
    answers: CoinLoss[NDArray[Any]],
    heads: "_Shared | _Apart",
    parts: NDArray[np.int64],
) -> tuple[Numbers, Numbers]:
    """Return logits (P + 1, n, K), the text's first, by heads that had not seen the photo, and what
    each counts; the last power that is tried counts for no label.
    """
    fold_of = [parts == number for number in range(int(parts.max()) + 1)]
    starts = [_calibrated(text, few, few.mean_without(out)).scores(x) for out in fold_of]
    own = np.stack(fold_of)[:, :, None]  # (F, n, 1)
    heads.begin(np.stack(starts), ~own, (~own).sum(1))
    tried = [(np.stack(starts) * own).sum(0)]
    losses = [answers.rows(tried[0]).sum(0)]
    shares = np.ones((1, len(losses[0])))
    for power in POWERS:
        tried.append((heads.logits(10**power) * own).sum(0))
        losses.append(answers.rows(tried[-1]).sum(0))
        shares = _shares(np.stack(losses))
        if shares[-1].max() < LEAST_SHARE:  # weaker ones count for less
            break
    return np.stack(tried), shares


class _Shared:
    """Heads of words that were answered on much the same photos: one design for all of them.

    A label without the photos of a fold is a column of its own in one problem, in which these
    photos weigh nothing; the next strength starts from the one before.
    """

    def __init__(
        self, x: Numbers, answers: CoinLoss[NDArray[Any]], mean: Numbers | None = None
    ) -> None:
        self._design = Design.of(x, scaled=False, free_bias=False, mean=mean)
        self._answers = answers

    def begin(self, starts: Numbers, seen: Mask, count: NDArray[np.int64]) -> None:
        """Take the logits (F, n, K) that folds start from, which photos (F, n, 1) they see, and how
        many these are in all (F, 1), by which l2 grows.
        """
        rows, labels = self._answers.present.shape
        every = np.repeat(seen, labels, axis=2).swapaxes(0, 1).reshape(rows, -1)
        halves = (self._answers.present, self._answers.absent)
        present, absent = (np.tile(half, len(seen)) * every for half in halves)
        self._rough = self._design.rough()
        offset = starts.swapaxes(0, 1).reshape(rows, -1)
        self._folds = CoinLoss(present, absent, offset).to(self._rough.rows)
        self._offset = like(offset, self._rough.rows)
        self._count = like(np.repeat(count, labels, axis=1).reshape(1, -1), self._rough.rows)
        shape = self._rough.rows.shape[1], every.shape[1]
        self._found = np.zeros(shape, self._rough.rows.dtype)

    def logits(self, strength: float) -> Numbers:
        l2 = strength * self._count
        self._found = minimise(self._rough, self._folds, l2, self._found, tolerance=ROUGH)
        logits = (self._offset + self._rough.rows @ self._found).astype(np.float64)
        rows, labels = self._answers.present.shape
        return np.asarray(logits.reshape(rows, -1, labels).swapaxes(0, 1))

    def moved(self, start: Numbers, l2: Numbers) -> tuple[Numbers, Numbers]:
        """Return how far answers move weights (D, K) and biases (K,); not if l2 is infinite."""
        columns = np.flatnonzero(np.isfinite(l2))
        moved = np.zeros((self._design.rows.shape[1], len(l2)))
        if len(columns):
            loss, own = replace(self._answers, offset=start).columns(columns), moved[:, columns]
            moved[:, columns] = minimise(self._design, loss, l2[None, columns], own)
        return self._design.linear(moved)


class _Apart:
    """Heads of words that were answered on different photos: a design of its own for each word.

    It holds the word's photos, centred by the mean of all, so its optimum is that of one design for
    all words, in a fraction of the time.
    """

    def __init__(self, x: Numbers, answers: CoinLoss[NDArray[Any]], known: Mask) -> None:
        mean, some = x.mean(0), known | ~known.any(0)  # a word without answers has them all
        self._photos = [
            np.flatnonzero(own)[: max(1, said)]
            for own, said in zip(some.T, known.sum(0).tolist(), strict=True)
        ]
        self._heads = [
            _Shared(x[rows], answers.each(lambda part: part[rows, word, None]), mean)  # noqa: B023
            for word, rows in enumerate(self._photos)
        ]

    def begin(self, starts: Numbers, seen: Mask, count: NDArray[np.int64]) -> None:
        self._starts = starts
        for word, (rows, head) in enumerate(zip(self._photos, self._heads, strict=True)):
            head.begin(starts[:, rows, word, None], seen[:, rows], count)

    def logits(self, strength: float) -> Numbers:
        logits = self._starts.copy()
        for word, (rows, head) in enumerate(zip(self._photos, self._heads, strict=True)):
            logits[:, rows, word] = head.logits(strength)[:, :, 0]
        return logits

    def moved(self, start: Numbers, l2: Numbers) -> tuple[Numbers, Numbers]:
        moved = [
            head.moved(start[rows, word, None], l2[word, None])
            for word, (rows, head) in enumerate(zip(self._photos, self._heads, strict=True))
        ]
        weight, bias = zip(*moved, strict=True)
        return np.concatenate(weight, axis=1), np.concatenate(bias)


def _folds(rows: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).permutation(rows) % min(FOLDS, rows)


def _shares(losses: Numbers) -> Numbers:
    """Return what each strength counts for each label, (P + 1, K).

    The first, the text alone, is taken for one step stronger than the strongest.
    """
    step = POWERS[0] - POWERS[1]
    places = np.array([POWERS[0] + step, *POWERS])[: len(losses)]
    common = places[int(losses.sum(1).argmin())]
    joint = -(((places - common) / APART) ** 2)[:, None] / 2 - losses
    shares = np.exp(joint - joint.max(0))
    return np.asarray(shares / shares.sum(0))
