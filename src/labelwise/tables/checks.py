"""Checks of a table: those that every load makes, slower ones by content, and its fingerprint."""

import json
import os
import posixpath
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import chain, product
from pathlib import Path
from stat import S_ISREG
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelwise.base.names import Names
from labelwise.base.storage import LocalStorage, is_uri
from labelwise.base.text import counted, listed
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.pictures.memory import ArrayImages, BytesImages, FeatureRows
from labelwise.pictures.multiband import is_band_folder
from labelwise.pictures.sources import CropImages, FileImages, ImageSource, JoinedImages, SpanImages
from labelwise.pictures.transform import Bands
from labelwise.tables.columns import may_hold
from labelwise.tables.table import LabelSets, LabelTable, SoftLabels
from labelwise.types import LabelSpace

PAIRS_SHOWN = 20
MOST_PAIRS = 50_000_000  # beyond so many different ones none is counted, for the memory they take
SPELLINGS_SHOWN = 5


@dataclass(frozen=True)
class LabelCount:
    """One label's counts; ``share`` is present among known."""

    name: str
    present: int
    absent: int
    unknown: int
    share: float | None


@dataclass(frozen=True)
class PairCount:
    """How often two labels are present together; ``lift`` is against independence."""

    first: str
    second: str
    images: int
    lift: float


@dataclass(frozen=True)
class Description:
    """The numbers of a table. ``zero_label``: reviewed, none of them; ``unlabelled``: none known.

    ``labels_per_image[n]`` counts images with n present labels; ``unknown_share`` is over all
    entries; ``never_present`` names labels without a single image.
    """

    name: str
    images: int
    splits: dict[str, int]
    groups: int | None
    zero_label: int
    unlabelled: int
    partly_known: int
    unknown_share: float
    mean_labels: float
    labels_per_image: list[int]
    labels: list[LabelCount]
    pairs: list[PairCount]
    never_present: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe(table: LabelTable) -> Description:
    """Return the numbers of a table, and its most frequent pairs unless there are too many."""
    present, unknown = table.present.counts(), table.unknown.counts()
    unknown_sizes = table.unknown.sizes()
    labels = [
        LabelCount(name, p, len(table) - p - u, u, p / (len(table) - u) if u < len(table) else None)
        for name, p, u in zip(table.space.names, present.tolist(), unknown.tolist(), strict=True)
    ]
    unlabelled = int(table.unlabelled().sum())
    notes = [*table.notes]
    if table.soft is not None:
        soft = f"{len(table.soft.shares):,} labels are soft, a share between 0 and 1"
        notes.append(f"{soft}; they count as present above one half")
    notes += _spelling_note(labels)
    notes += without_training_photos(table)
    try:
        reject_divided_groups(table)
    except DataError as error:
        notes.append(str(error))
    return Description(
        name=table.name,
        images=len(table),
        splits=table.split_sizes(),
        groups=None if table.group is None else int(table.group.codes().max(initial=-1)) + 1,
        zero_label=int(table.zero_label().sum()),
        unlabelled=unlabelled,
        partly_known=int((unknown_sizes > 0).sum()) - unlabelled,
        unknown_share=float(unknown_sizes.sum() / max(1, len(table) * len(table.space))),
        mean_labels=float(present.sum() / max(1, len(table))),
        labels_per_image=np.bincount(table.present.sizes()).tolist(),
        labels=labels,
        pairs=_pairs(table),
        never_present=[label.name for label in labels if not label.present],
        notes=notes,
    )


def without_training_photos(table: LabelTable) -> list[str]:
    """Return a sentence that names the labels which no photo in train has, if there are any."""
    if table.split is None or "train" not in table.split:
        return []
    counts = table.subset(table.split == "train").present.counts()
    lacking = [repr(table.space.names[label]) for label in np.flatnonzero(counts == 0).tolist()]
    if not lacking:
        return []
    has = "the label" if len(lacking) == 1 else f"the {len(lacking):,} labels"
    return [f"no photo in train has {has} {listed(lacking, 10)}: a model cannot learn it"]


def count_mismatches(table: LabelTable, counts: Mapping[str, int], labels: int | None) -> list[str]:
    """Return a sentence for each number that differs from what is stated of the whole set."""
    sizes = table.split_sizes()
    sentences = [
        f"{split} has {counted(sizes.get(split, 0), 'image')}, the whole set has {count:,}"
        for split, count in counts.items()
        if sizes.get(split, 0) != count
    ]
    if labels is not None and len(table.space) != labels:
        sentences.append(f"there are {len(table.space)} labels, the whole set has {labels}")
    return sentences


def _spelling_note(labels: list[LabelCount]) -> list[str]:
    alike: dict[str, list[LabelCount]] = defaultdict(list)
    for label in labels:
        if any(map(str.isalpha, label.name)):  # without a letter they are numbers: 1 3 is not 13
            alike[label.name.casefold().translate(str.maketrans("", "", " -_"))].append(label)
    groups = [
        " and ".join(f"{label.name!r} ({counted(label.present, 'image')})" for label in group)
        for group in alike.values()
        if len(group) > 1
    ]
    more = f", and {len(groups) - SPELLINGS_SHOWN:,} more" if len(groups) > SPELLINGS_SHOWN else ""
    shown = f"{'; '.join(groups[:SPELLINGS_SHOWN])}{more}"
    return [f"perhaps one label, spelled in two ways: {shown}"] if groups else []


def _pairs(table: LabelTable) -> list[PairCount]:
    sizes, width = table.present.sizes(), len(table.space)
    if min(int((sizes * (sizes - 1) // 2).sum()), width**2 // 2) > MOST_PAIRS:
        return []
    sets, names = table.present.plain(), table.space.names
    from scipy import sparse  # slow to import, and seldom needed

    entries = np.ones(len(sets.columns), np.int64), sets.columns, sets.offsets
    by_row = sparse.csr_array(entries, shape=(len(table), width))
    product = sparse.triu(by_row.T @ by_row, 1).tocoo()
    above, below, together = product.row, product.col, product.data
    most = np.lexsort((below, above, -together))[:PAIRS_SHOWN]
    first, other, images = (part[most] for part in (above, below, together))
    counts = sets.counts()
    lifts = images * len(table) / (counts[first] * counts[other])
    pairs = zip(first.tolist(), other.tolist(), images.tolist(), lifts.tolist(), strict=True)
    return [PairCount(names[a], names[b], count, lift) for a, b, count, lift in pairs]


IN_OTHER_CASE = "found under a name of other case, or with accents that are stored otherwise"
ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://")
MOST_SEARCHED = 1_000_000  # files below a folder that are looked at for images by name


def without_missing(table: LabelTable, skip_missing: bool) -> LabelTable:
    """Return a table whose files are all there; without those missing, if that was asked for."""
    images = table.images.source if isinstance(table.images, CropImages) else table.images
    if not isinstance(images, FileImages):
        return table
    real = (os.path.join(images.root, images.real_names.get(name, name)) for name in images.ids)
    # Asking a bucket for each would take as long as reading them; whoever reads one says so.
    pairs = zip(images.ids, real, strict=True)
    files = [None if ADDRESS.match(name) else _file_number(path) for name, path in pairs]
    known = (
        bool(file or ADDRESS.match(name)) for name, file in zip(images.ids, files, strict=True)
    )
    there = np.fromiter(known, np.bool_, len(images))
    holder = None
    if not there.all() and images is table.images:
        for spelled, how in (
            (lambda name: name.replace("\\", "/"), "had \\ between folders, read as /"),
            (str.strip, "had blanks around them"),
            (_speller(str(images.root)), IN_OTHER_CASE),
        ):
            names, changed = list(images.ids), 0
            taken = set(names)
            for row in np.flatnonzero(~there).tolist() if not images.real_names else ():
                name = spelled(names[row])
                if name and name not in taken and _file_number(os.path.join(images.root, name)):
                    taken.add(name)
                    names[row], there[row], changed = name, True, changed + 1
            if changed:
                images = FileImages(images.root, names)
                table = replace(table, images=images).noted(f"{counted(changed, 'path')} {how}")
        if not there.any():
            paths, holder = _found_below(images)
            if paths:
                count = f"{counted(len(paths), 'image')} {'was' if len(paths) == 1 else 'were'}"
                note = f"{count} found by name in folders below {images.root}"
                return replace(table, images=FileImages(images.root, paths)).noted(note)
    if there.all():
        return _named_once(table, files) if images is table.images else table
    missing = np.flatnonzero(~there)
    for name, mark in product((images.ids[row] for row in missing.tolist()), ";,|+&–- "):
        parts = [part.strip() for part in name.split(mark) if part.strip()]
        places = [os.path.join(images.root, part) for part in parts]
        end = posixpath.splitext(name)[1]
        if parts[1:] and all(_file_number(p) or _file_number(p + end) for p in places):
            rule = "names several photos; write one row for each"
            raise DataError(f"{table.name}: {name!r} {rule}")
    first = [images.ids[row] for row in missing[:SHOWN].tolist()]
    shown = ", ".join(map(repr, first)) + ", ..." * (len(missing) > SHOWN)
    total, are = counted(len(images), "image"), "is" if len(missing) == 1 else "are"
    sentence = f"{len(missing):,} of {total} {are} missing under {images.root}: {shown}"
    if not skip_missing:
        bare = not any("." in posixpath.basename(name) for name in first)
        suffix = "add a suffix with `--extension .jpg`, " if bare else ""
        way_out = (
            f"correct the paths, {suffix}give the folder that holds them as `--set root=FOLDER`, "
            "or leave them out with `--skip-missing`"
            if holder is None
            else f"{holder} holds them all: give `--set {shlex.quote(f'root={holder}')}` if it is "
            "meant; other folders hold files of these names too"
        )
        raise DataError(f"{table.name}: {sentence}; {way_out}")
    kept = _kept(table, there, sentence)
    lost = np.flatnonzero((table.present.counts() > 0) & (kept.present.counts() == 0))
    if not len(lost) or kept.soft is not None:
        return kept
    without = listed([repr(table.space.names[k]) for k in lost.tolist()], 5)
    if any(posixpath.splitext(images.ids[row])[1] for row in missing.tolist()):
        return kept.noted(f"no photo is left with {without}, so no model can learn it")
    rows = "rows that name no photo"  # below the table, such as totals and notes
    return _without_labels(kept, lost).noted(f"left out: {without}, which only {rows} have")


def _without_labels(table: LabelTable, lost: NDArray[np.int64]) -> LabelTable:
    names = [name for k, name in enumerate(table.space.names) if k not in lost]
    place = np.full(len(table.space), -1)
    place[np.setdiff1d(np.arange(len(place)), lost)] = np.arange(len(names))
    sets = []
    for part in (table.present.plain(), table.unknown.plain()):
        column = place[part.columns]
        entries = part.owners()[column >= 0], column[column >= 0]
        sets.append(LabelSets.from_entries(*entries, len(table), len(names)))
    space = LabelSpace(tuple(names))
    return replace(table, space=space, present=sets[0], unknown=sets[1])


def _file_number(path: str) -> tuple[int, int] | None:
    """Return the number of a picture file, which all its paths share, None if there is none."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    is_picture = S_ISREG(state.st_mode) or is_band_folder(path)
    return (state.st_dev, state.st_ino) if is_picture else None


def _named_once(table: LabelTable, files: Sequence[tuple[int, int] | None]) -> LabelTable:
    """Return the table; a file with several paths is noted, or an error if its labels differ."""
    first: dict[tuple[int, int], int] = {}
    twice: list[tuple[int, int]] = []
    for row, file in enumerate(files):
        if file is not None and (earlier := first.setdefault(file, row)) != row:
            twice.append((earlier, row))
    twice = [(a, b) for a, b in twice if table.ids[a] != table.ids[b]]
    for earlier, row in twice:
        if not all(np.array_equal(s.row(earlier), s.row(row)) for s in _sets_of(table)):
            raise DataError(
                f"{table.name}: {table.ids[earlier]!r} and {table.ids[row]!r} are one file, with "
                "different labels; keep one of the rows, or give both the same path"
            )
    if not twice:
        return table
    (a, b), count = twice[0], counted(len(twice), "photo")
    return table.noted(f"{count} named by two paths, such as {table.ids[a]!r} and {table.ids[b]!r}")


def _sets_of(table: LabelTable) -> list[LabelSets | SoftLabels]:
    return [table.present, table.unknown, *([table.soft] if table.soft else [])]


def _kept(table: LabelTable, rows: NDArray[np.bool_], sentence: str) -> LabelTable:
    if not rows.any():
        raise DataError(f"{table.name}: {sentence}; nothing is left")
    return table.subset(rows).noted(f"left out: {sentence}")


def _speller(root: str) -> Callable[[str], str | None]:
    """Return what spells a path as its folders and file are, None unless just one is alike.

    Windows and macOS find ``a.JPG`` as ``a.jpg``, and macOS stores an umlaut as two characters.
    """
    listed: dict[str, dict[str, list[str]]] = {}

    def spelled(name: str) -> str | None:
        folder = "/" if name.startswith("/") else ""
        for level in filter(None, posixpath.normpath(name.replace("\\", "/")).split("/")):
            if folder not in listed:
                listed[folder] = defaultdict(list)
                with suppress(OSError, ValueError):  # what is not a folder holds nothing
                    for entry in os.listdir(os.path.join(root, folder)):
                        listed[folder][_folded(entry)].append(entry)
            spellings = listed[folder].get(_folded(level), [])
            if level not in spellings and len(spellings) != 1:
                return None
            folder = posixpath.join(folder, level if level in spellings else spellings[0])
        return folder

    return spelled


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _found_below(images: FileImages) -> tuple[list[str], str | None]:
    """Return where each image is below the root, if each is there once under its name.

    Of several files with the name, the one whose folders too end as the path says is taken. Where
    that does not help, return the one folder below which every path leads to a file, if any.
    """
    wanted = [name.replace("\\", "/") for name in images.ids]
    places: dict[str, list[str]] = {posixpath.basename(name): [] for name in wanted}
    with suppress(DataError):
        for count, file in enumerate(LocalStorage(images.root).files()):
            if count == MOST_SEARCHED:
                return [], None
            if (name := posixpath.basename(file)) in places:
                places[name].append(f"/{file}")
        single: list[str] = []
        folders: set[str] | None = None
        for name, given in zip(wanted, images.ids, strict=True):
            files = places[posixpath.basename(name)]
            ending = [file for file in files if file.endswith(f"/{name}")] or files
            single += [file[1:] for file in ending[:1] if len(ending) == 1]
            holders = {f.removesuffix(f"/{given}") for f in files if f.endswith(f"/{given}")}
            folders = holders if folders is None else folders & holders
        if len(single) == len(wanted) and len(set(single)) == len(set(images.ids)):
            return single, None
        if folders is not None and len(folders) == 1:
            return [], os.path.join(str(images.root), folders.pop().removeprefix("/"))
    return [], None


SHOWN = 10
Duplicates = Literal["stop", "drop", "keep", "join"]


def check_table(
    table: LabelTable,
    *,
    skip_missing: bool = False,
    check_files: bool = True,
    duplicates: Duplicates = "stop",
) -> LabelTable:
    """Return the table without missing files and repeated rows that may go, or raise DataError."""
    if duplicates not in get_args(Duplicates):
        raise SettingsError(f"duplicates must be stop, drop, keep or join, got {duplicates!r}")
    if not len(table):
        raise DataError(f"{table.name}: the table is empty")
    if not len(table.space):
        raise DataError(f"{table.name}: the table has no labels at all; give their names")
    images = table.images
    if isinstance(images, BytesImages):
        # The name of image bytes is not a path: official sets use one for several images.
        uses: Counter[str] = Counter()
        unique = []
        for name in images.ids:
            uses[name] += 1
            unique.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
        if again := len(unique) - len(uses):
            were = "was" if again == 1 else "were"
            note = f"{counted(again, 'image')} had the name of another one and {were} numbered"
            table = replace(table, images=BytesImages(images.blobs, unique, images.rows))
            table = table.noted(note)
    table = _without_repeats(table, duplicates)
    return without_missing(table, skip_missing) if check_files else table


def _without_repeats(table: LabelTable, duplicates: Duplicates) -> LabelTable:
    names = Names(table.ids)
    # One file has one name: './' and '//' are resolved.
    ends = (pc.starts_with(names.arrow, "/"), pc.ends_with(names.arrow, "/"))
    if may_hold(names.arrow, "//", "./") or any(pc.any(end).as_py() for end in ends):
        names = Names(name if is_uri(name) else posixpath.normpath(name) for name in names)
    if names.first_repeat() is None:
        return table
    first = names.firsts()
    is_first = first == np.arange(len(names))
    again = np.flatnonzero(~is_first)
    sets = _sets_of(table)
    for row, earlier in zip(again.tolist(), first[again].tolist(), strict=True):
        where = f"rows {earlier + 1} and {row + 1}"
        if table.split is not None and table.split[earlier] != table.split[row]:
            raise DataError(
                f"{table.name}: splits must not share images, got {names[row]!r} in "
                f"{table.split[earlier]} and in {table.split[row]} ({where})"
            )
        alike = (np.array_equal(own.row(earlier), own.row(row)) for own in sets)
        if duplicates != "join" and not all(alike):
            raise DataError(
                f"{table.name}: every image must be named once, got {names[row]!r} in {where}, "
                "with different labels; if each row names some of a photo's labels, give "
                "`--duplicates join`"
            )
    if duplicates == "join":
        return _joined(table, first)
    if duplicates == "keep":
        return table.noted(f"repeated rows: {len(again):,}, kept")
    if duplicates == "drop":
        return table.subset(is_first).noted(f"repeated rows: {len(again):,}, dropped")
    row = int(again[0])
    raise DataError(
        f"{table.name}: every image must be named once, got {names[row]!r} in rows "
        f"{first[row] + 1} and {row + 1}, with the same labels; drop such rows with "
        "`--duplicates drop` or keep them with `--duplicates keep` (for a run: `--set "
        "data_options.duplicates=drop`)"
    )


def _joined(table: LabelTable, first: NDArray[np.int64]) -> LabelTable:
    """Return the table with the labels of all rows of an image in the first one of them."""
    table.require_hard("rows with soft labels cannot be joined")
    rows, places = np.unique(first, return_inverse=True)
    sets = []
    for part in (table.present.plain(), table.unknown.complement().plain()):
        keys = np.unique(places[part.owners()] * max(part.width, 1) + part.columns)
        row, column = np.divmod(keys, max(part.width, 1))
        sets.append(LabelSets.from_entries(row, column, len(rows), part.width))
    joined = replace(table.subset(rows), present=sets[0], unknown=sets[1].complement())
    return joined.noted(f"{counted(len(first), 'row')} name {counted(len(rows), 'image')}, joined")


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
    """Return the images whose pixels, or whose ``bands``, cannot be read to the last one."""
    if isinstance(table.images, FeatureRows | ArrayImages) and bands is None:
        return []

    def check(row: int) -> str:
        try:
            images = table.images
            _ = images.read(row) if bands is None else images.read_bands(row, bands)
        except ImageError as error:
            return str(error)
        return ""

    broken = []
    with ThreadPoolExecutor(workers) as pool:
        for row, reason in enumerate(pool.map(check, range(len(table)))):
            if reason:
                broken.append(UnreadableImage(row, table.ids[row], reason))
            if progress is not None:
                progress(row + 1)
    return broken


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
    readable = np.ones(len(table), np.bool_)
    readable[[image.row for image in found]] = False
    return _kept(table, readable, sentence)


def content_codes(table: LabelTable) -> Names:
    """Return a digest of each image's bytes; equal images have equal digests."""
    return Names(
        blake2b(table.images.content(row), digest_size=16).hexdigest() for row in range(len(table))
    )


def reject_shared_content(table: LabelTable) -> None:
    """Raise a DataError if two splits hold the same image, whatever it is called."""
    if table.split is None:
        return
    for row, first in _across_splits(table.split, content_codes(table))[:1]:
        raise DataError(
            f"{table.name}: splits must not share images, but {table.ids[first]!r} in "
            f"{table.split[first]} and {table.ids[row]!r} in {table.split[row]} are the same image"
        )


def _across_splits(split: NDArray[np.str_], kinds: Names) -> list[tuple[int, int]]:
    """Return each row in another split than the first of its kind, and that first row."""
    first = kinds.firsts()
    rows = np.flatnonzero(split != split[first])
    return list(zip(rows.tolist(), first[rows].tolist(), strict=True))


def reject_divided_groups(table: LabelTable) -> None:
    """Raise a DataError if a group has photos in two splits: its test would be no test."""
    if table.split is None or table.group is None:
        return
    divided = _across_splits(table.split, table.group)
    groups = len({first for _, first in divided})
    for row, other in divided[:1]:
        raise DataError(
            f"{table.name}: photos of a group must be in one split, but "
            f"{counted(groups, 'group')} {'crosses' if groups == 1 else 'cross'} splits: "
            f"{table.group[row]!r} has row {other + 1} in {table.split[other]} and row {row + 1} "
            f"in {table.split[row]}; split again with `labelwise data split`, which keeps groups "
            "together, or leave the column out"
        )


def fingerprint(table: LabelTable) -> str:
    """Return a digest of what a table holds: labels, splits, groups, images by name and size.

    It does not depend on where the table and its images lie, nor on the file's format.
    """
    digest = blake2b(digest_size=16)

    def add(kind: str, content: bytes | memoryview) -> None:
        digest.update(f"{kind} {len(content)}\n".encode() + content)

    add("labels", json.dumps(table.space.names).encode())
    for sets in (table.present, table.unknown):
        for _, block in sets.blocks():
            add("sets", np.packbits(block).tobytes())
    if table.soft is not None:
        add("soft", table.soft.sets.keys().tobytes())
        add("shares", table.soft.shares.tobytes())
    for kind, column in (("ids", table.ids), ("group", table.group), ("split", table.split)):
        if column is not None:
            add(kind, json.dumps(list(map(str, column))).encode())
    for facts in _image_facts(table.images):
        add("images", facts)
    return digest.hexdigest()


def _image_facts(images: ImageSource) -> list[bytes | memoryview]:
    if isinstance(images, CropImages):
        return [*_image_facts(images.source), images.boxes.tobytes()]
    if isinstance(images, JoinedImages):
        return [*chain(*map(_image_facts, images.sources)), images.rows.tobytes()]
    if isinstance(images, ArrayImages | FeatureRows):
        pixels = images.pixels if isinstance(images, ArrayImages) else images.features
        return [np.ascontiguousarray(pixels).data.cast("B")]
    sizes: Sequence[int] | NDArray[np.int64]
    if isinstance(images, FileImages):
        sizes = [_size(images.path(row)) for row in range(len(images))]
    elif isinstance(images, SpanImages):
        sizes = images.size
    elif isinstance(images, BytesImages) and isinstance(images.blobs, pa.ChunkedArray):
        sizes = np.asarray(pc.fill_null(pc.binary_length(images.blobs), 0))[images.rows]
    else:
        sizes = [len(images.content(row)) for row in range(len(images))]
    return [np.asarray(sizes, np.int64).tobytes()]


def _size(path: Path) -> int:
    try:
        if is_band_folder(path):
            return sum(entry.stat().st_size for entry in os.scandir(path))
        return os.stat(path).st_size
    except OSError:
        return -1
