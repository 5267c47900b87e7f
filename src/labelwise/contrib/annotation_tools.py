"""Label tables as annotation tools write them: Label Studio, CVAT, FiftyOne.

A label that is not known is

    Label Studio   in the choices named ``unknown``, beside those named ``labels``
    CVAT           a tag with the attribute state = unknown, or = predicted by a model
    FiftyOne       in the field ``unknown``, beside ``ground_truth``

Where an object is marked (a box, a polygon), its label is present. A task without annotation, or
one that was cancelled, and a sample without ``ground_truth`` are unlabelled; one with an empty
annotation was reviewed and has none of them. What a model predicted is never read as a label.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlparse
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import replacing, replacing_folder
from labelwise.errors import DataError
from labelwise.pictures.decode import find_images
from labelwise.pictures.sources import FileImages
from labelwise.tables.export import json_rows
from labelwise.tables.rows import AllBut, from_rows, inner, parse_xml, read_as, read_json, read_xml
from labelwise.tables.table import SPLIT_WORDS, LabelSets, LabelTable

# Addresses of Label Studio's images:
#
#     /data/local-files/?d=a/b.jpg       the photo a/b.jpg below the document root
#     /data/upload/3/0a1b2c3d-b_c.jpg    the photo ``b c.jpg``, uploaded to project 3

DOCUMENT = "/data/local-files/"
UPLOADED = re.compile(r"/?data/(?P<stored>upload/\d+/[0-9a-f]{8}-(?P<name>[^/]+))")
CHANGED = re.compile(r"[^-\w.]")  # what Label Studio leaves out of the name of an upload


@dataclass(frozen=True)
class ImageFolder:
    """The folder that holds the images of tasks: the document root, or where uploads came from."""

    root: Path

    @cached_property
    def _by_upload(self) -> dict[str, list[str]]:
        photos: dict[str, list[str]] = {}
        for path in find_images(self.root)[0] if self.root.is_dir() else ():
            plain = CHANGED.sub("", os.path.basename(path).strip().replace(" ", "_"))
            photos.setdefault(plain, []).append(path)
        return photos

    def path_of(self, image: str) -> str:
        """Return the path of an image, below the folder where its address says no more."""
        try:
            parts = urlparse(image)
        except ValueError as error:
            rule = f"'image' must be a path or an address, got {image!r:.80}"
            raise DataError(f"{rule} ({error})") from None
        given = parse_qs(parts.query).get("d")
        if parts.path.endswith("local-files/") and given:
            return given[0]
        uploaded = UPLOADED.fullmatch(unquote(parts.path))
        if uploaded is None:
            return unquote(parts.path) if parts.scheme == "file" else image
        if (self.root / uploaded["stored"]).is_file():  # root is a media folder
            return uploaded["stored"]
        photos = self._by_upload.get(uploaded["name"], [])
        if len(photos) != 1:
            what = f"{len(photos)} photos of that name" if photos else "no photo of that name"
            raise DataError(
                f"{image} was uploaded, and {self.root} holds {what}; give the folder of the "
                "photos with --set root=FOLDER, or Label Studio's media folder"
            )
        return photos[0]


@dataclass(frozen=True)
class LabellingConfig:
    """Where a project stores choices of labels, and the field of a task that holds its image."""

    from_name: str = "labels"
    to_name: str = "image"
    field: str = "image"
    labels: tuple[str, ...] = ()


def labelling_config(names: Sequence[str]) -> bytes:
    """Return the config for a table: its labels, and which of them cannot be told."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    for choices, words in (("labels", "Labels"), ("unknown", "Labels that you cannot tell")):
        ElementTree.SubElement(view, "Header", value=words)
        listed = {"name": choices, "toName": "image", "choice": "multiple", "showInline": "true"}
        group = ElementTree.SubElement(view, "Choices", listed)
        for name in names:
            ElementTree.SubElement(group, "Choice", value=name)
    return _xml(view) + b"\n"


def read_config(text: str, known: Collection[str]) -> LabellingConfig:
    """Return the choices of a config that name labels of ``known``; other labels are left out.

    Choices named ``unknown`` hold what cannot be told, and are never predicted.
    """
    view = parse_xml(text.encode(), "the labelling config")
    images = {
        tag.get("name", ""): (tag.get("value") or "").lstrip("$") for tag in view.iter("Image")
    }
    best: LabellingConfig | None = None
    for tag in view.iter("Choices"):
        name, target = tag.get("name", ""), tag.get("toName", "")
        if name == "unknown" or not name or target not in images:
            continue
        values = [choice.get("value", "") for choice in tag.iter("Choice")]
        labels = tuple(value for value in values if value in known)
        if best is None or len(labels) > len(best.labels):
            best = LabellingConfig(name, target, images[target], labels)
    if best is None:
        raise DataError("the labelling config must have <Image> and <Choices> of that image")
    if not best.labels:
        raise DataError(
            f"none of the choices {best.from_name!r} of the labelling config is a label of the "
            f"model, whose labels are {', '.join(sorted(known)[:5])} ..."
        )
    return best


def chance_of_set(probs: NDArray[np.float64], chosen: NDArray[np.bool_]) -> float:
    """Return the chance that every label (K,) is decided right, if labels are independent."""
    return float(np.where(chosen, probs, 1 - probs).prod())


OURS = LabellingConfig()


def prediction(
    names: Sequence[str], score: float, model: str, config: LabellingConfig = OURS
) -> dict[str, object]:
    """Return a prediction of choices; without a config under the names of ours."""
    result = _choices(config.from_name, config.to_name, names) if names else []
    return {"model_version": model, "score": score, "result": result}


def _choices(from_name: str, to_name: str, names: Sequence[str]) -> list[dict[str, object]]:
    place = {"from_name": from_name, "to_name": to_name, "type": "choices"}
    return [place | {"value": {"choices": list(names)}}]


# Where a label is known nothing is predicted, but for FiftyOne, which keeps the two apart.

VOC_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, eq=False)
class Guesses:
    """What a model says of the rows of a table: probabilities (N, K), sets (N, K), its name."""

    probs: NDArray[np.float64]
    sets: NDArray[np.bool_]
    model: str

    def of(self, table: LabelTable, row: int) -> list[tuple[str, float]]:
        """Return the labels in the set of a row that are not known, with their probabilities."""
        return [
            (table.space.names[column], float(self.probs[row, column]))
            for column in table.unknown.row(row)
            if self.sets[row, column]
        ]


def export_for_tool(
    table: LabelTable, path: str | Path, tool: str, guesses: Guesses | None = None
) -> str:
    """Write the table, and guesses, as ``tool`` reads them; return how to open the file."""
    target = Path(path)
    if tool not in TOOLS:
        raise DataError(f"a tool must be one of {', '.join(TOOLS)}, got {tool!r}")
    suffix, write, predicts = TOOLS[tool]
    if target.suffix.lower() != suffix:
        what = "a file" if suffix else "the folder"
        raise DataError(f"{target}: {what} for {tool} must end in {suffix or 'no suffix'}")
    if guesses is not None and not predicts:
        able = ", ".join(name for name, (_, _, can) in TOOLS.items() if can)
        raise DataError(f"{tool} has no place for predictions; those that have: {able}")
    if guesses is not None and guesses.probs.shape != (len(table), len(table.space)):
        raise ValueError(f"guesses must be of {len(table)} rows, got {guesses.probs.shape}")
    if not isinstance(table.images, FileImages) or table.images.real_names:
        raise DataError(f"{table.name}: its images must be single files with UTF-8 names")
    table.require_hard(f"{tool} knows yes, no and unknown")
    for name in table.space.names if tool in ("label-studio", "cvat", "voc") else ():
        if name != name.strip() or not name.isprintable():
            raise DataError(f"the label {name!r} cannot be written in XML")
    if write is None:
        _voc(table, table.images, target)
        return ""
    inside = os.path.relpath(table.images.root, target.parent)
    paths = [os.path.normpath(os.path.join(inside, name)) for name in table.ids]
    with replacing(target) as temporary:
        temporary.write_bytes(write(table, paths, guesses))
    if tool != "label-studio":
        return ""
    config = target.with_suffix(".config.xml")
    with replacing(config) as temporary:
        temporary.write_bytes(labelling_config(table.space.names))
    served = os.path.abspath(os.path.join(target.parent, _folders_up(paths)))
    return (
        f"{config} is its labelling config. For Label Studio to show the photos, start it with "
        f"LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
        f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={served}"
    )


def _named(table: LabelTable, sets: LabelSets, row: int) -> list[str]:
    return [table.space.names[column] for column in sets.row(row)]


def _label_studio(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    unlabelled = table.unlabelled()
    root = _folders_up(paths)
    meta = {"labels": list(table.space.names)} | ({"root": root} if root else {})
    tasks = []
    for row, path in enumerate(paths):
        inside = path[len(root) + 1 :] if root else path
        facts = {"image": f"{DOCUMENT}?d={quote(inside.replace(os.sep, '/'))}"}
        facts |= {} if table.split is None else {"split": str(table.split[row])}
        results = []
        for choices, sets in (("labels", table.present), ("unknown", table.unknown)):
            if words := _named(table, sets, row):
                results += _choices(choices, "image", words)
        annotations = [] if unlabelled[row] else [{"result": results, "was_cancelled": False}]
        task = {"id": row + 1, "data": facts, "annotations": annotations}
        if guesses is not None:
            names = [name for name, _ in guesses.of(table, row)]
            chance = chance_of_set(guesses.probs[row], guesses.sets[row])
            task["predictions"] = [prediction(names, chance, guesses.model)]
        tasks.append(task | {"meta": meta})
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode()


def _folders_up(paths: Sequence[str]) -> str:
    """Return how many folders up the photos begin, as in ``../..``; empty where none."""
    parts = (path.replace(os.sep, "/").split("/") for path in paths)
    ups = {"/".join(takewhile("..".__eq__, path)) for path in parts}
    if len(ups) > 1 or any(map(os.path.isabs, paths)):
        raise DataError(
            "the photos begin in several folders; write the tasks into one that holds all of them"
        )
    return ups.pop() if ups else ""


def _cvat(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    tree = ElementTree.Element("annotations")
    ElementTree.SubElement(tree, "version").text = "1.1"
    task = ElementTree.SubElement(ElementTree.SubElement(tree, "meta"), "task")
    labels = ElementTree.SubElement(task, "labels")
    for name in table.space.names:
        ElementTree.SubElement(ElementTree.SubElement(labels, "label"), "name").text = name
    for row, path in enumerate(paths):
        width, height = table.images.read(row).size
        facts = {"id": str(row), "name": path, "width": str(width), "height": str(height)}
        facts |= {} if table.split is None else {"subset": str(table.split[row])}
        image = ElementTree.SubElement(tree, "image", facts)
        for name in _named(table, table.present, row):
            ElementTree.SubElement(image, "tag", label=name, source="manual")
        guessed = {} if guesses is None else dict(guesses.of(table, row))
        for name in _named(table, table.unknown, row):
            attributes, source = {"state": "unknown"}, "manual"
            if name in guessed:
                attributes = {"state": "predicted", "confidence": f"{guessed[name]:.6f}"}
                source = "auto"
            tag = ElementTree.SubElement(image, "tag", label=name, source=source)
            for attribute, value in attributes.items():
                ElementTree.SubElement(tag, "attribute", name=attribute).text = value
    return b"<?xml version='1.0' encoding='utf-8'?>\n" + _xml(tree)


def _xml(tree: ElementTree.Element) -> bytes:
    ElementTree.indent(tree)
    return bytes(ElementTree.tostring(tree, "utf-8"))


def _coco(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    images: list[dict[str, object]] = []
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


def _fiftyone(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    unlabelled = table.unlabelled()

    def classified(listed: Iterable[Mapping[str, object]]) -> dict[str, object]:
        classes = [{"_cls": "Classification", **verdict} for verdict in listed]
        return {"_cls": "Classifications", "classifications": classes}

    samples = []
    for row, path in enumerate(paths):
        tags = [] if table.split is None else [str(table.split[row])]
        present, unknown = (_named(table, sets, row) for sets in (table.present, table.unknown))
        labels = [{"label": name} for name in present]
        sample: dict[str, object] = {"filepath": path, "tags": tags, "_media_type": "image"}
        if guesses is not None:
            chosen = {table.space.names[k]: k for k in np.flatnonzero(guesses.sets[row])}
            verdicts = dict.fromkeys(chosen, "fp") | dict.fromkeys(present, "fn")
            verdicts |= {name: "tp" for name in present if name in chosen}
            verdicts = {name: verdict for name, verdict in verdicts.items() if name not in unknown}
            labels = [{"label": name, "eval": verdicts[name]} for name in present]
            sample["predictions"] = classified(
                {"label": name, "confidence": float(guesses.probs[row, column])}
                | ({"eval": verdicts[name]} if name in verdicts else {})
                for name, column in chosen.items()
            )
            counts = Counter(verdicts.values())
            sample |= {f"eval_{kind}": counts[kind] for kind in ("tp", "fp", "fn")}
        hidden = [] if unlabelled[row] else [{"label": name} for name in unknown]
        sample["ground_truth"] = None if unlabelled[row] else classified(labels)
        sample["unknown"] = classified(hidden) if hidden else None
        samples.append(sample)
    content = {"samples": samples, "classes": list(table.space.names)}
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def _huggingface(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    for path in paths:
        if os.path.isabs(path) or path.startswith(".."):
            why = "photos of a Hugging Face folder lie in or below it"
            raise DataError(f"{path}: {why}; write metadata.jsonl into the folder of the photos")
    lines = [
        json.dumps({"file_name": path} | {k: v for k, v in row.items() if k != "path"})
        for path, row in zip(paths, json_rows(table, Path()), strict=True)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _voc(table: LabelTable, images: FileImages, target: Path) -> None:
    if target.exists():
        raise DataError(f"{target} is there already; give a new folder")
    for name in table.space.names:
        if ":" in name or name.startswith("#"):
            raise DataError(f"the label {name!r} cannot be in labelmap.txt, which uses : and #")
    stems: dict[str, str] = {}
    for name in table.ids:
        stem, suffix = os.path.splitext(name.strip("/").replace("/", "_"))
        if stem in stems or len(stem.split()) != 1 or suffix.lower() not in VOC_SUFFIXES:
            raise DataError(
                f"{name}: VOC knows photos by their names, which must differ, have no blanks and "
                f"end in {', '.join(VOC_SUFFIXES)}"
            )
        stems[stem] = suffix
    labels = [f"{name}:::" for name in table.space.names]
    with replacing_folder(target) as folder:
        for folder_name in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / folder_name).mkdir(parents=True)
        lists = {"labelmap": ["# label:color_rgb:parts:actions", *labels]}
        for row, (stem, suffix) in enumerate(stems.items()):
            file = f"{stem}{suffix.lower()}"
            shutil.copyfile(images.path(row), folder / "JPEGImages" / file)
            (folder / "Annotations" / f"{stem}.xml").write_bytes(_voc_xml(table, row, file))
            if table.split is not None:
                lists.setdefault(f"ImageSets/Main/{table.split[row]}", []).append(stem)
        for name, lines in lists.items():
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _voc_xml(table: LabelTable, row: int, file: str) -> bytes:
    """Return the annotation of one photo; a label has no place, so its box is the whole photo."""
    width, height = table.images.read(row).size
    tree = ElementTree.Element("annotation")

    def add(parent: ElementTree.Element, **texts: object) -> None:
        for name, text in texts.items():
            ElementTree.SubElement(parent, name).text = str(text)

    add(tree, filename=file)
    add(ElementTree.SubElement(tree, "size"), width=width, height=height, depth=3)
    for sets, difficult in ((table.present, 0), (table.unknown, 1)):
        for name in _named(table, sets, row):
            thing = ElementTree.SubElement(tree, "object")
            add(thing, name=name, difficult=difficult)
            add(ElementTree.SubElement(thing, "bndbox"), xmin=1, ymin=1, xmax=width, ymax=height)
    return _xml(tree)


Write = Callable[[LabelTable, list[str], Guesses | None], bytes]
# Suffix of the file, its writer (None: a folder in VOC's form), and whether it shows predictions.
TOOLS: dict[str, tuple[str, Write | None, bool]] = {
    "label-studio": (".json", _label_studio, True),
    "cvat": (".xml", _cvat, True),
    "fiftyone": (".json", _fiftyone, True),
    "coco": (".json", _coco, False),
    "voc": ("", None, False),
    "huggingface": (".jsonl", _huggingface, False),
}


FOLDERS_UP = re.compile(r"\.\.(/\.\.)*")
CVAT_STATES = (None, "present", "absent", "unknown", "predicted")
CVAT_SHAPES = {"box", "cuboid", "ellipse", "mask", "points", "polygon", "polyline", "skeleton"}


@dataclass
class Result:
    """One region or choice of Label Studio: its kind, the control it is of, its values."""

    type: str = ""
    from_name: str | None = None
    value: dict[str, object] = field(default_factory=dict)
    score: float | None = None

    def labels(self, where: str) -> list[str]:
        """Return the choices, or the labels of a marked object: rectanglelabels and the like."""
        is_labels = self.type == "choices" or self.type.endswith("labels")
        return _words(self.value.get(self.type), where) if is_labels else []


@dataclass
class Annotation:
    """What a person marked in a task, or a model."""

    result: list[Result] = field(default_factory=list)
    was_cancelled: bool | None = False
    score: float | None = None


@dataclass
class LabelTask:
    """A photo in Label Studio, what people said of it, and what models did."""

    id: int | str | None = None
    data: dict[str, object] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    completions: list[Annotation] = field(default_factory=list)  # of early versions
    predictions: list[Annotation | int] = field(default_factory=list)
    meta: dict[str, object] = field(default_factory=dict)

    def image(self, where: str) -> str:
        """Return the address of its image."""
        image = self.data.get("image") or self.data.get("img")
        if not isinstance(image, str):
            way_out = "export from Label Studio as JSON, not as JSON-MIN"
            raise DataError(f"{where}: 'data' must name an 'image'; {way_out}")
        return image


def read_tasks(path: Path) -> list[tuple[str, LabelTask]]:
    """Return the tasks of a Label Studio JSON file, each with its place in words."""
    tasks = read_as(path, list[LabelTask])
    if not tasks:
        raise DataError(f"{path}: a Label Studio file must be a list of tasks")
    return [
        (f"{path.name}, task {number if task.id is None else task.id!r:.40}", task)
        for number, task in enumerate(tasks, 1)
    ]


def read_label_studio(path: Path, *, root: str | Path | None = None) -> LabelTable:
    """Return the tasks of a Label Studio JSON file with an image and choices."""
    tasks = read_tasks(path)
    up = tasks[0][1].meta.get("root")  # how many folders up addresses begin
    shifted = isinstance(up, str) and FOLDERS_UP.fullmatch(up)
    images = ImageFolder(Path(root or (path.parent / str(up) if shifted else path.parent)))
    names = next((task.meta["labels"] for _, task in tasks if "labels" in task.meta), None)
    present: list[list[str]] = []
    unknown: list[Sequence[str]] = []
    for where, task in tasks:
        done = [made for made in task.annotations or task.completions if not made.was_cancelled]
        results = done[-1].result if done else []
        named = [(each.from_name == "unknown", each.labels(where)) for each in results]
        present.append([word for is_hidden, words in named if not is_hidden for word in words])
        hidden = [word for is_hidden, words in named if is_hidden for word in words]
        unknown.append(hidden if done else AllBut())
    return from_rows(
        (images.root, [images.path_of(task.image(where)) for where, task in tasks]),
        present,
        name=path.stem,
        names=None if names is None else _words(names, path.name),
        unknown=unknown,
        split=[task.data.get("split") for _, task in tasks],
    )


def _words(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise DataError(f"{where}: choices must be a list of names, got {value!r:.60}")
    return value


def read_cvat(path: Path, *, root: str | Path | None = None) -> LabelTable:
    """Return the tags and the labels of the shapes of a "CVAT for images" XML file."""
    tree = read_xml(path, "annotations")
    names = [(label.findtext("name") or "").strip() for label in tree.findall(".//labels/label")]
    images = tree.findall("image")
    if not images:
        raise DataError(f"{path}: there are no images")
    present: list[list[str]] = []
    unknown: list[list[str]] = []
    for number, image in enumerate(images, 1):
        where = f"{path.name}, image {image.get('id', number)}"
        shapes = [shape for shape in image if shape.tag in CVAT_SHAPES]
        tags = [(tag, _state(tag)) for tag in image.findall("tag")]
        for tag, state in tags:
            if not (tag.get("label") or "").strip() or state not in CVAT_STATES:
                states = ", ".join(filter(None, CVAT_STATES))
                what = f"every tag must have a label, and as its state one of {states} or none"
                raise DataError(f"{where}: {what}, got {tag.get('label')!r} and {state!r:.60}")
        there = [tag for tag, state in tags if state in (None, "present")]
        hidden = [tag for tag, state in tags if state in ("unknown", "predicted")]
        if not image.get("name"):
            raise DataError(f"{where}: must have a name")
        for named, things in ((present, [*there, *shapes]), (unknown, hidden)):
            labels = ((thing.get("label") or "").strip() for thing in things)
            named.append([label for label in labels if label])
    return from_rows(
        (path.parent if root is None else Path(root), [image.get("name", "") for image in images]),
        present,
        name=path.stem,
        names=names or None,
        unknown=unknown,
        split=[image.get("subset") for image in images],
    )


def _state(tag: ElementTree.Element) -> str | None:
    states = (each.text for each in tag.findall("attribute") if each.get("name") == "state")
    return next(states, None)


@dataclass
class FiftyOneFile:
    """What is read of a FiftyOne file; ``classes`` are of our own exports."""

    samples: list[dict[str, object]]
    classes: list[str] | None = None


def read_fiftyone(path: Path, *, field: str | None = None) -> LabelTable:
    """Return the samples of FiftyOne's ``samples.json``, or of the folder it lies in.

    ``field`` holds the classifications; without it ``ground_truth``, or the only one that does.
    """
    file = path / "samples.json" if path.is_dir() else path
    content = read_as(file, FiftyOneFile)
    samples = content.samples
    if not samples:
        raise DataError(f"{file}: there are no samples")
    fields = {
        name
        for sample in samples
        for name, value in sample.items()
        if inner(value, "_cls") in ("Classification", "Classifications")
    } - {"predictions", "unknown"}
    chosen = field or "ground_truth"
    if not field and fields and not any("ground_truth" in sample for sample in samples):
        if len(fields) > 1:
            listed = ", ".join(sorted(fields))
            raise DataError(
                f"{file}: say which field holds the labels with --set field=NAME: {listed}"
            )
        chosen = fields.pop()
    files, present, unknown, split = [], [], [], []
    for number, sample in enumerate(samples, 1):
        where, name, tags = (
            f"{file.name}, sample {number}",
            sample.get("filepath"),
            sample.get("tags"),
        )
        if not isinstance(name, str):
            raise DataError(f"{where}: must be an object with a 'filepath'")
        labels = _classified(sample.get(chosen), where)
        splits = [tag for tag in SPLIT_WORDS if isinstance(tags, list) and tag in tags]
        files.append(name)
        present.append(labels or [])
        unknown.append(
            AllBut() if labels is None else _classified(sample.get("unknown"), where) or []
        )
        split.append(splits[0] if len(splits) == 1 else None)
    names, beside = content.classes, file.with_name("metadata.json")
    if names is None and beside.is_file():
        metadata = read_json(beside)
        classes = inner(metadata, "classes", chosen) or inner(metadata, "default_classes")
        names = _words(classes, beside.name) if classes else None
    source = (file.parent, files)
    return from_rows(source, present, name=file.stem, names=names, unknown=unknown, split=split)


def _classified(value: object, where: str) -> list[str] | None:
    """Return the labels of Classifications or of a Classification, None where there are none."""
    if value is None:
        return None
    verdicts = inner(value, "classifications") or [value]
    if inner(value, "classifications") == []:
        return []
    names = [inner(verdict, "label") for verdict in verdicts]
    if not all(isinstance(name, str) and name for name in names):
        raise DataError(f"{where}: labels must be Classifications with 'label', got {value!r:.60}")
    return names
