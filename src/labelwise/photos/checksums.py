"""Hashes of the files of an index, so that a flipped bit is never taken for a probability.

    file                                   hashed when        checked when
    scores/*, embeddings/*, looks/*        written            first read by a process
    cache/*.bin                            written            first mapped by a process
    model.json, index.json                 written            the index is opened
    held-out, validation, taxonomy, ...    written            read

Files of the cache can be made again from the others, and have their sums beside them:

    cache/NAME.bin        arrays end to end, to be mapped; may be deleted at any time
    cache/NAME.bin.sums   a CRC-32 of each MiB of it, as 32-bit integers

Such a file only grows. One that does not match its sums is removed, for its owner to make anew. The
sums guard against faults of disks and of killed writers, not against people who can write here.

The other hashes stand in the database, in the same transaction that makes the rows of a file
known. A file that is replaced has none until the new one is in its place, so that a process killed
between the two leaves a whole index. Files without a hash, such as those of 0.1, are read as they
are, and hashed by the next update.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import CheckpointError
from labelwise.photos.database import SUMS_SINCE, Database
from labelwise.system.files import locked

HASHED = (
    *("index.json", "model.json", "held-out.parquet", "validation.parquet"),
    *("taxonomy.csv", "projection.npy", "scores/*.parquet", "embeddings/*.parquet"),
    "looks/*.parquet",
)
CHUNK = 1 << 20  # bytes of a file of the cache that have a sum
PARALLEL = 8 << 20  # bytes from which a second thread pays

Parts = Callable[[int, int], Iterable[NDArray[Any]]]


def file_hash(path: Path) -> bytes:
    """Return the hash of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()


def way_out(folder: Path) -> str:
    """Return what a person can do about a damaged file of an index."""
    return (
        "put it back from a backup, or score every photo again with "
        f"`labelwise index --rebuild --model RUN -o {folder}`"
    )


class Checksums:
    """The hashes of an index folder, kept in the table ``checksums`` of its database."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self._database = folder, database
        self._checked: set[str] = set()

    def put(self, name: str) -> None:
        """Note the hash of a file as it is, inside a transaction of the caller."""
        self._database.execute("DELETE FROM checksums WHERE name = ?", (name,))
        self._database.execute(
            "INSERT INTO checksums (name, hash) VALUES (?, ?)",
            (name, file_hash(self.folder / name)),
        )

    @contextmanager
    def rewriting(self, *names: str) -> Iterator[None]:
        """Forget the hashes of files while the block replaces them, and note the new ones."""
        for name in names:
            self._database.execute("DELETE FROM checksums WHERE name = ?", (name,))
        yield
        for name in names:
            if (self.folder / name).is_file():
                self.put(name)

    def check(self, name: str, *, once: bool = False) -> bool:
        """Raise if a file is not what was written; ``once`` for files that never change.

        Return whether its hash is known: damage of another cannot be told.
        """
        if once and name in self._checked:
            return True
        hashes = []
        if self._database.version >= SUMS_SINCE:  # else an index of 0.1 that may only be read
            hashes = self._database.execute("SELECT hash FROM checksums WHERE name = ?", (name,))
        try:
            damaged = bool(hashes) and (file_hash(self.folder / name),) not in hashes
        except OSError as error:
            raise CheckpointError(
                f"{self.folder / name} cannot be read ({error.strerror}); {self.way_out}"
            ) from None
        if damaged:
            raise CheckpointError(
                f"{self.folder / name} is damaged: it is not what was written; {self.way_out}"
            )
        self._checked.add(name)
        return bool(hashes)

    def sound_file(self, name: str) -> Path | None:
        """Return the path of a file that is as it was written, None where there is none."""
        path = self.folder / name
        if not path.is_file():
            return None
        self.check(name)
        return path

    @property
    def way_out(self) -> str:
        """What a person can do about a damaged file."""
        return way_out(self.folder)

    def put_missing(self) -> None:
        """Hash the files that an earlier version wrote without a hash."""
        known = {name for (name,) in self._database.execute("SELECT name FROM checksums")}
        for pattern in HASHED:
            for path in self.folder.glob(pattern):
                name = path.relative_to(self.folder).as_posix()
                if name not in known:
                    self.put(name)


class CacheFiles:
    """The folder ``cache`` of an index."""

    def __init__(self, index: Path) -> None:
        self.folder = index / "cache"
        self._sound: dict[str, int] = {}  # bytes of files that match their sums
        self._holding = False

    def grown(
        self, name: str, dtype: "np.dtype[Any]", shape: tuple[int, int], parts: Parts
    ) -> NDArray[Any]:
        """Map the first rows of a file, after appending ``parts(done, rows)`` where it has fewer.

        Where nothing can be written, because the folder may only be read or the disk is full, all
        parts are read into memory.
        """
        rows, width = shape
        if not rows:
            return np.empty(shape, dtype)
        row_size = dtype.itemsize * width
        if self._sound.get(name, 0) < rows * row_size:
            try:
                self._grow(name, row_size, rows, parts)
            except OSError:
                self._sound.pop(name, None)
                return np.concatenate([*parts(0, rows)]).reshape(shape)
        return np.memmap(self.folder / name, dtype, "r", shape=shape).view(np.ndarray)

    def remove(self, pattern: str, *, but: str) -> None:
        """Remove the files of a pattern, apart from those with ``but`` in their names."""
        for path in self.folder.glob(pattern):
            if but not in path.name:
                with suppress(OSError):  # where nothing can be written, nothing is in the way
                    path.unlink()
                self._sound.pop(path.name, None)

    def _grow(self, name: str, row_size: int, rows: int, parts: Parts) -> None:
        """Check a file, and append the rows that it lacks, while other processes wait.

        It may be made of another, which is then grown under the same lock.
        """
        path, sums_at = self.folder / name, self.folder / f"{name}.sums"
        outermost = not self._holding
        self.folder.mkdir(exist_ok=True)
        with locked(self.folder) if outermost else nullcontext():
            self._holding = True
            try:
                size, sums = self._checked(path, sums_at)
                self._sound[name] = size
                if size // row_size < rows:
                    sums_at.unlink(missing_ok=True)
                    with path.open("ab") as stream:
                        for values in parts(size // row_size, rows):
                            stream.write(np.ascontiguousarray(values).data)
                    whole = size // CHUNK
                    sums = np.concatenate([sums[:whole], _sums(path, whole * CHUNK)])
                    sums_at.write_bytes(sums.tobytes())
                    self._sound[name] = path.stat().st_size
            finally:
                self._holding = not outermost

    def _checked(self, path: Path, sums_at: Path) -> tuple[int, NDArray[np.uint32]]:
        """Return the bytes of a file that matches its sums, and these; any other is removed.

        It is removed and not cut off, since another process may have mapped it.
        """
        try:
            size, found = path.stat().st_size, _sums(path)
            if found.tobytes() == sums_at.read_bytes():
                return size, found
        except FileNotFoundError:
            pass
        path.unlink(missing_ok=True)
        return 0, np.empty(0, np.uint32)


def _sums(path: Path, start: int = 0) -> NDArray[np.uint32]:
    """Return the CRC-32 of each chunk from ``start`` on.

    They are read and not mapped: mapped, the whole file would count as memory of this process.
    """
    size = path.stat().st_size
    places = range(start, size, CHUNK)

    def sums_of(some: Sequence[int]) -> list[int]:
        buffer, found = memoryview(bytearray(CHUNK)), []
        with path.open("rb", buffering=0) as stream:
            for at in some:
                stream.seek(at)
                found.append(zlib.crc32(buffer[: stream.readinto(buffer)]))
        return found

    if size - start < PARALLEL:
        return np.array(sums_of(places), np.uint32)
    threads = min(cpu_count() or 1, 4)
    shares = [part.tolist() for part in np.array_split(np.array(places), threads)]
    with ThreadPoolExecutor(threads) as pool:
        return np.array([one for part in pool.map(sums_of, shares) for one in part], np.uint32)
