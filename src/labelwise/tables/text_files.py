"""How a text table is written: its encoding, its delimiter, and the line that names its columns.

Nothing here looks at what the cells mean. A file that is not plain UTF-8 (UTF-16, a code page of
Windows, gzip, an Excel workbook) is held in memory as UTF-8 while it is read.
"""

import codecs
import contextlib
import csv
import gzip
import io
import re
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from labelwise.base.text import counted, one_line
from labelwise.errors import DataError, QuestionError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables.rows import parse_xml
from labelwise.tables.words import LIKELY_LABELS, USUAL_LABELS, USUAL_PATHS, folded

HEAD_BYTES = 1 << 22  # in which the header must end
LOOKED_AT = 1 << 16  # bytes by which the delimiter and the header line are found
MOST_ABOVE = 20  # lines that may stand above the header
DELIMITERS = {".csv": ",", ".tsv": "\t"}
EXCEL_DELIMITER = re.compile(rb"(?:\xef\xbb\xbf)?sep=([;,\t|])\r?\n", re.IGNORECASE)
MARKS = (",", ";", "\t", "|")
WINDOWS = "cp1252"
STRANGE_IN_WORDS = re.compile(
    r"(?:[^\W\d_])[¡-©«-±´-¹»-¿€‚ƒ„…†‡ˆ‰‹•˜™›](?:[^\W\d_])|[a-zß-ÿ][ŠŒŽŸÀ-ÖØ-Þ][a-zß-ÿ]"
)
FRAMES = re.compile("[\u2500-\u259f]")  # drawn by DOS around tables
STRANGE_IN_WESTERN = re.compile(
    rf"[À-ÖØ-öø-ÿ]{{3}}|[ÐÝÞðýþ]|[³¿¹£¥¯¼¶Ÿ][a-zß-ÿ]|[a-zß-ÿ][³¿¹£¥¯¼¶Ÿ]|{STRANGE_IN_WORDS.pattern}"
)
LATIN = {"LATIN", "?"}
SCRIPTS = {
    "cp1250": LATIN,
    "cp1254": LATIN,
    WINDOWS: LATIN,
    "cp1251": LATIN | {"CYRILLIC"},
    "shift_jis": LATIN | {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    "gb18030": LATIN | {"CJK"},
    "euc-kr": LATIN | {"HANGUL"},
    "cp1253": LATIN | {"GREEK"},
    "mac-roman": LATIN,
    "cp850": LATIN,
}
OTHER_CODES = {
    "cp1251": "Cyrillic",
    "shift_jis": "Japanese",
    "euc-kr": "Korean",
    "gb18030": "Chinese",
    "cp1253": "Greek",
    "cp1250": "Polish, Czech or Hungarian",
    "cp1254": "Turkish",
    WINDOWS: "Icelandic",
    "mac-roman": "an old Mac",
    "cp850": "DOS",
}
HEADLESS = "no line names the columns: the first one names a photo too"
OTHER_FILES: dict[str, tuple[bytes, ...]] = {
    "a PDF": (b"%pdf",),
    "a web page": (b"<!doctype html", b"<html", b"<table"),
    "a picture": (b"\xff\xd8\xff", b"\x89png"),
}
PHOTO_FIRST = re.compile(
    rf"(\S+?(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))}))(?:(:?[ ])[ ]*([^\s;|,].*))?", re.I
)
BOOK_PARTS = re.compile(r"xl/(workbook|sharedStrings|worksheets/[^/]+)\.xml")
LARGEST_BOOK, MOST_CELLS = 1 << 30, 1 << 27  # of a workbook: bytes, unpacked, and cells
MOST_TAGS = 1 << 24  # of a workbook's XML: each element takes some 300 bytes of memory
OLD_EXCEL = b"\xd0\xcf\x11\xe0"


@dataclass(frozen=True)
class TextFile:
    """A table's text: a path that holds UTF-8, or its bytes as UTF-8, and what a person is told."""

    source: Path | bytes
    notes: tuple[str, ...] = ()
    marks: frozenset[str] = frozenset("'\"")  # that are somewhere in it, as far as is known

    def open(self) -> BinaryIO:
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


@dataclass(frozen=True)
class TextLayout:
    """Where the rows of a delimited file are: ``above`` lines end with the one of the header."""

    delimiter: str
    header: tuple[str, ...]
    above: int
    notes: tuple[str, ...] = ()


def open_text(path: Path, encoding: str | None = None) -> TextFile:
    """Return the text of a table; rows in another form than CSV are written anew."""
    text = _decoded(path, encoding)
    with text.open() as stream:
        start: bytes = stream.read(LOOKED_AT)
        lines = _filled_lines(start)
        for note, form in FORMS.items():
            if _evened(form(lines[:-1] if len(start) == LOOKED_AT else lines)):
                rows = _evened(form(_filled_lines(start + stream.read())))
                table = io.StringIO(newline="")
                csv.writer(table).writerows(rows)
                return TextFile(table.getvalue().encode(), (*text.notes, note)) if rows else text
    return text


Rows = list[list[str]]


def _filled_lines(content: bytes) -> list[str]:
    """Return the lines that hold more than blanks; none where a cell goes on over several."""
    text = content.decode("utf-8-sig", "replace")
    lines = [line.strip("\n\r") for line in io.StringIO(text, newline="") if line.strip()]
    return [] if any(line.count('"') % 2 for line in lines) else lines


def _evened(rows: Rows) -> Rows:
    """Return rows of one width, with a header; none where it is not clear what their cells are.

    A header may lack the name of the first column, and rows may end after their last label.
    """
    widths = {len(row) for row in rows[1:]}
    if not widths or min(widths) < 2:
        return []
    header, first, width = rows[0], [row[0] for row in rows[1:]], len(rows[0])
    if widths == {width + 1} and len({*first}) == len(first):
        photos = all(map(_is_photo, first))
        named = any(folded(name) in USUAL_PATHS for name in header)
        return [] if photos == named else [["path" if photos else "", *header], *rows[1:]]
    places = {next((n for n, cell in enumerate(row) if _is_photo(cell)), -1) for row in rows[1:]}
    headless = any(_is_photo(header[place]) for place in places & {0, 1} if place < width)
    labels_last = folded(header[-1]) in LIKELY_LABELS and places == {0} and width == 2
    longer = sum(len(row) > width for row in rows)
    headed = labels_last and min(widths) == width and 4 * longer >= len(rows)
    if not (widths == {width} or (len(places) == 1 and headless) or headed):
        return []
    most = max(width, *widths)
    return [row + [""] * (most - len(row)) for row in rows]


def _rows(lines: Sequence[str], mark: str, quote: str = '"') -> Rows:
    blanks = mark == " "
    try:
        return [
            *csv.reader(
                lines, delimiter=mark, quotechar=quote, skipinitialspace=blanks, strict=True
            )
        ]
    except csv.Error:
        return []


def _in_single_quotes(lines: list[str]) -> Rows:
    for mark in MARKS:
        quoted = re.compile(rf"(?:.*{re.escape(mark)})?\s*'[^']*'\s*(?:{re.escape(mark)}.*)?")
        if all(map(quoted.fullmatch, lines[1:])) and _evened(rows := _rows(lines, mark, "'")):
            return rows
    return []


def _photos_before_blanks(lines: list[str]) -> Rows:
    """Return the rows of lines such as ``a.jpg dog sea`` and ``a.jpg: dog, sea``."""
    found = [match.groups("") for line in lines if (match := PHOTO_FIRST.fullmatch(line.strip()))]
    if len(found) < len(lines) or not any(labels for _, _, labels in found):
        return []
    if any(mark.strip() or "," in labels for _, mark, labels in found):
        return [[photo, labels] for photo, _, labels in found]
    rows = [[photo, *labels.split()] for photo, _, labels in found]
    numbers = all(cell.isdigit() for row in rows for cell in row[1:])
    classes = numbers and len({*map(len, rows)}) > 1
    return [[row[0], "|".join(row[1:])] for row in rows] if classes else rows


def _between_blanks(lines: list[str]) -> Rows:
    if any(mark in line for line in lines for mark in MARKS[1:]) or "," in "".join(lines[:1]):
        return []
    lines = [line.strip() for line in lines]
    lines = lines[1:] if lines and lines[0].isdigit() else lines  # how many there are
    apart = [re.split(r"\s{2,}", line) for line in lines]
    return apart if _evened(apart) else _rows(lines, " ")


def _of_other_width(lines: list[str]) -> Rows:
    for mark in MARKS:
        if len({*map(len, rows := _rows(lines, mark))}) > 1 and _evened(rows):
            return rows
    return []


FORMS: dict[str, Callable[[list[str]], Rows]] = {
    "cells are in single quotes": _in_single_quotes,
    "each line holds a photo and its labels": _photos_before_blanks,
    "cells are separated by blanks": _between_blanks,
    "rows have other widths than the header": _of_other_width,
}


def _decoded(path: Path, encoding: str | None) -> TextFile:
    """Return the text of a file: as ``encoding`` says, or by its first bytes, UTF-8 or cp1252."""
    with path.open("rb") as stream:
        start = stream.read(LOOKED_AT)
    for kind, first in OTHER_FILES.items():
        if start.lstrip().lower().startswith(first):
            raise DataError(f"{path.name}: this is {kind}, not a table; give or export a CSV file")
    if start.startswith(OLD_EXCEL):
        raise DataError(f"{path.name}: an Excel file of the old kind (.xls); save it as CSV UTF-8")
    if start.startswith(b"PK\x03\x04"):
        return TextFile(workbook_as_csv(path), (f"{path.name} is an Excel workbook",))
    plain = TextFile(path)
    if start.startswith(b"\x1f\x8b"):
        plain = TextFile(_unpacked(path))
        with plain.open() as stream:
            start = stream.read(LOOKED_AT)
    encoding, guessed = encoding or _by_first_bytes(start), False
    if encoding is None:
        looked = _looked_at(plain, path.name)
        guessed = looked is None
        if looked is not None and (b"\n" in start or b"\r" not in start):
            return looked
    with plain.open() as stream:
        content: bytes = stream.read()
    if guessed:
        _require_no_utf8(path.name, content)
        _require_western(path.name, content)
        encoding = WINDOWS
    elif encoding is None:  # of old Macs
        return TextFile(content.replace(b"\r", b"\n"))
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except LookupError:
        raise SettingsError(f"there is no encoding {encoding!r}; one is cp1252") from None
    except UnicodeError as error:
        way_out = "save the table as UTF-8, or name its encoding with --set encoding=NAME"
        raise DataError(f"{path.name}: it is not {encoding} text ({error}); {way_out}") from None
    if not guessed:
        return TextFile(text.encode())
    word = next((word for word in re.findall(r"\w+", text) if not word.isascii()), "")
    such = f", such as {word!r}" if word else ""
    note = f"{path.name} is not UTF-8; it is read as Windows text (cp1252){such}"
    return TextFile(text.encode(), (note,))


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST_BOOK + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name}: the gzip file is broken ({error})") from None
    if len(content) > LARGEST_BOOK:
        raise DataError(f"{path.name}: the unpacked table is too large; unpack it to a file")
    return content


def _by_first_bytes(start: bytes) -> str | None:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    first, second = start[::2].count(0), start[1::2].count(0)
    if 4 * max(first, second) <= len(start):  # a null here and there, in text of single bytes
        return None
    return "utf-16-le" if second > first else "utf-16-be"


def _looked_at(plain: TextFile, name: str) -> TextFile | None:
    """Return a text with the quotes in it, None if it is not UTF-8.

    Stop at a null byte, which no text of single bytes holds.
    """
    decoder, is_utf8, lines = codecs.getincrementaldecoder("utf-8")(), True, 1
    marks = set()
    with plain.open() as stream:
        while block := stream.read(HEAD_BYTES):
            if (place := block.find(b"\0")) >= 0:
                line = lines + block.count(b"\n", 0, place)
                raise DataError(
                    f"{name}, line {line}: a null byte, which UTF-8 text does not hold; "
                    "save the table as UTF-8, or name its encoding with `--set encoding=NAME`"
                )
            lines += block.count(b"\n")
            marks |= {mark for mark in plain.marks if mark.encode() in block}
            try:
                if is_utf8 and not (block.isascii() and not decoder.getstate()[0]):
                    decoder.decode(block)
            except UnicodeDecodeError:
                is_utf8 = False
    whole = is_utf8 and not decoder.getstate()[0]
    return replace(plain, marks=frozenset(marks)) if whole else None


def _require_no_utf8(name: str, content: bytes) -> None:
    """Stop at the first line that is not UTF-8, if most letters beyond ASCII are."""
    letters = Counter(sign for sign in content.decode(errors="replace") if sign > "\x7f")
    wrong, marks = letters["\ufffd"], letters["\ufeff"]
    if letters.total() - wrong - marks >= max(wrong, 1):
        lines = enumerate(content.split(b"\n"), 1)
        broken = next(n for n, line in lines if "\ufffd" in line.decode(errors="replace"))
        raise DataError(
            f"{name}, line {broken}: it is not UTF-8 text, and others are; correct it, "
            "or save the whole table as UTF-8"
        )


def _require_western(name: str, content: bytes) -> None:
    """Stop where the text cannot be read as cp1252, or would be words that nobody writes.

    Letters beyond ASCII come one or two at a time in the languages of cp1252, and no signs such as
    ``³`` stand inside its words.
    """
    try:
        strange = STRANGE_IN_WESTERN.search(content.decode(WINDOWS))
    except UnicodeError:
        strange = STRANGE_IN_WESTERN.search("³o")
    if strange is None:
        return
    ways = []
    for code, language in OTHER_CODES.items():
        with contextlib.suppress(UnicodeError):
            text = content.decode(code)
            words = [word for word in re.findall(r"[^\W\d_]+", text) if not word.isascii()]
            scripts = [{unicodedata.name(sign, "?").split()[0] for sign in word} for word in words]
            mixed = any("LATIN" in letters and len(letters) > 1 for letters in scripts)
            known = set().union(*scripts) <= SCRIPTS[code] and not (mixed or FRAMES.search(text))
            if words and known and not STRANGE_IN_WORDS.search(text):
                shown = ", ".join(dict.fromkeys(words[:3]))
                ways.append(f"{language}, as in {shown}: `--set encoding={code}`")
    listing = "".join(f"\n  {number}. {way}" for number, way in enumerate(ways[:4], 1))
    which = f". Say which by adding its option to the command:{listing}" if ways else ""
    raise QuestionError(
        f"{name}: it is not UTF-8 text, and no Western Windows text (cp1252) either; save it as "
        f"UTF-8, or name its encoding with `--set encoding=NAME`{which}"
    )


def workbook_as_csv(path: Path) -> bytes:
    """Return the one sheet of an .xlsx workbook that holds cells, as CSV with commas."""
    try:
        with zipfile.ZipFile(path) as book:
            fits = sum(info.file_size for info in book.infolist()) <= LARGEST_BOOK
            names = filter(BOOK_PARTS.fullmatch, book.namelist() if fits else ())
            texts_of = {name: book.read(name) for name in names}
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, zlib.error) as error:
        raise DataError(
            f"{path.name}: a zip file, and no table ({error}); export it again"
        ) from None
    if not fits or sum(text.count(b"<") for text in texts_of.values()) > MOST_TAGS:
        raise DataError(f"{path.name}: the workbook is too large; save it as CSV UTF-8")
    parts = {name: parse_xml(text, f"{path.name}, {name}") for name, text in texts_of.items()}
    if "xl/workbook.xml" not in parts:
        raise DataError(f"{path.name}: a zip file, and no table; unpack it and give the table")
    shared = parts.get("xl/sharedStrings.xml")
    texts = [] if shared is None else [_text_in(item) for item in shared.findall("{*}si")]
    sheets = [name for name in parts if "/worksheets/" in name]
    filled = {name: rows for name in sheets if (rows := _cells_of(parts[name], texts))}
    listing = [n for n, rows in filled.items() if any(_is_photo(cell) for r in rows for cell in r)]
    if len(listing) == 1:  # beside sheets such as a legend
        filled = {name: filled[name] for name in listing}
    if len(filled) != 1:
        what = f"{len(filled)} sheets that hold cells" if filled else "no sheet that holds cells"
        raise DataError(f"{path.name}: the workbook has {what}; save the right one as CSV UTF-8")
    text = io.StringIO(newline="")
    csv.writer(text).writerows(*filled.values())
    return text.getvalue().encode()


def _text_in(node: ElementTree.Element) -> str:
    return "".join(run.text or "" for run in node.findall(".//{*}t"))


def _cells_of(sheet: ElementTree.Element, texts: Sequence[str]) -> list[list[str]]:
    """Return the rows of a sheet; a cell says its column, such as C7, or follows the last one."""
    rows: list[dict[int, str]] = []
    for row in sheet.findall(".//{*}row"):
        cells: dict[int, str] = {}
        last = 0
        for cell in row.findall("{*}c"):
            place = 0
            for letter in "".join(filter(str.isalpha, cell.get("r") or "")):
                place = 26 * place + ord(letter) - ord("A") + 1
            kind, value = cell.get("t"), cell.findtext("{*}v") or ""
            if kind == "s" and value.isdecimal() and int(value) < len(texts):
                value = texts[int(value)]
            elif kind == "b":
                value = "TRUE" if value == "1" else "FALSE"
            last = place or last + 1
            cells[last] = _text_in(cell) or value
        rows.append(cells)
    width = max((max(cells) for cells in rows if any(cells.values())), default=0)
    if width * len(rows) > MOST_CELLS:
        raise DataError(
            f"a sheet has {width:,} columns and {len(rows):,} rows; save it as CSV UTF-8"
        )
    return [[cells.get(n, "") for n in range(1, width + 1)] for cells in rows] if width else []


def frame_of(
    text: TextFile, path: Path, delimiter: str | None = None, header: int | None = None
) -> TextLayout:
    """Return how the rows of a file are separated, and which of its first lines is the header.

    The header is the first line with at least two names and as many cells as the rows below it
    have; it names no photo. Of several delimiters the one wins under which most rows have that many
    cells, with no line above the header; the usual one of the file's suffix decides between equals.
    """
    with text.open() as stream:
        start = stream.read(LOOKED_AT)
        complete = len(start) < LOOKED_AT
        if b"\n" not in start and not complete:
            start += stream.readline(HEAD_BYTES)
    skipped = 0
    if (named := EXCEL_DELIMITER.match(start)) is not None:
        skipped, start = 1, start[named.end() :]
        delimiter = delimiter or named[1].decode()
    head = start.decode("utf-8-sig", "replace")
    if not complete and "\n" in head:
        head = head[: head.rindex("\n") + 1]
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    usual = DELIMITERS.get(suffix.lower())
    found, error = [], ""
    for mark in (delimiter,) if delimiter else MARKS:
        try:
            found += [_frame(head, mark, path, header)] if delimiter or mark in head else []
        except csv.Error as broken:
            error = error or str(broken)
    if not found and error:
        raise DataError(f"{path.name}: the header cannot be read ({error})")
    ranked = sorted(
        found,
        key=lambda item: (item[0], -item[1].above, item[1].delimiter == usual),
        reverse=True,
    )
    if not ranked:
        ranked = [_frame(head, usual or ",", path, header)]
    score, best = ranked[0]
    rivals = [frame.delimiter for other, frame in ranked if other == score and score > 0]
    if len(rivals) > 1 and usual not in rivals:
        raise DataError(
            f"{path.name}: its columns could be separated by {' or '.join(map(repr, rivals))}; "
            f"say which, as in `--set {_setting(rivals[0])}`"
        )
    if not any(name.strip() for name in best.header):
        raise DataError(f"{path.name}: the table is empty")
    if best.delimiter == "|" and re.search(r"\n\s*\|?\s*:?-+:?\s*\|", head):
        raise DataError(f"{path.name}: this is a Markdown table; export or write it as CSV")
    notes = best.notes
    photos = [place for place, name in enumerate(best.header) if _is_photo(name)]
    if header is None and best.above == 1 and photos and len(best.header) > 1:
        names = tuple(f"column {place}" for place in range(1, len(best.header) + 1))
        return TextLayout(best.delimiter, names, skipped, (*text.notes, HEADLESS))
    if best.above > 1:
        count = counted(best.above - 1, "line")
        notes = (f"{count} above the header {'is' if best.above == 2 else 'are'} not read",)
    return TextLayout(best.delimiter, best.header, best.above + skipped, (*text.notes, *notes))


def _setting(mark: str) -> str:
    return "delimiter=tab" if mark == "\t" else f"'delimiter={mark}'"


def _frame(head: str, mark: str, path: Path, line: int | None) -> tuple[float, TextLayout]:
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=mark, strict=True)
    try:
        for row in reader:
            rows.append((reader.line_num, row))
    except csv.Error:
        if not rows:
            raise
    filled = [(number, row) for number, row in rows if any(cell.strip() for cell in row)]
    if line is not None:
        chosen = next((n for n, (number, _) in enumerate(filled) if number == line), None)
        if chosen is None:
            raise SettingsError(f"{path.name}: line {line} is not one of its first lines")
    else:
        chosen = _header_row([row for _, row in filled])
    if not filled:
        return 0.0, TextLayout(mark, (), 0)
    number, header = filled[chosen]
    below = [len(row) for _, row in filled[chosen + 1 :]]
    right = sum(width == len(header) for width in below) / max(len(below), 1) if below else 1.0
    if below and not right:  # every row ends with empty cells that the header does not have
        width, _ = Counter(below).most_common(1)[0]
        rest = [row[len(header) :] for _, row in filled[chosen + 1 :]]
        if width > len(header) and not any(cell.strip() for cells in rest for cell in cells):
            header, right = [*header, *[""] * (width - len(header))], 1.0
    body = [row for _, row in filled[chosen + 1 :]]
    header = [
        name if name.strip() or not _has_words(body, place) else f"column {place + 1}"
        for place, name in enumerate(header)
    ]
    if len({*header}) < len(header):  # "label, label" are several columns of labels
        header = [
            f"{name} {header[:place].count(name) + 1}"
            if name in header[:place] and folded(name) in LIKELY_LABELS
            else name
            for place, name in enumerate(header)
        ]
    above = [one_line(" ".join(row)) for _, row in filled[:chosen]]
    score = 0.0 if len(header) < 2 else 1 + right - 0.4 * bool(above)
    return score, TextLayout(mark, tuple(header), number)


def _has_words(rows: Sequence[Sequence[str]], place: int) -> bool:
    """Return whether a column holds more than numbers, such as those of rows."""
    cells = [row[place].strip() for row in rows if len(row) > place]
    return any(cells) and not all(cell.isdigit() for cell in cells if cell)


def _is_photo(cell: str) -> bool:
    return Path(cell.strip()).suffix.lower() in IMAGE_SUFFIXES


def _header_row(rows: list[list[str]]) -> int:
    """Return which row names the columns: the first one, unless it is a title above the table."""
    if not rows:
        return 0
    widths = Counter(map(len, rows))
    usual = max(widths, key=lambda width: (widths[width], width))

    def names(row: list[str]) -> int:
        return 0 if any(map(_is_photo, row)) else sum(bool(cell.strip()) for cell in row)

    first = {folded(cell) for cell in rows[0]}
    if not first & USUAL_PATHS:
        for place, row in enumerate(rows[1:MOST_ABOVE], 1):
            if {*map(folded, row)} & USUAL_PATHS and len(row) == usual:
                return place
            if any(map(_is_photo, row)):
                break
    if usual < 2 or (len(rows[0]) == usual and names(rows[0]) != 1) or len(rows[0]) > usual:
        return 0
    if names(rows[0]) > 1 and first & (USUAL_PATHS | USUAL_LABELS):
        return 0
    for place, row in enumerate(rows[1:MOST_ABOVE], 1):
        if len(row) == usual and names(row) > 1 and place + 1 < len(rows):
            return place
    return 0
