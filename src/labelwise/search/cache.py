"""Files of an index that can be made again from its others, each with its sums beside it.

    cache/NAME.bin        arrays end to end, to be mapped; may be deleted at any time
    cache/NAME.bin.sums   a CRC-32 of each MiB of it, as 32-bit integers

A file only grows, and is checked once by each process that maps it. One that does not match its
sums is removed, for its owner to make anew: a flipped bit is never taken for a probability. The
sums guard against faults of disks and of killed writers, not against people who can write here.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.system.files import locked

__all__ = ["CacheFiles"]

CHUNK = 1 << 20
PARALLEL = 8 << 20  # bytes from which a second thread pays


class CacheFiles:
    """The folder ``cache`` of an index."""

    def __init__(self, index: Path) -> None:
        self.folder = index / "cache"
        self._sound: dict[str, int] = {}  # bytes of files that match their sums
        self._holding = False

    def grown(
        self,
        name: str,
        dtype: "np.dtype[Any]",
        shape: tuple[int, int],
        parts: Callable[[int, int], Iterable[NDArray[Any]]],
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
                self.folder.mkdir(exist_ok=True)
                with self._locked():
                    self._sound[name] = self._checked(name)
                    done = self._sound[name] // row_size
                    if done < rows:
                        self._append(name, parts(done, rows))
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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out; a file may be made of another while it is locked."""
        if self._holding:
            yield
            return
        with locked(self.folder):
            self._holding = True
            try:
                yield
            finally:
                self._holding = False

    def _append(self, name: str, parts: Iterable[NDArray[Any]]) -> None:
        path, sums_at = self.folder / name, self.folder / f"{name}.sums"
        known = _sums_of(sums_at)
        start = self._sound[name] // CHUNK * CHUNK
        sums_at.unlink(missing_ok=True)
        with path.open("ab") as stream:
            for values in parts:
                stream.write(np.ascontiguousarray(values).data)
        size = path.stat().st_size
        sums = np.concatenate([known[: start // CHUNK], _sums(path, start)])
        sums_at.write_bytes(sums.tobytes())
        self._sound[name] = size

    def _checked(self, name: str) -> int:
        """Return the bytes of a file that matches its sums; any other is removed.

        It is removed and not cut off, since another process may have mapped it.
        """
        path = self.folder / name
        try:
            size, found = path.stat().st_size, _sums(path)
        except FileNotFoundError:
            return 0
        if np.array_equal(found, _sums_of(self.folder / f"{name}.sums")):
            return size
        path.unlink(missing_ok=True)
        return 0


def _sums_of(path: Path) -> NDArray[np.uint32]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return np.empty(0, np.uint32)
    return np.frombuffer(data[: len(data) // 4 * 4], np.uint32)


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
