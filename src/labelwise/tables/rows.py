"""What dataset readers share: files that may be opened, and rows of label names to a table.

Only regular files are opened: a pipe or a device in a folder could be read for ever.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import numpy as np
from pydantic import TypeAdapter, ValidationError

from labelwise.base.names import Names
from labelwise.base.pydantic_errors import first_fault
from labelwise.errors import DataError
from labelwise.pictures.sources import FileImages, ImageSource
from labelwise.tables.columns import Vocabulary
from labelwise.tables.table import SPLIT_WORDS, LabelSets, LabelTable

Shape = TypeVar("Shape")
ADAPTERS: dict[object, TypeAdapter[Any]] = {}  # by shape, made when it is first read
LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # perhaps one of a pair, which is text


class AllBut(tuple[str, ...]):
    """All labels of a table but these, which takes no more memory than these do."""

    __slots__ = ()


def from_rows(
    images: ImageSource | tuple[Path, Sequence[str]],
    labels: Sequence[Iterable[str]],
    *,
    name: str,
    names: Sequence[str] | None = None,
    unknown: Sequence[Iterable[str]] | None = None,
    split: Sequence[object] | None = None,
    group: Sequence[str] | None = None,
) -> LabelTable:
    """Return the table of label names for each image; without ``names`` they are sorted.

    What is ``unknown`` of an image may be :class:`AllBut` some labels. Splits are
    left out unless every word names one.
    """
    source = FileImages(*images) if isinstance(images, tuple) else images
    vocabulary = Vocabulary(names)
    unknown = unknown or [()] * len(labels)
    for row, (words, hidden) in enumerate(zip(labels, unknown, strict=True)):
        both = () if isinstance(hidden, AllBut) or not hidden else {*words} & {*hidden}
        for word in sorted(both)[:1]:
            where = f"{name}, {source.ids[row]}"
            raise DataError(f"{where}: {word!r} cannot be both present and unknown")
    numbers = [
        [vocabulary.number(word, f"{name}, {source.ids[row]}") for word in words]
        for rows in (labels, unknown)
        for row, words in enumerate(rows)
    ]
    space, columns = vocabulary.finish()
    sets = [columns[row] for row in numbers]
    all_but = np.array([isinstance(words, AllBut) for words in unknown], np.bool_)
    splits = [SPLIT_WORDS.get(str(word).strip().lower(), "") for word in split or ()]
    return LabelTable(
        space,
        source,
        LabelSets.from_lists(sets[: len(labels)], len(space)),
        LabelSets.from_lists(sets[len(labels) :], len(space), all_but),
        np.array(splits, "U5") if splits and all(splits) else None,
        None if group is None else Names(group),
        name,
    )


def is_file(path: Path) -> bool:
    """Return whether there is a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def require_file(path: Path) -> Path:
    """Return the path of a regular file, or raise a DataError."""
    if path.is_file():
        return path
    if path.exists():
        raise DataError(f"{path}: must be a regular file, not a folder, pipe or device")
    raise DataError(f"{path}: the file is missing")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise a DataError that says where it breaks."""
    return parse_json(require_file(path).read_bytes(), str(path))


def parse_json(content: bytes, where: str) -> Any:
    """Return what JSON holds, or raise a DataError that says where it breaks."""
    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text)
        if LONE_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError:
        raise DataError(f"{where}: it is not UTF-8 text; save it as UTF-8") from None
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: it holds text that is not Unicode ({error.reason})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None


def read_as(path: Path, shape: type[Shape]) -> Shape:
    """Return the content of a JSON file as a dataclass, or raise a DataError that says where not.

    Keys that the dataclass does not have are left out. Text is never taken as a number.
    """
    return parse_as(require_file(path).read_bytes(), str(path), shape)


def parse_as(content: bytes, where: str, shape: type[Shape]) -> Shape:
    """Return JSON as a dataclass or a list of them, or raise a DataError that says where not."""
    text = content.removeprefix(BOM_UTF8)
    if shape not in ADAPTERS:
        ADAPTERS[shape] = TypeAdapter(shape)
    try:
        value: Shape = ADAPTERS[shape].validate_json(text, strict=True)
    except ValidationError as error:
        fault = first_fault(error).replace("Invalid JSON", "not JSON")
        raise DataError(f"{where}: {fault}; correct it, or export it again") from None
    return value


def inner(value: Any, *keys: str) -> Any:
    """Return what stands under keys of JSON objects within each other, None where one is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def read_xml(path: Path, tag: str) -> ElementTree.Element:
    """Return the root of an XML file, which must be of a ``tag``, or raise a DataError."""
    root = parse_xml(require_file(path).read_bytes(), str(path))
    if root.tag != tag:
        raise DataError(f"{path}: must begin with <{tag}>, got <{root.tag:.40}>")
    return root


def parse_xml(content: bytes, where: str) -> ElementTree.Element:
    """Return the root of XML, or raise a DataError; entities are not allowed."""
    try:
        if b"<!ENTITY" in content.replace(b"\0", b""):  # as UTF-16 writes it, too
            raise ValueError("entities are not allowed")
        return ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{where}: not XML ({error})") from None


def read_fields(
    path: Path, least: int, form: str, separator: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line is and its fields, of which there must be ``least``, as in ``form``."""
    for number, line in enumerate(read_lines(path), 1):
        fields, where = line.split(separator), f"{path}, line {number}"
        if len(fields) < least:
            raise DataError(f"{where}: must be {form}, got {line!r:.80}")
        yield where, fields


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty, or raise a DataError."""
    try:
        text = require_file(path).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: it is not UTF-8 text; save it as UTF-8") from None
    return [line for line in text.splitlines() if line.strip()]
