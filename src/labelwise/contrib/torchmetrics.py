"""Metrics that torchmetrics lacks, as ``torchmetrics.Metric``: they log, reset and sync as usual.

    metric = MultilabelCalibrationError(num_labels=80)
    metric.update(probs, labels, observed)
    metric.compute()

In a ``MetricCollection`` name the arguments, ``update(probs=..., sets=..., labels=...)``: each
metric takes those it knows, and metrics of equal state share one update.

Labels are 0 or 1; ``observed`` masks unknown entries. Probabilities are never guessed from their
range: pass what the model's link returns. Sums are int64 and float64, so they stay exact past 2^24
entries and add up over ranks.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.base.arrays import check_shapes, mask_tensor
from labelwise.metrics import (
    Averaged,
    CalibrationSums,
    Confusion,
    average_precision,
    confusion,
    false_alarm_rate,
    width_edges,
)
from labelwise.metrics.lines import By
from labelwise.metrics.sets import Undefined

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise ImportError(
        "labelwise.contrib.torchmetrics needs torchmetrics; pip install torchmetrics"
    ) from error


class _LabelMetric(Metric):
    is_differentiable = False
    full_state_update = False


class MultilabelCalibrationError(_LabelMetric):
    """ECE, ACE or MCE over equal-width bins, of all entries pooled or as the mean over labels."""

    higher_is_better = False
    counts: Tensor
    confidence_sums: Tensor
    present_sums: Tensor

    def __init__(
        self,
        num_labels: int,
        *,
        error: Literal["ece", "ace", "mce"] = "ece",
        pool: bool = True,
        bins: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if error not in ("ece", "ace", "mce"):
            raise ValueError(f"error must be 'ece', 'ace' or 'mce', got {error!r}")
        self.error, self.pool, self.edges = error, pool, width_edges(bins)
        zeros = torch.zeros(num_labels, bins, dtype=torch.float64)
        self.add_state("counts", zeros.long(), dist_reduce_fx="sum")
        self.add_state("confidence_sums", zeros.clone(), dist_reduce_fx="sum")
        self.add_state("present_sums", zeros.clone(), dist_reduce_fx="sum")

    def update(
        self,
        probs: Tensor,
        labels: Tensor,
        observed: Tensor | None = None,
        where: Tensor | None = None,
    ) -> None:
        batch = CalibrationSums.zeros(len(self.counts), self.edges)
        batch.update(probs, labels, observed, where)
        self.counts += torch.from_numpy(batch.counts).to(self.counts)
        self.confidence_sums += torch.from_numpy(batch.confidence_sums).to(self.confidence_sums)
        self.present_sums += torch.from_numpy(batch.present_sums).to(self.present_sums)

    def sums(self) -> CalibrationSums:
        """Return the state as plain sums, for curves and every other error."""
        states = (self.counts, self.confidence_sums, self.present_sums)
        return CalibrationSums(self.edges, *(state.cpu().numpy() for state in states))

    def compute(self) -> Tensor:
        """Return the error; labels without entries are left out of the mean."""
        sums = self.sums()
        reliability = sums.pooled() if self.pool else sums.per_label()
        errors = {"ece": reliability.ece, "ace": reliability.ace, "mce": reliability.mce}
        value = errors[self.error]()
        figure = float(value) if self.pool else Averaged.over(value, "label").value
        return torch.tensor(figure, device=self.device)


class MultilabelMeanAveragePrecision(_LabelMetric):
    """Exact mAP over labels or images that leaves undefined ones out instead of counting 0 or 1."""

    higher_is_better = True
    scores: list[Tensor]
    labels: list[Tensor]
    observed: list[Tensor]

    def __init__(self, *, by: By = "label", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.by = by
        for name in ("scores", "labels", "observed"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor, observed: Tensor | None = None) -> None:
        check_shapes(scores=scores, labels=labels, observed=observed)
        if observed is None:
            observed = torch.ones_like(labels, dtype=torch.bool)
        self.scores.append(scores.detach())
        self.labels.append(labels.to(scores.device))
        self.observed.append(mask_tensor(observed, "observed", scores.device))

    def compute(self) -> Tensor:
        """Return the mean over the labels or images that have a positive."""
        if not len(self.scores):
            return torch.tensor(float("nan"), device=self.device)
        joined = map(dim_zero_cat, (self.scores, self.labels, self.observed))
        return torch.tensor(average_precision(*joined, by=self.by).value, device=self.device)


class MultilabelSetScore(_LabelMetric):
    """Macro or micro F-beta of label sets, whatever rule or thresholds made them."""

    higher_is_better = True
    counts: Tensor

    def __init__(
        self,
        num_labels: int,
        *,
        beta: float = 1.0,
        average: Literal["macro", "micro"] = "macro",
        undefined: Undefined = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if average not in ("macro", "micro"):
            raise ValueError(f"average must be 'macro' or 'micro', got {average!r}")
        self.beta, self.average, self.undefined = beta, average, undefined
        self.add_state("counts", torch.zeros(4, num_labels).long(), dist_reduce_fx="sum")

    def update(self, sets: Tensor, labels: Tensor, observed: Tensor | None = None) -> None:
        counts = confusion(sets, labels, observed)
        parts = [torch.from_numpy(count) for count in (counts.tp, counts.fp, counts.fn, counts.tn)]
        self.counts += torch.stack(parts).to(self.counts)

    def compute(self) -> Tensor:
        tp, fp, fn, tn = self.counts.cpu().numpy()
        counts = Confusion(tp, fp, fn, tn, "label")
        chosen = counts if self.average == "macro" else counts.micro()
        return torch.tensor(chosen.f_score(self.beta, self.undefined).value, device=self.device)


class ZeroLabelFalseAlarmRate(_LabelMetric):
    """Share of images known to carry no label that are given one."""

    higher_is_better = False
    alarms: Tensor
    images: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("alarms", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("images", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, sets: Tensor, labels: Tensor, observed: Tensor | None = None) -> None:
        alarms = false_alarm_rate(sets, labels, observed)
        self.alarms += round(float(np.nansum(alarms.items)))
        self.images += alarms.num_defined

    def compute(self) -> Tensor:
        """Return the rate; NaN without zero-label images."""
        return torch.div(self.alarms, self.images)
