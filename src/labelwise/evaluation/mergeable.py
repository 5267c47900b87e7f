"""EvaluationSums: what an evaluation is made of, as sums that merge over any number of shards.

    sums = measure(logits, labels, observed, link=link)         a shard, wherever it is
    sums.merge(other).evaluation(names, ...)                    the figures of all rows

Its size follows from the number of labels alone. :func:`labelwise.evaluation.evaluate` takes the
same road: a table in memory is one shard, whose rankings and intervals come from its rows. Over
shards sums, counts and means are those of all rows (to rounding), average precisions and AUROC
within the bound they state (:class:`ScoreCounts`). What needs all images at once is left out:
queries, and the intervals of mAP over labels, F1 and ECE. The others come from sums of squares,
with x_m and w_m what image m adds to a mean:

    U_m = (x_m - mean w_m) / W,   sum_m U_m^2 = (sum x^2 - 2 mean sum xw + mean^2 sum w^2) / W^2
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Rule
from labelwise.errors import DataError
from labelwise.evaluation.calibration import (
    Known,
    Probabilities,
    StageSums,
    defined,
    probabilities,
)
from labelwise.evaluation.evaluation import (
    Calibration,
    DataFacts,
    Evaluation,
    RankingFigures,
    StageScores,
)
from labelwise.evaluation.intervals import (
    OF_SHARE,
    SMOOTH,
    Ends,
    Interval,
    headline,
    interval_of,
    row_sums,
)
from labelwise.evaluation.per_label import LabelMeasures
from labelwise.evaluation.sets import Counts, MeanSums, SetSums
from labelwise.evaluation.zero_label import EmptySums, Separation
from labelwise.links import Link
from labelwise.metrics import Averaged, ScoreCounts, average_precision, zero_label_rows
from labelwise.numeric.arrays import to_numpy
from labelwise.numeric.bounds import wilson

NO_INTERVAL = "No interval: it would need all images at once."
ALL_CELLS = 1 << 20  # cells of scores, shared by the labels
FEWEST_CELLS = 1 << 10  # for a label


@dataclass(frozen=True, eq=False)
class Ranked:
    """Average precision of every label with its bound, and what needs the scores of all images."""

    precision: Averaged
    bounds: NDArray[np.float64]
    separation: Separation | None
    shares: StageScores | None


@dataclass(frozen=True)
class EvaluationSums:
    """The sums of some rows under one link and one rule; see :func:`measure`."""

    rows: int
    known: Counts
    present: Counts
    zero_rows: int
    by_image: MeanSums
    stages: tuple[StageSums, ...]
    empty: EmptySums | None
    sets: SetSums | None
    row_loss: MeanSums | None = None
    row_square: MeanSums | None = None
    ranks: tuple[ScoreCounts, ...] = ()

    @staticmethod
    def of(
        known: Known,
        by_image: Averaged,
        stages: Sequence[Probabilities],
        sets: NDArray[Any] | None,
        *,
        bins: int,
        k: int,
        limit: int | None = None,
    ) -> "EvaluationSums":
        """Return the sums of some rows; ``limit`` is of the cells that scores are counted in."""
        final = stages[-1] if stages else None
        return EvaluationSums(
            rows=len(known.present),
            known=known.counts(),
            present=known.present.sum(0),
            zero_rows=int(zero_label_rows(known.present, known.observed).sum()),
            by_image=MeanSums.of(by_image.items),
            stages=tuple(StageSums.of(stage, known, bins, k) for stage in stages),
            empty=EmptySums.of(stages, known, limit) if stages else None,
            sets=None if sets is None else SetSums.of(sets, known, final, bins),
        )

    def merge(self, other: "EvaluationSums") -> "EvaluationSums":
        """Return the sums over the rows of both."""
        merged: EvaluationSums = _joined(self, other)
        return merged

    def evaluation(
        self,
        names: tuple[str, ...],
        *,
        k: int = 4,
        link: str | None = None,
        rule: Rule | None = None,
        rule_words: str | None = None,
        split: str | None = None,
        notes: Sequence[str] = (),
    ) -> Evaluation:
        """Return the figures of all rows; k is that of :func:`measure`."""
        precision = [counts.average_precision() for counts in self.ranks]
        ranked = Ranked(
            Averaged.over(np.array([ap.value for ap in precision]), "label"),
            np.array([ap.bound for ap in precision]),
            None if self.empty is None else self.empty.counted_separation(),
            None if self.empty is None else self.empty.counted_shares(self.known, self.present),
        )
        words = rule_words or ("sets as given" if rule is None else str(rule))
        done = self.assembled(names, ranked, self._interval, k=k, rule=rule, rule_words=words)
        unasked = "Queries, which need all images at once, are not evaluated."
        size_note = () if done.sets is None else done.sets.size_note()
        facts = replace(done.data, split=split)
        return replace(done, data=facts, link=link, notes=(*notes, unasked, *size_note))

    def measures(self, ranked: Ranked, thresholds: Sequence[float] | None = None) -> LabelMeasures:
        """Return what was measured per label."""
        counts = None if self.sets is None else self.sets.by_label
        return LabelMeasures(
            self.known,
            self.present,
            ranked.precision,
            ranked.bounds,
            self.stages,
            counts,
            thresholds,
        )

    def assembled(
        self,
        names: tuple[str, ...],
        ranked: Ranked,
        interval: Interval,
        *,
        k: int,
        rule: Rule | None,
        rule_words: str,
    ) -> Evaluation:
        """Return the figures that the sums give, with rankings and intervals from elsewhere."""
        k = min(k, len(names))
        ranking = self._ranking(ranked, names)
        columns = self.stages[-1].worst_labels() if self.stages else []
        parts: dict[str, Calibration] = {
            stage.stage: stage.calibration(names, columns, k) for stage in self.stages
        }
        final = parts[self.stages[-1].stage] if self.stages else None
        decided = None if self.sets is None else self.sets.figures(rule_words)
        zero = thresholds = None
        if self.empty is not None:
            alarms = None if self.sets is None else defined(self.sets.alarms.mean)
            zero = self.empty.figures(self.rows, alarms, ranked.separation, ranked.shares)
        if rule is not None and self.sets is not None:
            thresholds = rule.thresholds(len(names))
        entries, known = self.rows * len(self.known), int(self.known.sum())
        return Evaluation(
            data=DataFacts(
                rows=self.rows,
                labels=len(self.known),
                known=known,
                unknown=entries - known,
                present=int(self.present.sum()),
                zero_label_rows=self.zero_rows,
                split=None,
                scores="logits",
            ),
            headline=headline(interval, ranking, final, decided, zero),
            ranking=ranking,
            rows=self.measures(ranked, thresholds).rows(names),
            before=parts.get("before"),
            after=parts.get("after"),
            sets=decided,
            zero_label=zero,
        )

    def _interval(self, what: str, value: float | None, *_: Any) -> tuple[Ends, str]:
        """Return the interval of a headline figure from sums over images alone."""
        if what in ("mean_ap", "mean_f1", "ece"):
            return (None, None), NO_INTERVAL
        if what == "alarms":
            return wilson(value or 0.0, 0.0 if self.sets is None else self.sets.alarms.w), OF_SHARE
        known = {"image_ap": self.by_image, "log_loss": self.row_loss, "brier": self.row_square}
        sums = known[what]
        if value is None or sums is None or self.rows < 2:
            return (None, None), SMOOTH
        return interval_of(value, sums.variance(), 1.0 if what == "image_ap" else np.inf), SMOOTH

    def _ranking(self, ranked: Ranked, names: tuple[str, ...]) -> RankingFigures:
        values = ranked.precision
        bounds = ranked.bounds[~np.isnan(values.items)]
        undefined = tuple(values.undefined_names(names))
        bound = float(np.mean(bounds)) if len(bounds) else 0.0
        how = (
            "average precision of the raw scores, equal scores as one threshold, known entries "
            f"only; mean over {values.num_defined:,} of {len(names):,} labels, "
            f"{len(undefined):,} without a known positive left out."
        )
        if bound:
            how += f" Scores were counted in cells: the exact mean is within ± {bound:.2g}."
        return RankingFigures(
            map_class=defined(values.value),
            map_sample=defined(self.by_image.mean),
            undefined_labels=undefined,
            undefined_rows=self.rows - int(self.by_image.w),
            how=how,
            map_class_bound=bound,
        )


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
    width = logits.shape[1]
    soft = (labels > 0) & (labels < 1)
    if (soft if observed is None else soft & observed).any():
        raise DataError("sums over shards need labels of 0 and 1, and some are soft; use evaluate")
    known = Known(labels == 1 if observed is None else (labels == 1) & observed, observed)
    answers = probabilities("before", logits, link)
    sets = rule(answers.probs) if isinstance(rule, Rule) else rule
    loss, square, weight = row_sums(answers, known)
    sums = EvaluationSums.of(
        known,
        average_precision(logits, known.present, observed, by="image"),
        [answers],
        None if sets is None else to_numpy(sets),
        bins=bins,
        k=min(k, width),
        limit=ALL_CELLS >> 4,
    )
    return replace(
        sums,
        row_loss=MeanSums.of(loss, weight),
        row_square=MeanSums.of(square, weight),
        ranks=_ranks(logits, known, max(ALL_CELLS // width, FEWEST_CELLS)),
    )


def _ranks(logits: NDArray[Any], known: Known, limit: int) -> tuple[ScoreCounts, ...]:
    scores, present = logits.T.copy(), known.present.T.copy()
    if known.observed is None:
        return tuple(ScoreCounts.of(*line, limit) for line in zip(scores, present, strict=True))
    masks = known.observed.T.copy()
    lines = zip(scores, present, masks, strict=True)
    return tuple(ScoreCounts.of(score[mask], hit[mask], limit) for score, hit, mask in lines)


def _joined(one: Any, other: Any) -> Any:
    """Return two sums as one, whatever they are made of."""
    if one is None or isinstance(one, str):
        return one
    if isinstance(one, tuple):
        return tuple(_joined(*pair) for pair in zip(one, other, strict=True))
    if hasattr(one, "merge") and not isinstance(one, EvaluationSums):
        return one.merge(other)
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one)]
        return type(one)(*(_joined(getattr(one, name), getattr(other, name)) for name in names))
    return one + other
