"""Files that are new or changed: read, hashed, scored, and written to an index.

A known hash is a file that moved or a copy, and takes the row it has; only new contents go through
the network. Unreadable files are remembered with their reason and tried again when they change.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags

from labelwise.errors import ImageError
from labelwise.models.scoring import DeployedModel, Scored, available_cores, score
from labelwise.pictures.decode import is_raw, open_picture
from labelwise.pictures.raw import raw_header
from labelwise.pictures.sources import EncodedImages, ImageSource
from labelwise.search.index import Index
from labelwise.search.looking import Changes, FileToRead
from labelwise.search.store import Content, PhotoFile, Store
from labelwise.system.names import Names
from labelwise.system.progress import Watch
from labelwise.system.storage import ObjectStorage, StorageError

__all__ = ["score_files"]

MOST_BYTES = 256 << 20  # of one photo
ROWS_PER_WRITE = 4096
SECONDS_PER_WRITE = 20.0
REQUESTS = 16  # that wait for object storage at once


def score_files(
    index: Index,
    predictor: DeployedModel,
    todo: Sequence[FileToRead],
    changes: Changes,
    *,
    batch_size: int,
    workers: int | None,
    watch: Watch,
) -> None:
    """Make files part of an index, and count in ``changes`` what they were.

    An interruption keeps what was scored.
    """
    if any(isinstance(item.storage, ObjectStorage) for item in todo):
        workers = max(REQUESTS, workers or available_cores())
    watch.start("indexing", len(todo))
    files = _Files(todo, index.store)
    pending = _Pending(index, files, changes)
    try:
        parts = score(
            predictor,
            files,
            batch_size=batch_size,
            workers=workers,
            embed=True,
            decode=index.facts.decode,
        )
        for part in parts:
            pending.take_in(part)
            watch.advance(len(part) + len(part.failures))
    finally:
        files.close()
        pending.write()
        watch.finish()


@dataclass(frozen=True)
class _Read:
    """A file that was read, and its content.

    ``row`` has this content already, or the file number ``first`` has it too. Where the file
    cannot be read, ``reason`` says why.
    """

    content: Content | None = None
    row: int | None = None
    first: int | None = None
    reason: str | None = None


class _Files(EncodedImages):
    """The files to read, as images: each is read and hashed by the thread that decodes it.

    A content that is known, or that another of these files has, is not decoded; ``reads`` says so.
    ``outage`` is why a storage cannot be reached, which is not the fault of a file.
    """

    def __init__(self, todo: Sequence[FileToRead], store: Store) -> None:
        self.todo, self.ids = todo, Names([item.file.name for item in todo])
        self.reads: dict[int, _Read] = {}
        self._store, self._lock, self._closed = store, Lock(), False
        self._first: dict[bytes, int] = {}
        self.outage: StorageError | None = None

    def content(self, row: int) -> bytes:
        try:
            blob = _read(self.todo[row])
        except ImageError as error:
            self.reads[row] = _Read(reason=str(error))
            raise
        except StorageError as error:
            self.outage = error
            raise
        digest = hashlib.sha256(blob).digest()
        with self._lock:
            if self._closed:
                raise ImageError("the index takes nothing more")
            first = self._first.setdefault(digest, row)
            known = self._store.rows_by_hash([digest]).get(digest) if first == row else None
        if first != row or known is not None:
            of_file = None if first == row else first
            self.reads[row] = _Read(Content(digest, len(blob)), known, of_file)
            raise ImageError("its content is known")
        self.reads[row] = _Read(_content(digest, blob))
        return blob

    def close(self) -> None:
        """Ask the store nothing more, which an interruption closes while threads still read.

        SQLite may crash where a connection is closed under a question.
        """
        with self._lock:
            self._closed = True

    def subset(self, rows: NDArray[np.int64]) -> "ImageSource":
        raise NotImplementedError("files to index are read together")

    def forget(self, digests: Iterable[bytes]) -> None:
        """Forget which file was first with contents that the store knows by now."""
        with self._lock:
            for digest in digests:
                self._first.pop(digest, None)


def _read(todo: FileToRead) -> bytes:
    try:
        blob = todo.storage.read(os.path.join(todo.file.folder, todo.file.name), 0, MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)[:200]
        raise ImageError(f"the file cannot be opened ({reason})") from None
    if len(blob) > MOST_BYTES:
        raise ImageError(f"a photo must have at most {MOST_BYTES >> 20} MiB")
    return blob


class _Pending:
    """Contents and files that were scored but not written yet."""

    def __init__(self, index: Index, source: _Files, changes: Changes) -> None:
        self.index, self.source, self.changes = index, source, changes
        self.copies: list[tuple[int, _Read]] = []  # of files that are not scored yet
        self.reasons: dict[bytes, str] = {}
        self._clear()

    def _clear(self) -> None:
        self.began = time.monotonic()
        self.contents: list[Content] = []
        self.places: dict[bytes, int] = {}
        self.logits: list[NDArray[np.float32]] = []
        self.features: list[NDArray[np.float32]] = []
        self.looks: list[NDArray[np.float16]] = []
        self.files: list[tuple[PhotoFile, int | None]] = []
        self.edited: list[tuple[int, bytes]] = []

    def take_in(self, part: Scored) -> None:
        """Note the files of a batch: scored, of a known content, or unreadable."""
        for number in part.rows.tolist():
            content = self.source.reads.pop(number).content
            if content is None:
                raise RuntimeError(f"file {number} was scored without having been read")
            self.places[content.hash] = len(self.contents)
            self.contents.append(content)
            self._note(number, content.hash, self.places[content.hash], scored=True)
        if len(part) and part.embeddings is not None:
            self.logits.append(part.logits.numpy())
            self.features.append(part.embeddings.numpy())
        if len(part) and part.looks is not None:
            self.looks.append(part.looks.numpy().astype(np.float16))
        if self.source.outage is not None:
            raise self.source.outage
        for failure in part.failures:
            read = self.source.reads.pop(failure.row, _Read())
            if read.first is not None:
                self.copies.append((failure.row, read))
            elif read.row is not None and read.content is not None:
                self._note(failure.row, read.content.hash, None, row=read.row)
            else:
                reason = read.reason or failure.reason
                self._fail(failure.row, reason)
                if read.content is not None:
                    self.reasons[read.content.hash] = reason
        self._note_copies()
        if (
            len(self.contents) >= ROWS_PER_WRITE
            or time.monotonic() - self.began > SECONDS_PER_WRITE
        ):
            self.write()

    def _note_copies(self) -> None:
        """Note the copies of files that were scored, or found unreadable, by now."""
        waiting = []
        for number, read in self.copies:
            digest = b"" if read.content is None else read.content.hash
            if digest in self.places:
                self._note(number, digest, self.places[digest])
            elif digest in self.reasons:
                self._fail(number, self.reasons[digest])
            elif known := self.index.store.rows_by_hash([digest]):
                self._note(number, digest, None, row=known[digest])
            else:
                waiting.append((number, read))
        self.copies = waiting

    def _note(
        self,
        number: int,
        digest: bytes,
        place: int | None,
        *,
        row: int | None = None,
        scored: bool = False,
    ) -> None:
        """Note a file by its ``place`` among the new contents, or by the row it has already."""
        item = self.source.todo[number]
        before = None if item.before is None else item.before.row
        self.files.append((replace(item.file, row=row), place))
        if before is not None:
            self.edited.append((before, digest))
        if row is not None and row == before:  # written again with the same content
            self.changes.unchanged += 1
        elif not scored:
            self.changes.copied += 1
            self.changes.came += [] if row is None else [row]
        elif before is not None:
            self.changes.changed += 1
        else:
            self.changes.new += 1

    def _fail(self, number: int, reason: str) -> None:
        file = self.source.todo[number].file
        self.files.append((replace(file, state="failed", reason=reason), None))
        self.changes.failed += 1

    def write(self) -> None:
        """Make everything pending part of the index."""
        store = self.index.store
        if self.files:
            logits = np.concatenate([np.empty((0, len(store.labels)), np.float32), *self.logits])
            looks = np.concatenate(self.looks) if self.looks else None
            store.append(self.contents, logits, self._embeddings(), self.files, looks)
            rows = store.rows_by_hash(digest for _, digest in self.edited)
            store.carry_corrections((before, rows[digest]) for before, digest in self.edited)
            self.source.forget(self.places)
        self._clear()

    def _embeddings(self) -> NDArray[np.float16] | None:
        if not self.features:
            return None
        features = np.concatenate(self.features)
        looks = self.index.look_alikes
        projection = looks.projection or looks.start_projection(features)
        return projection(features)


def _content(digest: bytes, blob: bytes) -> Content:
    """Return what the header of a picture says of its size and time."""
    content = Content(digest, len(blob))
    with suppress(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError):
        if is_raw(blob):
            (width, height), exif = raw_header(blob)
        else:
            with open_picture(blob) as image:
                width, height = image.size
                exif = image.getexif()
            if exif.get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8):  # lies on its side
                width, height = height, width
        content = replace(content, width=width, height=height)
        taken = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
        content = replace(content, taken=_time(taken))
    return content


def _time(text: Any) -> str | None:
    """Return the EXIF time ``2024:05:01 12:00:00`` as ``2024-05-01T12:00:00``."""
    try:
        taken = time.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except ValueError:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S", taken)
