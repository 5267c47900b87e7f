"""ImageNet (ILSVRC2012) and Tiny-ImageNet from their official folders; one label an image.

Labels are WordNet ids, in order. ImageNet's validation images lie in class folders, or flat with
``LOC_val_solution.csv`` or the development kit's ground truth beside them.
"""

import csv
from pathlib import Path

from scipy.io import loadmat

from labelwise.data.rows import from_rows, image_files, read_lines
from labelwise.data.table import LabelTable
from labelwise.errors import DataError

__all__ = ["read_imagenet", "read_tiny_imagenet"]

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


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
    """Return ImageNet: ``train/ID/...`` and ``val/`` (or under ``Data/CLS-LOC``); val is test."""
    base = path / "Data" / "CLS-LOC" if (path / "Data" / "CLS-LOC").is_dir() else path
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
    solution = path / "LOC_val_solution.csv"
    if solution.is_file():
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
    try:
        synsets = loadmat(meta, squeeze_me=True)["synsets"]
        return {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{meta}: the development kit cannot be read ({error})") from None
