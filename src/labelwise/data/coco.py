"""COCO instances JSON: a label is present where an object of its class is.

Category ids have gaps, so columns follow the order of ``categories``. An image without any
annotation was reviewed and has none of them; ``drop_unlabelled`` leaves those out, as the papers
do (82,081 and 40,137 of 82,783 and 40,504 images of 2014). LVIS says of each image which labels
were looked for in vain (``neg_category_ids``): all others without an annotation are unknown.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data.rows import is_file, read_json
from labelwise.data.table import SPLIT_WORDS, LabelSets, LabelTable, join
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.sources import FileImages
from labelwise.system.text import counted
from labelwise.types import LabelSpace


def read_coco(
    path: Path,
    *,
    root: str | Path | None = None,
    drop_unlabelled: bool = False,
    string_order: bool = False,
) -> LabelTable:
    """Return the table of an instances file, or of a folder with several, each of them a split.

    ``root`` is the folder of the images; if it is not given it is looked for beside the file.
    ``string_order`` sorts the images by their id as text, the order of single-positive labels.
    """
    if path.is_dir():
        if root is not None:
            raise SettingsError("root is for a COCO file; the parts of a folder have their own")
        return _read_coco_parts(path, drop_unlabelled, string_order)
    where = path.name
    content = read_json(path)
    _name_by_address(content)
    images = _coco_records(content, "images", {"id": int, "file_name": str}, where)
    categories = _coco_records(content, "categories", {"id": int, "name": str}, where)
    wanted = {"image_id": int, "category_id": int}
    annotations = _coco_records(content, "annotations", wanted, where)
    space = LabelSpace(tuple(category["name"].strip() for category in categories))
    column = {category["id"]: place for place, category in enumerate(categories)}
    row = {image["id"]: place for place, image in enumerate(images)}
    for key, records in (("image", images), ("category", categories)):
        repeated = [one for one, count in Counter(r["id"] for r in records).items() if count > 1]
        if repeated:
            raise DataError(
                f"{where}: every {key} id must be there once, got {repeated[0]} repeatedly"
            )
    present: list[set[int]] = [set() for _ in images]
    for number, annotation in enumerate(annotations, 1):
        image, category = annotation["image_id"], annotation["category_id"]
        if image not in row or category not in column:
            raise DataError(
                f"{where}: annotation {annotation.get('id', number)!r:.40} must name an image and "
                f"a category of the file, got image {image} and category {category}"
            )
        present[row[image]].add(column[category])
    unknown, notes = _coco_unknown(images, column, present, where)
    table = LabelTable(
        space,
        FileImages(
            _coco_root(path, images) if root is None else root, [i["file_name"] for i in images]
        ),
        LabelSets.from_lists(present, len(space)),
        unknown,
        _coco_split(images),
        name=path.stem,
        notes=notes,
    )
    if string_order:
        table = table.subset(np.argsort([str(image["id"]) for image in images], kind="stable"))
    return table.subset(~table.zero_label()) if drop_unlabelled else table


def _name_by_address(content: Any) -> None:
    """Name images by their address where they have no file name: LVIS has .../train2017/1.jpg."""
    images = content.get("images") if isinstance(content, dict) else None
    for image in images if isinstance(images, list) else ():
        address = image.get("coco_url") if isinstance(image, dict) else None
        if isinstance(address, str) and "file_name" not in image:
            image["file_name"] = "/".join(address.split("/")[-2:])


def _coco_unknown(
    images: list[dict[str, Any]], column: dict[int, int], present: list[set[int]], where: str
) -> tuple[LabelSets, tuple[str, ...]]:
    """Return what is unknown by ``unknown_category_ids`` (our exports) or by LVIS, and notes."""
    federated = any("neg_category_ids" in image for image in images)
    key = "neg_category_ids" if federated else "unknown_category_ids"
    stated = []
    for number, image in enumerate(images):
        ids = image.get(key, [])
        if not isinstance(ids, list) or not all(type(i) is int and i in column for i in ids):
            raise DataError(f"{where}: {key!r} of image {image['id']} must be ids of categories")
        columns = {column[i] for i in ids}
        if columns & present[number]:
            raise DataError(
                f"{where}: a category of image {image['id']} cannot be both in an annotation and "
                f"in {key!r}"
            )
        stated.append(columns)
    if not federated:
        return LabelSets.from_lists(stated, len(column)), ()
    known = [there | absent for there, absent in zip(present, stated, strict=True)]
    sets = LabelSets.from_lists(known, len(column))
    note = "labels of an image that are neither annotated nor in its neg_category_ids are unknown"
    return replace(sets, inverted=np.ones(len(images), np.bool_)), (note,)


def _coco_split(images: list[dict[str, Any]]) -> NDArray[np.str_] | None:
    splits = [SPLIT_WORDS.get(str(image.get("split", "")).lower()) for image in images]
    return None if None in splits or not splits else np.array(splits, "U5")


def _read_coco_parts(path: Path, drop_unlabelled: bool, string_order: bool) -> LabelTable:
    files = _coco_files(path)
    if not files:
        raise DataError(
            f"{path}: there must be COCO files such as annotations/instances_train.json"
        )
    splits = [_split_in(_coco_part(file)) for file in files]
    listed = ", ".join(file.relative_to(path).as_posix() for file in files)
    if len(files) > 1 and (None in splits or len(set(splits)) < len(splits)):
        raise DataError(
            f"{path}: several COCO files must each be a split by their names, got {listed}; "
            "name them as 'train=coco:A.json;test=coco:B.json'"
        )
    tables = [
        read_coco(file, drop_unlabelled=drop_unlabelled, string_order=string_order)
        for file in files
    ]
    count = counted(len(files), "part")
    table = tables[0]
    if splits != [None]:
        table = join(list(zip(splits, tables, strict=True)), name=path.resolve().name)
    return replace(table, notes=(f"reads as COCO: {count} ({listed})", *table.notes))


def _coco_files(path: Path) -> list[Path]:
    """Return the instances files of a folder; captions and keypoints lie beside them."""
    found = sorted(path.glob("annotations/*.json")) + sorted(path.glob("_annotations.coco.json"))
    found += sorted(path.glob("*/_annotations.coco.json"))
    files = [file for file in found if file.is_file()]
    instances = [file for file in files if file.stem.startswith("instances")]
    return instances or files


def _coco_part(file: Path) -> str:
    """Return what a file is a part of: "train2017" of annotations/instances_train2017.json."""
    if file.name == "_annotations.coco.json":
        return file.parent.name
    return file.stem.removeprefix("instances").strip("_-")


def _split_in(part: str) -> str | None:
    return SPLIT_WORDS.get(re.sub(r"[\W\d_]+$", "", part).lower())


def _coco_root(file: Path, images: list[dict[str, Any]]) -> Path:
    """Return the folder that holds the first image, the file's own if none does."""
    above, part = file.parent.parent, _coco_part(file)
    for place in (
        file.parent,
        above / part,
        above / "images" / part,
        above / part / "images",
        above / "images",
        above,
    ):
        if images and is_file(place / images[0]["file_name"].replace("\\", "/")):
            return place
    return file.parent


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
