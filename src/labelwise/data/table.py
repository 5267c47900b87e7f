"""LabelTable: the one form every dataset takes, and ``join``, several of them as one.

Each entry (image, label) is present, absent or unknown. An image with no present and no unknown
label was reviewed and has none of them; an image whose labels are all unknown is unlabelled.

A label may also be soft: a share in (0, 1), such as that of the people who say yes. Wherever a yes
or no is needed it is cut at one half: ``present`` holds it if the share is above that.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelwise.data.sets import LabelSets, SoftLabels
from labelwise.errors import DataError
from labelwise.pictures.derived import JoinedImages
from labelwise.pictures.sources import FileImages, ImageSource
from labelwise.system.names import Names
from labelwise.system.storage import is_uri
from labelwise.types import DatasetFacts, LabelSpace

SPLITS = ("train", "val", "test")
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


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Images with their label sets, and optionally the split and the group of each image.

    ``notes`` are sentences on what was left out when the table was read. ``soft`` is None if every
    known label is 0 or 1.
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

    def __post_init__(self) -> None:
        rows, labels = len(self.images), len(self.space)
        if self.soft is not None and not len(self.soft.shares):
            object.__setattr__(self, "soft", None)
        given = [self.present, self.unknown] + ([] if self.soft is None else [self.soft.sets])
        for sets in given:
            if (len(sets), sets.width) != (rows, labels):
                raise ValueError(
                    f"label sets must be {rows} rows by {labels} labels, "
                    f"got {len(sets)} by {sets.width}"
                )
        for column in (self.split, self.group):
            if column is not None and len(column) != rows:
                raise ValueError(f"split and group must have {rows} rows, got {len(column)}")
        if self.split is not None:
            object.__setattr__(self, "split", np.asarray(self.split, np.str_))
            strange = np.flatnonzero(~np.logical_or.reduce([self.split == name for name in SPLITS]))
            if len(strange):
                value = str(self.split[strange[0]])
                raise ValueError(f"split must be train, val or test, got {value!r}")

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
        known = (
            np.ones(values.shape, np.bool_) if observed is None else np.asarray(observed, np.bool_)
        )
        soft = None
        if values.dtype.kind == "f":
            values = np.where(known, values, 0)
            if not ((values >= 0) & (values <= 1)).all():
                raise ValueError("labels must lie in [0, 1] where they are observed")
            soft = SoftLabels.from_dense(values)
            values = values > 0.5
        mask = values.astype(np.bool_)
        return cls(
            space if isinstance(space, LabelSpace) else LabelSpace(tuple(space)),
            images,
            LabelSets.from_dense(mask & known),
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
        """The images' names, as shown to users."""
        return self.images.ids

    def subset(self, rows: ArrayLike) -> "LabelTable":
        """Return the table of the given rows (numbers, or a mask), in the given order."""
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_:
            chosen = np.flatnonzero(chosen)
        index: NDArray[np.int64] = chosen.astype(np.int64)
        return replace(
            self,
            images=self.images.subset(index),
            present=self.present.take(index),
            unknown=self.unknown.take(index),
            split=None if self.split is None else self.split[index],
            group=None if self.group is None else self.group.take(index),
            soft=None if self.soft is None else self.soft.take(index),
        )

    def splits(self) -> dict[str, "LabelTable"]:
        """Return the table of each split there is, in the order train, val, test."""
        if self.split is None:
            raise DataError(
                f"{self.name} has no split column; make one with `labelwise data split`"
            )
        return {
            name: self.subset(self.split == name) for name in SPLITS if (self.split == name).any()
        }

    def targets(
        self, rows: ArrayLike | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return dense labels (n, K) and which are known, or None if the table knows them all.

        Labels are uint8, or float32 if some are soft.
        """
        index = np.arange(len(self)) if rows is None else np.asarray(rows)
        labels: NDArray[Any] = self.present.take(index).dense().view(np.uint8)
        if self.soft is not None:
            labels = labels.astype(np.float32)
            self.soft.take(index).put(labels)
        return labels, ~self.unknown.take(index).dense() if self.has_unknown() else None

    def require_hard(self, what: str) -> None:
        """Raise a DataError if some labels are soft; ``what`` says what cannot use them."""
        if self.soft is not None:
            raise DataError(
                f"{self.name}: {len(self.soft.shares):,} labels are soft (a share between 0 and 1),"
                f" and {what}"
            )

    def has_unknown(self) -> bool:
        """Return whether any entry is unknown."""
        return bool(self.unknown.inverted.any()) or len(self.unknown.columns) > 0

    def unlabelled(self) -> NDArray[np.bool_]:
        """Return which images have nothing known, (N,)."""
        return np.equal(self.unknown.sizes(), len(self.space))

    def zero_label(self) -> NDArray[np.bool_]:
        """Return which images were reviewed in full and have no label, (N,)."""
        none: NDArray[np.bool_] = self.present.sizes() + self.unknown.sizes() == 0
        return none

    def facts(self) -> DatasetFacts:
        """Return the counts that objectives and heads are built from.

        A soft label counts as its share.
        """
        present, known = self.present.counts().astype(float), len(self) - self.unknown.counts()
        if self.soft is not None:
            present += self.soft.sums() - self.soft.majority().counts()
        priors = present / np.maximum(known, 1)
        return DatasetFacts(
            num_images=len(self),
            num_labels=len(self.space),
            mean_labels=float(present.sum() / max(len(self), 1)),
            priors=tuple(priors.tolist()),
            known_present=tuple((present / max(len(self), 1)).tolist()),
        )


def join(parts: Sequence[tuple[str | None, LabelTable]], *, name: str) -> LabelTable:
    """Return the rows of (split, table) pairs in order; split None keeps the table's own."""
    tables = [table for _, table in parts]
    names = tables[0].space.names
    for table in tables[1:]:
        if table.space.names != names:
            differing = sorted(set(names) ^ set(table.space.names)) or ["their order"]
            raise DataError(
                f"{tables[0].name} and {table.name} must have the same labels, "
                f"they differ in {differing[0]!r}"
            )
    splits = [
        np.full(len(table), split, "U5") if split is not None else table.split
        for split, table in parts
    ]
    known = [split for split in splits if split is not None]
    if known and len(known) != len(parts):
        raise DataError(f"{name}: either all parts must have a split or none")
    groups = [table.group for table in tables if table.group is not None]
    soft = None
    if any(table.soft is not None for table in tables):
        soft = SoftLabels.concatenate(
            [table.soft or SoftLabels.none(len(table), len(names)) for table in tables]
        )
    return LabelTable(
        tables[0].space,
        _joined_images([table.images for table in tables]),
        LabelSets.concatenate([table.present for table in tables]),
        LabelSets.concatenate([table.unknown for table in tables]),
        np.concatenate(known) if known else None,
        Names.concatenate(groups) if len(groups) == len(tables) else None,
        name,
        tuple(note for table in tables for note in table.notes),
        soft,
    )


def _joined_images(sources: list[ImageSource]) -> ImageSource:
    files = [source for source in sources if isinstance(source, FileImages)]
    if len(files) != len(sources):
        return JoinedImages(sources)
    roots = [Path(os.path.abspath(source.root)) for source in files]
    base = Path(os.path.commonpath(roots))
    paths: list[str] = []
    for source, root in zip(files, roots, strict=True):
        inside, real = root.relative_to(base), source.real_names
        paths.extend(
            path if is_uri(path) else (inside / real.get(path, path)).as_posix()
            for path in source.ids
        )
    return FileImages(base, paths)
