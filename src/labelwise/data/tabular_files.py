"""Tabular files as a header and Arrow batches: CSV, TSV, JSON Lines, Parquet.

Every value of CSV and TSV is text; JSON Lines has one object per line whose keys are the columns.
Class names of Parquet are taken from ``classes`` or ``<column>_names`` (JSON lists) in its
metadata, or from the features that Hugging Face ``datasets`` writes. These also state which column
holds images and which one classes; where there are two of a kind, nothing is taken from it.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from io import SEEK_END
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from labelwise.errors import DataError
from labelwise.system.text import FORMULA, first_line, from_cell

BLOCK_BYTES = 1 << 22
DELIMITERS = {".csv": ",", ".tsv": "\t"}
BATCH_ROWS = 16384
BATCH_BYTES = 1 << 26
READ_BYTES = 1 << 20
MOST_COLUMNS = 100_000  # each takes 9 kB of memory while it is read
COLUMNS = 1 << 10  # looked at in one call
EXCEL_DELIMITER = re.compile(rb"(?:\xef\xbb\xbf)?sep=([;,\t])\r?\n", re.IGNORECASE)
WRONG_CELLS = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class TabularFile:
    """``batches(headers)`` yields record batches of these columns.

    ``class_names(header)`` gives the names a file states for a column's classes, or None (it is
    None itself where the format has no place for them);
    ``meanings`` are the columns whose meaning it states, such as {"labels": "label"}; a
    ``text_only`` format cannot hold the bytes of images.
    """

    header: Sequence[str]
    batches: Callable[[list[str]], Iterator[Any]]
    class_names: Callable[[str], list[str] | None] | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    text_only: bool = False


def open_delimited(path: Path, delimiter: str | None = None) -> TabularFile:
    """Return the table in a .csv, .tsv or .txt file with a header line.

    The delimiter of .txt is the one of tab, comma and semicolon that stands in its header, and
    that of a file whose first line is Excel's ``sep=;`` the one named there.
    """
    with path.open("rb") as stream:
        first = stream.readline(BLOCK_BYTES)
        named = EXCEL_DELIMITER.fullmatch(first)
        if named is not None:
            first = stream.readline(BLOCK_BYTES)
            delimiter = delimiter or named[1].decode()
    try:
        line = first.decode("utf-8-sig")
    except UnicodeDecodeError:
        line = "\0"
    if "\0" in line:  # every second byte of UTF-16
        raise DataError(f"{path.name}: the file must be UTF-8 text; save it as UTF-8")
    if delimiter is None:
        delimiter = DELIMITERS.get(path.suffix.lower()) or _delimiter_in(line, path.name)
    if "\n" not in line and "\r" in line.rstrip("\r"):
        raise DataError(
            f"{path.name}: its lines end with a carriage return alone, as on old Macs; save the "
            "table with the line ends of Unix or Windows"
        )
    try:
        header = next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise DataError(f"{path.name}: the header cannot be read ({error})") from None
    if not any(name.strip() for name in header):
        raise DataError(f"{path.name}: the table is empty")
    if len(header) > MOST_COLUMNS or len(first) == BLOCK_BYTES:
        raise DataError(
            f"{path.name}: a table may have {MOST_COLUMNS:,} columns, whose names take "
            f"{BLOCK_BYTES:,} bytes; name the labels of each image in one column `labels` instead"
        )
    other = next((mark for mark in ";\t," if mark in header[0]), None)
    if len(header) == 1 and other is not None:
        raise DataError(
            f"{path.name}: the header is one column, {header[0]!r}; if {other!r} parts the "
            f"columns, give `--set {_setting('delimiter', other)}`"
        )
    written = {from_cell(name): name for name in header}
    batches = partial(_delimited_batches, path, delimiter, written, named is not None)
    return TabularFile(list(map(from_cell, header)), batches, text_only=True)


def as_cells(columns: Sequence[Any]) -> list[Any]:
    """Return columns of text for a CSV file, so that no cell is a formula: see ``as_cell``."""
    return [pc.replace_substring_regex(one, rf"^({FORMULA.pattern})", r"'\1") for one in columns]


def _from_cells(path: Path, columns: Sequence[Any]) -> list[Any]:
    """Return columns of text as they were before :func:`as_cells`.

    Raise where a quote that is never closed has swallowed the rows after it.
    """
    found: list[Any] = []
    for start in range(0, len(columns), COLUMNS):
        some = columns[start : start + COLUMNS]
        together = pa.concat_arrays(some)
        if pc.any(pc.match_substring(together, "\n")).as_py():
            line = _open_quote(path)
            if line is not None:
                raise DataError(_stray_quote(path, line))
        if pc.any(pc.starts_with(together, "'")).as_py():
            some = [
                pc.replace_substring_regex(one, rf"^'({FORMULA.pattern})", r"\1") for one in some
            ]
        found += some
    return found


def _delimiter_in(header: str, where: str) -> str:
    marks = [mark for mark in "\t,;" if mark in header]
    if len(marks) > 1:
        raise DataError(
            f"{where}: its columns could be parted by {' or '.join(map(repr, marks))}; "
            f"say which, as in `--set {_setting('delimiter', marks[0])}`"
        )
    return marks[0] if marks else ","


def _setting(option: str, mark: str) -> str:
    return f"{option}=tab" if mark == "\t" else f"'{option}={mark}'"


def _delimited_batches(
    path: Path, delimiter: str, written: Mapping[str, str], above: bool, wanted: list[str]
) -> Iterator[Any]:
    """Yield the rows below the header, which stands in the first line or has one ``above`` it.

    ``written`` is how the file writes each name of its header.
    """
    headers = [written[name] for name in wanted]
    try:
        with arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(
                block_size=BLOCK_BYTES, use_threads=False, skip_rows=int(above)
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in headers},
                include_columns=headers,
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                yield pa.record_batch(_from_cells(path, batch.columns), wanted)
    except pa.ArrowInvalid as error:
        text = str(error).splitlines()[0]
        if "straddl" in text and (line := _open_quote(path)) is not None:
            raise DataError(_stray_quote(path, line)) from None
        if "utf8" in text.lower():
            text = f"line {_first_line_not_utf8(path)} is not UTF-8 text; save the table as UTF-8"
        if found := WRONG_CELLS.search(text):
            row, expected, got = found.groups()
            raise DataError(
                f"{path.name}, row {int(row) - 1 - above}: it has {got} cells, the header "
                f"{expected}; put quotes around a cell that holds {delimiter!r}, as in "
                f'"dog{delimiter}beach", or give every row as many cells as the header'
            ) from None
        raise DataError(f"{path.name}: the table cannot be read ({text})") from None
    except pa.ArrowKeyError as error:
        raise DataError(f"{path.name}: the header cannot be read ({error})") from None


def _first_line_not_utf8(path: Path) -> int | str:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return "one"  # the file has changed since


def _open_quote(path: Path) -> int | None:
    """Return the first line with an odd number of quotes if the file has an odd number of them."""
    first, quotes = None, 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            quotes += line.count(b'"')
            if first is None and line.count(b'"') % 2:
                first = number
    return first if quotes % 2 else None


def _stray_quote(path: Path, line: int) -> str:
    return (
        f'{path.name}, line {line}: a quote (") is opened and never closed, so that the rows after '
        "it would be one cell; close it, or write it twice and quote the whole cell"
    )


def open_jsonlines(path: Path) -> TabularFile:
    """Return the table in a .jsonl file; the first object says which columns there are."""
    first = next(json_objects(path), None)
    if first is None:
        raise DataError(f"{path.name}: the table is empty")
    return TabularFile(list(first[1]), partial(_json_batches, path), text_only=True)


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, each with the number of its line."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError:
                raise DataError(
                    f"{path.name}, line {number}: it is not UTF-8 text; save it as UTF-8"
                ) from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path.name}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise DataError(f"{path.name}, line {number}: must be an object, got {row!r:.60}")
            yield number, row


def _json_batches(path: Path, headers: list[str]) -> Iterator[Any]:
    rows = json_objects(path)
    first = json_objects(path)
    columns = set(next(first)[1])
    while chunk := list(islice(rows, BATCH_ROWS)):
        for number, row in chunk:
            strange = row.keys() - columns
            if strange:
                raise DataError(
                    f"{path.name}, line {number}: the key {min(strange)!r} is not in the first line"
                )
        arrays = [
            _json_column(path.name, name, [(n, row.get(name)) for n, row in chunk])
            for name in headers
        ]
        yield pa.record_batch(arrays, headers)


def _json_column(where: str, name: str, cells: list[tuple[int, Any]]) -> Any:
    values = [value for _, value in cells]
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        kinds = set()
    if len(kinds) > 1:
        number = next(n for n, value in cells if type(value) is not type(values[0]))
        raise DataError(f"{where}, line {number}: {name!r} must be of one kind in all lines")
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        raise DataError(
            f"{where}, lines {cells[0][0]} to {cells[-1][0]}: {name!r} must hold plain values "
            "or lists of names"
        ) from None


def open_parquet(path: Path) -> TabularFile:
    """Return the table in a .parquet file."""
    return parquet_table(path.name, lambda: nullcontext(path))


def parquet_table(name: str, opened: Callable[[], AbstractContextManager[Any]]) -> TabularFile:
    """Return the table in the Parquet file that ``opened`` gives: a path, or a stream."""
    try:
        with opened() as source:
            schema = pq.read_schema(source)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{name}: this is not a Parquet file ({first_line(error)})") from None
    metadata = schema.metadata or {}
    features = _features(metadata, name)
    return TabularFile(
        schema.names,
        partial(_parquet_batches, name, opened),
        partial(_class_names, metadata, features, name),
        _meanings(features),
    )


def _parquet_batches(
    name: str, opened: Callable[[], AbstractContextManager[Any]], headers: list[str]
) -> Iterator[Any]:
    try:
        # Read ahead, all row groups would stay in memory until the file is closed.
        with (
            opened() as source,
            pq.ParquetFile(source, pre_buffer=False, buffer_size=READ_BYTES) as file,
        ):
            size = source.stat().st_size if isinstance(source, Path) else source.seek(0, SEEK_END)
            rows = _rows_at_once(file.metadata.num_rows, size)
            yield from file.iter_batches(rows, columns=headers, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{name}: the table cannot be read ({first_line(error)})") from None


def _rows_at_once(num_rows: int, size: int) -> int:
    """Return how many rows of a file of so many bytes are read at once: few if it holds images.

    Sizes of single columns would say more, but asking a damaged file for them aborts Arrow.
    """
    return max(1, min(BATCH_ROWS, BATCH_BYTES * num_rows // max(size, 1)))


def _features(metadata: dict[bytes, bytes], where: str) -> dict[str, dict[str, Any]]:
    """Return Hugging Face's description of each column, that of its items if it holds lists."""
    if b"huggingface" not in metadata:
        return {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {header: _item(feature) for header, feature in features.items()}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: the metadata of Hugging Face is broken ({error})") from None


def _item(feature: Any) -> dict[str, Any]:
    if isinstance(feature, list):  # how older versions write lists
        feature = {"feature": feature[0]} if feature else {}
    item = feature.get("feature", feature) if isinstance(feature, dict) else {}
    return item if isinstance(item, dict) else {}


def _meanings(features: dict[str, dict[str, Any]]) -> dict[str, str]:
    meanings = {}
    for meaning, kind in (("image", "Image"), ("labels", "ClassLabel")):
        headers = [header for header, item in features.items() if item.get("_type") == kind]
        if len(headers) == 1:
            meanings[meaning] = headers[0]
    return meanings


def _class_names(
    metadata: dict[bytes, bytes], features: dict[str, dict[str, Any]], where: str, header: str
) -> list[str] | None:
    for key in (f"{header}_names", "classes"):
        if key.encode() in metadata:
            return _names(metadata[key.encode()], where)
    names = features.get(header, {}).get("names")
    return None if names is None else _names(json.dumps(names), where)


def _names(text: bytes | str, where: str) -> list[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: the class names in the metadata are broken ({error})") from None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise DataError(f"{where}: the class names in the metadata must be a list of text")
    return value
