"""Score files, read without believing anything about the numbers yet.

.csv .tsv .parquet   id, split and group (optional), score:NAME and label:NAME for every label; a
                     label is 1, 0 or an empty cell (null) for unknown; other columns are left
                     alone unless they are asked for by name, as a site or a time. Rows of one
                     group, such as a patient or a site, stay together
.npz                 scores (N, K), labels (N, K) with NaN for unknown, observed (N, K),
                     names (K,), ids (N,), split (N,), group (N,)
outputs of `labelwise predict`: .csv, .jsonl and .parquet, which say that they are
                     probabilities; images that could not be read are left out and counted
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from labelwise.base.files import replacing
from labelwise.base.table_files import read_parquet
from labelwise.base.text import counted, first_line, from_cell
from labelwise.errors import DataError, SettingsError
from labelwise.pictures import FileImages
from labelwise.predictions import matrix_of_lists
from labelwise.tables import LabelTable
from labelwise.tables.load import load_for_labels
from labelwise.tables.tabular import json_objects, open_tabular
from labelwise.types import matching_columns, nearest

Table = dict[str, NDArray[Any]]


def npz_arrays(path: Path, known: Sequence[str] | None = None) -> Table:
    """Return the arrays of an archive, of ``known`` names; each as long as its header says."""
    arrays: Table = {}
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        with ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise DataError(f"{path}: array {name!r} is there twice")
                with archive.open(member) as stream:
                    version = npy.read_magic(stream)
                    if version not in headers:
                        raise ValueError(f"numpy's format {version[0]}.{version[1]} is not read")
                    shape, _, dtype = headers[version](stream)
                    if dtype.hasobject:
                        raise DataError(
                            f"{path}: array {name!r} holds Python objects, which are never read; "
                            "store text as numpy text, for example np.array(names, dtype=str)"
                        )
                    if prod(shape) * dtype.itemsize != member.file_size - stream.tell():
                        raise DataError(f"{path}: array {name!r} is cut off or damaged")
                    stream.seek(0)
                    arrays[name] = npy.read_array(stream, allow_pickle=False)
    # What a damaged archive raises is up to zipfile, zlib and numpy.
    except (OSError, BadZipFile, ZlibError, EOFError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: not a readable .npz file ({first_line(error)})") from None
    except (AttributeError, KeyError, TypeError, SyntaxError, TokenError, MemoryError):
        raise DataError(f"{path}: not a readable .npz file (damaged)") from None
    strange = next((name for name in arrays if known is not None and name not in known), None)
    if strange is not None:
        raise DataError(f"{path}: unknown array {strange!r}{nearest(strange, known or ())}")
    return arrays


def npz_matrix(path: Path, arrays: Table, name: str) -> NDArray[np.float64] | None:
    """Return a matrix of numbers, None where there is none."""
    value = arrays.get(name)
    if value is not None and (value.ndim != 2 or value.dtype.kind not in "fiub"):
        got = f"{value.dtype} {value.shape}"
        raise DataError(f"{path}: {name} must be a matrix of numbers (rows, labels), got {got}")
    return None if value is None else value.astype(np.float64)


def npz_labels(
    path: Path, arrays: Table, shape: tuple[int, int]
) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    """Return the labels of an archive, NaN where they are not observed, and their names."""
    labels, observed = (npz_matrix(path, arrays, name) for name in ("labels", "observed"))
    for name, value in (("labels", labels), ("observed", observed)):
        if value is not None and value.shape != shape:
            raise DataError(f"{path}: {name} must have shape {shape}, got {value.shape}")
    if observed is not None:
        if labels is None or not np.isin(observed, (0, 1)).all():
            raise DataError(f"{path}: observed must be true and false, or 1 and 0, beside labels")
        labels = np.where(observed == 1, labels, np.nan)
    names = npz_texts(path, arrays, "names", shape[1])
    return labels, names or tuple(f"label-{column}" for column in range(shape[1]))


def npz_texts(path: Path, arrays: Table, name: str, length: int) -> tuple[str, ...] | None:
    """Return an array of texts, None where there is none."""
    value = arrays.get(name)
    if value is None:
        return None
    if value.shape != (length,) or value.dtype.kind not in "Uiu":
        got = f"{value.dtype} {value.shape}"
        raise DataError(f"{path}: {name} must be {length} texts or integers, got {got}")
    return tuple(str(item) for item in value.tolist())


Kind = Literal["logits", "probs"]
Floats = NDArray[np.float64]
Texts = tuple[str, ...]
Answers = tuple[tuple[str, ...], tuple[str, ...], Floats, int]  # labels, ids, probs, failed
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz", ".jsonl")
FITTED_FORMAT = 1  # of link.json and thresholds.json
ARRAYS = ("scores", "labels", "observed", "names", "ids", "split", "group")
ANSWER_COLUMNS = ["path", "labels", "error"]


@dataclass(frozen=True)
class RawScores:
    """Scores (N, K), labels (N, K) with NaN for unknown, and the ``kind`` that the file states."""

    source: str
    names: tuple[str, ...]
    ids: tuple[str, ...]
    scores: NDArray[np.float64] | None
    labels: NDArray[np.float64] | None
    split: tuple[str, ...] | None = None
    kind: Kind | None = None
    failed: int = 0  # images without scores
    group: tuple[str, ...] | None = None
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # columns asked for by name

    def row(self, number: int) -> str:
        return f"{self.source}: row {number + 1} (id {self.ids[number]!r})"

    def check_names(self) -> "RawScores":
        if not self.ids:
            raise DataError(f"{self.source}: the table has no rows")
        if not self.names:
            raise DataError(f"{self.source}: the table has no labels")
        for what, values in (("label", self.names), ("id", self.ids)):
            blank = next((value for value in values if not value.strip()), None)
            if blank is not None:
                raise DataError(f"{self.source}: every {what} needs a name, got {blank!r}")
            refuse_twice(self.source, values, what)
        unnamed = [row for row, name in enumerate(self.group or ()) if not name.strip()]
        if unnamed:
            way = "name it, if need be with a name of its own"
            raise DataError(f"{self.row(unnamed[0])}: every row needs a group, or none; {way}")
        return self


def refuse_twice(source: str | Path, values: Sequence[str], what: str) -> None:
    """Raise if a value, which is a ``what`` of the source, is there twice."""
    twice = next((value for value, count in Counter(values).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{source}: {what} {twice!r} is there twice")


def places(names: Sequence[str], there: Sequence[str]) -> NDArray[np.intp]:
    """Return where each name is among others, -1 for a name that is not."""
    place = {name: number for number, name in enumerate(there)}
    return np.array([place.get(name, -1) for name in names], np.intp)


def some_places(names: Sequence[str], there: Sequence[str], problem: str) -> NDArray[np.intp]:
    """Return :func:`places`; raise where no name is there."""
    found = places(names, there)
    if (found < 0).all():
        raise DataError(f"{problem}, first {names[0]!r}{nearest(names[0], there)}")
    return found


def write_columns(path: Path, columns: Mapping[str, Any], what: str) -> None:
    """Write a table of named columns as .csv or .parquet; ``what`` they are stands in an error."""
    if path.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"{what} are written as .parquet or .csv, got {path.name!r}")
    table = pa.table(dict(columns))
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            arrow_csv.write_csv(table, temporary)
        else:
            pq.write_table(table, temporary)


def unscored_note(failed: int, source: str) -> str:
    """Return in words that images without scores are left out."""
    have, are = ("has", "is") if failed == 1 else ("have", "are")
    return f"{counted(failed, 'image')} of {source} {have} no scores and {are} left out"


def read_raw(path: Path, keep: Sequence[str] = ()) -> RawScores:
    """Return the numbers of a score file, and the columns ``keep`` as text."""
    suffix, source = path.suffix.lower(), str(path)
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: scores must be one of {', '.join(SUFFIXES)}, got {suffix!r}")
    if not path.is_file():
        raise DataError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    if suffix == ".npz":
        return _npz(path, keep).check_names()
    reader: Callable[[str, Any], Answers] = _json_lines
    table = None
    if suffix != ".jsonl":
        table = read_parquet(path) if suffix == ".parquet" else _delimited(path)
        reader = _answer_lists if suffix == ".parquet" else _answer_columns
        is_lists = suffix == ".parquet" and {"path", "probs"} <= set(table.column_names)
        if not is_lists and (suffix == ".parquet" or table.column_names[:3] != ANSWER_COLUMNS):
            return _columns(source, table, keep).check_names()
    if keep:
        way = "use a table with columns id, score:NAME and the one asked for"
        raise DataError(f"{path} holds paths and answers alone, no column {keep[0]!r}; {way}")
    names, ids, probs, failed = reader(source, table)
    return RawScores(source, names, ids, probs, None, kind="probs", failed=failed).check_names()


def _delimited(path: Path) -> Any:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    options = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with path.open("rb") as stream:
            names = arrow_csv.open_csv(stream, parse_options=options).schema.names
        text = arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        )
        return arrow_csv.read_csv(path, parse_options=options, convert_options=text)
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        reason = first_line(error)
        if isinstance(error, UnicodeDecodeError) or "utf8" in reason.lower():
            reason = "it must be UTF-8 text; save it as UTF-8"
        raise DataError(f"{path}: the table cannot be read ({reason})") from None


def _columns(source: str, table: Any, keep: Sequence[str]) -> RawScores:
    headers = table.column_names
    refuse_twice(source, headers, "the column")
    if "id" not in headers:
        raise DataError(f"{source}: there is no column 'id'{nearest('id', headers)}")
    scored, labelled = (
        [name.removeprefix(mark) for name in headers if name.startswith(mark)]
        for mark in ("score:", "label:")
    )
    if not scored and not labelled:
        got = f"{', '.join(map(repr, headers[:8]))}; name one column per label like 'score:dog'"
        raise DataError(f"{source}: there are no columns 'score:NAME' or 'label:NAME', got {got}")
    if scored and labelled:
        matching_columns(scored, labelled, of="columns score:NAME", in_=f"{source}, label:NAME")
    ids = _texts_of(source, table, "id")
    split, group = (
        _texts_of(source, table, name) if name in headers else None for name in ("split", "group")
    )
    for name in keep:
        if name not in headers:
            raise DataError(f"{source}: there is no column {name!r}{nearest(name, headers)}")
    facts = {name: _fact(source, table, name) for name in keep}
    names = scored or labelled
    scores, labels = (
        np.stack([_numbers(source, table, f"{mark}:{name}", ids) for name in names], 1)
        if own
        else None
        for mark, own in (("score", scored), ("label", labelled))
    )
    return RawScores(source, tuple(names), ids, scores, labels, split, group=group, facts=facts)


def _fact(source: str, table: Any, column: str) -> tuple[str, ...]:
    """Return a column that was asked for as text; every row needs a value."""
    values = table[column].to_pylist()
    for row, value in enumerate(values):
        if value is None or not str(value).strip():
            raise DataError(f"{source}: row {row + 1} has no {column!r}; give it one, or drop it")
    return tuple(map(str, values))


def _texts_of(source: str, table: Any, column: str) -> tuple[str, ...]:
    values = table[column].to_pylist()
    for row, value in enumerate(values):
        if not isinstance(value, str | int):
            raise DataError(
                f"{source}: row {row + 1}: {column!r} must be text or a whole number, got {value!r}"
            )
    return tuple(map(str, values))


def _numbers(source: str, table: Any, column: str, ids: tuple[str, ...]) -> NDArray[np.float64]:
    """Return a column as float64, NaN where a cell is empty."""
    values = table[column].combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        trimmed = compute.utf8_trim_whitespace(values)
        values = compute.if_else(compute.equal(trimmed, ""), None, trimmed)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    try:
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        cells = values.to_pylist()
        row = next((row for row, cell in enumerate(cells) if not _is_number(cell)), 0)
        where = f"{source}: row {row + 1} (id {ids[row]!r})"
        raise DataError(f"{where}: {column!r} must be a number, got {cells[row]!r}") from None


def _is_number(cell: Any) -> bool:
    try:
        return cell is None or isinstance(float(cell), float)
    except (TypeError, ValueError):
        return False


def _answer_columns(source: str, table: Any) -> Answers:
    """Return predict's CSV: path, labels, error, perhaps a caution in words, then probabilities."""
    headers = table.column_names
    refuse_twice(source, headers, "the column")
    kept = table.take([row for row, error in enumerate(table["error"].to_pylist()) if not error])
    ids = tuple(map(from_cell, kept["path"].to_pylist()))
    names = headers[len(ANSWER_COLUMNS) :]
    if names[:1] == ["caution"]:  # which could be a label too; a label has no words
        said = [cell for cell in table["caution"].to_pylist() if cell not in (None, "")]
        if said and all(isinstance(cell, str) and " " in cell.strip() for cell in said):
            names = names[1:]
    scores = [_numbers(source, kept, name, ids) for name in names]
    matrix = np.stack(scores, 1) if scores else np.empty((len(ids), 0))
    return tuple(map(from_cell, names)), ids, matrix, table.num_rows - len(ids)


def _answer_lists(path: str, table: Any) -> Answers:
    """Return predict's Parquet: path, labels, probs in the order of the metadata, error."""
    try:
        names = json.loads((table.schema.metadata or {})[b"labelwise"])["names"]
        if not all(isinstance(name, str) for name in names):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        way = "write it again with `labelwise predict`"
        raise DataError(f"{path}: there are no label names in its metadata; {way}") from None
    kept = table.filter(compute.is_valid(table["probs"]))
    matrix = matrix_of_lists(kept["probs"], len(names), f"{path}: probs").astype(np.float64)
    ids = _texts_of(path, kept, "path")
    return tuple(names), ids, matrix, table.num_rows - len(ids)


def _json_lines(path: str, _: Any) -> Answers:
    """Return predict's JSON Lines: objects with path and probs by name, or path and error."""
    names: tuple[str, ...] = ()
    ids: list[str] = []
    rows: list[list[float]] = []
    failed = 0
    for number, record in json_objects(Path(path)):
        if "path" in record and "error" in record:
            failed += 1
            continue
        probs = record.get("probs")
        if not isinstance(probs, dict) or not isinstance(record.get("path"), str):
            what = "an object with 'path' and 'probs' by name, as `labelwise predict` writes it"
            raise DataError(f"{path}: line {number} must be {what}")
        names = names or tuple(probs)
        if set(probs) != set(names):
            odd = sorted(set(probs) ^ set(names))[0]
            raise DataError(f"{path}: line {number} must have the labels of line 1; {odd!r} is not")
        values = [probs[name] for name in names]
        for name, value in zip(names, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float):
                what = f"the probability of {name!r} must be a number, got {value!r}"
                raise DataError(f"{path}: line {number}: {what}")
        ids.append(record["path"])
        rows.append(values)
    return names, tuple(ids), np.array(rows, np.float64).reshape(len(ids), len(names)), failed


def _npz(path: Path, keep: Sequence[str]) -> RawScores:
    arrays = npz_arrays(path, (*ARRAYS, *keep))
    for name in keep:
        if name not in arrays:
            raise DataError(f"{path}: there is no array {name!r}{nearest(name, arrays)}")
    scores = npz_matrix(path, arrays, "scores")
    first = npz_matrix(path, arrays, "labels") if scores is None else scores
    if first is None:
        raise DataError(f"{path}: there is no array 'scores'{nearest('scores', arrays)}")
    rows = len(first)
    labels, names = npz_labels(path, arrays, first.shape)
    return RawScores(
        str(path),
        names,
        npz_texts(path, arrays, "ids", rows) or tuple(map(str, range(rows))),
        scores,
        labels,
        npz_texts(path, arrays, "split", rows),
        group=npz_texts(path, arrays, "group", rows),
        facts={name: npz_texts(path, arrays, name, rows) or () for name in keep},
    )


def refuse_entries(
    raw: RawScores, bad: NDArray[np.bool_], values: NDArray[np.float64], rule: str, way_out: str
) -> None:
    """Raise with the first entry that is ``bad``, the rule that it breaks, and a way out."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        got = "nothing" if np.isnan(value) else f"{value:g}"
        raise DataError(f"{raw.row(row)}: {rule}, got {got} for {raw.names[column]!r}; {way_out}")


def check_labels(raw: RawScores, labels: NDArray[np.float64]) -> None:
    """Raise unless labels (N, K) lie in [0, 1], or are NaN for unknown."""
    odd = ~np.isnan(labels) & ~((labels >= 0) & (labels <= 1))
    rule = "a label is 1, 0, a share in between if it is soft, or empty for unknown"
    refuse_entries(raw, odd, labels, rule, "correct the cell")


def labels_beside(
    raw: RawScores, source: str | Path
) -> tuple[Floats, NDArray[np.bool_], Texts | None, Texts | None]:
    """Return labels (N, K) of the rows of ``raw``, NaN where unknown, and which rows have any.

    Beside them the group and the split of each row, where one of the two files names them; of two
    splits that of ``raw`` counts.
    """
    if Path(source).is_file() and _holds_label_columns(Path(source)):
        other = read_raw(Path(source))
        if other.labels is None:
            raise DataError(f"{other.source}: there are no labels; name columns like 'label:dog'")
        check_labels(other, other.labels)
        columns = matching_columns(raw.names, other.names, of=raw.source, in_=other.source)
        labels = other.labels[:, columns]
        ids, group, split = other.ids, other.group, other.split
    else:
        table = load_for_labels(source, raw.names)
        matching_columns(raw.names, table.space.names, of=raw.source, in_=table.name)
        labels, _ = aligned_labels(table, raw.names)
        ids, group = tuple(table.ids), None if table.group is None else tuple(table.group)
        split = None if table.split is None else tuple(table.split.tolist())
        if isinstance(table.images, FileImages) and not set(ids) & set(raw.ids):
            ids = tuple(str(table.images.path(row).resolve()) for row in range(len(ids)))
            raw = replace(raw, ids=tuple(str(Path(name).resolve()) for name in raw.ids))
    rows = some_places(raw.ids, ids, f"{source}: no id of {raw.source} is in it")
    matched = rows >= 0
    if group is not None and raw.group is not None:
        raise DataError(f"{raw.source} and {source} both name groups; leave one of them out")
    groups = raw.group if group is None else tuple(group[row] for row in rows)
    divided = raw.split
    if divided is None and split is not None:
        divided = tuple(split[row] for row in rows)
    return np.where(matched[:, None], labels[rows], np.nan), matched, groups, divided


def _holds_label_columns(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".parquet"):
        return suffix == ".npz"
    names = open_tabular(path).header
    return "id" in names and any(name.startswith(("label:", "score:")) for name in names)


def label_arrays(labels: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return labels (N, K) as uint8, or float32 if some are soft, and which are known."""
    known = ~np.isnan(labels)
    values = np.where(known, labels, 0.0)
    kind = np.float32 if ((values > 0) & (values < 1)).any() else np.uint8
    return values.astype(kind), None if known.all() else known


def aligned_labels(table: LabelTable, names: tuple[str, ...]) -> tuple[Floats, list[str]]:
    """Return labels (N, K) in the order of ``names``, NaN where unknown, and what differs."""
    labels, observed = table.targets()
    lacks = f"{table.name} has none of the labels asked for"
    columns = some_places(names, table.space.names, lacks)
    known = columns >= 0 if observed is None else observed[:, columns] & (columns >= 0)
    aligned = np.where(known, labels[:, columns].astype(np.float64), np.nan)
    notes = []
    for what, ours, theirs in (
        ("does not speak of {}, unknown here", names, table.space.names),
        ("also has {}, left out", table.space.names, names),
    ):
        lacking = sorted(set(ours) - set(theirs))
        if lacking:
            some = ", ".join(lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            labels_in_words = f"{counted(len(lacking), 'label')} ({some})"
            notes.append(f"{table.name} {what.format(labels_in_words)}.")
    return aligned, notes
