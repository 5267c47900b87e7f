"""The tables of Camtrap DP 1.0, and what in a package breaks their rules.

Names, types and constraints were taken from the table schemas of the release 1.0 (tdwg/camtrap-dp,
MIT licence, copyright 2021 Camtrap DP Development Team; as published under rs.gbif.org in
sandbox/data-packages/camtrap-dp/1.0). ``!`` is required, ``!!`` required and unique; words after
the type are the only values, numbers the least and the most.
"""

import csv
import json
import re
from datetime import datetime

MOMENT = "%Y-%m-%dT%H:%M:%S%z"
TABLES = {
    "deployments": """
        deploymentID!! string | locationID string | locationName string | latitude! number -90 90
        longitude! number -180 180 | coordinateUncertainty integer 1 | deploymentStart! datetime
        deploymentEnd! datetime | setupBy string | cameraID string | cameraModel string
        cameraDelay integer 0 | cameraHeight number 0 | cameraDepth number 0
        cameraTilt integer -90 90 | cameraHeading integer 0 360 | detectionDistance number 0
        timestampIssues boolean | baitUse boolean
        featureType string roadPaved roadDirt trailHiking trailGame roadUnderpass roadOverpass \
            roadBridge culvert burrow nestSite carcass waterSource fruitingTree
        habitat string | deploymentGroups string | deploymentTags string | deploymentComments string
    """,
    "media": """
        mediaID!! string | deploymentID! string | captureMethod string activityDetection timeLapse
        timestamp! datetime | filePath! string | filePublic! boolean | fileName string
        fileMediatype! string | exifData any | favorite boolean | mediaComments string
    """,
    "observations": """
        observationID!! string | deploymentID! string | mediaID string | eventID string
        eventStart! datetime | eventEnd! datetime | observationLevel! string media event
        observationType! string animal human vehicle blank unknown unclassified
        cameraSetupType string setup calibration | scientificName string | count integer 1
        lifeStage string adult subadult juvenile | sex string female male | behavior string
        individualID string | individualPositionRadius number 0
        individualPositionAngle number -90 90 | individualSpeed number 0 | bboxX number 0 1
        bboxY number 0 1 | bboxWidth number 1e-15 1 | bboxHeight number 1e-15 1
        classificationMethod string human machine | classifiedBy string
        classificationTimestamp datetime | classificationProbability number 0 1
        observationTags string | observationComments string
    """,
}
PATTERNS = {
    "filePath": r"^(?=^[^./~])(^((?!\.{2}).)*$).*$",
    "fileMediatype": r"^(image|video|audio)/.*$",
}
REFERENCES = {
    "media": {"deploymentID": "deployments"},
    "observations": {"deploymentID": "deployments", "mediaID": "media"},
}


def fields(table):
    """Return the name, the mark of need, the type and its limits of each column of a table."""
    parts = re.split(r"[|\n]", TABLES[table].replace("\\\n", " "))
    rows = [part.split() for part in parts if part.strip()]
    return [(row[0].rstrip("!"), row[0].count("!"), row[1], row[2:]) for row in rows]


def violations(package):
    """Return what breaks the standard in the three tables of a package, as sentences."""
    tables = {}
    for resource in json.loads((package / "datapackage.json").read_text())["resources"]:
        if resource["name"] in TABLES:
            with (package / resource["path"]).open(encoding="utf-8", newline="") as file:
                tables[resource["name"]] = list(csv.reader(file))
    found = []
    keys = {name: {row[0] for row in rows[1:]} for name, rows in tables.items()}
    for table, (header, *rows) in tables.items():
        columns = fields(table)
        if header != [name for name, *_ in columns]:
            found.append(f"{table}: the columns are not those of the standard, in their order")
            continue
        for place, (name, need, kind, limits) in enumerate(columns):
            cells = [row[place] for row in rows]
            stated = [cell for cell in cells if cell]
            if need and len(stated) < len(cells):
                found.append(f"{table}.{name}: required")
            if need == 2 and len(set(cells)) < len(cells):
                found.append(f"{table}.{name}: unique")
            found += [f"{table}.{name}: {cell}" for cell in stated if not fits(cell, kind, limits)]
            if name in PATTERNS:
                found += [f"{table}.{name}: {c}" for c in stated if not re.match(PATTERNS[name], c)]
            other = REFERENCES.get(table, {}).get(name)
            if other is not None and not set(stated) <= keys[other]:
                found.append(f"{table}.{name}: not in {other}")
    return found


def fits(cell, kind, limits):
    """Return whether a cell is of a type, within its limits."""
    if kind == "datetime":
        try:
            datetime.strptime(cell, MOMENT)
        except ValueError:
            return False
        return True
    if kind == "boolean":
        return cell in ("true", "True", "TRUE", "1", "false", "False", "FALSE", "0")
    if kind in ("number", "integer"):
        try:
            value = int(cell) if kind == "integer" else float(cell)
        except ValueError:
            return False
        return all(
            value >= float(limit) if at == 0 else value <= float(limit)
            for at, limit in enumerate(limits)
        )
    return not limits or cell in limits
