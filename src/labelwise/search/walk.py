"""Which files below a folder or in a bucket are photos, and what is passed over.

Passed over are hidden files and folders, the folders that photo tools and network disks keep their
own pictures in, links that lead out of the root or back into it, and everything but regular
files. Names are compared as the system spells them; what a name looks like is left alone.
"""

import os
import stat
from collections.abc import Collection, Iterator
from urllib.parse import unquote, urlsplit

from labelwise.errors import DataError
from labelwise.system.storage import ObjectStorage, StoredFile, is_uri, storage_at

__all__ = ["is_below", "is_passed_over", "photos_below", "root_place"]

SKIPPED_FOLDERS = frozenset(
    {"@eadir", "#recycle", "#snapshot", "lost+found", "thumbnails", "$recycle.bin"}
)


def root_place(root: str) -> str:
    """Return the one spelling of a root: an absolute path, or a URI without a closing slash."""
    if not is_uri(root):
        return os.path.abspath(root)
    parts = urlsplit(root)
    if parts.scheme == "file":
        return os.path.abspath(unquote(parts.path))
    if not parts.netloc:
        raise DataError(f"{root} names no bucket; give {parts.scheme}://BUCKET/FOLDER")
    if "@" in parts.netloc:
        raise DataError(
            f"{parts.scheme}://...@{parts.hostname}: an index keeps the address of its photos, so "
            "it must hold no password; give keys by the environment, such as AWS_ACCESS_KEY_ID"
        )
    return parts._replace(path=parts.path.rstrip("/")).geturl()


def photos_below(
    root: str, suffixes: Collection[str], skip: Collection[str] = (), *, start: str = ""
) -> Iterator[tuple[str, list[StoredFile] | None]]:
    """Yield each folder below ``root`` (relative, "" for itself) with its pictures in order.

    A folder that cannot be listed comes with None: what cannot be seen must not count as
    vanished. ``skip`` names folders by their real paths, such as the index itself; on disk,
    ``start`` is the folder to begin at, which comes first.
    """
    storage = storage_at(root)
    if isinstance(storage, ObjectStorage):
        for folder, files in storage.folders(SKIPPED_FOLDERS):
            yield (
                folder,
                [one for one in files if os.path.splitext(one.name)[1].lower() in suffixes],
            )
    else:
        yield from _on_disk(root, suffixes, skip, start)


def _on_disk(
    root: str, suffixes: Collection[str], skip: Collection[str], start: str
) -> Iterator[tuple[str, list[StoredFile] | None]]:
    home = os.path.realpath(root)
    visited: set[str] = set()
    waiting = [start]
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
                if entry.is_symlink() and not is_below(os.path.realpath(entry.path), home):
                    continue
                if entry.is_dir():
                    if not is_passed_over(entry.name):
                        waiting.append(os.path.join(folder, entry.name))
                elif os.path.splitext(entry.name)[1].lower() in suffixes:
                    facts = entry.stat()
                    if stat.S_ISREG(facts.st_mode):
                        found.append(StoredFile(entry.name, facts.st_size, facts.st_mtime_ns))
            except OSError:  # it vanished since it was listed, or its link leads nowhere
                continue
        yield folder, found


def is_passed_over(name: str) -> bool:
    """Return whether folders of this name are passed over: hidden ones, and those of tools."""
    return name.startswith(".") or name.casefold() in SKIPPED_FOLDERS


def is_below(path: str, home: str) -> bool:
    """Return whether a real path is the real folder ``home`` or lies below it."""
    return os.path.commonpath([path, home]) == home
