"""Label sets against the truth: what they add up to over shards, and their figures."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.calibration import Known, Probabilities, curve_of, defined
from labelwise.evaluation.evaluation import Sets
from labelwise.metrics import CalibrationSums, Confusion, confusion, zero_label_rows
from labelwise.metrics.calibration import set_sums
from labelwise.numeric.arrays import as_mask

Counts = NDArray[np.int64]


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
        known = ~np.isnan(x)
        weight = known.astype(np.float64) if w is None else w.astype(np.float64)
        values = np.nan_to_num(x.astype(np.float64), posinf=np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            products = values @ values, values @ weight, weight @ weight
        return MeanSums(float(values[known].sum()), float(weight.sum()), *map(float, products))

    @property
    def mean(self) -> float:
        """The mean, NaN of nothing."""
        return self.x / self.w if self.w else np.nan

    def variance(self) -> float:
        """Return the sum of U^2 (:mod:`labelwise.evaluation.intervals`) of the mean."""
        mean = self.mean
        return max(self.xx - 2 * mean * self.xw + mean**2 * self.ww, 0.0) / self.w**2


@dataclass(frozen=True)
class SetSums:
    """What the sets of a rule add up to."""

    counts: tuple[Counts, Counts, Counts, Counts]  # true and false, positive and negative, (K,)
    sample_f1: MeanSums
    exact: MeanSums
    sizes: Counts  # (K + 1,): rows by how many labels they are given
    true_sizes: Counts  # the same of the truth, rows whose labels are all known
    alarms: MeanSums
    stated: CalibrationSums | None  # probabilities of the sets, and how many are right

    @staticmethod
    def of(sets: NDArray[Any], known: Known, answers: Probabilities | None, bins: int) -> "SetSums":
        """Return the sums of sets (n, K)."""
        present, observed, size = known.present, known.observed, sets.shape[1] + 1
        by_label = confusion(sets, present, observed)
        by_image = confusion(sets, present, observed, by="image")
        wrong = by_image.fp + by_image.fn
        exact = np.where(wrong + by_image.tp + by_image.tn > 0, wrong == 0, np.nan)
        chosen, complete = as_mask(sets, "sets"), known.rows_complete()
        stated = None
        if answers is not None:
            stated = set_sums(answers.log_p, answers.log_q, chosen, present, observed, bins=bins)
        return SetSums(
            counts=(by_label.tp, by_label.fp, by_label.fn, by_label.tn),
            sample_f1=MeanSums.of(by_image.f_score().items),
            exact=MeanSums.of(exact),
            sizes=np.bincount(chosen.sum(1), minlength=size),
            true_sizes=np.bincount(present.sum(1)[complete], minlength=size),
            alarms=MeanSums.of(np.where(zero_label_rows(present, observed), chosen.any(1), np.nan)),
            stated=stated,
        )

    @property
    def by_label(self) -> Confusion:
        """The counts of each label."""
        return Confusion(*self.counts, "label")

    def figures(self, words: str) -> Sets:
        """Return the figures of the sets of a rule, which is told in words."""
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
