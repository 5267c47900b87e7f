"""Results of MegaDetector and SpeciesNet: what they found in each photo, as JSON files hold it.

    MegaDetector   {"images": [{"file", "detections": [{"category", "conf", "bbox",
                   "classifications": [[class, p], ...]}]}], "detection_categories": {...}}
    SpeciesNet     {"predictions": [{"filepath", "classifications": {"classes", "scores"},
                   "detections": [...]}]}, of which classes are "id;class;...;species;common name"

A box is [x, y, width, height] as shares of the photo, cut where it reaches over the edge by a
hundredth at most. The score of a label is that of its surest detection: conf for a category, conf
times p for a class of MegaDetector, the classifier's own for SpeciesNet. What is not listed is not
known to be absent. A video (``frame_rate``) counts as a photo, of which no crop is cut.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from labelwise.base.files import replacing
from labelwise.base.table_files import write_csv
from labelwise.base.text import from_cell, with_slashes
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import decode
from labelwise.pictures.sources import read_image_file
from labelwise.tables.rows import inner, read_as, read_json
from labelwise.tables.tabular import read_csv_rows

EXIF = re.compile(r"(\d{4}):(\d{2}):(\d{2})(.*)", re.S)


def read_times(texts: Sequence[str], source: str, column: str) -> NDArray[np.datetime64]:
    """Return the times (N,) of a column, ISO 8601 or EXIF, in UTC where all have a time zone.

    >>> read_times(["2024:05:01 06:30:00", "2024-05-01T06:30"], "table.csv", "time").tolist()
    [datetime.datetime(2024, 5, 1, 6, 30), datetime.datetime(2024, 5, 1, 6, 30)]
    """
    times: list[datetime] = []
    for row, text in enumerate(texts):
        where = f"{source}: row {row + 1}: {column!r}"
        try:
            times.append(datetime.fromisoformat(EXIF.sub(r"\1-\2-\3\4", text.strip())))
        except ValueError:
            raise DataError(
                f"{where} must be a time such as 2024-05-01T06:30:00, got {text!r}; correct it, or "
                "leave the row out"
            ) from None
        if (times[0].tzinfo is None) != (times[-1].tzinfo is None):
            rule = "must have a time zone in every row or in none"
            raise DataError(f"{where} {rule}, got {text!r} unlike row 1")
    plain = [t.astimezone(UTC).replace(tzinfo=None) if t.tzinfo else t for t in times]
    return np.array(plain, dtype="datetime64[us]")


def bursts(
    times: NDArray[np.datetime64], cameras: Sequence[str], gap: float = 60.0
) -> NDArray[np.int64]:
    """Return the burst (N,) of each photo, numbered by camera and then by time.

    In a burst of one camera each photo follows the last one within ``gap`` seconds.

    >>> times = np.array(["2024-05-01T06:30:00", "2024-05-01T06:31:00", "2024-05-01T07:00:00"],
    ...                  dtype="datetime64[us]")
    >>> bursts(times, ["a", "a", "a"]).tolist(), bursts(times, ["a", "b", "a"]).tolist()
    ([0, 0, 1], [0, 2, 1])
    """
    if not gap >= 0:
        raise DataError(f"the gap between two bursts must be at least 0 seconds, got {gap:g}")
    codes = np.unique(np.asarray(list(cameras), dtype=str), return_inverse=True)[1]
    order = np.lexsort((times, codes))
    pause = np.diff(times[order]) > np.timedelta64(round(gap * 1e6), "us")
    starts = np.append(True, pause | (np.diff(codes[order]) != 0))[: len(order)]
    bursts = np.empty(len(order), np.int64)
    bursts[order] = np.cumsum(starts) - 1
    return bursts


def write_bursts(
    source: Path, out: Path, gap: float, time: str = "time", camera: str | None = None
) -> tuple[int, NDArray[np.int64]]:
    """Write the burst of each row of a table as its group; return rows and bursts' sizes."""
    delimiter = {".csv": ",", ".tsv": "\t"}.get(out.suffix.lower())
    if delimiter is None:
        raise SettingsError(f"bursts are written as .csv or .tsv, got {out.name}")
    rows = read_csv_rows(source, [time, *([camera] if camera else [])])
    if not rows:
        raise DataError(f"{source}: the table has no rows")
    if "group" in rows[0]:
        raise DataError(f"{source}: it has a column 'group' already; leave it out, or keep it")
    cameras = [row[camera] if camera else "" for row in rows]
    groups = bursts(read_times([row[time] for row in rows], str(source), time), cameras, gap)
    cells = (
        [*row.values(), f"{name or 'burst'}-{burst}"]
        for row, name, burst in zip(rows, cameras, groups.tolist(), strict=True)
    )
    write_csv(out, [*rows[0], "group"], cells, delimiter)
    return len(rows), np.bincount(groups)


CROPS = "crops.csv"
CROP_COLUMNS = ("path", "image", "detection", "category", "conf", "group")
MEGADETECTOR, SPECIESNET = "MegaDetector", "SpeciesNet"
Share = Annotated[float, Field(ge=-1e-6, le=1 + 1e-6)]
Edge = Annotated[float, Field(ge=-0.01, le=1.01)]  # a box may reach a little over it
Names = dict[Annotated[str, Field(pattern=r"^\d+$")], Annotated[str, Field(min_length=1)]]


@dataclass
class Detection:
    """One box, as shares of the photo, and MegaDetector's classes of it as (number, share)."""

    category: str | int
    conf: Share
    bbox: tuple[Edge, Edge, Edge, Edge]
    classifications: list[tuple[str | int, Share]] | None = None


@dataclass
class SpeciesScores:
    """What SpeciesNet's classifier says of a photo."""

    classes: list[str]
    scores: list[Share]


@dataclass
class CameraRecord:
    """A photo as one of the programs writes it."""

    file: str = ""  # MegaDetector's name of the photo
    filepath: str = ""  # SpeciesNet's
    detections: list[Detection] | None = None
    classifications: SpeciesScores | None = None
    failure: str | None = None
    frame_rate: float | None = None


@dataclass
class CameraFile:
    """A result file: ``images`` are MegaDetector's, ``predictions`` are SpeciesNet's."""

    images: list[CameraRecord] | None = None
    predictions: list[CameraRecord] | None = None
    detection_categories: Names | None = None
    classification_categories: Names | None = None


@dataclass(frozen=True)
class CameraPhoto:
    """What was found in one photo: boxes, and a score for each label that was reported."""

    file: str
    boxes: Sequence[Detection]
    scores: Mapping[str, float]
    is_video: bool = False


@dataclass(frozen=True)
class CameraResults:
    """The photos of a result file; ``failed`` have no result."""

    source: str
    program: str
    photos: tuple[CameraPhoto, ...]
    failed: tuple[str, ...]


def read_camera_results(path: Path) -> CameraResults:
    """Return the results of MegaDetector's or SpeciesNet's JSON."""
    content = read_as(path, CameraFile)
    program = SPECIESNET if content.images is None else MEGADETECTOR
    records = content.predictions if content.images is None else content.images
    if records is None:
        raise DataError(
            f"{path}: it must hold 'images' (MegaDetector) or 'predictions' (SpeciesNet); other "
            "JSON is read as a label table"
        )
    if program == MEGADETECTOR and not content.detection_categories:
        raise DataError(f"{path}: MegaDetector's results must name 'detection_categories'")
    photos: dict[str, CameraPhoto | None] = {}
    for number, record in enumerate(records, 1):
        name = with_slashes(record.file or record.filepath)
        where = f"{path.name}, photo {number} ({name})"
        if not name or name in photos:
            raise DataError(f"{where}: it {'is there twice; keep one' if name else 'has no name'}")
        failed = record.failure if program == MEGADETECTOR else record.classifications is None
        photos[name] = None if failed else _photo(name, record, content, where)
    lost = tuple(name for name, photo in photos.items() if photo is None)
    return CameraResults(str(path), program, tuple(filter(None, photos.values())), lost)


def is_camera_results(path: Path) -> bool:
    """Return whether a JSON file says that it is MegaDetector's or SpeciesNet's."""
    try:
        content = read_json(path)
    except DataError:
        return False
    of_megadetector = inner(content, "detection_categories") is not None
    return (of_megadetector and isinstance(inner(content, "images"), list)) or isinstance(
        inner(content, "predictions"), list
    )


def _photo(name: str, record: CameraRecord, content: CameraFile, where: str) -> CameraPhoto:
    """Return the boxes of a photo and the scores of its labels."""
    categories = content.detection_categories or {"1": "animal", "2": "human", "3": "vehicle"}
    classes, species = content.classification_categories or {}, record.classifications
    reported: list[tuple[str, float]] = []
    if species is not None:  # of classes "id;class;order;family;genus;species;common name"
        names = [text.rstrip(";").rpartition(";")[2] for text in species.classes]
        if len(names) != len(species.scores) or not all(names):
            rule = "must hold as many 'classes', such as 'id;class;...;name', as 'scores'"
            raise DataError(f"{where}: 'classifications' {rule}")
        reported = list(zip(names, species.scores, strict=True))
    elif record.detections is None:
        raise DataError(f"{where}: 'detections' must be a list; it may be empty")
    try:
        for box in record.detections or ():
            box.category = categories[str(box.category)]
            listed = [] if species is not None else box.classifications or []
            reported += [] if species is not None else [(box.category, box.conf)]
            reported += [(classes[str(code)], box.conf * share) for code, share in listed]
    except KeyError as error:
        raise DataError(f"{where}: the category or class {error} has no name") from None
    scores: dict[str, float] = {}
    for label, score in reported:
        scores[label] = max(scores.get(label, 0.0), min(score, 1.0))
    return CameraPhoto(name, record.detections or (), scores, record.frame_rate is not None)


def cut_crops(results: CameraResults, root: Path, out: Path, least: float = 0.2) -> int:
    """Write each detection of at least ``least`` confidence as a picture; return how many.

    crops.csv names the photo as the group. Photos are read below ``root`` alone; videos and empty
    boxes are left out.
    """
    out.mkdir(parents=True, exist_ok=True)
    inside = os.path.join(os.path.abspath(root), "")
    rows: list[tuple[str, ...]] = []
    for number, photo in enumerate(results.photos):
        sides = [np.clip(box.bbox, 0, 1) for box in photo.boxes]
        boxes = [
            (at, box, side)
            for at, (box, side) in enumerate(zip(photo.boxes, sides, strict=True))
            if box.conf >= least and side[:2].max() < 1 and side[2:].min() > 0
        ]
        if not boxes or photo.is_video:
            continue
        path = root / photo.file
        if not os.path.abspath(path).startswith(inside):
            raise DataError(
                f"{results.source}: {photo.file} is not below {root}; give the folder that "
                "holds all photos with --root"
            )
        upright = decode(read_image_file(path, str(path)), str(path))
        size = np.array(upright.size)
        for at, box, side in boxes:
            corner, extent = np.split(side * np.tile(size, 2), 2)
            start = np.minimum(corner.astype(int), size - 1)
            end = np.clip(np.round(corner + extent).astype(int), start + 1, size)
            name = f"{number:06}-{at}.png"
            with replacing(out / name) as temporary:
                upright.crop((*start.tolist(), *end.tolist())).save(temporary, "PNG")
            facts = str(at), str(box.category), f"{box.conf:g}"
            rows.append((name, photo.file, *facts, photo.file))
    if not rows:
        raise DataError(f"{results.source}: no detection reaches {least:g}; lower --least")
    write_csv(out / CROPS, CROP_COLUMNS, rows)
    return len(rows)


def with_classes(
    content: Any, crops: Sequence[Mapping[str, str]], answers: Mapping[str, Mapping[str, float]]
) -> tuple[Any, int]:
    """Return MegaDetector's JSON with the classes that a model gave to its crops, and how many.

    ``crops`` are the rows of crops.csv, ``answers`` the probabilities of each crop by its name.
    Classes that the file names already keep their numbers, for detections that are not answered.
    """
    named = dict(content.get("classification_categories") or {})
    number = {name: code for code, name in named.items()}
    free = max((int(code) for code in named if code.isdecimal()), default=-1) + 1
    fresh = sorted({name for probs in answers.values() for name in probs} - set(number))
    number |= {name: str(free + position) for position, name in enumerate(fresh)}
    photos = {with_slashes(record["file"]): record for record in content["images"]}
    answered = [row for row in crops if row["path"] in answers]
    for row in answered:
        probs, image, code = answers[row["path"]], from_cell(row["image"]), row["detection"].strip()
        listed = inner(photos.get(image), "detections") or []
        if not code.isdecimal() or int(code) >= len(listed):
            source = f"detection {code!r:.20} of {image}, which is not in this file"
            raise DataError(f"{row['path']} was cut from {source}; cut the crops again")
        falling = sorted(probs.items(), key=lambda pair: -pair[1])
        classes = [[number[name], round(share, 5)] for name, share in falling]
        listed[int(code)]["classifications"] = classes
    content["classification_categories"] = named | {number[name]: name for name in fresh}
    return content, len(answered)
