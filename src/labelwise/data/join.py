"""join: tables with the same labels to one, each with the split it stands for."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labelwise.data.images import FileImages, ImageSource, JoinedImages
from labelwise.data.names import Names
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable
from labelwise.errors import DataError

__all__ = ["join"]


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
    return LabelTable(
        tables[0].space,
        _images([table.images for table in tables]),
        LabelSets.concatenate([table.present for table in tables]),
        LabelSets.concatenate([table.unknown for table in tables]),
        np.concatenate(known) if known else None,
        Names.concatenate(groups) if len(groups) == len(tables) else None,
        name,
        tuple(note for table in tables for note in table.notes),
    )


def _images(sources: list[ImageSource]) -> ImageSource:
    files = [source for source in sources if isinstance(source, FileImages)]
    if len(files) != len(sources):
        return JoinedImages(sources)
    roots = [Path(os.path.abspath(source.root)) for source in files]
    base = Path(os.path.commonpath(roots))
    paths = []
    for source, root in zip(files, roots, strict=True):
        inside = root.relative_to(base)
        paths.append(Names((inside / path).as_posix() for path in source.ids))
    return FileImages(base, Names.concatenate(paths))
