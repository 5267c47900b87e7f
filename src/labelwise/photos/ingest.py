"""Bringing an index up to date with photos in folders and buckets.

A file of known size and time of change is unchanged. What is gone is marked missing, never deleted;
a root that is empty or not there, such as a disk that is not mounted, changes nothing.

Other weights, another decoder or a damaged file need a rebuild: a new index grows in a folder of
the old one, which goes on to answer. The new one takes its place when every photo has been scored.
What people said, and what is known of files that were written beside photos, is carried over.
"""

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags

from labelwise.base.files import locked, replacing, write_error
from labelwise.base.names import Names
from labelwise.base.progress import Watch
from labelwise.base.storage import (
    SYSTEM_FOLDERS,
    ObjectStorage,
    Storage,
    StorageError,
    StoredFile,
    address_of,
    is_uri,
    left_out_note,
    storage_at,
    walk,
    without_options,
)
from labelwise.base.text import counted
from labelwise.errors import CheckpointError, DataError, ImageError
from labelwise.models.loading import load_model, spec_of
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.models.scoring import DeployedModel, Scored, score
from labelwise.models.spec import ModelSpec
from labelwise.photos.embeddings import PROJECTION_FILE
from labelwise.photos.filters import near_copies
from labelwise.photos.index import LIKENESS_FILE, Index, IndexFacts
from labelwise.photos.lists import carry_receipts
from labelwise.photos.shift import PICTURES_FILE, HeldOutPictures, likeness_of
from labelwise.photos.store import ANSWERS_FILE, PART, Content, PhotoFile, Store
from labelwise.pictures.decode import (
    FORMATS,
    IMAGE_SUFFIXES,
    RAW_SUFFIXES,
    UNREAD_SUFFIXES,
    exif_of,
    install_for,
    is_raw,
    open_picture,
    raw_header,
    was_too_large,
)
from labelwise.pictures.multiband import BAND_SUFFIXES
from labelwise.pictures.prefetch import available_cores
from labelwise.pictures.sources import EncodedImages, ImageSource
from labelwise.taxonomy import Taxonomy

MOST_BYTES = 256 << 20  # of one photo
TAXONOMY_FILE = "taxonomy.csv"
ROWS_PER_WRITE = 4096
SECONDS_PER_WRITE = 20.0
REQUESTS = 16  # that wait for object storage at once
REBUILDING, REBUILT = ".rebuilding", ".rebuilt"  # an index that grows, one that is complete
REPLACED = (
    *("photos.sqlite*", "index.json", "model.json", "held-out.parquet", "validation.parquet"),
    *(TAXONOMY_FILE, PROJECTION_FILE, PICTURES_FILE, LIKENESS_FILE, "cache/copies.bin*"),
    *(f"{kind}/{PART}" for kind in ("scores", "embeddings", "looks")),
    *(f"cache/{kind}-*.bin*" for kind in ("scores", "embeddings", "looks", "p", "q")),
)  # files of an index of which a rebuilt one has its own; no other file is touched
WRITTEN_FIRST = ("photos.sqlite", "model.json", ".")  # of an index whose making was stopped
NAMED_SUFFIXES = IMAGE_SUFFIXES | UNREAD_SUFFIXES
PICTURE_SUFFIXES = IMAGE_SUFFIXES - RAW_SUFFIXES
Logits = NDArray[np.float32]
Folder = tuple[str, list[StoredFile] | None]


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
    left_out: Counter[str] = field(default_factory=Counter)  # by their kinds
    unlike: str = ""  # how the library differs from the held-out photos, in words
    repeated: str = ""  # how many photos are near copies, in words
    came: list[int] = field(default_factory=list)  # known rows that files were found of
    went: list[int] = field(default_factory=list)  # rows of files that are gone

    @property
    def anything(self) -> bool:
        return any((self.new, self.changed, self.moved, self.copied, self.failed, self.missing))

    def settle(self) -> None:
        """Count files that are gone from one place and were found at another as moved."""
        moved = (Counter(self.came) & Counter(self.went)).total()
        self.moved += moved
        self.copied -= moved
        self.missing -= moved
        self.came, self.went = [], []

    @property
    def notes(self) -> list[str]:
        raw = sum(count for suffix, count in self.unread.items() if suffix in RAW_SUFFIXES)
        dicom = sum(self.unread[suffix] for suffix in FORMATS["DICOM"])
        others, install = self.unread.total() - raw - dicom, "pip install 'labelwise[photos]'"
        passed = (
            (others, "HEIC photo", "", install),
            (dicom, "DICOM file", "", install_for([".dcm"])),
            (raw, "RAW photo", " without a JPEG beside", install),
        )
        told = self.unlike, self.repeated, left_out_note(self.left_out)
        return [note for note in told if note] + [
            f"{counted(count, what)}{more} passed over; {how} reads them"
            for count, what, more, how in passed
            if count
        ]

    def __str__(self) -> str:
        names = ("new", "changed", "moved", "copied", "unchanged", "failed", "missing", "forgotten")
        counts = [f"{getattr(self, name):,} {name}" for name in names if getattr(self, name)]
        nothing = "nothing changed" if self.refused else "no photos found"
        return ", ".join(counts).replace("failed", "unreadable") or nothing


@dataclass(frozen=True)
class FileToRead:
    """A file that must be read, what was known of it, and the storage of its root."""

    file: PhotoFile
    before: PhotoFile | None
    storage: Storage


def look_at(
    store: Store, root: str, changes: Changes, more: frozenset[str] = frozenset()
) -> list[FileToRead]:
    """Compare one root with what is known; return the files to read, also of ``more`` endings."""
    storage, number = storage_at(root), store.root(root)
    todo, back, unlisted = list[FileToRead](), list[PhotoFile](), list[str]()
    lost, unchanged = dict[str, list[str]](), 0  # names that are gone, by folder
    if isinstance(storage, ObjectStorage):
        listed: Iterator[Folder] = storage.folders(SYSTEM_FOLDERS)
    else:
        home = store.folder.parent if store.folder.name == REBUILDING else store.folder
        listed = walk(root, changes.left_out, NAMED_SUFFIXES | more, {os.path.realpath(home)})
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
            now = f"{without_options(root)} holds no photos now, but {present:,} were indexed there"
            changes.refused.append(f"{now}; is {is_there}? Nothing was changed")
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
        keys = "give keys by the environment, such as AWS_ACCESS_KEY_ID"
        raise DataError(
            f"{parts.scheme}://...@{parts.hostname}: an index keeps the address of its photos, so "
            f"it must hold no password; {keys}"
        )
    return parts._replace(path=parts.path.rstrip("/")).geturl()


# Reading the photos


class _Files(EncodedImages):
    """The files to read, as images: each is read and hashed by the thread that decodes it.

    ``copies`` have the content of an earlier one of these files. ``outage`` is why a storage cannot
    be reached, which is not the fault of a file.
    """

    def __init__(self, index: Index, todo: Sequence[FileToRead], changes: Changes) -> None:
        self.index, self.todo, self.changes = index, todo, changes
        self.ids = Names([item.file.name for item in todo])
        self.contents: dict[int, Content] = {}  # of files that are being scored
        self.outage: StorageError | None = None
        self.copies: dict[int, bytes] = {}
        self.reasons: dict[bytes, str] = {}
        self._begin()

    def _begin(self) -> None:
        self.began = time.monotonic()
        self.new: dict[bytes, Content] = {}
        self.scored = list[tuple[Logits, Logits, NDArray[np.float16] | None]]()
        self.files = list[tuple[PhotoFile, int | None]]()
        self.edited = list[tuple[int, bytes]]()

    def score_with(
        self, predictor: DeployedModel, batch_size: int, workers: int | None, watch: Watch
    ) -> None:
        """Make the files part of the index; an interruption keeps what was scored."""
        if any(isinstance(item.storage, ObjectStorage) for item in self.todo):
            workers = max(REQUESTS, workers or available_cores())
        watch.start("indexing", len(self.todo))
        try:
            rows = self.link_known(workers)
            watch.advance(len(self.todo) - len(rows) - len(self.copies))
            decode = self.index.facts.decode
            for scored in score(
                predictor,
                self,
                rows=rows,
                decode=decode,
                batch_size=batch_size,
                workers=workers,
                embed=True,
            ):
                self.take_in(scored)
                watch.advance(len(scored.rows) + len(scored.failures))
            self.write()
            known = self.index.store.rows_by_hash(set(self.copies.values()))
            for number, digest in self.copies.items():
                if digest in known:
                    self._note(number, digest, None, known[digest])
                elif digest in self.reasons:
                    self._fail(number, self.reasons[digest])
            watch.advance(len(self.copies))
        finally:
            self.write()
            watch.finish()

    def content(self, row: int) -> bytes:
        try:
            blob = _read(self.todo[row])
        except StorageError as error:
            self.outage = error
            raise
        self.contents[row] = _content(hashlib.sha256(blob).digest(), blob)
        return blob

    def subset(self, rows: NDArray[np.int64]) -> "ImageSource":
        raise NotImplementedError("files to index are read together")

    def link_known(self, workers: int | None) -> list[int]:
        sizes = Counter(item.file.size for item in self.todo)
        sizes.update(self.index.store.sizes() & sizes.keys())
        maybe = [row for row, item in enumerate(self.todo) if sizes[item.file.size] > 1]
        first: dict[bytes, int] = {}
        linked = set[int]()
        with ThreadPoolExecutor(workers or available_cores()) as pool:
            for row, digest in zip(maybe, pool.map(self._digest, maybe), strict=True):
                if digest is None:  # the decoder says why
                    continue
                if there := self.index.store.rows_by_hash([digest]):
                    self._note(row, digest, None, there[digest])
                    linked.add(row)
                elif first.setdefault(digest, row) != row:
                    self.copies[row] = digest
        linked.update(self.copies)
        return [row for row in range(len(self.todo)) if row not in linked]

    def _digest(self, row: int) -> bytes | None:
        try:
            return hashlib.sha256(_read(self.todo[row])).digest()
        except ImageError:
            return None

    def take_in(self, part: Scored) -> None:
        kept = []
        for position, number in enumerate(part.rows.tolist()):
            content = self.contents.pop(number)
            known = self.index.store.rows_by_hash([content.hash])
            if known or content.hash in self.new:  # it changed since it was hashed
                self.copies[number] = content.hash
            else:
                kept.append(position)
                self._note(number, content.hash, len(self.new))
                self.new[content.hash] = content
        if kept and part.embeddings is not None:
            looks = None if part.looks is None else part.looks[kept].astype(np.float16)
            self.scored.append((part.logits[kept], part.embeddings[kept], looks))
        if self.outage is not None:
            raise self.outage
        for failure in part.failures:
            self._fail(failure.row, failure.reason)
            if failure.row in self.contents:
                self.reasons[self.contents.pop(failure.row).hash] = failure.reason
        if len(self.new) >= ROWS_PER_WRITE or time.monotonic() - self.began > SECONDS_PER_WRITE:
            self.write()

    def _note(self, number: int, digest: bytes, place: int | None, row: int | None = None) -> None:
        """Note a file by its ``place`` among the new contents, or by the row it has already."""
        item, changes = self.todo[number], self.changes
        before = None if item.before is None else item.before.row
        self.files.append((replace(item.file, row=row), place))
        if before is not None:
            self.edited.append((before, digest))
        if row is None:
            changes.new += before is None
            changes.changed += before is not None
        elif row == before:  # written again with the same content
            changes.unchanged += 1
        else:
            changes.copied += 1
            changes.came.append(row)

    def _fail(self, number: int, reason: str) -> None:
        self.files.append((replace(self.todo[number].file, state="failed", reason=reason), None))
        self.changes.failed += 1

    def write(self) -> None:
        store, embeddings, looks = self.index.store, None, None
        if self.files:
            logits = np.empty((0, len(store.labels)), np.float32)
            if self.scored:
                logits, features = (np.concatenate([own[k] for own in self.scored]) for k in (0, 1))
                looked = [own for _, _, own in self.scored if own is not None]
                looks = np.concatenate(looked) if looked else None
                known = self.index.embeddings
                embeddings = (known.projection or known.start_projection(features))(features)
            store.append([*self.new.values()], logits, embeddings, self.files, looks)
            rows = store.rows_by_hash(digest for _, digest in self.edited)
            copies = [  # what was said of a photo that was edited holds for the new one
                replace(said, row=rows[digest], source="edit")
                for before, digest in self.edited
                if before != rows[digest]
                for said in store.corrections(row=before)
            ]
            if copies:
                store.correct(copies)
        self._begin()


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
    content = Content(digest, len(blob))
    with suppress(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError):
        if is_raw(blob):
            (width, height), exif = raw_header(blob)
        else:
            with open_picture(blob) as image:
                width, height = image.size
                exif = exif_of(image)
            if exif.get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8):  # lies on its side
                width, height = height, width
        content = replace(content, width=width, height=height)
        taken = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
        moment = time.strptime(str(taken).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        content = replace(content, taken=time.strftime("%Y-%m-%dT%H:%M:%S", moment))
    return content


def update_index(
    folder: Path,
    roots: Sequence[str | Path] = (),
    *,
    model: str | Path | None = None,
    device: str = "cpu",
    batch_size: int = 64,
    workers: int | None = None,
    decode: Literal["cpu", "cuda"] | None = None,
    rebuild: bool = False,
    forget_missing: bool = False,
    taxonomy: Path | None = None,
    watch: Watch,
) -> Changes:
    """Bring the index in ``folder`` up to date with the photos below ``roots``, or make it.

    Without roots, those it was made of are looked at again; without a model, its own is used. A
    model with other weights needs ``rebuild``. An interruption keeps what was scored.
    """
    if not (folder / "index.json").exists() and not (folder / REBUILT).is_dir():
        _check_new(folder, roots, model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None
    busy = f"another process is indexing into {folder}; wait for it"
    with locked(folder, busy), ExitStack() as opened:
        if taxonomy is not None:
            Taxonomy.read(taxonomy)
        if (folder / REBUILT).is_dir():  # the last step of a rebuild was stopped
            _replace_index(folder)
        index, run = _opened(opened, folder, model, rebuild, decode)
        if index.facts.decode == "cuda" and device.partition(":")[0] != "cuda":
            made = f"{folder} was made with --decode cuda, which needs --device cuda, got {device}"
            raise DataError(f"{made}; or score every photo again with --decode cpu --rebuild")
        if taxonomy is not None:
            _keep_taxonomy(index, taxonomy)
        known = list(index.store.roots().values())
        places = [root_place(os.fspath(root)) for root in roots] or known
        if not places:
            raise DataError("name at least one folder of photos to index")
        for root in places:
            if root not in known:
                _require_photos(root)
        changes, todo = Changes(), list[FileToRead]()
        more = BAND_SUFFIXES if index.spec.transform.bands is not None else frozenset()
        for root in dict.fromkeys(places):
            try:
                todo += look_at(index.store, root, changes, more)
            except StorageError as error:
                changes.refused.append(f"{error}. Nothing was changed")
        if todo:  # else the model need not be read
            predictor = load_model(run.path, device).for_many(len(todo))
            if index.embeddings.projection is None and run.path.is_dir():
                weights = index.spec.weights_sha256
                if pictures := HeldOutPictures.of_run(run, weights, predictor, watch):
                    # the photos that fitted the model set the projection
                    pictures.save(index.folder / PICTURES_FILE)
                    index.embeddings.start_projection(pictures.fitted.astype(np.float32))
            _Files(index, todo, changes).score_with(predictor, batch_size, workers, watch)
        changes.settle()
        if index.folder != folder:
            if changes.refused:  # the old index stays until every root has answered
                return changes
            _carry_over(folder, index)
            opened.close()
            os.replace(index.folder, folder / REBUILT)
            _replace_index(folder)
            index = opened.enter_context(Index(folder))
        if forget_missing:
            changes.forgotten = index.store.forget_missing()
        index.prepare(watch)
        likeness = likeness_of(index)
        if likeness.likeness.outcome in ("shares differ", "pictures differ"):
            changes.unlike = likeness.sentence()
        copies = near_copies(index)
        if copies is not None and copies.copies:
            what = f"{copies.photos:,} photos of the index"
            changes.repeated = f"{copies.sentence(what)}; --distinct takes such photos as one"
    return changes


def _check_new(folder: Path, roots: Sequence[str | Path], model: str | Path | None) -> None:
    if model is None:
        raise DataError("a new index needs a model: name a run with --model")
    if not roots:
        raise DataError("name at least one folder of photos to index")
    for root in roots:
        _require_photos(root_place(os.fspath(root)))
    if folder.is_dir():
        others = sorted(name for name in os.listdir(folder) if not name.startswith(WRITTEN_FIRST))
        if others:
            files = f"holds other files, such as {others[0]!r}"
            raise DataError(f"{folder} is not an index and {files}; change -o")


def _require_photos(root: str) -> None:
    if not storage_at(root).is_folder():
        raise DataError(f"{root} " + ("holds no files" if is_uri(root) else "is not a folder"))


# The model of an index


def _opened(
    opened: ExitStack,
    folder: Path,
    model: str | Path | None,
    rebuild: bool,
    decode: Literal["cpu", "cuda"] | None,
) -> tuple[Index, RunFolder]:
    there = (folder / "index.json").exists()
    try:
        index = opened.enter_context(Index(folder)) if there else None
    except CheckpointError:
        if not rebuild or model is None:
            raise
        index = None
        Store(folder, ()).close()  # what people said can be carried over
    named = str(model) if model is not None else index.facts.model if index else ""
    run = RunFolder(fetched_run(named))
    spec = spec_of(run.path)
    same = index is not None and index.spec.weights_sha256 == spec.weights_sha256
    if index is not None:
        other = decode not in (None, index.facts.decode)
        if other and not rebuild:
            made = f"{folder} was made with --decode {index.facts.decode}, got --decode {decode}"
            raise DataError(f"{made}; add --rebuild to score every photo again")
        decode = decode or index.facts.decode
    place = folder / REBUILDING if rebuild and there else folder
    if place != folder:
        opened.close()
        index = _unfinished(opened, place, spec, decode)
        same = index is not None
    if index is not None and model is None and spec == index.spec:
        return index, run
    if index is not None and not same:
        raise DataError(f"{folder} was made with other weights than {named} has; add --rebuild")
    held_out = run.held_out()
    promising = held_out is not None and held_out.may_promise
    split = None if held_out is None else str(held_out) if promising else "val"
    if index is None:
        lasting = named if is_uri(named) else os.path.abspath(named)
        facts = IndexFacts(model=lasting, held_out=split, decode=decode or "cpu")
        index = opened.enter_context(Index.create(place, spec, facts))
        if place != folder:
            with Store(folder, ()) as before:
                for root in before.roots().values():
                    index.store.root(root)
            if (folder / TAXONOMY_FILE).is_file():
                _keep_taxonomy(index, folder / TAXONOMY_FILE)
    elif index.facts.held_out != split:
        index.facts = index.facts.model_copy(update={"held_out": split})
        with index.store.database.rewriting("index.json"):
            index.facts.save(place / "index.json")
    # Beside photos that fitted nothing, those of validation say which cuts are worth a test.
    validation = run.predictions("val") if promising and "val" in run.splits else None
    index.use(spec, None if held_out is None else held_out.predictions, validation)
    return index, run


def _unfinished(
    opened: ExitStack, place: Path, spec: ModelSpec, decode: str | None
) -> Index | None:
    """Return the index whose rebuilding was stopped, if it has these weights; else remove it."""
    with suppress(CheckpointError):
        index = Index(place)
        same = index.spec.weights_sha256 == spec.weights_sha256
        if same and index.facts.decode == (decode or "cpu"):
            return opened.enter_context(index)
        index.close()
    if place.exists():
        shutil.rmtree(place)
    return None


def _keep_taxonomy(index: Index, taxonomy: Path) -> None:
    with (
        index.store.database.rewriting(TAXONOMY_FILE),
        replacing(index.folder / TAXONOMY_FILE) as temporary,
    ):
        shutil.copyfile(taxonomy, temporary)


def _carry_over(folder: Path, index: Index) -> None:
    """Copy answers, receipts, and what is known of written side-cars and photos, by content."""
    with Store(folder, ()) as before:
        carry_receipts(before, index)
        for table in ("sidecars", "embedded"):
            index.store.database.put(table, before.database.read(table))
        if not (folder / ANSWERS_FILE).exists():  # answers of version 0.2 are in the database
            corrections = before.corrections()
            photos = before.photos_of({correction.row for correction in corrections})
            rows = index.store.rows_of_photos(photos.values())
            carried = (said for said in corrections if photos[said.row] in rows)
            index.store.correct([replace(said, row=rows[photos[said.row]]) for said in carried])


def _replace_index(folder: Path) -> None:
    """Put the rebuilt index in the place of the old; what was stopped is finished by a repeat.

    Without its ``index.json`` the folder is not an index. The database of the new one moves first:
    while it waits, what is in the folder is the old index.
    """
    rebuilt = folder / REBUILT
    (folder / "index.json").unlink(missing_ok=True)
    if (rebuilt / "photos.sqlite").exists():
        for path in (path for pattern in REPLACED for path in folder.glob(pattern)):
            path.unlink()
        os.replace(rebuilt / "photos.sqlite", folder / "photos.sqlite")
    last = rebuilt / "index.json"
    for path in [*(path for path in sorted(rebuilt.rglob("*")) if path != last), last]:
        if path.is_file():
            target = folder / path.relative_to(rebuilt)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
    shutil.rmtree(rebuilt)
