"""Bringing an index up to date with photos in folders and buckets.

Files that are new or changed (:mod:`looking`) are read and hashed: a known hash is a file that
moved or a copy, and takes the row it has; only new contents go through the network. Unreadable
files are remembered with their reason and tried again when they change.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from labelwise.data import BytesImages
from labelwise.decoding import start_processes
from labelwise.errors import DataError
from labelwise.files import locked, replacing
from labelwise.predictions import Predictions
from labelwise.predictor import Predictor
from labelwise.progress import Watch
from labelwise.runs import RunFolder
from labelwise.scoring import available_cores, score
from labelwise.search.index import Index, IndexFacts
from labelwise.search.looking import Changes, FileToRead, look_at, look_into
from labelwise.search.store import Content, PhotoFile
from labelwise.search.walk import root_place
from labelwise.storage import ObjectStorage, is_uri, storage_at
from labelwise.taxonomy import Taxonomy

__all__ = ["update_index"]

BYTES_AT_ONCE = 256 << 20
FILES_AT_ONCE = 256
ROWS_PER_WRITE = 4096
SECONDS_PER_WRITE = 20.0
ASIDE = "before-rebuild"
REQUESTS = 16  # that wait for object storage at once


@dataclass(frozen=True)
class _Read:
    """A file that was read: its bytes and their hash, or why it cannot be."""

    todo: FileToRead
    blob: bytes = b""
    digest: bytes = b""
    reason: str | None = None


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
    validation = RunFolder(place).predictions("val") if _sets_cuts(place, split) else None
    index.use(spec, held_out, validation)
    return index, place


def _held_out(run: Path) -> tuple[Predictions | None, str | None]:
    """Return the predictions to check answers on; those that fitted nothing come first."""
    folder = RunFolder(run)
    split = next((name for name in ("promise", "test", "val") if name in folder.splits), None)
    return (None, None) if split is None else (folder.predictions(split), split)


def _sets_cuts(run: Path, held_out: str | None) -> bool:
    """Return whether validation photos can say which cuts of a list are worth a test."""
    return held_out in ("promise", "test") and "val" in RunFolder(run).splits


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
    if predictor.device.type == "cuda":
        start_processes(len(todo), workers or available_cores())
    watch.start("indexing", len(todo))
    pending = _Pending(index, changes)
    try:
        remote = any(isinstance(item.storage, ObjectStorage) for item in todo)
        with (
            ThreadPoolExecutor(REQUESTS if remote else workers or available_cores()) as readers,
            ThreadPoolExecutor(1) as ahead,
        ):
            reading = None
            for chunk in [*_chunks(todo), []]:
                following = ahead.submit(_read_chunk, readers, chunk)
                if reading is not None:
                    reads = reading.result()
                    _take_in(reads, pending, predictor, batch_size, workers)
                    watch.advance(len(reads))
                reading = following
    finally:
        pending.write()
        watch.finish()
    return changes


def _chunks(todo: Sequence[FileToRead]) -> Iterator[list[FileToRead]]:
    """Yield files in groups that fit in memory together."""
    group: list[FileToRead] = []
    size = 0
    for item in todo:
        if group and (size + item.file.size > BYTES_AT_ONCE or len(group) == FILES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(item)
        size += item.file.size
    if group:
        yield group


def _read_chunk(readers: ThreadPoolExecutor, chunk: Sequence[FileToRead]) -> list[_Read]:
    return list(readers.map(_read, chunk))


def _read(todo: FileToRead) -> _Read:
    name = os.path.join(todo.file.folder, todo.file.name)
    try:
        blob = todo.storage.read(name, 0, BYTES_AT_ONCE + 1)
    except OSError as error:
        reason = error.strerror or str(error)[:200]
        return _Read(todo, reason=f"the file cannot be opened ({reason})")
    if len(blob) > BYTES_AT_ONCE:
        return _Read(todo, reason=f"a photo must have at most {BYTES_AT_ONCE >> 20} MiB")
    return _Read(todo, blob, hashlib.sha256(blob).digest())


class _Pending:
    """Contents and files that were scored but not written yet."""

    def __init__(self, index: Index, changes: Changes) -> None:
        self.index, self.changes = index, changes
        self._clear()

    def _clear(self) -> None:
        self.began = time.monotonic()
        self.contents: list[Content] = []
        self.places: dict[bytes, int] = {}
        self.logits: list[NDArray[np.float32]] = []
        self.features: list[NDArray[np.float32]] = []
        self.files: list[tuple[PhotoFile, int | None]] = []
        self.edited: list[tuple[int, bytes]] = []

    def write_if_due(self) -> None:
        """Write when there is much, or when it was long ago."""
        if (
            len(self.contents) >= ROWS_PER_WRITE
            or time.monotonic() - self.began > SECONDS_PER_WRITE
        ):
            self.write()

    def write(self) -> None:
        """Make everything pending part of the index."""
        store = self.index.store
        if self.files:
            logits = np.concatenate([np.empty((0, len(store.labels)), np.float32), *self.logits])
            store.append(self.contents, logits, self._embeddings(), self.files)
            rows = store.rows_by_hash(digest for _, digest in self.edited)
            store.carry_corrections((before, rows[digest]) for before, digest in self.edited)
        self._clear()

    def _embeddings(self) -> NDArray[np.float16] | None:
        if not self.features:
            return None
        features = np.concatenate(self.features)
        projection = self.index.projection or self.index.start_projection(features)
        return projection(features)


def _take_in(
    reads: Sequence[_Read],
    pending: _Pending,
    predictor: Predictor,
    batch_size: int,
    workers: int | None,
) -> None:
    """Score what is new among some files that were read, and note all of them."""
    rows = pending.index.store.rows_by_hash({read.digest for read in reads if read.digest})
    fresh: dict[bytes, _Read] = {}
    for read in reads:
        if read.digest and read.digest not in rows and read.digest not in pending.places:
            fresh.setdefault(read.digest, read)
    reasons = _scored(fresh, pending, predictor, batch_size, workers)
    for read in reads:
        _note(read, rows, fresh, reasons, pending)
    pending.write_if_due()


def _scored(
    fresh: dict[bytes, _Read],
    pending: _Pending,
    predictor: Predictor,
    batch_size: int,
    workers: int | None,
) -> dict[bytes, str]:
    """Put new contents through the network; return why some cannot be."""
    order = list(fresh)
    names = [fresh[digest].todo.file.name for digest in order]
    images = BytesImages([fresh[digest].blob for digest in order], names)
    reasons: dict[bytes, str] = {}
    parts = score(
        predictor,
        images,
        batch_size=batch_size,
        workers=workers,
        embed=True,
        decode=pending.index.facts.decode,
    )
    for part in parts:
        for row in part.rows.tolist():
            digest = order[row]
            pending.places[digest] = len(pending.contents)
            pending.contents.append(_content(digest, fresh[digest].blob))
        if len(part) and part.embeddings is not None:
            pending.logits.append(part.logits.numpy())
            pending.features.append(part.embeddings.numpy())
        reasons |= {order[failure.row]: failure.reason for failure in part.failures}
    return reasons


def _note(
    read: _Read,
    rows: dict[bytes, int],
    fresh: dict[bytes, _Read],
    reasons: dict[bytes, str],
    pending: _Pending,
) -> None:
    """Note one file: unreadable, of a known content, or of a new one."""
    file, before, changes = read.todo.file, read.todo.before, pending.changes
    reason = read.reason or reasons.get(read.digest)
    if reason is not None:
        pending.files.append((replace(file, state="failed", reason=reason), None))
        changes.failed += 1
        return
    if read.digest in rows:
        pending.files.append((replace(file, row=rows[read.digest]), None))
    else:
        pending.files.append((file, pending.places[read.digest]))
    edited = before is not None and before.row is not None
    if before is not None and before.row is not None:
        pending.edited.append((before.row, read.digest))
    if fresh.get(read.digest) is not read:
        changes.copied += 1
    elif edited:
        changes.changed += 1
    else:
        changes.new += 1


def _content(digest: bytes, blob: bytes) -> Content:
    """Return what the header of a picture says of its size and time."""
    content = Content(digest, len(blob))
    with suppress(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError):
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
