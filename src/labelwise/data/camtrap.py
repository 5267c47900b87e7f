"""Camtrap DP: packages of camera trap data (datapackage.json, deployments, media, observations).

    label       scientificName of an animal; "human" and "vehicle" for those types without a name
    blank       the photo, or the whole event, was looked at and has none of the labels
    media       an observation of one photo: its labels are present, all others absent
    event       one of a sequence: a label that the event has may be in any of its photos, so it is
                unknown in each; a label that it lacks is absent in all of them
    unknown, unclassified   nothing is known of the photo
    group       the location of the deployment; without one, the deployment

What a machine classified is not a label and is left out, unless ``machine`` is true. Version 1.0 of
the standard (tdwg/camtrap-dp) is read and written; observations are written back beside the
package's own media and deployments, one row per photo and label, with their probabilities.
"""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelwise.data.rows import from_rows, read_json, require_file
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.system.files import replacing
from labelwise.system.text import as_cell

__all__ = ["OBSERVATION_COLUMNS", "read_camtrap", "write_camtrap"]

OBSERVATION_COLUMNS = (
    "observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd",
    "observationLevel", "observationType", "cameraSetupType", "scientificName", "count",
    "lifeStage", "sex", "behavior", "individualID", "individualPositionRadius",
    "individualPositionAngle", "individualSpeed", "bboxX", "bboxY", "bboxWidth", "bboxHeight",
    "classificationMethod", "classifiedBy", "classificationTimestamp",
    "classificationProbability", "observationTags", "observationComments",
)  # fmt: skip
TYPES = ("animal", "human", "vehicle", "blank", "unknown", "unclassified")
Rows = list[dict[str, str]]


def read_camtrap(path: Path, *, machine: bool = False) -> LabelTable:
    """Return the photos of a Camtrap DP package; ``path`` is its folder or datapackage.json."""
    folder = path if path.is_dir() else path.parent
    tables = _tables(folder)
    media, observations = tables["media"], tables["observations"]
    sites = _sites(tables["deployments"], folder)
    kept = [row for row in observations if machine or row.get("classificationMethod") != "machine"]
    by_media, by_event = _by_key(kept, "mediaID"), _by_key(kept, "eventID")
    names = sorted({name for row in kept if (name := _label(row, folder)) is not None})
    if not names:
        raise DataError(
            f"{folder}: no observation names an animal, human or vehicle"
            + ("" if machine else "; machine=true also takes what a machine classified")
        )
    events = {row["mediaID"]: row.get("eventID", "") for row in observations if row.get("mediaID")}
    present: list[list[str]] = []
    unknown: list[list[str]] = []
    for row in media:
        own = by_media.get(row["mediaID"], [])
        event = row.get("eventID") or events.get(row["mediaID"], "")
        known, doubtful = _states(own, by_event.get(event, []) if event else [], names, folder)
        present.append(known)
        unknown.append(doubtful)
    for row in media:
        if "://" in row["filePath"]:
            raise DataError(
                f"{folder}/media.csv: {row['filePath']} is an address; download the photos and "
                "write where they are, relative to the package"
            )
    paths = [row["filePath"] for row in media]
    group = [sites.get(row.get("deploymentID", ""), row.get("deploymentID", "")) for row in media]
    return from_rows(
        (folder, paths),
        present,
        name=folder.name,
        names=names,
        unknown=unknown,
        group=group if all(group) else None,
    )


def _states(
    own: Rows, event: Rows, names: Sequence[str], folder: Path
) -> tuple[list[str], list[str]]:
    """Return the present and the unknown labels of a photo, from its own and its event's rows."""
    looked = [row for row in own if row["observationType"] not in ("unknown", "unclassified")]
    if looked:
        found = {name for row in looked if (name := _label(row, folder)) is not None}
        return sorted(found), []
    if own:
        return [], list(names)
    together = [row for row in event if not row.get("mediaID")]
    if any(row["observationType"] in ("unknown", "unclassified") for row in together):
        return [], list(names)
    if together:
        found = {name for row in together if (name := _label(row, folder)) is not None}
        return [], sorted(found)
    return [], list(names)


def _label(row: Mapping[str, str], folder: Path) -> str | None:
    """Return the label of an observation, None for one without."""
    kind = row["observationType"]
    if kind not in TYPES:
        raise DataError(
            f"{folder}/observations.csv: observation {row.get('observationID')}: observationType "
            f"must be one of {', '.join(TYPES)}, got {kind!r}"
        )
    if kind == "animal":
        name = row.get("scientificName", "").strip()
        return name or "animal"
    return kind if kind in ("human", "vehicle") else None


def _tables(folder: Path) -> dict[str, Rows]:
    """Return the three tables that a package must have, by the paths that it states."""
    package = read_json(folder / "datapackage.json")
    resources = package.get("resources") if isinstance(package, dict) else None
    if not isinstance(resources, list):
        raise DataError(f"{folder}/datapackage.json: it must list its 'resources'")
    places = {one.get("name"): one.get("path") for one in resources if isinstance(one, dict)}
    needed = {
        "deployments": ("deploymentID",),
        "media": ("mediaID", "deploymentID", "filePath"),
        "observations": ("observationID", "mediaID", "observationType", "scientificName"),
    }
    found: dict[str, Rows] = {}
    for name, columns in needed.items():
        place = places.get(name)
        if not isinstance(place, str) or "://" in place or Path(place).is_absolute():
            raise DataError(
                f"{folder}/datapackage.json: the resource {name!r} must have a path within the "
                f"package, got {place!r}"
            )
        found[name] = _rows(folder / place, columns)
    return found


def _rows(path: Path, columns: Sequence[str]) -> Rows:
    try:
        with require_file(path).open(encoding="utf-8-sig", newline="") as stream:
            table = csv.DictReader(stream, strict=True)
            for name in columns:
                if name not in (table.fieldnames or ()):
                    raise DataError(f"{path}: there is no column {name!r}")
            return [{key: value or "" for key, value in row.items() if key} for row in table]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: the table cannot be read ({error})") from None


def _sites(deployments: Rows, folder: Path) -> dict[str, str]:
    """Return the location of each deployment, its own name where it has none."""
    found: dict[str, str] = {}
    for row in deployments:
        name = row["deploymentID"]
        if name in found:
            raise DataError(f"{folder}/deployments.csv: {name!r} stands there twice; keep one")
        found[name] = row.get("locationID") or row.get("locationName") or name
    return found


def _by_key(rows: Rows, key: str) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        if row.get(key):
            found.setdefault(row[key], []).append(row)
    return found


def write_camtrap(
    package: Path,
    out: Path,
    answers: Mapping[str, Mapping[str, float]],
    sets: Mapping[str, Sequence[str]],
    *,
    model: str,
    moment: str,
) -> int:
    """Write the package again with what a model answered as its machine observations.

    ``answers`` are probabilities and ``sets`` the chosen labels, by the photo's filePath. What a
    person observed stays. Return how many observations were added.
    """
    if out.exists():
        raise DataError(f"{out} exists; choose a new folder")
    folder = package if package.is_dir() else package.parent
    tables = _tables(folder)
    stated: dict[str, Any] = read_json(folder / "datapackage.json")
    kept = [row for row in tables["observations"] if row.get("classificationMethod") != "machine"]
    added = []
    for row in tables["media"]:
        probs = answers.get(row["filePath"])
        if probs is None:
            continue
        common = {
            "deploymentID": row["deploymentID"],
            "mediaID": row["mediaID"],
            "eventID": row.get("eventID", ""),
            "eventStart": row.get("timestamp", ""),
            "eventEnd": row.get("timestamp", ""),
            "observationLevel": "media",
            "classificationMethod": "machine",
            "classifiedBy": model,
            "classificationTimestamp": moment,
        }
        chosen = list(sets.get(row["filePath"], ()))
        for place, name in enumerate(chosen or [""]):
            kind = name if name in ("human", "vehicle") else "animal" if name else "blank"
            added.append(
                common
                | {
                    "observationID": f"{row['mediaID']}-machine-{place + 1}",
                    "observationType": kind,
                    "scientificName": name if kind == "animal" and name != "animal" else "",
                    "classificationProbability": f"{probs[name]:.6g}" if name else "",
                }
            )
    unmatched = set(answers) - {row["filePath"] for row in tables["media"]}
    if unmatched:
        raise DataError(
            f"{folder}/media.csv has no photo {min(unmatched)!r}; answers must name photos by "
            "their filePath"
        )
    out.mkdir(parents=True)
    for one in stated["resources"]:
        if one.get("name") in ("deployments", "media"):
            target = out / one["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / one["path"], target)
        elif one.get("name") == "observations":
            target = out / one["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_observations(target, [*kept, *added])
    with replacing(out / "datapackage.json") as temporary:
        temporary.write_text(json.dumps(stated, indent=2, ensure_ascii=False), encoding="utf-8")
    return len(added)


def _write_observations(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, OBSERVATION_COLUMNS, restval="", extrasaction="ignore")
        table.writeheader()
        for row in rows:
            table.writerow({key: as_cell(value) for key, value in row.items()})
