"""Files that are new or changed: read, hashed, scored, and written to an index.

A known hash is a file that moved or a copy, and takes the row it has; only new contents go through
the network. Unreadable files are remembered with their reason and tried again when they change.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags

from labelwise.errors import ImageError
from labelwise.models.scoring import DeployedModel, Scored, score
from labelwise.photos.index import Index
from labelwise.photos.looking import Changes, FileToRead
from labelwise.photos.store import Content, PhotoFile
from labelwise.pictures.ahead import available_cores
from labelwise.pictures.decode import is_raw, open_picture
from labelwise.pictures.raw import raw_header
from labelwise.pictures.sources import EncodedImages, ImageSource
from labelwise.system.names import Names
from labelwise.system.progress import Watch
from labelwise.system.storage import ObjectStorage, StorageError

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
    files = _Files(index, todo, changes)
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
            files.take_in(part)
            watch.advance(len(part.rows) + len(part.failures))
    finally:
        # An interruption closes the store while threads still read, and SQLite may crash where a
        # connection is closed under a question.
        with files.lock:
            files.closed = True
        files.write()
        watch.finish()


@dataclass(frozen=True)
class _Read:
    """A content that was read; ``row`` has it already, or the file number ``first`` has it too."""

    content: Content
    row: int | None = None
    first: int | None = None


@dataclass
class _Unwritten:
    """Contents and files that were scored but not written yet."""

    began: float = field(default_factory=time.monotonic)
    contents: list[Content] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    features: list[NDArray[np.float32]] = field(default_factory=list)
    looks: list[NDArray[np.float16]] = field(default_factory=list)
    files: list[tuple[PhotoFile, int | None]] = field(default_factory=list)
    edited: list[tuple[int, bytes]] = field(default_factory=list)


class _Files(EncodedImages):
    """The files to read, as images: each is read and hashed by the thread that decodes it.

    A content that is known, or that another of these files has, is not decoded; ``reads`` says so,
    until the answers about these files are taken in. ``outage`` is why a storage cannot be
    reached, which is not the fault of a file.
    """

    def __init__(self, index: Index, todo: Sequence[FileToRead], changes: Changes) -> None:
        self.index, self.todo, self.changes = index, todo, changes
        self.ids = Names([item.file.name for item in todo])
        self.reads: dict[int, _Read] = {}
        self.lock, self.closed = Lock(), False  # of what threads ask the store
        self.first: dict[bytes, int] = {}
        self.outage: StorageError | None = None
        self.unwritten = _Unwritten()
        self.copies: list[tuple[int, bytes]] = []  # of files that are not scored yet
        self.reasons: dict[bytes, str] = {}

    def content(self, row: int) -> bytes:
        try:
            blob = _read(self.todo[row])
        except StorageError as error:
            self.outage = error
            raise
        digest = hashlib.sha256(blob).digest()
        with self.lock:
            if self.closed:
                raise ImageError("the index takes nothing more")
            first, known = self.first.setdefault(digest, row), None
            if first == row:
                known = self.index.store.rows_by_hash([digest]).get(digest)
        if first != row or known is not None:
            of_file = None if first == row else first
            self.reads[row] = _Read(Content(digest, len(blob)), known, of_file)
            raise ImageError("its content is known")
        self.reads[row] = _Read(_content(digest, blob))
        return blob

    def subset(self, rows: NDArray[np.int64]) -> "ImageSource":
        raise NotImplementedError("files to index are read together")

    def take_in(self, part: Scored) -> None:
        """Note the files of a batch: scored, of a known content, or unreadable."""
        new = self.unwritten
        for number in part.rows.tolist():
            content = self.reads.pop(number).content
            new.places[content.hash] = len(new.contents)
            new.contents.append(content)
            self._note(number, content.hash, new.places[content.hash], scored=True)
        if len(part.rows) and part.embeddings is not None:
            new.logits.append(part.logits.numpy())
            new.features.append(part.embeddings.numpy())
        if len(part.rows) and part.looks is not None:
            new.looks.append(part.looks.numpy().astype(np.float16))
        if self.outage is not None:
            raise self.outage
        for failure in part.failures:
            read = self.reads.pop(failure.row, None)
            if read is not None and read.first is not None:
                self.copies.append((failure.row, read.content.hash))
            elif read is not None and read.row is not None:
                self._note(failure.row, read.content.hash, None, row=read.row)
            else:
                self._fail(failure.row, failure.reason)
                if read is not None:
                    self.reasons[read.content.hash] = failure.reason
        self._note_copies()
        if len(new.contents) >= ROWS_PER_WRITE or time.monotonic() - new.began > SECONDS_PER_WRITE:
            self.write()

    def _note_copies(self) -> None:
        """Note the copies of files that were scored, or found unreadable, by now."""
        waiting, places = [], self.unwritten.places
        for number, digest in self.copies:
            if digest in places:
                self._note(number, digest, places[digest])
            elif digest in self.reasons:
                self._fail(number, self.reasons[digest])
            elif known := self.index.store.rows_by_hash([digest]):
                self._note(number, digest, None, row=known[digest])
            else:
                waiting.append((number, digest))
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
        item = self.todo[number]
        before = None if item.before is None else item.before.row
        self.unwritten.files.append((replace(item.file, row=row), place))
        if before is not None:
            self.unwritten.edited.append((before, digest))
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
        file = replace(self.todo[number].file, state="failed", reason=reason)
        self.unwritten.files.append((file, None))
        self.changes.failed += 1

    def write(self) -> None:
        """Make everything that is unwritten part of the index."""
        store, new, embeddings = self.index.store, self.unwritten, None
        if new.files:
            logits = np.concatenate([np.empty((0, len(store.labels)), np.float32), *new.logits])
            if new.features:
                features, looks_like = np.concatenate(new.features), self.index.look_alikes
                projection = looks_like.projection or looks_like.start_projection(features)
                embeddings = projection(features)
            looks = np.concatenate(new.looks) if new.looks else None
            store.append(new.contents, logits, embeddings, new.files, looks)
            if new.edited:
                rows = store.rows_by_hash(digest for _, digest in new.edited)
                store.carry_corrections((before, rows[digest]) for before, digest in new.edited)
            with self.lock:  # the store knows by now which file was first with these contents
                for digest in new.places:
                    self.first.pop(digest, None)
        self.unwritten = _Unwritten()


def _read(todo: FileToRead) -> bytes:
    try:
        blob = todo.storage.read(os.path.join(todo.file.folder, todo.file.name), 0, MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)[:200]
        raise ImageError(f"the file cannot be opened ({reason})") from None
    if len(blob) > MOST_BYTES:
        raise ImageError(f"a photo must have at most {MOST_BYTES >> 20} MiB")
    return blob


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
        moment = time.strptime(str(taken).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        content = replace(content, taken=time.strftime("%Y-%m-%dT%H:%M:%S", moment))
    return content
