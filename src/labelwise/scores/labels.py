"""Labels for scores: those beside them in their file, or in one of their own, row by row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable
from labelwise.data.load import load_for_labels
from labelwise.errors import DataError
from labelwise.pictures import FileImages
from labelwise.scores.tables import RawScores, read_raw
from labelwise.system.table_files import read_parquet
from labelwise.types import matching_columns, nearest


def refuse_entries(
    raw: RawScores, bad: NDArray[np.bool_], values: NDArray[np.float64], rule: str, way_out: str
) -> None:
    """Raise with the first entry that is ``bad``, the rule that it breaks, and a way out."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        got = "nothing" if np.isnan(value) else f"{value:g}"
        raise DataError(f"{raw.row(row)}: {rule}, got {got} for {raw.names[column]!r}; {way_out}")


def check_labels(raw: RawScores, labels: NDArray[np.float64]) -> None:
    """Raise unless labels (N, K) lie in [0, 1], or are NaN for unknown."""
    odd = ~np.isnan(labels) & ~((labels >= 0) & (labels <= 1))
    rule = "a label is 1, 0, a share in between if it is soft, or empty for unknown"
    refuse_entries(raw, odd, labels, rule, "correct the cell")


def labels_beside(
    raw: RawScores, source: str | Path
) -> tuple[NDArray[np.float64], NDArray[np.bool_], Sequence[str] | None, Sequence[str] | None]:
    """Return labels (N, K) of the rows of ``raw``, NaN where unknown, and which rows have any.

    Beside them the group and the split of each row, where one of the two files names them; of two
    splits that of ``raw`` counts.
    """
    path = Path(source)
    if path.is_file() and _holds_label_columns(path):
        other = read_raw(path)
        if other.labels is None:
            raise DataError(f"{other.source}: there are no labels; name columns like 'label:dog'")
        check_labels(other, other.labels)
        columns = matching_columns(raw.names, other.names, of=raw.source, in_=other.source)
        ids, labels, group = other.ids, other.labels[:, columns], other.group
        split = other.split
    else:
        table = load_for_labels(source, raw.names)
        matching_columns(raw.names, table.space.names, of=raw.source, in_=table.name)
        labels, _ = aligned_labels(table, raw.names)
        ids = tuple(table.ids)
        group = None if table.group is None else tuple(table.group)
        split = None if table.split is None else tuple(table.split.tolist())
        if isinstance(table.images, FileImages) and not set(ids) & set(raw.ids):
            ids = tuple(str(table.images.path(row).resolve()) for row in range(len(ids)))
            raw = replace(raw, ids=tuple(str(Path(name).resolve()) for name in raw.ids))
    place = {name: row for row, name in enumerate(ids)}
    rows = np.array([place.get(name, -1) for name in raw.ids])
    matched = rows >= 0
    if not matched.any():
        raise DataError(
            f"{source}: no id of {raw.source} is in it, first {raw.ids[0]!r}"
            f"{nearest(raw.ids[0], ids)}"
        )
    if group is not None and raw.group is not None:
        raise DataError(f"{raw.source} and {source} both name groups; leave one of them out")
    found = raw.group if group is None else [group[row] for row in rows]
    divided: Sequence[str] | None = raw.split
    if divided is None and split is not None:
        divided = [split[row] for row in rows]
    return np.where(matched[:, None], labels[rows], np.nan), matched, found, divided


def _holds_label_columns(path: Path) -> bool:
    """Return whether a file of labels has the form of a score file."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return True
    if suffix == ".parquet":
        names = read_parquet(path).column_names
    elif suffix in (".csv", ".tsv"):
        with path.open(encoding="utf-8", errors="replace") as stream:
            names = (
                stream.readline().replace('"', "").strip().split("\t" if suffix == ".tsv" else ",")
            )
    else:
        return False
    return "id" in names and any(name.startswith(("label:", "score:")) for name in names)


def label_arrays(labels: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return labels (N, K) with NaN for unknown as predictions hold them, and which are known.

    Labels are uint8, or float32 if some are soft.
    """
    unknown = np.isnan(labels)
    values = np.where(unknown, 0.0, labels)
    kind = np.float32 if ((values > 0) & (values < 1)).any() else np.uint8
    known = ~unknown if unknown.any() else None
    return values.astype(kind), known


def aligned_labels(
    table: LabelTable, names: tuple[str, ...]
) -> tuple[NDArray[np.float64], list[str]]:
    """Return labels (N, K) in the order of ``names``, NaN where unknown, and what differs."""
    labels, observed = table.targets()
    values = labels.astype(np.float64)
    if observed is not None:
        values[~observed] = np.nan
    column = {name: number for number, name in enumerate(table.space.names)}
    if not set(names) & set(column):
        raise DataError(
            f"{table.name} has none of the labels asked for, first {names[0]!r}"
            f"{nearest(names[0], column)}"
        )
    found = np.full((len(table), len(names)), np.nan)
    for place, name in enumerate(names):
        if name in column:
            found[:, place] = values[:, column[name]]
    notes = []
    for what, ours, theirs in (
        ("does not speak of {}, unknown here", names, column),
        ("also has {}, left out", column, names),
    ):
        lacking = sorted(set(ours) - set(theirs))
        if lacking:
            some = ", ".join(lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            count = f"{len(lacking):,} label" + ("s" if len(lacking) > 1 else "")
            notes.append(f"{table.name} {what.format(f'{count} ({some})')}.")
    return found, notes
