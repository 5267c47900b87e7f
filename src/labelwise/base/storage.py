"""Folders and buckets behind one small class: names below a place, read, listed and written whole.

``/photos``, ``file:///photos``, ``s3://bucket/photos`` and ``gs://bucket/photos`` are places.
Writes are atomic. Time-outs, 500s and dropped connections are tried again with growing pauses.
"""

import io
import os
import random
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from labelwise.base.files import replacing
from labelwise.base.text import counted, for_terminal
from labelwise.errors import DataError, LabelwiseError

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

Facts = tuple[int, int]  # size and time of change
Turn = Callable[[str, bool], int | None]
T = TypeVar("T")

WRITER = ".writer"  # hidden, so that no listing names it
ATTEMPTS = 6
FIRST_PAUSE = 0.2  # seconds; doubled after each attempt
PIECE = 1 << 26  # bytes of a file that are in memory at a time
IN_A_URI = "%:/?#[]@!$&'()*+,;=~"  # beside letters and digits
REFUSALS = {  # by the words of S3 and Google Cloud Storage
    ("NO_SUCH_BUCKET", "NoSuchBucket"): "there is no such bucket; is its address right?",
    ("ACCESS_DENIED", "AccessDenied", "PERMISSION_DENIED"): (
        "access is denied; check the credentials and the permissions of the bucket"
    ),
    (
        *("INVALID_ACCESS_KEY_ID", "InvalidAccessKeyId", "ExpiredToken", "UNAUTHENTICATED"),
        *("SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch"),
    ): "the credentials are not accepted; renew them and run the same command again",
}
OUTWARD = "outward link"
SYSTEM_FOLDERS = frozenset(  # of disks and servers: thumbnails and what was deleted
    {"@eadir", "#recycle", "#snapshot", "lost+found", "thumbnails", "$recycle.bin"}
)
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class StorageError(LabelwiseError):
    """A place that does not answer; the rows themselves may be fine."""


class StoredFile(NamedTuple):
    """A file of a listing; object stores keep times of change to the second."""

    name: str
    size: int
    mtime_ns: int


def walk(
    root: str | Path,
    left_out: Counter[str],
    suffixes: Collection[str] | None = None,
    skip: Collection[str] = (),
) -> Iterator[tuple[str, list[StoredFile] | None]]:
    """Yield each folder below ``root`` ("" for itself) with its files, None if it is not listed.

    This is the one rule of which files are in a folder. Hidden names, folders that other programs
    keep, links that lead nowhere or out of the folder, pipes and devices are left out. A folder
    that links lead to twice is read once.

    Args:
        root: the folder.
        left_out: counts what is left out by its kind; hidden files only if their ending counts.
        suffixes: the endings of the files to yield; None for all.
        skip: folders to pass over without counting, by their real paths.
    """
    home, visited, waiting = os.path.realpath(root), set(skip), [""]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(os.path.join(root, folder))
        if real in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                listed = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError:
            yield folder, None
            continue
        files = []
        for entry in listed:
            try:
                is_folder = entry.is_dir()
                suffix = os.path.splitext(entry.name)[1].lower()
                if not is_folder and suffixes is not None and suffix not in suffixes:
                    continue
                if entry.name.startswith("."):
                    left_out["hidden folder" if is_folder else "hidden file"] += 1
                elif entry.is_symlink() and not is_below(os.path.realpath(entry.path), home):
                    left_out["broken link" if not os.path.exists(entry.path) else OUTWARD] += 1
                elif is_folder and entry.name.casefold() in SYSTEM_FOLDERS:
                    left_out["system folder"] += 1
                elif is_folder:
                    waiting.append(os.path.join(folder, entry.name))
                elif stat.S_ISREG((facts := entry.stat()).st_mode):
                    files.append(StoredFile(entry.name, facts.st_size, facts.st_mtime_ns))
                else:
                    left_out["special file"] += 1
            except OSError:  # a link to itself or to nothing; or the file vanished
                left_out["broken link"] += entry.is_symlink()
        yield folder, files[::-1]


def left_out_note(left_out: Mapping[str, int]) -> str:
    """Return what was left out of a folder in a sentence; empty where nothing was.

    >>> left_out_note({"hidden folder": 2, "broken link": 1})
    'left out: 1 broken link, 2 hidden folders'
    """
    counts = [counted(count, kind) for kind, count in sorted(left_out.items()) if count]
    way = f" ({OUTWARD}s lead to other folders; name those too)" if left_out.get(OUTWARD) else ""
    return f"left out: {', '.join(counts)}{way}" if counts else ""


def is_below(path: str, home: str) -> bool:
    """Return whether a real path is the real folder ``home`` or lies below it."""
    return os.path.commonpath([path, home]) == home


class LocalStorage:
    """A folder of this machine, or a shared disk; names are relative to it and use ``/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = self.address = str(folder)

    def files(
        self, left_out: Counter[str] | None = None, suffixes: Collection[str] | None = None
    ) -> Iterator[str]:
        """Yield all names, folder by folder, in the memory of the largest; see :func:`walk`."""
        left_out = Counter() if left_out is None else left_out
        for folder, files in walk(self.folder, left_out, suffixes):
            if files is None and not folder:
                raise DataError(f"{for_terminal(str(self.folder))}: this folder cannot be read")
            below = folder.replace(os.sep, "/") + "/" if folder else ""
            left_out["unreadable folder"] += files is None
            yield from (below + file.name for file in files or ())

    def stream(self, name: str) -> BinaryIO:
        return (self.folder / name).open("rb")

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        with self.stream(name) as stream:
            stream.seek(offset)
            content: bytes = stream.read() if size is None else stream.read(size)
            return content

    def size(self, name: str) -> int | None:
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def write(self, name: str, content: bytes) -> None:
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(content)

    def is_folder(self) -> bool:
        return self.folder.is_dir()


class ObjectStorage:
    """A prefix of a bucket, through ``pyarrow.fs``: the same as :class:`LocalStorage`.

    ``stream`` fetches what is read, for what is too large to hold.
    """

    def __init__(self, filesystem: "FileSystem", prefix: str, place: str) -> None:
        self.filesystem, self.prefix, self.place = filesystem, prefix.rstrip("/"), place
        self.address = without_options(place)  # as people call it

    def files(self) -> Iterator[str]:
        for folder, files in self.folders(SYSTEM_FOLDERS):
            yield from (f"{folder}/{file.name}" if folder else file.name for file in files)

    def folders(self, skipped: Collection[str] = ()) -> Iterator[tuple[str, list[StoredFile]]]:
        """Yield each folder ("" for the place) and its files, without hidden or skipped ones."""
        from pyarrow.fs import FileSelector, FileType

        waiting = [""]
        while waiting:
            folder = waiting.pop()
            below = self._path(folder)
            selector = FileSelector(below, allow_not_found=True)
            found = self._patiently(partial(self.filesystem.get_file_info, selector), below)
            files, inner = [], []
            for info in found:
                name = info.base_name
                if name.startswith("."):
                    continue
                if info.type != FileType.Directory:
                    files.append(StoredFile(name, info.size or 0, info.mtime_ns or 0))
                elif name.casefold() not in skipped:
                    inner.append(f"{folder}/{name}" if folder else name)
            del found
            files.sort()
            waiting += sorted(inner, reverse=True)
            yield folder, files

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        def read() -> bytes:
            with self.filesystem.open_input_file(self._path(name)) as stream:
                return bytes(stream.read_at(stream.size() if size is None else size, offset))

        return self._patiently(read, name)

    def stream(self, name: str) -> "NativeFile":
        return self._patiently(lambda: self.filesystem.open_input_file(self._path(name)), name)

    def size(self, name: str) -> int | None:
        from pyarrow.fs import FileType

        facts = self._patiently(lambda: self.filesystem.get_file_info(self._path(name)), name)
        return int(facts.size) if facts.type == FileType.File else None

    def write(self, name: str, content: bytes) -> None:
        """Put an object there; it appears once its stream is closed, as a whole."""
        self._put(name, lambda: io.BytesIO(content))

    def upload(self, name: str, path: Path) -> None:
        """Put a local file there, a piece at a time."""
        self._put(name, lambda: path.open("rb"))

    def _put(self, name: str, opened: Callable[[], IO[bytes]]) -> None:
        def send() -> None:
            with opened() as source:
                piece = source.read(PIECE)  # before the object is opened, which its end writes
                with self.filesystem.open_output_stream(self._path(name)) as stream:
                    while piece:
                        stream.write(piece)
                        piece = source.read(PIECE)

        self._patiently(send, name)

    def download(self, name: str, path: Path, size: int) -> None:
        with replacing(path) as temporary, temporary.open("wb") as stream:
            for offset in range(0, size, PIECE):
                stream.write(self.read(name, offset, min(PIECE, size - offset)))
            if stream.tell() != size:
                raise StorageError(f"{self.address}: {name} changed while it was read; try again")

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._patiently(lambda: self.filesystem.delete_file(self._path(name)), name)

    def remove_folder(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._patiently(lambda: self.filesystem.delete_dir(self._path(name)), name)

    def is_folder(self) -> bool:
        from pyarrow.fs import FileType

        facts = self._patiently(lambda: self.filesystem.get_file_info(self.prefix), self.place)
        return bool(facts.type == FileType.Directory)

    def _path(self, name: str) -> str:
        return f"{self.prefix}/{name}" if name else self.prefix

    def _patiently(self, ask: Callable[[], T], name: str) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return ask()
            except FINAL:
                raise
            except OSError as error:
                for words, meaning in REFUSALS.items():
                    if any(word in str(error) for word in words):
                        raise StorageError(f"{self.address}: {meaning}") from error
                if attempt + 1 == ATTEMPTS:
                    tried = f"{name} could not be reached in {ATTEMPTS} attempts"
                    mend = f"({str(error)[:200]}); run the same command again to go on"
                    raise StorageError(f"{self.address}: {tried} {mend}") from error
                time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")  # pragma: no cover


Storage = LocalStorage | ObjectStorage


def is_uri(place: str) -> bool:
    """Return whether a text names a place by a scheme, as ``s3://bucket`` does."""
    return "://" in place


def without_options(place: str) -> str:
    """Return a place as people call it: a URI without options and keys.

    >>> without_options("s3://key:secret@photos/2024/?region=eu-west-1")
    's3://photos/2024'
    """
    if not is_uri(place):
        return place
    scheme, _, rest = place.partition("?")[0].rstrip("/").partition("://")
    bucket, slash, key = rest.partition("/")
    return f"{scheme}://{bucket.rpartition('@')[2]}{slash}{key}"


def address_of(place: str, name: str) -> str:
    """Return where a file below a place is, as people call it."""
    return f"{without_options(place)}/{name}" if is_uri(place) else os.path.join(place, name)


def parent_of(place: str) -> tuple[str, str]:
    """Return the place that a file is in, with the options of its URI, and the file's name.

    >>> parent_of("s3://photos/2024/a.tar?region=eu-west-1")
    ('s3://photos/2024?region=eu-west-1', 'a.tar')
    >>> parent_of("a.csv")
    ('.', 'a.csv')
    """
    head, mark, options = place.partition("?") if is_uri(place) else (place, "", "")
    above, slash, name = head.rpartition("/")
    return (above or slash or ".") + mark + options, name


def split_address(address: str) -> tuple[str, str]:
    """Return the bucket that the URI of an object names, as a place, and the object's key."""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}/", key


def storage_at(place: str) -> Storage:
    """Return the storage of a local folder or of a URI."""
    if not is_uri(place):
        return LocalStorage(Path(place))
    parts = urlsplit(place)
    if parts.scheme == "file":
        return LocalStorage(Path(unquote(parts.path)))
    if parts.password is not None:
        kept = "addresses are kept in plans, settings and reports, so they must hold no password"
        mend = "give keys by the environment, such as AWS_ACCESS_KEY_ID"
        raise DataError(f"{parts.scheme}://...@{parts.hostname}: {kept}; {mend}")
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(quote(place, safe=IN_A_URI))  # else no spaces
    except (ArrowException, ValueError, OSError) as error:
        mend = "give a folder, s3://bucket/folder or gs://bucket/folder"
        reason = f"cannot be opened ({str(error)[:200]})"
        raise DataError(f"{without_options(place)} {reason}; {mend}") from None
    return ObjectStorage(filesystem, path, place)


class Mirror:
    """A folder here, and the bucket that counts: it is fetched, worked on, and sent file by file.

    Object stores have no locks: a command that begins to write puts its name there, and one that
    finds another name stops. ``turn`` says when a file is sent, by its name and whether the bucket
    has it: low numbers first, and removed last; None for what does not belong to the folder.
    """

    def __init__(self, folder: Path, storage: ObjectStorage, turn: Turn) -> None:
        self.folder, self.storage, self.turn = folder, storage, turn
        self.address = storage.address
        self.unsent = False  # whether the last attempt to send failed
        self._known: dict[str, Facts | None] = {}  # what the bucket holds, and that file here
        self._name: bytes | None = None

    def fetch(self, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """Fetch what the bucket holds of the wanted names; return whether there are any."""
        listed = self._listed()
        chosen = [name for name in listed if wanted(name)]
        for name in self._local():
            if wanted(name) and name not in listed:
                (self.folder / name).unlink()
        for name in chosen:
            path, size, changed = self.folder / name, listed[name].size, listed[name].mtime_ns
            if self._facts(name) != (size, changed):
                try:
                    self.storage.download(name, path, size)
                except FileNotFoundError:
                    gone = f"{self.address}: {name} was removed while it was read; try again"
                    raise StorageError(gone) from None
                os.utime(path, ns=(changed, changed))
        self._known = {name: self._facts(name) if wanted(name) else None for name in listed}
        return bool(chosen)

    def claim(self) -> None:
        self._name = secrets.token_hex(8).encode()
        self.storage.write(WRITER, self._name)

    def send(self) -> None:
        self.unsent = True
        self._check_claim()
        there = {name: self._facts(name) for name in self._local()}
        for name in self._in_turn(there):
            if self._known.get(name) != there[name]:
                self.storage.upload(name, self.folder / name)
                self._known[name] = there[name]
        held = [name for name, facts in self._known.items() if facts is not None]
        self._remove([name for name in held if name not in there])
        self.unsent = False

    def clear(self) -> None:
        self._known = dict.fromkeys(self._listed())
        self._remove(list(self._known))

    def _remove(self, names: list[str]) -> None:
        for name in reversed(self._in_turn(names)):
            self.storage.remove(name)
            del self._known[name]
        for folder in sorted({name.rpartition("/")[0] for name in names} - {""}):
            if not any(name.startswith(f"{folder}/") for name in self._known):
                self.storage.remove_folder(folder)

    def _check_claim(self) -> None:
        try:
            name = self.storage.read(WRITER)
        except FileNotFoundError:
            name = b""
        if self._name is None or name != self._name:
            raise LabelwiseError(
                f"another command writes to {self.address} now, or it was removed: this one stops"
            )

    def _listed(self) -> dict[str, StoredFile]:
        return {
            name: file
            for folder, files in self.storage.folders()
            for file in files
            if self._belongs(name := f"{folder}/{file.name}" if folder else file.name)
        }

    def _local(self) -> list[str]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        names = (path.relative_to(self.folder).as_posix() for path in paths)
        return [name for name in names if self._belongs(name)]

    def _belongs(self, name: str) -> bool:
        return self.turn(name, False) is not None

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: (self.turn(name, name in self._known) or 0, name))

    def _facts(self, name: str) -> Facts | None:
        with suppress(OSError):
            facts = (self.folder / name).stat()
            return facts.st_size, facts.st_mtime_ns
        return None
