"""Label tables in CSV, TSV, JSON Lines or Parquet, in one file or several."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labelwise.data.delimited import open_delimited
from labelwise.data.gather import Gather
from labelwise.data.jsonlines import open_jsonlines
from labelwise.data.layout import find_layout
from labelwise.data.parquet import open_parquet
from labelwise.data.rows import label_names
from labelwise.data.stream import Stream
from labelwise.data.table import LabelTable
from labelwise.data.vocabulary import Vocabulary
from labelwise.errors import DataError, SettingsError

__all__ = ["TABULAR", "read_files", "read_tabular"]

TABULAR: dict[str, Callable[[Path], Stream]] = {
    ".csv": open_delimited,
    ".tsv": open_delimited,
    ".jsonl": open_jsonlines,
    ".ndjson": open_jsonlines,
    ".parquet": open_parquet,
    ".pq": open_parquet,
}


def read_tabular(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str = "|",
    ignore: Sequence[str] | str = (),
    root: str | Path | None = None,
) -> LabelTable:
    """Return the table of one file; image paths start from its folder or ``root``."""
    return read_files(
        [(path, None)],
        columns=columns,
        names=names,
        separator=separator,
        ignore=ignore,
        root=root,
    )


def read_files(
    files: Sequence[tuple[Path, str | None]],
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str = "|",
    ignore: Sequence[str] | str = (),
    root: str | Path | None = None,
    called: str | None = None,
) -> LabelTable:
    """Return one table of several files, each with the split it stands for, or None.

    It is ``called`` after the first file unless told otherwise.
    """
    if not separator:
        raise SettingsError("separator must not be empty")
    if columns is not None and not isinstance(columns, Mapping):
        raise SettingsError(f"columns must map a meaning to a header, got {columns!r}")
    ignore = [ignore] if isinstance(ignore, str) else ignore
    given = label_names(names)
    base = (
        Path(root) if root is not None else Path(os.path.commonpath([f.parent for f, _ in files]))
    )
    gather: Gather | None = None
    for file, split in files:
        stream = TABULAR[file.suffix.lower()](file)
        stated = {
            meaning: header
            for meaning, header in stream.meanings.items()
            if meaning not in stream.header and header not in ignore
        }
        meant = {**stated, **(columns or {})}
        layout = find_layout(
            stream.header, file.name, columns=meant, ignore=ignore, text_only=stream.text_only
        )
        words = given
        if words is None and layout.labels is not None:
            words = stream.class_names(layout.labels)
        if gather is None:
            first = file
            known = words if layout.labels is not None else layout.one_hot
            gather = Gather(layout, Vocabulary(known), separator=separator)
        elif layout != gather.layout:
            raise DataError(f"{file.name} and {first.name} must have the same columns")
        elif words is not None and words != list(gather.vocabulary):
            raise DataError(f"{file.name} and {first.name} must have the same classes")
        inside = os.path.relpath(file.parent, base) if root is None else "."
        prefix = "" if inside == "." or layout.image is not None else f"{inside}/"
        rows = 0
        for batch in stream.batches(layout.headers()):
            gather.add(batch, file.name, rows, split=split, prefix=prefix)
            rows += batch.num_rows
    if gather is None:
        raise DataError("there is no table to read")
    if gather.split and len(gather.split) != len(gather.present):
        raise DataError("either all files must have a split or none")
    return gather.finish(base, called or files[0][0].stem)
