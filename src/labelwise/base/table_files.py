"""Tables in files: CSV written for people, and Parquet whose text is text."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from labelwise.base.files import replacing, require_regular
from labelwise.base.text import as_cell, first_line
from labelwise.errors import DataError

TEXT_AT = re.compile(r"^Invalid UTF8 sequence at string index (\d+)")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table, whole or not at all; no text is a formula, None is an empty cell."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(_cells(header))
        table.writerows(map(_cells, rows))


def _cells(row: Sequence[object]) -> list[object]:
    return [as_cell(value) if isinstance(value, str) else value for value in row]


def read_parquet(path: Path, columns: list[str] | None = None) -> Any:
    """Return a Parquet file as an Arrow table whose values were checked, or raise a DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        require_regular(path)
        table = pq.read_table(path, columns=columns)
        _ = table.column_names  # which need not be text
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({first_line(error)})") from None
    return with_text(table, path)


def with_text(table: Any, where: str | Path, first: int = 0) -> Any:
    """Return an Arrow table or batch, or raise a DataError that names text which is not UTF-8.

    Arrow does not look at the bytes of a Parquet file's text until a text is made of them.
    ``first`` rows of the file come before these.
    """
    import pyarrow as pa

    for name, column in zip(table.schema.names, table.columns, strict=True):
        rows = first
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
            try:
                chunk.validate(full=True)
            except (pa.ArrowException, UnicodeError) as error:
                reason = first_line(error)
                at = TEXT_AT.search(reason)
                row = f", row {rows + int(at[1]) + 1}" if at else ""
                what = "text that is not UTF-8" if "UTF8" in reason else f"broken values ({reason})"
                raise DataError(
                    f"{where}{row}: the column {name!r} holds {what}; write the file again"
                ) from None
            rows += len(chunk)
    return table
