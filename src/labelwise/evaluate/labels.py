"""The rows of the labels, and the labels grouped by how often they occur in training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labelwise.evaluate.evaluation import LabelRow, ShotGroup
from labelwise.evaluate.probabilities import Known, defined
from labelwise.metrics import Averaged, Confusion, Reliability, by_shot

__all__ = ["LabelFigures", "label_rows", "shot_rows"]

SHOTS = {"few": "few (under 20)", "medium": "medium (20 to 100)", "many": "many (over 100)"}


@dataclass(frozen=True)
class LabelFigures:
    """What was measured per label; a stage that does not apply is ``None``."""

    precision: Averaged
    before: Reliability | None
    after: Reliability | None
    counts: Confusion | None
    thresholds: Sequence[float | None]


def label_rows(names: Sequence[str], known: Known, figures: LabelFigures) -> tuple[LabelRow, ...]:
    """Return one row a label, in column order."""
    rows = len(known.present)
    seen = np.full(len(names), rows) if known.observed is None else _total(known.observed)
    present = _total(known.present)
    final = figures.after or figures.before
    nothing = np.full(len(names), np.nan)
    ece_before = nothing if figures.before is None else figures.before.ece()
    ece_after = nothing if figures.after is None else figures.after.ece()
    said = nothing
    if final is not None:
        with np.errstate(invalid="ignore"):
            said = final.confidence_sums.sum(1) / final.counts.sum(1)
    counts = figures.counts
    columns = [nothing] * 3
    if counts is not None:
        columns = [counts.precision().items, counts.recall().items, counts.f_score().items]
    return tuple(
        LabelRow(
            name=name,
            known=int(seen[k]),
            present=int(present[k]),
            ap=defined(figures.precision.items[k]),
            ece_before=defined(ece_before[k]),
            ece_after=defined(ece_after[k]),
            mean_prob=defined(said[k]),
            threshold=figures.thresholds[k],
            precision=defined(columns[0][k]),
            recall=defined(columns[1][k]),
            f1=defined(columns[2][k]),
        )
        for k, name in enumerate(names)
    )


def shot_rows(
    train_counts: Sequence[int] | None, precision: Averaged, counts: Confusion | None
) -> tuple[ShotGroup, ...]:
    """Return the groups few, medium and many, if the counts in training are given."""
    if train_counts is None:
        return ()
    numbers = np.asarray(train_counts)
    ap = by_shot(precision.items, numbers)
    nothing = np.full(len(numbers), np.nan)
    recall = by_shot(nothing if counts is None else counts.recall().items, numbers)
    return tuple(
        ShotGroup(
            words,
            len(ap[shot].items),
            ap[shot].num_defined,
            defined(ap[shot].value),
            defined(recall[shot].value),
        )
        for shot, words in SHOTS.items()
    )


def _total(mask: Tensor) -> NDArray[np.int64]:
    total: NDArray[np.int64] = mask.sum(0).numpy()
    return total
