"""Score files with one column a label: CSV, TSV and plain Parquet.

    id, split (optional), score:NAME for every label, label:NAME for every label

A label is 1, 0 or an empty cell (null in Parquet) for unknown. Other columns are left alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from labelwise.errors import DataError
from labelwise.scores.raw import Raw
from labelwise.types import nearest

__all__ = ["read_delimited", "read_parquet_columns"]


def read_delimited(path: Path) -> Raw:
    """Return the numbers of a .csv or .tsv file."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    options = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with path.open("rb") as stream:
            names = arrow_csv.open_csv(stream, parse_options=options).schema.names
        text = arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        )
        table = arrow_csv.read_csv(path, parse_options=options, convert_options=text)
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, UnicodeDecodeError) or "utf8" in reason.lower():
            reason = "it must be UTF-8 text; save it as UTF-8"
        raise DataError(f"{path}: the table cannot be read ({reason})") from None
    return _raw(str(path), table)


def read_parquet_columns(path: Path, table: Any) -> Raw:
    """Return the numbers of a Parquet table that was read already."""
    return _raw(str(path), table)


def _raw(source: str, table: Any) -> Raw:
    headers = table.column_names
    twice = {name for name in headers if headers.count(name) > 1} if len(headers) < 200 else ()
    if twice or len(set(headers)) != len(headers):
        name = next(iter(twice), "a name")
        raise DataError(f"{source}: the column {name!r} stands there twice")
    if "id" not in headers:
        raise DataError(f"{source}: there is no column 'id'{nearest('id', headers)}")
    parts = {
        mark: [name for name in headers if name.startswith(f"{mark}:")]
        for mark in ("score", "label")
    }
    names = _names(source, headers, parts)
    ids = tuple(str(value) for value in table["id"].to_pylist())
    split = tuple(map(str, table["split"].to_pylist())) if "split" in headers else None
    matrices: dict[str, NDArray[np.float64] | None] = {}
    for mark, columns in parts.items():
        matrices[mark] = None
        if columns:
            matrices[mark] = np.stack(
                [_numbers(source, table, f"{mark}:{name}", ids) for name in names], 1
            ).reshape(len(ids), len(names))
    raw = Raw(source, names, ids, matrices["score"], matrices["label"], split)
    raw.check_names()
    return raw


def _names(source: str, headers: list[str], parts: dict[str, list[str]]) -> tuple[str, ...]:
    if not parts["score"] and not parts["label"]:
        raise DataError(
            f"{source}: there are no columns 'score:NAME' or 'label:NAME', "
            f"got {', '.join(map(repr, headers[:8]))}; name one column a label like 'score:dog'"
        )
    scored = [name.split(":", 1)[1] for name in parts["score"]]
    labelled = [name.split(":", 1)[1] for name in parts["label"]]
    if scored and labelled:
        for here, there, mark in ((scored, labelled, "label"), (labelled, scored, "score")):
            missing = [name for name in here if name not in set(there)]
            if missing:
                raise DataError(
                    f"{source}: there is no column '{mark}:{missing[0]}'"
                    f"{nearest(missing[0], there)}"
                )
    return tuple(scored or labelled)


def _numbers(source: str, table: Any, column: str, ids: tuple[str, ...]) -> NDArray[np.float64]:
    """Return a column as float64, NaN where a cell is empty."""
    values = table[column].combine_chunks()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        trimmed = compute.utf8_trim_whitespace(values)
        values = compute.if_else(compute.equal(trimmed, ""), None, trimmed)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    try:
        numbers: NDArray[np.float64] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row, text = _first_bad(values)
        raise DataError(
            f"{source}: row {row + 1} (id {ids[row]!r}): {column!r} must be a number, got {text!r}"
        ) from None
    return numbers


def _first_bad(values: Any) -> tuple[int, Any]:
    for row, value in enumerate(values.to_pylist()):
        try:
            if value is not None:
                float(value)
        except (TypeError, ValueError):
            return row, value
    return 0, values[0].as_py()


def parquet_table(path: Path) -> Any:
    """Return a Parquet file as a table."""
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a readable Parquet file ({reason})") from None
