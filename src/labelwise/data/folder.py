"""Folders of images: one folder a class, with or without train, val and test above them."""

from pathlib import Path

from labelwise.data.gather import SPLIT_WORDS
from labelwise.data.rows import from_rows, image_files
from labelwise.data.table import LabelTable
from labelwise.errors import DataError

__all__ = ["read_folder", "split_folders"]


def read_folder(path: Path) -> LabelTable:
    """Return the table of ``class/image`` or ``split/class/image``; one label an image."""
    parts = split_folders(path)
    labels, split = [], []
    files = image_files(path)
    for file in files:
        places = Path(file).parts[:-1]
        if parts:
            if places[:1] and places[0] not in parts:
                raise DataError(f"{path}: beside {min(parts)!r} there must be no {places[0]!r}")
            split.append(parts[places[0]] if places else "")
            places = places[1:]
        if not places:
            raise DataError(f"{path}: every image must be in the folder of its class, got {file!r}")
        labels.append([places[0]])
    if not files:
        raise DataError(f"{path}: there are no images in folders of classes")
    return from_rows((path, files), labels, split=split or None, name=path.name)


def split_folders(path: Path) -> dict[str, str]:
    """Return the folders named after a split and the split each means, {} if there are none."""
    folders = [entry.name for entry in path.iterdir() if entry.is_dir()]
    return {name: SPLIT_WORDS[name.lower()] for name in folders if name.lower() in SPLIT_WORDS}
