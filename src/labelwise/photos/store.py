"""The index folder on disk: what is known of every photo, in formats that others read.

    photos.sqlite                     roots, files, contents, side-cars, checksums
    answers.jsonl                     what people said, see :mod:`labelwise.answers.log`
    scores/, embeddings/, looks/      logits, embeddings and what photos look like, and
    cache/                            the same end to end

A *content* is a distinct picture, known by the hash of its bytes; its row is its place in every
column. A *file* is where a content lies. Columns are written before the transaction that makes
their rows known, and never changed, so a process killed at any moment leaves a complete index.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.answers.log import AnswerLog, Line, LoggedAnswer, lines_of_index
from labelwise.base.files import replacing
from labelwise.base.storage import (
    ObjectStorage,
    StorageError,
    address_of,
    is_below,
    is_uri,
    storage_at,
    without_options,
)
from labelwise.base.text import first_line
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.photos.database import CacheFiles, Database, create_database, open_database, way_out
from labelwise.pictures.sources import read_image_file

PART = "[0-9]" * 12 + ".parquet"  # the names of files of columns, which are their first rows
NAMES = {"embeddings": "embedding", "looks": "look"}  # of the columns of vectors
FileState = Literal["ok", "failed", "missing"]
Fact = Literal["present", "absent", "unknown", "withdrawn"]
ANSWERS_FILE = "answers.jsonl"
WORDS: dict[Fact, Literal["yes", "no", "unsure", "undo"]] = {
    "present": "yes",
    "absent": "no",
    "unknown": "unsure",
    "withdrawn": "undo",
}
FACTS = {word: fact for fact, word in WORDS.items()}
QUERIES = ("list", "count")  # why: such answers are about a query, not a label


@dataclass(frozen=True)
class Content:
    """A distinct picture: the hash of its bytes and what its header says."""

    hash: bytes
    size: int
    width: int | None = None
    height: int | None = None
    taken: str | None = None


@dataclass(frozen=True)
class PhotoFile:
    """A file below a root, as the system spells it; without a ``row`` it could not be read."""

    root: int
    folder: str
    name: str
    size: int
    mtime_ns: int
    row: int | None = None
    state: FileState = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class PhotoFiles:
    """The files (root, name) that held a photo when they were indexed, and its hash."""

    digest: bytes
    places: tuple[tuple[str, str], ...]

    def read(self) -> tuple[bytes, str] | None:
        """Return the bytes of the photo and its name, from a file that still holds that photo.

        None where no file does; raise the StorageError of a storage that did not answer.
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
                if hashlib.sha256(blob).digest() == self.digest:
                    return blob, os.path.basename(name)
            except StorageError as error:
                unasked = error
            except (OSError, LabelwiseError):
                continue
        if unasked is not None:
            raise unasked
        return None


@dataclass(frozen=True)
class Correction:
    """What a person said of one label of one picture."""

    row: int
    label: str
    state: Fact
    who: str
    at: str
    source: str = "correction"


class Store(AbstractContextManager["Store", None]):
    """An open index folder. ``rows`` of it are known; each column has that many entries."""

    def __init__(self, folder: Path, labels: Sequence[str]) -> None:
        self.folder, self.labels = folder, tuple(labels)
        # A label that is called "row" would have the name of the first column.
        self._names = ["row (label)" if label == "row" else label for label in labels]
        self.database = open_database(folder / "photos.sqlite")
        self.cache = CacheFiles(folder)  # files that can be made again from the others
        self.writable = self.database.writable  # whether anything can be noted in the index
        self.answers = AnswerLog(folder / ANSWERS_FILE, self._answers_of_0_2)
        self._lines: list[Line] = []  # of the log, and what was taken from them
        self._said: dict[str, dict[int, Correction]] = {}  # by label and row
        self._taken = 0
        self._rows_of: dict[str, int] = {}

    @classmethod
    def create(cls, folder: Path, labels: Sequence[str]) -> "Store":
        with replacing(folder / "photos.sqlite") as temporary:
            create_database(temporary)
        return cls(folder, labels)

    def close(self) -> None:
        self.database.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        if not self.writable:
            raise LabelwiseError(
                f"{self.folder} may only be read, or its disk is full: nothing can be noted in it; "
                "give this user the right to write there, or free some space"
            )
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield self.database
            self.database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error, LabelwiseError):  # a full disk has rolled back already
                self.database.execute("ROLLBACK")
            raise

    @property
    def rows(self) -> int:
        last = self.database.read("contents", "ORDER BY row DESC LIMIT 1")
        return int(last[0][0]) + 1 if last else 0

    # Roots and files

    def root(self, path: str) -> int:
        raw = os.fsencode(path)
        if not self.database.read("roots", raw=raw):
            with self.transaction() as database:
                number = max(self.roots(), default=0) + 1
                database.put("roots", [(number, shown(path), raw)])
        return int(self.database.read("roots", raw=raw)[0][0])

    def roots(self) -> dict[int, str]:
        known = self.database.read("roots", "ORDER BY id")
        return {number: os.fsdecode(raw) for number, _, raw in known}

    def files_in(self, root: int, folder: str) -> dict[str, PhotoFile]:
        files = {}
        for _, _, name, raw, *rest in self.database.read("files", root=root, folder=shown(folder)):
            own = name if raw is None else os.fsdecode(os.path.basename(raw))
            files[own] = PhotoFile(root, folder, own, *rest)
        return files

    def folders_of(self, root: int) -> set[str]:
        query = "SELECT DISTINCT folder FROM files WHERE root = ? AND state != 'missing'"
        return {folder for (folder,) in self.database.execute(query, (root,))}

    def count_files(self, root: int | None = None) -> dict[str, int]:
        where, values = ("", ()) if root is None else (" WHERE root = ?", (root,))
        query = f"SELECT state, count(*) FROM files{where} GROUP BY state"
        return dict(self.database.execute(query, values))

    def places_of(self, rows: Iterable[int]) -> dict[int, list[tuple[str, str]]]:
        roots, places = self.roots(), {}
        for row in rows:
            files = self.database.read("files", row=row, state="ok")
            places[row] = [
                (roots[root], os.path.join(folder, name) if raw is None else os.fsdecode(raw))
                for root, folder, name, raw, *_ in files
            ]
            if not files and any(alive for *_, alive in self.database.read("contents", row=row)):
                raise self.database.damaged("files")
        return places

    def paths_of(self, rows: Iterable[int]) -> dict[int, list[str]]:
        every = self.places_of(rows).items()
        return {row: sorted(address_of(*place) for place in places) for row, places in every}

    def unreadable(self) -> list[tuple[str, str]]:
        roots = self.roots()
        return [
            (address_of(roots[root], os.path.join(folder, name)), reason or "")
            for root, folder, name, *_, reason in self.database.read("files", state="failed")
        ]

    def row_of(self, path: str) -> int | None:
        for number, root in self.roots().items():
            inside = _inside(path, root)
            if inside is None:
                continue
            folder, name = map(shown, os.path.split(inside))
            files = self.database.read("files", root=number, folder=folder, name=name, state="ok")
            for _, _, _, raw, _, _, row, *_ in files:
                if raw == _raw(inside):
                    return int(row)
        return None

    def put_files(self, files: Iterable[PhotoFile]) -> None:
        """Make files known as they are given; inside a transaction of the caller."""
        changed: set[int] = set()
        for file in files:
            key = (file.root, shown(file.folder), shown(file.name))
            raw = _raw(os.path.join(file.folder, file.name))
            query = "SELECT row FROM files WHERE root = ? AND folder = ? AND name = ?"
            before = self.database.execute(query, key)
            changed |= {row for (row,) in (*before, (file.row,)) if row is not None}
            facts = (file.size, file.mtime_ns, file.row, file.state, file.reason)
            self.database.put("files", [(*key, raw, *facts)])
        self._mark_alive(changed)

    def mark_missing(
        self, root: int, folder: str, names: Sequence[str] | None = None
    ) -> list[int | None]:
        chosen = None if names is None else {shown(name) for name in names}
        files = [
            file
            for file in self.database.read("files", root=root, folder=shown(folder))
            if file[7] != "missing" and (chosen is None or file[2] in chosen)
        ]
        self.database.put("files", [(*file[:7], "missing", file[8]) for file in files])
        rows: list[int | None] = [file[6] for file in files]
        self._mark_alive(row for row in rows if row is not None)
        return rows

    def forget_missing(self) -> int:
        with self.transaction() as database:
            database.execute("DELETE FROM files WHERE state = 'missing'")
            return int(database.execute("SELECT changes()")[0][0])

    def _mark_alive(self, rows: Iterable[int]) -> None:
        query = "SELECT EXISTS (SELECT 1 FROM files WHERE row = ? AND state = 'ok')"
        contents = [
            values for row in set(rows) for values in self.database.read("contents", row=row)
        ]
        alive = [self.database.execute(query, values[:1])[0] for values in contents]
        both = zip(contents, alive, strict=True)
        self.database.put("contents", [(*values[:-1], *now) for values, now in both])

    # Contents and their columns

    def rows_by_hash(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        rows_of = {digest: self.database.read("contents", hash=digest) for digest in hashes}
        return {digest: int(rows[0][0]) for digest, rows in rows_of.items() if rows}

    def sizes(self) -> set[int]:
        return {size for (size,) in self.database.execute("SELECT DISTINCT size FROM contents")}

    def contents_of(self, rows: Iterable[int]) -> dict[int, Content]:
        contents = {row: self.database.read("contents", row=row) for row in rows}
        if not all(contents.values()):
            raise self.database.damaged("contents")
        return {row: Content(*values[1:-1]) for row, (values,) in contents.items()}

    def dead_rows(self) -> NDArray[np.int64]:
        dead = self.database.read("contents", "AND alive = 0 ORDER BY row", alive=0)
        return np.array([row for row, *_ in dead], np.int64)

    def alive_rows(self, rows: int | None = None) -> NDArray[np.int64]:
        alive = np.ones(self.rows if rows is None else rows, np.bool_)
        dead = self.dead_rows()
        alive[dead[dead < len(alive)]] = False
        return np.flatnonzero(alive)

    def append(
        self,
        contents: Sequence[Content],
        logits: NDArray[np.float32],
        embeddings: NDArray[np.float16] | None,
        files: Sequence[tuple[PhotoFile, int | None]],
        looks: NDArray[np.float16] | None = None,
    ) -> None:
        first, written = self.rows, list[str]()
        rows = np.arange(first, first + len(logits), dtype=np.int64)
        columns = map(np.ascontiguousarray, logits.T)
        tables = {"scores": pa.table([rows, *columns], names=["row", *self._names])}
        if first and not self._segments("looks"):
            looks = None
        for kind, values in (("embeddings", embeddings), ("looks", looks)):
            if values is not None:
                flat = pa.array(values.reshape(-1))
                lists = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
                tables[kind] = pa.table({"row": rows, NAMES[kind]: lists})
        for kind, table in tables.items() if len(contents) else ():
            written.append(f"{kind}/{first:012d}.parquet")
            with replacing(self.folder / written[-1]) as temporary:
                pq.write_table(table, temporary)
        with self.transaction() as database:
            for name in written:
                database.put_hash(name)
            facts = enumerate(map(astuple, contents), first)
            database.put("contents", [(row, *values, 0) for row, values in facts])
            self.put_files(
                file if position is None else replace(file, row=first + position)
                for file, position in files
            )

    def _segments(self, kind: str) -> list[Path]:
        self.database.check_file(f"{kind}/{0:012d}.parquet", once=True)  # a later one would be next
        return sorted((self.folder / kind).glob(PART))

    def _values(self, kind: str, name: str, done: int, rows: int) -> Iterator[np.ndarray]:
        files = self._segments(kind)
        firsts = [int(file.stem) for file in files]
        if firsts[:1] != [0]:
            raise CheckpointError(
                f"{self.folder / kind} lacks its first file; {way_out(self.folder)}"
            )
        for file, first, end in zip(files, firsts, [*firsts[1:], rows], strict=True):
            end = min(end, rows)
            if end <= done or first >= rows:
                continue
            self.database.check_file(f"{kind}/{file.name}", once=True)
            problem = ""
            try:
                column = pq.read_table(file, columns=[name])[name].combine_chunks()
                if len(column) < end - first:
                    problem = f" must hold {end - first} rows, got {len(column)}"
            except (OSError, pa.ArrowException, KeyError) as error:
                problem = f" of the index cannot be read ({first_line(error)})"
            if problem:
                raise CheckpointError(f"{file}{problem}; {way_out(self.folder)}")
            column = column.slice(max(done - first, 0), end - max(done, first))
            if isinstance(column, pa.FixedSizeListArray):
                column = column.flatten()
            yield column.to_numpy(zero_copy_only=False)

    def column(self, label: int) -> NDArray[np.float32]:
        parts, file = partial(self._values, "scores", self._names[label]), f"scores-{label + 1:05d}"
        return self.cache.grown(f"{file}.bin", np.dtype(np.float32), (self.rows, 1), parts)[:, 0]

    def logits(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return np.stack([self.column(label)[rows] for label in range(len(self.labels))], axis=1)

    def embeddings(self) -> NDArray[np.float16]:
        """Return the embeddings (rows, D), mapped from the disk; D is 0 where there are none."""
        return self._vectors("embeddings")

    def looks(self) -> NDArray[np.float16]:
        """Return what photos look like from afar (rows, W); W is 0 where that is not known."""
        return self._vectors("looks")

    def _vectors(self, kind: Literal["embeddings", "looks"]) -> NDArray[np.float16]:
        files, rows = self._segments(kind), self.rows
        if not files:
            return np.empty((rows, 0), np.float16)
        shape = (rows, pq.read_schema(files[0]).field(NAMES[kind]).type.list_size)
        parts = partial(self._values, kind, NAMES[kind])
        return self.cache.grown(f"{kind}-00000.bin", np.dtype(np.float16), shape, parts)

    # Corrections

    def correct(self, corrections: Sequence[Correction]) -> None:
        photos = self.photos_of({correction.row for correction in corrections})
        self.answers.append(
            [
                LoggedAnswer(photos[c.row], c.label, WORDS[c.state], c.who, c.at, c.source)
                for c in corrections
            ]
        )

    def corrections(self, label: str | None = None, row: int | None = None) -> list[Correction]:
        with self.answers.lock:
            lines = self.answers.lines()
            if lines is not self._lines:
                self._lines, self._said, self._taken = lines, {}, 0
            answers = (line for line in lines[self._taken :] if isinstance(line, LoggedAnswer))
            new = [line for line in answers if line.why not in QUERIES]
            rows = self.rows_of_photos(line.photo for line in new)
            for line in new:
                if line.photo in rows:
                    photo, own = rows[line.photo], self._said.setdefault(line.label, {})
                    own.pop(photo, None)
                    if line.answer != "undo":
                        facts = (FACTS[line.answer], line.who, line.when, line.why)
                        own[photo] = Correction(photo, line.label, *facts)
            self._taken = len(lines)
            said = [self._said.get(label, {})] if label is not None else [*self._said.values()]
            if row is not None:
                return [own[row] for own in said if row in own]
            return [correction for own in said for correction in own.values()]

    def photos_of(self, rows: Iterable[int]) -> dict[int, str]:
        """Return the names of photos in the answer log, which are the hashes of their contents."""
        return {row: content.hash.hex() for row, content in self.contents_of(rows).items()}

    def rows_of_photos(self, photos: Iterable[str]) -> dict[str, int]:
        wanted = dict.fromkeys(photos)
        new = [photo for photo in wanted if photo not in self._rows_of]
        rows = self.rows_by_hash(map(bytes.fromhex, new))
        self._rows_of |= {digest.hex(): row for digest, row in rows.items()}
        return {photo: self._rows_of[photo] for photo in wanted if photo in self._rows_of}

    def _answers_of_0_2(self) -> list[Mapping[str, object]]:
        if self.database.has_table("corrections"):
            self.database.read("corrections")  # raises where one is damaged
        return [*lines_of_index(self.folder, self.database.execute, self.database.has_table)]


def shown(path: str) -> str:
    """Return a path as text; bytes that are not Unicode are written as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _inside(path: str, root: str) -> str | None:
    if is_uri(path) or is_uri(root):
        above = without_options(root) + "/"
        return path.removeprefix(above) if is_uri(root) and path.startswith(above) else None
    if not path:
        return None
    inside = os.path.relpath(path, root)
    return None if inside.startswith(os.pardir) else inside


def _raw(inside: str) -> bytes | None:
    return None if shown(inside) == inside else os.fsencode(inside)
