"""Official folders of the papers' other sets.

ImageNet (ILSVRC2012) and Tiny-ImageNet: one label per image, labels are WordNet ids, in order.
ImageNet's validation images lie in class folders, or flat with ``LOC_val_solution.csv`` or the
development kit's ground truth beside them.

NUS-WIDE: 81 concepts over 269,648 Flickr photos.

    ImageList/{Imagelist,TrainImagelist,TestImagelist}.txt
    Groundtruth/AllLabels/Labels_<concept>.txt, TrainTestLabels/Labels_<concept>_{Train,Test}.txt

Flavour "official" keeps the authors' split, "gong" draws 150,000 of the labelled 209,347 photos for
training at random (the papers' seed is not known). Both leave out the 60,301 photos without label
unless ``drop_unlabelled`` is False.

Attributes: WIDER-Attribute (people), VISPR (privacy), CUB-200-2011 (birds).
"""

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.data.rows import from_rows, read_json, read_lines, require_file
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.derived import CropImages
from labelwise.pictures.folders import image_files
from labelwise.pictures.sources import FileImages

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
GONG_SHARE = 150_000 / 209_347


def read_tiny_imagenet(path: Path) -> LabelTable:
    """Return Tiny-ImageNet: ``train/ID/images``, ``val/images`` with ``val_annotations.txt``.

    The official test images have no labels, so val is the test.
    """
    names = sorted(line.strip() for line in read_lines(path / "wnids.txt"))
    files = [f"train/{file}" for file in image_files(path / "train")]
    labels = [[file.split("/")[1]] for file in files]
    notes = path / "val" / "val_annotations.txt"
    held = []
    for number, line in enumerate(read_lines(notes), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(f"{notes}, line {number}: must be an image and its class, got {line!r}")
        held.append(f"val/images/{fields[0]}")
        labels.append([fields[1]])
    split = ["train"] * len(files) + ["test"] * len(held)
    return from_rows((path, files + held), labels, names=names, split=split, name="tiny-imagenet")


def read_imagenet(path: Path) -> LabelTable:
    """Return ImageNet: ``train/ID/...`` and ``val/``, which is the test.

    They may lie in ``Data/CLS-LOC``, or in ``ILSVRC/Data/CLS-LOC`` as Kaggle has them.
    """
    places = (path / "ILSVRC" / "Data" / "CLS-LOC", path / "Data" / "CLS-LOC")
    base = next((place for place in places if place.is_dir()), path)
    inside = base.relative_to(path).as_posix()
    start = "" if inside == "." else f"{inside}/"
    for part in ("train", "val"):
        if not (base / part).is_dir():
            raise DataError(f"{path}: ImageNet needs the folder {part!r}")
    train, val = image_files(base / "train"), image_files(base / "val")
    if any("/" not in file for file in train):
        raise DataError(f"{path}: every training image must be in the folder of its class")
    labels = [[file.split("/")[0]] for file in train]
    names = sorted({label[0] for label in labels})
    if all("/" in file for file in val):
        held = {file: file.split("/")[0] for file in val}
    else:
        held = _flat_validation(path, val)
    absent = [file for file in val if file not in held]
    if absent:
        raise DataError(f"{path}: the class of val/{absent[0]} is not given")
    return from_rows(
        (path, [f"{start}train/{file}" for file in train] + [f"{start}val/{file}" for file in val]),
        labels + [[held[file]] for file in val],
        names=names,
        split=["train"] * len(train) + ["test"] * len(val),
        name="imagenet",
    )


def _flat_validation(path: Path, files: list[str]) -> dict[str, str]:
    """Return the class of each flat validation image."""
    solutions = [folder / "LOC_val_solution.csv" for folder in (path, path.resolve().parent)]
    solution = next((file for file in solutions if file.is_file()), None)
    if solution is not None:
        rows = csv.reader(read_lines(solution)[1:])
        return {f"{row[0]}.JPEG": row[1].split()[0] for row in rows if len(row) > 1 and row[1]}
    truth = next(iter(sorted(path.rglob(GROUND_TRUTH))), None)
    if truth is None:
        raise DataError(
            f"{path}: flat validation images need LOC_val_solution.csv or {GROUND_TRUTH}, "
            "or put them in folders of their classes"
        )
    ids, codes = _kit_order(truth.with_name("meta.mat")), read_lines(truth)
    if len(codes) != len(files):
        raise DataError(f"{truth}: must have {len(files)} lines, got {len(codes)}")
    try:
        return {file: ids[int(code)] for file, code in zip(sorted(files), codes, strict=True)}
    except (KeyError, ValueError) as error:
        raise DataError(f"{truth}: every line must be a class number, got {error}") from None


def _kit_order(meta: Path) -> dict[int, str]:
    """Return {class number of the development kit: WordNet id}, from its meta.mat."""
    from scipy.io import loadmat  # slow to import, and seldom needed

    try:
        synsets = loadmat(meta, squeeze_me=True)["synsets"]
        return {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{meta}: the development kit cannot be read ({error})") from None


def read_nuswide(
    path: Path,
    *,
    flavour: Literal["official", "gong"] = "official",
    drop_unlabelled: bool = True,
    images: str = "Flickr",
    seed: int = 0,
) -> LabelTable:
    """Return NUS-WIDE; ``images`` is the folder of the photos inside ``path``."""
    if flavour == "official":
        parts = [_nuswide_part(path, part) for part in ("Train", "Test")]
        split = np.repeat(["train", "test"], [len(files) for files, _ in parts])
    elif flavour == "gong":
        parts, split = [_nuswide_part(path, "")], None
    else:
        raise SettingsError(f"flavour must be 'official' or 'gong', got {flavour!r}")
    files = [f"{images}/{file}" for part, _ in parts for file in part]
    labels = np.concatenate([labels for _, labels in parts])
    table = LabelTable.from_arrays(
        _concepts(path), FileImages(path, files), labels, split=split, name=f"nuswide-{flavour}"
    )
    if drop_unlabelled:
        table = table.subset(~table.zero_label())
    if split is not None:
        return table
    drawn = np.full(len(table), "test", "U5")
    count = round(GONG_SHARE * len(table))
    drawn[np.random.RandomState(seed).permutation(len(table))[:count]] = "train"
    return LabelTable(
        table.space, table.images, table.present, table.unknown, drawn, name=table.name
    )


def _concepts(path: Path) -> list[str]:
    folder = path / "Groundtruth" / "AllLabels"
    names = sorted(file.stem.removeprefix("Labels_") for file in folder.glob("Labels_*.txt"))
    if not names:
        raise DataError(f"{folder}: there must be files such as Labels_animal.txt")
    return names


def _nuswide_part(path: Path, part: str) -> tuple[list[str], NDArray[np.bool_]]:
    """Return the files and the (n, K) labels of "Train", "Test" or "" for all."""
    listed = read_lines(path / "ImageList" / f"{part}Imagelist.txt")
    files = [line.strip().replace("\\", "/") for line in listed]
    concepts = _concepts(path)
    labels = np.zeros((len(files), len(concepts)), np.bool_)
    folder = path / "Groundtruth" / ("TrainTestLabels" if part else "AllLabels")
    for column, name in enumerate(concepts):
        file = folder / (f"Labels_{name}_{part}.txt" if part else f"Labels_{name}.txt")
        marks = [line.strip() for line in read_lines(file)]
        if len(marks) != len(files) or not set(marks) <= {"0", "1"}:
            raise DataError(f"{file}: must have {len(files)} lines of 0 or 1, got {len(marks)}")
        labels[:, column] = [mark == "1" for mark in marks]
    return files, labels


def read_wider(path: Path) -> LabelTable:
    """Return WIDER-Attribute: each person's box is a row; 0 = unspecified is unknown.

    The people of a photo are a group, so that validation never shows a photo of training.
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
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{file}: not a WIDER-Attribute file ({error!r})") from None
    source = CropImages(
        FileImages(path / "Image", files), np.array(boxes, np.float64).reshape(-1, 4), ids
    )
    return from_rows(
        source, labels, names=names, unknown=unknown, split=split, group=files, name="wider"
    )


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
    with require_file(notes).open(encoding="utf-8", errors="replace") as stream:
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
