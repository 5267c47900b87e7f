"""Which tags photos get, and how they are written into side-cars or photos and taken back.

Programs that find a side-car often look no further, so a new one takes over the XMP packet and the
other keywords inside the photo. The packet of a photo is edited as a side-car is
(:mod:`labelwise.photos.xmp`), and exiftool puts it into the file in place of the old one.

The index keeps every file before it is written: side-cars with their bytes before (table
``sidecars``), photos with the bytes of theirs that changed (``embedded``). Undoing gives exactly
the old bytes; where another program has changed the file since, only entries that the
index knows to be ours are taken out. A note in the file alone takes nothing out.
"""

import errno
import json
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from hashlib import sha256
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec

import numpy as np

from labelwise.answers.audit_session import KEPT, RECEIPT, read_receipt
from labelwise.base.files import read_regular, replacing
from labelwise.base.text import shortened
from labelwise.decide import Promised, Rule, promise_precision, promise_tags
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.photos.index import Index
from labelwise.photos.metadata import names_beside, read_photo_metadata
from labelwise.photos.shift import evidence_of, likeness_of
from labelwise.photos.store import Store, shown
from labelwise.photos.xmp import (
    LARGEST,
    NOTHING,
    Keyword,
    Written,
    begun,
    differ_in_dates_alone,
    entries,
    noted,
    tagged,
    untagged,
)
from labelwise.pictures.decode import IMAGE_SUFFIXES, RAW_SUFFIXES
from labelwise.tables import load
from labelwise.tables.rows import is_file

FORMATS = ("JPEG", "MPO", "TIFF", "PNG")
LARGEST_PHOTO = 1 << 30
SECONDS = 300  # after which exiftool is taken to be stuck


@dataclass(frozen=True)
class KeptFile:
    """A file that we wrote: what takes it back, the hash of what we wrote, and our entries.

    ``undo`` are the bytes of a side-car before, None where there was none, or those of a photo that
    changed (:func:`make_patch`).
    """

    undo: bytes | None
    after: bytes
    wrote: Written

    def is_of(self, now: bytes | None) -> bool:
        return now is not None and sha256(now).digest() == self.after


class WrittenFiles:
    """What an index knows of the side-cars, or photos (``embedded``), that we have written."""

    def __init__(self, store: Store, table: Literal["sidecars", "embedded"]) -> None:
        self._store, self._table = store, table

    def find(self, path: str) -> KeptFile | None:
        rows = self._store.database.read(self._table, raw=os.fsencode(path))
        for _, _, undo, after, wrote in rows:
            return KeptFile(undo, after, json.loads(wrote or "{}"))
        return None

    def paths(self) -> list[str]:
        rows = self._store.database.read(self._table, "ORDER BY raw")
        return [os.fsdecode(raw) for raw, *_ in rows]

    def put(self, path: str, kept: KeptFile) -> None:
        facts = (kept.undo, kept.after, json.dumps(kept.wrote))
        with self._store.transaction() as database:
            database.put(self._table, [(os.fsencode(path), shown(path), *facts)])

    def forget(self, path: str) -> None:
        with self._store.transaction() as database:
            database.execute(f"DELETE FROM {self._table} WHERE raw = ?", (os.fsencode(path),))


@dataclass(frozen=True)
class TagOutcome:
    """What became of one side-car or photo; one left alone says why."""

    path: str
    state: Literal["written", "unchanged", "undone", "left alone"]
    reason: str = ""


P = ParamSpec("P")
Work = Callable[Concatenate[Store, str, P], TagOutcome]


def _or_left_alone(work: Work[P]) -> Work[P]:

    @wraps(work)
    def done(store: Store, path: str, /, *arguments: P.args, **options: P.kwargs) -> TagOutcome:
        try:
            return work(store, path, *arguments, **options)
        except (LabelwiseError, OSError) as error:
            return TagOutcome(path, "left alone", getattr(error, "strerror", None) or str(error))

    return done


@_or_left_alone
def write_sidecar(
    store: Store,
    path: str,
    keywords: Sequence[Keyword],
    *,
    photo: str | None = None,
    adopt: bool = False,
    dry_run: bool = False,
) -> TagOutcome:
    """Make ``keywords`` our entries of a side-car; one that cannot be edited is left alone.

    A new one takes over what ``photo`` holds. ``adopt`` takes what the file notes as ours.
    """
    now, files = _read(path), WrittenFiles(store, "sidecars")
    if now is None and not keywords:
        return TagOutcome(path, "unchanged")
    kept, start = files.find(path), now
    ours = NOTHING if kept is None or now is None else kept.wrote
    if adopt and now is not None:
        ours = noted(now)
    if now is None and photo is not None:
        with suppress(DataError):  # raw files hold nothing that we read
            inside = read_photo_metadata(Path(photo))
            start = begun(inside.packet, inside.words)
    after, before = tagged(start, keywords, ours), None
    if kept is not None and kept.is_of(now):
        if differ_in_dates_alone(after, now or b""):
            return TagOutcome(path, "unchanged")
        before = kept.undo
    elif after == now:
        return TagOutcome(path, "unchanged")
    elif now is not None:
        before = untagged(now, ours)
    if not dry_run:
        files.put(path, KeptFile(before, sha256(after).digest(), noted(after)))
        _replace(Path(path), after, now)
    return TagOutcome(path, "written")


@_or_left_alone
def undo_sidecar(store: Store, path: str, *, dry_run: bool = False) -> TagOutcome:
    """Take our entries out of a side-car; one that we did not write is left alone."""
    now, files = _read(path), WrittenFiles(store, "sidecars")
    kept = files.find(path)
    if now is None or kept is None:
        return TagOutcome(path, "left alone", "it is gone" if now is None else "not ours")
    if not dry_run:
        _replace(Path(path), kept.undo if kept.is_of(now) else untagged(now, kept.wrote), now)
        files.forget(path)
    return TagOutcome(path, "undone")


def require_exiftool() -> str:
    """Return where exiftool is; without it nothing can be written into photos."""
    program = shutil.which("exiftool")
    if program is None:
        lacks = "--embed writes through exiftool, which is not installed"
        raise SettingsError(f"{lacks}; install it, or use --xmp")
    return program


@_or_left_alone
def embed_tags(
    store: Store, photo: str, keywords: Sequence[Keyword], *, dry_run: bool = False
) -> TagOutcome:
    """Make ``keywords`` our entries in a photo; one that cannot be written is left alone."""
    exiftool, path = require_exiftool(), Path(os.path.realpath(photo))
    files = WrittenFiles(store, "embedded")
    (now, packet), kept = _read_photo(path), files.find(photo)
    ours = NOTHING if kept is None else kept.wrote
    if packet is None and not keywords:
        return TagOutcome(photo, "unchanged")
    after = tagged(begun(None, ()) if packet is None else packet, keywords, ours)
    if packet is not None and _same_entries(packet, after):
        return TagOutcome(photo, "unchanged")
    if not dry_run:
        before = apply_patch(now, kept.undo or b"") if kept and kept.is_of(now) else now
        new = _with_packet(exiftool, path, after)
        files.put(photo, KeptFile(make_patch(new, before), sha256(new).digest(), noted(after)))
        _replace(path, new, now)
    return TagOutcome(photo, "written")


@_or_left_alone
def undo_embedded(store: Store, photo: str, *, dry_run: bool = False) -> TagOutcome:
    """Take our entries out of a photo; one that we did not write is left alone."""
    path, files = Path(os.path.realpath(photo)), WrittenFiles(store, "embedded")
    kept = files.find(photo)
    if kept is None:
        return TagOutcome(photo, "left alone", "not ours")
    now, packet = _read_photo(path)
    if not dry_run:
        back = now
        if kept.is_of(now):
            back = apply_patch(now, kept.undo or b"")
        elif packet is not None:
            back = _with_packet(require_exiftool(), path, untagged(packet, kept.wrote))
        _replace(path, back, now)
        files.forget(photo)
    return TagOutcome(photo, "undone")


def _read(path: str | Path, most: int = LARGEST) -> bytes | None:
    try:
        return read_regular(path, most)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabelwiseError(f"it cannot be read ({error.strerror})") from None


def _read_photo(path: Path) -> tuple[bytes, bytes | None]:
    data = _read(path, LARGEST_PHOTO)
    if data is None:
        raise LabelwiseError(f"it cannot be read ({os.strerror(errno.ENOENT)})")
    try:
        inside = read_photo_metadata(path)
    except DataError as error:
        raise LabelwiseError(f"it cannot be read as a picture ({error})") from None
    if inside.format in FORMATS:
        return data, inside.packet
    raise LabelwiseError(f"it is {inside.format}, not JPEG, TIFF or PNG; --xmp writes a side-car")


def _same_entries(one: bytes, other: bytes) -> bool:
    return entries(one) == entries(other) and noted(one) == noted(other)


def _with_packet(exiftool: str, place: Path, packet: bytes) -> bytes:
    """Return the bytes of a photo with another packet; the photo itself is not changed."""
    with tempfile.TemporaryDirectory(prefix="labelwise-embed-") as folder:
        names = ("packet.xmp", f"photo{place.suffix}", f"made{place.suffix}")
        block, source, made = (Path(folder) / name for name in names)
        block.write_bytes(packet)
        shutil.copyfile(place, source)
        command = [exiftool, "-q", "-q", "-api", "PNGEarlyXMP=1", f"-XMP<={block}", "-o"]
        command += [str(made), str(source)]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False
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


def _replace(path: Path, data: bytes | None, seen: bytes | None) -> None:
    """Write a file, or remove it, unless another program has changed it since it was seen."""

    def check() -> None:
        if _read(path, LARGEST_PHOTO) != seen:
            raise LabelwiseError("another program changed it just now; try again")

    if data is None:
        check()
        path.unlink()
        return
    with replacing(path) as temporary:
        temporary.write_bytes(data)
        if seen is not None:
            os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        check()


# Patches


def make_patch(now: bytes, before: bytes) -> bytes:
    """Return the bytes that ``before`` does not share with the start and the end of ``now``.

    >>> photo = bytes(range(256)) * 500
    >>> len(make_patch(photo[:9000] + b"keywords" + photo[9000:], photo)) < 100
    True
    """
    start = _same_start(now, before)
    end = _same_start(now[start:][::-1], before[start:][::-1])
    middle = before[start : len(before) - end]
    plan = [(0, start), len(middle), (len(now) - end, end)]
    return zlib.compress(json.dumps(plan).encode() + b"\n" + middle)


def _same_start(one: bytes, other: bytes) -> int:
    """Return how many bytes at the start of two files are the same."""
    size = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(differ.argmax()) if differ.any() else size


def apply_patch(now: bytes, patch: bytes) -> bytes:
    """Return the bytes that ``now`` was made from: parts of it, and bytes of the patch."""
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


ROWS_AT_ONCE = 4096


def promised_rule(
    index: Index, wrong_at_most: float, confidence: float, *, per_label: bool = False
) -> Promised:
    """Return the rule by which at most this share of the tags, or each label's, is wrong.

    Held-out photos tell nothing of a library that differs, or that could not be compared.
    """
    evidence, likeness, known = evidence_of(index), likeness_of(index), index.validation_photos
    outcome, own = likeness.likeness.outcome, index.spec.answers is not None
    if outcome != "alike" and not (own and outcome == "unknown"):  # own photos were set aside
        raise DataError(
            f"no tag of {index.folder} can be guaranteed from test photos. {likeness.sentence()} "
            "Leave out --wrong-at-most, then check the tags: labelwise audit TAGS"
        )
    promise = partial(promise_precision, scope="label") if per_label else promise_tags
    tuning = None if known is None else known.evidence("validation photos of the model")
    made = promise(evidence, level=1 - wrong_at_most, confidence=confidence, tuning=tuning)
    if not made.promises:
        raise DataError("; ".join(made.refused))
    return made


def tags_of(index: Index, rule: Rule | None) -> Iterator[tuple[int, list[Keyword]]]:
    """Yield, for each photo that is there, its labels, surest first."""
    model = index.spec.weights_sha256[:12]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    guessed = {*index.spec.unanswered}  # a word that nobody answered about is never a tag
    if index.spec.answers == 0:
        raise DataError(
            "nobody has answered about these words yet, so none is written as a tag; answer "
            "photos: labelwise label --page PHOTOS --words WORDS"
        )
    every = index.store.alive_rows()
    for rows in np.split(every, range(ROWS_AT_ONCE, len(every), ROWS_AT_ONCE)):
        probs, sets = np.exp(index.log_probs(rows, refit=rule is None)), index.sets(rows, rule)
        for row, chances, chosen in zip(rows.tolist(), probs, sets, strict=True):
            keywords = []
            for k in sorted(np.flatnonzero(chosen).tolist(), key=lambda k: -chances[k]):
                name = index.space.names[k]
                if name in guessed:
                    continue
                above = () if index.taxonomy is None else index.taxonomy.above(name)
                keywords.append(Keyword(name, chances[k], model, date, above))
            yield row, keywords


def tags_of_audit(folder: Path) -> list[tuple[list[str], list[Keyword]]]:
    """Return the tags that an audit kept, for each of its photos that is there."""
    facts, table = read_receipt(folder / RECEIPT), load(folder / KEPT, check_files=False)
    level, date = facts["right_at_least"], datetime.now(UTC).isoformat(timespec="seconds")
    said = f"at least {100 * level:.3g} % of the audited tags are right"
    origin, tags = (level, f"audit {facts['table'][:12]}", date, (), said), []
    for row in range(len(table)):
        photo = table.images.address(row)
        if photo and Path(photo).suffix.lower() in IMAGE_SUFFIXES and is_file(Path(photo)):
            names = [table.space.names[k] for k in table.present.row(row).tolist()]
            tags.append(([photo], [Keyword(name, *origin) for name in names]))
    return tags


def raw_partners(photo: str) -> list[str]:
    """Return the raw files that a camera wrote together with a photo, under the same name."""
    folder, name = os.path.split(photo)
    stem, suffix = os.path.splitext(name)
    if suffix.lower() in RAW_SUFFIXES:
        return []
    beside = [(*os.path.splitext(name), name) for name in names_beside(photo)]
    return [
        os.path.join(folder, name)
        for own, suffix, name in beside
        if own == stem and suffix.lower() in RAW_SUFFIXES
    ]
