"""Label tables written as annotation tools read them, with a model's predictions to begin from.

All three states of a label survive the way there and back. A label that is not known is

    label-studio  in the choices named ``unknown``, beside those named ``labels``
    cvat          a tag with the attribute state = unknown
    fiftyone      in the field ``unknown``, beside ``ground_truth``
    coco          in ``unknown_category_ids`` of its image (ours; other tools leave it alone)
    voc           an object that is difficult
    huggingface   in the column ``unknown``, or an empty cell where each label has a column

Predictions are for people to accept or to correct, and are not labels: ``predictions`` of a task in
Label Studio and of a sample in FiftyOne, tags with the attribute state = predicted in CVAT. Where
a label is known already nothing is predicted; only FiftyOne, which keeps both apart, is told all
of them, with the fields by which it shows how they stand to the labels: ``eval`` of a label is tp,
fp or fn, and ``eval_tp``, ``eval_fp`` and ``eval_fn`` of a sample count them.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from labelwise.data.export import json_rows
from labelwise.data.label_studio import (
    address_of_image,
    chance_of_set,
    labelling_config,
    prediction,
)
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.pictures.sources import FileImages
from labelwise.system.files import replacing, replacing_folder

VOC_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, eq=False)
class Guesses:
    """What a model says of the rows of a table: probabilities (N, K), sets (N, K), its name."""

    probs: NDArray[np.float64]
    sets: NDArray[np.bool_]
    model: str

    def chance(self, row: int) -> float:
        """Return the chance that all labels of a row are right, if they are independent."""
        return chance_of_set(self.probs[row], self.sets[row])

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
    """Write the table of image files as ``tool`` reads it; see TOOLS. Return how to open it.

    ``guesses`` are written where the tool shows predictions; other formats refuse them.
    """
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
    if write is None:
        _voc(table, target)
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
    for name in table.space.names:
        _require_xml(name)
    unlabelled = table.unlabelled()
    root = _folders_up(paths)
    meta = {"labels": list(table.space.names)} | ({"root": root} if root else {})
    tasks = []
    for row, path in enumerate(paths):
        inside = path[len(root) + 1 :] if root else path
        facts = {"image": address_of_image(inside)}
        facts |= {} if table.split is None else {"split": str(table.split[row])}
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
        if guesses is not None:
            names = [name for name, _ in guesses.of(table, row)]
            task["predictions"] = [prediction(names, guesses.chance(row), guesses.model)]
        tasks.append(task | {"meta": meta})
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode()


def _folders_up(paths: Sequence[str]) -> str:
    """Return how many folders up the photos begin, as in ``../..``; empty where none."""
    parts = (path.replace(os.sep, "/").split("/") for path in paths)
    ups = {"/".join(takewhile("..".__eq__, one)) for one in parts}
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
        _require_xml(name)
        ElementTree.SubElement(ElementTree.SubElement(labels, "label"), "name").text = name
    for row, path in enumerate(paths):
        width, height = table.images.read(row).size
        facts = {"id": str(row), "name": path, "width": str(width), "height": str(height)}
        if table.split is not None:
            facts["subset"] = str(table.split[row])
        image = ElementTree.SubElement(tree, "image", facts)
        for name in _named(table, table.present, row):
            ElementTree.SubElement(image, "tag", label=name, source="manual")
        guessed = {} if guesses is None else dict(guesses.of(table, row))
        for name in _named(table, table.unknown, row):
            source = "auto" if name in guessed else "manual"
            tag = ElementTree.SubElement(image, "tag", label=name, source=source)
            state = "predicted" if name in guessed else "unknown"
            ElementTree.SubElement(tag, "attribute", name="state").text = state
            if name in guessed:
                chance = ElementTree.SubElement(tag, "attribute", name="confidence")
                chance.text = f"{guessed[name]:.6f}"
    ElementTree.indent(tree)
    content: bytes = ElementTree.tostring(tree, "utf-8", xml_declaration=True)
    return content


def _coco(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
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


def _fiftyone(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    unlabelled = table.unlabelled()

    def classified(listed: Iterable[dict[str, Any]]) -> dict[str, Any]:
        found = [{"_cls": "Classification", **one} for one in listed]
        return {"_cls": "Classifications", "classifications": found}

    samples = []
    for row, path in enumerate(paths):
        tags = [] if table.split is None else [str(table.split[row])]
        present, unknown = (_named(table, sets, row) for sets in (table.present, table.unknown))
        labels = [{"label": name} for name in present]
        sample: dict[str, Any] = {"filepath": path, "tags": tags, "_media_type": "image"}
        if guesses is not None:
            chosen = {table.space.names[k]: k for k in np.flatnonzero(guesses.sets[row])}
            verdicts = dict.fromkeys(chosen, "fp") | dict.fromkeys(present, "fn")
            verdicts |= {name: "tp" for name in present if name in chosen}
            verdicts = {name: one for name, one in verdicts.items() if name not in unknown}
            labels = [{"label": name, "eval": verdicts[name]} for name in present]
            sample["predictions"] = classified(
                {"label": name, "confidence": float(guesses.probs[row, column])}
                | ({"eval": verdicts[name]} if name in verdicts else {})
                for name, column in chosen.items()
            )
            counts = Counter(verdicts.values())
            sample |= {f"eval_{kind}": counts[kind] for kind in ("tp", "fp", "fn")}
        sample["ground_truth"] = None if unlabelled[row] else classified(labels)
        blank = unlabelled[row] or not unknown
        sample["unknown"] = None if blank else classified({"label": name} for name in unknown)
        samples.append(sample)
    content = {"samples": samples, "classes": list(table.space.names)}
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def _huggingface(table: LabelTable, paths: list[str], guesses: Guesses | None) -> bytes:
    for path in paths:
        if os.path.isabs(path) or path.startswith(".."):
            raise DataError(
                f"{path}: photos of a Hugging Face folder lie in or below it; write metadata.jsonl "
                "into the folder of the photos"
            )
    lines = [
        json.dumps({"file_name": path} | {k: v for k, v in row.items() if k != "path"})
        for path, row in zip(paths, json_rows(table, Path()), strict=True)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _voc(table: LabelTable, target: Path) -> None:
    """Write a folder in Pascal VOC's form, with the names of all labels as CVAT's labelmap.txt."""
    images = table.images
    if not isinstance(images, FileImages):
        raise TypeError("VOC holds image files")
    if target.exists():
        raise DataError(f"{target} is there already; give a new folder")
    for name in table.space.names:
        _require_xml(name)
        if ":" in name or name.startswith("#"):
            raise DataError(f"the label {name!r} cannot stand in labelmap.txt, which uses : and #")
    stems: dict[str, str] = {}
    for name in table.ids:
        stem, suffix = os.path.splitext(name.strip("/").replace("/", "_"))
        if stem in stems or len(stem.split()) != 1 or suffix.lower() not in VOC_SUFFIXES:
            raise DataError(
                f"{name}: VOC knows photos by their names, which must differ, have no blanks and "
                f"end in {', '.join(VOC_SUFFIXES)}"
            )
        stems[stem] = suffix
    with replacing_folder(target) as folder:
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / part).mkdir(parents=True)
        for row, (stem, suffix) in enumerate(stems.items()):
            file = f"{stem}{suffix.lower()}"
            shutil.copyfile(images.path(row), folder / "JPEGImages" / file)
            (folder / "Annotations" / f"{stem}.xml").write_bytes(_voc_xml(table, row, file))
        splits = () if table.split is None else table.split.tolist()
        for split in sorted(set(splits)):
            own = [stem for stem, at in zip(stems, splits, strict=True) if at == split]
            text = "".join(f"{stem}\n" for stem in own)
            (folder / "ImageSets" / "Main" / f"{split}.txt").write_text(text, encoding="utf-8")
        names = "".join(f"{name}:::\n" for name in table.space.names)
        (folder / "labelmap.txt").write_text(
            f"# label:color_rgb:parts:actions\n{names}", encoding="utf-8"
        )


def _voc_xml(table: LabelTable, row: int, file: str) -> bytes:
    """Return the annotation of one photo; a label has no place, so its box is the whole photo."""
    width, height = table.images.read(row).size
    tree = ElementTree.Element("annotation")
    ElementTree.SubElement(tree, "filename").text = file
    size = ElementTree.SubElement(tree, "size")
    for name, value in (("width", width), ("height", height), ("depth", 3)):
        ElementTree.SubElement(size, name).text = str(value)
    for sets, difficult in ((table.present, "0"), (table.unknown, "1")):
        for name in _named(table, sets, row):
            thing = ElementTree.SubElement(tree, "object")
            ElementTree.SubElement(thing, "name").text = name
            ElementTree.SubElement(thing, "difficult").text = difficult
            box = ElementTree.SubElement(thing, "bndbox")
            for end, value in (("xmin", 1), ("ymin", 1), ("xmax", width), ("ymax", height)):
                ElementTree.SubElement(box, end).text = str(value)
    ElementTree.indent(tree)
    content: bytes = ElementTree.tostring(tree, "utf-8")
    return content


def _require_xml(name: str) -> None:
    if name != name.strip() or not name.isprintable():
        raise DataError(f"the label {name!r} cannot stand in XML as it is")


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
