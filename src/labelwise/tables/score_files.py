"""Score files, read without believing anything about the numbers yet.

.csv .parquet, ...   id, split and group (optional), score:NAME and label:NAME for every label; a
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy
from numpy.typing import NDArray
from pyarrow import compute

from labelwise.base.table_files import matrix_of_lists, read_parquet
from labelwise.base.text import first_line
from labelwise.errors import DataError
from labelwise.tables.tabular import TABULAR, TabularFile, json_objects, open_tabular
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
    notes: tuple[str, ...] = ()

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


def read_raw(path: Path, keep: Sequence[str] = ()) -> RawScores:
    """Return the numbers of a score file, and the columns ``keep`` as text."""
    if path.is_dir():
        file = "the scores of a run are in its folder predictions"
        raise DataError(f"{path} is a folder; give a file of scores ({file})")
    suffix, source = path.suffix.lower(), str(path)
    if suffix not in (*TABULAR, ".npz"):
        known = ", ".join((*TABULAR, ".npz"))
        raise DataError(f"{path}: scores must be one of {known}, got {suffix!r}")
    if not path.is_file():
        raise DataError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    if suffix == ".npz":
        return _npz(path, keep).check_names()
    stream = open_tabular(path)
    headers = list(stream.header)
    refuse_twice(source, headers, "the column")
    by_name = not stream.text_only and {"path", "probs"} <= {*headers}
    marked = any(name.startswith(("score:", "label:")) for name in headers)
    in_lines = suffix in (".jsonl", ".ndjson") and not marked
    if not by_name and not in_lines and headers[:3] != ANSWER_COLUMNS:
        table = _table_of(stream)
        return replace(_columns(source, table, keep), notes=stream.notes).check_names()
    if keep:
        way = "use a table with columns id, score:NAME and the one asked for"
        raise DataError(f"{path} holds paths and answers alone, no column {keep[0]!r}; {way}")
    if in_lines:
        names, ids, probs, failed = _json_lines(source)
    elif by_name:
        names, ids, probs, failed = _answer_lists(source, read_parquet(path))
    else:
        table = _table_of(stream)
        names, ids, probs, failed = _answer_columns(source, table)
    return RawScores(source, names, ids, probs, None, kind="probs", failed=failed).check_names()


def _table_of(stream: TabularFile) -> Any:
    headers = list(stream.header)
    empty = pa.schema([(name, pa.string()) for name in headers])
    batches = list(stream.batches(headers))
    return pa.Table.from_batches(batches, None if batches else empty)


def _columns(source: str, table: Any, keep: Sequence[str]) -> RawScores:
    headers = table.column_names
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
        decimal = compute.match_substring_regex(trimmed, r"^-?\d+,\d+$")  # of a German Excel
        points = compute.replace_substring(values, ",", ".")
        values = compute.if_else(decimal, points, values)
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
    kept = table.take([row for row, error in enumerate(table["error"].to_pylist()) if not error])
    ids = tuple(kept["path"].to_pylist())
    names = headers[len(ANSWER_COLUMNS) :]
    if names[:1] == ["caution"]:  # which could be a label too; a label has no words
        said = [cell for cell in table["caution"].to_pylist() if cell not in (None, "")]
        if said and all(isinstance(cell, str) and " " in cell.strip() for cell in said):
            names = names[1:]
    scores = [_numbers(source, kept, name, ids) for name in names]
    matrix = np.stack(scores, 1) if scores else np.empty((len(ids), 0))
    return tuple(names), ids, matrix, table.num_rows - len(ids)


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


def _json_lines(path: str) -> Answers:
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
