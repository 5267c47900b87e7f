"""Gather: Arrow batches, in the columns of a Layout, to a LabelTable in bounded memory.

Only the paths, the sparse labels, the splits and the groups are kept, and image bytes where a
Spool puts them; a batch is dropped once it is read. ``unknown`` may say ``*``: every label that is
not in ``labels``. A list that is null (Parquet, JSON Lines) means that nothing is known of the
image; an empty one means "none of them".
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelwise.data.images import BytesImages, FileImages, ImageSource
from labelwise.data.label_columns import SparseRows, first_true, read_lists, read_one_hot
from labelwise.data.layout import Layout
from labelwise.data.names import Names
from labelwise.data.sets import LabelSets
from labelwise.data.spool import Spool
from labelwise.data.table import SPLITS, LabelTable
from labelwise.data.vocabulary import Vocabulary
from labelwise.errors import DataError
from labelwise.types import nearest

__all__ = ["SPLIT_WORDS", "Gather"]

SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


class Gather:
    """Collects the batches of one or more files with the same layout."""

    def __init__(self, layout: Layout, vocabulary: Vocabulary, *, separator: str = "|") -> None:
        self.layout, self.vocabulary, self.separator = layout, vocabulary, separator
        self.paths: list[Any] = []
        self.images = Spool()
        self.present: list[SparseRows] = []
        self.unknown: list[SparseRows] = []
        self.split: list[NDArray[np.uint8]] = []  # places in SPLITS
        self.group: list[Any] = []

    def add(
        self, batch: Any, where: str, first: int, *, split: str | None = None, prefix: str = ""
    ) -> None:
        """Take in a record batch of file ``where`` that begins after ``first`` rows.

        ``split`` is for files without a split column; ``prefix`` goes before each path.
        """

        def at(row: int) -> str:
            return f"{where}, row {first + row + 1}"

        layout = self.layout
        if layout.image is not None:
            self._add_image(batch.column(layout.image), at)
        if layout.path is not None:
            paths = _texts(batch.column(layout.path), layout.path, at)
            self.paths.append(_prefixed(paths, prefix) if prefix else paths)
        self._add_labels(batch, at)
        if layout.split is not None:
            self.split.append(_splits(batch.column(layout.split), at))
        elif split is not None:
            self.split.append(np.full(batch.num_rows, SPLITS.index(split), np.uint8))
        if layout.group is not None:
            self.group.append(_texts(batch.column(layout.group), layout.group, at))

    def finish(self, root: Path, name: str) -> LabelTable:
        """Return the table; image paths are relative to ``root``."""
        if not sum(len(rows.sizes) for rows in self.present):
            raise DataError(f"{name}: the table is empty")
        space, columns = self.vocabulary.finish()
        everything = np.concatenate([rows.everything for rows in self.unknown])
        present = _sets(self.present, columns, len(space))
        unknown = _sets(self.unknown, columns, len(space))
        _reject_both(present, unknown, space.names, name)
        return LabelTable(
            space,
            self._images(root, name),
            present,
            _with_everything(unknown, everything, present),
            np.array(SPLITS)[np.concatenate(self.split)] if self.split else None,
            Names(pa.chunked_array(self.group)) if self.group else None,
            name,
        )

    def _add_labels(self, batch: Any, at: Any) -> None:
        layout = self.layout
        if layout.labels is None:
            present, unknown = read_one_hot(batch, layout.one_hot, at)
            self.present.append(present)
            self.unknown.append(unknown)
            return
        words = self.vocabulary, at
        present = read_lists(
            batch.column(layout.labels), layout.labels, *words, separator=self.separator
        )
        if present.everything.any():
            raise DataError(f"{at(int(present.everything.argmax()))}: '*' is for 'unknown' only")
        nothing = np.zeros_like(present.sizes)
        unknown = SparseRows(nothing, present.numbers[:0], present.null, present.null)
        if layout.unknown is not None:
            named = read_lists(
                batch.column(layout.unknown), layout.unknown, *words, separator=self.separator
            )
            unknown = SparseRows(
                named.sizes, named.numbers, named.null, named.everything | present.null
            )
        self.present.append(present)
        self.unknown.append(unknown)

    def _add_image(self, column: Any, at: Any) -> None:
        if pa.types.is_struct(column.type):
            fields = [column.type.field(index).name for index in range(column.type.num_fields)]
            if self.layout.path is None and "path" in fields:
                paths = column.field("path").cast(pa.large_string())
                self.paths.append(pc.fill_null(paths, ""))  # few files give every image one
            column = column.field("bytes") if "bytes" in fields else column
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            raise DataError(
                f"{at(0)}: {self.layout.image!r} must hold image bytes, got {column.type}; "
                "if it names files, call it 'path'"
            )
        self.images.add(column)

    def _images(self, root: Path, name: str) -> ImageSource:
        if self.layout.image is None:
            return FileImages(root, Names(pa.chunked_array(self.paths)))
        blobs = self.images.finish()
        given = pa.chunked_array(self.paths) if self.paths else None
        if given is not None and not pc.any(pc.equal(given, "")).as_py():
            return BytesImages(blobs, Names(given))
        names = given.to_pylist() if given is not None else [""] * len(blobs)
        numbered = (one or f"{name}#{row}" for row, one in enumerate(names, 1))
        return BytesImages(blobs, Names(numbered))


def _prefixed(paths: Any, prefix: str) -> Any:
    start, nothing = (pa.scalar(text, pa.large_string()) for text in (prefix, ""))
    return pc.binary_join_element_wise(start, paths, nothing)


def _texts(column: Any, header: str, at: Any) -> Any:
    try:
        text = column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"{at(0)}: {header!r} must hold text, got {column.type}") from None
    blank = pc.equal(pc.utf8_length(pc.fill_null(text, "")), 0)
    if pc.any(blank).as_py():
        raise DataError(f"{at(first_true(blank))}: the column {header!r} is empty")
    return text


def _splits(column: Any, at: Any) -> NDArray[np.uint8]:
    text = pc.fill_null(column.cast(pa.string()), "")
    coded = text.dictionary_encode()
    places = []
    for word in coded.dictionary.to_pylist():
        key = word.strip().lower()
        if key not in SPLIT_WORDS:
            row = first_true(pc.equal(text, word))
            raise DataError(
                f"{at(row)}: the split must be train, val or test, "
                f"got {word!r}{nearest(key, SPLIT_WORDS)}"
            )
        places.append(SPLITS.index(SPLIT_WORDS[key]))
    return np.array(places, np.uint8)[np.asarray(coded.indices, np.int64)]


def _sets(parts: list[SparseRows], columns: NDArray[np.int32], width: int) -> LabelSets:
    sizes = np.concatenate([part.sizes for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    parts.clear()  # a large table should not be in memory twice
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return LabelSets.from_csr(offsets, columns[numbers], width)


def _reject_both(
    present: LabelSets, unknown: LabelSets, names: tuple[str, ...], where: str
) -> None:
    both = np.intersect1d(present.keys(), unknown.keys(), assume_unique=True)
    if len(both):
        row, column = divmod(int(both[0]), present.width)
        raise DataError(
            f"{where}, row {row + 1}: {names[column]!r} cannot be both present and unknown"
        )


def _with_everything(
    named: LabelSets, everything: NDArray[np.bool_], present: LabelSets
) -> LabelSets:
    """Return the unknown sets, where some rows are "all but the present ones"."""
    if not everything.any():
        return named
    place = np.arange(len(named))
    place[everything] += len(named)
    chosen = LabelSets.concatenate([named, present]).take(place)
    return LabelSets(chosen.offsets, chosen.columns, chosen.width, everything)
