"""Folders and buckets behind one small class: names below a place, read, listed and written whole.

``/photos``, ``file:///photos``, ``s3://bucket/photos`` and ``gs://bucket/photos`` are places.
Writes are atomic. Time-outs, 500s and dropped connections are tried again with growing pauses.
"""

import os
import random
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from labelwise.base.files import replacing
from labelwise.base.text import for_terminal
from labelwise.errors import DataError, LabelwiseError

Facts = tuple[int, int]  # size and time of change
Turn = Callable[[str, bool], int | None]
T = TypeVar("T")

WRITER = ".writer"  # hidden, so that no listing names it
ATTEMPTS = 6
FIRST_PAUSE = 0.2  # seconds; doubled after each attempt
PIECE = 1 << 26  # bytes of a file that are in memory at a time
IN_A_URI = "%:/?#[]@!$&'()*+,;=~"  # beside letters and digits
CLIENT_OPTIONS = {"region", "scheme", "endpoint_override"}  # of a URI, that botocore is told
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
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class StorageError(LabelwiseError):
    """A place that does not answer; the rows themselves may be fine."""


class StoredFile(NamedTuple):
    """A file of a listing; object stores keep times of change to the second."""

    name: str
    size: int
    mtime_ns: int


class LocalStorage:
    """A folder of this machine, or a shared disk; names are relative to it and use ``/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = self.address = str(folder)

    def files(self) -> Iterator[str]:
        """Yield all names that are not hidden, folder by folder, in the memory of the largest."""
        waiting: list[str] = [""]
        seen: set[tuple[int, int]] = set()
        while waiting:
            below = waiting.pop()
            try:
                facts = os.stat(self.folder / below)
                with os.scandir(self.folder / below) as entries:
                    seen_ones = (entry for entry in entries if entry.name[0] != ".")
                    kinds = sorted((one.name, one.is_dir(), one.is_file()) for one in seen_ones)
            except OSError as error:
                where = for_terminal(str(self.folder / below))
                raise DataError(f"{where}: cannot be read ({error.strerror})") from None
            if (facts.st_dev, facts.st_ino) in seen:  # a link to a folder above
                continue
            seen.add((facts.st_dev, facts.st_ino))
            prefix = f"{below}/" if below else ""
            waiting += [prefix + name for name, folder, _ in reversed(kinds) if folder]
            yield from (prefix + name for name, _, file in kinds if file)

    def stream(self, name: str) -> Any:
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

    def __init__(self, filesystem: Any, prefix: str, place: str) -> None:
        self.filesystem, self.prefix, self.place = filesystem, prefix.rstrip("/"), place
        self.address = without_options(place)  # as people call it

    def files(self) -> Iterator[str]:
        client = s3_client(self.place)
        if client is not None:
            yield from self._paged_files(client)
            return
        for folder, files in self.folders():
            yield from (f"{folder}/{file.name}" if folder else file.name for file in files)

    def _paged_files(self, client: Any) -> Iterator[str]:
        bucket, _, base = self.prefix.partition("/")
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            above = f"{folder}/" if folder else ""
            prefix = f"{base}/{above}" if base else above
            wanted: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}
            inner, more = [], True
            while more:
                page = self._patiently(partial(_listed, client, wanted), prefix)
                for entry in page.get("Contents", ()):
                    name = entry["Key"][len(prefix) :]
                    if name and name[0] != "." and name[-1] != "/":
                        yield above + name
                found = (entry["Prefix"] for entry in page.get("CommonPrefixes", ()))
                names = (path[len(prefix) : -1] for path in found)
                inner += [above + name for name in names if name and name[0] != "."]
                wanted["ContinuationToken"] = page.get("NextContinuationToken")
                more = bool(wanted["ContinuationToken"])
            waiting += sorted(inner, reverse=True)

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

    def stream(self, name: str) -> Any:
        return self._patiently(lambda: self.filesystem.open_input_file(self._path(name)), name)

    def size(self, name: str) -> int | None:
        from pyarrow.fs import FileType

        facts = self._patiently(lambda: self.filesystem.get_file_info(self._path(name)), name)
        return int(facts.size) if facts.type == FileType.File else None

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        folder, _, last = path.rpartition("/")

        def write() -> None:
            temporary = f"{folder}/.{last}.{secrets.token_hex(8)}.partial"
            try:
                with self.filesystem.open_output_stream(temporary) as stream:
                    stream.write(content)
                self.filesystem.move(temporary, path)
            except BaseException:
                with suppress(Exception):  # what went wrong first is what counts
                    self.filesystem.delete_file(temporary)
                raise

        self._patiently(write, name)

    def upload(self, name: str, path: Path) -> None:
        """Put a local file there, atomically up to 64 MiB: S3 moves nothing above 5 GB."""
        if path.stat().st_size <= PIECE:
            self.write(name, path.read_bytes())
            return

        def send() -> None:
            target = self._path(name)
            with path.open("rb") as source, self.filesystem.open_output_stream(target) as stream:
                shutil.copyfileobj(source, stream, PIECE)

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


def s3_client(place: str) -> Any:
    """Return a client that lists a thousand keys at a time; None without botocore.

    ``pyarrow.fs`` returns all keys of a folder at once.
    """
    parts = urlsplit(place)
    options = dict(parse_qsl(parts.query))
    if parts.scheme != "s3" or "@" in parts.netloc or not options.keys() <= CLIENT_OPTIONS:
        return None
    try:
        import botocore.session
        from botocore.config import Config
    except ImportError:
        return None
    session = botocore.session.get_session()
    if session.get_credentials() is None:
        return None
    # Times of change are not asked for, and reading them would take most of the time.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    host = options.get("endpoint_override")
    endpoint = host and f"{options.get('scheme', 'https')}://{host}"
    retries = {"mode": "standard", "max_attempts": 2}  # whoever asks tries again
    config = Config(retries=retries, s3={"addressing_style": "path" if host else "auto"})
    return session.create_client("s3", options.get("region"), endpoint_url=endpoint, config=config)


def _listed(client: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a page of keys, or raise OSError, as pyarrow does."""
    from botocore.exceptions import BotoCoreError, ClientError

    asked = {name: value for name, value in wanted.items() if value is not None}
    try:
        page: dict[str, Any] = client.list_objects_v2(**asked)
        return page
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchBucket":
            return {}
        raise OSError(str(error)) from None
    except BotoCoreError as error:
        raise OSError(str(error)) from None


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
