"""load: a name, a file, a folder or several of them to one checked LabelTable."""

import glob
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from labelwise.base.storage import is_uri
from labelwise.base.text import first_line, one_line_of, printable
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import image_files
from labelwise.tables.boxes import holds_annotated_photos
from labelwise.tables.checks import Duplicates, check_table
from labelwise.tables.generated import PosteriorData, posterior, scenes
from labelwise.tables.options import AS_IT_IS, TableOptions
from labelwise.tables.shards import ShardPart, read_shards
from labelwise.tables.table import SPLIT_WORDS, LabelTable, join
from labelwise.tables.tabular import TABULAR, open_delimited, read_tables
from labelwise.types import nearest


@dataclass(frozen=True)
class Reader:
    """A format: its reader, what marks its files and folders, and the papers' {split: images}.

    ``read(path, **options)`` returns the table; options are checked by its signature. A package
    brings a reader by an entry point ``labelwise.readers`` that has the name of the format.
    """

    name: str
    read: Callable[..., LabelTable] | str  # or MODULE:FUNCTION, which is imported when it reads
    sentence: str
    suffixes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    labels: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    begin: re.Pattern[bytes] | None = None  # of a JSON file
    options: Mapping[str, object] = field(default_factory=dict)  # that it is called with

    @cached_property
    def function(self) -> Callable[..., LabelTable]:
        """What reads the format."""
        if not isinstance(self.read, str):
            return self.read
        module, _, name = self.read.partition(":")
        function: Callable[..., LabelTable] = getattr(import_module(module), name)
        return partial(function, **self.options) if self.options else function


LEFT = ("chexpert", "mimic-cxr", "chestxray14", "bigearthnet", "ucmerced")  # formats until 0.3
SPREADSHEETS = (".xls", ".xlsm", ".ods", ".numbers")

GENERATED: dict[str, Callable[..., LabelTable | PosteriorData]] = {
    "scenes": scenes,
    "posterior": posterior,
}


@cache
def readers() -> dict[str, Reader]:
    """Return all formats by name: those of formats.toml, then those of other packages."""
    listed = tomllib.loads(Path(__file__).with_name("formats.toml").read_text(encoding="utf-8"))
    own: dict[str, Reader] = {}
    for name, facts in listed.items():
        facts |= {key: tuple(facts.get(key, ())) for key in ("suffixes", "marks")}
        if "begin" in facts:
            facts["begin"] = re.compile(facts["begin"].encode())
        own[name] = Reader(name, **facts)
    folder, points = own.pop("folder"), entry_points(group="labelwise.readers")
    others = {point.name: _loaded(point) for point in points if point.name not in listed}
    return own | others | {"folder": folder}


def _loaded(point: EntryPoint) -> Reader:
    """Return the reader of an entry point; one that cannot be loaded says so when it is used."""
    try:
        if isinstance(reader := point.load(), Reader):
            return replace(reader, name=point.name)
        reason = f"it is a {type(reader).__name__}, and must be a labelwise.tables.Reader"
    except Exception as error:  # of somebody else's code
        reason = one_line_of(error)

    def fail(path: Path) -> LabelTable:
        raise DataError(f"the reader {point.name!r} ({point.value}) cannot be used: {reason}")

    return Reader(point.name, fail, reason)


def recognise(path: Path) -> Reader:
    """Return the reader of a file by its suffix, of a folder by the files that mark it."""
    known = readers()
    if path.is_file() and path.suffixes[-1:] == [".gz"]:
        packed = Path(path.stem).suffix.lower()
        if TABULAR.get(packed) is open_delimited:
            return known["table"]
    if path.is_file() and path.suffix.lower() == ".json":
        with path.open("rb") as stream:
            begin = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
        for reader in known.values():
            if reader.begin is not None and reader.begin.match(begin):
                return reader
    if path.suffix.lower() in SPREADSHEETS:
        way_out = "save the sheet as CSV (in Excel: 'CSV UTF-8') and give that file"
        raise DataError(f"{path}: a spreadsheet is not read; {way_out}")
    for reader in known.values():
        if path.is_file() and path.suffix.lower() in reader.suffixes:
            return reader
        if path.is_dir() and any(any(path.glob(mark)) for mark in reader.marks):
            if reader.name == "folder":
                _ask_about_table(path)
            beside = reader.name == "folder" and holds_annotated_photos(path)
            return known["voc"] if beside else reader
    if path.is_dir():
        if holds_annotated_photos(path):
            return known["voc"]
        if not any(path.iterdir()):
            raise DataError(f"{path}: the folder is empty; give one with photos, or a label table")
        if photos := len(image_files(path)):
            raise DataError(
                f"{path}: there are {photos:,} photos and nothing says what they show; give a "
                "table with the columns path and labels, or put the photos into one folder per "
                f"label; a trained model tags them with `labelwise predict RUN {path}`"
            )
    listed = ", ".join(known)
    raise DataError(f"{path}: the format is not recognised; give one of {listed} as 'FORMAT:path'")


def _ask_about_table(folder: Path) -> None:
    """Raise where a folder of folders also holds a table ``labels``: either may be meant."""
    tables = [file for file in sorted(folder.glob("labels.*")) if file.suffix.lower() in TABULAR]
    if tables:
        raise DataError(
            f"{folder}: there is a table of labels in it, and its folders could be labels too; "
            f"give `{tables[0]}`, or `folder:{folder}` for the folders"
        )


Part = tuple[str | None, Reader, Path]  # split, format, place


def load(
    source: str | Path,
    *,
    format: str | None = None,
    skip_missing: bool = False,
    check_files: bool = True,
    duplicates: Duplicates = "stop",
    **options: Any,
) -> LabelTable:
    """Return the table of "scenes", "posterior", a file, a folder, or "FORMAT:path".

    Several parts are joined by ";", each may name its split and hold wildcards:
    "train=a-*.parquet;test=b.parquet". A URI ("s3://bucket/train-*.parquet") names shards whose
    images are streamed. ``options`` are those of the format's reader; ``check_files=False`` does
    not look for images; ``duplicates`` ("stop", "drop" or "keep") is for equal rows.
    """
    text = str(source)
    if format is None and text in GENERATED:
        make = GENERATED[text]
        try:
            made = make(**_known(options, make, text))
            return made.table if isinstance(made, PosteriorData) else made
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{text}: {error}") from None
    if format is None and _exists(text) and (Path(text) / "model.json").is_file():
        raise DataError(
            f"{text} holds a model, and load reads labelled data: labelwise.load_run opens a run, "
            "labelwise.load_model any model"
        )
    try:
        table = _read(text, format, options, check_files)
    except OSError as error:
        file = error.filename or text
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (UnicodeError, pa.ArrowException) as error:
        if printable(text) != text:
            raise DataError(f"{printable(text)}: its name is not UTF-8; rename it") from None
        is_text = isinstance(error, UnicodeError) or "UTF8" in str(error)
        what = "it holds text that is not Unicode" if is_text else "it cannot be read"
        raise DataError(f"{text}: {what} ({first_line(error)})") from None
    return check_table(
        table, skip_missing=skip_missing, check_files=check_files, duplicates=duplicates
    )


def _read(
    text: str, format: str | None, options: Mapping[str, Any], check_files: bool
) -> LabelTable:
    if is_uri(text) and not _exists(text):
        shards = [ShardPart(address, split) for split, address in map(_with_split, text.split(";"))]
        for address, _ in shards:
            if not is_uri(address):
                raise DataError(f"shards that are named by a URI cannot be joined with {address!r}")
        if format is not None:
            raise SettingsError("shards that are named by a URI are known by their ends; no format")
        return read_shards(shards, **_known(options, read_shards, "shards"))
    parts = find_parts(text, format)
    if len(parts) > 1 and all(reader.name == "table" for _, reader, _ in parts):
        files = [(path, split) for split, _, path in parts]
        return read_tables(files, **_known(options, read_tables, "table"))
    tables = [
        (split, reader.function(path, **_known(options, reader.function, reader.name, check_files)))
        for split, reader, path in parts
    ]
    (split, first), *others = tables
    return first if split is None and not others else join(tables, name=first.name)


def _with_split(piece: str) -> tuple[str | None, str]:
    head, equals, tail = piece.strip().partition("=")
    split = SPLIT_WORDS.get(head) if equals and not _exists(piece) else None
    return split, tail if split else piece.strip()


def find_parts(source: str | Path, format: str | None = None) -> list[Part]:
    """Return the parts of a source that is read from files, each with its split and format."""
    text, known = str(source), readers()
    head = format or ("" if _exists(text) else text.partition(":")[0])
    if head in LEFT:
        raise SettingsError(
            f"{head!r} is no longer a format: write a label table from the files as published, as "
            "docs/special.md shows for chest X-rays and for satellite tiles"
        )
    if format is not None and format not in known:
        raise SettingsError(f"unknown data format {format!r}{nearest(format, known)}")
    parts: list[Part] = []
    for piece in [text] if _exists(text) else text.split(";"):
        name, (split, address) = format, _with_split(piece)
        head, colon, tail = address.partition(":")
        if format is None and colon and head in known:
            name, address = head, tail
        names = sorted(glob.glob(address)) if "\0" not in address else []
        names = [address] if address and _exists(address) else names
        if not names:
            built_in = ", ".join(GENERATED)
            raise DataError(f"there is no file or folder {address!r} (built-in sets: {built_in})")
        for path in map(Path, names):
            reader = known[name] if name is not None else recognise(path)
            if reader.name == "table" and path.suffix.lower() not in TABULAR:
                raise DataError(f"{path}: a table must end in {', '.join(TABULAR)}")
            parts.append((split, reader, path))
    return parts


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # a name too long, or with a null byte
        return False


class UnknownOptionError(SettingsError):
    """An option that a reader does not take."""

    def __init__(self, sentence: str, option: str) -> None:
        self.option = option
        super().__init__(sentence)


def options_of(read: Callable[..., object]) -> dict[str, Any]:
    """Return the options that a reader takes, each with its type."""
    accepted: dict[str, Any] = {}
    for name, parameter in inspect.signature(read).parameters.items():
        if parameter.annotation is TableOptions:
            accepted |= {option.name: option.type for option in fields(TableOptions)}
        elif name != "path":
            accepted[name] = parameter.annotation
    return accepted


def _known(
    options: Mapping[str, Any],
    make: Callable[..., object],
    name: str,
    check_files: bool | None = None,
) -> dict[str, Any]:
    """Return the options as the reader takes them, or stop at one that it does not take."""
    accepted = options_of(make)
    values: dict[str, Any] = {}
    if "check_files" in accepted and check_files is not None:
        values["check_files"] = check_files
    for option, value in options.items():
        if option not in accepted:
            sentence = f"{name!r} has no option {option!r}{nearest(option, accepted)}"
            raise UnknownOptionError(sentence, option)
        try:
            values[option] = TypeAdapter(accepted[option]).validate_python(value)
        except ValidationError as error:
            rule = error.errors()[0]["msg"].replace("Input should", "must")
            what = f"the option {option!r} of {name!r}"
            raise SettingsError(f"{what}: {rule}, got {value!r:.60}") from None
    if "one_hot" not in accepted:
        return values
    of_table = {key: values.pop(key) for key in vars(AS_IT_IS) if key in values}
    return {**values, "options": TableOptions(**of_table)}


def load_for_labels(
    source: str | Path, names: tuple[str, ...], *, check_files: bool = False, **options: Any
) -> LabelTable:
    """Return any readable labelled data; where its format lists labels, these are the ones."""
    try:
        return load(source, names=list(names), check_files=check_files, **options)
    except UnknownOptionError as error:
        if error.option != "names":
            raise
    return load(source, check_files=check_files, **options)
