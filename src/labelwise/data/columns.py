"""What the columns of a label table mean, and the numbers of labels.

Nothing is guessed from the values. ``path`` (or ``file_name``, ``filename``, ``file``, ``id``)
names the image, ``image`` holds its bytes or, in a format of text alone, names it too; ``labels``
names the labels that are present, ``unknown`` those not known, ``split`` and ``group`` are
optional. Without ``labels`` every other column is a label. Soft labels stand beside ``labels`` in
two columns, ``soft`` and ``shares``. Blanks around the name of a column do not belong to it, and a
column without a name, or called ``__index_level_0__``, is the row numbers that pandas writes, and
no label. What stands in these columns: :mod:`labelwise.data.label_columns`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.types import LabelSpace, nearest

MEANINGS = ("path", "image", "labels", "unknown", "split", "group", "soft", "shares")
PATH_HEADERS = ("path", "file_name", "filename", "file", "id")
ROW_NUMBERS = re.compile(r"\s*|__index_level_\d+__")


@dataclass(frozen=True)
class TableColumns:
    """The header of each meaning, None where there is none, and the one-hot label columns."""

    path: str | None
    image: str | None
    labels: str | None
    unknown: str | None
    split: str | None
    group: str | None
    one_hot: tuple[str, ...]
    soft: str | None = None
    shares: str | None = None

    def headers(self) -> list[str]:
        """Return the headers that are read."""
        named = [getattr(self, meaning) for meaning in MEANINGS]
        return [header for header in named if header is not None] + list(self.one_hot)

    def label_names(self) -> list[str]:
        """Return the names of the labels that have a column of their own."""
        return [header.strip() for header in self.one_hot]


def find_columns(
    header: Sequence[str],
    where: str,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    text_only: bool = False,
) -> TableColumns:
    """Return what the columns mean; ``columns`` maps a meaning to a header where they differ."""
    for name, count in Counter(header).items():
        if count > 1 and not ROW_NUMBERS.fullmatch(name):
            raise DataError(f"{where}: the column {name!r} is there twice; rename one")
    given = {meaning: _meant(name, header) for meaning, name in (columns or {}).items()}
    ignore = [_meant(name, header) for name in ignore]
    for meaning, name in given.items():
        if meaning not in MEANINGS:
            raise SettingsError(f"a column cannot mean {meaning!r}{nearest(meaning, MEANINGS)}")
        if name not in header:
            raise DataError(f"{where}: there is no column {name!r}{nearest(name, header)}")
    for name in ignore:
        if name not in header:
            raise DataError(f"{where}: cannot ignore column {name!r}{nearest(name, header)}")
    taken = {*ignore, *given.values()}
    free = [name for name in header if name not in taken and not ROW_NUMBERS.fullmatch(name)]
    found = {meaning: given.get(meaning) for meaning in MEANINGS}
    known: dict[str, tuple[str, ...]] = {meaning: (meaning,) for meaning in MEANINGS}
    known["path"] = PATH_HEADERS
    if text_only:
        known |= {"path": (*PATH_HEADERS, "image"), "image": ()}
    plain = {name.strip(): name for name in reversed(free)}
    if not (given.get("labels") or "labels" in plain):  # then these are labels like any other
        known |= {"soft": (), "shares": ()}
    if found["path"] is None:
        _reject_case(plain, known["path"], where)
    for meaning, choices in known.items():
        if found[meaning] is None:
            found[meaning] = next((plain[name] for name in choices if name in plain), None)
    if found["path"] is None and found["image"] is None:
        photo = next((one for one in header if Path(one).suffix.lower() in IMAGE_SUFFIXES), None)
        way_out = (
            "one given as `--set columns.path=NAME`"
            if photo is None
            else f"the first line, which names the photo {photo!r}, needs one with the names of "
            "the columns above it, as in 'path,labels'"
        )
        raise DataError(
            f"{where}: there must be a column 'path' (or {', '.join(PATH_HEADERS[1:])}) that "
            f"names the image, or {way_out}; got {', '.join(map(repr, header)) or 'no columns'}"
        )
    rest = tuple(name for name in free if name not in found.values())
    one_hot = rest if found["labels"] is None else ()
    if found["labels"] is None and not one_hot:
        raise DataError(f"{where}: there must be a column 'labels', or one column for each label")
    if one_hot and found["unknown"] is not None:
        raise DataError(f"{where}: a column 'unknown' needs a column 'labels' beside it")
    if (found["soft"] is None) != (found["shares"] is None) or (one_hot and found["soft"]):
        raise DataError(
            f"{where}: soft labels need three columns, 'labels' (certain ones), 'soft' (names) and "
            "'shares' (their shares)"
        )
    return TableColumns(**found, one_hot=one_hot)


def can_name_label(name: str) -> bool:
    """Return whether a column of this name, beside ``path`` and ``split``, is read as a label's.

    >>> can_name_label("dog"), can_name_label("group")
    (True, False)
    """
    try:
        return find_columns(("path", name, "split"), "", text_only=True).one_hot == (name,)
    except DataError:
        return False


def _reject_case(headers: Iterable[str], choices: Sequence[str], where: str) -> None:
    """Raise where two columns could name the image, such as Id and id, or one but for its case."""
    could = [header for header in headers if header.lower() in choices]
    exact = [header for header in could if header in choices]
    others = [header for header in could if header not in choices]
    twins = [header for header in others if header.lower() in exact]
    if twins or (others and not exact):
        one = twins or others[:1]
        shown = " and ".join(map(repr, [*one[:1], *([one[0].lower()] if twins else [])]))
        verb = "could both name" if twins else "may name"
        raise DataError(
            f"{where}: {shown} {verb} the image; say which column does, as in "
            f"`--set columns.path={one[0]}`"
        )


def _meant(name: str, header: Sequence[str]) -> str:
    """Return the header that a name means: itself, or the one with blanks around it."""
    if name in header:
        return name
    return next((one for one in header if one.strip() == name), name)


class Vocabulary:
    """Numbers names as they come; if the names were given beforehand, any other is an error.

    ``numbers`` are those so far, by name.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.closed = names is not None
        self._space = LabelSpace(tuple(names or ()))
        self.numbers = {name: number for number, name in enumerate(self._space.names)}

    def number(self, name: str, where: str) -> int:
        """Return the number of a name; ``where`` goes before the error."""
        if name not in self.numbers:
            if self.closed:
                raise DataError(f"{where}: unknown label {name!r}{nearest(name, self.numbers)}")
            self.numbers[name] = len(self.numbers)
        return self.numbers[name]

    def finish(self) -> tuple[LabelSpace, NDArray[np.int32]]:
        """Return the space (as given, else sorted by name), and each number's column in it."""
        if self.closed:
            return self._space, np.arange(len(self.numbers), dtype=np.int32)
        names = sorted(self.numbers)
        columns = np.empty(len(names), np.int32)
        columns[[self.numbers[name] for name in names]] = np.arange(len(names))
        return LabelSpace(tuple(names)), columns
