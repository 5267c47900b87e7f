"""Label tables in CSV, TSV, JSON Lines or Parquet, in one file or several, in bounded memory.

``unknown`` may say ``*``: every label that is not in ``labels``. A list that is null (Parquet, JSON
Lines) means that nothing is known of the image; an empty one means "none of them".
"""

import csv
import io
import json
import os
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

from labelwise.base.storage import LocalStorage
from labelwise.base.table_files import with_text
from labelwise.base.text import FORMULA, counted, first_line, from_cell
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables.columns import (
    STATES,
    USUAL_LABELS,
    USUAL_PATHS,
    WORDS,
    MinusOne,
    TableColumns,
    Vocabulary,
    find_columns,
    folded,
    holds_states,
)
from labelwise.tables.rows import inner, label_names, parse_json, require_file
from labelwise.tables.table import SPLIT_WORDS, LabelTable
from labelwise.tables.table_builder import TableBuilder

BLOCK_BYTES = 1 << 22
DELIMITERS = {".csv": ",", ".tsv": "\t"}
BATCH_ROWS = 16384
BATCH_BYTES = 1 << 26
READ_BYTES = 1 << 20
MOST_COLUMNS = 100_000  # each takes 9 kB of memory while it is read
EXCEL_DELIMITER = re.compile(rb"(?:\xef\xbb\xbf)?sep=([;,\t])\r?\n", re.IGNORECASE)
MOST_LINES = 100  # that one row may go on over, where a file is broken
SHOWN, SHOWN_TEXT = 10, 80  # broken lines, and letters of each


@dataclass(frozen=True)
class TabularFile:
    """``batches(headers)`` yields record batches of these columns.

    ``class_names(header)`` gives the names that a format with a place for them states of classes,
    ``meanings`` are the columns whose meaning it states, such as {"labels": "label"}; a
    ``text_only`` format cannot hold the bytes of images.
    """

    header: Sequence[str]
    batches: Callable[[list[str]], Iterator[Any]]
    class_names: Callable[[str], list[str] | None] | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    text_only: bool = False
    left_out: list[str] = field(default_factory=list)  # once the batches were read


def open_delimited(
    path: Path, delimiter: str | None = None, skip_broken: bool = False
) -> TabularFile:
    """Return the table in a .csv, .tsv or .txt file with a header line.

    Excel's ``sep=;`` may name the delimiter; that of .txt is in its header.
    """
    with path.open("rb") as stream:
        first = stream.readline(BLOCK_BYTES)
        if (named := EXCEL_DELIMITER.fullmatch(first)) is not None:
            first = stream.readline(BLOCK_BYTES)
            delimiter = delimiter or named[1].decode()
    try:
        line = first.decode("utf-8-sig")
    except UnicodeDecodeError:
        line = "\0"
    if "\0" in line:  # every second byte of UTF-16
        raise DataError(f"{path.name}: the file must be UTF-8 text; save it as UTF-8")
    if delimiter is None:
        marks = [mark for mark in "\t,;" if mark in line]
        delimiter = DELIMITERS.get(path.suffix.lower())
        if delimiter is None and len(marks) > 1:
            raise DataError(
                f"{path.name}: its columns could be separated by {' or '.join(map(repr, marks))}; "
                f"say which, as in `--set {_setting('delimiter', marks[0])}`"
            )
        delimiter = delimiter or (*marks, ",")[0]
    if "\n" not in line and "\r" in line.rstrip("\r"):
        way_out = "save the table with the line ends of Unix or Windows"
        raise DataError(f"{path.name}: its lines end with a carriage return alone; {way_out}")
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
    layout = _Layout(path, delimiter, len(header), named is not None)
    left_out: list[str] = []
    batches = partial(_delimited_batches, layout, written, left_out if skip_broken else None)
    return TabularFile(list(map(from_cell, header)), batches, text_only=True, left_out=left_out)


@dataclass(frozen=True)
class _Layout:
    """How a delimited file is written; ``above`` says that a line stands above its header."""

    path: Path
    delimiter: str
    columns: int
    above: bool

    def records(self) -> Iterator[tuple[int, bytes, bool]]:
        """Yield the line that each row begins at, its bytes, and whether it is a whole row."""
        with self.path.open("rb") as stream:
            source = enumerate(stream, 1)
            lines: deque[tuple[int, bytes]] = deque()
            while first := lines.popleft() if lines else next(source, None):
                number, content = first
                cells = self._cells(content)
                if cells is None:
                    lines.extend(islice(source, MOST_LINES - len(lines)))
                    for _ in range(count := self._goes_on(content, lines)):
                        content += lines.popleft()[1]
                    cells = self.columns if count else None
                yield number, content, cells == self.columns or number <= self.above

    def _goes_on(self, content: bytes, lines: Iterable[tuple[int, bytes]]) -> int:
        """Return over how many further lines a row goes on, 0 where that is not a row.

        Where a further line is a row by itself, a quote was opened and never closed.
        """
        for count, (_, line) in enumerate(lines, 1):
            if line.count(b'"') % 2 == 0 and self._cells(line) == self.columns:
                return 0
            content += line
            if self._cells(content) == self.columns:
                return count
        return 0

    def _cells(self, content: bytes) -> int | None:
        """Return the number of cells, None if a quote is still open or misplaced."""
        try:
            text = content.decode("utf-8-sig", "replace")
            return len(next(csv.reader([text], delimiter=self.delimiter, strict=True), []))
        except csv.Error:
            return None

    def broken(self) -> list[tuple[int, str]]:
        return [
            (number, content.decode("utf-8", "replace").strip())
            for number, content, whole in self.records()
            if not whole and content.strip()
        ]

    def complaint(self, found: Sequence[tuple[int, str]]) -> str:
        shown = "; ".join(f"line {number}: {text[:SHOWN_TEXT]}" for number, text in found[:SHOWN])
        more = f"; and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        return (
            f"{counted(len(found), 'line')} cannot be read as {self.columns} cells, for a quote "
            f'(") that is not closed or a {self.delimiter!r} too many: {shown}{more}'
        )

    def require_whole(self) -> None:
        if broken := self.broken():
            raise DataError(
                f"{self.path.name}: {self.complaint(broken)}. Put quotes around a cell that holds "
                f'{self.delimiter!r}, as in "dog{self.delimiter}beach", correct the lines, or '
                "leave them out with `--skip-broken`"
            )


def as_cells(columns: Sequence[Any]) -> list[Any]:
    """Return columns of text for a CSV file, so that no cell is a formula: see ``as_cell``."""
    start = rf"^({FORMULA.pattern})"
    return [pc.replace_substring_regex(column, start, r"'\1") for column in columns]


def _from_cells(columns: Sequence[Any]) -> list[Any]:
    if not pc.any(pc.starts_with(pa.chunked_array(columns, pa.string()), "'")).as_py():
        return list(columns)
    start = rf"^'({FORMULA.pattern})"
    return [pc.replace_substring_regex(column, start, r"\1") for column in columns]


def _setting(option: str, mark: str) -> str:
    return f"{option}=tab" if mark == "\t" else f"'{option}={mark}'"


def _delimited_batches(
    layout: _Layout, written: Mapping[str, str], left_out: list[str] | None, wanted: list[str]
) -> Iterator[Any]:
    """Yield the rows below the header; broken lines are an error, or named in ``left_out``."""
    path, looked = layout.path, left_out is not None
    source: Any = path
    if left_out is not None and (broken := layout.broken()):
        left_out[:] = [f"left out: {layout.complaint(broken)}"]
        rows = (content for _, content, whole in layout.records() if whole)
        source = io.BytesIO(b"".join(rows))
    headers = [written[name] for name in wanted]
    reading = arrow_csv.ReadOptions(
        block_size=BLOCK_BYTES, use_threads=False, skip_rows=int(layout.above)
    )
    parsing = arrow_csv.ParseOptions(delimiter=layout.delimiter, newlines_in_values=True)
    converting = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(headers, pa.string()),
        include_columns=headers,
        strings_can_be_null=False,
    )
    try:
        with arrow_csv.open_csv(source, reading, parsing, converting) as reader:
            for batch in reader:
                # A cell goes on over a line behind a quote that is not closed, too.
                cells = pa.chunked_array(batch.columns, pa.string())
                if not looked and pc.any(pc.match_substring(cells, "\n")).as_py():
                    looked = True
                    layout.require_whole()
                yield pa.record_batch(_from_cells(batch.columns), wanted)
    except pa.ArrowInvalid as error:
        text = first_line(error)
        if "utf8" in text.lower():
            text = f"line {_first_line_not_utf8(path)} is not UTF-8 text; save the table as UTF-8"
        elif left_out is None:
            layout.require_whole()
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


def open_jsonlines(path: Path) -> TabularFile:
    """Return the table in a .jsonl file; the first object says which columns there are."""
    first = next(json_objects(path), None)
    if first is None:
        raise DataError(f"{path.name}: the table is empty")
    columns = list(first[1])
    return TabularFile(columns, partial(_json_batches, path, {*columns}), text_only=True)


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, each with the number of its line."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                row = parse_json(line, f"{path.name}, line {number}")
                if not isinstance(row, dict):
                    got = f"got {row!r:.60}"
                    raise DataError(f"{path.name}, line {number}: must be an object, {got}")
                yield number, row


def _json_batches(path: Path, columns: set[str], headers: list[str]) -> Iterator[Any]:
    rows = json_objects(path)
    while chunk := list(islice(rows, BATCH_ROWS)):
        for number, row in chunk:
            if strange := row.keys() - columns:
                raise DataError(
                    f"{path.name}, line {number}: the key {min(strange)!r} is not in the first line"
                )
        arrays = []
        for name in headers:
            values = [row.get(name) for _, row in chunk]
            kinds = {type(value) for value in values if value is not None}
            if len(kinds) > 1 and not kinds <= {int, float}:
                number = next(n for n, row in chunk if type(row.get(name)) is not type(values[0]))
                raise DataError(
                    f"{path.name}, line {number}: {name!r} must be of one kind in all lines"
                )
            try:
                arrays.append(pa.array(values))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
                raise DataError(
                    f"{path.name}, lines {chunk[0][0]} to {chunk[-1][0]}: {name!r} must hold plain "
                    "values or lists of names"
                ) from None
        yield pa.record_batch(arrays, headers)


def open_parquet(path: Path) -> TabularFile:
    """Return the table in a .parquet file."""
    return parquet_table(path.name, lambda: nullcontext(path))


def parquet_table(name: str, opened: Callable[[], AbstractContextManager[Any]]) -> TabularFile:
    """Return the table in the Parquet file that ``opened`` gives: a path, or a stream.

    Class names are in the metadata, under ``classes`` or ``<column>_names`` (JSON lists), or in the
    features of Hugging Face, which also state which one column holds images, and which classes.
    """
    try:
        with opened() as source:
            schema = pq.read_schema(source)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{name}: this is not a Parquet file ({first_line(error)})") from None
    metadata = schema.metadata or {}
    features: dict[str, dict[str, Any]] = {}  # of the items, where a column holds lists
    try:
        stated = json.loads(metadata.get(b"huggingface", '{"info": {"features": {}}}'))
        for header, feature in stated["info"]["features"].items():
            if isinstance(feature, list):  # how older versions write lists
                item = feature[0] if feature else {}
            else:
                item = inner(feature, "feature") or feature
            features[header] = item if isinstance(item, dict) else {}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{name}: the metadata of Hugging Face is broken ({error})") from None
    meanings = {}
    for meaning, kind in (("image", "Image"), ("labels", "ClassLabel")):
        headers = [header for header, item in features.items() if item.get("_type") == kind]
        if len(headers) == 1:
            meanings[meaning] = headers[0]

    def class_names(header: str) -> list[str] | None:
        names = features.get(header, {}).get("names")
        for key in (b"classes", f"{header}_names".encode()):
            if key in metadata:
                names = parse_json(metadata[key], f"{name}: the class names in the metadata")
                names = False if names is None else names
        if names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            return names
        raise DataError(f"{name}: the class names in the metadata must be a list of text")

    return TabularFile(schema.names, partial(_parquet_batches, name, opened), class_names, meanings)


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
            # Few rows at once if the file holds images. Sizes of single columns would say more,
            # but asking a damaged file for them aborts Arrow.
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES * file.metadata.num_rows // max(size, 1)))
            first = 0
            for batch in file.iter_batches(rows, columns=headers, use_threads=False):
                yield with_text(batch, name, first)
                first += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{name}: the table cannot be read ({first_line(error)})") from None


NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)
CODES = re.compile(r"\d+( \d+)+")  # class numbers, several in a cell
SAMPLE = 1000  # rows that a proposal is made from
MOST_SEARCHED = 100_000  # files that are looked at for the suffix of photos
PROPOSED = re.compile(
    "--skip-broken|(columns|ignore|separator|delimiter|skip_broken|means_none)[=.]"
)
LIKELY_LABELS = {"finding", "findings", "class", "category", "species", "diagnosis"}

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

    Image paths start from ``root`` (the files' folder) and end in ``extension``. ``soft`` allows
    shares between 0 and 1 in the label columns, ``minus_one`` says what -1 means there.
    ``means_none`` and ``means_unknown`` are words that are not labels; with ``levels="/"`` a label
    a/b says a too. ``skip_broken`` leaves lines out that are not rows.
    """
    files = [(path, None)] if isinstance(path, Path) else path
    options: dict[str, Any] = {"columns": columns or {}, "ignore": ignore, "separator": separator}
    options |= {"delimiter": delimiter, "extension": extension, "skip_broken": skip_broken}
    if separator == "":
        raise SettingsError("separator must not be empty")
    delimiter = "\t" if delimiter == "tab" else delimiter
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
        raise SettingsError(f"delimiter must be one character or 'tab', got {delimiter!r}")
    ignore = [ignore] if isinstance(ignore, str) else ignore
    given = label_names(names)
    words = None
    if means_none is not None or means_unknown is not None:
        words = {
            word.strip().casefold(): meaning
            for meaning, listed in (("none", means_none or ()), ("unknown", means_unknown or ()))
            for word in ([listed] if isinstance(listed, str) else listed)
        }
    base = Path(root or os.path.commonpath([file.parent for file, _ in files]))
    builder: TableBuilder | None = None
    asks = words is None and given is None
    for file, split in files:
        with _with_command(require_file(file), options, asks):
            stream = open_tabular(file, delimiter, skip_broken)
            layout = layout_of(stream, file.name, columns, ignore)
        known = known_labels(stream, layout, given)
        if builder is None:
            if soft and layout.labels is not None:
                raise SettingsError(
                    f"{file.name}: soft=true is for one column per label; beside a column "
                    f"{layout.labels!r} soft labels are in the columns 'soft' and 'shares'"
                )
            if minus_one is not None and layout.labels is not None:
                raise SettingsError(f"{file.name}: minus_one is for one column per label")
            names_of_rows = Vocabulary(known, levels)
            builder = TableBuilder(layout, names_of_rows, separator, soft, minus_one, words)
        elif layout != builder.columns:
            raise DataError(f"{file.name} and {files[0][0].name} must have the same columns")
        elif known is not None and known != list(builder.vocabulary.numbers):
            raise DataError(f"{file.name} and {files[0][0].name} must have the same classes")
        inside = os.path.relpath(file.parent, base) if root is None else "."
        prefix = "" if inside == "." or layout.image is not None else f"{inside}/"
        rows = 0
        with _with_command(file, options, asks):
            for batch in stream.batches(layout.headers()):
                builder.add(batch, file.name, rows, split=split, prefix=prefix, extension=extension)
                rows += batch.num_rows
    if builder is None:
        raise DataError("there is no table to read")
    with _with_command(file, options, asks):
        return builder.finish(base, called or files[0][0].stem).noted(*stream.left_out)


def known_labels(
    stream: TabularFile, layout: TableColumns, given: list[str] | None
) -> list[str] | None:
    """Return the labels of a table that are known before its rows: given, or stated by the file."""
    if layout.labels is None:
        return [header.strip() for header in layout.one_hot]
    if given is None and stream.class_names is not None:
        return stream.class_names(layout.labels)
    return given


def layout_of(
    stream: TabularFile, where: str, columns: Mapping[str, str] | None, ignore: Sequence[str]
) -> TableColumns:
    """Return what the columns mean; one called as labels usually are may be a label's own."""
    stated = {
        meaning: header
        for meaning, header in stream.meanings.items()
        if meaning not in stream.header and header not in ignore
    }
    stated |= columns or {}
    find = partial(find_columns, stream.header, where, stated, ignore, stream.text_only)
    layout = find()
    if layout.labels is not None and any(repr(layout.labels) in note for note in layout.taken):
        batch = next(stream.batches([layout.labels]), None)
        if batch is not None and holds_states(batch.column(0)):
            return find(usual=["path"])
    return layout


@contextmanager
def _with_command(file: Path, given: Mapping[str, Any], asks: bool) -> Iterator[None]:
    """Add all options that the first rows call for to an error that asks for one of them."""
    try:
        yield
    except DataError as error:
        text, options, delimiter = str(error), [], given["delimiter"]
        if not PROPOSED.search(text):
            raise
        broken = "--skip-broken" in text or given["skip_broken"]
        try:
            if file.suffix.lower() == ".csv" and delimiter is None:
                with file.open("rb") as content:
                    header = content.readline(BLOCK_BYTES).decode("utf-8-sig", "replace")
                marks = (mark for mark in ";\t" if mark in header and "," not in header)
                delimiter = next(marks, None)
            if delimiter is not None:
                options.append(f"delimiter={'tab' if delimiter == chr(9) else delimiter}")
            options += ["skip_broken=true"] if broken else []
            stream = open_tabular(file, delimiter, broken)
            batch = next(stream.batches(list(stream.header))).slice(0, SAMPLE)
            options += proposed(batch, given, file.parent, asks)
        except (DataError, KeyError, StopIteration, OSError, pa.ArrowException):
            raise error from None
        if len(options) < 2:
            raise
        command = " ".join(f"--set {shlex.quote(option)}" for option in options)
        raise DataError(f"{text}. All that this table seems to need: `{command}`") from None


def proposed(batch: Any, given: Mapping[str, Any], folder: Path, asks: bool) -> list[str]:
    """Return options under which the first rows of a table would be read, as far as can be seen."""
    cells = {
        name: [str(cell).strip() for cell in column.to_pylist() if cell not in (None, "")]
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if not pa.types.is_nested(column.type) and not pa.types.is_binary(column.type)
    }
    columns = {name: name for name in ("path", "labels") if name in cells} | given["columns"]
    ignored = [given["ignore"]] if isinstance(given["ignore"], str) else given["ignore"]
    free = [name for name in cells if name not in (*columns.values(), *ignored, "split", "group")]

    def photos(name: str) -> bool:
        return bool(cells[name]) and all(
            Path(cell).suffix.lower() in IMAGE_SUFFIXES for cell in cells[name]
        )

    usual = [name for name in free if folded(name) in USUAL_PATHS]
    unique = [name for name in free if cells[name] and len({*cells[name]}) == batch.num_rows]
    for name in [*filter(photos, free), *usual, *unique][:1]:
        columns.setdefault("path", name)
    splits = [
        name
        for name in free
        if folded(name) == "split" and {cell.lower() for cell in cells[name]} <= SPLIT_WORDS.keys()
    ]
    free = [name for name in free if name != columns.get("path") and name not in splits]
    states = [name for name in free if all(cell.lower() in STATES for cell in cells[name])]
    called = [name for name in free if folded(name) in USUAL_LABELS | LIKELY_LABELS]
    texts = free if len(free) == 1 else [name for name in free if name not in unique]
    others = [name for name in texts if name not in called]
    others.sort(key=lambda name: all(map(NUMBER.fullmatch, cells[name])))  # words first
    texts = [name for name in (*called, *others) if name not in states]
    options = [f"columns.path={columns['path']}"] if columns.get("path", "path") != "path" else []
    options += [f"columns.split={splits[0]}"] if splits else []
    labels = columns.get("labels") or (texts[0] if texts and not states else None)
    if labels is not None:
        options += [f"columns.labels={labels}"] if labels != "labels" else []
        inside = cells.get(labels, [])
        marks = [mark for mark in "|,;" if any(mark in cell for cell in inside)]
        by_blanks = not marks and any(map(CODES.fullmatch, inside))
        separator = given["separator"] or (" " if by_blanks else (marks or "|")[0])
        if given["separator"] or separator != "|":
            options.append(f"separator={separator}")
        words = {word.strip() for cell in inside for word in cell.split(separator)}
        for meaning in ("none", "unknown") if asks else ():
            matching = sorted(word for word in words if WORDS.get(word.casefold()) == meaning)
            listed = ",".join(map(json.dumps, matching))
            options += [f"means_{meaning}=[{listed}]"] if matching else []
    elif others := [*ignored, *(name for name in free if name not in states)]:
        options.append(f"ignore=[{','.join(map(json.dumps, others))}]")
    photos_named = cells.get(columns.get("path", ""), [])
    if given["extension"]:
        options.append(f"extension={given['extension']}")
    elif photos_named and not Path(photos_named[0]).suffix:
        stem, files = (
            Path(photos_named[0]).name,
            islice(LocalStorage(folder).files(), MOST_SEARCHED),
        )
        suffixes = {file.suffix for file in map(Path, files) if file.stem == stem}
        options += [f"extension={suffixes.pop()}"] if len(suffixes) == 1 else []
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
