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
from dataclasses import dataclass, is_dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Floats, Mask, Numbers, Values, as_mask, to_numpy
from labelwise.base.bounds import wilson
from labelwise.decide import Rule
from labelwise.errors import DataError
from labelwise.evaluation.calibration import (
    Known,
    Probabilities,
    StageSums,
    curve_of,
    defined,
    probabilities,
)
from labelwise.evaluation.evaluation import (
    DataFacts,
    Evaluation,
    LabelRow,
    RankingFigures,
    Sets,
    StageScores,
    ZeroLabel,
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
from labelwise.links import Link
from labelwise.metrics import (
    Averaged,
    CalibrationSums,
    Confusion,
    ProperSums,
    ScoreCounts,
    average_precision,
    brier_sums,
    confusion,
    log_loss_sums,
    max_confidence,
    nothing_here,
    width_edges,
    zero_label_rows,
)
from labelwise.metrics.calibration import set_sums

Counts = NDArray[np.int64]
NO_INTERVAL = "No interval: it would need all images at once."
ALL_CELLS = 1 << 20  # cells of scores, shared by the labels
FEWEST_CELLS = 1 << 10  # for a label


@dataclass(frozen=True)
class MeanSums:
    """Sums of what each image adds to a mean of x over w, and of their products."""

    x: float
    w: float
    xx: float
    xw: float
    ww: float

    @staticmethod
    def of(x: Values, w: Values | None = None) -> "MeanSums":
        """Return the sums of (n,) values; those that are NaN are left out, as if of weight 0."""
        known = ~np.isnan(x)
        weight = known.astype(np.float64) if w is None else w.astype(np.float64)
        values = np.nan_to_num(x.astype(np.float64), posinf=np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            products = values @ values, values @ weight, weight @ weight
        return MeanSums(float(values[known].sum()), float(weight.sum()), *map(float, products))

    @property
    def mean(self) -> float:
        return self.x / self.w if self.w else np.nan

    def variance(self) -> float:
        """Return the sum of U^2 (:mod:`labelwise.evaluation.intervals`) of the mean."""
        mean = self.mean
        return max(self.xx - 2 * mean * self.xw + mean**2 * self.ww, 0.0) / self.w**2


@dataclass(frozen=True)
class SetSums:
    """What the sets of a rule add up to."""

    by_label: Confusion
    sample_f1: MeanSums
    exact: MeanSums
    sizes: Counts  # (K + 1,): rows by how many labels they are given
    true_sizes: Counts  # the same of the truth, rows whose labels are all known
    alarms: MeanSums
    stated: CalibrationSums | None  # probabilities of the sets, and how many are right

    @staticmethod
    def of(sets: Mask, known: Known, answers: Probabilities | None, bins: int) -> "SetSums":
        present, observed, size = known.present, known.observed, sets.shape[1] + 1
        by_image = confusion(sets, present, observed, by="image")
        chosen = as_mask(sets, "sets")
        complete = slice(None) if observed is None else observed.all(1)
        stated = None
        if answers is not None:
            stated = set_sums(answers.log_p, answers.log_q, chosen, present, observed, bins=bins)
        return SetSums(
            by_label=confusion(sets, present, observed),
            sample_f1=MeanSums.of(by_image.f_score().items),
            exact=MeanSums.of(by_image.exact().items),
            sizes=np.bincount(chosen.sum(1), minlength=size),
            true_sizes=np.bincount(present.sum(1)[complete], minlength=size),
            alarms=MeanSums.of(np.where(zero_label_rows(present, observed), chosen.any(1), np.nan)),
            stated=stated,
        )

    def figures(self, words: str) -> Sets:
        by_label, sizes, true_sizes = self.by_label, _trimmed(self.sizes), _trimmed(self.true_sizes)
        macro, stated = by_label.f_score(), None
        if self.stated is not None:
            rows = int(self.stated.counts.sum())
            stated = curve_of(self.stated.pooled(), f"{rows:,} images whose labels are all known")
        return Sets(
            rule=words,
            macro_f1=defined(macro.value),
            micro_f1=defined(by_label.micro().f_score().value),
            sample_f1=defined(self.sample_f1.mean),
            cf1=defined(by_label.cf1()),
            hamming=defined(by_label.error()),
            subset_accuracy=defined(self.exact.mean),
            mean_size=_mean_size(self.sizes),
            mean_true_size=defined(_mean_size(self.true_sizes)),
            sizes=sizes,
            true_sizes=true_sizes,
            how=(
                "Known entries only. Macro F1 is the mean over "
                f"{macro.num_defined:,} of {len(macro.items):,} labels; a label neither present "
                "nor chosen is left out, likewise an image. Micro F1 (OF1) pools all entries; CF1 "
                "is the harmonic mean of mean precision and mean recall over labels. Sizes count "
                f"all labels chosen; true sizes come from the {sum(true_sizes):,} images whose "
                "labels are all known."
            ),
            stated=stated,
        )


def _trimmed(histogram: Counts) -> tuple[int, ...]:
    last = np.flatnonzero(histogram)
    return tuple(histogram[: int(last[-1]) + 1 if len(last) else 1].tolist())


def _mean_size(histogram: Counts) -> float:
    total = int(histogram.sum())
    return float(histogram @ np.arange(len(histogram)) / total) if total else np.nan


CELLS = 20
SHARES = "shares of the labels"


@dataclass(frozen=True)
class SideSums:
    """What one stage adds up to: log loss IN and OUT, Brier IN and OUT, and max p OUT."""

    stage: str
    losses: tuple[ProperSums, ...]
    peak_outside: float

    @staticmethod
    def of(answers: Probabilities, known: Known) -> "SideSums":
        outside = zero_label_rows(known.present, known.observed)
        losses, squares = [], []
        for rows in (known.some(), outside):
            side, logs = known.take(rows), (answers.log_p[rows], answers.log_q[rows])
            losses.append(log_loss_sums(*logs, side.labels, side.observed))
            squares.append(brier_sums(answers.probs[rows], side.labels, side.observed))
        peak = float(max_confidence(answers.probs)[outside].sum())
        return SideSums(answers.stage, (*losses, *squares), peak)

    def scores(self, outside: int) -> StageScores:
        losses = (defined(sums.score().value) for sums in self.losses)
        return StageScores(self.stage, defined(self.peak_outside / outside), *losses)


@dataclass(frozen=True)
class LabelSums:
    """Known entries, sum of labels and of their squares, (K,), of a group of images."""

    known: Counts
    labels: Values
    squares: Floats

    @staticmethod
    def of(known: Known) -> "LabelSums":
        """Return the sums of some rows; squares differ from labels where some of these are soft."""
        squares = known.present if known.shares is None else known.shares.astype(np.float64) ** 2
        return LabelSums(known.counts(), known.labels.sum(0), squares.sum(0))

    def scores(self, share: Numbers) -> tuple[float | None, float | None]:
        """Return log loss and Brier score of answering every image with shares (K,)."""
        absent, count = self.known - self.labels, self.known.sum()
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 times infinity is left out
            losses = np.log(share) * self.labels, np.log1p(-share) * absent
            loss = losses[0].sum(where=self.labels > 0) + losses[1].sum(where=absent > 0)
            squares = (share - 1) ** 2 * self.labels + share**2 * absent
            spread = (self.labels - self.squares).sum()  # of soft labels alone
            return defined(-loss / count), defined((squares.sum() - spread) / count)


@dataclass(frozen=True)
class EmptySums:
    """What images with labels (IN) and those without any (OUT) add up to."""

    inside: int
    outside: int
    cells_inside: Counts
    cells_outside: Counts
    labels: LabelSums
    labels_inside: LabelSums
    labels_outside: LabelSums
    stages: tuple[SideSums, ...]
    peak: ScoreCounts
    loud: ScoreCounts  # minus the log of "nothing here"

    @staticmethod
    def of(stages: Sequence[Probabilities], known: Known, limit: int) -> "EmptySums":
        """Return the sums of some rows, their scores in at most ``limit`` cells."""
        outside = zero_label_rows(known.present, known.observed)
        inside, edges = known.some(), width_edges(CELLS)
        either = inside | outside
        peak, loud = max_confidence(stages[-1].probs), -nothing_here(stages[-1].log_q)
        return EmptySums(
            inside=int(inside.sum()),
            outside=int(outside.sum()),
            cells_inside=np.histogram(peak[inside], edges)[0],
            cells_outside=np.histogram(peak[outside], edges)[0],
            labels=LabelSums.of(known),
            labels_inside=LabelSums.of(known.take(inside)),
            labels_outside=LabelSums.of(known.take(outside)),
            stages=tuple(SideSums.of(stage, known) for stage in stages),
            peak=ScoreCounts.of(peak[either], inside[either], limit),
            loud=ScoreCounts.of(loud[either], inside[either], limit),
        )

    def figures(self, rows: int, false_alarms: float | None) -> ZeroLabel:
        outside, by_stage, how = self.outside, [], ""
        values: list[float | None] = [None] * 3
        if self.inside and outside:
            by_stage = [stage.scores(outside) for stage in self.stages]
            share = (self.labels.labels / self.labels.known.clip(1)).astype(np.float32)
            sides = self.labels_inside, self.labels_outside
            scores = zip(*(side.scores(share.astype(np.float64)) for side in sides), strict=True)
            by_stage.append(StageScores(SHARES, float(share.max()), *chain(*scores)))
            separation = self.loud.auroc(), self.peak.auroc(), self.peak.false_positive_rate_at()
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
        sets: Mask | None,
        *,
        bins: int,
        k: int,
        limit: int,
    ) -> "EvaluationSums":
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
        values = Averaged.over(np.array([ap.value for ap in precision]), "label")
        bounds = np.array([ap.bound for ap in precision])
        words = rule_words or ("sets as given" if rule is None else str(rule))
        figures = values, bounds, self._interval
        done = self.assembled(names, *figures, k=k, rule=rule, rule_words=words)
        unasked = "Queries, which need all images at once, are not evaluated."
        size_note = () if done.sets is None else done.sets.size_note()
        facts = replace(done.data, split=split)
        return replace(done, data=facts, link=link, notes=(*notes, unasked, *size_note))

    def _rows(
        self,
        names: tuple[str, ...],
        precision: Numbers,
        bounds: Numbers,
        thresholds: Sequence[float] | None,
    ) -> tuple[LabelRow, ...]:
        nothing = np.full(len(names), np.nan)
        errors = {stage.stage: stage.per_label.ece() for stage in self.stages}
        before, after = (errors.get(stage, nothing) for stage in ("before", "after"))
        mean_prob, decided = nothing, [nothing] * 3
        if self.stages:
            final = self.stages[-1].per_label
            with np.errstate(invalid="ignore"):
                mean_prob = final.confidence_sums.sum(1) / final.counts.sum(1)
        if self.sets is not None:
            counts = self.sets.by_label
            figures = counts.precision(), counts.recall(), counts.f_score()
            decided = [figure.items for figure in figures]
        return tuple(
            LabelRow(
                name=name,
                known=int(self.known[k]),
                present=int(self.present[k]),
                ap=defined(precision[k]),
                ece_before=defined(before[k]),
                ece_after=defined(after[k]),
                mean_prob=defined(mean_prob[k]),
                threshold=None if thresholds is None else thresholds[k],
                precision=defined(decided[0][k]),
                recall=defined(decided[1][k]),
                f1=defined(decided[2][k]),
                ap_bound=float(bounds[k]),
            )
            for k, name in enumerate(names)
        )

    def assembled(
        self,
        names: tuple[str, ...],
        values: Averaged,
        bounds: Numbers,
        interval: Interval,
        *,
        k: int,
        rule: Rule | None,
        rule_words: str,
    ) -> Evaluation:
        """Return the figures of sums and average precisions, exact within ``bounds``."""
        k = min(k, len(names))
        undefined = tuple(values.undefined_names(names))
        ranked = bounds[~np.isnan(values.items)]
        bound = float(np.mean(ranked)) if len(ranked) else 0.0
        how = (
            "average precision of the raw scores, equal scores as one threshold, known entries "
            f"only; mean over {values.num_defined:,} of {len(names):,} labels, "
            f"{len(undefined):,} without a known positive left out."
        )
        if bound:
            how += f" Scores were counted in cells: the exact mean is within ± {bound:.2g}."
        unranked = self.rows - int(self.by_image.w)
        means = defined(values.value), defined(self.by_image.mean)
        ranking = RankingFigures(*means, undefined, unranked, how, bound)
        columns = self.stages[-1].worst_labels() if self.stages else []
        parts = {stage.stage: stage.calibration(names, columns, k) for stage in self.stages}
        final = parts[self.stages[-1].stage] if self.stages else None
        decided = None if self.sets is None else self.sets.figures(rule_words)
        zero = thresholds = None
        if self.empty is not None:
            alarms = None if self.sets is None else defined(self.sets.alarms.mean)
            zero = self.empty.figures(self.rows, alarms)
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
            rows=self._rows(names, values.items, bounds, thresholds),
            before=parts.get("before"),
            after=parts.get("after"),
            sets=decided,
            zero_label=zero,
        )

    def _interval(self, what: str, value: float | None, *_: object) -> tuple[Ends, str]:
        if what in ("mean_ap", "mean_f1", "ece"):
            return (None, None), NO_INTERVAL
        if what == "alarms":
            return wilson(value or 0.0, 0.0 if self.sets is None else self.sets.alarms.w), OF_SHARE
        known = {"image_ap": self.by_image, "log_loss": self.row_loss, "brier": self.row_square}
        sums = known[what]
        if value is None or sums is None or self.rows < 2:
            return (None, None), SMOOTH
        return interval_of(value, sums.variance(), 1.0 if what == "image_ap" else np.inf), SMOOTH


def measure(
    logits: Floats,
    labels: Values,
    observed: Mask | None = None,
    *,
    link: Link,
    rule: Rule | Mask | None = None,
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
    limit = max(ALL_CELLS // width, FEWEST_CELLS)
    sides = logits, known.present, np.ones_like(known.present) if observed is None else observed
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
        ranks=tuple(
            ScoreCounts.of(score[mask], hit[mask], limit)
            for score, hit, mask in zip(*(side.T.copy() for side in sides), strict=True)
        ),
    )


def _joined(sums: Any, other: Any) -> Any:
    """Return two sums as one, whatever they are made of."""
    if sums is None or isinstance(sums, str):
        return sums
    if isinstance(sums, tuple):
        return tuple(map(_joined, sums, other))
    if hasattr(sums, "merge") and not isinstance(sums, EvaluationSums):
        return sums.merge(other)
    if is_dataclass(sums) and not isinstance(sums, type):
        return type(sums)(*map(_joined, vars(sums).values(), vars(other).values()))
    return sums + other
