"""COCO instances JSON: a label is present where an annotation of its category is.

Category ids have gaps, so columns follow the order of ``categories``. An image without any
annotation was reviewed and has none of them; ``drop_unlabelled`` leaves those out, as the papers
do (82,081 and 40,137 of 82,783 and 40,504 images of 2014).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.images import FileImages
from labelwise.data.join import join
from labelwise.data.rows import read_json
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.types import LabelSpace

__all__ = ["read_coco", "read_coco2014"]

Records = list[dict[str, Any]]


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
    images = _records(content, "images", {"id": int, "file_name": str}, where)
    categories = _records(content, "categories", {"id": int, "name": str}, where)
    wanted = {"image_id": int, "category_id": int}
    annotations = _records(content, "annotations", wanted, where)
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


def _records(
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
