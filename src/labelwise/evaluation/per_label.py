"""The rows of the labels, and labels grouped by how often they occur in training or by depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.calibration import Known, Probabilities, StageSums, defined
from labelwise.evaluation.evaluation import LabelRow, LevelFigures, ShotGroup
from labelwise.metrics import Averaged, Confusion, by_shot, log_loss_from_logs, reliability
from labelwise.taxonomy import LabelTree

SHOTS = {"few": "few (under 20)", "medium": "medium (20 to 100)", "many": "many (over 100)"}


@dataclass(frozen=True)
class LabelMeasures:
    """What was measured per label, each (K,): how often it is known and present, and the rest."""

    known: NDArray[np.int64]
    present: NDArray[np.int64]
    precision: Averaged
    ap_bounds: NDArray[np.float64]
    stages: Sequence[StageSums]
    counts: Confusion | None
    thresholds: Sequence[float] | None

    def rows(self, names: Sequence[str]) -> tuple[LabelRow, ...]:
        """Return one row per label, in column order."""
        nothing = np.full(len(names), np.nan)
        errors = {stage.stage: stage.per_label.per_label() for stage in self.stages}
        before, after = (
            errors[stage].ece() if stage in errors else nothing for stage in ("before", "after")
        )
        mean_prob, decided = nothing, [nothing] * 3
        if self.stages:
            final = errors[self.stages[-1].stage]
            with np.errstate(invalid="ignore"):
                mean_prob = final.confidence_sums.sum(1) / final.counts.sum(1)
        if self.counts is not None:
            figures = self.counts.precision(), self.counts.recall(), self.counts.f_score()
            decided = [figure.items for figure in figures]
        return tuple(
            LabelRow(
                name=name,
                known=int(self.known[k]),
                present=int(self.present[k]),
                ap=defined(self.precision.items[k]),
                ece_before=defined(before[k]),
                ece_after=defined(after[k]),
                mean_prob=defined(mean_prob[k]),
                threshold=None if self.thresholds is None else self.thresholds[k],
                precision=defined(decided[0][k]),
                recall=defined(decided[1][k]),
                f1=defined(decided[2][k]),
                ap_bound=float(self.ap_bounds[k]),
            )
            for k, name in enumerate(names)
        )

    def shots(self, train_counts: Sequence[int] | None) -> tuple[ShotGroup, ...]:
        """Return the groups few, medium and many, if the counts in training are given."""
        if train_counts is None:
            return ()
        numbers = np.asarray(train_counts)
        ap = by_shot(self.precision.items, numbers)
        nothing = np.full(len(numbers), np.nan)
        recall = by_shot(nothing if self.counts is None else self.counts.recall().items, numbers)
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

    def levels(
        self, tree: LabelTree, known: Known, answers: Probabilities | None, bins: int
    ) -> tuple[LevelFigures, ...]:
        """Return the figures of the labels at each depth of a taxonomy."""
        f1 = None if self.counts is None else self.counts.f_score().items
        levels = []
        for level, columns in tree.levels().items():
            observed = None if known.observed is None else known.observed[:, columns]
            labels = known.labels[:, columns]
            loss = ece = None
            if answers is not None:
                logs = answers.log_p[:, columns], answers.log_q[:, columns]
                loss = defined(log_loss_from_logs(*logs, labels, observed).value)
                pooled = reliability(answers.probs[:, columns], labels, observed, bins=bins)
                ece = defined(pooled.ece())
            levels.append(
                LevelFigures(
                    level=level,
                    labels=len(columns),
                    present=int(known.present[:, columns].sum()),
                    mean_ap=_mean(self.precision.items[columns]),
                    log_loss=loss,
                    ece=ece,
                    mean_f1=None if f1 is None else _mean(f1[columns]),
                )
            )
        return tuple(levels)


def _mean(items: NDArray[np.float64]) -> float | None:
    return defined(Averaged.over(items, "label").value)
