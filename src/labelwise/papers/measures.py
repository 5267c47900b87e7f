"""Measures: the columns by which runs are compared, from their validation and test predictions.

"before" reads the objective's own link; "after" the same shrunk per-label Platt fit for every
method, fitted on validation. A method without a link has no figures before. Shrinking all
probabilities lowers MMC and predicting base rates lowers ECE, so log loss and Brier are also
given for images with labels (IN) and without (OUT) apart: there such a trade shows. "promised" is
the power of promised lists (``promise_power``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import nan
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from labelwise.base.arrays import Floats, Mask, Numbers
from labelwise.base.groups import Groups
from labelwise.calibration import platt
from labelwise.decide import best_f
from labelwise.errors import DataError
from labelwise.evaluation.intervals import (
    ap_influence,
    labels_with_positives,
    mean_ap_influence,
    mean_influence,
)
from labelwise.links import Link
from labelwise.metrics import (
    average_precision,
    brier_score,
    confusion,
    log_loss_from_logs,
    max_confidence,
    reliability,
    separation_auroc,
    top_accuracy,
    width_edges,
    zero_label_rows,
)
from labelwise.metrics.calibration import image_cells
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.queries import retrieval_map

# Power of promises. For each label the test images are dealt into two halves: library and held-out.
# The list is the longest of which at most a tenth is expected to be wrong (conformal selection: Jin
# and Candes, 2023); then the halves are exchanged. Means over labels and halves:
#
#     power   right images on the list / images with the label in the library, 0 without a list
#     wrong   wrong images on the list / images on it, 0 without a list: promised to be 0.1 at most

WRONG_AT_MOST = 0.1


class PromisePower(NamedTuple):
    """The share found and the share wrong of promised lists."""

    power: float
    wrong: float


def promise_power(test: Predictions) -> PromisePower:
    """Return the power of the lists of single labels, by images that fitted nothing."""
    groups = test.groups
    units = np.arange(len(test)) if groups is None else groups.codes
    half = (np.random.default_rng(0).permutation(int(units.max()) + 1) % 2)[units]
    scores, labels = test.logits.astype(np.float64), test.majority
    known = np.ones_like(labels) if test.observed is None else test.observed
    right: list[float] = []
    wrong: list[float] = []
    for score, present, seen in zip(scores.T, labels.T, known.T, strict=True):
        for side in (0, 1):
            library, held = (np.flatnonzero(seen & x) for x in (half == side, half != side))
            if not len(library) or not len(held):
                continue
            own = None if groups is None else groups.take(held)
            truth, listed = present[library], score[library]
            listed = listed >= _lowest_listed(score[held], present[held], listed, own)
            wrong.append(float((~truth[listed]).mean()) if listed.any() else 0.0)
            if truth.any():
                right.append(float(truth[listed].sum() / truth.sum()))
    return PromisePower(*(float(np.mean(shares)) if shares else nan for shares in (right, wrong)))


def _lowest_listed(
    held: Numbers,
    right: Mask,
    library: Numbers,
    groups: Groups | None,
) -> float:
    """Return the lowest score of the longest list; a miss counts 1 / (images of its group)."""
    each, units = np.ones(len(held)), len(held)
    if groups is not None:
        inside = groups.sums(np.ones(len(held)))
        each, units = 1 / np.maximum(inside, 1)[groups.codes], int(np.count_nonzero(inside))
    misses = np.flatnonzero(~right)
    misses = misses[np.argsort(-held[misses], kind="stable")]
    ranked = np.sort(library)[::-1]
    lengths = np.append(np.searchsorted(-ranked, -held[misses], side="left"), len(ranked))
    p_values = (1 + np.append(0.0, each[misses].cumsum())) / (units + 1)
    passes = (lengths > 0) & (len(ranked) * p_values <= WRONG_AT_MOST * lengths + 1e-9)
    return float(ranked[lengths[passes][-1] - 1]) if passes.any() else np.inf


T = TypeVar("T")
BINS = 10


class FinishedRun:
    """The predictions in the folder of a finished run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def train(self) -> Predictions:
        return self._read("train")

    @cached_property
    def val(self) -> Predictions | None:
        return self._read("val") if "val" in RunFolder(self.folder).splits else None

    @cached_property
    def test(self) -> Predictions:
        return self._read("test")

    @cached_property
    def calibrated(self) -> Link | None:
        """The shrunk per-label Platt fit on validation, the same for every method."""
        val = self.val
        return None if val is None else platt(val.logits, val.labels, self.test.link, val.observed)

    @property
    def held_out(self) -> Predictions:
        """``val``, for figures that cannot do without it."""
        if self.val is None:
            raise DataError("this figure is fitted on a validation split, and the run has none")
        return self.val

    def _read(self, split: str) -> Predictions:
        return RunFolder(self.folder).predictions(split)


@dataclass(frozen=True)
class Measure:
    """A column: its name, which way is better, and whether it is shown in per cent."""

    name: str
    higher_is_better: bool
    percent: bool = True


def _columns() -> dict[str, Measure]:
    columns = [Measure("mAP@class", True), Measure("mAP@sample", True), Measure("macro F1", True)]
    for stage in ("before", "after"):
        columns += [Measure(f"{name} {stage}", False) for name in ("ECE", "ACE", "MCE")]
        scores = product(("log loss", "Brier"), ("", " IN", " OUT"))
        columns += [Measure(f"{name}{side} {stage}", False, False) for name, side in scores]
    columns += [Measure("top accuracy", True), Measure("zero-label AUROC", True)]
    columns += [Measure("zero-label MMC", False), Measure("promised", True)]
    columns += [Measure(f"retrieval n={length}", True) for length in (1, 2, 3)]
    columns += [Measure(name, False, percent=False) for name in ("seconds", "host MB", "GPU MB")]
    return {column.name: column for column in columns}


MEASURES: dict[str, Measure] = _columns()


def measure(run: FinishedRun, *, queries: int = 2000) -> dict[str, float]:
    """Return defined figures by column, from at most ``queries`` queries a length (0: none)."""
    val, test = run.val, run.test
    labels, observed = test.majority, test.observed
    figures = {
        "mAP@class": average_precision(test.logits, labels, observed).value,
        "mAP@sample": average_precision(test.logits, labels, observed, by="image").value,
        "top accuracy": top_accuracy(test.logits, labels, observed).value,
        "promised": promise_power(test).power,
    }
    own, fitted = test.link, run.calibrated
    if own is not None:
        figures |= _staged("before", probability_figures(own, test))
    if val is not None and fitted is not None:
        figures |= _staged("after", probability_figures(fitted, test))
        rule = best_f(fitted(val.logits), val.majority, val.observed, scope="shared")
        sets = rule(fitted(test.logits))
        figures["macro F1"] = confusion(sets, labels, observed).f_score().value
    link = own or fitted
    if link is not None:
        figures |= _zero_label(link, test)
    if link is not None and queries:
        log_p, log_q = link.log_probs(test.logits.astype(np.float64))
        given = log_p, log_q, labels, observed
        points = retrieval_map(*given, longest=3, exhaustive=queries, sample=queries)
        figures |= {f"retrieval n={point.length}": point.value for point in points}
    return {name: value for name, value in figures.items() if not np.isnan(value)}


@torch.no_grad()
def image_effects(run: FinishedRun) -> dict[str, Numbers]:
    """Return how much each test image moves a figure, (N,), for figures that methods are judged by.

    The sum of their squares is the variance of the figure over the choice of test images. For ACE
    it is an upper bound where bins are hardly off: the modulus of a gap has a kink at 0. Images
    that come in G groups move it by group, (G,), as if each group had been left out in turn:

        sqrt((G - 1) / G) sum of U_m within / (1 - share of the group)
    """
    test, fitted = run.test, run.calibrated
    observed = test.observed
    present = test.majority if observed is None else test.majority & observed
    groups = test.groups
    by_image = average_precision(test.logits, present, observed, by="image").items
    effects = {"mAP@sample": mean_influence(np.nan_to_num(by_image), ~np.isnan(by_image))}
    if test.link is not None:
        effects |= _staged("before", _probability_effects(test.link, test))
    if fitted is not None:
        effects |= _staged("after", _probability_effects(fitted, test))
    if groups is None:
        return {"mAP@class": mean_ap_influence(test.logits, present, observed), **effects}
    left = np.maximum(1 - groups.sizes / len(groups), 1 / len(groups))
    moved = {name: groups.sums(effect) / left for name, effect in effects.items()}
    moved["mAP@class"] = mean_ap_by_group(test.logits, present, observed, groups)
    return {
        name: np.sqrt((groups.count - 1) / groups.count) * influence
        for name, influence in moved.items()
    }


def mean_ap_by_group(scores: Floats, present: Mask, known: Mask | None, groups: Groups) -> Numbers:
    """Return what each group moves the mean average precision by, (G,).

    A group that has a label's positives carries that label, however few of all photos it has: its
    share is that of the label's positives or of its photos, whichever is larger. By photos alone
    three equal methods were told apart in 10 % of draws of 20 uneven groups, so in 5 %
    (benchmarks/group_figures.py at commit ad8fbb06).
    """
    total, labels = np.zeros(groups.count), 0
    for rows, values, hits in labels_with_positives(scores, present, known):
        moved, positive = np.zeros((2, len(scores)))
        moved[rows], positive[rows] = ap_influence(values, hits), hits
        positives = int(hits.sum())
        share = np.maximum(groups.sums(positive) / positives, groups.sums(rows) / rows.sum())
        total += groups.sums(moved) / np.maximum(1 - share, 1 / max(positives, 2))
        labels += 1
    return total / max(labels, 1)


def _probability_effects(link: Link, test: Predictions) -> dict[str, Numbers]:
    log_p, log_q = link.log_probs(test.logits.astype(np.float64))
    probs = np.exp(log_p)
    known = np.ones(probs.shape, bool) if test.observed is None else test.observed
    labels = np.where(known, test.labels.astype(np.float64), 0.0)
    with np.errstate(invalid="ignore"):  # 0 log 0 = 0
        loss = -np.where(labels > 0, labels * log_p, 0.0)
        loss = np.where(known, loss - np.where(labels < 1, (1 - labels) * log_q, 0.0), 0.0)
    square = np.where(known, (probs - labels) ** 2, 0.0)
    entries = known.sum(1)
    counts, given, seen = image_cells(probs, test.labels, test.observed, None, width_edges(BINS))
    total = counts.sum(0)
    filled = total > 0
    gap = (given.sum(0) - seen.sum(0))[filled] / total[filled]
    moved = ((given - seen)[:, filled] - gap * counts[:, filled]) / total[filled]
    return {
        "ACE": (moved * np.sign(gap)).mean(1),
        "log loss": mean_influence(loss.sum(1), entries),
        "Brier": mean_influence(square.sum(1), entries),
    }


@torch.no_grad()
def probability_figures(link: Link, test: Predictions) -> dict[str, float]:
    """Return calibration errors and proper scores of probabilities, over all, IN and OUT images."""
    labels, observed = test.labels, test.observed
    log_p, log_q = link.log_probs(test.logits.astype(np.float64))
    probs = np.exp(log_p)
    bins = reliability(probs, labels, observed)
    figures = {"ECE": float(bins.ece()), "ACE": float(bins.ace()), "MCE": float(bins.mce())}
    empty = zero_label_rows(test.majority, observed)
    for side, rows in {"": np.ones_like(empty), " IN": ~empty, " OUT": empty}.items():
        if rows.any() or not side:
            truth = labels[rows], None if observed is None else observed[rows]
            figures[f"log loss{side}"] = log_loss_from_logs(log_p[rows], log_q[rows], *truth).value
            figures[f"Brier{side}"] = brier_score(probs[rows], *truth).value
    return figures


def _zero_label(link: Link, test: Predictions) -> dict[str, float]:
    empty = zero_label_rows(test.majority, test.observed)
    if not empty.any() or empty.all():
        return {}
    with torch.no_grad():
        confidence = max_confidence(link(test.logits.astype(np.float64)))
    auroc = separation_auroc(confidence[~empty], confidence[empty])
    return {"zero-label AUROC": auroc, "zero-label MMC": float(confidence[empty].mean())}


def _staged(stage: str, figures: Mapping[str, T]) -> dict[str, T]:
    return {f"{name} {stage}": value for name, value in figures.items()}
