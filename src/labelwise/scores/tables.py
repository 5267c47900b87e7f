"""Labels beside scores: rows matched by id, labels by name, and tables of named columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from labelwise.base.files import replacing
from labelwise.base.text import counted
from labelwise.errors import DataError, SettingsError
from labelwise.pictures import FileImages
from labelwise.tables import LabelTable, open_table
from labelwise.tables.archives import Floats, Texts
from labelwise.tables.load import load_for_labels
from labelwise.tables.score_files import RawScores, read_raw
from labelwise.types import matching_columns, nearest

FITTED_FORMAT = 1  # of link.json and thresholds.json


def places(names: Sequence[str], there: Sequence[str]) -> NDArray[np.intp]:
    """Return where each name is among others, -1 for a name that is not."""
    place = {name: number for number, name in enumerate(there)}
    return np.array([place.get(name, -1) for name in names], np.intp)


def some_places(names: Sequence[str], there: Sequence[str], problem: str) -> NDArray[np.intp]:
    """Return :func:`places`; raise where no name is there."""
    found = places(names, there)
    if (found < 0).all():
        raise DataError(f"{problem}, first {names[0]!r}{nearest(names[0], there)}")
    return found


def write_columns(path: Path, columns: Mapping[str, object], what: str) -> None:
    """Write a table of named columns as .csv or .parquet; ``what`` they are stands in an error."""
    if path.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"{what} are written as .parquet or .csv, got {path.name!r}")
    table = pa.table(dict(columns))
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            arrow_csv.write_csv(table, temporary)
        else:
            pq.write_table(table, temporary)


def unscored_note(failed: int, source: str) -> str:
    """Return in words that images without scores are left out."""
    have, are = ("has", "is") if failed == 1 else ("have", "are")
    return f"{counted(failed, 'image')} of {source} {have} no scores and {are} left out"


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
) -> tuple[Floats, NDArray[np.bool_], Texts | None, Texts | None]:
    """Return labels (N, K) of the rows of ``raw``, NaN where unknown, and which rows have any.

    Beside them the group and the split of each row, where one of the two files names them; of two
    splits that of ``raw`` counts.
    """
    if open_table(source).holds == "scores":
        other = read_raw(Path(source))
        if other.labels is None:
            raise DataError(f"{other.source}: there are no labels; name columns like 'label:dog'")
        check_labels(other, other.labels)
        columns = matching_columns(raw.names, other.names, of=raw.source, in_=other.source)
        labels = other.labels[:, columns]
        ids, group, split = other.ids, other.group, other.split
    else:
        table = load_for_labels(source, raw.names)
        matching_columns(raw.names, table.space.names, of=raw.source, in_=table.name)
        labels, _ = aligned_labels(table, raw.names)
        ids, group = tuple(table.ids), None if table.group is None else tuple(table.group)
        split = None if table.split is None else tuple(table.split.tolist())
        if isinstance(table.images, FileImages) and not set(ids) & set(raw.ids):
            ids = tuple(str(table.images.path(row).resolve()) for row in range(len(ids)))
            raw = replace(raw, ids=tuple(str(Path(name).resolve()) for name in raw.ids))
    rows = some_places(raw.ids, ids, f"{source}: no id of {raw.source} is in it")
    matched = rows >= 0
    if group is not None and raw.group is not None:
        raise DataError(f"{raw.source} and {source} both name groups; leave one of them out")
    groups = raw.group if group is None else tuple(group[row] for row in rows)
    divided = raw.split
    if divided is None and split is not None:
        divided = tuple(split[row] for row in rows)
    return np.where(matched[:, None], labels[rows], np.nan), matched, groups, divided


def label_arrays(
    labels: NDArray[np.float64],
) -> tuple[NDArray[np.float32 | np.uint8], NDArray[np.bool_] | None]:
    """Return labels (N, K) as uint8, or float32 if some are soft, and which are known."""
    known = ~np.isnan(labels)
    values = np.where(known, labels, 0.0)
    kind = np.float32 if ((values > 0) & (values < 1)).any() else np.uint8
    return values.astype(kind), None if known.all() else known


def aligned_labels(table: LabelTable, names: tuple[str, ...]) -> tuple[Floats, list[str]]:
    """Return labels (N, K) in the order of ``names``, NaN where unknown, and what differs."""
    labels, observed = table.targets()
    lacks = f"{table.name} has none of the labels asked for"
    columns = some_places(names, table.space.names, lacks)
    known = columns >= 0 if observed is None else observed[:, columns] & (columns >= 0)
    aligned = np.where(known, labels[:, columns].astype(np.float64), np.nan)
    notes = []
    for what, ours, theirs in (
        ("does not speak of {}, unknown here", names, table.space.names),
        ("also has {}, left out", table.space.names, names),
    ):
        lacking = sorted(set(ours) - set(theirs))
        if lacking:
            some = ", ".join(lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            labels_in_words = f"{counted(len(lacking), 'label')} ({some})"
            notes.append(f"{table.name} {what.format(labels_in_words)}.")
    return aligned, notes
