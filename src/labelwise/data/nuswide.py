"""NUS-WIDE: 81 concepts over 269,648 Flickr photos, in its official files.

    ImageList/{Imagelist,TrainImagelist,TestImagelist}.txt
    Groundtruth/AllLabels/Labels_<concept>.txt, TrainTestLabels/Labels_<concept>_{Train,Test}.txt

Flavour "official" keeps the authors' split, "gong" draws 150,000 of the labelled 209,347 photos for
training at random (the papers' seed is not known). Both leave out the 60,301 photos without label
unless ``drop_unlabelled`` is False.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.data.images import FileImages
from labelwise.data.rows import read_lines
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, SettingsError

__all__ = ["read_nuswide"]

GONG_SHARE = 150_000 / 209_347


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
        parts = [_part(path, part) for part in ("Train", "Test")]
        split = np.repeat(["train", "test"], [len(files) for files, _ in parts])
    elif flavour == "gong":
        parts, split = [_part(path, "")], None
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


def _part(path: Path, part: str) -> tuple[list[str], NDArray[np.bool_]]:
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
