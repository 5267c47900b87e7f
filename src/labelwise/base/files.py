"""Atomic writes, locks, and JSON objects that hold their own checksum.

The writer of a file holds a lock on its temporary file, so that the next writer knows which ones
were left behind by a kill. A checksum is for what disks do: files are checked all the same, and
those of earlier versions have none.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from glob import escape
from io import FileIO
from pathlib import Path
from typing import TypeVar

from labelwise.errors import LabelwiseError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


T = TypeVar("T")

SECONDS_BETWEEN_TRIES = 0.1
SUM = "sha256"  # the entry of an object that holds the sum of the others
REASONS = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EACCES: "no permission to write there; choose another folder",
    errno.EPERM: "no permission to write there; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "part of that path is a file, not a folder",
    errno.EEXIST: "part of that path is a file, not a folder",
}


_TOGETHER: ContextVar[ExitStack | None] = ContextVar("together", default=None)


@contextmanager
def together() -> Iterator[None]:
    """Have the files that the block replaces appear at its end: all, or none where it fails.

    The first that was written, such as the one that says that others are there, appears last.
    """
    if _TOGETHER.get() is not None:  # they are part of more
        yield
        return
    with ExitStack() as files:
        outer = _TOGETHER.set(files)
        try:
            yield
        finally:
            _TOGETHER.reset(outer)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, which replaces it when the block ends well."""
    with ExitStack() as own:
        yield own.enter_context(_replacing(path))
        if (files := _TOGETHER.get()) is not None:
            files.push(own.pop_all())


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    with _beside(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _held(temporary):
            if sys.platform != "win32":
                _remove_abandoned(path)
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
        _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_room(path: Path, size: int = 1 << 16) -> None:
    """Raise unless files of about ``size`` bytes can be written at ``path``, before long work.

    A few bytes are written beside it, or in the nearest folder that exists, and removed again.
    """
    folder = path
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if path.exists() and not path.is_dir():
        require_regular(path)
    trial = folder / f".{path.name}.{secrets.token_hex(8)}.partial"
    try:
        try:
            trial.write_bytes(bytes(min(size, 1 << 16)))
        finally:
            trial.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise write_error(path, error) from None
    if free < size:
        room = f"needs about {size / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free"
        raise WriteError(f"cannot write {path}: it {room}; free some space, or choose another disk")


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder beside ``path``, which must be free when the block ends."""
    with _beside(path) as temporary:
        temporary.mkdir(parents=True)
        yield temporary
        for file in sorted(temporary.rglob("*"), reverse=True):
            _sync(file)
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        yield temporary
    except OSError as error:
        _remove(temporary)
        raise write_error(path, error) from error
    except BaseException:
        _remove(temporary)
        raise


MOST_FACTS = 256 << 20  # bytes of a file that describes a run, an index or an evaluation


def read_regular(path: str | Path, most: int) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a regular file, at most ``most``, and its status.

    A pipe could wait for ever, and /dev/zero never ends.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as stream:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise LabelwiseError(f"{path} must be a file, it is a device, pipe or socket")
        if facts.st_size > most:
            raise LabelwiseError(f"{path} must have at most {most:,} bytes, got {facts.st_size:,}")
        return stream.read(facts.st_size), facts


def require_regular(path: Path) -> None:
    """Raise if a device, pipe or socket has this name, before something waits for it."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise LabelwiseError(f"{path} must be a file, it is a device, pipe or socket")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def summed(facts: Mapping[str, object]) -> dict[str, object]:
    """Return an object with its checksum as its last entry."""
    return {**facts, SUM: _digest(facts)}


def without_sum(facts: Mapping[str, T]) -> dict[str, T] | None:
    """Return an object without its checksum, None if that is wrong."""
    rest = {name: value for name, value in facts.items() if name != SUM}
    if SUM in facts:
        return rest if facts[SUM] == _digest(rest) else None
    *others, last = rest.items() or [("", None)]
    is_renamed = last[1] == _digest(dict(others))  # a flipped bit is in the name of the sum
    return None if is_renamed else rest


def _digest(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder that nobody else writes to now."""
    for leftover in folder.glob(".*.partial"):
        _remove(leftover)


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[bool]:
    """Hold a lock on a file or folder while the block runs; it ends with its process.

    Where another process has it, wait, or raise the sentence ``busy``. Yields False on file systems
    without locks. On Windows, where folders have none, a file beside is locked.
    """
    if sys.platform == "win32":
        with _locked_beside(path, busy):
            yield True
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # of a pipe nobody may ever write
    except OSError as error:
        raise write_error(path, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise LabelwiseError(busy) from None
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


if sys.platform == "win32":

    @contextmanager
    def _locked_beside(path: Path, busy: str | None) -> Iterator[None]:
        beside = path.with_name(f".{path.name}.lock")
        try:
            handle = os.open(beside, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise write_error(path, error) from None
        try:
            while True:
                try:
                    msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                    break
                except OSError:
                    if busy:
                        raise LabelwiseError(busy) from None
                    time.sleep(SECONDS_BETWEEN_TRIES)
            yield
        finally:
            os.close(handle)
            with suppress(OSError):  # another process waits for it
                os.unlink(beside)


class WriteError(LabelwiseError):
    """A file or folder that could not be written."""


def write_error(path: Path, error: OSError) -> WriteError:
    """Return the sentence for a file or folder that could not be written."""
    short = error.errno is None and " requested and " in str(error)  # so NumPy calls a full disk
    number = errno.ENOSPC if short else error.errno or 0
    reason = REASONS.get(number, error.strerror or str(error))
    return WriteError(f"cannot write {path}: {reason}")


def append_whole(stream: FileIO, content: bytes, *, durable: bool = False) -> None:
    """Append bytes to a file that has no buffer: all of them, or none where the disk is full."""
    size = stream.seek(0, os.SEEK_END)
    left = memoryview(content)
    try:
        while left:
            left = left[stream.write(left) :]
        if durable:
            os.fsync(stream.fileno())
    except OSError:
        stream.truncate(size)
        raise


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    if sys.platform == "win32":  # open files cannot be renamed there
        os.close(handle)
        yield
        return
    try:
        with suppress(OSError):  # a file system that knows no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of ``path`` whose writers are gone: nobody holds their locks."""
    for leftover in path.parent.glob(f".{escape(path.name)}.*.partial"):
        with suppress(OSError):  # held, gone already, not ours, or without locks
            handle = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()
            finally:
                os.close(handle)


def _sync(path: Path) -> None:
    """Force a file or a folder to the disk; Windows does it for files opened for writing only."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # what went wrong before is what the user should hear
            path.unlink()
