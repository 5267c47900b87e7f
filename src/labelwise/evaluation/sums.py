"""EvaluationSums: what an evaluation is made of, as sums that merge over any number of shards.

    sums = measure(logits, labels, observed, link=link)         a shard, wherever it is
    sums.merge(other).evaluation(names, ...)                    the figures of all rows

Its size follows from the number of labels alone. Every figure is that of
:func:`labelwise.evaluation.evaluate` on all rows together: sums, counts and means exactly (to
rounding), average precisions and AUROC within the bound they state (:class:`ScoreCounts`). What
needs all images at once is left out: queries, and the intervals of mAP over labels, F1 and ECE.
The other intervals come from sums of squares, with x_m and w_m what image m adds to a mean:

    U_m = (x_m - mean w_m) / W,   sum_m U_m^2 = (sum x^2 - 2 mean sum xw + mean^2 sum w^2) / W^2
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Rule
from labelwise.evaluation.calibration import (
    calibration_of,
    defined,
    worst_labels,
)
from labelwise.evaluation.evaluation import (
    LOG_LOSS,
    Calibration,
    DataFacts,
    Evaluation,
    Figure,
    RankingFigures,
    StageScores,
    ZeroLabel,
)
from labelwise.evaluation.headline import SMOOTH, alarm_figure
from labelwise.evaluation.jackknife import interval_of
from labelwise.evaluation.parts import (
    SHARES,
    LabelMeasures,
    label_rows_of,
    label_thresholds,
    sets_of,
    zero_label_of,
)
from labelwise.metrics import (
    Averaged,
    Bounded,
    CalibrationSums,
    Confusion,
    ProperSums,
    ScoreCounts,
)

NO_INTERVAL = "No interval: it would need all images at once."

Counts = NDArray[np.int64]
Sums = TypeVar("Sums", bound="EvaluationSums | EmptySums | SetSums | MeanSums")


@dataclass(frozen=True)
class MeanSums:
    """Sums of what each image adds to a mean of x over w, and of their products."""

    x: float
    w: float
    xx: float
    xw: float
    ww: float

    @staticmethod
    def of(x: NDArray[Any], w: NDArray[Any] | None = None) -> "MeanSums":
        """Return the sums of (n,) values; those that are NaN are left out, as if of weight 0."""
        weight = (~np.isnan(x)).astype(np.float64) if w is None else w.astype(np.float64)
        values = np.nan_to_num(x.astype(np.float64), posinf=np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            products = values @ values, values @ weight, weight @ weight
        return MeanSums(float(values.sum()), float(weight.sum()), *map(float, products))

    @property
    def mean(self) -> float:
        """The mean, NaN of nothing."""
        return self.x / self.w if self.w else np.nan

    def interval(
        self, value: float | None, rows: int, highest: float = 1.0
    ) -> tuple[float | None, float | None]:
        """Return the 95 % interval around the mean as it is shown."""
        if value is None or rows < 2:
            return None, None
        mean = self.mean
        spread = self.xx - 2 * mean * self.xw + mean**2 * self.ww
        return interval_of(value, max(spread, 0.0) / self.w**2, highest)


@dataclass(frozen=True)
class SetSums:
    """What the sets of a rule add up to."""

    counts: tuple[Counts, Counts, Counts, Counts]  # true and false, positive and negative, (K,)
    sample_f1: MeanSums
    exact: MeanSums
    sizes: Counts  # (K + 1,): rows by how many labels they are given
    alarms: MeanSums


@dataclass(frozen=True)
class EmptySums:
    """Images with labels (IN) and reviewed ones without (OUT): how they are told apart."""

    inside: int
    outside: int
    peak: ScoreCounts
    loud: ScoreCounts  # minus the log of "nothing here"
    peak_outside: float
    cells_inside: Counts
    cells_outside: Counts
    losses: tuple[ProperSums, ProperSums, ProperSums, ProperSums]  # log loss IN, OUT; Brier IN, OUT
    known: tuple[Counts, Counts]  # (K,) IN and OUT
    present_inside: Counts


@dataclass(frozen=True)
class EvaluationSums:
    """The sums of some rows under one link and one rule; see :func:`measure`."""

    rows: int
    known: Counts
    present: Counts
    true_sizes: Counts  # (K + 1,): rows whose labels are all known, by how many they have
    ranks: tuple[ScoreCounts, ...]
    by_image: MeanSums
    per_label: CalibrationSums
    surest: CalibrationSums
    brier: ProperSums
    log_loss: ProperSums
    row_loss: MeanSums
    row_square: MeanSums
    empty: EmptySums
    sets: SetSums | None

    def merge(self, other: "EvaluationSums") -> "EvaluationSums":
        """Return the sums over the rows of both."""
        return _fields_joined(self, other)

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
        k = min(k, len(names))
        by_label = [counts.average_precision() for counts in self.ranks]
        ranking = self._ranking(by_label, names)
        errors = self.per_label.per_label()
        pooled, top = self.per_label.pooled(), self.surest.pooled()
        part = calibration_of(
            "before",
            names,
            errors,
            worst_labels(errors),
            pooled,
            top,
            self.brier.score(),
            self.log_loss.score(),
            k=k,
        )
        headline = [*self._ranking_figures(ranking), *self._calibration_figures(part)]
        counts = decided = None
        if self.sets is not None:
            counts = Confusion(*self.sets.counts, "label")
            words = rule_words or ("sets as given" if rule is None else str(rule))
            decided = sets_of(
                words,
                counts,
                sample_f1=self.sets.sample_f1.mean,
                subset_accuracy=self.sets.exact.mean,
                sizes=_trimmed(self.sets.sizes),
                true_sizes=_trimmed(self.true_sizes),
                mean_size=_mean_size(self.sets.sizes),
                mean_true_size=_mean_size(self.true_sizes),
            )
            how = f"Macro F1 of the rule: {decided.rule}. {NO_INTERVAL}"
            headline.append(Figure("F1, mean over labels", decided.macro_f1, how))
        zero = self._zero_label()
        if self.sets is not None and zero.false_alarms is not None:
            headline.append(alarm_figure(zero.false_alarms, zero.rows, self.sets.alarms.w))
        figures = LabelMeasures(
            precision=Averaged.over(np.array([ap.value for ap in by_label]), "label"),
            before=errors,
            after=None,
            counts=counts,
            thresholds=label_thresholds(rule if self.sets is not None else None, len(names)),
            ap_bounds=np.array([ap.bound for ap in by_label]),
        )
        return Evaluation(
            data=self._facts(split),
            headline=tuple(headline),
            ranking=ranking,
            rows=label_rows_of(names, self.known, self.present, figures),
            link=link,
            before=part,
            sets=decided,
            zero_label=zero,
            notes=(
                *notes,
                "Queries, which need all images at once, are not evaluated.",
                *(() if decided is None else decided.size_note()),
            ),
        )

    def _facts(self, split: str | None) -> DataFacts:
        entries, known = self.rows * len(self.known), int(self.known.sum())
        return DataFacts(
            rows=self.rows,
            labels=len(self.known),
            known=known,
            unknown=entries - known,
            present=int(self.present.sum()),
            zero_label_rows=self.empty.outside,
            split=split,
            scores="logits",
        )

    def _ranking(self, by_label: Sequence[Bounded], names: tuple[str, ...]) -> RankingFigures:
        values = Averaged.over(np.array([ap.value for ap in by_label]), "label")
        bounds = [ap.bound for ap in by_label if not np.isnan(ap.value)]
        undefined = tuple(values.undefined_names(names))
        bound = float(np.mean(bounds)) if bounds else 0.0
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

    def _ranking_figures(self, ranking: RankingFigures) -> list[Figure]:
        how = (
            "mAP@sample: average precision over the labels of each image; "
            f"{ranking.undefined_rows:,} images without a known positive left out. {SMOOTH}"
        )
        low, high = self.by_image.interval(ranking.map_sample, self.rows)
        by_label = f"mAP@class: {ranking.how} {NO_INTERVAL}"
        return [
            Figure("mAP over labels", ranking.map_class, by_label),
            Figure("mAP over images", ranking.map_sample, how, low, high),
        ]

    def _calibration_figures(self, part: Calibration) -> list[Figure]:
        bins = len(part.pooled.counts)
        figures = []
        for name, curve in (("ECE, all entries", part.pooled), (f"ECE, top {part.k}", part.top_k)):
            how = f"Expected calibration error, {bins} equal-width bins, {curve.entries}."
            figures.append(Figure(name, curve.ece, f"{how} {NO_INTERVAL}", better="lower"))
        for name, value, sums, how in (
            (
                LOG_LOSS,
                part.log_loss,
                self.row_loss,
                "Mean over known entries of −log of the truth's probability, in nats.",
            ),
            (
                "Brier score",
                part.brier,
                self.row_square,
                "Mean over known entries of the squared error of the probability.",
            ),
        ):
            low, high = sums.interval(value, self.rows, np.inf)
            how = f"{how} {SMOOTH}"
            figures.append(Figure(name, value, how, low, high, "lower", percent=False))
        return figures

    def _zero_label(self) -> ZeroLabel:
        empty = self.empty
        both = empty.inside > 0 and empty.outside > 0
        loud, peak = empty.loud.auroc(), empty.peak.auroc()
        fpr = empty.peak.false_positive_rate_at()
        widest = max(loud.bound, peak.bound, fpr.bound)
        cells = f" Scores were counted in cells: AUROC and FPR are within ± {widest:.2g}."
        return zero_label_of(
            rows=empty.outside,
            left=self.rows - empty.outside - empty.inside,
            share=empty.outside / self.rows,
            false_alarms=None if self.sets is None else defined(self.sets.alarms.mean),
            auroc_nothing=defined(loud.value) if both else None,
            auroc_max=defined(peak.value) if both else None,
            fpr95=defined(fpr.value) if both else None,
            mmc=empty.peak_outside / empty.outside if empty.outside else None,
            inside=empty.cells_inside,
            outside=empty.cells_outside,
            by_stage=(self._stage(), self._shares()) if both else (),
            how=cells if both and widest else "",
        )

    def _stage(self) -> StageScores:
        loss_in, loss_out, brier_in, brier_out = (
            defined(sums.score().value) for sums in self.empty.losses
        )
        mmc = defined(self.empty.peak_outside / self.empty.outside)
        return StageScores("before", mmc, loss_in, loss_out, brier_in, brier_out)

    def _shares(self) -> StageScores:
        """Return the scores of answering every image with each label's share."""
        share = (self.present / self.known.clip(1)).astype(np.float32).astype(np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(share), np.log1p(-share)
        squares = (share - 1) ** 2, share**2
        inside, outside = self.empty.known
        groups = (inside, self.empty.present_inside), (outside, np.zeros_like(outside))

        def mean(costs: tuple[NDArray[np.float64], ...], known: Counts, present: Counts) -> float:
            with np.errstate(invalid="ignore"):  # 0 times infinity is left out
                parts = costs[0] * present, costs[1] * (known - present)
            total = parts[0].sum(where=present > 0) + parts[1].sum(where=known > present)
            return float(total / known.sum())

        losses = [defined(-mean(logs, *group)) for group in groups]
        briers = [defined(mean(squares, *group)) for group in groups]
        return StageScores(SHARES, float(share.max()), *losses, *briers)


def _joined(one: Any, other: Any) -> Any:
    """Return two sums as one, whatever they are made of."""
    if one is None:
        return None
    if isinstance(one, tuple):
        return tuple(_joined(*pair) for pair in zip(one, other, strict=True))
    if hasattr(one, "merge"):
        return one.merge(other)
    return _fields_joined(one, other) if is_dataclass(one) else one + other


def _fields_joined(one: Sums, other: Sums) -> Sums:
    names = [field.name for field in fields(one)]
    return type(one)(*(_joined(getattr(one, name), getattr(other, name)) for name in names))


def _trimmed(histogram: Counts) -> tuple[int, ...]:
    last = np.flatnonzero(histogram)
    return tuple(histogram[: int(last[-1]) + 1 if len(last) else 1].tolist())


def _mean_size(histogram: Counts) -> float:
    total = int(histogram.sum())
    return float(histogram @ np.arange(len(histogram)) / total) if total else np.nan
