"""LabelTable: the one form every dataset takes, and ``join``, several of them as one.

Each entry (image, label) is present, absent or unknown. An image with no present and no unknown
label was reviewed and has none of them; an image whose labels are all unknown is unlabelled.

A label may also be soft: a share in (0, 1), such as that of the people who say yes. Wherever a yes
or no is needed it is cut at one half: ``present`` holds it if the share is above that.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelwise.base.names import Names
from labelwise.base.storage import is_uri
from labelwise.errors import DataError
from labelwise.pictures.sources import FileImages, ImageSource, JoinedImages
from labelwise.types import DatasetFacts, LabelSpace

BLOCK_ROWS = 1 << 18
BLOCK = 1 << 24  # entries of a dense block: bounds the memory of counting and converting


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LabelSets:
    """``columns[offsets[i]:offsets[i + 1]]`` are row i's set, or what it lacks if inverted."""

    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    width: int
    inverted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def none(cls, rows: int, width: int) -> "LabelSets":
        return cls.from_csr(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), width)

    @classmethod
    def from_csr(
        cls,
        offsets: NDArray[np.int64],
        columns: NDArray[np.integer[Any]],
        width: int,
        inverted: NDArray[np.bool_] | None = None,
    ) -> "LabelSets":
        """Return the sets of sparse rows, each row's columns sorted and named once."""
        rows = len(offsets) - 1
        flags = np.zeros(rows, np.bool_) if inverted is None else inverted
        sets = cls(
            offsets.astype(np.int64, copy=False), columns.astype(np.int32, copy=False), width, flags
        )
        rises = np.ones(len(sets.columns) + 1, np.bool_)
        np.greater(sets.columns[1:], sets.columns[:-1], out=rises[1:-1])
        rises[sets.offsets] = True
        if rises.all():
            return sets
        sorted_columns, sizes = [], []
        for start in range(0, rows, BLOCK_ROWS):  # in blocks of bounded memory
            block = sets.take(np.arange(start, min(start + BLOCK_ROWS, rows)))
            row, column = np.divmod(np.unique(block.keys()), width)
            sorted_columns.append(column.astype(np.int32))
            sizes.append(np.bincount(row, minlength=len(block)))
        return cls(_offsets(np.concatenate(sizes)), np.concatenate(sorted_columns), width, flags)

    @classmethod
    def from_lists(
        cls, rows: Sequence[Iterable[int]], width: int, inverted: NDArray[np.bool_] | None = None
    ) -> "LabelSets":
        """Return the sets of lists of column numbers; inverted ones hold all but these."""
        lists = [np.zeros(0, np.int32), *(np.fromiter(row, np.int32) for row in rows)]
        offsets = _offsets(np.array([len(row) for row in lists[1:]], np.int64))
        return cls.from_csr(offsets, np.concatenate(lists), width, inverted)

    @classmethod
    def from_entries(
        cls, row: NDArray[np.integer[Any]], column: NDArray[np.integer[Any]], rows: int, width: int
    ) -> "LabelSets":
        """Return the sets that hold ``column[i]`` in ``row[i]``, given in order of rows."""
        return cls.from_csr(_offsets(np.bincount(row, minlength=rows)), column, width)

    @classmethod
    def from_dense(cls, mask: NDArray[np.generic]) -> "LabelSets":
        """Return the sets of a (N, K) mask; rows more than half full are stored inverted."""
        full = mask.astype(np.bool_)
        rows, width = full.shape
        inverted = full.sum(1) * 2 > width
        row, column = np.nonzero(full ^ inverted[:, None])
        return replace(cls.from_entries(row, column, rows, width), inverted=inverted)

    @classmethod
    def concatenate(cls, parts: Sequence["LabelSets"]) -> "LabelSets":
        ends = np.cumsum([0, *(len(sets.columns) for sets in parts)])
        starts = [sets.offsets[:-1] + end for sets, end in zip(parts, ends[:-1], strict=True)]
        offsets = np.concatenate([*starts, ends[-1:]]).astype(np.int64)
        columns = np.concatenate([sets.columns for sets in parts])
        inverted = np.concatenate([sets.inverted for sets in parts])
        return cls(offsets, columns, parts[0].width, inverted)

    def owners(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))

    def keys(self) -> NDArray[np.int64]:
        return self.owners() * self.width + self.columns

    def union(self, other: "LabelSets") -> "LabelSets":
        row, column = np.divmod(np.union1d(self.keys(), other.keys()), max(self.width, 1))
        return LabelSets.from_entries(row, column, len(self), self.width)

    def row(self, row: int) -> NDArray[np.int64]:
        stored = self.columns[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)
        if self.inverted[row]:
            return np.setdiff1d(np.arange(self.width), stored, assume_unique=True)
        return stored

    def sizes(self) -> NDArray[np.int64]:
        """Return how many labels each row has, (N,)."""
        stored = np.diff(self.offsets)
        return np.where(self.inverted, self.width - stored, stored)

    def counts(self) -> NDArray[np.int64]:
        """Return how many rows each label has, (K,)."""
        sign = np.repeat(self.inverted, np.diff(self.offsets))
        named = np.bincount(self.columns[~sign], minlength=self.width)
        lacking = np.bincount(self.columns[sign], minlength=self.width)
        return named + int(self.inverted.sum()) - lacking

    def take(self, rows: NDArray[np.int64]) -> "LabelSets":
        offsets, places = self.places(rows)
        return LabelSets(offsets, self.columns[places], self.width, self.inverted[rows])

    def places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets of the given rows, and where in ``columns`` their entries stand."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        offsets = _offsets(sizes)
        shift = np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        return offsets, np.arange(offsets[-1]) + shift

    def complement(self) -> "LabelSets":
        return LabelSets(self.offsets, self.columns, self.width, ~self.inverted)

    def plain(self) -> "LabelSets":
        """Return the same sets, every row stored as itself."""
        if not self.inverted.any():
            return self
        return LabelSets.from_lists([self.row(row) for row in range(len(self))], self.width)

    def dense(self) -> NDArray[np.bool_]:
        mask = np.zeros((len(self), self.width), np.bool_)
        mask[self.owners(), self.columns] = True
        mask ^= self.inverted[:, None]
        return mask

    def blocks(self) -> Iterable[tuple[int, NDArray[np.bool_]]]:
        """Yield the mask in blocks of bounded memory: (first row, mask of these rows)."""
        step = max(1, BLOCK // max(1, self.width))
        for start in range(0, len(self), step):
            yield start, self.take(np.arange(start, min(start + step, len(self)))).dense()


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """Labels of which a share in (0, 1) is stated: ``shares[i]`` is that of ``sets.columns[i]``.

    No row of ``sets`` is inverted.
    """

    sets: LabelSets
    shares: NDArray[np.float32]

    @classmethod
    def none(cls, rows: int, width: int) -> "SoftLabels":
        return cls(LabelSets.none(rows, width), np.zeros(0, np.float32))

    @classmethod
    def from_dense(cls, labels: NDArray[np.floating[Any]]) -> "SoftLabels":
        """Return the entries of (N, K) labels that lie strictly between 0 and 1."""
        soft = (labels > 0) & (labels < 1)
        row, column = np.nonzero(soft)
        sets = LabelSets.from_entries(row, column, len(labels), labels.shape[1])
        return cls(sets, labels[soft].astype(np.float32))

    @classmethod
    def concatenate(cls, parts: Sequence["SoftLabels"]) -> "SoftLabels":
        return cls(
            LabelSets.concatenate([soft.sets for soft in parts]),
            np.concatenate([soft.shares for soft in parts]),
        )

    def __len__(self) -> int:
        return len(self.sets)

    @property
    def width(self) -> int:
        return self.sets.width

    def majority(self) -> LabelSets:
        return self._where(self.shares > 0.5)

    def take(self, rows: NDArray[np.int64]) -> "SoftLabels":
        return SoftLabels(self.sets.take(rows), self.shares[self.sets.places(rows)[1]])

    def without_zeros(self) -> "SoftLabels":
        kept = self.shares > 0
        return SoftLabels(self._where(kept), self.shares[kept])

    def _where(self, kept: NDArray[np.bool_]) -> LabelSets:
        row, column = self.sets.owners()[kept], self.sets.columns[kept]
        return LabelSets.from_entries(row, column, len(self), self.width)

    def row(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        entries = slice(self.sets.offsets[row], self.sets.offsets[row + 1])
        return self.sets.columns[entries], self.shares[entries]

    def sums(self) -> NDArray[np.float64]:
        return np.bincount(self.sets.columns, self.shares, minlength=self.width).astype(np.float64)


SPLITS = ("train", "val", "test")
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "entraînement", "entrenamiento"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "validierung", "validación"), "val"),
    **dict.fromkeys(("test", "testing", "holdout", "hold-out", "held-out", "prueba"), "test"),
}


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Images with their label sets, and optionally the split and the group of each image.

    ``notes`` are sentences on what was left out when the table was read. ``soft`` is None if every
    known label is 0 or 1. ``reading`` holds the options that reproduce how a file was read.
    """

    space: LabelSpace
    images: ImageSource
    present: LabelSets
    unknown: LabelSets
    split: NDArray[np.str_] | None = None
    group: Names | None = None
    name: str = "table"
    notes: tuple[str, ...] = ()
    soft: SoftLabels | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, labels = len(self.images), len(self.space)
        if self.soft is not None and not len(self.soft.shares):
            object.__setattr__(self, "soft", None)
        for sets in (self.present, self.unknown, self.soft):
            if sets is not None and (len(sets), sets.width) != (rows, labels):
                got = f"{len(sets)} by {sets.width}"
                raise ValueError(f"label sets must be {rows} rows by {labels} labels, got {got}")
        for column in (self.split, self.group):
            if column is not None and len(column) != rows:
                raise ValueError(f"split and group must have {rows} rows, got {len(column)}")
        if self.split is not None:
            object.__setattr__(self, "split", np.asarray(self.split, np.str_))
            strange = self.split[~np.isin(self.split, SPLITS)]
            if len(strange):
                raise ValueError(f"split must be train, val or test, got {str(strange[0])!r}")

    @classmethod
    def from_arrays(
        cls,
        space: LabelSpace | Sequence[str],
        images: ImageSource,
        labels: ArrayLike,
        observed: ArrayLike | None = None,
        *,
        split: ArrayLike | None = None,
        group: Sequence[str] | None = None,
        name: str = "table",
    ) -> "LabelTable":
        """Return the table of (N, K) labels in [0, 1] and an optional mask of known ones."""
        values: NDArray[Any] = np.asarray(labels)
        known = np.ones(values.shape, np.bool_) if observed is None else np.asarray(observed, bool)
        soft = None
        if values.dtype.kind != "b":
            values = np.where(known, values, 0)
            for odd in values[~((values >= 0) & (values <= 1))][:1].tolist():
                raise ValueError(f"labels must lie in [0, 1] where they are observed, got {odd}")
        if values.dtype.kind == "f":
            soft, values = SoftLabels.from_dense(values), values > 0.5
        return cls(
            space if isinstance(space, LabelSpace) else LabelSpace(tuple(space)),
            images,
            LabelSets.from_dense(values.astype(np.bool_) & known),
            LabelSets.from_dense(~known),
            None if split is None else np.asarray(split, np.str_),
            None if group is None else Names(group),
            name,
            soft=soft,
        )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def ids(self) -> Sequence[str]:
        return self.images.ids

    def subset(self, rows: ArrayLike) -> "LabelTable":
        """Return the table of the given rows (numbers, or a mask), in the given order."""
        chosen = np.asarray(rows)
        index = (np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen).astype(np.int64)
        return replace(
            self,
            images=self.images.subset(index),
            present=self.present.take(index),
            unknown=self.unknown.take(index),
            split=None if self.split is None else self.split[index],
            group=None if self.group is None else self.group.take(index),
            soft=None if self.soft is None else self.soft.take(index),
        )

    def noted(self, *notes: str) -> "LabelTable":
        """Return the table with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def split_sizes(self) -> dict[str, int]:
        """Return {split: how many images}, empty without a split column."""
        if self.split is None:
            return {}
        sizes = {name: int((self.split == name).sum()) for name in SPLITS}
        return {name: size for name, size in sizes.items() if size}

    def splits(self) -> dict[str, "LabelTable"]:
        if self.split is None:
            way_out = "make one with `labelwise data split`"
            raise DataError(f"{self.name} has no split column; {way_out}")
        return {name: self.subset(self.split == name) for name in self.split_sizes()}

    def targets(
        self, rows: ArrayLike | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return dense labels (n, K) and which are known, or None if the table knows them all.

        Labels are uint8, or float32 if some are soft.
        """
        index = np.arange(len(self)) if rows is None else np.asarray(rows)
        labels: NDArray[Any] = self.present.take(index).dense().view(np.uint8)
        if self.soft is not None:
            labels, soft = labels.astype(np.float32), self.soft.take(index)
            labels[soft.sets.owners(), soft.sets.columns] = soft.shares
        return labels, ~self.unknown.take(index).dense() if self.has_unknown() else None

    def require_hard(self, what: str) -> None:
        if self.soft is not None:
            soft = f"{len(self.soft.shares):,} labels are soft (a share between 0 and 1)"
            raise DataError(f"{self.name}: {soft}, and {what}")

    def has_unknown(self) -> bool:
        return bool(self.unknown.inverted.any()) or len(self.unknown.columns) > 0

    def unlabelled(self) -> NDArray[np.bool_]:
        """Return which images have nothing known, (N,)."""
        return np.equal(self.unknown.sizes(), len(self.space))

    def zero_label(self) -> NDArray[np.bool_]:
        """Return which images were reviewed in full and have no label, (N,)."""
        return np.asarray(self.present.sizes() + self.unknown.sizes() == 0)

    def facts(self) -> DatasetFacts:
        """Return what objectives and heads are built from; a soft label counts as its share."""
        present, known = self.present.counts().astype(float), len(self) - self.unknown.counts()
        if self.soft is not None:
            present += self.soft.sums() - self.soft.majority().counts()
        return DatasetFacts(
            num_images=len(self),
            num_labels=len(self.space),
            mean_labels=float(present.sum() / max(len(self), 1)),
            priors=tuple((present / np.maximum(known, 1)).tolist()),
            known_present=tuple((present / max(len(self), 1)).tolist()),
        )


def join(parts: Sequence[tuple[str | None, LabelTable]], *, name: str) -> LabelTable:
    """Return the rows of (split, table) pairs in order; split None keeps the table's own."""
    tables = [table for _, table in parts]
    names = tables[0].space.names
    for table in tables[1:]:
        if table.space.names != names:
            other, *_ = sorted(set(names) ^ set(table.space.names)) or ["their order"]
            two = f"{tables[0].name} and {table.name}"
            raise DataError(f"{two} must have the same labels, they differ in {other!r}")
    splits = [table.split if split is None else [split] * len(table) for split, table in parts]
    known = [np.asarray(split, "U5") for split in splits if split is not None]
    if known and len(known) != len(parts):
        raise DataError(f"{name}: either all parts must have a split or none")
    groups = [table.group for table in tables if table.group is not None]
    images: ImageSource
    files = [table.images for table in tables if isinstance(table.images, FileImages)]
    if len(files) < len(tables):
        images = JoinedImages([table.images for table in tables])
    else:
        roots = [Path(os.path.abspath(source.root)) for source in files]
        base = Path(os.path.commonpath(roots))
        paths = [
            path if is_uri(path) else (folder / source.real_names.get(path, path)).as_posix()
            for source, folder in zip(files, (r.relative_to(base) for r in roots), strict=True)
            for path in source.ids
        ]
        images = FileImages(base, paths)
    soft = [table.soft or SoftLabels.none(len(table), len(names)) for table in tables]
    return LabelTable(
        tables[0].space,
        images,
        LabelSets.concatenate([table.present for table in tables]),
        LabelSets.concatenate([table.unknown for table in tables]),
        np.concatenate(known) if known else None,
        Names.concatenate(groups) if len(groups) == len(tables) else None,
        name,
        tuple(note for table in tables for note in table.notes),
        SoftLabels.concatenate(soft),
    )
