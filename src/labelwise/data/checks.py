"""Checks every table passes when it is loaded, and the slower one by content.

No image twice, no image in two splits, every file there (or left out on request, and counted).
"""

import os
import posixpath
from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc

from labelwise.data.images import BytesImages, CropImages, FileImages
from labelwise.data.names import Names
from labelwise.data.table import LabelTable
from labelwise.errors import DataError

__all__ = ["checked", "content_codes", "reject_shared_content"]

SHOWN = 10


def checked(
    table: LabelTable, *, skip_missing: bool = False, check_files: bool = True
) -> LabelTable:
    """Return the table, without missing files if ``skip_missing``, or raise a DataError."""
    if not len(table):
        raise DataError(f"{table.name}: the table is empty")
    if not len(table.space):
        raise DataError(f"{table.name}: the table has no labels at all; give their names")
    table = _numbered(table)
    _reject_repeats(table)
    return _without_missing(table, skip_missing) if check_files else table


def _numbered(table: LabelTable) -> LabelTable:
    """Return the table with repeated names of image bytes told apart by a number.

    There a name is no path: official sets use one for several images.
    """
    images = table.images
    if not isinstance(images, BytesImages) or Names(images.ids).first_repeat() is None:
        return table
    uses: Counter[str] = Counter()
    unique = []
    for name in images.ids:
        uses[name] += 1
        unique.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
    note = f"{len(unique) - len(uses)} images had the name of another one and were numbered"
    return replace(
        table, images=BytesImages(images.blobs, unique, images.rows), notes=(*table.notes, note)
    )


def _reject_repeats(table: LabelTable) -> None:
    names = _normal(Names(table.ids))
    repeat = names.first_repeat()
    if repeat is None:
        return
    first, second = repeat
    where = f"rows {first + 1} and {second + 1}"
    if table.split is not None and table.split[first] != table.split[second]:
        raise DataError(
            f"{table.name}: splits must not share images, got {names[second]!r} in "
            f"{table.split[first]} and in {table.split[second]} ({where})"
        )
    raise DataError(
        f"{table.name}: every image must be named once, got {names[second]!r} in {where}"
    )


def _normal(names: Names) -> Names:
    """Return the names with './' and '//' resolved, so that one file has one name."""
    odd = pc.match_substring_regex(names.arrow, r"(^|/)\.{0,2}/|/$")
    if not pc.any(odd).as_py():
        return names
    return Names([posixpath.normpath(name) for name in names])


def _without_missing(table: LabelTable, skip_missing: bool) -> LabelTable:
    images = table.images.source if isinstance(table.images, CropImages) else table.images
    if not isinstance(images, FileImages):
        return table
    root = str(images.root)
    there = np.fromiter(
        (os.path.isfile(os.path.join(root, name)) for name in images.ids), np.bool_, len(images)
    )
    if there.all():
        return table
    missing = np.flatnonzero(~there)
    shown = ", ".join(repr(images.ids[int(row)]) for row in missing[:SHOWN])
    more = ", ..." if len(missing) > SHOWN else ""
    sentence = f"{len(missing)} of {len(images)} images are missing under {root}: {shown}{more}"
    if not skip_missing:
        raise DataError(
            f"{table.name}: {sentence}; "
            "correct the paths, give the root folder, or skip missing ones"
        )
    if not there.any():
        raise DataError(f"{table.name}: {sentence}; nothing is left")
    kept = table.subset(there)
    return replace(kept, notes=(*kept.notes, f"left out: {sentence}"))


def content_codes(table: LabelTable) -> Names:
    """Return a digest of each image's bytes; equal images have equal digests."""
    return Names(
        blake2b(table.images.content(row), digest_size=16).hexdigest() for row in range(len(table))
    )


def reject_shared_content(table: LabelTable) -> None:
    """Raise a DataError if two splits hold the same image, whatever it is called."""
    if table.split is None:
        return
    codes = content_codes(table).codes()
    order = np.lexsort((np.arange(len(codes)), codes))
    for before, after in pairwise(order):
        if codes[before] == codes[after] and table.split[before] != table.split[after]:
            raise DataError(
                f"{table.name}: splits must not share images, but {table.ids[int(before)]!r} in "
                f"{table.split[before]} and {table.ids[int(after)]!r} in {table.split[after]} "
                "are the same image"
            )
