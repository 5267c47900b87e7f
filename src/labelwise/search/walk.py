"""Which files below a folder are photos: what is looked at, and what is passed over.

Passed over are hidden files and folders, the folders that photo tools and network disks keep their
own pictures in, links that lead out of the root or back into it, and everything that is no regular
file. Names are compared as the system spells them; what a name looks like is left alone.
"""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = ["FoundFile", "photos_below"]

SKIPPED_FOLDERS = frozenset(
    {"@eadir", "#recycle", "#snapshot", "lost+found", "thumbnails", "$recycle.bin"}
)


@dataclass(frozen=True)
class FoundFile:
    """A regular file with the ending of a picture, as the disk tells of it."""

    name: str
    size: int
    mtime_ns: int


def photos_below(
    root: str, suffixes: Collection[str], skip: Collection[str] = ()
) -> Iterator[tuple[str, list[FoundFile] | None]]:
    """Yield each folder below ``root`` (relative, "" for itself) with its pictures in order.

    A folder that cannot be listed comes with None: what cannot be seen must not count as
    vanished. ``skip`` names folders by their real paths, such as the index itself.
    """
    home = os.path.realpath(root)
    visited: set[str] = set()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(os.path.join(root, folder))
        if real in visited or real in skip:
            continue
        visited.add(real)
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            yield folder, None
            continue
        found = []
        for entry in listed:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    inside = not entry.is_symlink() or _is_below(os.path.realpath(entry.path), home)
                    if inside and entry.name.casefold() not in SKIPPED_FOLDERS:
                        waiting.append(os.path.join(folder, entry.name))
                elif os.path.splitext(entry.name)[1].lower() in suffixes:
                    facts = entry.stat()
                    inside = not entry.is_symlink() or _is_below(os.path.realpath(entry.path), home)
                    if stat.S_ISREG(facts.st_mode) and inside:
                        found.append(FoundFile(entry.name, facts.st_size, facts.st_mtime_ns))
            except OSError:  # it vanished since it was listed, or its link leads nowhere
                continue
        yield folder, found


def _is_below(path: str, home: str) -> bool:
    return os.path.commonpath([path, home]) == home
