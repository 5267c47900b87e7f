"""TableBuilder: batches of a table's columns, as they are read, to one LabelTable.

Only the paths, the sparse labels, the splits and the groups are kept, and image bytes where a
Spool puts them; a batch is dropped once it is read."""

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelwise.base.names import Names
from labelwise.base.text import counted, listed
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.memory import BytesImages
from labelwise.pictures.sources import FileImages, ImageSource
from labelwise.tables.columns import (
    At,
    SparseRows,
    Vocabulary,
    alike_names,
    first_true,
    read_lists,
    read_one_hot,
    read_shares,
)
from labelwise.tables.options import AS_IT_IS, OUT, TableColumns, TableOptions
from labelwise.tables.table import SPLIT_WORDS, SPLITS, LabelSets, LabelTable, SoftLabels
from labelwise.tables.words import STATES
from labelwise.types import nearest

IN_MEMORY = 1 << 30  # bytes
PLACE = Path("/var/tmp")  # /tmp may itself be memory
NEVER_0 = (
    "the label columns hold 1 and -1 and never 0, so that no label is known to be absent: -1 is "
    "read as unknown; give `--set minus_one=absent` if it means absent"
)


class _Spool:
    """Collects Arrow arrays of bytes, beyond IN_MEMORY in a file that is mapped."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._size = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchFileWriter = None

    def add(self, array: pa.Array) -> None:
        self._arrays.append(array.cast(pa.large_binary()))
        self._size += array.nbytes
        if self._size > IN_MEMORY:
            self._write()

    def finish(self) -> pa.ChunkedArray:
        if self._file is None:
            return pa.chunked_array(self._arrays, pa.large_binary())
        self._write()
        self._writer.close()
        self._file.flush()
        pa.default_memory_pool().release_unused()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).read_all().column(0)

    def _write(self) -> None:
        schema = pa.schema([("bytes", pa.large_binary())])
        folder = os.environ.get("TMPDIR") or (PLACE if os.access(PLACE, os.W_OK) else None)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by finish)
                self._writer = pa.ipc.new_file(self._file, schema)
            for array in self._arrays:
                self._writer.write_batch(pa.record_batch([array], schema=schema))
        except OSError as error:
            where = f"{folder or tempfile.gettempdir()} ({error.strerror or error})"
            way_out = "set TMPDIR to a folder with room, or use tar shards or image files"
            raise DataError(f"the images cannot be kept in {where}; {way_out}") from None
        self._arrays.clear()


class TableBuilder:
    """Collects the batches of one or more files with the same layout."""

    def __init__(
        self,
        layout: TableColumns,
        vocabulary: Vocabulary,
        options: TableOptions = AS_IT_IS,
        where: str = "",
    ) -> None:
        self.columns, self.vocabulary, self.options = layout, vocabulary, options
        self.where = where
        told = ("none", options.means_none), ("unknown", options.means_unknown)
        self.words = {w.strip().casefold(): kind for kind, words in told for w in words or ()}
        self.states = STATES | {
            word.strip().lower(): state
            for words, state in (
                (options.present, 1),
                (options.absent, 0),
                (options.means_unknown, -1),
                (options.means_none, 0),
            )
            for word in words or ()
        }
        if layout.labels is not None:
            if options.soft:
                raise SettingsError(
                    f"{where}: soft=true is for one column per label; beside a column "
                    f"{layout.labels!r} soft labels are in the columns 'soft' and 'shares'"
                )
            for key in ("minus_one", "present", "absent"):
                if getattr(options, key):
                    raise SettingsError(f"{where}: {key} is for one column per label")
        self.minus_ones = False
        self.set_aside: Counter[str] = Counter()
        self.paths: list[pa.Array] = []
        self.images = _Spool()
        self.present: list[SparseRows] = []
        self.unknown: list[SparseRows] = []
        self.soft: list[SparseRows] = []
        self.shares: list[NDArray[np.float32]] = []
        self.split: list[NDArray[np.uint8]] = []  # places in SPLITS
        self.group: list[pa.Array] = []

    def add(
        self,
        batch: pa.RecordBatch,
        where: str,
        first: int,
        *,
        split: str | None = None,
        prefix: str = "",
    ) -> None:
        """Take in a record batch of file ``where`` that begins after ``first`` rows.

        ``split`` is for files without a split column; ``prefix`` goes before each path.
        """

        def at(row: int) -> str:
            return f"{where}, row {first + row + 1}"

        layout, extension = self.columns, self.options.extension or ""
        if layout.split is not None:
            batch = self._with_split(batch, layout.split, at)
        if layout.image is not None:
            column = batch.column(layout.image)
            if pa.types.is_struct(column.type):
                fields = [field.name for field in column.type]
                if layout.path is None and "path" in fields:
                    paths = column.field("path").cast(pa.large_string())
                    self.paths.append(pc.fill_null(paths, ""))  # few files give every image one
                column = column.field("bytes") if "bytes" in fields else column
            if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
                rule = f"{layout.image!r} must hold image bytes, got {column.type}"
                raise DataError(f"{at(0)}: {rule}; if it names files, call it 'path'")
            self.images.add(column)
        if layout.path is not None:
            paths = _texts(batch.column(layout.path), layout.path, at)
            if pc.any(pc.starts_with(paths, "file:")).as_py():
                paths = pa.array(map(_without_scheme, paths.to_pylist()), pa.large_string())
            start, end, nothing = (pa.scalar(t, pa.large_string()) for t in (prefix, extension, ""))
            if extension:
                longer = pc.binary_join_element_wise(paths, end, nothing)
                paths = pc.if_else(pc.ends_with(paths, extension), paths, longer)
            for column in layout.folders[::-1]:
                folder, slash = _texts(batch.column(column), column, at), pa.scalar("/", paths.type)
                inside = pc.binary_join_element_wise(folder, paths, slash)
                paths = pc.if_else(pc.equal(folder, ""), paths, inside)
            if prefix:
                inside = pc.binary_join_element_wise(start, paths, nothing)
                paths = pc.if_else(pc.match_substring(paths, "://"), paths, inside)
            self.paths.append(paths)
        self._add_labels(batch, at)
        if split is not None and layout.split is None:
            self.split.append(np.full(batch.num_rows, SPLITS.index(split), np.uint8))
        if layout.group is not None:
            self.group.append(_texts(batch.column(layout.group), layout.group, at))

    def _with_split(self, batch: pa.RecordBatch, header: str, at: At) -> pa.RecordBatch:
        """Note the split of each row; return the rows that are not set aside."""
        text = pc.fill_null(batch.column(header).cast(pa.string()), "")
        coded = text.dictionary_encode()
        places = []
        for word in coded.dictionary.to_pylist():
            key = word.strip().lower()
            meaning = self.options.splits.get(word.strip(), SPLIT_WORDS.get(key))
            if meaning is None:
                row, got = first_true(pc.equal(text, word)), f"got {word!r}"
                rule = f"the split must be train, val or test, {got}{nearest(key, SPLIT_WORDS)}"
                raise DataError(f"{at(row)}: {rule}")
            places.append(len(SPLITS) if meaning == OUT else SPLITS.index(meaning))
        place = np.array(places, np.uint8)[np.asarray(coded.indices, np.int64)]
        aside = place == len(SPLITS)
        self.split.append(place[~aside])
        if not aside.any():
            return batch
        self.set_aside.update(pc.utf8_trim_whitespace(text).filter(pa.array(aside)).to_pylist())
        return batch.filter(pa.array(~aside))

    def finish(self, root: Path, name: str) -> LabelTable:
        """Return the table; image paths are relative to ``root``."""
        if not sum(len(rows.sizes) for rows in self.present):
            raise DataError(f"{self.where or name}: the table is empty")
        if self.split and len(self.split) != len(self.present):
            raise DataError("either all files must have a split or none")
        alike = self._look_alike(name)
        aside = [
            f"left out: {counted(count, 'row')} whose split is {repr(word) if word else 'empty'}"
            for word, count in self.set_aside.items()
        ]
        space, columns = self.vocabulary.finish()
        everything = np.concatenate([rows.everything for rows in self.unknown])
        present = _sets(self.present, columns, len(space))
        unknown = _sets(self.unknown, columns, len(space))
        is_soft = any(len(rows.numbers) for rows in self.soft)
        soft = self._soft_labels(columns, len(space), name) if is_soft else None
        if len(unknown.columns):
            _reject_both(present, unknown, "present and unknown", space.names, name)
        stated = present
        if soft is not None:
            _reject_both(present, soft.sets, "present and soft", space.names, name)
            _reject_both(unknown, soft.sets, "unknown and soft", space.names, name)
            stated, present = present.union(soft.sets), present.union(soft.majority())
            soft = soft.without_zeros()
        none_absent = len(stated.columns) + len(unknown.columns) == len(stated) * stated.width
        asks_minus_one = self.minus_ones and self.options.minus_one != "absent" and none_absent
        if everything.any():  # these rows know what is stated, and nothing else
            row = np.arange(len(unknown)) + len(unknown) * everything
            both = LabelSets.concatenate([unknown, stated]).take(row)
            unknown = replace(both, inverted=everything)
        images: ImageSource
        if self.columns.image is None:
            images = FileImages(root, Names(pa.chunked_array(self.paths)))
        else:
            blobs = self.images.finish()
            given = pa.chunked_array(self.paths).to_pylist() if self.paths else [""] * len(blobs)
            names = Names(path or f"{name}#{row}" for row, path in enumerate(given, 1))
            images = BytesImages(blobs, names)
        return LabelTable(
            space,
            images,
            present,
            unknown,
            np.array(SPLITS)[np.concatenate(self.split)] if self.split else None,
            Names(pa.chunked_array(self.group)) if self.group else None,
            name,
            (*([NEVER_0] if asks_minus_one else []), *alike, *aside),
            soft,
        )

    def _soft_labels(self, columns: NDArray[np.int32], width: int, where: str) -> SoftLabels:
        sizes = np.concatenate([rows.sizes for rows in self.soft])
        keys = np.repeat(np.arange(len(sizes)), sizes) * max(width, 1)
        keys += columns[np.concatenate([rows.numbers for rows in self.soft])]
        order = np.argsort(keys, kind="stable")
        for twice in np.flatnonzero(np.diff(keys[order]) == 0)[:1].tolist():
            row = int(keys[order[twice]]) // width
            raise DataError(f"{where}, row {row + 1}: a soft label is there twice")
        return SoftLabels(_sets(self.soft, columns, width), np.concatenate(self.shares)[order])

    def _look_alike(self, where: str) -> tuple[str, ...]:
        """Return notes on labels that look alike; make them one where ``alike`` says so."""
        notes = []
        if respelled := sorted(self.vocabulary.respelled):
            names = counted(len(respelled), "label")
            shown = listed([*map(repr, respelled)], 3)
            notes.append(f"{names} in two Unicode spellings or with hidden characters: {shown}")
        groups = [] if self.vocabulary.closed else alike_names(self.vocabulary.numbers)
        if not groups or self.options.alike != "one":
            return tuple(notes)
        shown = "; ".join(" and ".join(map(repr, group)) for group in groups[:5])
        uses = Counter(np.concatenate([rows.numbers for rows in self.present]).tolist())
        for group in groups:
            most = max(group, key=lambda n: (n[-1].isalnum(), uses[self.vocabulary.numbers[n]]))
            self.vocabulary.merge(group, most)
        return (*notes, f"read as one label each: {shown}")

    def _add_labels(self, batch: pa.RecordBatch, at: At) -> None:
        layout = self.columns
        if layout.labels is None:
            present, unknown, soft_rows, shares, minus_ones = read_one_hot(
                batch,
                layout.one_hot,
                at,
                soft=bool(self.options.soft),
                minus_one=self.options.minus_one,
                meanings=self.states,
            )
            self.present.append(present)
            self.unknown.append(unknown)
            self.soft.append(soft_rows)
            self.shares.append(shares)
            self.minus_ones = self.minus_ones or minus_ones
            return
        headers = (layout.labels, *layout.more_labels)
        nulls = np.array([batch.column(header).is_null() for header in headers])
        some = ~nulls.all(axis=0)  # where one column names labels, a null in another says nothing
        named = [self._named(batch, header, at, self.words) for header in headers]
        named = [replace(r, null=r.null & ~(n & some)) for r, n in zip(named, nulls, strict=True)]
        present = reduce(SparseRows.union, named)
        if layout.soft is not None and layout.shares is not None:
            marks = self.options.separator or ("|",)
            soft, column = self._named(batch, layout.soft, at), batch.column(layout.shares)
            self.soft.append(soft)
            self.shares.append(read_shares(column, layout.shares, soft, at, marks))
        self.present.append(present)
        if layout.unknown is None:
            nothing = np.zeros_like(present.sizes)
            unknown = SparseRows(nothing, present.numbers[:0], present.null, present.null)
        else:
            unknown = self._named(batch, layout.unknown, at, everything=True)
            unknown = replace(unknown, everything=unknown.everything | present.null)
        self.unknown.append(unknown)

    def _named(
        self,
        batch: pa.RecordBatch,
        header: str,
        at: At,
        words: Mapping[str, str] = {},
        everything: bool = False,
    ) -> SparseRows:
        column = batch.column(header)
        rows = read_lists(column, header, self.vocabulary, at, self.options.separator, words)
        if rows.everything.any() and not everything:
            raise DataError(f"{at(int(rows.everything.argmax()))}: '*' is for 'unknown' only")
        return rows


def _without_scheme(path: str) -> str:
    """Return the path of a file URI."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def _texts(column: pa.Array, header: str, at: At) -> pa.Array:
    try:
        text = column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(
            f"{at(0)}: {header!r} must hold text, got {column.type}; write it so"
        ) from None
    blank = pc.equal(pc.utf8_length(pc.fill_null(text, "")), 0)
    if pc.any(blank).as_py():
        raise DataError(f"{at(first_true(blank))}: the column {header!r} is empty")
    return text


def _sets(parts: list[SparseRows], columns: NDArray[np.int32], width: int) -> LabelSets:
    sizes = np.concatenate([rows.sizes for rows in parts])
    numbers = np.concatenate([rows.numbers for rows in parts])
    parts.clear()  # a large table should not be in memory twice
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return LabelSets.from_csr(offsets, columns[numbers], width)


def _reject_both(
    one: LabelSets, other: LabelSets, words: str, names: tuple[str, ...], where: str
) -> None:
    both = np.intersect1d(one.keys(), other.keys(), assume_unique=True)
    if len(both):
        row, column = divmod(int(both[0]), one.width)
        raise DataError(f"{where}, row {row + 1}: {names[column]!r} cannot be both {words}")
