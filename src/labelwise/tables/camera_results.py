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

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import replacing
from labelwise.base.table_files import write_csv
from labelwise.base.text import as_cell, from_cell, with_slashes
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import decode
from labelwise.pictures.sources import read_image_file
from labelwise.tables.rows import inner, read_json
from labelwise.types import nearest

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
    """Write the burst of each row of a .csv or .tsv as its group; return rows and bursts' sizes."""
    delimiters = {".csv": ",", ".tsv": "\t"}
    if source.suffix.lower() not in delimiters or out.suffix.lower() not in delimiters:
        raise SettingsError(f"bursts are found in .csv and .tsv, got {source.name} and {out.name}")
    with source.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, delimiter=delimiters[source.suffix.lower()])
        rows, header = list(table), list(table.fieldnames or ())
    for name in (time, *([camera] if camera else [])):
        if name not in header:
            raise DataError(f"{source}: there is no column {name!r}{nearest(name, header)}")
    if "group" in header:
        raise DataError(f"{source}: it has a column 'group' already; leave it out, or keep it")
    if not rows:
        raise DataError(f"{source}: the table has no rows")
    cameras = [row[camera] if camera else "" for row in rows]
    groups = bursts(read_times([row[time] or "" for row in rows], str(source), time), cameras, gap)
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*header, "group"], delimiter=delimiters[out.suffix.lower()])
        writer.writeheader()
        for row, burst, name in zip(rows, groups.tolist(), cameras, strict=True):
            group = as_cell(f"{name}-{burst}") if name else f"burst-{burst}"
            writer.writerow(row | {"group": group})
    return len(rows), np.bincount(groups)


EDGE = 0.01
CROPS = "crops.csv"
CROP_COLUMNS = ("path", "image", "detection", "category", "conf", "group")


@dataclass(frozen=True)
class Box:
    """One detection, by its number in the photo."""

    number: int
    category: str
    conf: float
    place: tuple[float, float, float, float]


@dataclass(frozen=True)
class CameraPhoto:
    """What was found in one photo: boxes, and a score for each label that was reported."""

    file: str
    boxes: tuple[Box, ...]
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
    content = read_json(path)
    categories = classes = {"1": "animal", "2": "human", "3": "vehicle"}
    listed, program, key = inner(content, "predictions"), "SpeciesNet", "filepath"
    if isinstance(inner(content, "images"), list):
        listed, program, key = content["images"], "MegaDetector", "file"
        categories = _names(content, "detection_categories", path)
        if not categories:
            raise DataError(f"{path}: MegaDetector's results must name 'detection_categories'")
        classes = _names(content, "classification_categories", path)
    elif not isinstance(listed, list):
        raise DataError(
            f"{path}: it must hold 'images' (MegaDetector) or 'predictions' (SpeciesNet); other "
            "JSON is read as a label table"
        )
    photos: dict[str, CameraPhoto | None] = {}
    for number, record in enumerate(listed, 1):
        where = f"{path.name}, photo {number}"
        name = inner(record, key)
        if not isinstance(name, str) or not name:
            raise DataError(f"{where}: it must name its {key!r}")
        name = with_slashes(name)
        if name in photos:
            raise DataError(f"{where}: {name} is there twice; keep one")
        where, photos[name] = f"{where} ({name})", None
        if key == "file" and record.get("failure") is None:
            photos[name] = _photo(name, record, where, categories, classes)
        elif key == "filepath" and record.get("classifications") is not None:
            photos[name] = _photo(name, record, where, categories, None)
    failed = tuple(name for name, photo in photos.items() if photo is None)
    return CameraResults(str(path), program, tuple(filter(None, photos.values())), failed)


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


def _names(content: Mapping[str, Any], key: str, path: Path) -> dict[str, str]:
    names = content.get(key) or {}
    if not isinstance(names, dict) or not all(
        number.isdecimal() and isinstance(name, str) and name for number, name in names.items()
    ):
        raise DataError(f"{path}: {key!r} must give each number a name")
    return dict(names)


def _photo(
    file: str,
    record: Mapping[str, Any],
    where: str,
    categories: Mapping[str, str],
    classes: Mapping[str, str] | None,
) -> CameraPhoto:
    """Return the boxes of a photo and the scores of its labels; SpeciesNet's without classes."""
    if classes is not None and not isinstance(record.get("detections"), list):
        raise DataError(f"{where}: 'detections' must be a list; it may be empty")
    listed = _listed(record, "detections", where)
    boxes = tuple(_box(entry, number, where, categories) for number, entry in enumerate(listed))
    reported: list[tuple[str, float]] = []
    named = classes or {}
    if classes is None:
        names, values = (inner(record, "classifications", key) for key in ("classes", "scores"))
        if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
            raise DataError(f"{where}: 'classifications' must hold as many 'classes' as 'scores'")
        for name, value in zip(names, values, strict=True):
            levels = [level for level in name.split(";") if level] if isinstance(name, str) else []
            if not levels:  # of "id;class;order;family;genus;species;common name"
                rule = "a class must be text such as 'id;class;...;name'"
                raise DataError(f"{where}: {rule}, got {name!r}")
            reported.append((levels[-1], _share(value, where, f"the score of {name!r}")))
    for box, detection in zip(boxes, listed, strict=True) if classes is not None else ():
        reported.append((box.category, box.conf))
        for pair in _listed(detection, "classifications", where):
            if not isinstance(pair, list) or len(pair) != 2 or str(pair[0]) not in named:
                raise DataError(f"{where}: a classification must be [number, share], got {pair!r}")
            name = named[str(pair[0])]
            reported.append((name, box.conf * _share(pair[1], where, f"the share of {name!r}")))
    scores: dict[str, float] = {}
    for name, score in reported:
        scores[name] = max(scores.get(name, 0.0), score)
    return CameraPhoto(file, boxes, scores, "frame_rate" in record)


def _listed(record: Mapping[str, Any], key: str, where: str) -> list[Any]:
    items = record.get(key)
    if items is not None and not isinstance(items, list):
        raise DataError(f"{where}: {key!r} must be a list, got {items!r:.60}")
    return items or []


def _box(found: Any, number: int, where: str, categories: Mapping[str, str]) -> Box:
    box = inner(found, "bbox")
    if not isinstance(box, list) or len(box) != 4:
        raise DataError(f"{where}: detection {number + 1} must have a 'bbox' of four shares")
    x, y, width, height = (_share(value, where, "a side of a box", EDGE) for value in box)
    category = str(found.get("category"))
    if category not in categories:
        what = f"the category {category!r}, which has no name"
        raise DataError(f"{where}: detection {number + 1} has {what}")
    conf = _share(found.get("conf"), where, "'conf'")
    return Box(number, categories[category], conf, (x, y, width, height))


def _share(value: Any, where: str, what: str, beyond: float = 1e-6) -> float:
    """Return a number cut to [0, 1], which it may leave by ``beyond``."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not -beyond <= value <= 1 + beyond:
        raise DataError(f"{where}: {what} must lie in [0, 1], got {value!r}")
    return min(max(float(value), 0.0), 1.0)


def cut_crops(results: CameraResults, root: Path, out: Path, least: float = 0.2) -> int:
    """Write each detection of at least ``least`` confidence as a picture; return how many.

    crops.csv names the photo as the group. Photos are read below ``root`` alone; videos and empty
    boxes are left out.
    """
    out.mkdir(parents=True, exist_ok=True)
    inside = os.path.join(os.path.abspath(root), "")
    rows: list[tuple[str, ...]] = []
    for number, photo in enumerate(results.photos):
        surest = [box for box in photo.boxes if box.conf >= least]
        boxes = [box for box in surest if 1 not in box.place[:2] and 0 not in box.place[2:]]
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
        for box in boxes:
            corner, extent = np.split(np.array(box.place) * np.tile(size, 2), 2)
            start = np.minimum(corner.astype(int), size - 1)
            end = np.clip(np.round(corner + extent).astype(int), start + 1, size)
            name = f"{number:06}-{box.number}.png"
            with replacing(out / name) as temporary:
                upright.crop((*start.tolist(), *end.tolist())).save(temporary, "PNG")
            facts = str(box.number), box.category, f"{box.conf:g}"
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
