"""What the files of photos say besides the picture; no pixels are decoded.

    keywords   XMP (JPEG, TIFF, PNG, WebP, HEIC, and side-cars a.jpg.xmp or a.xmp): dc:subject,
               lr:hierarchicalSubject, digiKam:TagsList; IPTC Keywords, in UTF-8 where it says so or
               can be, else in Latin-1; XPKeywords of Windows, in UTF-16, separated by semicolons
    camera     EXIF Make and Model
    place      EXIF GPS, in degrees north and east
    rating     xmp:Rating, -1 (rejected) to 5, of the side-car or else inside the file

``animal|dog`` (Lightroom) and ``animal/dog`` (digiKam) say two labels, and that a dog is an animal.
What a keyword does not say is unknown. Keywords that ``labelwise tag`` wrote are left out, so that
no model learns from its own guesses.
"""

import json
import os
import re
import struct
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, IptcImagePlugin

from labelwise.base.files import read_regular
from labelwise.base.storage import is_uri
from labelwise.base.text import counted, one_line_of, printable
from labelwise.errors import DataError, LabelwiseError
from labelwise.photos.store import Store
from labelwise.photos.xmp import LARGEST, LISTS, entries, noted
from labelwise.pictures.decode import (
    exif_of,
    find_images,
    is_raw,
    known_formats,
    open_picture,
    raw_header,
)
from labelwise.tables.rows import from_rows
from labelwise.tables.table import LabelSets, LabelTable
from labelwise.taxonomy import Taxonomy

HEADERS_TABLE = "photo_headers"
RATING = re.compile(rb"""\bxmp:Rating\s*(?:=\s*["']|>)\s*(-?[0-9])""")
HEAD = 1 << 20  # bytes of a photo in which its XMP is looked for
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class PhotoHeader:
    """The camera, the rating and the keywords of a photo, as its owner's programs wrote them."""

    camera: str | None = None
    rating: int | None = None
    keywords: frozenset[str] = frozenset()


def headers_of(store: Store, rows: Sequence[int]) -> dict[int, PhotoHeader]:
    """Return the headers of some photos, read again where a file or a side-car has changed."""
    known = dict[int, tuple[str, PhotoHeader]]()
    if store.database.has_table(HEADERS_TABLE):
        for row, stamp, camera, rating, keywords in store.database.read(HEADERS_TABLE):
            known[row] = (stamp, PhotoHeader(camera, rating, frozenset(json.loads(keywords))))
    headers, read = {}, []
    for row, paths in store.paths_of(rows).items():
        files = [path for path in paths if not is_uri(path)]
        places = [place for file in files for place in (file, sidecar_of(file))]
        stamp = " ".join(str(_changed(place)) for place in places)
        if row in known and known[row][0] == stamp:
            headers[row] = known[row][1]
        else:
            headers[row] = header = _read_header(files)
            keywords = json.dumps(sorted(header.keywords))
            read.append((row, stamp, header.camera, header.rating, keywords))
    if read and store.writable:
        with store.transaction() as database:
            database.put(HEADERS_TABLE, read)
    return headers


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # there is none
        return 0


def _read_header(files: Sequence[str]) -> PhotoHeader:
    """Return what the first readable file says, with the keywords of all its copies."""
    camera, rating, keywords = None, None, set[str]()
    for file in files:
        found_keywords, _ = photo_keywords(Path(file))
        keywords |= {level for levels in found_keywords for level in levels}
        with suppress(OSError, LabelwiseError):
            content, _ = read_regular(file, MOST_BYTES)
            camera = camera or read_facts(content).camera
            match = RATING.search(content[:HEAD])
            with suppress(OSError, LabelwiseError):
                match = RATING.search(read_regular(sidecar_of(file), LARGEST)[0]) or match
            rating = rating if match is None or rating is not None else min(5, int(match[1]))
    return PhotoHeader(camera, rating, frozenset(keywords))


INTERNAL = "_Digikam_Internal_Tags_"
NAMED = 3  # files or labels named in a note

Levels = tuple[str, ...]  # the levels of a keyword, from the top


@dataclass(frozen=True)
class LibraryKeywords:
    """The table of a library's keywords, and which keyword stands under which."""

    table: LabelTable
    taxonomy: Taxonomy
    tagged: int  # photos that have a keyword


def read_keywords(folder: Path, *, least: int = 1) -> LibraryKeywords:
    """Return the keywords of the photos below a folder that at least ``least`` of them share."""
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder of photos")
    files, notes = find_images(folder)
    if not files:
        raise DataError(f"{folder} holds no photos{f' ({notes[0]})' if notes else ''}")
    labels, failures = list[set[str]](), list[str]()
    above: dict[str, set[str]] = {}  # the parents that a name has had
    for file in files:
        keywords, unread = photo_keywords(folder / file)
        failures += unread
        labels.append({level for levels in keywords for level in levels})
        for parent, child in (pair for levels in keywords for pair in pairwise(levels)):
            if parent != child:
                above.setdefault(child, set()).add(parent)
    counts = Counter(name for names in labels for name in names)
    frequent = {name for name, count in counts.items() if count >= least}
    if not frequent:
        shared = f" that {least:,} photos share; lower --least" if counts else ""
        raise DataError(f"{folder}: {counted(len(files), 'photo')} without a keyword{shared}")
    rows = [sorted(frequent & names) for names in labels]
    table = from_rows((folder, files), rows, name=printable(folder.name))
    plain = table.present.plain()
    unknown = LabelSets(plain.offsets, plain.columns, plain.width, np.ones(len(files), np.bool_))
    if len(frequent) < len(counts):
        left = counted(len(counts) - len(frequent), "keyword")
        notes += (f"left out {left} on fewer than {least} photos",)
    several = sorted(name for name, parents in above.items() if len(parents) > 1)
    parents: dict[str, str] = {}
    for child, (parent, *others) in sorted(above.items()):
        top = parent
        while top in parents:
            top = parents[top]
        if not others and top == child:  # a is under b and b under a
            several.append(child)
        elif not others and child in frequent and parent in frequent:
            parents[child] = parent
    several_places = "in several places of the hierarchy, so without a parent"
    for names, what in ((several, several_places), (failures, "not read")):
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        notes += (f"{what}: {', '.join(names[:NAMED])}{more}",) if names else ()
    table = replace(table, unknown=unknown, notes=notes)
    return LibraryKeywords(table, Taxonomy(parents), sum(map(bool, labels)))


def photo_keywords(photo: Path) -> tuple[set[Levels], list[str]]:
    """Return the keywords of a photo, each with its levels, and why a place was not read."""
    keywords, failures = set[Levels](), list[str]()
    sidecar = Path(sidecar_of(str(photo)))
    for path in (photo, sidecar) if sidecar.is_file() else (photo,):
        try:
            if path == photo:
                inside = read_photo_metadata(photo)
                keywords |= {(word,) for word in inside.words}
                packet = inside.packet
            else:
                with path.open("rb") as stream:
                    packet = stream.read(LARGEST + 1)
            if packet is None:
                continue
            ours = noted(packet)
            for prefix, texts in entries(packet).items():
                separator = LISTS[prefix].separator
                for text in texts - set(ours[prefix]):
                    split = [text] if separator is None else text.split(separator)
                    levels = tuple(level.strip() for level in split if level.strip())
                    keywords |= {levels} if levels and levels[0] != INTERNAL else set()
        except (DataError, OSError) as error:
            failures.append(f"{printable(path.name)} ({one_line_of(error)[:120]})")
    return keywords, failures


UNREADABLE = (
    *(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError, zlib.error),
    *(struct.error, Image.DecompressionBombError),
)


@dataclass(frozen=True)
class PhotoFacts:
    """The camera, and the place in degrees north and east; None where the header is silent."""

    camera: str | None = None
    latitude: float | None = None
    longitude: float | None = None


def read_facts(content: bytes) -> PhotoFacts:
    """Return what the header of a picture file says; a damaged one says nothing."""
    camera = north = east = None
    with suppress(*UNREADABLE), ExitStack() as opened:
        if is_raw(content):
            exif: Any = raw_header(content)[1]
        else:  # parts of a TIFF header are read when asked for
            exif = exif_of(opened.enter_context(open_picture(content)))
        with suppress(*UNREADABLE):
            make, model = (
                str(exif.get(tag) or "").strip("\0 ")
                for tag in (ExifTags.Base.Make, ExifTags.Base.Model)
            )
            name = model if model.casefold().startswith(make.casefold()) else f"{make} {model}"
            camera = "".join(filter(str.isprintable, name)).strip()[:100] or None
        gps, tags = exif.get_ifd(ExifTags.IFD.GPSInfo), ExifTags.GPS
        north, east = (
            _degrees(gps[tags.GPSLatitude], gps[tags.GPSLatitudeRef], "S", 90),
            _degrees(gps[tags.GPSLongitude], gps[tags.GPSLongitudeRef], "W", 180),
        )
    return PhotoFacts(camera, north, east)


def _degrees(parts: Sequence[float], side: object, negative: str, most: float) -> float:
    degrees, minutes, seconds = (float(number) for number in parts)
    value = degrees + minutes / 60 + seconds / 3600
    if not 0 <= value <= most:
        raise ValueError(f"degrees must lie between 0 and {most}, got {value}")
    return round(-value if str(side).strip("\0 ").upper() == negative else value, 6)


IPTC_KEYWORDS, IPTC_CHARSET, UTF8 = (2, 25), (1, 90), b"\x1b%G"
XP_KEYWORDS = 0x9C9E
PNG_START, PNG_PACKET = b"\x89PNG\r\n\x1a\n", b"XML:com.adobe.xmp"


@dataclass(frozen=True)
class PhotoMetadata:
    """The XMP ``packet`` of a photo, None without one, and the ``words`` of its other keywords."""

    format: str
    packet: bytes | None = None
    words: tuple[str, ...] = ()


def read_photo_metadata(path: Path) -> PhotoMetadata:
    """Return what a photo holds, or raise a DataError where it cannot be read as a picture."""
    known_formats()  # HEIC among them
    try:
        with Image.open(path) as image:
            format = image.format or "unknown"
            packet = _packet_of_png(path) if format == "PNG" else image.info.get("xmp")
            iptc = IptcImagePlugin.getiptcinfo(image) or {}
            windows = exif_of(image).get(XP_KEYWORDS)
    except UNREADABLE as error:
        raise DataError(one_line_of(error)) from None
    packet = packet.encode() if isinstance(packet, str) else packet
    raw_keywords, stated = iptc.get(IPTC_KEYWORDS, []), iptc.get(IPTC_CHARSET) == UTF8
    keywords = list[str]()
    for raw in [raw_keywords] if isinstance(raw_keywords, bytes) else raw_keywords:
        try:
            word = raw.decode("utf-8", "replace" if stated else "strict")
        except UnicodeDecodeError:
            word = raw.decode("latin-1")
        keywords.append(word.strip("\0 "))
    with suppress(TypeError, ValueError):  # bytes, or numbers that are bytes
        windows = bytes(windows) if isinstance(windows, tuple) else windows
    if isinstance(windows, bytes):
        text = windows.decode("utf-16-le", "ignore").replace("\0", "")
        keywords += map(str.strip, text.split(";"))
    packet = (packet or b"").strip(b"\0 \r\n\t") or None
    return PhotoMetadata(format, packet, tuple(dict.fromkeys(filter(None, keywords))))


def _packet_of_png(path: Path) -> bytes | None:
    with path.open("rb") as file:
        file.seek(len(PNG_START))
        while len(head := file.read(8)) == 8:
            size, kind = struct.unpack(">I4s", head)
            if kind == b"iTXt" and size <= LARGEST:
                keyword, _, rest = file.read(size).partition(b"\0")
                if keyword == PNG_PACKET:
                    text = rest[2:].split(b"\0", 2)[-1]  # behind language and translated keyword
                    zipped = rest[:1] > b"\0"
                    return zlib.decompressobj().decompress(text, LARGEST) if zipped else text
                size = 0  # it is read
            file.seek(size + 4, 1)
    return None


def sidecar_of(photo: str) -> str:
    """Return the side-car of a photo: ``a.jpg.xmp`` or ``a.xmp``, whichever exists.

    A name in other case is taken unless it is the side-car of another photo.
    """
    folder, name = os.path.split(photo)
    wanted, there = [f"{name}.xmp", f"{os.path.splitext(name)[0]}.xmp"], names_beside(photo)
    others = [other for other in there if other != name and not other.casefold().endswith(".xmp")]
    owned = {base for other in others for base in (other, os.path.splitext(other)[0])}
    for candidate in wanted:
        same = [other for other in there if other.casefold() == candidate.casefold()]
        free = [other for other in same if other[: -len(".xmp")] not in owned]
        if candidate in same or free:
            return os.path.join(folder, candidate if candidate in same else free[0])
    return os.path.join(folder, wanted[0])


QUIET = 10**9  # nanoseconds without a change after which a folder's listing is kept


def names_beside(photo: str) -> list[str]:
    """Return the names in a photo's folder that are its own up to the first dot, in any case."""
    folder, name = os.path.split(photo)
    first = name.casefold().partition(".")[0]
    try:
        changed = os.stat(folder or ".").st_mtime_ns
        is_quiet = time.time_ns() - changed > QUIET
        listed = (_listed if is_quiet else _listed.__wrapped__)(folder or ".", changed)
    except OSError:
        return []
    return listed.get(first, [])


@lru_cache(maxsize=16)
def _listed(folder: str, changed: int) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        names.setdefault(name.casefold().partition(".")[0], []).append(name)
    return names
