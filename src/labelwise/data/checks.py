"""Checks every table passes when it is loaded, and the slower ones by content.

No image twice, no image in two splits, every file there (or left out on request, and counted);
every pixel readable, no equal images in two splits; and a fingerprint of what a table holds.
"""

import json
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from labelwise.data.missing_files import without_missing
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.pictures.bands import Bands
from labelwise.pictures.cubes import is_band_folder
from labelwise.pictures.derived import CropImages, JoinedImages
from labelwise.pictures.memory import ArrayImages, BytesImages, FeatureRows
from labelwise.pictures.sources import FileImages, ImageSource, SpanImages
from labelwise.system.names import Names
from labelwise.system.storage import is_uri
from labelwise.system.text import counted

SHOWN = 10
DUPLICATES = ("stop", "drop", "keep")

Duplicates = Literal["stop", "drop", "keep"]


def check_table(
    table: LabelTable,
    *,
    skip_missing: bool = False,
    check_files: bool = True,
    duplicates: Duplicates = "stop",
) -> LabelTable:
    """Return the table, without what may be left out, or raise a DataError.

    ``skip_missing`` leaves out images whose files are missing; ``duplicates`` says whether rows
    that are there twice, labels and all, stop the reading, are dropped or are kept.
    """
    if duplicates not in DUPLICATES:
        raise SettingsError(f"duplicates must be stop, drop or keep, got {duplicates!r}")
    if not len(table):
        raise DataError(f"{table.name}: the table is empty")
    if not len(table.space):
        raise DataError(f"{table.name}: the table has no labels at all; give their names")
    if isinstance(table.images, BytesImages):
        table = _numbered(table, table.images)
    table = _without_repeats(table, duplicates)
    return without_missing(table, skip_missing) if check_files else table


def _numbered(table: LabelTable, images: BytesImages) -> LabelTable:
    """Return the table with repeated names of image bytes told apart by a number.

    There a name is not a path: official sets use one for several images.
    """
    if Names(images.ids).first_repeat() is None:
        return table
    uses: Counter[str] = Counter()
    unique = []
    for name in images.ids:
        uses[name] += 1
        unique.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
    note = (
        f"{counted(len(unique) - len(uses), 'image')} had the name of another one and "
        f"{'was' if len(unique) - len(uses) == 1 else 'were'} numbered"
    )
    return replace(
        table, images=BytesImages(images.blobs, unique, images.rows), notes=(*table.notes, note)
    )


def _without_repeats(table: LabelTable, duplicates: Duplicates) -> LabelTable:
    names = Names(table.ids)
    # One file has one name: './' and '//' are resolved.
    if pc.any(pc.match_substring_regex(names.arrow, r"(^|/)\.{0,2}/|/$")).as_py():
        names = Names(name if is_uri(name) else posixpath.normpath(name) for name in names)
    if names.first_repeat() is None:
        return table
    codes = names.codes()
    first = np.unique(codes, return_index=True)[1][codes]
    again = np.flatnonzero(first != np.arange(len(codes)))
    for row in again.tolist():
        _reject_conflict(table, names[row], int(first[row]), row)
    count = f"repeated rows: {len(again):,}"
    if duplicates == "keep":
        return replace(table, notes=(*table.notes, f"{count}, kept"))
    if duplicates == "drop":
        kept = table.subset(first == np.arange(len(codes)))
        return replace(kept, notes=(*kept.notes, f"{count}, dropped"))
    row = int(again[0])
    raise DataError(
        f"{table.name}: every image must be named once, got {names[row]!r} in rows "
        f"{first[row] + 1} and {row + 1}, with the same labels; drop such rows with "
        "`--duplicates drop` or keep them with `--duplicates keep` (for a run: `--set "
        "data_options.duplicates=drop`)"
    )


def _reject_conflict(table: LabelTable, name: str, first: int, second: int) -> None:
    """Raise a DataError unless two rows of one image say the same."""
    where = f"rows {first + 1} and {second + 1}"
    if table.split is not None and table.split[first] != table.split[second]:
        raise DataError(
            f"{table.name}: splits must not share images, got {name!r} in "
            f"{table.split[first]} and in {table.split[second]} ({where})"
        )
    same = all(
        np.array_equal(sets.row(first), sets.row(second)) for sets in (table.present, table.unknown)
    )
    if table.soft is not None:
        pairs = zip(table.soft.row(first), table.soft.row(second), strict=True)
        same = same and all(np.array_equal(one, other) for one, other in pairs)
    if not same:
        raise DataError(
            f"{table.name}: every image must be named once, got {name!r} in {where}, "
            "with different labels; all labels of an image stand in one row, as dog|beach"
        )


@dataclass(frozen=True)
class UnreadableImage:
    """One image that cannot be read, and why, in a sentence that names it."""

    row: int
    id: str
    reason: str


def find_unreadable(
    table: LabelTable,
    *,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
    bands: Bands | None = None,
) -> list[UnreadableImage]:
    """Return the images that cannot be read to their last pixel; ``progress`` gets counts.

    ``bands`` are what each must hold, if they are not 8-bit RGB.
    """
    if isinstance(table.images, FeatureRows | ArrayImages) and bands is None:
        return []

    def check(row: int) -> UnreadableImage | None:
        try:
            if bands is None:
                table.images.read(row)
            else:
                table.images.read_bands(row, bands)
        except ImageError as error:
            return UnreadableImage(row, table.ids[row], str(error))
        return None

    found = []
    with ThreadPoolExecutor(workers) as pool:
        for done, answer in enumerate(pool.map(check, range(len(table))), 1):
            if answer is not None:
                found.append(answer)
            if progress is not None:
                progress(done)
    return found


def without_unreadable(
    table: LabelTable, found: Sequence[UnreadableImage], *, on_error: Literal["stop", "skip"]
) -> LabelTable:
    """Return the table without the images found, and a note, or raise a DataError with the list."""
    if on_error not in ("stop", "skip"):
        raise SettingsError(f"on_error must be stop or skip, got {on_error!r}")
    if not found:
        return table
    shown = "; ".join(image.reason for image in found[:SHOWN]) + "; ..." * (len(found) > SHOWN)
    sentence = f"{len(found):,} of {counted(len(table), 'image')} cannot be read: {shown}"
    if on_error == "stop":
        raise DataError(f"{table.name}: {sentence}; leave them out with `--on-error skip`")
    if len(found) == len(table):
        raise DataError(f"{table.name}: {sentence}; nothing is left")
    kept = np.ones(len(table), np.bool_)
    kept[[image.row for image in found]] = False
    return replace(table.subset(kept), notes=(*table.notes, f"left out: {sentence}"))


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


def reject_divided_groups(table: LabelTable) -> None:
    """Raise a DataError if a group has photos in two splits: its test would be no test."""
    if table.split is None or table.group is None:
        return
    codes = table.group.codes()
    first = np.unique(codes, return_index=True)[1][codes]
    divided = np.flatnonzero(table.split != table.split[first])
    if len(divided):
        row, other = int(divided[0]), int(first[divided[0]])
        count = len(np.unique(codes[divided]))
        raise DataError(
            f"{table.name}: photos of a group must be in one split, but "
            f"{counted(count, 'group')} {'crosses' if count == 1 else 'cross'} splits: "
            f"{table.group[row]!r} has row {other + 1} in {table.split[other]} and row {row + 1} "
            f"in {table.split[row]}; split again with `labelwise data split`, which keeps groups "
            "together, or leave the column out"
        )


def fingerprint(table: LabelTable) -> str:
    """Return a digest of what a table holds: labels, splits, groups, images by name and size.

    It does not depend on where the table and its images lie, nor on the file's format.
    """
    digest = blake2b(digest_size=16)

    def add(kind: str, content: bytes) -> None:
        digest.update(f"{kind} {len(content)}\n".encode())
        digest.update(content)

    add("labels", json.dumps(table.space.names).encode())
    for sets in (table.present, table.unknown):
        for _, block in sets.blocks():
            add("sets", np.packbits(block).tobytes())
    if table.soft is not None:
        add("soft", table.soft.sets.keys().tobytes())
        add("shares", table.soft.shares.tobytes())
    texts = [("ids", table.ids)] + ([("group", table.group)] if table.group is not None else [])
    for kind, column in texts:
        add(kind, json.dumps(list(column)).encode())
    if table.split is not None:
        add("split", json.dumps(table.split.tolist()).encode())
    for facts in _image_facts(table.images):
        add("images", facts)
    return digest.hexdigest()


def _image_facts(images: ImageSource) -> list[Any]:
    """Return bytes that change when images do, without reading files: their sizes."""
    if isinstance(images, CropImages):
        return [*_image_facts(images.source), images.boxes.tobytes()]
    if isinstance(images, JoinedImages):
        parts = [facts for source in images.sources for facts in _image_facts(source)]
        return [*parts, images.rows.tobytes()]
    if isinstance(images, ArrayImages | FeatureRows):
        pixels = images.pixels if isinstance(images, ArrayImages) else images.features
        return [np.ascontiguousarray(pixels).data.cast("B")]
    if isinstance(images, FileImages):
        return [_sizes([_size(images, row) for row in range(len(images))])]
    if isinstance(images, SpanImages):
        return [_sizes(images.size)]
    if isinstance(images, BytesImages) and isinstance(images.blobs, pa.ChunkedArray):
        sizes = np.asarray(pc.fill_null(pc.binary_length(images.blobs), 0), np.int64)
        return [_sizes(sizes[images.rows])]
    return [_sizes([len(images.content(row)) for row in range(len(images))])]


def _sizes(values: Any) -> bytes:
    return np.asarray(values, np.int64).tobytes()


def _size(images: FileImages, row: int) -> int:
    path = images.path(row)
    try:
        if is_band_folder(path):
            return sum(entry.stat().st_size for entry in os.scandir(path))
        return os.stat(path).st_size
    except OSError:
        return -1
