"""from_rows: what most dataset readers end with, lists of label names for a list of files."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.columns import Vocabulary
from labelwise.data.images import FileImages, ImageSource
from labelwise.data.names import Names
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable
from labelwise.errors import DataError

__all__ = ["IMAGE_SUFFIXES", "from_rows", "image_files", "label_names", "read_json", "read_lines"]

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"}
    | {".ppm", ".pgm", ".pbm"}
)


def from_rows(
    images: ImageSource | tuple[Path, Sequence[str]],
    labels: Sequence[Iterable[str]],
    *,
    name: str,
    names: Sequence[str] | None = None,
    unknown: Sequence[Iterable[str]] | None = None,
    split: Sequence[str] | None = None,
    group: Sequence[str] | None = None,
) -> LabelTable:
    """Return the table of label names for each image; without ``names`` they are sorted."""
    source = FileImages(*images) if isinstance(images, tuple) else images
    vocabulary = Vocabulary(names)

    def numbered(rows: Sequence[Iterable[str]]) -> list[list[int]]:
        return [
            [vocabulary.number(word, f"{name}, {source.ids[row]}") for word in words]
            for row, words in enumerate(rows)
        ]

    present, blank = numbered(labels), numbered(unknown if unknown is not None else [])
    space, columns = vocabulary.finish()
    width = len(space)

    def sets(rows: list[list[int]]) -> LabelSets:
        return LabelSets.from_lists([columns[row] for row in rows], width)

    return LabelTable(
        space,
        source,
        sets(present),
        sets(blank) if unknown is not None else LabelSets.none(len(source), width),
        None if split is None else np.asarray(split, "U5"),
        None if group is None else Names(group),
        name,
    )


def label_names(names: Sequence[str] | str | Path | None) -> list[str] | None:
    """Return given names as a list; text is a file with one name per line."""
    if names is None:
        return None
    if isinstance(names, str | Path):
        return [line.strip() for line in read_lines(Path(names))]
    return [str(name) for name in names]


def image_files(folder: Path) -> list[str]:
    """Return the image files under a folder, sorted, relative to it, hidden ones left out."""
    found = []
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if path.suffix.lower() in IMAGE_SUFFIXES and not hidden:
            found.append(inside.as_posix())
    return sorted(found)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise a DataError that says where it breaks."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise DataError(f"{path}: it is not UTF-8 text; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty, or raise a DataError."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: the file is missing") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: it is not UTF-8 text; save it as UTF-8") from None
    return [line for line in text.splitlines() if line.strip()]
