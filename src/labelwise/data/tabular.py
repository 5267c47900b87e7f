"""Label tables in CSV, TSV, JSON Lines or Parquet, in one file or several, in bounded memory.

``unknown`` may say ``*``: every label that is not in ``labels``. A list that is null (Parquet, JSON
Lines) means that nothing is known of the image; an empty one means "none of them".
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labelwise.data.columns import Vocabulary, find_columns
from labelwise.data.label_columns import MinusOne
from labelwise.data.rows import label_names, require_file
from labelwise.data.table import LabelTable
from labelwise.data.table_builder import TableBuilder
from labelwise.data.tabular_files import TabularFile, open_delimited, open_jsonlines, open_parquet
from labelwise.errors import DataError, SettingsError

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
) -> LabelTable:
    """Return the table of one file, or of several with the split each stands for, or None.

    Image paths start from the files' folder or ``root`` and end in ``extension``. ``separator``
    parts the labels of a cell (``|``; blanks are asked about), ``delimiter`` the columns of CSV,
    TSV and TXT. ``soft`` allows shares between 0 and 1 in the label columns, and ``minus_one``
    says what -1 means there. The table is ``called`` after the first file unless told otherwise.
    """
    files = [(path, None)] if isinstance(path, Path) else path
    if separator == "":
        raise SettingsError("separator must not be empty")
    delimiter = "\t" if delimiter == "tab" else delimiter
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
        raise SettingsError(f"delimiter must be one character or 'tab', got {delimiter!r}")
    ignore = [ignore] if isinstance(ignore, str) else ignore
    given = label_names(names)
    base = (
        Path(root) if root is not None else Path(os.path.commonpath([f.parent for f, _ in files]))
    )
    builder: TableBuilder | None = None
    for file, split in files:
        stream = open_tabular(require_file(file), delimiter)
        stated = {
            meaning: header
            for meaning, header in stream.meanings.items()
            if meaning not in stream.header and header not in ignore
        }
        meant = {**stated, **(columns or {})}
        layout = find_columns(
            stream.header, file.name, columns=meant, ignore=ignore, text_only=stream.text_only
        )
        words = given
        if words is None and layout.labels is not None and stream.class_names is not None:
            words = stream.class_names(layout.labels)
        if builder is None:
            first = file
            known = words if layout.labels is not None else layout.label_names()
            if soft and layout.labels is not None:
                raise SettingsError(
                    f"{file.name}: soft=true is for one column per label; beside a column "
                    f"{layout.labels!r} soft labels stand in the columns 'soft' and 'shares'"
                )
            if minus_one is not None and layout.labels is not None:
                raise SettingsError(f"{file.name}: minus_one is for one column per label")
            builder = TableBuilder(
                layout, Vocabulary(known), separator=separator, soft=soft, minus_one=minus_one
            )
        elif layout != builder.columns:
            raise DataError(f"{file.name} and {first.name} must have the same columns")
        elif words is not None and words != list(builder.vocabulary.numbers):
            raise DataError(f"{file.name} and {first.name} must have the same classes")
        inside = os.path.relpath(file.parent, base) if root is None else "."
        prefix = "" if inside == "." or layout.image is not None else f"{inside}/"
        rows = 0
        for batch in stream.batches(layout.headers()):
            builder.add(batch, file.name, rows, split=split, prefix=prefix, extension=extension)
            rows += batch.num_rows
    if builder is None:
        raise DataError("there is no table to read")
    if builder.split and len(builder.split) != len(builder.present):
        raise DataError("either all files must have a split or none")
    return builder.finish(base, called or files[0][0].stem)


def open_tabular(file: Path, delimiter: str | None = None) -> TabularFile:
    """Return the table in a file, whose format its suffix tells."""
    opener = TABULAR.get(file.suffix.lower())
    if opener is None:
        raise DataError(f"{file} must be a table ({', '.join(TABULAR)}), got {file.suffix!r}")
    if delimiter is None:
        return opener(file)
    if opener is not open_delimited:
        raise SettingsError(f"{file.name}: delimiter is for CSV, TSV and TXT files")
    return open_delimited(file, delimiter)
