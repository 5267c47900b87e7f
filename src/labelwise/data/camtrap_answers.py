"""A model's answers as machine observations of a Camtrap DP package.

Each photo that was answered gets one row per chosen label, or one that says "blank", at the level
"media": its own deployment, event and time, the model as classifiedBy, and the label's probability.
Labels called animal, human (or person), vehicle and blank are types of observation; any other is
written as a scientificName.

The model's earlier observations of those photos are replaced. Everything else stays: what people
observed, what other models did, columns that the standard does not have, and further tables.
datapackage.json then also states the level "media", the new names under ``taxonomic``, and when it
was created. Photos are not copied.
"""

import csv
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from labelwise.data.camtrap_package import (
    OBSERVATION_COLUMNS,
    CamtrapPackage,
    Rows,
    is_inside,
    photo_name,
    read_package,
)
from labelwise.errors import DataError
from labelwise.system.files import replacing_folder
from labelwise.system.text import as_cell

TYPES = {
    "animal": "animal",
    "human": "human",
    "person": "human",
    "vehicle": "vehicle",
    "blank": "blank",
}


def write_camtrap(
    path: Path,
    out: Path,
    answers: Mapping[str, Mapping[str, float]],
    sets: Mapping[str, Sequence[str]],
    *,
    model: str,
    moment: str,
) -> int:
    """Write the package again with what a model answered as its machine observations.

    ``answers`` are probabilities and ``sets`` the chosen labels, by the photo's filePath, or, where
    that is an address, by a path that ends with its fileName. Return how many observations were
    added.
    """
    if out.exists():
        raise DataError(f"{out} exists; choose a new folder")
    package = read_package(path)
    given = _by_photo(answers, package)
    answered = {row["mediaID"] for row in package.media if photo_name(row) in given}
    unmatched = set(given) - {photo_name(row) for row in package.media}
    if unmatched:
        raise DataError(
            f"{package.path('media')} has no photo {min(unmatched)!r}; answers must name photos by "
            "their filePath, or by their fileName where that is an address"
        )
    kept = [
        row
        for row in package.observations
        if row["mediaID"] not in answered
        or row.get("classificationMethod") != "machine"
        or row.get("classifiedBy") != as_cell(model)
    ]
    taken = {row["observationID"] for row in kept}
    added: Rows = []
    for row in package.media:
        if row["mediaID"] in answered:
            name = given[photo_name(row)]
            common = _common(row, package) | {
                "classifiedBy": as_cell(model),
                "classificationTimestamp": moment,
            }
            free = _free(row["mediaID"], taken)
            for own in _told(answers[name], sets.get(name, ())):
                added.append(common | own | {"observationID": next(free)})
    stated = _stated(package, added, moment)
    with replacing_folder(out) as folder:
        for place in _tables_beside(package):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package.folder / place, folder / place)
        target = folder / package.files["observations"]
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, [*kept, *added], package.observations)
        text = json.dumps(stated, indent=2, ensure_ascii=False)
        (folder / "datapackage.json").write_text(text, encoding="utf-8")
    return len(added)


def _by_photo(answers: Iterable[str], package: CamtrapPackage) -> dict[str, str]:
    """Return the name that each answered photo has among the answers."""
    on_web = {photo_name(row) for row in package.media if "://" in row["filePath"]}
    found: dict[str, str] = {}
    for name in answers:
        last = PurePath(name).name
        photo = last if last in on_web else name
        if photo in found:
            raise DataError(f"{found[photo]!r} and {name!r} answer the same photo; keep one")
        found[photo] = name
    return found


def _common(row: Mapping[str, str], package: CamtrapPackage) -> dict[str, str]:
    """Return what all observations of a photo state."""
    try:
        datetime.strptime(row["timestamp"], "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise DataError(
            f"{package.path('media')}: mediaID {row['mediaID']}: the standard wants a timestamp "
            f"such as 2024-05-01T06:30:00Z, with its zone, got {row['timestamp']!r}; correct it"
        ) from None
    media = row["mediaID"]
    around = [*package.own_rows.get(media, ()), *package.event_rows.get(media, ())]
    return {
        "deploymentID": row["deploymentID"],
        "mediaID": media,
        "eventID": next((one["eventID"] for one in around if one.get("eventID")), ""),
        "eventStart": row["timestamp"],
        "eventEnd": row["timestamp"],
        "observationLevel": "media",
        "classificationMethod": "machine",
    }


def _told(probs: Mapping[str, float], chosen: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield what is observed in a photo: one row per chosen label, or one that says "blank"."""
    if not chosen:
        yield {"observationType": "blank"}
    for name in chosen:
        yield {
            "observationType": TYPES.get(name, "animal"),
            "scientificName": "" if name in TYPES else as_cell(name),
            "classificationProbability": f"{probs[name]:.6g}",
        }


def _free(media: str, taken: set[str]) -> Iterator[str]:
    """Yield identifiers of a photo's observations that no other observation has."""
    number = 0
    while True:
        number += 1
        name = f"{media}-machine-{number}"
        if name not in taken:
            taken.add(name)
            yield name


def _stated(package: CamtrapPackage, added: Rows, moment: str) -> dict[str, Any]:
    """Return datapackage.json as it is true of the new package."""
    stated = deepcopy(package.stated)
    stated["created"] = moment
    project = stated.get("project")
    levels = project.get("observationLevel") if isinstance(project, dict) else None
    if isinstance(levels, list) and added and "media" not in levels:
        levels.append("media")
    taxa = stated.get("taxonomic")
    if isinstance(taxa, list):
        known = {one.get("scientificName") for one in taxa if isinstance(one, dict)}
        names = {row["scientificName"] for row in added if row.get("scientificName")}
        taxa += [{"scientificName": name} for name in sorted(names - known)]
    return stated


def _tables_beside(package: CamtrapPackage) -> list[str]:
    """Return the files of all resources but the observations."""
    found: list[str] = []
    for one in package.stated["resources"]:
        listed = one.get("path", [])
        for place in listed if isinstance(listed, list) else [listed]:
            if one.get("name") == "observations" or "://" in str(place):
                continue
            if not isinstance(place, str) or not is_inside(place):
                raise DataError(
                    f"{package.folder}/datapackage.json: the resource {one.get('name')!r} must "
                    f"have a path within the package, got {place!r}"
                )
            if not (package.folder / place).is_file():
                raise DataError(f"{package.folder / place}: the file is missing")
            found.append(place)
    return found


def _write(path: Path, rows: Rows, before: Rows) -> None:
    """Write observations, in the standard's columns and then those that the package had besides."""
    more = [name for name in (before[0] if before else ()) if name not in OBSERVATION_COLUMNS]
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [*OBSERVATION_COLUMNS, *more], restval="")
        table.writeheader()
        table.writerows(rows)
