"""Score files, read without believing anything about the numbers yet.

.csv .parquet, ...   id (or path, file and the like), split and group (optional), score:NAME and
                     label:NAME for every label; a label is 1, 0 or a word such as ja and non, or
                     an empty cell (null) for unknown; other columns are left alone unless they are
                     asked for by name, as a site or a time. Rows of one group, such as a patient
                     or a site, stay together
.npz                 scores (N, K), labels (N, K) with NaN for unknown, observed (N, K),
                     names (K,), ids (N,), split (N,), group (N,)
outputs of `labelwise predict`: .csv, .jsonl and .parquet, which say that they are
                     probabilities; images that could not be read are left out and counted
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from labelwise.base.table_files import matrix_of_lists, read_parquet
from labelwise.errors import DataError
from labelwise.tables.archives import Archive, Floats, Texts
from labelwise.tables.tabular import TABULAR, json_objects, open_tabular
from labelwise.tables.words import ABSENT, NO_STATE, PRESENT, USUAL_PATHS, folded
from labelwise.types import matching_columns, nearest

Kind = Literal["logits", "probs"]
Answers = tuple[Texts, Texts, Floats, int]  # labels, ids, probabilities, photos that failed
ARRAYS = ("scores", "labels", "observed", "names", "ids", "split", "group")
ANSWER_COLUMNS = ["path", "labels", "error"]
COMMA = r"^([-+]?\d*),(\d+)$"
WORDS = dict.fromkeys(NO_STATE, "nan") | dict.fromkeys(ABSENT, "0") | dict.fromkeys(PRESENT, "1")


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
    marked = any(name.startswith(("score:", "label:")) for name in headers)
    in_lines = suffix in (".jsonl", ".ndjson") and not marked
    by_name = not stream.text_only and {"path", "probs"} <= {*headers}
    of_predict = in_lines or by_name or headers[:3] == ANSWER_COLUMNS
    if keep and of_predict:
        way = "use a table with columns id, score:NAME and the one asked for"
        raise DataError(f"{path} holds paths and answers alone, no column {keep[0]!r}; {way}")
    if in_lines:
        answers = _json_lines(path)
    elif by_name:
        answers = _answer_lists(source, read_parquet(path))
    else:
        batches = list(stream.batches(headers))
        empty = pa.schema([(name, pa.string()) for name in headers])
        table = pa.Table.from_batches(batches, None if batches else empty)
        if not of_predict:
            return replace(_columns(source, table, keep), notes=stream.notes).check_names()
        answers = _answer_columns(source, table)
    names, ids, probs, failed = answers
    return RawScores(source, names, ids, probs, None, kind="probs", failed=failed).check_names()


def _columns(source: str, table: pa.Table, keep: Sequence[str]) -> RawScores:
    headers = table.column_names
    photos = ["id"] if "id" in headers else [h for h in headers if folded(h) in USUAL_PATHS]
    for name in (photos[0] if len(photos) == 1 else "id", *keep):
        if name not in headers:
            raise DataError(f"{source}: there is no column {name!r}{nearest(name, headers)}")
    scored, labelled = (
        [name.removeprefix(mark) for name in headers if name.startswith(mark)]
        for mark in ("score:", "label:")
    )
    if not scored and not labelled:
        got = f"{', '.join(map(repr, headers[:8]))}; name one column per label like 'score:dog'"
        raise DataError(f"{source}: there are no columns 'score:NAME' or 'label:NAME', got {got}")
    if scored and labelled:
        matching_columns(scored, labelled, of="columns score:NAME", in_=f"{source}, label:NAME")
    ids = _texts(source, table, photos[0])
    split, group = (
        _texts(source, table, name) if name in headers else None for name in ("split", "group")
    )
    names = scored or labelled
    scores, labels = (
        np.stack([_numbers(source, table, f"{mark}:{name}", ids) for name in names], 1)
        if listed
        else None
        for mark, listed in (("score", scored), ("label", labelled))
    )
    texts = [name for name in headers if name.startswith("label:")]
    ticked = any(pa.types.is_string(table[name].type) for name in texts)
    if labels is not None and ticked and not (labels < 1).any() and np.isnan(labels).any():
        raise DataError(
            f"{source}: no cell of the columns label:NAME says that a label is absent, for an "
            "empty cell means unknown; write 0 where a label is absent"
        )
    facts = {name: _texts(source, table, name) for name in keep}
    return RawScores(source, tuple(names), ids, scores, labels, split, group=group, facts=facts)


def _texts(source: str, table: pa.Table, column: str) -> Texts:
    """Return a column as text; every row needs a value."""
    values = table[column].to_pylist()
    for row, value in enumerate(values, 1):
        if value is None or not str(value).strip():
            raise DataError(f"{source}: row {row} has no {column!r}; give it one, or drop the row")
        if isinstance(value, float | bytes | list):
            rule = "must be text or a whole number"
            raise DataError(f"{source}: row {row}: {column!r} {rule}, got {value!r:.60}")
    return tuple(map(str, values))


def _numbers(source: str, table: pa.Table, column: str, ids: Texts) -> Floats:
    """Return a column as float64, NaN where a cell is empty.

    Decimal commas are read; in a column of labels also words such as ja, non and ``x``.
    """
    values = table[column].combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    cells = values
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        text = compute.utf8_lower(compute.utf8_trim_whitespace(values))
        text = with_points(text, f"{source}: {column!r}")
        if column.startswith("label:"):
            places = compute.index_in(text, pa.array([*WORDS], text.type))
            text = compute.coalesce(pa.array([*WORDS.values()], text.type).take(places), text)
        values = compute.if_else(compute.equal(text, ""), None, text)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    try:
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        plain = enumerate(values.to_pylist())
        row = next((row for row, cell in plain if not _is_number(cell)), 0)
        where = f"{source}: row {row + 1} (id {ids[row]!r})"
        got = cells[row].as_py()
        raise DataError(f"{where}: {column!r} must be a number, got {got!r:.60}") from None


def with_points(text: pa.Array, where: str) -> pa.Array:
    """Return numbers written with decimal commas, as a German Excel writes them, with points.

    Beside points a comma may part thousands, so a column with both is an error.
    """
    commas = compute.match_substring_regex(text, COMMA)
    if not compute.any(commas).as_py():
        return text
    points = compute.match_substring_regex(text, r"^[-+]?\d*\.\d+")
    if compute.any(points).as_py():
        first, other = (text.filter(rows)[0].as_py() for rows in (commas, points))
        way_out = "write all its numbers with points"
        raise DataError(f"{where} holds both {first} and {other}; {way_out}")
    return compute.replace_substring_regex(text, COMMA, r"\1.\2")


def _is_number(cell: object) -> bool:
    try:
        return cell is None or np.isscalar(float(str(cell)))
    except ValueError:
        return False


def _answer_columns(source: str, table: pa.Table) -> Answers:
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


def _answer_lists(path: str, table: pa.Table) -> Answers:
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
    ids = _texts(path, kept, "path")
    return tuple(names), ids, matrix, table.num_rows - len(ids)


def _json_lines(path: Path) -> Answers:
    """Return predict's JSON Lines: objects with path and probs by name, or path and error."""
    names: Texts = ()
    ids: list[str] = []
    rows: list[list[float]] = []
    failed = 0
    for number, record in json_objects(path):
        where, probs = f"{path}: line {number}", record.get("probs")
        if "path" in record and "error" in record:
            failed += 1
            continue
        if not isinstance(probs, dict) or not isinstance(record.get("path"), str):
            what = "an object with 'path' and 'probs' by name, as `labelwise predict` writes it"
            raise DataError(f"{where} must be {what}")
        names = names or tuple(probs)
        if odd := sorted(set(probs) ^ set(names)):
            raise DataError(f"{where} must have the labels of line 1; {odd[0]!r} is not")
        for name, value in probs.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                what = f"the probability of {name!r} must be a number, got {value!r}"
                raise DataError(f"{where}: {what}")
        ids.append(record["path"])
        rows.append([probs[name] for name in names])
    return names, tuple(ids), np.array(rows, np.float64).reshape(len(ids), len(names)), failed


def _npz(path: Path, keep: Sequence[str]) -> RawScores:
    archive = Archive(path, (*ARRAYS, *keep))
    first = archive.array("scores" if "labels" not in archive else "labels", "fiub", (None, None))
    scores = archive.array("scores", "fiub", (None, None)) if "scores" in archive else None
    rows, width = np.shape(first if scores is None else scores)
    return RawScores(
        str(path),
        archive.names(width),
        archive.texts("ids", rows) or tuple(map(str, range(rows))),
        None if scores is None else scores.astype(np.float64),
        archive.labels((rows, width)),
        archive.texts("split", rows),
        group=archive.texts("group", rows),
        facts={name: tuple(map(str, archive.array(name, "Uiu", (rows,)))) for name in keep},
    )
