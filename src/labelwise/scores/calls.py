"""Counts of calls from tables: results of BirdNET or Perch, or scores with some labels known."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.groups import Groups
from labelwise.base.special import expit, fit_slope_and_offset, ndtri
from labelwise.base.table_files import write_csv
from labelwise.base.text import with_slashes
from labelwise.decide import Answered, estimate_count
from labelwise.errors import DataError, SettingsError
from labelwise.scores.read import (
    Detections,
    is_detections,
    read_detections,
    unlabelled_scores,
    with_checks,
)
from labelwise.tables.score_files import Kind, read_raw
from labelwise.types import nearest

# A detection of label k with the log-odds u is right with probability
#
#     p = sigma(a_k u + b_k)
#
# (a_k, b_k) fitted to the label's checked detections with a normal prior around the pair of all
# labels, standard deviations 0.5 a and 1.5. With C_k the inverse Hessian (times the design effect
# of the recordings) the count of a cell, label k at site s, is
#
#     count    = right ones among the checked + sum of p over the others
#     variance = g' C_k g + sum of p (1 - p) + rho (sum over pairs of one recording of s_i s_j)
#     g        = sum of p (1 - p) (u, 1),            s = sqrt(p (1 - p))
#
# with its interval on the log-odds of the share. rho is how much errors of one recording go
# together: the sum of (right - p) products over its pairs / the sum of s_i s_j, not below 0. With
# ``answers`` a cell is counted by its own checked detections (:mod:`labelwise.decide.estimate`).


Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
CallMethod = Literal["calibrated", "answers"]
CONFIDENCE = 0.95
LIMIT = 15.0  # log-odds beyond it are taken as it
SPREAD_OFFSET, SPREAD_SLOPE, LEAST_SLOPE = 1.5, 0.5, 0.05


@dataclass(frozen=True)
class CallCount:
    """How many of ``detections`` of a label are right in one part, with its interval."""

    label: str
    part: str
    detections: int
    checked: int
    right: int
    count: float
    low: float
    high: float
    confidence: float
    method: str


def fit_calls(
    u: Floats, label: Codes, correct: Floats, labels: int, groups: Codes | None = None
) -> tuple[Floats, Floats]:
    """Return slope and offset (K, 2) of labels' curves at log-odds u, and their covariance."""
    if not len(u):
        raise DataError("a count needs detections that a person has checked, got none")
    shared, _ = fit_slope_and_offset(u, correct, 1 / np.array([1.0, 5.0]) ** 2)
    center = np.array([max(float(shared[0]), LEAST_SLOPE), float(shared[1])])
    precision = 1 / np.array([SPREAD_SLOPE * center[0], SPREAD_OFFSET]) ** 2
    weights = np.tile(center, (labels, 1))
    covariance = np.tile(np.diag(1 / precision), (labels, 1, 1))
    for k in np.unique(label):
        rows = np.flatnonzero(label == k)
        own = u[rows]
        weights[k], covariance[k] = fit_slope_and_offset(own, correct[rows], precision, center)
        if groups is not None:
            missed = correct[rows] - expit(weights[k, 0] * own + weights[k, 1])
            moved = missed[:, None] * np.stack([own, np.ones_like(own)], 1)
            recordings = Groups.of(groups[rows])
            if not recordings.are_photos and recordings.count > 1:  # the design effect
                alone, together = (
                    float(np.einsum("ni,ij,nj->", sums, covariance[k], sums))
                    for sums in (moved, recordings.sums(moved))
                )
                covariance[k] *= max(1.0, together / alone) if alone > 0 else 1.0
    return weights, covariance


def count_calls(
    odds: Floats,
    label: Codes,
    names: Sequence[str],
    correct: Floats,
    part: Codes,
    parts: Sequence[str],
    *,
    groups: Codes | None = None,
    method: CallMethod = "calibrated",
) -> list[CallCount]:
    """Return the count of each label in each part that has detections of it."""
    known = np.flatnonzero(~np.isnan(correct))
    u, own = np.clip(odds, -LIMIT, LIMIT), None if groups is None else groups[known]
    weights, covariance = fit_calls(u[known], label[known], correct[known], len(names), own)
    probs = np.asarray(expit(weights[label, 0] * u + weights[label, 1]))
    cell = label * len(parts) + part
    total = len(names) * len(parts)
    sizes, checked = (np.bincount(rows, minlength=total) for rows in (cell, cell[known]))
    right = np.asarray(np.bincount(cell[known], correct[known], total), np.float64)
    if method == "answers":
        bounds = _answered(probs, cell, correct, sizes)
    else:
        together = None
        if groups is not None:
            recordings = Groups.of((label * (int(groups.max()) + 1) + groups)[known])
            products, pairs = (
                float((recordings.sums(side) ** 2 - recordings.sums(side**2)).sum())
                for side in (correct[known] - probs[known], np.sqrt(probs * (1 - probs))[known])
            )
            together = (min(max(0.0, products / pairs), 1.0) if pairs > 0 else 0.0, groups)
        bounds = _calibrated(covariance, u, probs, correct, cell, right, together)
    counts = np.stack([sizes, checked, right.astype(np.int64)], 1).tolist()
    return [
        CallCount(names[k // len(parts)], parts[k % len(parts)], many, told, true, *bounds(k))
        for k, (many, told, true) in enumerate(counts)
        if many
    ]


Bounds = Callable[[int], tuple[float, float, float, float, str]]  # of a cell


def _calibrated(
    covariance: Floats,
    u: Floats,
    probs: Floats,
    correct: Floats,
    cell: Codes,
    right: Floats,
    together: tuple[float, Codes] | None,
) -> Bounds:
    open_, cell_count = np.isnan(correct), len(right)
    cells, p, u = cell[open_], probs[open_], u[open_]
    wobble = p * (1 - p)

    def summed(values: Floats) -> Floats:
        return np.asarray(np.bincount(cells, values, cell_count), np.float64)

    count = right + summed(p)
    slope = np.stack([summed(wobble * u), summed(wobble)], 1)
    cov = np.repeat(covariance, cell_count // len(covariance), 0)
    variance = np.einsum("ni,nij,nj->n", slope, cov, slope) + slope[:, 1]
    if together is not None and together[0] > 0:
        rho, groups = together
        count_of = int(groups.max()) + 1
        recordings, recording = np.unique(cells * count_of + groups[open_], return_inverse=True)
        pairs = np.bincount(recording, np.sqrt(wobble)) ** 2 - np.bincount(recording, wobble)
        variance += rho * np.bincount(recordings // count_of, pairs, cell_count)
    left = np.bincount(cells, minlength=cell_count)
    share = (count - right + 0.5) / (left + 1)
    error = np.sqrt(variance + 0.25) / (left + 1)
    middle = np.log(share / (1 - share))
    half = float(ndtri((1 + CONFIDENCE) / 2)) * error / (share * (1 - share))
    low = np.minimum(right + left * expit(middle - half), count)
    high = np.maximum(right + left * expit(middle + half), count)
    return lambda k: (float(count[k]), float(low[k]), float(high[k]), CONFIDENCE, "calibrated")


def _answered(probs: Floats, cell: Codes, correct: Floats, sizes: NDArray[np.intp]) -> Bounds:
    order, ends = np.argsort(cell, kind="stable"), np.cumsum(sizes)

    def bounds(place: int) -> tuple[float, float, float, float, str]:
        rows = order[ends[place] - sizes[place] : ends[place]]
        drawn = np.flatnonzero(~np.isnan(correct[rows])).astype(np.int64)
        count = estimate_count(Answered(probs[rows], drawn, correct[rows][drawn]), CONFIDENCE)
        return count.count, float(count.low), float(count.high), CONFIDENCE, count.method

    return bounds


CONDITIONS = {
    "calibrated": "The intervals hold if a score means the same in every group, and the checked {} "
    "were drawn at random. Whoever doubts that checks some in each group: --method answers.",
    "answers": "The intervals hold if the checked {} of each group were drawn at random.",
}
LESS_PHOTOS = "Counted are reported detections; photos with none reported are not among them."
LESS_CALLS = "Counted are reported detections; calls that the program missed are not among them."


@dataclass(frozen=True)
class CallTable:
    """Counts by label and part, what is counted, and the condition on which they hold."""

    counts: list[CallCount]
    unit: str
    condition: str


def calls_of_table(
    source: Path,
    by: str | None,
    kind: Kind | None,
    labels: str | None,
    method: CallMethod,
    label: str | None,
) -> CallTable:
    """Return how many of a table's detections, or rows, are right, by label and group."""
    keep: tuple[str, ...] = () if by is None or by == "folder" else (by,)
    unit = "detections"
    if is_detections(source):
        if kind is not None:
            raise SettingsError(f"--scores does not apply: {source} says itself what it holds")
        detections = read_detections(source, keep)
        if labels is not None:
            detections = with_checks(detections, labels)
    else:
        if labels is not None:
            way = "a table of scores has its own columns label:NAME"
            raise SettingsError(f"--labels belongs to results of BirdNET or Perch here; {way}")
        detections, unit = _entries(source, kind, keep), "rows"
    if label is not None:
        if label not in detections.names:
            raise DataError(f"{source} has no label {label!r}{nearest(label, detections.names)}")
        rows = np.flatnonzero(detections.label == detections.names.index(label))
        detections = replace(
            detections,
            names=(label,),
            label=np.zeros(len(rows), np.int64),
            file=detections.file[rows],
            start=detections.start[rows],
            scores=detections.scores[rows],
            correct=detections.correct[rows],
            facts={column: values[rows] for column, values in detections.facts.items()},
        )
    if np.isnan(detections.correct).all():
        way = "a column 'correct' with 1 or 0, or label:NAME"
        raise DataError(f"{source}: nothing has been checked; say for some random {unit}: {way}")
    names, cell = np.array([""]), np.zeros(len(detections), np.int64)
    if by == "folder":
        folders = [os.path.dirname(with_slashes(name)) or "." for name in detections.files]
        names, codes = np.unique(np.array(folders), return_inverse=True)
        cell = codes.astype(np.int64)[detections.file]
    elif by is not None:
        names, cell = np.unique(detections.facts[by], return_inverse=True)
    counts = count_calls(
        detections.log_odds,
        detections.label,
        detections.names,
        detections.correct,
        cell,
        names.tolist(),
        groups=detections.group,
        method=method,
    )
    told = [CONDITIONS[method].format(unit)]
    if unit == "detections":
        told.append(LESS_PHOTOS if detections.of_photos else LESS_CALLS)
        told += detections.notes
    return CallTable(counts, unit, " ".join(told))


def _entries(source: Path, kind: Kind | None, keep: tuple[str, ...]) -> Detections:
    raw = read_raw(source, keep)
    scores = unlabelled_scores(raw, kind, None)
    rows, labels = scores.logits.shape
    correct = np.full((rows, labels), np.nan) if raw.labels is None else raw.labels
    if ((correct > 0) & (correct < 1)).any():
        raise DataError(f"{source}: labels must be 1, 0 or empty to be counted, got soft ones")
    files, file = np.unique(np.array(raw.group or raw.ids), return_inverse=True)
    return Detections(
        str(source),
        "logits",
        raw.names,
        tuple(files.tolist()),
        np.tile(np.arange(labels), rows),
        np.repeat(file, labels).astype(np.int64),
        np.repeat(np.arange(rows, dtype=np.float64), labels),
        scores.logits.astype(np.float64).ravel(),
        correct.ravel(),
        None,
        {name: np.repeat(np.array(values), labels) for name, values in raw.facts.items()},
    )


def write_calls(counts: list[CallCount], by: str, path: Path) -> None:
    """Write the counts as CSV, one row per label and group."""
    rows = [asdict(count) for count in counts]
    header = [by if name == "part" and by else name for name in rows[0]]
    write_csv(path, header, [tuple(row.values()) for row in rows])
