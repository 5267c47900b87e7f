"""Tables in files: CSV written for people, and Parquet whose text is text."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.base.files import replacing, require_regular
from labelwise.base.text import as_cell, first_line
from labelwise.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_AT = re.compile(r"^Invalid UTF8 sequence at string index (\d+)")


def write_csv(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[object]], delimiter: str = ","
) -> None:
    """Write a table, whole or not at all; no text is a formula, None is an empty cell."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=delimiter)
        table.writerow(_cells(header))
        table.writerows(map(_cells, rows))


def _cells(row: Sequence[object]) -> list[object]:
    return [as_cell(value) if isinstance(value, str) else value for value in row]


def read_parquet(path: Path, columns: list[str] | None = None) -> "pa.Table":
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


def with_text(
    table: "pa.Table | pa.RecordBatch", where: str | Path, first: int = 0
) -> "pa.Table | pa.RecordBatch":
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


def matrix_of_lists(column: "pa.ChunkedArray", width: int, name: str) -> Any:
    """Return a column of lists, each of ``width`` numbers, as a matrix; others are an error."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    types = pa.types
    if not (types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)):
        raise DataError(f"{name} must be a column of lists of numbers, got {kind}")
    value = kind.value_type
    if not (types.is_floating(value) or types.is_integer(value) or types.is_boolean(value)):
        raise DataError(f"{name} must hold numbers, got {value}")
    parts, row = [], 0
    # Without pyarrow.compute, which takes as long to import as the rest.
    for chunk in column.chunks:
        fixed = types.is_fixed_size_list(kind)
        lengths = np.full(len(chunk), kind.list_size) if fixed else np.diff(np.array(chunk.offsets))
        if chunk.null_count:
            lengths[np.array(chunk.is_null())] = -1
        for odd in np.flatnonzero(lengths != width)[:1].tolist():
            at, got = row + odd + 1, "nothing" if lengths[odd] < 0 else f"{lengths[odd]} numbers"
            raise DataError(f"{name}: row {at} must hold {width} numbers, one per label, got {got}")
        start = chunk.offset * width if fixed else chunk.offsets[0].as_py()
        flat = chunk.values.slice(start, len(chunk) * width)
        if flat.null_count:
            bad = int(np.flatnonzero(np.array(flat.is_null()))[0]) // max(width, 1)
            raise DataError(f"{name}: row {row + bad + 1} must hold numbers, got an empty one")
        parts.append(flat.to_numpy(zero_copy_only=False))
        row += len(chunk)
    return np.concatenate(parts or [np.empty(0, np.float32)]).reshape(-1, width)
