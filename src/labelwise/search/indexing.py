"""Bringing an index up to date with photos in folders and buckets.

Files that are new or changed (:mod:`looking`) are read and hashed: a known hash is a file that
moved or a copy, and takes the row it has; only new contents go through the network. Unreadable
files are remembered with their reason and tried again when they change.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from labelwise.data.images import EncodedImages, ImageSource
from labelwise.data.names import Names
from labelwise.data.raw import is_raw, raw_header
from labelwise.errors import DataError, ImageError
from labelwise.files import locked, replacing
from labelwise.predictions import Predictions
from labelwise.predictor import Predictor
from labelwise.progress import Watch
from labelwise.runs import RunFolder
from labelwise.scoring import Scored, available_cores, score
from labelwise.search.index import Index, IndexFacts
from labelwise.search.looking import Changes, FileToRead, look_at, look_into
from labelwise.search.store import Content, PhotoFile, Store
from labelwise.search.walk import root_place
from labelwise.storage import ObjectStorage, StorageError, is_uri, storage_at
from labelwise.taxonomy import Taxonomy

__all__ = ["update_index"]

MOST_BYTES = 256 << 20  # of one photo
ROWS_PER_WRITE = 4096
SECONDS_PER_WRITE = 20.0
ASIDE = "before-rebuild"
REQUESTS = 16  # that wait for object storage at once


def update_index(
    folder: Path,
    roots: Sequence[str | Path] = (),
    *,
    model: Path | None = None,
    device: str = "cpu",
    batch_size: int = 64,
    workers: int | None = None,
    decode: Literal["cpu", "cuda"] | None = None,
    rebuild: bool = False,
    forget_missing: bool = False,
    taxonomy: Path | None = None,
    only: Mapping[str, Collection[str]] | None = None,
    watch: Watch,
) -> Changes:
    """Bring the index in ``folder`` up to date with the photos below ``roots``, or make it.

    Without roots, those it was made of are looked at again; without a model, its own is used. A
    model with the same weights but another link or rule changes the answers, and no picture is
    read for it; one with other weights needs ``rebuild``. An interruption keeps what was scored.
    JPEGs are decoded by ``decode``, by default by what decoded the others of the index.
    ``only`` names, by root, the folders that changed, where that is known: no other is looked at.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, f"another process is indexing into {folder}; wait for it"):
        if taxonomy is not None:
            Taxonomy.read(taxonomy)
        index, place = _opened(folder, model, rebuild, decode)
        _require_device(index, device)
        if taxonomy is not None:
            with replacing(folder / "taxonomy.csv") as temporary:
                shutil.copyfile(taxonomy, temporary)
        known = list(index.store.roots().values())
        places = [root_place(os.fspath(root)) for root in roots] or known
        if not places:
            raise DataError("name at least one folder of photos to index")
        for root in places:
            if root not in known and not storage_at(root).is_folder():
                raise DataError(
                    f"{root} " + ("holds no files" if is_uri(root) else "is not a folder")
                )
        looked_at = dict.fromkeys(places) if only is None else only
        changes = _update(index, (place, device), looked_at, batch_size, workers, watch)
        if (folder / ASIDE).is_dir() and not changes.refused:
            _finish_rebuild(index)
        if forget_missing:
            changes.forgotten = index.store.forget_missing()
        index.store.close()
    return changes


# The model of an index


def _require_device(index: Index, device: str) -> None:
    if index.facts.decode == "cuda" and device.partition(":")[0] != "cuda":
        raise DataError(
            f"{index.folder} was made with --decode cuda, which needs --device cuda, got {device}; "
            "or score every photo again with --decode cpu --rebuild"
        )


def _opened(
    folder: Path, model: Path | None, rebuild: bool, decode: Literal["cpu", "cuda"] | None
) -> tuple[Index, Path]:
    """Return the index, new if there is none, and the folder of the model of its logits."""
    index = Index(folder) if (folder / "index.json").exists() else None
    if index is None and model is None:
        raise DataError("a new index needs a model: name a run with --model")
    place = model if model is not None else Path(index.facts.model if index else "")
    spec = RunFolder(place).spec
    if index is not None and decode not in (None, index.facts.decode):
        if not rebuild:
            raise DataError(
                f"{folder} was made with --decode {index.facts.decode}, got --decode {decode}; "
                "add --rebuild to score every photo again"
            )
        _start_rebuild(index)
        index = None
    elif index is not None:
        decode = index.facts.decode
    if index is not None and model is None and spec == index.spec:
        return index, place
    if index is not None and spec.weights_sha256 != index.spec.weights_sha256:
        if not rebuild:
            raise DataError(
                f"{folder} was made with other weights than {place} has; "
                "add --rebuild to score every photo again with them"
            )
        _start_rebuild(index)
        index = None
    held_out, split = _held_out(place)
    if index is None:
        facts = IndexFacts(model=os.path.abspath(place), held_out=split, decode=decode or "cpu")
        index = Index.create(folder, spec, facts)
        if (folder / ASIDE).is_dir():
            for root in Index(folder / ASIDE).store.roots().values():
                index.store.root(root)
    elif index.facts.held_out != split:
        index.facts = index.facts.model_copy(update={"held_out": split})
        index.facts.save(folder / "index.json")
    validation = RunFolder(place).predictions("val") if _sets_cuts(place, split) else None
    index.use(spec, held_out, validation)
    return index, place


def _held_out(run: Path) -> tuple[Predictions | None, str | None]:
    """Return the predictions to check answers on: all that fitted nothing, else others.

    The others are called "val" wherever they come from: no promise can be made on them.
    """
    folder = RunFolder(run)
    there = [name for name in ("promise", "test", "val") if name in folder.splits]
    untouched = [name for name in there if name not in folder.fitted_splits]
    if not there:
        return None, None
    if not untouched:
        return folder.predictions(there[0]), "val"
    parts = [folder.predictions(name) for name in untouched]
    held_out = parts[0] if len(parts) == 1 else parts[0].joined(parts[1])
    return held_out, " and ".join(untouched)


def _sets_cuts(run: Path, held_out: str | None) -> bool:
    """Return whether validation photos can say which cuts of a list are worth a test."""
    return held_out not in (None, "val") and "val" in RunFolder(run).splits


def _start_rebuild(index: Index) -> None:
    """Set the files of an index aside; its roots and corrections are taken up again."""
    index.store.close()
    aside = index.folder / ASIDE
    if aside.exists():  # an unfinished rebuild: the first index is the one to come back to
        for name in ("photos.sqlite", "model.json", "index.json"):
            (index.folder / name).unlink(missing_ok=True)
    else:
        aside.mkdir()
        for name in ("photos.sqlite", "model.json", "index.json"):
            os.replace(index.folder / name, aside / name)
    for name in ("scores", "embeddings", "cache"):
        shutil.rmtree(index.folder / name, ignore_errors=True)
    (index.folder / "projection.npy").unlink(missing_ok=True)


def _finish_rebuild(index: Index) -> None:
    """Carry the corrections over by content, and remove what was set aside."""
    before = Index(index.folder / ASIDE).store
    corrections = before.corrections()
    hashes = {
        row: one.hash for row, one in before.contents_of({c.row for c in corrections}).items()
    }
    rows = index.store.rows_by_hash(hashes.values())
    index.store.correct(
        [replace(one, row=rows[hashes[one.row]]) for one in corrections if hashes[one.row] in rows]
    )
    before.close()
    shutil.rmtree(index.folder / ASIDE)


# Reading, scoring, writing


def _update(
    index: Index,
    model: tuple[Path, str],
    roots: Mapping[str, Collection[str] | None],
    batch_size: int,
    workers: int | None,
    watch: Watch,
) -> Changes:
    changes, todo = Changes(), list[FileToRead]()
    for root, folders in roots.items():
        found = None if folders is None else look_into(index.store, root, folders, changes)
        todo += look_at(index.store, root, changes) if found is None else found
    if not todo:  # the model need not be read
        return changes
    predictor = Predictor.load(*model)
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
        pending.write()
        watch.finish()
    return changes


@dataclass(frozen=True)
class _Read:
    """A file that was read: its content; the row that has it already, or the file that is first.

    Where it cannot be read, ``reason`` says why.
    """

    content: Content | None = None
    row: int | None = None
    first: int | None = None
    reason: str | None = None


class _Files(EncodedImages):
    """The files to read, as images: each is read and hashed by the thread that decodes it.

    A content that is known, or that another of these files has, is not decoded; ``reads`` says so.
    ``outage`` is why a storage cannot be reached, which is no fault of a file.
    """

    def __init__(self, todo: Sequence[FileToRead], store: Store) -> None:
        self.todo, self.ids = todo, Names([item.file.name for item in todo])
        self.reads: dict[int, _Read] = {}
        self._store, self._lock = store, Lock()
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
            first = self._first.setdefault(digest, row)
            known = self._store.rows_by_hash([digest]).get(digest) if first == row else None
        if first != row or known is not None:
            of_file = None if first == row else first
            self.reads[row] = _Read(Content(digest, len(blob)), known, of_file)
            raise ImageError("its content is known")
        self.reads[row] = _Read(_content(digest, blob))
        return blob

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
        file, before = self.source.todo[number].file, self.source.todo[number].before
        self.files.append((replace(file, row=row), place))
        edited = before is not None and before.row is not None
        if before is not None and before.row is not None:
            self.edited.append((before.row, digest))
        if not scored:
            self.changes.copied += 1
        elif edited:
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
            store.append(self.contents, logits, self._embeddings(), self.files)
            rows = store.rows_by_hash(digest for _, digest in self.edited)
            store.carry_corrections((before, rows[digest]) for before, digest in self.edited)
            self.source.forget(self.places)
        self._clear()

    def _embeddings(self) -> NDArray[np.float16] | None:
        if not self.features:
            return None
        features = np.concatenate(self.features)
        projection = self.index.projection or self.index.start_projection(features)
        return projection(features)


def _content(digest: bytes, blob: bytes) -> Content:
    """Return what the header of a picture says of its size and time."""
    content = Content(digest, len(blob))
    with suppress(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError):
        if is_raw(blob):
            (width, height), exif = raw_header(blob)
        else:
            with Image.open(BytesIO(blob)) as image:
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
