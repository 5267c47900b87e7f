"""COCO instances JSON and Pascal VOC folders: a label is present where an object of its class is.

COCO: category ids have gaps, so columns follow the order of ``categories``. An image without any
annotation was reviewed and has none of them; ``drop_unlabelled`` leaves those out, as the papers
do (82,081 and 40,137 of 82,783 and 40,504 images of 2014).

VOC: the XML of each image, or the ``ImageSets/Main/<class>_<part>.txt`` files. In ``Main`` a class
is 1 (present), -1 (absent) or 0 (only "difficult" objects); in the XML each object may be
difficult. ``difficult`` says what such a label is: "unknown" or "absent" (the choice of
single-positive training). A label with one plain object is present whatever the others are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from labelwise.data.images import FileImages
from labelwise.data.rows import from_rows, read_json, read_lines
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable, join
from labelwise.errors import DataError, SettingsError
from labelwise.types import LabelSpace

__all__ = ["read_coco", "read_coco2014", "read_voc"]

VOC_PARTS = {"train": "train", "val": "val", "test": "test", "trainval": "train"}
Difficult = Literal["unknown", "absent"]
States = dict[str, dict[str, bool]]  # image: {class: whether there is a plain object}


def read_coco(
    path: Path,
    *,
    root: str | Path | None = None,
    drop_unlabelled: bool = False,
    string_order: bool = False,
) -> LabelTable:
    """Return the table of an instances file; ``root`` is the folder of its images.

    ``string_order`` sorts the images by their id as text, the order of single-positive labels.
    """
    where = path.name
    content = read_json(path)
    images = _coco_records(content, "images", {"id": int, "file_name": str}, where)
    categories = _coco_records(content, "categories", {"id": int, "name": str}, where)
    wanted = {"image_id": int, "category_id": int}
    annotations = _coco_records(content, "annotations", wanted, where)
    space = LabelSpace(tuple(category["name"] for category in categories))
    column = {category["id"]: place for place, category in enumerate(categories)}
    row = {image["id"]: place for place, image in enumerate(images)}
    for key, count, known in (("image", len(images), row), ("category", len(categories), column)):
        if len(known) != count:
            raise DataError(f"{where}: every {key} id must be there once, got a repeated one")
    present: list[set[int]] = [set() for _ in images]
    for number, annotation in enumerate(annotations, 1):
        image, category = annotation["image_id"], annotation["category_id"]
        if image not in row or category not in column:
            raise DataError(
                f"{where}: annotation {number} must name an image and a category of the file, "
                f"got image {image} and category {category}"
            )
        present[row[image]].add(column[category])
    table = LabelTable(
        space,
        FileImages(root if root is not None else path.parent, [i["file_name"] for i in images]),
        LabelSets.from_lists(present, len(space)),
        LabelSets.none(len(images), len(space)),
        name=path.stem,
    )
    if string_order:
        table = table.subset(np.argsort([str(image["id"]) for image in images], kind="stable"))
    return table.subset(~table.zero_label()) if drop_unlabelled else table


def read_coco2014(
    path: Path, *, drop_unlabelled: bool = True, string_order: bool = False
) -> LabelTable:
    """Return MS-COCO 2014: ``annotations/instances_{train,val}2014.json``; val is the test."""
    parts = []
    for part, split in (("train2014", "train"), ("val2014", "test")):
        file = path / "annotations" / f"instances_{part}.json"
        if not file.is_file():
            raise DataError(f"{path}: MS-COCO 2014 needs {file.relative_to(path)}")
        table = read_coco(
            file, root=path / part, drop_unlabelled=drop_unlabelled, string_order=string_order
        )
        parts.append((split, table))
    return join(parts, name="coco2014")


def _coco_records(
    content: Any, key: str, fields: Mapping[str, type], where: str
) -> list[dict[str, Any]]:
    records = content.get(key) if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise DataError(f"{where}: a COCO file must have a list {key!r}")
    for number, record in enumerate(records, 1):
        for field, kind in fields.items():
            value = record.get(field) if isinstance(record, dict) else None
            if not isinstance(value, kind) or isinstance(value, bool):
                raise DataError(
                    f"{where}: entry {number} of {key!r} must have {field!r} "
                    f"as {kind.__name__}, got {value!r:.60}"
                )
    return records


def read_voc(
    path: Path,
    *,
    parts: dict[str, str] | None = None,
    difficult: Difficult = "unknown",
    annotations: Literal["main", "xml"] = "main",
) -> LabelTable:
    """Return a VOC folder (``JPEGImages``, ``Annotations``, ``ImageSets/Main``).

    ``parts`` maps image sets to splits, for example {"train": "train", "val": "test"}; if it is not
    given, train, val and test are taken as far as they are there.
    """
    if difficult not in ("unknown", "absent"):
        raise SettingsError(f"difficult must be 'unknown' or 'absent', got {difficult!r}")
    if annotations not in ("main", "xml"):
        raise SettingsError(f"annotations must be 'main' or 'xml', got {annotations!r}")
    sets = path / "ImageSets" / "Main"
    chosen = parts or {part: part for part in VOC_PARTS if (sets / f"{part}.txt").is_file()}
    if len(chosen) > 1 and parts is None:
        chosen.pop("trainval", None)
    if not chosen:
        raise DataError(f"{path}: a VOC folder must have ImageSets/Main/train.txt or the like")
    names: list[str] = []
    labels, unknown, split, order = [], [], [], []
    for part, target in chosen.items():
        images = [line.split()[0] for line in read_lines(sets / f"{part}.txt")]
        states = _from_xml(path, images) if annotations == "xml" else _from_main(sets, part)
        for image in images:
            state = states.get(image, {})
            labels.append([name for name, plain in state.items() if plain])
            hidden = [name for name, plain in state.items() if not plain]
            unknown.append(hidden if difficult == "unknown" else [])
        order.extend(images)
        split.extend([VOC_PARTS.get(target, target)] * len(images))
        names.extend(name for state in states.values() for name in state)
    return from_rows(
        (path, [f"JPEGImages/{image}.jpg" for image in order]),
        labels,
        names=sorted(set(names) | set(_voc_classes(sets))),
        unknown=unknown,
        split=split,
        name=path.name,
    )


def _voc_classes(sets: Path) -> list[str]:
    ends = tuple(f"_{part}" for part in VOC_PARTS)
    stems = (file.stem for file in sorted(sets.glob("*_*.txt")))
    return sorted({stem.rsplit("_", 1)[0] for stem in stems if stem.endswith(ends)})


def _from_main(sets: Path, part: str) -> States:
    states: States = {}
    classes = _voc_classes(sets)
    if not classes:
        raise DataError(f"{sets}: there must be files such as dog_{part}.txt")
    for name in classes:
        file = sets / f"{name}_{part}.txt"
        for number, line in enumerate(read_lines(file), 1):
            fields = line.split()
            if len(fields) != 2 or fields[1] not in ("1", "-1", "0"):
                raise DataError(
                    f"{file}, line {number}: must be an image and 1, -1 or 0, got {line!r}"
                )
            if fields[1] != "-1":
                states.setdefault(fields[0], {})[name] = fields[1] == "1"
    return states


def _from_xml(path: Path, images: list[str]) -> States:
    states: States = {}
    for image in images:
        file = path / "Annotations" / f"{image}.xml"
        try:
            objects = ElementTree.fromstring(file.read_bytes()).findall("object")
        except FileNotFoundError:
            raise DataError(f"{file}: the annotation is missing") from None
        except (ElementTree.ParseError, ValueError, LookupError) as error:
            raise DataError(f"{file}: not XML ({error})") from None
        state = states.setdefault(image, {})
        for thing in objects:
            name = (thing.findtext("name") or "").strip()
            if not name:
                raise DataError(f"{file}: every object must have a name")
            plain = (thing.findtext("difficult") or "0").strip() != "1"
            state[name] = state.get(name, False) or plain
    return states
