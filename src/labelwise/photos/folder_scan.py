"""Looking at folders and buckets: what is new, changed, back or gone since they were last seen.

A file of known size and time of change is unchanged. What is gone is marked missing, never deleted;
a root that is empty or not there, such as a disk that is not mounted, changes nothing. Hidden
files, folders of photo tools and links that lead out of the root are passed over.
"""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from labelwise.errors import DataError, LabelwiseError
from labelwise.photos.store import PhotoFile, Store
from labelwise.pictures.decode import (
    FORMATS,
    IMAGE_SUFFIXES,
    RAW_SUFFIXES,
    UNREAD_SUFFIXES,
    install_for,
    was_too_large,
)
from labelwise.pictures.sources import read_image_file
from labelwise.system.storage import (
    ObjectStorage,
    Storage,
    StorageError,
    StoredFile,
    address_of,
    is_uri,
    storage_at,
    without_options,
)
from labelwise.system.text import counted


@dataclass(frozen=True)
class PhotoFiles:
    """The files (root, name) that held a photo when they were indexed, and its hash."""

    digest: bytes
    places: tuple[tuple[str, str], ...]

    def read(self) -> tuple[bytes, str] | None:
        """Return the bytes of the photo and its name, from a file that still holds that photo.

        None where no file does. Where a storage did not answer and no other file holds the photo,
        its StorageError is raised. A link that leads out of its root is not followed.
        """
        unasked: StorageError | None = None
        for root, name in self.places:
            try:
                storage = storage_at(root)
                if isinstance(storage, ObjectStorage):
                    blob = storage.read(name)
                else:
                    path = os.path.realpath(os.path.join(root, name))
                    if not is_below(path, os.path.realpath(root)):
                        continue
                    blob = read_image_file(Path(path), name)
            except StorageError as error:
                unasked = error
                continue
            except (OSError, LabelwiseError):
                continue
            if hashlib.sha256(blob).digest() == self.digest:
                return blob, os.path.basename(name)
        if unasked is not None:
            raise unasked
        return None


NAMED_SUFFIXES = IMAGE_SUFFIXES | UNREAD_SUFFIXES
PICTURE_SUFFIXES = IMAGE_SUFFIXES - RAW_SUFFIXES
Folder = tuple[str, list[StoredFile] | None]
SKIPPED_FOLDERS = frozenset(
    {"@eadir", "#recycle", "#snapshot", "lost+found", "thumbnails", "$recycle.bin"}
)


@dataclass
class Changes:
    """What bringing an index up to date found, counted in files."""

    unchanged: int = 0
    new: int = 0
    changed: int = 0
    moved: int = 0
    copied: int = 0  # their content was known, and is where it was too
    failed: int = 0
    missing: int = 0
    forgotten: int = 0
    refused: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)  # by their endings
    unlike: str = ""  # how the library differs from the held-out photos, in words
    repeated: str = ""  # how many photos are near copies, in words
    came: list[int] = field(default_factory=list)  # known rows that files were found of
    went: list[int] = field(default_factory=list)  # rows of files that are gone

    @property
    def anything(self) -> bool:
        """Whether anything is other than it was known."""
        counts = self.new + self.changed + self.moved + self.copied + self.failed
        return bool(counts + self.missing)

    def settle(self) -> None:
        """Count files that are gone from one place and were found at another as moved."""
        moved = (Counter(self.came) & Counter(self.went)).total()
        self.moved += moved
        self.copied -= moved
        self.missing -= moved
        self.came, self.went = [], []

    @property
    def notes(self) -> list[str]:
        """What was passed over, in words, and what would help."""
        raw = sum(count for suffix, count in self.unread.items() if suffix in RAW_SUFFIXES)
        dicom = sum(self.unread[suffix] for suffix in FORMATS["DICOM"])
        others, install = self.unread.total() - raw - dicom, "pip install 'labelwise[photos]'"
        passed = (
            (others, "HEIC photo", "", install),
            (dicom, "DICOM file", "", install_for([".dcm"])),
            (raw, "RAW photo", " without a JPEG beside", install),
        )
        return [note for note in (self.unlike, self.repeated) if note] + [
            f"{counted(count, what)}{more} passed over; {how} reads them"
            for count, what, more, how in passed
            if count
        ]

    def __str__(self) -> str:
        names = "new changed moved copied unchanged failed missing forgotten"
        words = names.replace("failed", "unreadable")
        counts = {
            word: getattr(self, n) for word, n in zip(words.split(), names.split(), strict=True)
        }
        nothing = "nothing changed" if self.refused else "no photos found"
        return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or nothing


@dataclass(frozen=True)
class FileToRead:
    """A file that must be read, what was known of it, and the storage of its root."""

    file: PhotoFile
    before: PhotoFile | None
    storage: Storage


def look_at(
    store: Store, root: str, changes: Changes, more: frozenset[str] = frozenset()
) -> list[FileToRead]:
    """Compare one root with what is known of it; return the files that must be read.

    ``more`` are endings that are pictures to the model of this index, beside the usual ones.
    """
    storage, number = storage_at(root), store.root(root)
    todo, back, unlisted = list[FileToRead](), list[PhotoFile](), list[str]()
    lost, unchanged = dict[str, list[str]](), 0  # names that are gone, by folder
    if isinstance(storage, ObjectStorage):
        listed: Iterator[Folder] = storage.folders(SKIPPED_FOLDERS)
    else:
        listed = photos_below(root, NAMED_SUFFIXES | more, {os.path.realpath(store.folder)})
    for folder, files in listed:
        if files is None:
            unlisted.append(folder)
            continue
        before = store.files_in(number, folder)
        named = [(*os.path.splitext(file.name.lower()), file) for file in files]
        pictures = {stem.casefold() for stem, end, _ in named if end in PICTURE_SUFFIXES}
        for stem, suffix, file in named:
            if suffix in RAW_SUFFIXES and stem.casefold() in pictures:  # a pair is one photo
                continue
            if suffix not in IMAGE_SUFFIXES | more:
                changes.unread.update({suffix} & NAMED_SUFFIXES)
                continue
            was = before.pop(file.name, None)
            same = was is not None and (was.size, was.mtime_ns) == (file.size, file.mtime_ns)
            if was is None or not same or was_too_large(was.reason or ""):
                photo = PhotoFile(number, folder, file.name, file.size, file.mtime_ns)
                todo.append(FileToRead(photo, was, storage))
            elif was.state == "missing":
                back.append(replace(was, state="failed" if was.row is None else "ok"))
            else:
                unchanged += 1
        lost[folder] = [name for name, was in before.items() if was.state != "missing"]
    if not (todo or back or unchanged):
        known = store.count_files(number)
        if present := known.get("ok", 0) + known.get("failed", 0):
            is_there = "its address right" if is_uri(root) else "its disk mounted"
            changes.refused.append(
                f"{without_options(root)} holds no photos now, but {present:,} were indexed there; "
                f"is {is_there}? Nothing was changed"
            )
            return []
    changes.unlisted += [address_of(root, folder) for folder in unlisted]
    changes.unchanged += unchanged + len(back)
    with store.transaction():
        store.put_files(back)
        gone = [store.mark_missing(number, *names) for names in lost.items() if names[1]]
        for folder in store.folders_of(number) - lost.keys():
            if not any(c in ("", folder) or folder.startswith(c + os.sep) for c in unlisted):
                gone.append(store.mark_missing(number, folder))
    changes.missing += sum(map(len, gone))
    changes.went += [row for rows in gone for row in rows if row is not None]
    return todo


# Which files are photos


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
    root: str, suffixes: Collection[str], skip: Collection[str] = ()
) -> Iterator[Folder]:
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
        files = []
        for entry in listed:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_symlink() and not is_below(os.path.realpath(entry.path), home):
                    continue
                if entry.is_dir():
                    if entry.name.casefold() not in SKIPPED_FOLDERS:
                        waiting.append(os.path.join(folder, entry.name))
                elif os.path.splitext(entry.name)[1].lower() in suffixes:
                    facts = entry.stat()
                    if stat.S_ISREG(facts.st_mode):
                        files.append(StoredFile(entry.name, facts.st_size, facts.st_mtime_ns))
            except OSError:  # it vanished since it was listed, or its link leads nowhere
                continue
        yield folder, files


def is_below(path: str, home: str) -> bool:
    """Return whether a real path is the real folder ``home`` or lies below it."""
    return os.path.commonpath([path, home]) == home
