"""Results of other programs as detections: BirdNET, Perch, MegaDetector and SpeciesNet.

A row of a table is one label in one clip; in the JSON of camera traps a photo is a clip. Further
columns: ``correct`` (1, 0, yes, no, or empty where nobody checked), ``split``, and those asked for,
such as ``site``. A folder holds one table per recording, which BirdNET's file names tell where no
column does. Columns are named in result_forms.toml. A Raven table of a recording without detections
has one row "nocall", which is left out.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from labelwise.base.text import counted
from labelwise.errors import DataError
from labelwise.scores.read import Detections
from labelwise.tables.camera_results import is_camera_results, read_camera_results
from labelwise.tables.columns import as_numbers
from labelwise.tables.score_files import Kind, with_points
from labelwise.tables.tabular import open_tabular
from labelwise.tables.words import ABSENT, NO_STATE, PRESENT
from labelwise.types import nearest

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet")
NO_CALL = "nocall"
OF_RECORDING, COMBINED = ".BirdNET.", "BirdNET_"
CLOCK = r"^(?P<hours>\d+):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d(?:\.\d+)?)$"


@dataclass(frozen=True)
class ResultForm:
    """The columns of a program's result table; its rows are of the recordings in ``file``.

    ``other_label`` names what has no ``label``. A file lies below its ``folders``, where there are
    such columns. ``clock`` says that starts are times such as 00:01:03.50, ``both_names`` that a
    label is a scientific and a common name with an underscore between them, ``by_recording`` that a
    table without the column ``file`` is of the recording that its own name tells.
    """

    label: str
    start: str
    score: str
    file: str
    kind: Kind
    other_label: str = ""
    folders: Sequence[str] = ()
    clock: bool = False
    both_names: bool = False
    by_recording: bool = False


LISTED = tomllib.loads(Path(__file__).with_name("result_forms.toml").read_text(encoding="utf-8"))
FORMS = tuple(ResultForm(**form) for form in LISTED["forms"])


def result_tables(folder: Path) -> list[Path]:
    """Return the result tables of a folder, in the order of their names.

    BirdNET's tables of single recordings lie in folders below, too. A combined table
    (BirdNET_CombinedTable.csv) repeats them: it is left out beside them, else read instead of those
    below.
    """
    listed = sorted(file for file in folder.iterdir() if file.suffix.lower() in TEXT_SUFFIXES)
    tables = [file for file in listed if is_result_table(file)]
    single = [file for file in tables if OF_RECORDING in file.name]
    others = [file for file in tables if file not in single and not file.name.startswith(COMBINED)]
    if tables and not single and not others:
        return tables
    listed = sorted(file for file in folder.rglob(f"*{OF_RECORDING}*") if file.parent != folder)
    below = [file for file in listed if is_result_table(file)]
    if below and others:
        raise DataError(
            f"{folder}: result tables lie in it ({others[0].name}) and in folders below "
            f"({below[0].relative_to(folder)}); give one of the two places"
        )
    return tables if others else [*single, *below]


def is_result_table(path: Path) -> bool:
    """Return whether a file has the columns of a known program."""
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        return False
    try:
        return _form(open_tabular(path).header) is not None
    except (DataError, OSError):
        return False


def read_result_table(
    path: Path, keep: Sequence[str], folder: Path | None = None
) -> tuple[ResultForm, pa.Table]:
    """Return the form of a table and its columns, and those in ``keep``, under the form's names.

    Starts are in seconds; a recording that the table's name tells lies below ``folder`` as it does.
    """
    stream = open_tabular(path)
    header = [name.strip() for name in stream.header]
    form = _form(header)
    if form is None:
        raise DataError(f"{path}: these are not the columns of BirdNET's or Perch's results")
    twice = [name for at, name in enumerate(header) if name and name in header[:at]]
    if twice:
        raise DataError(f"{path}: the column {twice[0]!r} is there twice; keep one")
    for name in keep:
        if name not in header:
            raise DataError(f"{path}: there is no column {name!r}{nearest(name, header)}")
    columns = [form.label, form.start, form.score, form.file, form.other_label]
    columns += ["correct", "split", "group", *keep]
    columns = [name for name in dict.fromkeys(columns) if name in (*header, form.file, "correct")]
    read = [name for name in {*columns, *form.folders, "Species Code"} if name in header]
    batches = list(stream.batches([stream.header[header.index(name)] for name in read]))
    table: dict[str, pa.ChunkedArray] = {}
    for at, name in enumerate(read):
        try:
            parts = [compute.fill_null(b.column(at).cast(pa.string()), "") for b in batches]
        except pa.ArrowException:
            wanted = f"text or numbers, got {batches[0].column(at).type}"
            raise DataError(f"{path}: the column {name!r} must hold {wanted}") from None
        table[name] = pa.chunked_array(parts, pa.string())
    if form.clock:
        table[form.start] = _seconds(path, form.start, table[form.start])
    if form.both_names:
        before = compute.split_pattern(table[form.label], "_", max_splits=1)
        table[form.label] = compute.list_element(before, 0)
    if form.folders:
        places = [compute.utf8_rtrim(table[name], "/\\") for name in form.folders]
        table[form.file] = compute.binary_join_element_wise(*places, table[form.file], "/")
    if form.file not in header:
        inside = path.relative_to(folder or path.parent)
        name = inside.with_name(path.name.partition(".BirdNET")[0]).as_posix()
        table[form.file] = pa.array([name] * len(table[form.label]), pa.string())
    if "correct" not in header:  # nobody checked any row
        table["correct"] = pa.array([""] * len(table[form.label]), pa.string())
    found = pa.table({name: table[name] for name in columns})
    if "Species Code" in header:
        codes = (table[form.label], table["Species Code"])
        silent = compute.and_(*(compute.equal(code, NO_CALL) for code in codes))
        found = found.filter(compute.invert(silent))
    return form, found


def _seconds(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times such as 00:01:03.50 in seconds, and what is a number already as it is."""
    parts = compute.extract_regex(column, CLOCK)
    if parts.null_count == len(column) and np.isfinite(as_numbers(column)).all():
        return column
    if parts.null_count:
        row = compute.index(compute.is_null(parts), True).as_py()
        wanted = f"must be a time such as 00:01:03.50, got {column[row].as_py()!r}"
        raise DataError(f"{path}: row {row + 1}: {name!r} {wanted}")
    hours, minutes, seconds = (
        compute.struct_field(parts, unit).cast(pa.float64())
        for unit in ("hours", "minutes", "seconds")
    )
    whole = compute.add(compute.multiply(hours, 3600.0), compute.multiply(minutes, 60.0))
    return compute.add(whole, seconds).cast(pa.string())


def _form(header: Sequence[str]) -> ResultForm | None:
    names = {name.strip() for name in header}
    fitting = [form for form in FORMS if {form.label, form.start, form.score} <= names]
    whole = [form for form in fitting if {form.file, *form.folders} <= names]
    return next(iter([*whole, *(form for form in fitting if form.by_recording)]), None)


ANSWERS = dict.fromkeys(("", *NO_STATE), np.nan) | dict.fromkeys((*ABSENT, "0.0"), 0.0)
ANSWERS |= dict.fromkeys((*PRESENT, "1.0"), 1.0)  # as pandas writes them beside empty cells


def is_results(path: Path) -> bool:
    """Return whether a file, or the first table of a folder, has the columns of a known program."""
    if path.is_dir():
        return bool(result_tables(path))
    if path.is_file() and path.suffix.lower() == ".json":
        return is_camera_results(path)
    return is_result_table(path)


def read_results(path: Path, keep: Sequence[str] = ()) -> Detections:
    """Return the detections of a result table, or of a folder with one per recording."""
    if path.suffix.lower() == ".json":
        return _of_photos(path, keep)
    folder = path if path.is_dir() else None
    tables = [path] if folder is None else result_tables(path)
    if not tables:
        raise DataError(f"{path}: there is no result table of BirdNET or Perch in it")
    parts = [read_result_table(table, keep, folder) for table in tables]
    form = parts[0][0]
    for table, (other, _) in zip(tables, parts, strict=True):
        if other != form:
            raise DataError(f"{table}: its columns are not those of {tables[0]}; keep them apart")
    try:
        table = pa.concat_tables([table for _, table in parts])
    except pa.ArrowInvalid:
        raise DataError(
            f"{path}: its tables have different columns; give all of them the columns asked for"
        ) from None
    return _detections(str(path), form, table, keep)


def _of_photos(path: Path, keep: Sequence[str]) -> Detections:
    if keep:
        raise DataError(f"{path}: there is no column {keep[0]!r} in results of photos; use folder")
    results = read_camera_results(path)
    words = [name for photo in results.photos for name in photo.scores]
    if not words:
        raise DataError(f"{path}: nothing was detected in any photo")
    names, labels = np.unique(np.array(words), return_inverse=True)
    reported = [len(photo.scores) for photo in results.photos]
    failed = counted(len(results.failed), "photo")
    return Detections(
        str(path),
        "probs",
        tuple(names.tolist()),
        tuple(photo.file for photo in results.photos),
        labels.astype(np.int64),
        np.repeat(np.arange(len(reported)), reported),
        np.zeros(len(words)),
        np.array([score for photo in results.photos for score in photo.scores.values()]),
        np.full(len(words), np.nan),
        of_photos=True,
        notes=tuple(
            f"{results.program} has no result of {failed}, first {name}."
            for name in results.failed[:1]
        ),
    )


def _detections(source: str, form: ResultForm, table: pa.Table, keep: Sequence[str]) -> Detections:
    if not table.num_rows:
        raise DataError(f"{source}: there are no detections in it")
    label = table[form.label]
    if form.other_label in table.column_names:  # BirdNET's noises have a common name alone
        label = compute.if_else(compute.equal(label, ""), table[form.other_label], label)
    numbers = {}
    for name in (form.start, form.score):
        numbers[name] = as_numbers(with_points(table[name], f"{source}: {name!r}"))
        bad = ~np.isfinite(numbers[name])
        if bad.any():
            row = int(bad.argmax())
            got = table[name][row].as_py()
            raise DataError(f"{source}: row {row + 1}: {name!r} must be a number, got {got!r:.60}")
    names, labels = _codes(label)
    files, file = _codes(table[form.file])
    if "" in names:
        row = int((labels == names.index("")).argmax())
        raise DataError(f"{source}: row {row + 1} has no {form.label!r}")
    words, code = _codes(table["correct"])
    correct = np.array([ANSWERS.get(word.strip().lower(), -1.0) for word in words])[code]
    if (correct == -1).any():
        at = int((correct == -1).argmax())
        wanted = f"'correct' must be 1, 0, yes, no or empty, got {words[code[at]]!r}"
        raise DataError(f"{source}: row {at + 1}: {wanted}")
    detections = Detections(
        source,
        form.kind,
        names,
        files,
        labels,
        file,
        numbers[form.start],
        numbers[form.score],
        correct,
        _words(table, "split") if "split" in table.column_names else None,
        {name: _words(table, name) for name in keep},
        _groups(source, table["group"], files, file) if "group" in table.column_names else None,
    )
    _check(detections)
    return detections


def _groups(
    source: str, column: pa.ChunkedArray, files: tuple[str, ...], file: NDArray[np.int64]
) -> tuple[str, ...]:
    """Return the group of each file; one that names none is alone, and one of two is an error."""
    names, code = _codes(column)
    group_of: dict[int, str] = {}
    for pair in np.unique(file * len(names) + code).tolist():
        row, name = pair // len(names), names[pair % len(names)]
        if group_of.setdefault(row, name) != name:
            both = f"{group_of[row]!r} and {name!r}; a recording is in one"
            raise DataError(f"{source}: the recording {files[row]!r} is in the groups {both}")
    return tuple(name or files[row] for row, name in group_of.items())


def _check(found: Detections) -> None:
    outside = np.flatnonzero((found.scores < 0) | (found.scores > 1)).tolist()
    for at in outside[:1] if found.kind == "probs" else ():
        raise DataError(
            f"{found.row(at)}: a confidence must lie in [0, 1], got {found.scores[at]:g}"
        )
    keys = found.keys()
    order = np.argsort(keys, kind="stable")
    for at in order[1:][np.diff(keys[order]) == 0][:1].tolist():
        raise DataError(f"{found.row(at)} is there twice; keep one")
    for name, values in found.facts.items():
        for at in np.flatnonzero(np.char.strip(values) == "")[:1].tolist():
            raise DataError(f"{found.row(at)} has no {name!r}; give it one, or leave the row out")


def _codes(column: pa.ChunkedArray) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the different texts of a column, sorted, and each row's place (N,) among them."""
    texts = compute.unique(column).sort()
    return tuple(texts.to_pylist()), np.asarray(compute.index_in(column, texts), np.int64)


def _words(table: pa.Table, name: str) -> NDArray[np.str_]:
    words, codes = _codes(table[name])
    return np.asarray(np.array(words, dtype=str)[codes])
