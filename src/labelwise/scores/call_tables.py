"""Counts of calls from tables: results of BirdNET or Perch, or scores with some labels known."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError, SettingsError
from labelwise.scores.calls import CallCount, CallMethod, count_calls
from labelwise.scores.detections import Detections, is_detections, read_detections
from labelwise.scores.labels import label_arrays
from labelwise.scores.read import unlabelled_scores, with_checks
from labelwise.scores.tables import Kind, read_raw
from labelwise.system.table_files import write_csv
from labelwise.system.text import with_slashes
from labelwise.types import nearest

CONDITIONS = {
    "calibrated": "The intervals hold if a score means the same in every group, and the checked {} "
    "were drawn at random. Whoever doubts that checks some in each group: --method answers.",
    "answers": "The intervals hold if the checked {} of each group were drawn at random.",
}
REPORTED = "Counted are reported detections; {} are not among them."


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
        found = read_detections(source, keep)
        if labels is not None:
            found = with_checks(found, labels)
    else:
        if labels is not None:
            raise SettingsError(
                "--labels belongs to results of BirdNET or Perch here; a table of "
                "scores has its own columns label:NAME"
            )
        found, unit = _entries(source, kind, keep), "rows"
    if label is not None:
        if label not in found.names:
            raise DataError(f"{source} has no label {label!r}{nearest(label, found.names)}")
        own = found.label == found.names.index(label)
        found = _taken(found, np.flatnonzero(own))
    if np.isnan(found.correct).all():
        raise DataError(
            f"{source}: nothing has been checked; say for some {unit}, drawn at random, whether "
            "the label is right (a column 'correct' with 1 or 0, or label:NAME)"
        )
    parts, part = _parts(found, by)
    counts = count_calls(
        found.log_odds,
        found.label,
        found.names,
        found.correct,
        part,
        parts,
        groups=found.group,
        method=method,
    )
    told = [CONDITIONS[method].format(unit)]
    if unit == "detections":
        missed = "photos with none reported" if found.of_photos else "calls that the program missed"
        told += [REPORTED.format(missed), *found.notes]
    return CallTable(counts, unit, " ".join(told))


def _entries(source: Path, kind: Kind | None, keep: tuple[str, ...]) -> Detections:
    """Return the entries of a table of scores, a row and a label each, as detections."""
    raw = read_raw(source, keep)
    scores = unlabelled_scores(raw, kind, None)
    rows, labels = scores.logits.shape
    correct = np.full((rows, labels), np.nan) if raw.labels is None else raw.labels
    present, known = label_arrays(correct)
    if ((present > 0) & (present < 1)).any():
        raise DataError(f"{source}: labels must be 1, 0 or empty to be counted, got soft ones")
    del known
    group = raw.group or raw.ids
    files, file = np.unique(np.array(group), return_inverse=True)
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


def _taken(found: Detections, rows: NDArray[np.intp]) -> Detections:
    name = found.names[int(found.label[rows[0]])]
    return replace(
        found,
        names=(name,),
        label=np.zeros(len(rows), np.int64),
        file=found.file[rows],
        start=found.start[rows],
        scores=found.scores[rows],
        correct=found.correct[rows],
        split=None,
        facts={column: values[rows] for column, values in found.facts.items()},
    )


def _parts(found: Detections, by: str | None) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of the groups and the group (N,) of each detection."""
    if by is None:
        return [""], np.zeros(len(found), np.int64)
    if by == "folder":
        folders = [os.path.dirname(with_slashes(name)) or "." for name in found.files]
        names, codes = np.unique(np.array(folders), return_inverse=True)
        return names.tolist(), codes.astype(np.int64)[found.file]
    names, codes = np.unique(found.facts[by], return_inverse=True)
    return names.tolist(), codes.astype(np.int64)


def write_calls(counts: list[CallCount], by: str, path: Path) -> None:
    """Write the counts as CSV, one row per label and group."""
    rows = [asdict(one) for one in counts]
    header = [by if name == "part" and by else name for name in rows[0]]
    write_csv(path, header, [tuple(row.values()) for row in rows])
