"""export: a table to CSV, TSV, JSON Lines, Parquet or .npz, as load reads it back.

An .npz file holds features in the place of images, and nothing pickled:

    features      (N, D) numbers, or maps of them (N, D, h, w)
    labels        (N, K) 0 or 1, or a share between them where labels are soft
    label_names   (K,) texts
    observed      (N, K) 0 or 1, which labels are known; without it, all are
    split         (N,) train, val or test; may be left out, as may ``ids`` (N,), one text per row,
                  and ``group`` (N,), the patient, site or burst of each row
"""

import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from labelwise.base.files import replacing
from labelwise.base.storage import is_uri
from labelwise.base.text import as_cell
from labelwise.errors import DataError
from labelwise.pictures.memory import BytesImages, FeatureRows
from labelwise.pictures.sources import FileImages, ImageSource, SpanImages
from labelwise.tables.archives import Archive
from labelwise.tables.reading import reads_as_columns, reads_as_lists
from labelwise.tables.table import SPLIT_WORDS, LabelTable, SoftLabels
from labelwise.tables.tabular import as_cells

ListCell = Sequence[object] | NDArray[np.float32]
BATCH_ROWS = 4096
MOST_UNKNOWN = 1000  # labels of a row that are listed as unknown; beyond, the absent ones are named
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def export(table: LabelTable, path: str | Path) -> None:
    """Write the table; images that are not files go into Parquet as bytes, features into .npz.

    ``unknown`` is ``*`` where every label that is not present is unknown. Text gets one column per
    label if a label never occurs, or if its name in a list could be read otherwise. Soft labels
    are in the columns ``soft`` and ``shares``; where far more labels are unknown than known, so are
    the absent ones, with a share of 0.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if isinstance(table.images, FeatureRows):
        if suffix != ".npz":
            raise DataError(f"{target}: {table.name} holds features, and is written as .npz")
        write_features(table, target)
        return
    if suffix not in SUFFIXES:
        raise DataError(f"{target}: a table must end in {', '.join(SUFFIXES)}")
    if not isinstance(table.images, FileImages) and suffix != ".parquet":
        raise DataError(f"{table.name}: its images are not single files; write .parquet instead")
    if isinstance(table.images, FileImages) and table.images.real_names:
        name = next(iter(table.images.real_names))
        raise DataError(f"{table.name}: the file name {name} is not UTF-8; rename the file")
    if suffix == ".jsonl":
        with replacing(target) as temporary, temporary.open("w", encoding="utf-8") as stream:
            rows = json_rows(table, target.parent)
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return
    as_text = suffix in (".csv", ".tsv")
    batches = _batches(table, target.parent, as_text=as_text, per_label=_per_label(table, suffix))
    with replacing(target) as temporary:
        first = next(batches)
        classes = {b"classes": json.dumps(list(table.space.names)).encode()}
        schema = first.schema if as_text else first.schema.with_metadata(classes)
        options = arrow_csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
        with (
            arrow_csv.CSVWriter(temporary, schema, write_options=options)
            if as_text
            else pq.ParquetWriter(temporary, schema, compression="zstd")
        ) as writer:
            for batch in itertools.chain([first], batches):
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def json_rows(table: LabelTable, folder: Path) -> Iterator[dict[str, object]]:
    """Yield the rows as JSON Lines hold them, paths as seen from ``folder``."""
    for batch in _batches(table, folder, as_text=False, per_label=_per_label(table, ".jsonl")):
        yield from batch.to_pylist()


def _per_label(table: LabelTable, suffix: str) -> bool:
    names, as_text = table.space.names, suffix in (".csv", ".tsv")
    shortened, stated = _shortened(table), table.present.counts()
    stated += table.unknown.take(np.flatnonzero(~_all_open(table) & ~shortened)).counts()
    stated += table.unknown.take(np.flatnonzero(shortened)).complement().counts()
    stated += 0 if table.soft is None else table.soft.sets.counts()
    if suffix != ".parquet" and not stated.all():  # no row names some label
        some = "some labels never occur"
        if table.soft is not None:
            raise DataError(f"{table.name}: {some} and others are soft, which only .parquet holds")
        if not reads_as_columns(names):
            odd = next((name for name in names if not reads_as_columns([name])), names[0])
            none = f"none can be called {odd!r}"
            raise DataError(f"{some}, so each needs a column, but {none}; write .parquet")
        return True
    if suffix != ".parquet" and table.soft is None:
        several = bool((table.present.sizes() > 1).any())
        as_lists = reads_as_lists(names, several, nested=not as_text)
        if not as_lists and reads_as_columns(names):
            return True
    for name in names:
        if name.strip() != name or name == "*":
            raise DataError(
                f"the label {name!r} cannot be in a list of labels, where blanks around a name "
                "are dropped and * means every label; rename it"
            )
        if as_text and "|" in name:
            way_out = "write .jsonl or .parquet"
            raise DataError(f"the label {name!r} cannot be in text that is split on '|'; {way_out}")
    return False


def _batches(
    table: LabelTable, folder: Path, *, as_text: bool, per_label: bool
) -> Iterator[pa.RecordBatch]:
    with_shares = table.soft is not None or bool(_shortened(table).any())
    written = {"labels", *(("unknown",) if table.has_unknown() else ())}
    written |= {"soft", "shares"} if with_shares else set()
    cells = len(table) * len(table.space)
    # Where no cell says absent, an empty one could be read as absent: it says that it is unknown.
    nothing = int(table.present.sizes().sum() + table.unknown.sizes().sum()) == cells
    for start in range(0, len(table), BATCH_ROWS):
        block = table.subset(np.arange(start, min(start + BATCH_ROWS, len(table))))
        paths = list(block.ids)
        if isinstance(block.images, FileImages):
            inside = os.path.relpath(block.images.root, folder)
            paths = [p if is_uri(p) else os.path.normpath(os.path.join(inside, p)) for p in paths]
        columns: dict[str, pa.Array] = {"path": pa.array(paths, pa.string())}
        if not isinstance(block.images, FileImages):
            blobs = [_encoded(block.images, row) for row in range(len(block))]
            columns["image"] = pa.array(blobs, pa.binary())
        lists = {} if per_label else _lists(block)
        for name in filter(written.__contains__, lists):
            kind = pa.float32() if name == "shares" else pa.string()
            texts = (["|".join(map(str, row)) for row in lists[name]], pa.string())
            columns[name] = pa.array(*texts if as_text else (lists[name], pa.list_(kind)))
        if block.split is not None:
            columns["split"] = pa.array(block.split.tolist(), pa.string())
        if block.group is not None:
            columns["group"] = pa.array(list(block.group), pa.string())
        if per_label:
            present, unknown = block.present.dense(), block.unknown.dense()
            for position, name in enumerate(block.space.names):
                states = pa.array(present[:, position].astype(np.int8), mask=unknown[:, position])
                columns[name] = (
                    pc.fill_null(states.cast(pa.string()), "unknown" if nothing else "")
                    if as_text
                    else states
                )
        values = list(columns.values())
        names = [as_cell(name) if as_text else name for name in columns]
        yield pa.record_batch(as_cells(values) if as_text else values, names)


def _all_open(table: LabelTable) -> NDArray[np.bool_]:
    """Return the rows of which every label that is not present is unknown."""
    sizes, stated = table.unknown.sizes(), table.present.sizes()
    if table.soft is not None:
        stated = stated - table.soft.majority().sizes() + table.soft.sets.sizes()
    rows: NDArray[np.bool_] = (stated + sizes == len(table.space)) & (sizes > 0)
    return rows


def _shortened(table: LabelTable) -> NDArray[np.bool_]:
    """Return the rows with so many unknown labels that the absent ones are named instead."""
    sizes = table.unknown.sizes()
    rows: NDArray[np.bool_] = (sizes > MOST_UNKNOWN) & (2 * sizes > len(table.space))
    return rows & ~_all_open(table)


def _lists(table: LabelTable) -> dict[str, list[ListCell]]:
    names, soft = table.space.names, table.soft or SoftLabels.none(len(table), len(table.space))
    shortened = _shortened(table)
    open_rows = _all_open(table) | shortened
    lists: dict[str, list[ListCell]] = {
        "labels": [],
        "unknown": [],
        "soft": [],
        "shares": [],
    }
    for row in range(len(table)):
        columns, values = soft.row(row)
        present = np.setdiff1d(table.present.row(row), columns)
        if shortened[row]:
            known = table.unknown.complement().row(row)
            absent = np.setdiff1d(known, np.union1d(table.present.row(row), columns))
            columns = np.concatenate([columns, absent.astype(np.int32)])
            values = np.concatenate([values, np.zeros(len(absent), np.float32)])
        unknown = present[:0] if open_rows[row] else table.unknown.row(row)
        for key, chosen in (("labels", present), ("unknown", unknown), ("soft", columns)):
            lists[key].append([names[column] for column in chosen])
        lists["shares"].append(values)
        if open_rows[row]:
            lists["unknown"][-1] = ["*"]
    return lists


def _encoded(images: ImageSource, row: int) -> bytes:
    if isinstance(images, BytesImages | SpanImages):
        return images.content(row)
    buffer = io.BytesIO()
    images.read(row).save(buffer, "PNG")
    return buffer.getvalue()


ARRAYS = ("features", "labels", "label_names", "observed", "split", "ids", "group")


def read_feature_file(path: Path) -> LabelTable:
    """Return the table of an .npz file of features and labels."""
    archive = Archive(path, ARRAYS)
    features = archive.features("features", (None, None), (None,) * 4)
    archive.array("labels", "fiub", (None, None))
    rows, width = len(features), archive.array("label_names", "Uiu", (None,)).size
    labels = np.asarray(archive.labels((rows, width)))
    split = archive.texts("split", rows)
    if split is not None:
        strange = next((word for word in split if word.lower() not in SPLIT_WORDS), None)
        if strange is not None:
            raise DataError(f"{path}: split must be train, val or test, got {strange!r}")
        split = tuple(SPLIT_WORDS[word.lower()] for word in split)
    try:
        return LabelTable.from_arrays(
            archive.names(width, "label_names"),
            FeatureRows(features, archive.texts("ids", rows)),
            labels,
            ~np.isnan(labels),
            split=split,
            group=archive.texts("group", rows),
            name=path.stem,
        )
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write_features(table: LabelTable, path: Path) -> None:
    """Write a table that holds features as an .npz file that :func:`read_feature_file` reads."""
    if not isinstance(table.images, FeatureRows):
        raise DataError(f"{table.name} holds images; only features are written to {path}")
    labels, observed = table.targets()
    arrays: dict[str, Any] = {
        "features": np.asarray(table.images.features),
        "labels": labels,
        "label_names": np.array(table.space.names),
        "ids": np.array(list(table.ids)),
    }
    arrays |= {} if observed is None else {"observed": observed}
    arrays |= {} if table.split is None else {"split": table.split}
    arrays |= {} if table.group is None else {"group": np.array(list(table.group))}
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
