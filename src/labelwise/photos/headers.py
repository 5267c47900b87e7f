"""What the files of photos say besides the picture: camera, rating and keywords, for filters.

    camera     EXIF Make and Model
    rating     xmp:Rating, -1 (rejected) to 5, of the side-car or else inside the file
    keywords   those of :mod:`labelwise.photos.keywords`; the levels of animal|dog are two of them

They are read when a filter first asks for them and kept in the index beside the times of the file
and of its side-car; where either changed since, they are read again. Photos in a bucket, and files
that cannot be read, have none.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.photos.index import Index
from labelwise.photos.keywords import photo_keywords
from labelwise.photos.photo_facts import read_facts
from labelwise.photos.tagging import sidecar_of
from labelwise.photos.xml_bytes import LARGEST
from labelwise.system.files import read_regular
from labelwise.system.storage import is_uri

TABLE = "photo_headers"
SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (row INTEGER PRIMARY KEY, stamp TEXT NOT NULL, "
    "camera TEXT, rating INTEGER, keywords TEXT NOT NULL)"
)
RATING = re.compile(rb"""\bxmp:Rating\s*(?:=\s*["']|>)\s*(-?[0-9])""")
HEAD = 1 << 20  # bytes of a photo in which its XMP is looked for
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class PhotoHeader:
    """The camera, the rating and the keywords of a photo, as its owner's programs wrote them."""

    camera: str | None = None
    rating: int | None = None
    keywords: frozenset[str] = frozenset()


def headers_of(index: Index, rows: Sequence[int]) -> dict[int, PhotoHeader]:
    """Return the headers of some photos, read anew where a file or a side-car has changed."""
    known = _known(index)
    found, read = {}, {}
    for row, paths in index.store.paths_of(rows).items():
        files = [path for path in paths if not is_uri(path)]
        stamp = _stamp(files)
        if row in known and known[row][0] == stamp:
            found[row] = known[row][1]
        else:
            found[row] = _read(files)
            read[row] = (stamp, found[row])
    if read and index.store.writable:
        _keep(index, read)
    return found


def _stamp(files: Sequence[str]) -> str:
    """Return the times of files and of their side-cars as text."""
    times = []
    for file in files:
        for path in (file, sidecar_of(file)):
            try:
                times.append(os.stat(path).st_mtime_ns)
            except OSError:
                times.append(0)
    return " ".join(map(str, times))


def _read(files: Sequence[str]) -> PhotoHeader:
    """Return what the first file that can be read says, with the keywords of all its copies."""
    camera, rating, keywords = None, None, set[str]()
    for file in files:
        words, _ = photo_keywords(Path(file))
        keywords |= {level for levels in words for level in levels}
        with suppress(OSError, LabelwiseError):
            content, _ = read_regular(file, MOST_BYTES)
            camera = camera or read_facts(content).camera
            own = _rating(content[:HEAD])
            with suppress(OSError, LabelwiseError):
                sidecar, _ = read_regular(sidecar_of(file), LARGEST)
                beside = _rating(sidecar)
                own = own if beside is None else beside
            rating = own if rating is None else rating
    return PhotoHeader(camera, rating, frozenset(keywords))


def _rating(data: bytes) -> int | None:
    found = RATING.search(data)
    return None if found is None else min(5, int(found[1]))


def _known(index: Index) -> dict[int, tuple[str, PhotoHeader]]:
    if not index.store.has_table(TABLE):
        return {}
    lines = index.store.select(f"SELECT row, stamp, camera, rating, keywords FROM {TABLE}")
    return {
        int(row): (stamp, PhotoHeader(camera, rating, frozenset(json.loads(keywords))))
        for row, stamp, camera, rating, keywords in lines
    }


def _keep(index: Index, read: dict[int, tuple[str, PhotoHeader]]) -> None:
    with index.store.transaction() as database:
        database.execute(SCHEMA)
        database.executemany(
            f"INSERT OR REPLACE INTO {TABLE} (row, stamp, camera, rating, keywords) "
            "VALUES (?, ?, ?, ?, ?)",
            [
                (row, stamp, one.camera, one.rating, json.dumps(sorted(one.keywords)))
                for row, (stamp, one) in read.items()
            ],
        )
