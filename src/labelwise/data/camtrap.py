"""Camtrap DP: packages of camera trap data (datapackage.json, deployments, media, observations).

    label       scientificName of an animal; "human" and "vehicle" for those types without a name
    blank       the photo, or the whole event, was looked at and has none of the labels
    media       an observation of one photo: its labels are present, all others absent
    event       one of all photos between its start and its end: a label that the event has may be
                in any of them, so it is unknown in each; a label that it lacks is absent in all
    unknown, unclassified   nothing is known of the photo; an event around an unclassified one tells
    group       the location of the deployment; without one, the deployment

What a machine classified is not a label and is left out, unless ``machine`` is true. Videos and
sounds are left out, which a note says. Published packages name photos by addresses on the web:
nothing is downloaded, and ``root`` is the folder where they lie by their fileName. Labels for the
scores of another program (``--labels package/``) need no photo: its rows are found by fileName.
:mod:`labelwise.data.camtrap_package` holds the tables to the standard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from labelwise.data.camtrap_package import (
    CamtrapPackage,
    Rows,
    is_inside,
    photo_name,
    read_package,
)
from labelwise.data.rows import AllBut, from_rows
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.system.text import counted


def read_camtrap(
    path: Path,
    *,
    machine: bool = False,
    root: str | Path | None = None,
    check_files: bool = True,
) -> LabelTable:
    """Return the photos of a Camtrap DP package; ``path`` is its folder or datapackage.json.

    ``root`` is the folder of the photos, if that is not the package; where no file is opened, and
    only labels are wanted, photos on the web need none.
    """
    package = read_package(path)
    folder = package.folder

    def believed(rows: Rows) -> Rows:
        return [row for row in rows if machine or row.get("classificationMethod") != "machine"]

    names = sorted(
        {name for row in believed(package.observations) if (name := _label(row)) is not None}
    )
    if not names:
        raise DataError(
            f"{folder}: no observation names an animal, human or vehicle"
            + ("" if machine else "; machine=true also takes what a machine classified")
        )
    photos = [row for row in package.media if row["fileMediatype"].startswith("image/")]
    if not photos:
        raise DataError(f"{package.path('media')}: no fileMediatype begins with 'image/'")
    present: list[list[str]] = []
    unknown: list[Sequence[str]] = []
    for row in photos:
        media = row["mediaID"]
        known, doubtful = _states(
            believed(package.own_rows.get(media, [])),
            believed(package.event_rows.get(media, [])),
        )
        present.append(known)
        unknown.append(doubtful)
    sites = {
        row["deploymentID"]: row.get("locationID") or row.get("locationName") or row["deploymentID"]
        for row in package.deployments
    }
    table = from_rows(
        (
            Path(root) if root is not None else folder,
            _files(photos, package, root is not None or not check_files),
        ),
        present,
        name=folder.name,
        names=names,
        unknown=unknown,
        group=[sites[row["deploymentID"]] for row in photos],
    )
    others = len(package.media) - len(photos)
    if not others:
        return table
    note = f"left out: {counted(others, 'file')} of media.csv whose type is not an image"
    return replace(table, notes=(*table.notes, note))


def _files(photos: Rows, package: CamtrapPackage, named: bool) -> list[str]:
    """Return where photos are, below the package or the folder that they were downloaded to.

    Those on the web are ``named`` by their fileName.
    """
    media = package.path("media")
    found: dict[str, str] = {}
    for row in photos:
        on_web, file = "://" in row["filePath"], photo_name(row)
        if on_web and not named:
            raise DataError(
                f"{media}: {row['filePath']} is an address; download the photos and say which "
                "folder they are in, each under its fileName, with root="
            )
        if not is_inside(file):
            raise DataError(
                f"{media}: mediaID {row['mediaID']}: {'fileName' if on_web else 'filePath'} must "
                "stay within the package, without a dot, slash or ~ before it or '..' in it, "
                f"got {file!r}"
            )
        if found.setdefault(file, row["mediaID"]) != row["mediaID"]:
            raise DataError(
                f"{media}: mediaID {row['mediaID']}: {file!r} is also the name of mediaID "
                f"{found[file]}; give each photo a name of its own"
            )
    return list(found)


def _states(own: Rows, event: Rows) -> tuple[list[str], Sequence[str]]:
    """Return the present and the unknown labels of a photo, from its own and its event's rows."""
    looked = [row for row in own if row["observationType"] not in ("unknown", "unclassified")]
    if looked:
        return _labels(looked), []
    if any(row["observationType"] == "unknown" for row in own):
        return [], AllBut()
    if any(row["observationType"] in ("unknown", "unclassified") for row in event) or not event:
        return [], AllBut()
    return [], _labels(event)


def _labels(rows: Rows) -> list[str]:
    return sorted({name for row in rows if (name := _label(row)) is not None})


def _label(row: Mapping[str, str]) -> str | None:
    """Return the label of an observation, None for one without."""
    kind = row["observationType"]
    if kind == "animal":
        return row["scientificName"].strip() or "animal"
    return kind if kind in ("human", "vehicle") else None
