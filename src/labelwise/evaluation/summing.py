"""The sums of a shard: what its rows add to an evaluation (:class:`EvaluationSums`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Rule
from labelwise.errors import DataError
from labelwise.evaluation.calibration import (
    Known,
    Probabilities,
    probabilities,
)
from labelwise.evaluation.headline import row_sums
from labelwise.evaluation.parts import (
    CELLS,
)
from labelwise.evaluation.sums import EmptySums, EvaluationSums, MeanSums, SetSums
from labelwise.links import Link
from labelwise.metrics import (
    CalibrationSums,
    ScoreCounts,
    average_precision,
    brier_sums,
    confusion,
    log_loss_sums,
    max_confidence,
    nothing_here,
    subset_accuracy,
    top_k_sets,
    width_edges,
    zero_label_rows,
)

ALL_CELLS = 1 << 20  # cells of scores, shared by the labels
FEWEST_CELLS = 1 << 10  # for a label


def measure(
    logits: NDArray[Any],
    labels: NDArray[Any],
    observed: NDArray[Any] | None = None,
    *,
    link: Link,
    rule: Rule | NDArray[Any] | None = None,
    bins: int = 10,
    k: int = 4,
) -> EvaluationSums:
    """Return the sums of some rows (n, K): what an evaluation needs of them.

    ``rule`` may be the sets (n, K) themselves. Two sums can be merged if they were measured with
    the same labels, bins and k.
    """
    count, width = logits.shape
    k = min(k, width)
    soft = (labels > 0) & (labels < 1)
    if (soft if observed is None else soft & observed).any():
        raise DataError("sums over shards need labels of 0 and 1, and some are soft; use evaluate")
    known = Known(labels == 1 if observed is None else (labels == 1) & observed, observed)
    present, mask = known.present, observed
    answers = probabilities("before", logits, link)
    sets = rule(answers.probs) if isinstance(rule, Rule) else rule
    edges = width_edges(bins)
    per_label, surest = CalibrationSums.zeros(width, edges), CalibrationSums.zeros(width, edges)
    per_label.update(answers.probs, present, mask)
    surest.update(answers.probs, present, mask, where=top_k_sets(answers.probs, k))
    complete = known.rows_complete()
    loss, square, weight = row_sums(answers, known)
    seen = np.full(width, count) if mask is None else mask.sum(0)
    return EvaluationSums(
        rows=count,
        known=seen,
        present=present.sum(0),
        true_sizes=np.bincount(present.sum(1)[complete], minlength=width + 1),
        ranks=_ranks(logits, known, max(ALL_CELLS // width, FEWEST_CELLS)),
        by_image=MeanSums.of(average_precision(logits, present, mask, by="image").items),
        per_label=per_label,
        surest=surest,
        brier=brier_sums(answers.probs, present, mask, bins=bins),
        log_loss=log_loss_sums(answers.log_p, answers.log_q, present, mask, bins=bins),
        row_loss=MeanSums.of(loss, weight),
        row_square=MeanSums.of(square, weight),
        empty=_empty(answers, known),
        sets=None if sets is None else _sets(sets, known),
    )


def _ranks(logits: NDArray[Any], known: Known, limit: int) -> tuple[ScoreCounts, ...]:
    scores, present = logits.T.copy(), known.present.T.copy()
    if known.observed is None:
        return tuple(ScoreCounts.of(*line, limit) for line in zip(scores, present, strict=True))
    masks = known.observed.T.copy()
    lines = zip(scores, present, masks, strict=True)
    return tuple(ScoreCounts.of(score[mask], hit[mask], limit) for score, hit, mask in lines)


def _empty(answers: Probabilities, known: Known) -> EmptySums:
    outside = zero_label_rows(known.present, known.observed)
    inside: NDArray[np.bool_] = np.any(known.present, axis=1)
    peak, loud = max_confidence(answers.probs), -nothing_here(answers.log_q)
    either, edges = inside | outside, width_edges(CELLS)
    groups = inside, outside
    masks = [None if known.observed is None else known.observed[rows] for rows in groups]
    losses, squares, seen = [], [], []
    for rows, mask in zip(groups, masks, strict=True):
        present = known.present[rows]
        losses.append(log_loss_sums(answers.log_p[rows], answers.log_q[rows], present, mask))
        squares.append(brier_sums(answers.probs[rows], present, mask))
        width = present.shape[1]
        seen.append(np.full(width, len(present)) if mask is None else mask.sum(0))
    return EmptySums(
        inside=int(inside.sum()),
        outside=int(outside.sum()),
        peak=ScoreCounts.of(peak[either], inside[either], ALL_CELLS >> 4),
        loud=ScoreCounts.of(loud[either], inside[either], ALL_CELLS >> 4),
        peak_outside=float(peak[outside].sum()),
        cells_inside=np.histogram(peak[inside], edges)[0],
        cells_outside=np.histogram(peak[outside], edges)[0],
        losses=(losses[0], losses[1], squares[0], squares[1]),
        known=(seen[0], seen[1]),
        present_inside=known.present[groups[0]].sum(0),
    )


def _sets(sets: NDArray[Any], known: Known) -> SetSums:
    present, observed = known.present, known.observed
    by_label = confusion(sets, present, observed)
    by_image = confusion(sets, present, observed, by="image")
    alarm = np.where(zero_label_rows(present, observed), sets.any(1), np.nan)
    return SetSums(
        counts=(by_label.tp, by_label.fp, by_label.fn, by_label.tn),
        sample_f1=MeanSums.of(by_image.f_score().items),
        exact=MeanSums.of(subset_accuracy(sets, present, observed).items),
        sizes=np.bincount(sets.sum(1), minlength=sets.shape[1] + 1),
        alarms=MeanSums.of(alarm),
    )
