"""load: a name, a file, a folder or several of them to one checked LabelTable."""

import glob
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from labelwise.data.checks import checked
from labelwise.data.gather import SPLIT_WORDS
from labelwise.data.join import join
from labelwise.data.readers import GENERATED, READERS, Reader, recognise
from labelwise.data.table import LabelTable
from labelwise.data.tabular import TABULAR, read_files
from labelwise.errors import DataError, SettingsError
from labelwise.types import nearest

__all__ = ["find_parts", "load"]

Part = tuple[str | None, Reader, Path]  # split, format, place


def load(
    source: str | Path,
    *,
    format: str | None = None,
    skip_missing: bool = False,
    check_files: bool = True,
    **options: Any,
) -> LabelTable:
    """Return the table of "scenes", "posterior", a file, a folder, or "FORMAT:path".

    Several parts are joined by ";", each may name its split and hold wildcards:
    "train=a-*.parquet;test=b.parquet". ``options`` are those of the format's reader;
    ``skip_missing`` leaves missing images out, ``check_files=False`` does not look for them.
    """
    text = str(source)
    if format is None and text in GENERATED:
        make = GENERATED[text]
        try:
            return make(**_known(options, make, text))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{text}: {error}") from None
    parts = find_parts(text, format)
    try:
        table = _read(parts, options)
    except OSError as error:
        place = error.filename or text
        raise DataError(f"{place}: cannot be read ({error.strerror or error})") from None
    except (pa.ArrowException, UnicodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{text}: it holds text that is not Unicode ({reason})") from None
    return checked(table, skip_missing=skip_missing, check_files=check_files)


def _read(parts: list[Part], options: Mapping[str, Any]) -> LabelTable:
    if len(parts) > 1 and all(reader.name == "table" for _, reader, _ in parts):
        files = [(path, split) for split, _, path in parts]
        return read_files(files, **_known(options, read_files, "table"))
    tables = [
        (split, reader.read(path, **_known(options, reader.read, reader.name)))
        for split, reader, path in parts
    ]
    if len(tables) == 1 and tables[0][0] is None:
        return tables[0][1]
    return join(tables, name=tables[0][1].name)


def find_parts(source: str | Path, format: str | None = None) -> list[Part]:
    """Return the parts of a source that is read from files, each with its split and format."""
    text = str(source)
    parts: list[Part] = []
    pieces = [text] if _exists(text) else text.split(";")
    for piece in pieces:
        head, equals, tail = piece.strip().partition("=")
        split = SPLIT_WORDS.get(head) if equals and not _exists(piece) else None
        name, place = _divide(tail if split else piece.strip(), format)
        for path in _places(place):
            reader = READERS[name] if name is not None else recognise(path)
            if reader.name == "table" and path.suffix.lower() not in TABULAR:
                raise DataError(f"{path}: a table must end in {', '.join(TABULAR)}")
            parts.append((split, reader, path))
    return parts


def _divide(text: str, format: str | None) -> tuple[str | None, str]:
    head, colon, tail = text.partition(":")
    if format is None and colon and head in READERS:
        return head, tail
    if format is not None and format not in READERS:
        raise SettingsError(f"unknown data format {format!r}{nearest(format, READERS)}")
    return format, text


def _places(text: str) -> list[Path]:
    if text and _exists(text):
        return [Path(text)]
    found = sorted(glob.glob(text)) if text and "\0" not in text else []
    if not found:
        built_in = ", ".join(GENERATED)
        raise DataError(f"there is no file or folder {text!r} (built-in sets: {built_in})")
    return [Path(place) for place in found]


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # a name too long, or with a null byte
        return False


def _known(
    options: Mapping[str, Any], make: Callable[..., LabelTable], name: str
) -> dict[str, Any]:
    accepted = [option for option in inspect.signature(make).parameters if option != "path"]
    for option in options:
        if option not in accepted:
            raise SettingsError(f"{name!r} has no option {option!r}{nearest(option, accepted)}")
    return dict(options)
