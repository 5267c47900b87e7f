"""Label tables in CSV, TSV, JSON Lines or Parquet, in one file or several, in bounded memory.

``unknown`` may say ``*``: every label that is not in ``labels``. A list that is null (Parquet, JSON
Lines) means that nothing is known of the image; an empty one means "none of them".
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from labelwise.data.columns import (
    USUAL_LABELS,
    USUAL_PATHS,
    TableColumns,
    Vocabulary,
    find_columns,
    folded,
)
from labelwise.data.label_columns import STATES, MinusOne, Words, holds_states
from labelwise.data.rows import label_names, require_file
from labelwise.data.table import LabelTable
from labelwise.data.table_builder import TableBuilder
from labelwise.data.tabular_files import TabularFile, open_delimited, open_jsonlines, open_parquet
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES

SAMPLE = 1000  # rows that a proposal is made from

TABULAR: dict[str, Callable[[Path], TabularFile]] = {
    ".csv": open_delimited,
    ".tsv": open_delimited,
    ".txt": open_delimited,
    ".jsonl": open_jsonlines,
    ".ndjson": open_jsonlines,
    ".parquet": open_parquet,
    ".pq": open_parquet,
}


def read_tables(
    path: Path | Sequence[tuple[Path, str | None]],
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str | None = None,
    ignore: Sequence[str] | str = (),
    root: str | Path | None = None,
    delimiter: str | None = None,
    extension: str = "",
    soft: bool = False,
    minus_one: MinusOne | None = None,
    called: str | None = None,
    levels: str | None = None,
    means_none: Sequence[str] | str | None = None,
    means_unknown: Sequence[str] | str | None = None,
    skip_broken: bool = False,
) -> LabelTable:
    """Return the table of one file, or of several with the split each stands for, or None.

    Image paths start from the files' folder or ``root`` and end in ``extension``. ``separator``
    parts the labels of a cell (``|``; blanks are asked about), ``delimiter`` the columns of CSV,
    TSV and TXT. ``soft`` allows shares between 0 and 1 in the label columns, and ``minus_one``
    says what -1 means there. ``means_none`` and ``means_unknown`` are words in the cells of labels
    that are no labels, and ``levels`` parts a label such as a/b/c, which says a and a/b too.
    ``skip_broken`` leaves lines out that are not rows of the table, which is ``called`` after the
    first file unless told otherwise.
    """
    files = [(path, None)] if isinstance(path, Path) else path
    options = {"columns": columns or {}, "separator": separator, "ignore": ignore}
    if separator == "":
        raise SettingsError("separator must not be empty")
    delimiter = "\t" if delimiter == "tab" else delimiter
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
        raise SettingsError(f"delimiter must be one character or 'tab', got {delimiter!r}")
    ignore = [ignore] if isinstance(ignore, str) else ignore
    given = label_names(names)
    words = None
    if means_none is not None or means_unknown is not None:
        said = (means_none or (), means_unknown or ())
        words = Words.of(*([one] if isinstance(one, str) else one for one in said))
    base = (
        Path(root) if root is not None else Path(os.path.commonpath([f.parent for f, _ in files]))
    )
    builder: TableBuilder | None = None
    for file, split in files:
        stream = open_tabular(require_file(file), delimiter, skip_broken)
        stated = {
            meaning: header
            for meaning, header in stream.meanings.items()
            if meaning not in stream.header and header not in ignore
        }
        meant = {**stated, **(columns or {})}
        layout = _layout(stream, file, meant, ignore)
        classes = given
        if classes is None and layout.labels is not None and stream.class_names is not None:
            classes = stream.class_names(layout.labels)
        if builder is None:
            first = file
            known = classes if layout.labels is not None else layout.label_names()
            if soft and layout.labels is not None:
                raise SettingsError(
                    f"{file.name}: soft=true is for one column per label; beside a column "
                    f"{layout.labels!r} soft labels stand in the columns 'soft' and 'shares'"
                )
            if minus_one is not None and layout.labels is not None:
                raise SettingsError(f"{file.name}: minus_one is for one column per label")
            builder = TableBuilder(
                layout,
                Vocabulary(known, levels),
                separator=separator,
                soft=soft,
                minus_one=minus_one,
                words=words,
            )
        elif layout != builder.columns:
            raise DataError(f"{file.name} and {first.name} must have the same columns")
        elif classes is not None and classes != list(builder.vocabulary.numbers):
            raise DataError(f"{file.name} and {first.name} must have the same classes")
        inside = os.path.relpath(file.parent, base) if root is None else "."
        prefix = "" if inside == "." or layout.image is not None else f"{inside}/"
        rows = 0
        try:
            for batch in stream.batches(layout.headers()):
                builder.add(batch, file.name, rows, split=split, prefix=prefix, extension=extension)
                rows += batch.num_rows
        except DataError as error:
            raise with_command(error, stream, options) from None
    if builder is None:
        raise DataError("there is no table to read")
    if builder.split and len(builder.split) != len(builder.present):
        raise DataError("either all files must have a split or none")
    try:
        table = builder.finish(base, called or files[0][0].stem)
    except DataError as error:
        raise with_command(error, stream, options) from None
    return replace(table, notes=(*table.notes, *stream.left_out))


def _layout(
    stream: TabularFile, file: Path, meant: Mapping[str, str], ignore: Sequence[str]
) -> TableColumns:
    """Return what the columns mean; one called as labels usually are may be a label's own."""
    find = partial(
        find_columns,
        stream.header,
        file.name,
        columns=meant,
        ignore=ignore,
        text_only=stream.text_only,
    )
    try:
        layout = find()
    except DataError as error:
        raise with_command(error, stream, {"columns": meant, "ignore": ignore}) from None
    if layout.labels is not None and any(repr(layout.labels) in said for said in layout.taken):
        batch = next(stream.batches([layout.labels]), None)
        if batch is not None and holds_states(batch.column(0)):
            return find(usual=["path"])
    return layout


def with_command(error: DataError, stream: TabularFile, given: Mapping[str, Any]) -> DataError:
    """Return an error that asks for an option, with all options that the first rows call for."""
    if not any(option in str(error) for option in ("columns.", "ignore=", "separator=")):
        return error
    try:
        batch = next(stream.batches(list(stream.header)), None)
    except (DataError, KeyError):
        return error
    options = proposed(batch.slice(0, SAMPLE), given) if batch is not None else []
    if len(options) < 2:
        return error
    command = " ".join(f"--set {shlex.quote(option)}" for option in options)
    return DataError(f"{error}. All that this table seems to need: `{command}`")


def proposed(batch: Any, given: Mapping[str, Any]) -> list[str]:
    """Return options under which the first rows of a table would be read, as far as can be seen."""
    cells = {
        name: [str(cell).strip() for cell in column.to_pylist() if cell not in (None, "")]
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if not pa.types.is_nested(column.type) and not pa.types.is_binary(column.type)
    }
    columns = {name: name for name in ("path", "labels") if name in cells}
    columns |= given.get("columns") or {}
    ignored = [given["ignore"]] if isinstance(given.get("ignore"), str) else given.get("ignore", ())
    free = [name for name in cells if name not in (*columns.values(), *ignored, "split", "group")]

    def photos(name: str) -> bool:
        return bool(cells[name]) and all(
            Path(cell).suffix.lower() in IMAGE_SUFFIXES for cell in cells[name]
        )

    usual = [name for name in free if folded(name) in USUAL_PATHS]
    unique = [name for name in free if cells[name] and len({*cells[name]}) == batch.num_rows]
    paths = [*filter(photos, free), *usual, *unique]
    if "path" not in columns and paths:
        columns["path"] = paths[0]
    free = [name for name in free if name != columns.get("path")]
    states = [name for name in free if all(cell.lower() in STATES for cell in cells[name])]
    texts = [name for name in free if name not in states and name not in unique]
    texts.sort(key=lambda name: folded(name) not in USUAL_LABELS)
    options = [f"columns.path={columns['path']}"] if columns.get("path", "path") != "path" else []
    labels = columns.get("labels") or (texts[0] if texts and not states else None)
    if labels is not None:
        options += [f"columns.labels={labels}"] if labels != "labels" else []
        separator = given.get("separator")
        inside = cells.get(labels, [])
        marks = [mark for mark in "|,;" if any(mark in cell for cell in inside)]
        if separator or (marks and marks[0] != "|"):
            options.append(f"separator={separator or marks[0]}")
    elif others := [*ignored, *(name for name in free if name not in states)]:
        options.append(f"ignore=[{','.join(json.dumps(name) for name in others)}]")
    return options


def open_tabular(
    file: Path, delimiter: str | None = None, skip_broken: bool = False
) -> TabularFile:
    """Return the table in a file, whose format its suffix tells."""
    opener = TABULAR.get(file.suffix.lower())
    if opener is None:
        raise DataError(f"{file} must be a table ({', '.join(TABULAR)}), got {file.suffix!r}")
    if opener is open_delimited:
        return open_delimited(file, delimiter, skip_broken)
    if delimiter is not None or skip_broken:
        option = "skip_broken" if delimiter is None else "delimiter"
        raise SettingsError(f"{file.name}: {option} is for CSV, TSV and TXT files")
    return opener(file)
