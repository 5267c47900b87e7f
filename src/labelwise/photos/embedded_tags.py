"""Keywords written into photos themselves, through exiftool, and taken out again to the byte.

The photo's XMP packet is edited as a side-car is (:mod:`labelwise.photos.xmp`), and exiftool puts
it into the file in place of the old one; everything else is exiftool's to keep. Before the photo is
replaced, the index keeps a patch that makes the old bytes of the new ones, and what we wrote.
Undoing gives exactly the old bytes; where another program has changed the photo since, only the
entries that the index knows to be ours are taken out of what it is now.

The index keeps every file that ``tag`` wrote before it is written, so that a killed command leaves
nothing that cannot be taken back: side-cars with their bytes before (table ``sidecars``), photos
with a patch (``embedded``), both with the hash of what we wrote, and our entries.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.photos.metadata import read_photo_metadata
from labelwise.photos.store import Store, shown
from labelwise.photos.xmp import Keyword, begun, entries, noted, tagged, untagged
from labelwise.system.files import read_regular, replacing
from labelwise.system.text import shortened


@dataclass(frozen=True)
class KeptSidecar:
    """A side-car that we wrote: its bytes before, the hash of those we wrote, and our entries.

    ``wrote`` is None where an index of 0.1 wrote it.
    """

    before: bytes | None
    after: bytes
    wrote: dict[str, list[str]] | None


@dataclass(frozen=True)
class EmbeddedTags:
    """A photo that we wrote keywords into: the patch that takes it back, and our entries.

    ``after`` is the hash of the bytes that the patch is for.
    """

    patch: bytes
    after: bytes
    wrote: dict[str, list[str]]


T = TypeVar("T", KeptSidecar, EmbeddedTags)


class WrittenFiles(Generic[T]):
    """What a table of an index's database says of files by their paths."""

    def __init__(self, store: Store, table: str, kind: type[T]) -> None:
        self._store, self._table = store, table
        self._kind: Callable[..., T] = kind

    def find(self, path: str) -> T | None:
        """Return what is kept of a file that we wrote, None for any other."""
        for _, _, undo, after, wrote in self._store.read(self._table, raw=os.fsencode(path)):
            return self._kind(undo, after, None if wrote is None else json.loads(wrote))
        return None

    def paths(self) -> list[str]:
        """Return the files that we have written, in order."""
        return [os.fsdecode(raw) for raw, *_ in self._store.read(self._table, "ORDER BY raw")]

    def put(self, path: str, kept: T) -> None:
        """Remember a file that is about to be written."""
        undo, after, wrote = astuple(kept)
        noted = None if wrote is None else json.dumps(wrote)
        with self._store.transaction() as database:
            database.put(self._table, [(os.fsencode(path), shown(path), undo, after, noted)])

    def forget(self, path: str) -> None:
        """Forget a file that is as it was before."""
        with self._store.transaction() as database:
            database.execute(f"DELETE FROM {self._table} WHERE raw = ?", (os.fsencode(path),))


def written_sidecars(store: Store) -> WrittenFiles[KeptSidecar]:
    """Return the side-cars that we have written."""
    return WrittenFiles(store, "sidecars", KeptSidecar)


def written_photos(store: Store) -> WrittenFiles[EmbeddedTags]:
    """Return the photos that we have written keywords into."""
    return WrittenFiles(store, "embedded", EmbeddedTags)


BLOCK = 4096
SEARCHES = 64  # each may go through the whole file; what is not found by then is stored

Step = tuple[int, int] | bytes


def make_patch(now: bytes, before: bytes) -> bytes:
    """Return the patch that makes ``before`` of ``now``.

    >>> photo = bytes(range(256)) * 500
    >>> len(make_patch(photo[:9000] + b"keywords" + photo[9000:], photo)) < 100
    True
    """
    steps: list[Step] = []
    at, position, searches = 0, 0, SEARCHES  # where we are in `before`, and perhaps in `now`
    while at < len(before):
        block = before[at : at + BLOCK]
        if not now.startswith(block, position):
            position = now.find(block) if searches else -1
            searches -= searches > 0
        if position < 0:
            steps.append(block)
            at, position = at + len(block), 0
            continue
        length = _same_bytes(now, position, before, at)
        steps.append((position, length))
        at, position = at + length, position + length
    literal = b"".join(step for step in steps if isinstance(step, bytes))
    plan = [len(step) if isinstance(step, bytes) else step for step in steps]
    patch = zlib.compress(json.dumps(plan).encode() + b"\n" + literal)
    if apply_patch(now, patch) != before:
        raise ValueError("a patch must give back the bytes that it was made of")
    return patch


def apply_patch(now: bytes, patch: bytes) -> bytes:
    """Return the bytes that ``now`` was made from."""
    plan, _, literal = zlib.decompress(patch).partition(b"\n")
    parts, at = [], 0
    for step in json.loads(plan):
        if isinstance(step, int):
            parts.append(literal[at : at + step])
            at += step
        else:
            start, length = step
            parts.append(now[start : start + length])
    return b"".join(parts)


def _same_bytes(one: bytes, at: int, other: bytes, there: int) -> int:
    """Return how many bytes are the same from these places on."""
    most = min(len(one) - at, len(other) - there)
    same, step = 0, BLOCK
    while step:
        end = min(same + step, most)
        if one[at + same : at + end] == other[there + same : there + end]:
            if end == most:
                return most
            same, step = end, 2 * step
        else:
            step //= 2
    return same


FORMATS = ("JPEG", "MPO", "TIFF", "PNG")
LARGEST = 1 << 30
SECONDS = 300  # after which exiftool is taken to be stuck


@dataclass(frozen=True)
class TagOutcome:
    """What became of one side-car or photo; one left alone says why."""

    path: str
    state: Literal["written", "unchanged", "undone", "left alone"]
    reason: str = ""


def require_exiftool() -> str:
    """Return where exiftool is; without it nothing can be written into photos."""
    program = shutil.which("exiftool")
    if program is None:
        raise SettingsError(
            "--embed writes through exiftool, which is not installed; install it (apt-get install "
            "libimage-exiftool-perl, brew install exiftool), or write side-cars with --xmp"
        )
    return program


def embed_tags(
    store: Store, photo: str, keywords: Sequence[Keyword], *, dry_run: bool = False
) -> TagOutcome:
    """Make ``keywords`` our entries in a photo; one that cannot be written is left alone."""
    exiftool = require_exiftool()
    try:
        path, now = _read(photo)
        packet = _packet(path)
        kept = written_photos(store).find(photo)
        ours = {} if kept is None or packet is None else kept.wrote
        if packet is None and not keywords:
            return TagOutcome(photo, "unchanged")
        after = tagged(begun(None, ()) if packet is None else packet, keywords, ours)
        if packet is not None and _same_entries(packet, after):
            return TagOutcome(photo, "unchanged")
        if not dry_run:
            before = now
            if kept is not None and hashlib.sha256(now).digest() == kept.after:
                before = apply_patch(now, kept.patch)
            new = _with_packet(exiftool, path, after)
            wrote = {prefix: list(names) for prefix, names in noted(after).items()}
            digest = hashlib.sha256(new).digest()
            kept = EmbeddedTags(make_patch(new, before), digest, wrote)
            written_photos(store).put(photo, kept)
            _replace(path, new, now)
    except LabelwiseError as error:
        return TagOutcome(photo, "left alone", str(error))
    return TagOutcome(photo, "written")


def undo_embedded(store: Store, photo: str, *, dry_run: bool = False) -> TagOutcome:
    """Take our entries out of a photo; one that we did not write is left alone."""
    try:
        path, now = _read(photo)
        kept = written_photos(store).find(photo)
        if kept is None:
            return TagOutcome(photo, "left alone", "not ours")
        if not dry_run:
            if hashlib.sha256(now).digest() == kept.after:
                back = apply_patch(now, kept.patch)
            else:
                packet = _packet(path)
                back = now
                if packet is not None:
                    back = _with_packet(require_exiftool(), path, untagged(packet, kept.wrote))
            _replace(path, back, now)
            written_photos(store).forget(photo)
    except FileNotFoundError:
        return TagOutcome(photo, "left alone", "it is gone")
    except LabelwiseError as error:
        return TagOutcome(photo, "left alone", str(error))
    return TagOutcome(photo, "undone")


def _read(photo: str) -> tuple[Path, bytes]:
    """Return the file that a path leads to, and its bytes."""
    path = Path(os.path.realpath(photo))
    try:
        return path, read_regular(path, LARGEST)[0]
    except OSError as error:
        raise LabelwiseError(f"it cannot be read ({error.strerror})") from None


def _packet(place: Path) -> bytes | None:
    """Return the XMP packet of a photo whose format can be written."""
    try:
        photo_metadata = read_photo_metadata(place)
    except DataError as error:
        raise LabelwiseError(f"it cannot be read as a picture ({error})") from None
    if photo_metadata.format not in FORMATS:
        raise LabelwiseError(
            f"keywords are written into JPEG, TIFF and PNG, it is {photo_metadata.format}; --xmp "
            "writes a side-car instead"
        )
    return photo_metadata.packet


def _same_entries(one: bytes, other: bytes) -> bool:
    """Return whether two packets name the same keywords, and the same of them as ours."""
    return entries(one) == entries(other) and noted(one) == noted(other)


def _with_packet(exiftool: str, place: Path, packet: bytes) -> bytes:
    """Return the bytes of a photo with another packet; the photo itself is not changed."""
    with tempfile.TemporaryDirectory(prefix="labelwise-embed-") as folder:
        block, source = Path(folder) / "packet.xmp", Path(folder) / f"photo{place.suffix}"
        made = Path(folder) / f"made{place.suffix}"
        block.write_bytes(packet)
        shutil.copyfile(place, source)
        command = [exiftool, "-q", "-q", "-api", "PNGEarlyXMP=1", f"-XMP<={block}"]
        try:
            done = subprocess.run(
                [*command, "-o", str(made), str(source)],
                capture_output=True,
                timeout=SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LabelwiseError(f"exiftool could not be used ({error})") from None
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        said = said.replace(str(source), place.name)
        if done.returncode or not made.is_file():
            raise LabelwiseError(shortened(f"exiftool could not write it: {said or 'no reason'}"))
        written = read_photo_metadata(made).packet
        if written is None or not _same_entries(written, packet):
            raise LabelwiseError("what exiftool wrote is not what it was given")
        return made.read_bytes()


def _replace(place: Path, data: bytes, seen: bytes) -> None:
    with replacing(place) as temporary:
        temporary.write_bytes(data)
        facts = os.stat(place)
        os.chmod(temporary, facts.st_mode & 0o7777)
        if read_regular(place, LARGEST)[0] != seen:
            raise LabelwiseError("another program changed it just now; try again")
