"""Label tables in CSV, TSV, JSON Lines or Parquet, in one file or several, in bounded memory.

``unknown`` may say ``*``: every label that is not in ``labels``. A list that is null (Parquet, JSON
Lines) means that nothing is known of the image; an empty one means "none of them".
"""

import csv
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from io import SEEK_END
from itertools import islice, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from labelwise.base.storage import LocalStorage
from labelwise.base.table_files import with_text
from labelwise.base.text import (
    FORMULA,
    counted,
    first_line,
    for_terminal,
    from_cell,
    listed,
    one_line,
)
from labelwise.errors import DataError, QuestionError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables.columns import Vocabulary, names_in
from labelwise.tables.options import AS_IT_IS, TableColumns, TableOptions, find_columns
from labelwise.tables.reading import (
    Cells,
    Look,
    Reading,
    RoleChoice,
    as_setting,
    label_points,
    mark_points,
    readings,
)
from labelwise.tables.rows import inner, is_file, parse_json, require_file
from labelwise.tables.table import LabelTable
from labelwise.tables.table_builder import TableBuilder
from labelwise.tables.text_files import TextFile, frame_of, open_text
from labelwise.tables.words import USUAL_PATHS, folded
from labelwise.types import nearest

BLOCK_BYTES = 1 << 22
BATCH_ROWS = 16384
BATCH_BYTES = 1 << 26
READ_BYTES = 1 << 20
MOST_COLUMNS = 100_000  # each takes 9 kB of memory while it is read
MOST_LINES = 100  # that one row may go on over, where a file is broken
MOST_BROKEN = 4  # one line of so many: more are not left out, but written in another way
SHOWN, SHOWN_TEXT = 10, 80  # broken lines, and letters of each


@dataclass(frozen=True)
class TabularFile:
    """``batches(headers)`` yields record batches of these columns.

    ``class_names(header)`` gives the names that a format with a place for them states of classes,
    ``meanings`` are the columns whose meaning it states, such as {"labels": "label"}; a
    ``text_only`` format cannot hold the bytes of images.
    """

    header: Sequence[str]
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]
    class_names: Callable[[str], list[str] | None] | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    text_only: bool = False
    left_out: list[str] = field(default_factory=list)  # once the batches were read
    notes: tuple[str, ...] = ()


def open_delimited(path: Path, options: TableOptions = AS_IT_IS) -> TabularFile:
    """Return the table in a .csv, .tsv or .txt file with a header line.

    Encoding, delimiter and the header's line are found by its first lines, unless they are given.
    """
    text = open_text(path, options.encoding)
    frame = frame_of(text, path, options.delimiter, options.header)
    names = frame.header
    if len(names) > MOST_COLUMNS:
        raise DataError(
            f"{path.name}: a table may have {MOST_COLUMNS:,} columns; name the labels of each "
            "image in one column `labels` instead"
        )
    layout = _Layout(path.name, text, frame.delimiter, len(names), frame.above)
    left_out: list[str] = []
    batches = partial(_delimited_batches, layout, names, left_out, bool(options.skip_broken))
    stated = list(map(from_cell, names))
    return TabularFile(stated, batches, text_only=True, left_out=left_out, notes=frame.notes)


@dataclass(frozen=True)
class _Layout:
    """How a delimited file is written; the header ends with line ``above``."""

    name: str
    text: TextFile
    delimiter: str
    columns: int
    above: int

    def records(self) -> Iterator[tuple[int, bytes, bool]]:
        """Yield the line that each row begins at, its bytes, and whether it is a whole row."""
        with self.text.open() as stream:
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
        some = (f"line {number}: {text[:SHOWN_TEXT]}" for number, text in found[:SHOWN])
        shown = for_terminal("; ".join(some))
        more = f"; and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        return (
            f"{counted(len(found), 'line')} cannot be read as {self.columns} cells, for a quote "
            f'(") that is not closed or a {self.delimiter!r} too many: {shown}{more}'
        )

    def require_whole(self) -> None:
        if broken := self.broken():
            lines = sum(1 for _ in self.records())
            few = len(broken) * MOST_BROKEN < lines
            raise DataError(
                f"{self.name}: {self.complaint(broken)}. Put quotes around a cell that holds "
                f'{self.delimiter!r}, as in "dog{self.delimiter}beach", or correct the lines'
                f"{', or leave them out with `--skip-broken`' if few else ''}"
            )


def as_cells(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Return columns of text for a CSV file, so that no cell is a formula: see ``as_cell``."""
    start = rf"^({FORMULA.pattern})"
    return [pc.replace_substring_regex(column, start, r"'\1") for column in columns]


def _from_cells(columns: Sequence[pa.Array]) -> list[pa.Array]:
    if not pc.any(pc.starts_with(pa.chunked_array(columns, pa.string()), "'")).as_py():
        return list(columns)
    start = rf"^'({FORMULA.pattern})"
    return [pc.replace_substring_regex(column, start, r"\1") for column in columns]


def _delimited_batches(
    layout: _Layout, names: Sequence[str], left_out: list[str], skip_broken: bool, wanted: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows below the header; broken lines are an error, or named in ``left_out``.

    Rows in which all wanted cells are empty, as spreadsheets write below a table, are left out.
    """
    source, above, marks = layout.text.source, layout.above, layout.text.marks
    looked = skip_broken or '"' not in marks
    left_out.clear()
    if skip_broken and (broken := layout.broken()):
        left_out[:] = [f"left out: {layout.complaint(broken)}"]
        source = b"".join(content for _, content, whole in layout.records() if whole)
    places = {from_cell(name): str(place) for place, name in reversed([*enumerate(names)])}
    chosen = [places[name] for name in wanted]
    reading = arrow_csv.ReadOptions(
        block_size=BLOCK_BYTES,
        use_threads=False,
        skip_rows=above,
        column_names=list(map(str, range(len(names)))),
    )
    parsing = arrow_csv.ParseOptions(delimiter=layout.delimiter, newlines_in_values=True)
    converting = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(chosen, pa.string()),
        include_columns=chosen,
        strings_can_be_null=False,
    )
    needless = {"without a photo and labels": [""] * len(wanted)}
    if len(wanted) > 1:  # tables that were put together
        needless["with the names of the columns again"] = wanted
    spared: Counter[str] = Counter()
    try:
        stream = source if isinstance(source, Path) else pa.BufferReader(source)
        with arrow_csv.open_csv(stream, reading, parsing, converting) as reader:
            for batch in reader:
                # A cell goes on over a line behind a quote that is not closed, too.
                cells = pa.chunked_array(batch.columns, pa.string())
                if not looked and pc.any(pc.match_substring(cells, "\n")).as_py():
                    looked = True
                    layout.require_whole()
                columns = _from_cells(batch.columns) if "'" in marks else batch.columns
                batch = pa.record_batch(columns, wanted)
                for why, cells in needless.items():
                    if (same := _rows_of(batch, cells)).any():
                        spared[why] += int(same.sum())
                        batch = batch.filter(pa.array(~same))
                yield batch
    except pa.ArrowInvalid as error:
        if not skip_broken:
            layout.require_whole()
        reason = first_line(error)
        if "Empty CSV" in reason or "Could not skip" in reason:  # the header is all there is
            return
        raise DataError(f"{layout.name}: the table cannot be read ({reason})") from None
    left_out += [f"left out: {counted(count, 'row')} {why}" for why, count in spared.items()]


def _rows_of(batch: pa.RecordBatch, cells: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows hold these cells."""
    same = np.ones(batch.num_rows, np.bool_)
    for column, cell in zip(batch.columns, cells, strict=True):
        same &= np.asarray(pc.equal(column, cell))
        if not same.any():
            break
    return same


def open_json(path: Path) -> TabularFile:
    """Return the table in a .json file: an array of objects, one for each photo.

    An object may hold that array, the labels of each photo by its name, or the cells by column.
    """
    rows = parse_json(path.read_bytes(), path.name)
    if isinstance(rows, dict):
        rows = _rows_of_object(rows)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        rule = "must hold an array of objects, one for each photo"
        raise DataError(f"{path.name}: {rule}; export it so")
    if not rows:
        raise DataError(f"{path.name}: the table is empty")
    numbered = list(enumerate(rows, 1))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    batches = partial(_json_batches, path, {*columns}, lambda: iter(numbered), "row")
    return TabularFile(columns, batches, text_only=True)


def _rows_of_object(table: dict[str, Any]) -> Any:
    """Return the rows in a JSON object: by photo, by column as pandas writes, or in one array."""
    values = [*table.values()]
    if any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in table):
        return [
            {"path": name, **(labels if isinstance(labels, dict) else {"labels": labels})}
            for name, labels in table.items()
        ]
    if all(isinstance(cells, dict) for cells in values):
        rows = dict.fromkeys(row for cells in values for row in cells)
        return [{name: cells.get(row) for name, cells in table.items()} for row in rows]
    arrays = [value for value in values if isinstance(value, list)]
    if len(arrays) == len(values) > 1 and len({*map(len, arrays)}) == 1:
        return [dict(zip(table, cells, strict=True)) for cells in zip(*arrays, strict=True)]
    return arrays[0] if len(arrays) == 1 else table


def open_jsonlines(path: Path) -> TabularFile:
    """Return the table in a .jsonl file; the first objects say which columns there are."""
    with path.open("rb") as stream:
        if stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return open_json(path)
    first = islice(json_objects(path), SAMPLE_ROWS)
    columns = list(dict.fromkeys(key for _, row in first for key in row))
    if not columns:
        raise DataError(f"{path.name}: the table is empty")
    batches = partial(_json_batches, path, {*columns}, partial(json_objects, path), "line")
    return TabularFile(columns, batches, text_only=True)


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, each with the number of its line."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                where = f"{path.name}, line {number}"
                try:
                    row = parse_json(line, where)
                except DataError as error:
                    raise DataError(f"{error}; correct or remove the line") from None
                if not isinstance(row, dict):
                    got = f"got {row!r:.60}"
                    rule = f"must be an object, {got}; correct or remove the line"
                    raise DataError(f"{path.name}, line {number}: {rule}")
                yield number, row


def _json_batches(
    path: Path,
    columns: set[str],
    objects: Callable[[], Iterator[tuple[int, dict[str, Any]]]],
    unit: str,
    headers: list[str],
) -> Iterator[pa.RecordBatch]:
    rows = objects()
    while chunk := list(islice(rows, BATCH_ROWS)):
        for number, row in chunk:
            if strange := row.keys() - columns:
                raise DataError(
                    f"{path.name}, {unit} {number}: the key {min(strange)!r} is not in the first "
                    "lines; write it there too, as null"
                )
        arrays = []
        for name in headers:
            values = [row.get(name) for _, row in chunk]
            if any(dict in map(type, v if isinstance(v, list) else [v]) for v in values):
                named = [None if value is None else names_in(value) for value in values]
                is_named = named.count(None) == values.count(None)
                values = named if is_named else values
            kinds = {type(value) for value in values if value is not None}
            if kinds == {str, list}:  # one label beside lists of them
                values = [[value] if isinstance(value, str) else value for value in values]
                kinds = {list}
            if len(kinds) > 1 and not kinds <= {int, float}:
                number = next(n for n, row in chunk if type(row.get(name)) is not type(values[0]))
                raise DataError(
                    f"{path.name}, {unit} {number}: {name!r} must be of one kind in all lines; "
                    "correct that line"
                )
            try:
                arrays.append(pa.array(values))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
                raise DataError(
                    f"{path.name}, {unit}s {chunk[0][0]} to {chunk[-1][0]}: {name!r} must hold "
                    "plain values or lists of names"
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
        raise DataError(
            f"{name}: this is not a Parquet file ({first_line(error)}); export it again"
        ) from None
    for header, count in Counter(schema.names).items():
        if count > 1:
            raise DataError(f"{name}: the column {header!r} is there twice; rename one")
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
) -> Iterator[pa.RecordBatch]:
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


SAMPLE_ROWS = 4_000  # that are looked at before a table is read; all of it where they leave doubt
TRIED_ROWS = 100_000  # with which a reading is tried before a person is asked
MOST_SEARCHED = 100_000  # files that are looked at for the suffix of photos
EXAMPLES = 3  # rows whose labels are shown for each reading

TABULAR: dict[str, Callable[[Path], TabularFile]] = {
    ".csv": open_delimited,
    ".tsv": open_delimited,
    ".txt": open_delimited,
    ".xlsx": open_delimited,
    ".gz": open_delimited,
    ".json": open_json,
    ".jsonl": open_jsonlines,
    ".ndjson": open_jsonlines,
    ".parquet": open_parquet,
    ".pq": open_parquet,
}


def read_tables(
    path: Path | Sequence[tuple[Path, str | None]],
    options: TableOptions = AS_IT_IS,
    called: str | None = None,
) -> LabelTable:
    """Return the table of one file, or of several with the split each stands for, or None.

    What the options leave open is settled by the one reading that explains every cell; where there
    are several, a DataError shows them side by side, each with the options that choose it.
    """
    files = [(path, None)] if isinstance(path, Path) else list(path)
    if not files:
        raise DataError("there is no table to read")
    streams = [open_tabular(require_file(file), options) for file, _ in files]
    reader = _Reader(files, streams, options, called)
    try:
        if (table := reader.read(SAMPLE_ROWS)) is not None:
            return table
    except DataError:
        if reader.saw_all:
            raise
    return cast(LabelTable, reader.read(None))


@dataclass
class _Reader:
    """Looks at files, settles how they are read, and reads them so; or asks."""

    files: Sequence[tuple[Path, str | None]]
    streams: Sequence[TabularFile]
    given: TableOptions
    called: str | None = None
    saw_all: bool = False

    @property
    def base(self) -> Path:
        """The folder that the paths of photos start from."""
        folders = [file.parent for file, _ in self.files]
        return Path(self.given.root or os.path.commonpath(folders))

    def read(self, sample: int | None) -> LabelTable | None:
        """Return the table; None if rows that were not looked at may be read in another way."""
        look = self.look(sample)
        found, clear = readings(look)
        if not clear and not self.saw_all:
            return None
        if not clear:
            self.ask(found, look)
        options = look.given.over(found[0].options)
        suffix = self._suffix(look, options)
        if suffix:
            options = replace(options, extension=suffix)
        folder = self._folder(look, options)
        options = options.over(folder)
        table = self.build(options)
        if not self.saw_all and self.may_change(table, look, options):
            return None
        notes = list(found[0].notes)
        if suffix:
            notes.append(f"the names of photos get the suffix {suffix}")
        if folder != AS_IT_IS:
            notes.append(f"the folders of photos are in {folder.columns['path'][0]!r}")
        written = [note for stream in self.streams for note in (*stream.notes, *stream.left_out)]
        table = replace(table, reading=options.stated())
        return table.noted(*written, *(["; ".join(notes)] if notes else []))

    def may_change(self, table: LabelTable, look: Look, options: TableOptions) -> bool:
        """Return whether rows that were not looked at hold what a person would be asked about."""
        if options.one_hot is not None or options.names is not None:
            return False
        counts = Counter(dict(zip(table.space.names, table.present.counts().tolist(), strict=True)))
        marks = mark_points(counts, options) != [RoleChoice()]
        settled = replace(options, separator=options.separator or ("|",))
        points = label_points(replace(look, given=settled), [Cells("labels", 0, counts)])
        settles = points[0].options != AS_IT_IS or not points[0].clear
        return marks or len(points) > 1 or settles

    def look(self, sample: int | None) -> Look:
        """Return the distinct cells of each column in the first rows, or in all."""
        self.saw_all = True
        cells: dict[str, Cells] = {}
        for stream in self.streams:
            for place, name in enumerate(stream.header, 1):
                cells.setdefault(name, Cells(name, place))
            rows = 0
            for batch in stream.batches(list(dict.fromkeys(stream.header))):
                part = batch if sample is None else batch.slice(0, sample - rows)
                for name in dict.fromkeys(stream.header):
                    cells[name].add(part.column(name))
                rows += part.num_rows
                if sample is not None and rows >= sample:
                    self.saw_all = False
                    break
        stream = self.streams[0]
        names = stream.class_names
        return Look(
            self.files[0][0].name,
            list(cells.values()),
            _stated_by(stream, self.given),
            stream.text_only,
            names is not None and any(map(names, stream.header)),
        )

    def build(self, options: TableOptions, most: int | None = None) -> LabelTable:
        """Return the table as the options say, and nothing else; of its first rows if wanted."""
        builder: TableBuilder | None = None
        for (file, split), stream in zip(self.files, self.streams, strict=True):
            layout = layout_of(stream, file.name, options)
            known = known_labels(stream, layout, options.names)
            first = self.files[0][0].name
            if builder is None:
                builder = TableBuilder(layout, Vocabulary(known, options.levels), options, first)
            elif layout != builder.columns:
                raise DataError(f"{file.name} and {first} must have the same columns")
            elif known is not None and known != list(builder.vocabulary.numbers):
                raise DataError(f"{file.name} and {first} must have the same classes")
            inside = os.path.relpath(file.parent, self.base) if options.root is None else "."
            prefix = "" if inside == "." or layout.image is not None else f"{inside}/"
            rows = 0
            for batch in stream.batches(layout.headers()):
                builder.add(batch, file.name, rows, split=split, prefix=prefix)
                rows += batch.num_rows
                if most is not None and rows >= most:
                    break
        return cast(TableBuilder, builder).finish(self.base, self.called or self.files[0][0].stem)

    def ask(self, found: Sequence[Reading], look: Look) -> None:
        """Raise a DataError with the readings side by side, each tried on these files."""
        read: list[tuple[str, str, LabelTable]] = []
        failures = []
        for reading in found:
            options = look.given.over(reading.options)
            suffix = self._suffix(look, options)
            try:
                table = self.build(
                    replace(options, extension=options.extension or suffix), TRIED_ROWS
                )
            except (DataError, SettingsError) as error:
                failures.append(error)
                continue
            for settling in (reading.settling, reading.options):
                again, clear = readings(replace(look, given=look.given.over(settling)))
                if clear and settling.over(again[0].options) == settling.over(reading.options):
                    break
            else:
                continue  # no options lead to this reading
            phrase = f"{reading.phrase}: " if reading.phrase else ""
            stated = settling.stated()
            read.append((phrase, " ".join(map(as_setting, stated, stated.values())), table))
        if not read and failures:
            raise failures[0]
        if not read:
            several = "the table can be read in several ways, and no options tell them apart"
            way_out = "write the present labels of each photo into one column 'labels'"
            raise DataError(f"{self.files[0][0].name}: {several}; {way_out}")
        telling = _differing_rows([table for *_, table in read])
        lines = []
        for phrase, command, table in read:
            pairs = examples(table, telling)
            shown = "; ".join(f"{photo} = {labels}" for photo, labels in pairs)
            lines.append(f"{phrase}{shown}: `{command}`")
        name = one_line(self.files[0][0].name)
        ways = "\n".join(f"  {number}. {line}" for number, line in enumerate(lines, 1))
        many = f"the table can be read in {len(lines)} ways"
        start = many if len(lines) > 1 else "this reading explains every cell, but is not certain"
        end = "say which" if len(lines) > 1 else "confirm it"
        raise QuestionError(f"{name}: {start}; {end} by adding its options to the command:\n{ways}")

    def _folder(self, look: Look, options: TableOptions) -> TableOptions:
        """Return the columns of a photo's folder and name, where its file is found so alone."""
        by_name = {cells.name: cells for cells in look.columns}
        path = find_columns([*by_name], look.where, options, look.text_only).path
        photos = by_name[path].texts[:SHOWN] if path and not options.columns_of("path")[1:] else []
        for (name, cells), photo in product(by_name.items(), photos):
            file = f"{photo.replace(chr(92), '/')}{options.extension or ''}"
            folder = cells.texts[0].replace(chr(92), "/") if cells.texts else ""
            there = name != path and folder and is_file(self.base / folder / file)
            if there and not is_file(self.base / file):
                return TableOptions(columns={"path": (name.strip(), str(path).strip())})
        return AS_IT_IS

    def _suffix(self, look: Look, options: TableOptions) -> str:
        """Return the suffix that the names of photos lack, where files of one suffix fit."""
        by_name = {cells.name.strip(): cells for cells in look.columns}
        usual = [name for name in by_name if folded(name) in USUAL_PATHS]
        name = (*options.columns_of("path")[-1:], *usual, "")[0]
        texts = by_name[name].texts if name in by_name else []
        if options.extension or not texts or any(Path(text).suffix for text in texts):
            return ""
        try:
            files = map(Path, islice(LocalStorage(self.base).files(), MOST_SEARCHED))
            stem = texts[0].rpartition("/")[2]
            suffixes = {file.suffix for file in files if file.stem == stem}
        except DataError:
            return ""
        is_one = len(suffixes) == 1 and {*map(str.lower, suffixes)} <= IMAGE_SUFFIXES
        return suffixes.pop() if is_one else ""


def _differing_rows(tables: Sequence[LabelTable]) -> list[int]:
    """Return the first row of which not all tables say the same, if they have the same rows."""
    if len({len(table) for table in tables}) > 1:
        return []
    for row in range(min(len(tables[0]), SAMPLE_ROWS)):
        said = {
            (frozenset(table.space.names[k] for k in part.row(row).tolist()), kind)
            for table in tables
            for kind, part in enumerate((table.present, table.unknown))
        }
        if len(said) > 2:
            return [row]
    return []


def examples(table: LabelTable, telling: Sequence[int] = ()) -> list[tuple[str, str]]:
    """Return the labels of the first rows, and of a ``telling`` one, as text."""
    rows = list(range(min(len(table), EXAMPLES)))
    telling = telling or np.flatnonzero(table.present.sizes() > 1)[:1].tolist()
    if not {*rows} & {*telling}:
        rows = sorted({*rows[: EXAMPLES - 1], *telling[:1]})
    names = table.space.names
    shown = []
    for row in rows:
        labels = listed([one_line(names[label]) for label in table.present.row(row)], 5)
        unknown = len(table.unknown.row(row))
        if unknown == len(names):
            labels = "unknown"
        elif unknown:
            labels = f"{labels or 'none'}, {unknown} unknown"
        shown.append((one_line(table.ids[row]), labels or "none"))
    return shown


def known_labels(
    stream: TabularFile, layout: TableColumns, given: Sequence[str] | None
) -> Sequence[str] | None:
    """Return the labels of a table that are known before its rows: given, or stated by the file."""
    if layout.labels is None:
        return [header.strip() for header in layout.one_hot]
    if given is None and stream.class_names is not None:
        return stream.class_names(layout.labels)
    return given


def _stated_by(stream: TabularFile, options: TableOptions) -> TableOptions:
    """Return the options, and the columns whose meaning the file's format states."""
    stated = {
        meaning: header
        for meaning, header in stream.meanings.items()
        if meaning not in stream.header and header not in (options.ignore or ())
    }
    return TableOptions(columns=stated).over(options)


def layout_of(stream: TabularFile, where: str, options: TableOptions = AS_IT_IS) -> TableColumns:
    """Return what the columns mean by their names, what the format states, and the options."""
    return find_columns(stream.header, where, _stated_by(stream, options), stream.text_only)


def open_tabular(file: Path, options: TableOptions = AS_IT_IS) -> TabularFile:
    """Return the table in a file, whose format its suffix tells."""
    suffix = Path(file.stem).suffix if file.suffix.lower() == ".gz" else file.suffix
    opener = TABULAR.get(suffix.lower())
    if opener is None:
        raise DataError(f"{file} must be a table ({', '.join(TABULAR)}), got {file.suffix!r}")
    if opener is open_delimited:
        return open_delimited(file, options)
    for option in ("delimiter", "skip_broken", "encoding", "header"):
        if getattr(options, option):
            raise SettingsError(f"{file.name}: {option} is for CSV, TSV and TXT files")
    return opener(file)


def read_csv_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table that must have these columns, each cell as text without blanks."""
    try:
        stream = open_tabular(require_file(path))
    except QuestionError:  # of its encoding, which nothing here could answer
        way_out = "save it as CSV UTF-8"
        raise DataError(f"{path} cannot be read: it is not UTF-8 text; {way_out}") from None
    for name in columns:
        if name not in stream.header:
            raise DataError(f"{path}: there is no column {name!r}{nearest(name, stream.header)}")
    headers = [name for name in dict.fromkeys(stream.header) if name]
    rows = (row for batch in stream.batches(headers) for row in batch.to_pylist())
    return [
        {key: "" if cell is None else str(cell).strip() for key, cell in row.items()}
        for row in rows
    ]
