"""Label tables as annotation tools write them: Label Studio, CVAT, FiftyOne.

A label that is not known is

    Label Studio   in the choices named ``unknown``, beside those named ``labels``
    CVAT           a tag with the attribute state = unknown, or = predicted by a model
    FiftyOne       in the field ``unknown``, beside ``ground_truth``

Where an object is marked in Label Studio or CVAT (a box, a polygon), its label is present, as in
COCO and VOC.
In CVAT a tag with state = absent says that the label is not there, and state = present says no
more than the tag itself. A task without annotation, or one that was cancelled, and a sample without
``ground_truth`` are unlabelled; one whose annotation is empty was reviewed and has none of them.
What a model predicted (``predictions``) is never read as a label. COCO, VOC and Hugging Face's
metadata have readers of their own; :mod:`labelwise.data.annotation_exports` writes them all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.data.label_studio import ImageFolder
from labelwise.data.rows import AllBut, from_rows, read_json, read_xml
from labelwise.data.table import SPLIT_WORDS, LabelTable
from labelwise.errors import DataError
from labelwise.types import nearest

FOLDERS_UP = re.compile(r"\.\.(/\.\.)*")
CVAT_STATES = ("present", "absent", "unknown", "predicted")
CVAT_SHAPES = {"box", "cuboid", "ellipse", "mask", "points", "polygon", "polyline", "skeleton"}


@dataclass(frozen=True)
class AnnotatedPhoto:
    """One photo as a tool tells it; ``unknown`` is None if nothing is known of it.

    ``where`` is its place in the file, in words.
    """

    where: str
    image: str
    present: list[str]
    unknown: list[str] | None
    split: str | None


def read_label_studio(path: Path, *, root: str | Path | None = None) -> LabelTable:
    """Return the tasks of a Label Studio JSON file with an image and choices."""
    tasks = read_json(path)
    if not isinstance(tasks, list) or not tasks:
        raise DataError(f"{path}: a Label Studio file must be a list of tasks")
    rows: list[AnnotatedPhoto] = []
    names: list[str] | None = None
    images = ImageFolder(_document_root(tasks[0], path) if root is None else Path(root))
    for number, task in enumerate(tasks, 1):
        where = f"{path.name}, task {number}"
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise DataError(
                f"{where}: must be an object with 'data'; export from Label Studio as JSON, not "
                "as JSON-MIN"
            )
        where = f"{path.name}, task {task.get('id', number)!r:.40}"
        facts = task["data"]
        image = facts.get("image", facts.get("img"))
        if not isinstance(image, str) or not image:
            raise DataError(f"{where}: 'data' must name an 'image'")
        meta = task.get("meta")
        if names is None and isinstance(meta, dict) and isinstance(meta.get("labels"), list):
            names = _words(meta["labels"], where)
        split = facts.get("split")
        part = split if isinstance(split, str) else None
        rows.append(AnnotatedPhoto(where, images.path_of(image), *_choices(task, where), part))
    return _table(rows, names, path, images.root)


def _document_root(task: Any, path: Path) -> Path:
    """Return the folder that addresses begin in: where the file is, or some folders up."""
    meta = task.get("meta") if isinstance(task, dict) else None
    up = meta.get("root") if isinstance(meta, dict) else None
    return path.parent / up if isinstance(up, str) and FOLDERS_UP.fullmatch(up) else path.parent


def _choices(task: dict[str, Any], where: str) -> tuple[list[str], list[str] | None]:
    """Return the present and the unknown labels of the task's newest annotation.

    Objects have the type rectanglelabels, polygonlabels, brushlabels and the like.
    """
    listed = task.get("annotations", task.get("completions", []))
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise DataError(f"{where}: 'annotations' must be a list of objects")
    done = [one for one in listed if not one.get("was_cancelled")]
    if not done:
        return [], None
    results = done[-1].get("result", [])
    if not isinstance(results, list):
        raise DataError(f"{where}: 'result' must be a list")
    present: list[str] = []
    unknown: list[str] = []
    for result in results:
        named = isinstance(result, dict) and result.get("from_name") == "unknown"
        (unknown if named else present).extend(chosen_labels(result, where))
    return present, unknown


def chosen_labels(result: Any, where: str) -> list[str]:
    """Return the labels of a result of Label Studio: choices, or those of a marked object."""
    kind = result.get("type") if isinstance(result, dict) else None
    if not isinstance(kind, str) or not (kind == "choices" or kind.endswith("labels")):
        return []
    value = result.get("value")
    return _words(value.get(kind) if isinstance(value, dict) else None, where)


def _words(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise DataError(f"{where}: choices must be a list of names, got {value!r:.60}")
    return value


def read_cvat(path: Path, *, root: str | Path | None = None) -> LabelTable:
    """Return the tags and the labels of the shapes of a "CVAT for images" XML file."""
    tree = read_xml(path)
    if tree.tag != "annotations":
        raise DataError(f"{path}: a CVAT file must begin with <annotations>, got <{tree.tag:.40}>")
    names = [(label.findtext("name") or "").strip() for label in tree.findall(".//labels/label")]
    rows: list[AnnotatedPhoto] = []
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
            states = [a.text for a in tag.findall("attribute") if a.get("name") == "state"]
            if states not in ([], *([one] for one in CVAT_STATES)):
                raise DataError(
                    f"{where}: the state of the tag {label!r} must be {', '.join(CVAT_STATES)} or "
                    f"none, got {', '.join(map(repr, states)):.60}"
                )
            if states in (["unknown"], ["predicted"]):
                unknown.append(label)
            elif states != ["absent"]:
                present.append(label)
        shapes = (one for one in image if one.tag in CVAT_SHAPES)
        present += [label for shape in shapes if (label := (shape.get("label") or "").strip())]
        rows.append(AnnotatedPhoto(where, name, present, unknown, image.get("subset")))
    if not rows:
        raise DataError(f"{path}: there are no images")
    return _table(rows, names or None, path, root)


def read_fiftyone(path: Path, *, field: str | None = None) -> LabelTable:
    """Return the samples of FiftyOne's ``samples.json``, or of the folder it lies in.

    ``field`` holds the classifications; without it ``ground_truth``, or the only one that does.
    """
    file = path / "samples.json" if path.is_dir() else path
    content = read_json(file)
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list) or not samples:
        raise DataError(f"{file}: a FiftyOne file must be an object with a list of 'samples'")
    for number, sample in enumerate(samples, 1):
        if not isinstance(sample, dict) or not isinstance(sample.get("filepath"), str):
            raise DataError(f"{file.name}, sample {number}: must be an object with a 'filepath'")
    chosen = field or _label_field(file, samples)
    rows: list[AnnotatedPhoto] = []
    for number, sample in enumerate(samples, 1):
        where = f"{file.name}, sample {number}"
        present = _classified(sample.get(chosen), where)
        unknown = None if present is None else _classified(sample.get("unknown"), where) or []
        tags = sample.get("tags")
        named = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
        found = [SPLIT_WORDS[tag] for tag in named if tag in SPLIT_WORDS]
        split = found[0] if len(found) == 1 else None
        rows.append(AnnotatedPhoto(where, sample["filepath"], present or [], unknown, split))
    return _table(rows, _fiftyone_classes(file, content, chosen), file, None)


def _label_field(file: Path, samples: list[dict[str, Any]]) -> str:
    found = {
        name
        for sample in samples
        for name, value in sample.items()
        if isinstance(value, dict) and value.get("_cls") in ("Classification", "Classifications")
    } - {"predictions", "unknown"}
    if not found or any("ground_truth" in sample for sample in samples):
        return "ground_truth"
    if len(found) > 1:
        listed = ", ".join(sorted(found))
        raise DataError(f"{file}: say which field holds the labels with --set field=NAME: {listed}")
    return found.pop()


def _classified(value: Any, where: str) -> list[str] | None:
    """Return the labels of Classifications or of one Classification; None where there is none."""
    if value is None:
        return None
    kind = value.get("_cls", "Classifications") if isinstance(value, dict) else ""
    listed = value.get("classifications", [value]) if isinstance(value, dict) else None
    if kind not in ("Classification", "Classifications") or not isinstance(listed, list):
        raise DataError(f"{where}: labels must be Classifications, got {value!r:.60}")
    names = [one.get("label") if isinstance(one, dict) else None for one in listed]
    if not all(isinstance(name, str) and name for name in names):
        raise DataError(f"{where}: every classification must have a 'label'")
    return [str(name) for name in names]


def _fiftyone_classes(file: Path, content: dict[str, Any], field: str) -> list[str] | None:
    """Return the names of all labels: of our own exports, or of the metadata beside the samples."""
    if content.get("classes") is not None:
        return _words(content["classes"], f"{file.name}, 'classes'")
    beside = file.with_name("metadata.json")
    metadata = read_json(beside) if beside.is_file() else {}
    classes = metadata.get("classes") if isinstance(metadata, dict) else None
    own = classes.get(field) if isinstance(classes, dict) else None
    default = metadata.get("default_classes") if isinstance(metadata, dict) else None
    named = own or default
    return _words(named, beside.name) if named else None


def _table(
    rows: Sequence[AnnotatedPhoto], names: list[str] | None, path: Path, root: str | Path | None
) -> LabelTable:
    """Return the table of rows; of one of which nothing is known every label is unknown."""
    given = [(row.present, row.unknown or []) for row in rows]
    if names is None:
        names = sorted({word for lists in given for words in lists for word in words})
    known = set(names)
    for row, (present, unknown) in zip(rows, given, strict=True):
        for word in (*present, *unknown):
            if word not in known:
                hint = nearest(word, names)
                raise DataError(f"{row.where}: unknown label {word!r}{hint}")
        both = sorted(set(present) & set(unknown))
        if both:
            raise DataError(f"{row.where}: {both[0]!r} cannot be both present and unknown")
    images = [row.image for row in rows]
    blank = [AllBut() if row.unknown is None else row.unknown for row in rows]
    splits = [SPLIT_WORDS.get((row.split or "").strip().lower()) for row in rows]
    return from_rows(
        (Path(root) if root is not None else path.parent, images),
        [present for present, _ in given],
        names=names,
        unknown=blank,
        split=None if None in splits else [split or "" for split in splits],
        name=path.stem,
    )
