"""Camtrap DP: packages of camera trap data (datapackage.json, deployments, media, observations).

    label       scientificName of an animal; "human" and "vehicle" for those types without a name
    blank       the photo, or the whole event, was looked at and has none of the labels
    media       an observation of one photo: its labels are present, all others absent
    event       one of all photos between its start and its end: a label that the event has may be
                in any of them, so it is unknown in each; a label that it lacks is absent in all
    unknown, unclassified   nothing is known of the photo; an event around an unclassified one tells
    group       the location of the deployment; without one, the deployment

What a machine classified is not a label, unless ``machine`` is true. Videos and sounds are left
out. Published packages name photos by addresses on the web: nothing is downloaded, and ``root`` is
the folder where they lie by their fileName. Labels for scores (``--labels package``) need none.

Versions 1.0 to 1.0.2 are read; earlier ones name their columns otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.base.text import counted
from labelwise.errors import DataError
from labelwise.tables.camera_results import read_times
from labelwise.tables.rows import AllBut, from_rows, inner, read_json
from labelwise.tables.table import LabelTable
from labelwise.tables.tabular import read_csv_rows

NEEDED = {
    "deployments": ("deploymentID",),
    "media": ("mediaID", "deploymentID", "timestamp", "filePath", "fileMediatype"),
    "observations": (
        "observationID", "deploymentID", "mediaID", "eventStart", "eventEnd", "observationLevel",
        "observationType", "scientificName",
    ),
}  # fmt: skip
KEYS = {"deployments": "deploymentID", "media": "mediaID", "observations": "observationID"}
CHOICES = {
    "observationLevel": ("media", "event"),
    "observationType": ("animal", "human", "vehicle", "blank", "unknown", "unclassified"),
}
MISSING = ("NA", "NaN", "nan")  # as from 1.0.2 on
VERSION = re.compile(r"/camtrap-dp/v?(\d+)\.(\d[^/]*)/")

Rows = list[dict[str, str]]
MOST_AROUND = 300  # observations of events around one photo; each is looked at for each photo


@dataclass(frozen=True)
class CamtrapPackage:
    """The tables of a package, whose keys were checked; ``files`` are their paths below it."""

    folder: Path
    files: Mapping[str, str]
    deployments: Rows
    media: Rows
    observations: Rows

    def path(self, table: str) -> Path:
        return self.folder / self.files[table]

    @cached_property
    def own_rows(self) -> dict[str, Rows]:
        return {
            media: [self.observations[row] for row in places]
            for media, places in _places(self.observations, "mediaID", "media").items()
        }

    @cached_property
    def event_rows(self) -> dict[str, Rows]:
        """The observations of the events that each photo was taken in, or names, by its mediaID."""
        by_deployment = _places(self.observations, "deploymentID", "event")
        if not by_deployment:
            return {}
        starts = self._times("observations", self.observations, "eventStart")
        ends = self._times("observations", self.observations, "eventEnd")
        taken = self._times("media", self.media, "timestamp")
        by_event = _places(self.observations, "eventID", "event")
        belongs: list[set[int]] = [set() for _ in self.media]
        for deployment, photos in _places(self.media, "deploymentID").items():
            rows = np.array(by_deployment.get(deployment, ()), np.intp)
            rows = rows[np.argsort(starts[rows], kind="stable")]
            last = np.searchsorted(starts[rows], taken[photos], "right")
            first = np.searchsorted(np.maximum.accumulate(ends[rows]), taken[photos], "left")
            for photo, begin, end in zip(photos, first, last, strict=True):
                around = rows[begin:end]
                belongs[photo].update(around[ends[around] >= taken[photo]].tolist())
                for own in self.own_rows.get(self.media[photo]["mediaID"], ()):
                    belongs[photo].update(by_event.get(own.get("eventID", ""), ()))
                if len(belongs[photo]) > MOST_AROUND:  # events over each other without end
                    raise DataError(
                        f"{self.path('observations')}: one photo lies in the events of more than "
                        f"{MOST_AROUND} observations; give events the start and end of their own "
                        "photos"
                    )
        return {
            row["mediaID"]: [self.observations[row] for row in sorted(places)]
            for row, places in zip(self.media, belongs, strict=True)
        }

    def _times(self, table: str, rows: Rows, column: str) -> NDArray[np.datetime64]:
        return read_times([row[column] for row in rows], str(self.path(table)), column)


def _places(rows: Rows, column: str, level: str | None = None) -> dict[str, list[int]]:
    """Return the places of the rows, of one level, with each value of a column but an empty one."""
    places: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        if row.get(column) and level in (None, row.get("observationLevel")):
            places.setdefault(row[column], []).append(position)
    return places


def read_package(path: Path) -> CamtrapPackage:
    """Return a package whose keys hold; ``path`` is its folder or datapackage.json."""
    folder = path if path.is_dir() else path.parent
    stated = read_json(folder / "datapackage.json")
    resources = inner(stated, "resources")
    if not isinstance(resources, list) or not all(isinstance(one, dict) for one in resources):
        raise DataError(f"{folder}/datapackage.json: it must list its 'resources'")
    version = VERSION.search(str(stated.get("profile", "")))
    if version is not None and version[1] != "1":
        raise DataError(
            f"{folder}/datapackage.json: it is Camtrap DP {version[1]}.{version[2]}, and only 1.0 "
            "and its patches are read; export the package again in that version"
        )
    files: dict[str, str] = {}
    for name in NEEDED:
        places = [resource.get("path") for resource in resources if resource.get("name") == name]
        file = places[0] if len(places) == 1 else None
        if not isinstance(file, str) or not is_inside(file):
            raise DataError(
                f"{folder}/datapackage.json: the resource {name!r} must stand there once, with a "
                f"path within the package, got {places!r:.200}"
            )
        files[name] = file
    tables = {
        name: [
            {key: "" if value in MISSING else value for key, value in row.items()}
            for row in read_csv_rows(folder / files[name], columns)
        ]
        for name, columns in NEEDED.items()
    }
    package = CamtrapPackage(folder, files, **tables)
    _check(package)
    return package


def is_inside(place: str) -> bool:
    """Return whether a path is relative and stays within its package, as the standard demands."""
    leads_out = not place or ":" in place or place[0] in "./~\\" or ".." in place
    return place.isprintable() and not leads_out


def _check(package: CamtrapPackage) -> None:
    keys: dict[str, set[str]] = {}
    for table, key in KEYS.items():
        path, own = package.path(table), keys.setdefault(key, set())
        rows: Rows = getattr(package, table)
        for number, row in enumerate(rows, 1):
            if not row[key]:
                raise DataError(f"{path}: row {number} has no {key}")
            if row[key] in own:
                raise DataError(f"{path}: {row[key]!r} is there twice; keep one")
            own.add(row[key])
            for column, choices in CHOICES.items() if table == "observations" else ():
                if row[column] not in choices:
                    allowed = f"must be one of {', '.join(choices)}, got {row[column]!r}"
                    raise DataError(f"{path}: observation {row[key]}: {column} {allowed}")
            for column, known in keys.items():
                if column == key or (column == "mediaID" and row["observationLevel"] != "media"):
                    continue
                if row[column] not in known:
                    raise DataError(
                        f"{path}: {key} {row[key]}: no row of the other table has the {column} "
                        f"{row[column]!r}; add it there, or leave this row out"
                    )


def read_camtrap(
    path: Path, *, machine: bool = False, root: str | Path | None = None, check_files: bool = True
) -> LabelTable:
    """Return the photos of a Camtrap DP package; ``path`` is its folder or datapackage.json.

    ``root`` is the folder of the photos, if that is not the package.
    """
    package = read_package(path)
    folder = package.folder

    def believed(rows: Rows) -> Rows:
        return [row for row in rows if machine or row.get("classificationMethod") != "machine"]

    names = _labels(believed(package.observations))
    if not names:
        way_out = "" if machine else "; machine=true also takes what a machine classified"
        raise DataError(f"{folder}: no observation names an animal, human or vehicle{way_out}")
    photos = [row for row in package.media if row["fileMediatype"].startswith("image/")]
    if not photos:
        raise DataError(f"{package.path('media')}: no fileMediatype begins with 'image/'")
    said = (package.own_rows, package.event_rows)
    states = [_states(*(believed(rows.get(row["mediaID"], [])) for rows in said)) for row in photos]
    sites = {
        row["deploymentID"]: row.get("locationID") or row.get("locationName") or row["deploymentID"]
        for row in package.deployments
    }
    files = _files(photos, package, root is not None or not check_files)
    table = from_rows(
        (Path(root) if root is not None else folder, files),
        [present for present, _ in states],
        name=folder.name,
        names=names,
        unknown=[unknown for _, unknown in states],
        group=[sites[row["deploymentID"]] for row in photos],
    )
    others = len(package.media) - len(photos)
    if not others:
        return table
    note = f"left out: {counted(others, 'file')} of media.csv whose type is not an image"
    return replace(table, notes=(*table.notes, note))


def _files(photos: Rows, package: CamtrapPackage, named: bool) -> list[str]:
    """Return where photos are; those on the web are ``named`` by their fileName."""
    media = package.path("media")
    files: dict[str, str] = {}
    for row in photos:
        on_web = "://" in row["filePath"]
        file = row.get("fileName", "") if on_web else row["filePath"]
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
        if files.setdefault(file, row["mediaID"]) != row["mediaID"]:
            raise DataError(
                f"{media}: mediaID {row['mediaID']}: {file!r} is also the name of mediaID "
                f"{files[file]}; give each photo a name of its own"
            )
    return list(files)


def _states(own: Rows, event: Rows) -> tuple[list[str], Sequence[str]]:
    """Return the present and the unknown labels of a photo, from its own and its event's rows."""
    looked = [row for row in own if row["observationType"] not in ("unknown", "unclassified")]
    if looked:
        return _labels(looked), []
    silent = [row for row in (*own, *event) if row["observationType"] == "unknown"]
    nobody_knows = silent or any(row["observationType"] == "unclassified" for row in event)
    return [], AllBut() if nobody_knows or not event else _labels(event)


def _labels(rows: Rows) -> list[str]:
    named = [row for row in rows if row["observationType"] in ("animal", "human", "vehicle")]
    kinds = ((row["observationType"], row["scientificName"].strip()) for row in named)
    return sorted({(name or kind) if kind == "animal" else kind for kind, name in kinds})
