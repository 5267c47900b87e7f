"""Layout: what each column of a label table means. Nothing is guessed from the values.

``path`` (or ``file_name``, ``filename``, ``file``, ``id``) names the image, ``image`` holds its
bytes or, in a format of text alone, names it too; ``labels`` is a list or text split on ``|``,
``unknown`` names labels not known, ``split`` and ``group`` are optional. Without ``labels`` every
other column is a label holding 1, 0, or nothing (also -1) for unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labelwise.errors import DataError, SettingsError
from labelwise.types import nearest

__all__ = ["Layout", "find_layout"]

MEANINGS = ("path", "image", "labels", "unknown", "split", "group")
PATH_HEADERS = ("path", "file_name", "filename", "file", "id")


@dataclass(frozen=True)
class Layout:
    """The header of each meaning, None where there is none, and the one-hot label columns."""

    path: str | None
    image: str | None
    labels: str | None
    unknown: str | None
    split: str | None
    group: str | None
    one_hot: tuple[str, ...]

    def headers(self) -> list[str]:
        """Return the headers that are read."""
        named = (self.path, self.image, self.labels, self.unknown, self.split, self.group)
        return [header for header in named if header is not None] + list(self.one_hot)


def find_layout(
    header: Sequence[str],
    where: str,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    text_only: bool = False,
) -> Layout:
    """Return what the columns mean; ``columns`` maps a meaning to a header where they differ."""
    for name in header:
        if list(header).count(name) > 1:
            raise DataError(f"{where}: the column {name!r} is there twice; rename one")
    given = dict(columns or {})
    for meaning, name in given.items():
        if meaning not in MEANINGS:
            raise SettingsError(f"a column cannot mean {meaning!r}{nearest(meaning, MEANINGS)}")
        if name not in header:
            raise DataError(f"{where}: there is no column {name!r}{nearest(name, header)}")
    for name in ignore:
        if name not in header:
            raise DataError(f"{where}: cannot ignore column {name!r}{nearest(name, header)}")
    free = [name for name in header if name not in ignore and name not in given.values()]
    found = {meaning: given.get(meaning) for meaning in MEANINGS}
    known: dict[str, tuple[str, ...]] = {meaning: (meaning,) for meaning in MEANINGS}
    known["path"] = PATH_HEADERS
    if text_only:
        known |= {"path": (*PATH_HEADERS, "image"), "image": ()}
    for meaning, choices in known.items():
        if found[meaning] is None:
            found[meaning] = next((name for name in choices if name in free), None)
    if found["path"] is None and found["image"] is None:
        raise DataError(
            f"{where}: there must be a column 'path' (or {', '.join(PATH_HEADERS[1:])}) that "
            f"names the image, or one set as columns.path; "
            f"got {', '.join(map(repr, header)) or 'no columns'}"
        )
    rest = tuple(name for name in free if name not in found.values())
    one_hot = rest if found["labels"] is None else ()
    if found["labels"] is None and not one_hot:
        raise DataError(f"{where}: there must be a column 'labels', or one column for each label")
    if one_hot and found["unknown"] is not None:
        raise DataError(f"{where}: a column 'unknown' needs a column 'labels' beside it")
    return Layout(**found, one_hot=one_hot)
