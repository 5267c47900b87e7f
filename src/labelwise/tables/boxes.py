"""COCO instances and Pascal VOC: a label is present where an object of its class is.

A COCO image without annotation was reviewed and has none of them. LVIS says which labels were
looked for in vain (``neg_category_ids``): all others without an annotation are unknown.

In VOC's ``ImageSets/Main/<class>_<part>.txt`` a class is 1 (present), -1 (absent) or 0 (only
"difficult" objects); in the XML each object may be difficult. ``difficult`` says what such a label
is: "unknown" or "absent". Tools that draw boxes write the same XML into ``annotations`` beside
``images``, or beside each photo, also in the folders train, valid and test.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.base.text import counted
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES, image_files
from labelwise.tables.rows import (
    AllBut,
    from_rows,
    is_file,
    read_as,
    read_fields,
    read_lines,
    read_xml,
)
from labelwise.tables.shards import split_folders
from labelwise.tables.table import SPLIT_WORDS, LabelTable, join


@dataclass
class CocoImage:
    """An image; what is unknown is stated by our exports, or follows from LVIS's negative ids."""

    id: int
    file_name: str = ""
    coco_url: str = ""  # of LVIS, which has .../train2017/1.jpg
    neg_category_ids: list[int] | None = None
    unknown_category_ids: list[int] = field(default_factory=list)
    split: str = ""


@dataclass
class CocoCategory:
    """A label and its number."""

    id: int
    name: str


@dataclass
class CocoAnnotation:
    """An object of a category in an image."""

    image_id: int
    category_id: int


@dataclass
class Coco:
    """What is read of an instances file."""

    images: list[CocoImage]
    categories: list[CocoCategory]
    annotations: list[CocoAnnotation]


def read_coco(
    path: Path,
    *,
    root: str | Path | None = None,
    drop_unlabelled: bool = False,
    string_order: bool = False,
) -> LabelTable:
    """Return the table of an instances file, or of a folder with several, each of them a split.

    ``root`` is the folder of the images, else looked for beside the file. ``string_order`` sorts
    the images by their id as text, the order of single-positive labels.
    """
    if path.is_dir():
        if root is not None:
            raise SettingsError("root is for a COCO file; the parts of a folder have their own")
        return _read_coco_folder(path, drop_unlabelled, string_order)
    content = read_as(path, Coco)
    names = _named(path, "category", [(each.id, each.name.strip()) for each in content.categories])
    files = _named(
        path,
        "image",
        [
            (each.id, each.file_name or "/".join(each.coco_url.split("/")[-2:]))
            for each in content.images
        ],
    )
    present: dict[int, set[str]] = {number: set() for number in files}
    federated = any(image.neg_category_ids is not None for image in content.images)
    unknown: list[Iterable[str]] = []
    try:
        for annotation in content.annotations:
            present[annotation.image_id].add(names[annotation.category_id])
        for image in content.images:
            absent = {names[number] for number in image.neg_category_ids or ()}
            hidden = {names[number] for number in image.unknown_category_ids}
            for name in sorted(present[image.id] & absent)[:1]:
                where = f"{path.name}: image {image.id}: {name!r}"
                raise DataError(f"{where} cannot be both in an annotation and in neg_category_ids")
            unknown.append(AllBut(present[image.id] | absent) if federated else hidden)
    except KeyError as error:
        rule = "annotations and images must name images and categories of the file"
        raise DataError(f"{path.name}: {rule} by their ids, got {error}") from None
    if root is None and files:  # the folder that holds the first image
        above, part = path.parent.parent, _coco_part(path)
        places = (part, f"images/{part}", f"{part}/images", "images", "")
        first = next(iter(files.values())).replace("\\", "/")
        folders = (path.parent, *(above / place for place in places))
        root = next((folder for folder in folders if is_file(folder / first)), None)
    table = from_rows(
        (path.parent if root is None else Path(root), [*files.values()]),
        [*present.values()],
        name=path.stem,
        names=[*names.values()],
        unknown=unknown,
        split=[image.split for image in content.images],
    )
    if federated:
        note = "neither annotated nor in its neg_category_ids are unknown"
        table = table.noted(f"labels of an image that are {note}")
    if string_order:
        table = table.subset(np.argsort(list(map(str, files)), kind="stable"))
    return table.subset(~table.zero_label()) if drop_unlabelled else table


def _named(path: Path, kind: str, pairs: list[tuple[int, str]]) -> dict[int, str]:
    """Return the name of each id; one without a name, or that is there twice, is an error."""
    for number, count in Counter(number for number, _ in pairs).items():
        if count > 1:
            raise DataError(f"{path.name}: every {kind} id must be there once, got {number} twice")
    for number, name in pairs:
        if not name:
            raise DataError(f"{path.name}: the {kind} {number} has no name")
    return dict(pairs)


def _read_coco_folder(path: Path, drop_unlabelled: bool, string_order: bool) -> LabelTable:
    roboflow = "_annotations.coco.json"
    patterns = ("annotations/*.json", roboflow, f"*/{roboflow}")
    files = [file for at in patterns for file in sorted(path.glob(at)) if file.is_file()]
    # Captions and keypoints lie beside the instances.
    files = [file for file in files if file.stem.startswith("instances")] or files
    if not files:
        raise DataError(f"{path}: there must be COCO files as annotations/instances_train.json")
    words = (re.sub(r"[\W\d_]+$", "", _coco_part(file)).lower() for file in files)
    parts = [*map(SPLIT_WORDS.get, words)]
    listed = ", ".join(file.relative_to(path).as_posix() for file in files)
    if len(files) > 1 and (None in parts or len(set(parts)) < len(parts)):
        raise DataError(
            f"{path}: several COCO files must each be a split by their names, got {listed}; "
            "name them as 'train=coco:A.json;test=coco:B.json'"
        )
    tables = [
        read_coco(file, drop_unlabelled=drop_unlabelled, string_order=string_order)
        for file in files
    ]
    table = tables[0]
    if parts != [None]:
        table = join(list(zip(parts, tables, strict=True)), name=path.resolve().name)
    note = f"reads as COCO: {counted(len(files), 'part')} ({listed})"
    return replace(table, notes=(note, *table.notes))


def _coco_part(file: Path) -> str:
    """Return what a file is a part of: "train2017" of annotations/instances_train2017.json."""
    if file.name == "_annotations.coco.json":
        return file.parent.name
    return file.stem.removeprefix("instances").strip("_-")


def read_coco2014(
    path: Path, *, drop_unlabelled: bool = True, string_order: bool = False
) -> LabelTable:
    """Return MS-COCO 2014: ``annotations/instances_{train,val}2014.json``; val is the test."""
    read = partial(read_coco, drop_unlabelled=drop_unlabelled, string_order=string_order)
    parts = [
        (split, read(path / "annotations" / f"instances_{name}.json", root=path / name))
        for split, name in (("train", "train2014"), ("test", "val2014"))
    ]
    return join(parts, name="coco2014")


VOC_FOLDERS = ("ImageSets", "Annotations")
XML_FOLDERS = ("Annotations", "annotations", ".")
PHOTO_FOLDERS = ("JPEGImages", "images", "Images", ".")
SUFFIXES = (".jpg", ".jpeg", ".png", *sorted(IMAGE_SUFFIXES - {".jpg", ".jpeg", ".png"}))

SHOWN = 10  # names in a note
VOC_PARTS = {"train": "train", "val": "val", "test": "test", "trainval": "train"}

Difficult = Literal["unknown", "absent"]

States = dict[str, dict[str, bool]]  # image: {class: whether there is a plain object}


def read_voc(
    path: Path,
    *,
    parts: dict[str, str] | None = None,
    difficult: Difficult = "unknown",
    annotations: Literal["main", "xml"] | None = None,
) -> LabelTable:
    """Return a VOC folder (``JPEGImages``, ``Annotations``, ``ImageSets/Main``), or those below.

    ``parts`` maps image sets to splits, for example {"train": "train", "val": "test"}; without it
    train, val and test are taken as far as they are there, else every annotated image.
    """
    for part, meant in (parts or {}).items():
        if meant not in VOC_PARTS or "/" in part or not part.isprintable():
            raise SettingsError(
                "parts must name image sets and the splits train, val or test that they are, "
                f"got {part!r:.40}: {meant!r:.40}"
            )
    if not any((path / name).is_dir() for name in VOC_FOLDERS):
        if parts is None and _holds_annotated_photos(path):
            return _read_voc_xml(path, difficult)
        tables = [
            (split, _read_voc_xml(path / name, difficult))
            for name, split in sorted(split_folders(path).items())
            if parts is None and _holds_annotated_photos(path / name)
        ]
        if tables:
            return join(tables, name=path.resolve().name)
        return _read_voc_below(path, parts, difficult, annotations)
    sets = path / "ImageSets" / "Main"
    if parts is None and not any(sets.glob("*.txt")):
        return _read_voc_xml(path, difficult)
    notes: tuple[str, ...] = ()
    if annotations is None:
        classes_in_main = _voc_classes(sets)
        annotations = "main" if classes_in_main else "xml"
        files = (file for name in classes_in_main for file in sorted(sets.glob(f"{name}_*.txt")))
        if annotations == "main" and not any(
            len(line.split()) > 1 for file in files for line in read_lines(file)[:1]
        ):
            annotations = "xml"
            notes = (
                "the class files of ImageSets/Main only list images, without 1, -1 or 0: the "
                "labels are those of Annotations",
            )
    listed = [name for name in VOC_PARTS if (sets / f"{name}.txt").is_file()]
    chosen = parts or {name: name for name in listed}
    if "train" in chosen and parts is None:
        chosen.pop("trainval", None)
    if parts is None and annotations == "main":
        kept = {part: split for part, split in chosen.items() if any(sets.glob(f"*_{part}.txt"))}
        for part in sorted(chosen.keys() - kept.keys()) if kept else ():  # VOC 2012's test
            images_left = counted(len(read_lines(sets / f"{part}.txt")), "image")
            notes += (
                f"left out: the {images_left} of {part}.txt, since no file such "
                f"as dog_{part}.txt says what they show",
            )
        chosen = kept or chosen
    if not chosen:
        raise DataError(f"{path}: a VOC folder must have ImageSets/Main/train.txt or the like")
    by_xml = annotations == "xml"
    classes = set(() if by_xml else _voc_classes(sets))
    rows: list[tuple[str, dict[str, bool]]] = []
    split: list[str] = []
    for part, target in chosen.items():
        images = [line.split()[0] for line in read_lines(sets / f"{part}.txt")]
        states = _from_xml(path / "Annotations", images) if by_xml else _from_main(sets, part)
        rows += [(image, states.get(image, {})) for image in images]
        split += [VOC_PARTS.get(target, target)] * len(images)
        classes.update(name for state in states.values() for name in state)
    table = _voc_table(path, rows, difficult, classes, split)
    notes += table.notes
    if parts is None and (path / "JPEGImages").is_dir():
        there = {Path(file).stem for file in image_files(path / "JPEGImages")}
        there -= {line.split()[0] for name in listed for line in read_lines(sets / f"{name}.txt")}
        if there:
            count = counted(len(there), "photo")
            notes += (f"left out: {count} of JPEGImages that no image set lists",)
    return replace(table, notes=notes)


def _voc_table(
    path: Path,
    rows: list[tuple[str, dict[str, bool]]],
    difficult: Difficult,
    classes: set[str],
    split: list[str] | None = None,
) -> LabelTable:
    hidden = [[name for name, plain in state.items() if not plain] for _, state in rows]
    # The order of CVAT's labelmap.txt; another name may be misspelt, and would be its own label.
    file = path / "labelmap.txt"
    lines = read_lines(file) if file.is_file() else []
    listed = [line.partition(":")[0].strip() for line in lines if not line.startswith("#")]
    names = [name for name in dict.fromkeys(listed) if name and name != "background"]
    others = sorted(classes - set(names))
    table = from_rows(
        (path, [_voc_image(path, image) or f"JPEGImages/{image}.jpg" for image, _ in rows]),
        [[name for name, plain in state.items() if plain] for _, state in rows],
        names=names + others,
        unknown=hidden if difficult == "unknown" else None,
        split=split,
        name=path.name,
    )
    shown = ", ".join(map(repr, others[:SHOWN])) + ", ..." * (len(others) > SHOWN)
    note = f"labels that labelmap.txt does not list: {shown}; add them to it, or correct a name"
    return table.noted(note) if names and others else table


def _read_voc_below(
    path: Path,
    parts: dict[str, str] | None,
    difficult: Difficult,
    annotations: Literal["main", "xml"] | None,
) -> LabelTable:
    places = [f"{level}/{name}" for level in ("*", "VOCdevkit/*") for name in VOC_FOLDERS]
    folders = sorted({file.parent for at in places for file in path.glob(at) if file.is_dir()})
    if not folders:
        raise DataError(f"{path}: a VOC folder must have ImageSets/Main/train.txt or the like")
    options: dict[str, Any] = {"difficult": difficult, "annotations": annotations}
    tables = [(None, read_voc(folder, parts=parts, **options)) for folder in folders]
    listed = ", ".join(folder.relative_to(path).as_posix() for folder in folders)
    table = join(tables, name=path.resolve().name)
    note = f"reads as Pascal VOC: {counted(len(folders), 'part')} ({listed})"
    return replace(table, notes=(note, *table.notes))


def holds_annotated_photos(path: Path) -> bool:
    """Return whether an XML file has its photo, here or in a folder of a split."""
    return any(_holds_annotated_photos(path / name) for name in (".", *split_folders(path)))


def _holds_annotated_photos(path: Path) -> bool:
    return any(_voc_image(path, file.stem) for file in _xml_files(path)[:SHOWN])


def _xml_files(path: Path) -> list[Path]:
    listed = (sorted((path / folder).glob("*.xml")) for folder in XML_FOLDERS)
    return next((files for files in listed if files), [])


def _read_voc_xml(path: Path, difficult: Difficult) -> LabelTable:
    files = [file for file in _xml_files(path) if file.is_file()]
    if not files:
        raise DataError(f"{path / 'Annotations'}: there are no XML files")
    states = _from_xml(files[0].parent, [file.stem for file in files])
    classes = {name for state in states.values() for name in state}
    table = _voc_table(path, list(states.items()), difficult, classes)
    bare = len(image_files((path / table.ids[0]).parent)) - len(table)
    notes = [f"left out: {counted(bare, 'photo')} without an XML file"] if bare > 0 else []
    return table.noted(*notes)


def _voc_image(path: Path, image: str) -> str | None:
    places = (
        Path(folder) / f"{image}{end}"
        for folder in PHOTO_FOLDERS
        if (path / folder).is_dir()
        for suffix in SUFFIXES
        for end in (suffix, suffix.upper())
    )
    return next((place.as_posix() for place in places if is_file(path / place)), None)


def _voc_classes(sets: Path) -> list[str]:
    stems = (file.stem.rpartition("_") for file in sets.glob("*_*.txt"))
    return sorted({name for name, _, part in stems if part in VOC_PARTS})


def _from_main(sets: Path, part: str) -> States:
    states: States = {}
    classes = _voc_classes(sets)
    if not classes:
        raise DataError(f"{sets}: there must be files such as dog_{part}.txt")
    for name in classes:
        file, form = sets / f"{name}_{part}.txt", "an image and 1, -1 or 0"
        for where, (image, *state) in read_fields(file, 2, form):
            if state not in (["1"], ["-1"], ["0"]):
                raise DataError(f"{where}: must be {form}, got {' '.join([image, *state])!r}")
            if state != ["-1"]:
                states.setdefault(image, {})[name] = state == ["1"]
    return states


def _from_xml(folder: Path, images: list[str]) -> States:
    states: States = {}
    for image in images:
        file = folder / f"{image}.xml"
        if not file.exists():
            raise DataError(
                f"{file}: the file that says what {image} shows is missing; add it, take {image} "
                "out of the lists in ImageSets/Main, or add files such as dog_train.txt there, "
                "whose lines name an image and 1, -1 or 0"
            )
        tree = read_xml(file, "annotation")
        state = states.setdefault(image, {})
        for thing in tree.findall("object"):
            name = (thing.findtext("name") or "").strip()
            if not name:
                raise DataError(f"{file}: every object must have a name")
            hard = (thing.findtext("difficult") or "0").strip()
            if hard not in ("0", "1"):
                raise DataError(f"{file}: difficult of {name!r} must be 0 or 1, got {hard!r:.40}")
            state[name] = state.get(name, False) or hard == "0"
    return states
