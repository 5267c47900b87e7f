"""Files that a table names and that are not there: found elsewhere, left out, or an error."""

import os
import posixpath
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.pictures.cubes import is_band_folder
from labelwise.pictures.derived import CropImages
from labelwise.pictures.folders import regular_files
from labelwise.pictures.sources import FileImages
from labelwise.system.storage import is_uri
from labelwise.system.text import counted

SHOWN = 10
MOST_SEARCHED = 1_000_000  # files below a folder that are looked at for images by name


def without_missing(table: LabelTable, skip_missing: bool) -> LabelTable:
    """Return a table whose files are all there; without those missing, if that was asked for."""
    images = table.images.source if isinstance(table.images, CropImages) else table.images
    if not isinstance(images, FileImages):
        return table
    there = _are_there(images)
    if there.all():
        return table
    if isinstance(table.images, FileImages):
        table, images, there = _with_slashes(table, table.images, there)
        table, images, there = _in_other_case(table, images, there)
        if there.all():
            return table
    root, holder = images.root, None
    if not there.any() and isinstance(table.images, FileImages):
        places = _places_below(images)
        found = _single_places(images, places)
        if found is not None:
            were = "was" if len(found) == 1 else "were"
            note = f"{counted(len(found), 'image')} {were} found by name in folders below {root}"
            return replace(table, images=FileImages(root, found), notes=(*table.notes, note))
        holder = _folder_of_all(images, places)
    missing = np.flatnonzero(~there)
    shown = ", ".join(repr(images.ids[int(row)]) for row in missing[:SHOWN])
    more = ", ..." if len(missing) > SHOWN else ""
    total, are = counted(len(images), "image"), "is" if len(missing) == 1 else "are"
    sentence = f"{len(missing):,} of {total} {are} missing under {root}: {shown}{more}"
    if not skip_missing:
        bare = not any("." in posixpath.basename(images.ids[int(row)]) for row in missing[:SHOWN])
        suffix = "add a suffix with `--extension .jpg`, " if bare else ""
        way_out = (
            f"correct the paths, {suffix}give the folder that holds them as `--set root=FOLDER`, "
            "or leave them out with `--skip-missing`"
            if holder is None
            else f"{holder} holds them all: give `--set {shlex.quote(f'root={holder}')}` if it is "
            "meant; other folders hold files of these names too"
        )
        raise DataError(f"{table.name}: {sentence}; {way_out}")
    if not there.any():
        raise DataError(f"{table.name}: {sentence}; nothing is left")
    kept = table.subset(there)
    return replace(kept, notes=(*kept.notes, f"left out: {sentence}"))


def _with_slashes(
    table: LabelTable, images: FileImages, there: NDArray[np.bool_]
) -> tuple[LabelTable, FileImages, NDArray[np.bool_]]:
    """Return the table with the paths that Windows wrote as others write them.

    Nothing changes unless that finds more images; a name may hold a backslash.
    """
    odd = [row for row in np.flatnonzero(~there).tolist() if "\\" in images.ids[row]]
    if not odd or images.real_names:
        return table, images, there
    names = list(images.ids)
    for row in odd:
        names[row] = names[row].replace("\\", "/")
    turned = FileImages(images.root, names)
    found = _are_there(turned)
    if found.sum() == there.sum():
        return table, images, there
    note = f"{counted(len(odd), 'path')} had \\ between folders, read as /"
    return replace(table, images=turned, notes=(*table.notes, note)), turned, found


def _in_other_case(
    table: LabelTable, images: FileImages, there: NDArray[np.bool_]
) -> tuple[LabelTable, FileImages, NDArray[np.bool_]]:
    """Return the table with the names that files bear here, where just one is alike.

    Windows and macOS find ``a.JPG`` as ``a.jpg``, and macOS stores an umlaut as two characters.
    """
    if there.all() or images.real_names:
        return table, images, there
    root, names, listed = str(images.root), list(images.ids), dict[str, dict[str, list[str]]]()
    taken, changed = set(names), 0
    for row in np.flatnonzero(~there).tolist():
        found = _spelled_here(root, names[row], listed)
        if found and found not in taken and _is_picture(os.path.join(root, found)):
            taken.add(found)
            names[row], changed = found, changed + 1
    if not changed:
        return table, images, there
    turned = FileImages(images.root, names)
    note = (
        f"{counted(changed, 'path')} found under a name that differs in upper and lower case, or "
        "in how accents are stored"
    )
    table = replace(table, images=turned, notes=(*table.notes, note))
    return table, turned, _are_there(turned)


def _spelled_here(root: str, name: str, listed: dict[str, dict[str, list[str]]]) -> str | None:
    """Return a path as its folders and file are spelled, None unless there is just one such."""
    place = "/" if name.startswith("/") else ""
    for part in filter(None, posixpath.normpath(name).split("/")):
        if place not in listed:
            listed[place] = defaultdict(list)
            with suppress(OSError, ValueError):  # what is not a folder holds nothing
                for entry in os.listdir(os.path.join(root, place)):
                    listed[place][_folded(entry)].append(entry)
        found = listed[place].get(_folded(part), [])
        if part not in found and len(found) != 1:
            return None
        place = posixpath.join(place, part if part in found else found[0])
    return place


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _are_there(images: FileImages) -> NDArray[np.bool_]:
    root, real = str(images.root), images.real_names
    names = (real.get(name, name) for name in images.ids)
    # Asking a bucket for each would take as long as reading them; whoever reads one says so.
    there = (is_uri(name) or _is_picture(os.path.join(root, name)) for name in names)
    return np.fromiter(there, np.bool_, len(images))


def _is_picture(path: str) -> bool:
    return os.path.isfile(path) or is_band_folder(path)


def _places_below(images: FileImages) -> dict[str, list[str]]:
    """Return the files below the root that bear the name of an image; none if there are too many.

    Paths that Windows wrote part folders by backslashes.
    """
    wanted = {_file_name(name) for name in images.ids}
    places: dict[str, list[str]] = defaultdict(list)
    try:
        for count, file in enumerate(islice(regular_files(images.root), MOST_SEARCHED + 1)):
            if count == MOST_SEARCHED:
                return {}
            name = posixpath.basename(file)
            if name in wanted:
                places[name].append(file)
    except DataError:
        return {}
    return places


def _file_name(path: str) -> str:
    return posixpath.basename(path.replace("\\", "/"))


def _single_places(images: FileImages, places: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Return where each image is below the root, or None unless every one is there just once.

    Of several files with the name, one whose folders too end as the path says is taken.
    """
    found = []
    for name in images.ids:
        files = places.get(_file_name(name), [])
        end = "/" + name.replace("\\", "/")
        files = [file for file in files if f"/{file}".endswith(end)] or files
        if len(files) != 1:
            return None
        found.append(files[0])
    return found if len(set(found)) == len(set(images.ids)) else None


def _folder_of_all(images: FileImages, places: Mapping[str, Sequence[str]]) -> str | None:
    """Return the one folder below the root in which every path of the table leads to a file."""
    folders: set[str] | None = None
    for name in images.ids:
        files = (f"/{file}" for file in places.get(_file_name(name), []))
        holders = {file.removesuffix(f"/{name}") for file in files if file.endswith(f"/{name}")}
        folders = holders if folders is None else folders & holders
    if folders is None or len(folders) != 1:
        return None
    return os.path.join(str(images.root), folders.pop().removeprefix("/"))
