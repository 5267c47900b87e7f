"""The keywords that a photo library already has, as a label table.

    side-car      a.jpg.xmp or a.xmp: dc:subject, lr:hierarchicalSubject, digiKam:TagsList
    in the file   the same lists of embedded XMP, and the keywords of IPTC and Windows

``animal|dog`` (Lightroom) and ``animal/dog`` (digiKam) say two labels, animal and dog, and that a
dog is an animal. What a keyword does not say is unknown: nobody tags everything they see. Keywords
that ``labelwise tag`` wrote and noted as its own are left out, so that no model learns from its
own guesses; so are digiKam's internal tags.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from labelwise.data.rows import from_rows
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.photos.photo_metadata import read_photo_metadata
from labelwise.photos.tagging import sidecar_of
from labelwise.photos.xml_bytes import LARGEST
from labelwise.photos.xmp import entries, noted, separator_of
from labelwise.pictures.folders import find_images
from labelwise.system.names import printable
from labelwise.system.text import counted, one_line_of
from labelwise.taxonomy import Taxonomy

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
    """Return the keywords of the photos below a folder; those on fewer than ``least`` are left out.

    What could not be read is said in the table's notes.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder of photos")
    files, notes = find_images(folder)
    if not files:
        raise DataError(f"{folder} holds no photos{f' ({notes[0]})' if notes else ''}")
    library = _Library()
    for file in files:
        library.add(*photo_keywords(folder / file))
    counts = Counter(name for names in library.labels for name in names)
    kept = {name for name, count in counts.items() if count >= least}
    if not kept:
        raise DataError(
            f"{folder}: {counted(len(files), 'photo')} without a keyword"
            + (f" that {least:,} photos share; lower --least" if counts else "")
        )
    rows = [sorted(kept & names) for names in library.labels]
    table = from_rows((folder, files), rows, name=printable(folder.name))
    present = table.present.plain()
    unknown = LabelSets(
        present.offsets, present.columns, present.width, np.ones(len(files), np.bool_)
    )
    parents, conflicts = library.parents(kept)
    if len(kept) < len(counts):
        notes += (
            f"left out {counted(len(counts) - len(kept), 'keyword')} on fewer than {least} photos",
        )
    notes += tuple(_some(conflicts, "in several places of the hierarchy, so without a parent"))
    notes += tuple(_some(library.failures, "not read"))
    table = replace(table, unknown=unknown, notes=notes)
    return LibraryKeywords(table, Taxonomy(parents), sum(map(bool, library.labels)))


def photo_keywords(photo: Path) -> tuple[set[Levels], list[str]]:
    """Return the keywords of a photo, each with its levels, and why a place was not read."""
    found: set[Levels] = set()
    failures = []
    sidecar = Path(sidecar_of(str(photo)))
    readers: list[tuple[Path, Callable[[Path], set[Levels]]]] = [(photo, _embedded)]
    if sidecar.is_file():
        readers.append((sidecar, _of_sidecar))
    for path, read in readers:
        try:
            found |= read(path)
        except (DataError, OSError) as error:
            failures.append(f"{printable(path.name)} ({one_line_of(error)[:120]})")
    return found, failures


def _of_sidecar(path: Path) -> set[Levels]:
    with path.open("rb") as stream:
        return _of_xmp(stream.read(LARGEST + 1))


def _of_xmp(data: bytes) -> set[Levels]:
    ours = noted(data)
    found: set[Levels] = set()
    for prefix, texts in entries(data).items():
        separator = separator_of(prefix)
        for text in texts - set(ours.get(prefix, ())):
            levels = [text] if separator is None else text.split(separator)
            found.add(tuple(level.strip() for level in levels if level.strip()))
    return {path for path in found if path and path[0] != INTERNAL}


def _embedded(path: Path) -> set[Levels]:
    """Return the keywords inside a photo; its pixels are not decoded."""
    inside = read_photo_metadata(path)
    found: set[Levels] = {(word,) for word in inside.words}
    return found if inside.packet is None else found | _of_xmp(inside.packet)


@dataclass
class _Library:
    """What the photos seen so far say."""

    labels: list[set[str]] = field(default_factory=list)
    above: dict[str, set[str]] = field(default_factory=dict)  # the parents that a name has had
    failures: list[str] = field(default_factory=list)

    def add(self, paths: set[Levels], failures: Sequence[str]) -> None:
        self.labels.append({level for path in paths for level in path})
        for path in paths:
            for parent, child in pairwise(path):
                if parent != child:
                    self.above.setdefault(child, set()).add(parent)
        self.failures += failures

    def parents(self, kept: set[str]) -> tuple[dict[str, str], list[str]]:
        """Return the one parent of each kept name, and the names that have had several."""
        several = sorted(name for name, above in self.above.items() if len(above) > 1)
        one = {name: min(above) for name, above in self.above.items() if len(above) == 1}
        parents: dict[str, str] = {}
        for child, parent in sorted(one.items()):
            at = parent
            while at in parents:
                at = parents[at]
            if at == child:  # a stands under b and b under a
                several.append(child)
            elif child in kept and parent in kept:
                parents[child] = parent
        return parents, several


def _some(names: Sequence[str], what: str) -> Iterator[str]:
    if names:
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        yield f"{what}: {', '.join(names[:NAMED])}{more}"
