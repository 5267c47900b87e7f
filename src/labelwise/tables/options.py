"""TableOptions: how a table is read. TableColumns: what its columns mean, by their names."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables.columns import MinusOne
from labelwise.tables.rows import read_lines
from labelwise.tables.table import SPLITS
from labelwise.tables.words import MEANINGS, PATH_HEADERS
from labelwise.types import nearest

OUT = "out"  # what a split value means whose rows are set aside
Alike = Literal["one", "several"]


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _names(value: object) -> object:
    """Return the names in a file with one on each line, for the name of that file."""
    if not isinstance(value, str | Path):
        return value
    return [line.strip() for line in read_lines(Path(value))]


Words = Annotated[tuple[str, ...], BeforeValidator(_several)]  # one text is one word
LabelNames = Annotated[Sequence[str] | None, BeforeValidator(_names)]


@dataclass(frozen=True)
class TableOptions:
    """How a table is read; None leaves a point open, for the reading that explains every cell.

    ``columns`` maps a meaning to a column, ``labels`` perhaps to several, and ``path`` to those of
    the photo's folder and its name; ``one_hot`` names the
    columns that are labels of their own, and ``ignore`` those that are not read. ``names`` are the
    labels in their order. ``splits`` maps words to train, val, test or out. ``present``, ``absent``
    and ``minus_one`` say what cells of a label's own column mean, and ``soft`` allows shares there.
    In a column of labels ``separator`` holds the marks between them, ``means_none`` and
    ``means_unknown`` are words that are not labels, and with ``levels="/"`` a label a/b says a too.
    ``alike`` says whether labels that differ only in case are one.

    Image paths start from ``root`` (the files' folder) and end in ``extension``. ``delimiter``,
    ``encoding`` and ``header`` (the number of the line with the names of the columns) say how a
    text file is written; ``skip_broken`` leaves lines out that are not rows.
    """

    columns: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    ignore: Words | None = None
    one_hot: Words | None = None
    names: LabelNames = None
    splits: Mapping[str, str] = field(default_factory=dict)
    present: Words | None = None
    absent: Words | None = None
    separator: Words | None = None
    levels: str | None = None
    means_none: Words | None = None
    means_unknown: Words | None = None
    minus_one: MinusOne | None = None
    soft: bool | None = None
    alike: Alike | None = None
    root: str | Path | None = None
    extension: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    header: int | None = None
    skip_broken: bool | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and not all(self.separator or [""]):
            raise SettingsError("separator must not be empty")
        if self.delimiter == "tab":
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and not (
            len(self.delimiter) == 1 and self.delimiter < "\x80"
        ):
            raise SettingsError(f"delimiter must be one character or 'tab', got {self.delimiter!r}")
        for column, value in self.columns.items():
            if column not in MEANINGS:
                raise SettingsError(f"a column cannot mean {column!r}{nearest(column, MEANINGS)}")
            if not value or (column not in ("labels", "path") and not isinstance(value, str)):
                raise SettingsError(f"columns.{column} must name a column, got {list(value)!r}")
        for word, meaning in self.splits.items():
            if meaning not in (*SPLITS, OUT):
                rule = f"must be train, val, test or out, got {meaning!r}"
                raise SettingsError(f"splits.{word} {rule}")

    def stated(self) -> dict[str, object]:
        """Return what is not left open, as a settings file holds it."""
        values: dict[str, object] = {}
        for key, value in vars(self).items():
            if key == "separator" and value is not None and len(value) == 1:
                values[key] = value[0]
            elif key == "columns" and value:
                values[key] = {k: v if isinstance(v, str) else list(v) for k, v in value.items()}
            elif isinstance(value, tuple):
                values[key] = list(value)
            elif value:
                values[key] = str(value) if isinstance(value, Path) else value
        return values

    def over(self, more: "TableOptions") -> "TableOptions":
        """Return these options, and those of ``more`` where it says something."""
        stated = {key: value for key, value in vars(more).items() if value is not None}
        stated["columns"] = {**self.columns, **more.columns}
        stated["splits"] = {**self.splits, **more.splits}
        return replace(self, **stated)

    def columns_of(self, meaning: str) -> tuple[str, ...]:
        """Return the columns that are said to have a meaning."""
        named = self.columns.get(meaning, ())
        return (named,) if isinstance(named, str) else named

    def placed(self) -> list[str]:
        """Return the columns that are said to have a meaning, or to be ignored."""
        named = [name for meaning in self.columns for name in self.columns_of(meaning)]
        return [*named, *(self.ignore or ())]


AS_IT_IS = TableOptions()
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
    more_labels: tuple[str, ...] = ()  # further columns that name labels, read with ``labels``
    folders: tuple[str, ...] = ()  # columns that name the folder of the photo

    def headers(self) -> list[str]:
        named = [getattr(self, meaning) for meaning in MEANINGS]
        found = [header for header in named if header is not None]
        several = [*found, *self.more_labels, *self.folders, *self.one_hot]
        return list(dict.fromkeys(several))


def find_columns(
    header: Sequence[str], where: str, options: TableOptions, text_only: bool = False
) -> TableColumns:
    """Return what the columns mean, by the options and by their own names.

    ``path`` (or ``file_name``, ``filename``, ``file``, ``id``) names the image, ``image`` holds its
    bytes or, in a format of text alone, names it too; ``labels`` names the labels that are present,
    ``unknown`` those not known, ``split`` and ``group`` are optional. Without ``labels`` each other
    column is a label. Soft labels are beside ``labels`` in two columns, ``soft`` and ``shares``.
    Blanks around the name of a column do not belong to it, and a column without a name, or called
    ``__index_level_0__``, is the row numbers that pandas writes, and no label.
    """
    for name, count in Counter(header).items():
        if count > 1 and not ROW_NUMBERS.fullmatch(name):
            raise DataError(f"{where}: the column {name!r} is there twice; rename one")
    one_hot = options.one_hot
    by_name = {name.strip(): name for name in reversed(header)} | {name: name for name in header}
    for name in (*options.placed(), *(one_hot or ())):
        if name not in by_name:
            raise DataError(f"{where}: there is no column {name!r}{nearest(name, header)}")
    named = {meaning: options.columns_of(meaning) for meaning in options.columns}
    given = {meaning: by_name[names[0]] for meaning, names in named.items() if names}
    more = tuple(by_name[name] for name in named.get("labels", ())[1:])
    places = [by_name[name] for name in named.get("path", ())]
    folders = places[:-1]
    if places:
        given["path"] = places[-1]
    taken = {by_name[name] for name in (*options.placed(), *(one_hot or ()))} - {*folders}
    free = [name for name in header if name not in taken and not ROW_NUMBERS.fullmatch(name)]
    columns_of = {meaning: given.get(meaning) for meaning in MEANINGS}
    known: dict[str, tuple[str, ...]] = {meaning: (meaning,) for meaning in MEANINGS}
    known["path"] = PATH_HEADERS
    if text_only:
        known |= {"path": (*PATH_HEADERS, "image"), "image": ()}
    if one_hot is not None:
        known |= {"labels": ()}
    plain = {name.strip(): name for name in reversed(free)}
    if not (given.get("labels") or "labels" in plain):  # then these are labels like any other
        known |= {"soft": (), "shares": ()}
    for meaning, choices in known.items():
        if columns_of[meaning] is None:
            columns_of[meaning] = next((plain[name] for name in choices if name in plain), None)
    labels = columns_of["labels"]
    if columns_of["path"] is None and columns_of["image"] is None:
        photos = [name for name in header if Path(name).suffix.lower() in IMAGE_SUFFIXES]
        way_out = (
            f"the first line, which names the photo {photos[0]!r}, needs one with the names of the "
            "columns above it, as in 'path,labels'"
            if photos
            else "one given as `--set columns.path=NAME`"
        )
        raise DataError(
            f"{where}: there must be a column 'path' (or {', '.join(PATH_HEADERS[1:])}) that "
            f"names the image, or {way_out}; got {', '.join(map(repr, header)) or 'no columns'}"
        )
    taken = set(filter(None, columns_of.values()))
    own = tuple(by_name[name] for name in one_hot or ())
    if one_hot is None and labels is None:
        own = tuple(name for name in free if name not in {*taken, *folders})
    if labels is None and not own:
        rule = "there must be a column 'labels', or one column for each label"
        raise DataError(f"{where}: {rule}; write one")
    if own and columns_of["unknown"] is not None:
        raise DataError(f"{where}: a column 'unknown' needs a column 'labels' beside it")
    soft, shares = columns_of["soft"], columns_of["shares"]
    if (soft is None) != (shares is None) or (own and soft):
        three = "'labels' (certain ones), 'soft' (names) and 'shares' (their shares)"
        raise DataError(f"{where}: soft labels need three columns, {three}")
    return TableColumns(**columns_of, one_hot=own, more_labels=more, folders=tuple(folders))
