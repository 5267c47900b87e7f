"""Label tables as annotation tools write them: Label Studio, CVAT, COCO; read and written.

All three states survive the way there and back. A label that is not known is

    Label Studio   in the choices named ``unknown``, beside those named ``labels``
    CVAT           a tag with the attribute state = unknown
    COCO           in ``unknown_category_ids`` of its image (ours; other tools leave it alone)

A task without annotation, or one that was cancelled, is unlabelled; one whose annotation is empty
was reviewed and has none of them. Label Studio's tasks carry the names of all labels in ``meta``.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse
from xml.etree import ElementTree

from labelwise.data.images import FileImages
from labelwise.data.rows import from_rows, read_json, read_xml
from labelwise.data.sets import LabelSets
from labelwise.data.table import SPLIT_WORDS, LabelTable
from labelwise.errors import DataError
from labelwise.files import replacing

__all__ = ["TOOLS", "export_for_tool", "read_cvat", "read_label_studio"]

Row = tuple[str, list[str], list[str], str | None]  # image, present, unknown, split
EVERYTHING = "*"


def read_label_studio(path: Path, *, root: str | Path | None = None) -> LabelTable:
    """Return the tasks of a Label Studio JSON file with an image and choices."""
    tasks = read_json(path)
    if not isinstance(tasks, list) or not tasks:
        raise DataError(f"{path}: a Label Studio file must be a list of tasks")
    rows: list[Row] = []
    names: list[str] | None = None
    for number, task in enumerate(tasks, 1):
        where = f"{path.name}, task {number}"
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise DataError(f"{where}: must be an object with 'data'")
        where = f"{path.name}, task {task.get('id', number)!r:.40}"
        facts = task["data"]
        image = facts.get("image", facts.get("img"))
        if not isinstance(image, str) or not image:
            raise DataError(f"{where}: 'data' must name an 'image'")
        meta = task.get("meta")
        if names is None and isinstance(meta, dict) and isinstance(meta.get("labels"), list):
            names = _words(meta["labels"], where)
        present, unknown = _choices(task, where)
        split = facts.get("split")
        rows.append((_local(image), present, unknown, split if isinstance(split, str) else None))
    return _table(rows, names, path, root)


def _choices(task: dict[str, Any], where: str) -> tuple[list[str], list[str]]:
    """Return the present and the unknown labels of the task's newest annotation."""
    listed = task.get("annotations", task.get("completions", []))
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise DataError(f"{where}: 'annotations' must be a list of objects")
    done = [one for one in listed if not one.get("was_cancelled")]
    if not done:
        return [], [EVERYTHING]
    results = done[-1].get("result", [])
    if not isinstance(results, list):
        raise DataError(f"{where}: 'result' must be a list")
    present: list[str] = []
    unknown: list[str] = []
    for result in results:
        if not isinstance(result, dict) or result.get("type") != "choices":
            continue
        value = result.get("value")
        chosen = value.get("choices") if isinstance(value, dict) else None
        target = unknown if result.get("from_name") == "unknown" else present
        target.extend(_words(chosen, where))
    return present, unknown


def _words(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise DataError(f"{where}: choices must be a list of names, got {value!r:.60}")
    return value


def _local(image: str) -> str:
    """Return the path in an address such as /data/local-files/?d=photos/a.jpg."""
    parts = urlparse(image)
    given = parse_qs(parts.query).get("d")
    if parts.path.endswith("local-files/") and given:
        return given[0]
    return unquote(parts.path) if parts.scheme == "file" else image


def read_cvat(path: Path, *, root: str | Path | None = None) -> LabelTable:
    """Return the tags of a "CVAT for images" XML file."""
    tree = read_xml(path)
    if tree.tag != "annotations":
        raise DataError(f"{path}: a CVAT file must begin with <annotations>, got <{tree.tag:.40}>")
    names = [(label.findtext("name") or "").strip() for label in tree.findall(".//labels/label")]
    rows: list[Row] = []
    for number, image in enumerate(tree.findall("image"), 1):
        where = f"{path.name}, image {image.get('id', number)}"
        name = image.get("name")
        if not name:
            raise DataError(f"{where}: must have a name")
        present: list[str] = []
        unknown: list[str] = []
        for tag in image.findall("tag"):
            label = (tag.get("label") or "").strip()
            if not label:
                raise DataError(f"{where}: every tag must have a label")
            state = [a.text for a in tag.findall("attribute") if a.get("name") == "state"]
            (unknown if state == ["unknown"] else present).append(label)
        rows.append((name, present, unknown, image.get("subset")))
    if not rows:
        raise DataError(f"{path}: there are no images")
    return _table(rows, names or None, path, root)


def _table(
    rows: Sequence[Row], names: list[str] | None, path: Path, root: str | Path | None
) -> LabelTable:
    """Return the table of rows; ``*`` for unknown is every label that is not present."""
    if names is None:
        names = sorted({word for _, p, u, _ in rows for word in (*p, *u) if word != EVERYTHING})
    images = [image for image, *_ in rows]
    unknown = [
        [n for n in names if n not in p] if u == [EVERYTHING] else [w for w in u if w not in p]
        for _, p, u, _ in rows
    ]
    splits = [SPLIT_WORDS.get((split or "").strip().lower()) for *_, split in rows]
    return from_rows(
        (Path(root) if root is not None else path.parent, images),
        [present for _, present, _, _ in rows],
        names=names,
        unknown=unknown,
        split=None if None in splits else [split or "" for split in splits],
        name=path.stem,
    )


def export_for_tool(table: LabelTable, path: str | Path, tool: str) -> None:
    """Write the table of image files as ``tool`` reads it; see TOOLS."""
    target = Path(path)
    if tool not in TOOLS:
        raise DataError(f"a tool must be one of {', '.join(TOOLS)}, got {tool!r}")
    suffix, write = TOOLS[tool]
    if target.suffix.lower() != suffix:
        raise DataError(f"{target}: a file for {tool} must end in {suffix}")
    if not isinstance(table.images, FileImages) or table.images.real_names:
        raise DataError(f"{table.name}: its images must be single files with UTF-8 names")
    table.require_hard(f"{tool} knows yes, no and unknown")
    inside = os.path.relpath(table.images.root, target.parent)
    paths = [os.path.normpath(os.path.join(inside, name)) for name in table.ids]
    with replacing(target) as temporary:
        temporary.write_bytes(write(table, paths))


def _named(table: LabelTable, sets: LabelSets, row: int) -> list[str]:
    return [table.space.names[column] for column in sets.row(row)]


def _label_studio(table: LabelTable, paths: list[str]) -> bytes:
    unlabelled = table.unlabelled()
    tasks = []
    for row, path in enumerate(paths):
        facts = {"image": path} | ({} if table.split is None else {"split": str(table.split[row])})
        results = [
            {"from_name": name, "to_name": "image", "type": "choices", "value": {"choices": words}}
            for name, words in (
                ("labels", _named(table, table.present, row)),
                ("unknown", _named(table, table.unknown, row)),
            )
            if words
        ]
        annotations = [] if unlabelled[row] else [{"result": results, "was_cancelled": False}]
        task = {"id": row + 1, "data": facts, "annotations": annotations}
        tasks.append(task | {"meta": {"labels": list(table.space.names)}})
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode()


def _cvat(table: LabelTable, paths: list[str]) -> bytes:
    tree = ElementTree.Element("annotations")
    ElementTree.SubElement(tree, "version").text = "1.1"
    task = ElementTree.SubElement(ElementTree.SubElement(tree, "meta"), "task")
    labels = ElementTree.SubElement(task, "labels")
    for name in table.space.names:
        if name != name.strip() or not name.isprintable():
            raise DataError(f"the label {name!r} cannot stand in XML as it is")
        ElementTree.SubElement(ElementTree.SubElement(labels, "label"), "name").text = name
    for row, path in enumerate(paths):
        width, height = table.images.read(row).size
        facts = {"id": str(row), "name": path, "width": str(width), "height": str(height)}
        if table.split is not None:
            facts["subset"] = str(table.split[row])
        image = ElementTree.SubElement(tree, "image", facts)
        for name in _named(table, table.present, row):
            ElementTree.SubElement(image, "tag", label=name, source="manual")
        for name in _named(table, table.unknown, row):
            tag = ElementTree.SubElement(image, "tag", label=name, source="manual")
            ElementTree.SubElement(tag, "attribute", name="state").text = "unknown"
    ElementTree.indent(tree)
    content: bytes = ElementTree.tostring(tree, "utf-8", xml_declaration=True)
    return content


def _coco(table: LabelTable, paths: list[str]) -> bytes:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, int]] = []
    for row, path in enumerate(paths):
        unknown = [int(column) + 1 for column in table.unknown.row(row)]
        image = {"id": row + 1, "file_name": path, "unknown_category_ids": unknown}
        images.append(image | ({} if table.split is None else {"split": str(table.split[row])}))
        annotations += [
            {"id": len(annotations) + n, "image_id": row + 1, "category_id": int(column) + 1}
            for n, column in enumerate(table.present.row(row), 1)
        ]
    categories = [{"id": n, "name": name} for n, name in enumerate(table.space.names, 1)]
    content = {"images": images, "categories": categories, "annotations": annotations}
    return json.dumps(content, ensure_ascii=False).encode()


TOOLS: dict[str, tuple[str, Callable[[LabelTable, list[str]], bytes]]] = {
    "label-studio": (".json", _label_studio),
    "cvat": (".xml", _cvat),
    "coco": (".json", _coco),
}
