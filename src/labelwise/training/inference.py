"""The logits of a split, each row exactly once, over any number of processes."""

import re
from dataclasses import dataclass
from math import isfinite
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor

from labelwise.base.arrays import Array, to_numpy
from labelwise.base.distributed import gather_rows, rank, world_size
from labelwise.base.progress import Silent, Watch
from labelwise.decide import average_k
from labelwise.errors import SettingsError
from labelwise.learn.inference import infer
from labelwise.learn.predictor import Model
from labelwise.links import Link, Softmax
from labelwise.metrics import (
    average_k_accuracy,
    average_precision,
    brier_score,
    log_loss_from_logs,
    reliability,
)
from labelwise.models.scoring import raise_failure
from labelwise.models.seen_photos import FEWEST_FEATURES, sketch_of
from labelwise.pictures import ImageSource
from labelwise.pictures.duplicates import looks_of
from labelwise.training.execution import autocast
from labelwise.types import Outputs, nearest

# Figures of a validation split after each epoch, any of which can choose the epoch to deploy.
#
# map         mean over labels of average precision (mAP@class)
# map_sample  mean over images of average precision (mAP@sample)
# log_loss    mean of -y log p - (1 - y) log(1 - p) under the objective's link, if it has one
#             Soft labels are cut at one half for the first two and average-K.
# brier, ece, ace, mce   under the same link, over all known entries, 10 bins; only if asked for
# average-K   accuracy of sets of K labels on average, such as average-5: softmax scores of the
#             logits above the threshold that makes them so here; only if asked for

CALIBRATION_ERRORS = ("ece", "ace", "mce")
VALIDATION_METRICS = {  # is higher better?
    **dict.fromkeys(("map", "map_sample"), True),
    **dict.fromkeys(("log_loss", "brier", *CALIBRATION_ERRORS), False),
}
AVERAGE_K = re.compile(r"average-(\d+(?:\.\d+)?)")


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is better; an unknown name says which is nearest."""
    if metric in VALIDATION_METRICS or AVERAGE_K.fullmatch(metric):
        return VALIDATION_METRICS.get(metric, True)
    if metric.startswith("average"):
        raise SettingsError(f"a metric average-K names its K, as average-5, got {metric!r}")
    raise SettingsError(f"unknown metric {metric!r}{nearest(metric, VALIDATION_METRICS)}")


def validation_figures(
    logits: Array, labels: Array, observed: Array | None, link: Link | None, metric: str = "map"
) -> dict[str, float | None]:
    """Return the figures, ``metric`` among them; None stands for one that is not defined."""
    logits, labels = to_numpy(logits), to_numpy(labels)
    present = labels > 0.5
    figures: dict[str, float | None] = {
        "map": _defined(average_precision(logits, present, observed).value),
        "map_sample": _defined(average_precision(logits, present, observed, by="image").value),
    }
    if link is not None:
        log_p, log_q = link.log_probs(logits.astype(np.float64))
        figures["log_loss"] = _defined(log_loss_from_logs(log_p, log_q, labels, observed).value)
        if metric == "brier":
            figures[metric] = _defined(brier_score(np.exp(log_p), labels, observed).value)
        elif metric in CALIBRATION_ERRORS:
            bins = reliability(np.exp(log_p), labels, observed)
            errors = {"ece": bins.ece, "ace": bins.ace, "mce": bins.mce}
            figures[metric] = _defined(float(errors[metric]()))
    chosen = AVERAGE_K.fullmatch(metric)
    if chosen is not None:
        k = float(chosen[1])
        if k > logits.shape[1]:
            raise SettingsError(f"average-{k:g} needs as many labels, got {logits.shape[1]}")
        scores = Softmax()(logits.astype(np.float64))
        with catch_warnings():
            simplefilter("ignore")  # ties are common in the first epochs
            sets = average_k(scores, k)(scores)
        figures[metric] = _defined(average_k_accuracy(sets, present, observed).per_image.value)
    return {metric: None, **figures}


def _defined(value: float) -> float | None:
    return value if isfinite(value) else None


BATCH = 256
ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Inference:
    """Float32 logits (rows, K) on the CPU, in row order; looks of photos, sketches of features."""

    logits: Tensor
    looks: Tensor | None = None


def infer_logits(
    model: Model,
    images: ImageSource,
    device: torch.device,
    *,
    batch_size: int = BATCH,
    workers: int = 0,
    precision: torch.dtype | None = None,
    looks: bool = False,
    watch: Watch | None = None,
    task: str = "",
) -> Inference:
    """Return the logits of images; each process computes an equal run of rows.

    ``batch_size`` is that of training, whose convolutions a GPU has planned; a CPU plans none.
    """
    watch = watch or Silent()
    rows, world, number = len(images), world_size(), rank()
    own = range(rows * number // world, rows * (number + 1) // world)
    transform = model.backbone.transform

    def network(values: Tensor) -> tuple[Tensor, ...]:
        inputs = transform.inputs(values)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with autocast(device, precision):
            outputs: Outputs = model(inputs)
        logits = outputs.logits.float()
        if looks and values.ndim == 4 and values.dtype == torch.uint8:
            return logits, looks_of(values)
        if looks and values.ndim == 2 and values.shape[1] >= FEWEST_FEATURES:
            return logits, sketch_of(values)
        return (logits,)

    watch.start(task, rows)
    training = model.training
    model.eval()
    parts: list[tuple[Tensor, ...]] = []
    for batch in infer(
        network,
        images,
        transform,
        rows=own,
        batch_size=batch_size if device.type == "cuda" else BATCH,
        workers=workers,
        device=device,
    ):
        raise_failure(batch)
        parts.append(batch.values)
        watch.advance(len(batch.rows) * world)
    model.train(training)
    watch.finish()
    values = (torch.cat(some) for some in zip(*parts, strict=True))
    return Inference(*(_joined(value, rows, device) for value in values))


def _joined(part: Tensor, rows: int, device: torch.device) -> Tensor:
    """Return the rows of all processes in rank order, padded on the way."""
    world = world_size()
    if world == 1:
        return part
    padded = part.new_zeros((-(-rows // world), *part.shape[1:]))
    padded[: len(part)] = part
    pieces = [
        torch.chunk(gather_rows(piece.to(device)).cpu(), world)
        for piece in torch.split(padded, ROWS_AT_ONCE)
    ]
    counts = [rows * (n + 1) // world - rows * n // world for n in range(world)]
    whole = zip(zip(*pieces, strict=True), counts, strict=True)
    return torch.cat([torch.cat(some)[:count] for some, count in whole])
