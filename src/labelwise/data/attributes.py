"""Attribute sets: WIDER-Attribute (people), VISPR (privacy), CUB-200-2011 (birds)."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.data.images import CropImages, FileImages
from labelwise.data.rows import from_rows, read_json, read_lines
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, SettingsError

__all__ = ["read_cub", "read_vispr", "read_wider"]


def read_wider(path: Path) -> LabelTable:
    """Return WIDER-Attribute: each person's box is a row; 0 = unspecified is unknown.

    ``Anno/wider_attribute_{trainval,test}.json`` (or beside ``Image``), photos in ``Image``.
    """
    files, boxes, ids, split = [], [], [], []
    labels: list[list[str]] = []
    unknown: list[list[str]] = []
    names: list[str] = []
    for part, target in (("trainval", "train"), ("test", "test")):
        file = _first(path, f"Anno/wider_attribute_{part}.json", f"wider_attribute_{part}.json")
        content = read_json(file)
        try:
            mapping = content["attribute_id_map"]
            names = [str(mapping[str(number)]) for number in range(len(mapping))]
            for image in content["images"]:
                for number, person in enumerate(image["targets"]):
                    marks = [int(mark) for mark in person["attribute"]]
                    left, top, width, height = (float(edge) for edge in person["bbox"])
                    if len(marks) != len(names) or not set(marks) <= {-1, 0, 1}:
                        raise ValueError(f"{len(names)} marks of 1, 0 or -1 expected, got {marks}")
                    files.append(str(image["file_name"]))
                    ids.append(f"{image['file_name']}#{number}")
                    boxes.append((left, top, left + width, top + height))
                    labels.append([n for n, mark in zip(names, marks, strict=True) if mark == 1])
                    unknown.append([n for n, mark in zip(names, marks, strict=True) if mark == 0])
                    split.append(target)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file}: not a WIDER-Attribute file ({error!r})") from None
    source = CropImages(
        FileImages(path / "Image", files), np.array(boxes, np.float64).reshape(-1, 4), ids
    )
    return from_rows(source, labels, names=names, unknown=unknown, split=split, name="wider")


def read_vispr(path: Path) -> LabelTable:
    """Return VISPR: a JSON file for each photo, in folders train2017, val2017 and test2017.

    The papers train on train and val together, so both are train here.
    """
    parts = {"train2017": "train", "val2017": "train", "test2017": "test"}
    files, labels, split = [], [], []
    for note in sorted(path.rglob("*.json")):
        part = note.parent.name
        if part not in parts:
            continue
        content = read_json(note)
        words = content.get("labels") if isinstance(content, dict) else None
        image = content.get("image_path") if isinstance(content, dict) else None
        if not isinstance(image, str) or not isinstance(words, list) or not _all_text(words):
            raise DataError(f"{note}: must have 'image_path' and a list 'labels'")
        inside = image if (path / image).is_file() else f"{part}/{Path(image).name}"
        files.append(inside)
        labels.append(words)
        split.append(parts[part])
    if not files:
        raise DataError(f"{path}: there must be JSON files in train2017, val2017 and test2017")
    return from_rows((path, files), labels, split=split, name="vispr")


def read_cub(path: Path, *, not_visible: Literal["absent", "unknown"] = "absent") -> LabelTable:
    """Return the 312 attributes of CUB-200-2011; ``not_visible`` is what certainty 1 means.

    Single-positive training takes ``is_present`` as it stands, so "absent" is the default.
    """
    if not_visible not in ("absent", "unknown"):
        raise SettingsError(f"not_visible must be 'absent' or 'unknown', got {not_visible!r}")
    paths = _numbered(path / "images.txt")
    in_train = _numbered(path / "train_test_split.txt")
    listed = _first(path, "attributes/attributes.txt", "attributes.txt", "../attributes.txt")
    names = _numbered(listed)
    labels: dict[str, list[str]] = {image: [] for image in paths}
    unknown: dict[str, list[str]] = {image: [] for image in paths}
    notes = path / "attributes" / "image_attribute_labels.txt"
    with notes.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, 1):
            fields = line.split()  # a few official lines have an extra field at the end
            if len(fields) < 4 or fields[0] not in paths or fields[1] not in names:
                raise DataError(f"{notes}, line {number}: must be image, attribute, 0/1, certainty")
            if fields[2] == "1":
                labels[fields[0]].append(names[fields[1]])
            elif fields[3] == "1" and not_visible == "unknown":
                unknown[fields[0]].append(names[fields[1]])
    return from_rows(
        (path, [f"images/{file}" for file in paths.values()]),
        list(labels.values()),
        names=list(names.values()),
        unknown=list(unknown.values()) if not_visible == "unknown" else None,
        split=["train" if in_train.get(image) == "1" else "test" for image in paths],
        name="cub",
    )


def _numbered(path: Path) -> dict[str, str]:
    """Return {number: text} of a file of "number text" lines."""
    pairs = [line.split(maxsplit=1) for line in read_lines(path)]
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2:
            raise DataError(f"{path}, line {number}: must be a number and a value")
    return {key: value.strip() for key, value in pairs}


def _first(path: Path, *places: str) -> Path:
    for place in places:
        if (path / place).is_file():
            return path / place
    raise DataError(f"{path}: there must be a file {places[0]}")


def _all_text(words: list[Any]) -> bool:
    return all(isinstance(word, str) for word in words)
