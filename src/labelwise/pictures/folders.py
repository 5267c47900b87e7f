"""The pictures in a folder, by the names of its files.

Only regular files are named: a pipe or a device in a folder could be read for ever.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from labelwise.errors import DataError
from labelwise.pictures.decode import (
    IMAGE_SUFFIXES,
    UNREAD_SUFFIXES,
    install_for,
    one_per_photo,
)
from labelwise.system.names import printable


def image_files(folder: Path) -> list[str]:
    """Return the image files under a folder, sorted, relative to it, hidden ones left out."""
    return find_images(folder)[0]


def find_images(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the image files under a folder as above, and a note on pictures that are skipped."""
    found: list[str] = []
    skipped: Counter[str] = Counter()
    for inside in one_per_photo(sorted(regular_files(folder))):
        suffix = os.path.splitext(inside)[1].lower()
        if suffix in IMAGE_SUFFIXES:
            found.append(inside)
        elif suffix in UNREAD_SUFFIXES:
            skipped[suffix] += 1
    return found, _skipped_note(skipped)


def regular_files(folder: Path) -> Iterator[str]:
    """Yield the regular files under a folder, relative to it; hidden ones are left out.

    Links are followed, a folder that holds itself is entered once.
    """
    waiting, seen = [""], set()
    while waiting:
        below = waiting.pop()
        try:
            facts = os.stat(os.path.join(folder, below))
            entries = list(os.scandir(os.path.join(folder, below)))
        except OSError as error:
            raise DataError(
                f"{printable(str(folder / below))}: cannot be read ({error.strerror})"
            ) from None
        if (facts.st_dev, facts.st_ino) in seen:
            continue
        seen.add((facts.st_dev, facts.st_ino))
        for entry in entries:
            inside = f"{below}/{entry.name}" if below else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                waiting.append(inside)
            elif entry.is_file():
                yield inside


def _skipped_note(skipped: Counter[str]) -> tuple[str, ...]:
    if not skipped:
        return ()
    counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(skipped.items()))
    return (f"skipped {counts}: `{install_for(skipped)}` reads them",)
