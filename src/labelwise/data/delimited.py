"""CSV and TSV files as a stream of batches; every value is text."""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from labelwise.data.stream import Stream
from labelwise.errors import DataError

__all__ = ["open_delimited"]

BLOCK_BYTES = 1 << 22


def open_delimited(path: Path) -> Stream:
    """Return the stream of a .csv or .tsv file with a header line."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open("rb") as stream:
        first = stream.readline(BLOCK_BYTES)
    try:
        line = first.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path.name}: the file must be UTF-8 text; save it as UTF-8") from None
    try:
        header = next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise DataError(f"{path.name}: the header cannot be read ({error})") from None
    if not any(name.strip() for name in header):
        raise DataError(f"{path.name}: the table is empty")
    return Stream(header, partial(_batches, path, delimiter), text_only=True)


def _batches(path: Path, delimiter: str, headers: list[str]) -> Iterator[Any]:
    rows = 0
    try:
        with arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in headers},
                include_columns=headers,
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                yield batch
                rows += batch.num_rows
    except pa.ArrowInvalid as error:
        text = str(error).splitlines()[0]
        if "utf8" in text.lower():
            text = f"it is not UTF-8 text after row {rows}; save it as UTF-8"
        raise DataError(f"{path.name}: the table cannot be read ({text})") from None
    except pa.ArrowKeyError as error:
        raise DataError(f"{path.name}: the header cannot be read ({error})") from None
