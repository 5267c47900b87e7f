"""Images known to carry none of the labels (OUT) against those with some (IN)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.calibration import Known, Probabilities, defined
from labelwise.evaluation.evaluation import StageScores, ZeroLabel
from labelwise.metrics import (
    Bounded,
    ProperSums,
    ScoreCounts,
    brier_sums,
    false_positive_rate_at,
    log_loss_sums,
    max_confidence,
    nothing_here,
    separation_auroc,
    width_edges,
    zero_label_rows,
)

CELLS = 20
SHARES = "shares of the labels"

Counts = NDArray[np.int64]
Separation = tuple[Bounded, Bounded, Bounded]  # AUROC of "nothing here" and of max p, FPR at 95 %


@dataclass(frozen=True)
class SideSums:
    """What one stage adds up to: log loss IN and OUT, Brier IN and OUT, and max p OUT."""

    stage: str
    losses: tuple[ProperSums, ProperSums, ProperSums, ProperSums]
    peak_outside: float

    @staticmethod
    def of(answers: Probabilities, known: Known) -> "SideSums":
        """Return the sums of some rows."""
        outside = zero_label_rows(known.present, known.observed)
        losses, squares = [], []
        for rows in (known.some(), outside):
            side, logs = known.take(rows), (answers.log_p[rows], answers.log_q[rows])
            losses.append(log_loss_sums(*logs, side.labels, side.observed))
            squares.append(brier_sums(answers.probs[rows], side.labels, side.observed))
        peak = float(max_confidence(answers.probs)[outside].sum())
        return SideSums(answers.stage, (*losses, *squares), peak)  # type: ignore[arg-type]

    def scores(self, outside: int) -> StageScores:
        """Return its proper scores and MMC."""
        losses = (defined(sums.score().value) for sums in self.losses)
        return StageScores(self.stage, defined(self.peak_outside / outside), *losses)


@dataclass(frozen=True)
class EmptySums:
    """What all rows add up to; ``peak`` and ``loud`` are None where all images are at hand."""

    inside: int
    outside: int
    cells_inside: Counts
    cells_outside: Counts
    known: tuple[Counts, Counts]  # (K,) IN and OUT
    present_inside: Counts
    stages: tuple[SideSums, ...]
    peak: ScoreCounts | None
    loud: ScoreCounts | None  # minus the log of "nothing here"

    @staticmethod
    def of(stages: Sequence[Probabilities], known: Known, limit: int | None) -> "EmptySums":
        """Return the sums of some rows, their scores in at most ``limit`` cells if one is given."""
        outside = zero_label_rows(known.present, known.observed)
        inside = known.some()
        peak, edges = max_confidence(stages[-1].probs), width_edges(CELLS)
        counted: list[ScoreCounts | None] = [None, None]
        if limit is not None:
            either = inside | outside
            scores = peak, -nothing_here(stages[-1].log_q)
            counted = [ScoreCounts.of(side[either], inside[either], limit) for side in scores]
        return EmptySums(
            inside=int(inside.sum()),
            outside=int(outside.sum()),
            cells_inside=np.histogram(peak[inside], edges)[0],
            cells_outside=np.histogram(peak[outside], edges)[0],
            known=(known.take(inside).counts(), known.take(outside).counts()),
            present_inside=known.present[inside].sum(0),
            stages=tuple(SideSums.of(stage, known) for stage in stages),
            peak=counted[0],
            loud=counted[1],
        )

    def figures(
        self,
        rows: int,
        false_alarms: float | None,
        separation: Separation | None,
        shares: StageScores | None,
    ) -> ZeroLabel:
        """Return the part of an evaluation; ``shares`` are the scores of the labels' shares."""
        both, outside = self.inside > 0 and self.outside > 0, self.outside
        by_stage = [stage.scores(outside) for stage in self.stages] if both else []
        values: list[float | None] = [None, None, None]
        how = ""
        if both and separation is not None and shares is not None:
            by_stage.append(shares)
            values = [defined(figure.value) for figure in separation]
            if widest := max(figure.bound for figure in separation):
                how = f" Scores were counted in cells: AUROC and FPR are within ± {widest:.2g}."
        return ZeroLabel(
            rows=outside,
            share=outside / rows,
            false_alarms=false_alarms,
            auroc_nothing=values[0],
            auroc_max=values[1],
            fpr95=values[2],
            mmc=defined(self.stages[-1].peak_outside / outside) if outside else None,
            edges=tuple(width_edges(CELLS).tolist()),
            inside=tuple(self.cells_inside.tolist()),
            outside=tuple(self.cells_outside.tolist()),
            how=(
                "An image counts as “nothing here” only if every label is known and absent; "
                f"{rows - outside - self.inside:,} images with unknown labels and none known "
                "present are in neither group. False alarm: the rule gives such an image a label. "
                "AUROC: the chance that an image with labels scores above one without, ties one "
                "half; by the product of 1 − p over all labels, and by the largest p. FPR at 95%: "
                "images without labels at or above the threshold that keeps 95% of those with. "
                "MMC: mean of the largest p. Shares of the labels: every image is answered with "
                f"each label's share among the known entries.{how}"
            ),
            by_stage=tuple(by_stage),
        )

    def counted_separation(self) -> Separation | None:
        """Return how well both groups are told apart, from counts of scores."""
        if self.peak is None or self.loud is None:
            return None
        return self.loud.auroc(), self.peak.auroc(), self.peak.false_positive_rate_at()

    def counted_shares(self, known: Counts, present: Counts) -> StageScores | None:
        """Return the scores of answering every image with each label's share, from counts."""
        if not self.inside or not self.outside:
            return None
        share = (present / known.clip(1)).astype(np.float32).astype(np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(share), np.log1p(-share)
        squares = (share - 1) ** 2, share**2
        inside, outside = self.known
        groups = (inside, self.present_inside), (outside, np.zeros_like(outside))

        def mean(costs: tuple[NDArray[np.float64], ...], seen: Counts, there: Counts) -> float:
            with np.errstate(invalid="ignore"):  # 0 times infinity is left out
                parts = costs[0] * there, costs[1] * (seen - there)
            total = parts[0].sum(where=there > 0) + parts[1].sum(where=seen > there)
            return float(total / seen.sum())

        losses = [defined(-mean(logs, *group)) for group in groups]
        briers = [defined(mean(squares, *group)) for group in groups]
        return StageScores(SHARES, float(share.max()), *losses, *briers)


def exact_separation(answers: Probabilities, known: Known) -> Separation | None:
    """Return how well both groups are told apart, from the scores of all images."""
    outside = zero_label_rows(known.present, known.observed)
    inside = known.some()
    if not (outside.any() and inside.any()):
        return None
    peak, loud = max_confidence(answers.probs), -nothing_here(answers.log_q)
    figures = (
        separation_auroc(loud[inside], loud[outside]),
        separation_auroc(peak[inside], peak[outside]),
        false_positive_rate_at(peak[inside], peak[outside]),
    )
    auroc_nothing, auroc_max, fpr = (Bounded(value, 0.0) for value in figures)
    return auroc_nothing, auroc_max, fpr


def exact_shares(known: Known) -> StageScores:
    """Return the scores of a model that knows how frequent the labels are, and nothing else."""
    count: Any = len(known.present) if known.observed is None else known.counts().clip(1)
    each = (known.labels.sum(0) / count).astype(np.float32)
    share = np.broadcast_to(each.astype(np.float64), known.present.shape)
    with np.errstate(divide="ignore"):
        logs = np.log(share), np.log1p(-share)
    sums = SideSums.of(Probabilities(SHARES, *logs, share.astype(np.float32)), known)
    return sums.scores(int(zero_label_rows(known.present, known.observed).sum()))
