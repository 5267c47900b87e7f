"""Columns of labels as Arrow arrays, to the numbers of labels: lists, shares, and one per label."""

import ast
import json
import re
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.tables.words import (
    LONG_SHARE,
    LONG_VALUE,
    STATES,
    WORDS,
    folded,
)
from labelwise.types import LabelSpace, nearest

EVERYTHING = "*"
NO_WIDTH = dict.fromkeys(map(ord, "\u200b\u2060\ufeff\u00ad"))
JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))
KINDS_OF_LISTS = "array|set|frozenset|list|tuple|Index|c"
BRACKETED = rf"^\s*(?:(?:np\.)?(?:{KINDS_OF_LISTS})\(.*\)|[\[{{(<].*[\]}})>])\s*$"
# A name as it is: Python writes a list of one as ('dog',).
PARENTHESES = r"""^\s*\(\s*[^\s,'"()][^,'"()]*\)\s*$"""
WRITTEN_LIST = r"""^\s*\[\s*(['"]|\]\s*$)"""
QUOTED = r"""(?:'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+")"""
WRAPPED = re.compile(r"(?:np\.)?\w+\((.*?)(?:,\s*dtype=[^()]*)?\)", re.DOTALL)
NAME_KEYS = ("label", "name", "title", "class", "tag", "category", "displayName", "class_name")
LIST_KEYS = ("choices", "labels", "tags", "keywords", "objects", "classifications")
QUOTED_LIST = re.compile(rf"\[(?:\s*+{QUOTED}\s*+,)*+\s*+(?:{QUOTED}\s*+)?\]")
MINUS_ONES = ("-1", "-1.0")
VALUES = 1 << 20  # of columns that are read together
MinusOne = Literal["unknown", "absent"]
TEXT = (pa.string(), pa.large_string())
LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
At = Callable[[int], str]  # the name of a row of this batch, for errors


class Vocabulary:
    """Numbers names as they come; if the names were given beforehand, any other is an error."""

    def __init__(self, names: Sequence[str] | None = None, levels: str | None = None) -> None:
        self.closed, self.levels = names is not None, levels
        self.respelled: set[str] = set()
        self._space = LabelSpace(tuple(names or ()))
        self.numbers = {spelled(name): n for n, name in enumerate(self._space.names)}
        self._merged: dict[int, str] = {}

    def spelled(self, name: str) -> str:
        """Return a name as it is compared, and note that it was written in another way."""
        plain = spelled(name)
        if plain != name:
            self.respelled.add(plain)
        return plain

    def number(self, name: str, where: str) -> int:
        if name not in self.numbers:
            if self.closed:
                raise DataError(f"{where}: unknown label {name!r}{nearest(name, self.numbers)}")
            self.numbers[name] = len(self.numbers)
        return self.numbers[name]

    def path(self, name: str, where: str) -> list[int]:
        """Return the numbers of a name and, of one with levels such as a/b/c, of all above it."""
        if self.levels is None:
            return [self.number(name, where)]
        parts = [level.strip() for level in name.split(self.levels) if level.strip()]
        above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return [self.number(label, where) for label in above]

    def merge(self, names: Sequence[str], to: str) -> None:
        """Make names one label, which is called by one of them."""
        self._merged |= {self.numbers.pop(name): to for name in names if name != to}

    def finish(self) -> tuple[LabelSpace, NDArray[np.int32]]:
        """Return the space (as given, else sorted by name), and each number's column in it."""
        if self.closed:
            return self._space, np.arange(len(self.numbers), dtype=np.int32)
        if self.levels is not None:  # a level is called by its own name where no other has it
            own = {name: name.rpartition("/")[2] for name in self.numbers}
            uses = Counter(own.values())
            short = (own[name] if uses[own[name]] == 1 else name for name in self.numbers)
            self.numbers = dict(zip(short, self.numbers.values(), strict=True))
        names = sorted(self.numbers)
        columns = np.zeros(len(names) + len(self._merged), np.int32)
        columns[[self.numbers[name] for name in names]] = np.arange(len(names))
        for number, name in self._merged.items():
            columns[number] = names.index(name)
        return LabelSpace(tuple(names)), columns


@dataclass(frozen=True, eq=False)
class SparseRows:
    """How many labels each row has, their numbers row by row, and two kinds of special row.

    ``null`` rows have no list at all; ``everything`` rows say ``*``.
    """

    sizes: NDArray[np.int32]
    numbers: NDArray[np.int32]
    null: NDArray[np.bool_]
    everything: NDArray[np.bool_]

    def union(self, other: "SparseRows") -> "SparseRows":
        """Return the labels of both in each row, of which nothing is known if one says so."""
        row = np.arange(len(self.sizes), dtype=np.int64)
        rows = np.concatenate([np.repeat(row, self.sizes), np.repeat(row, other.sizes)])
        numbers = np.concatenate([self.numbers, other.numbers]).astype(np.int64)
        width = int(numbers.max(initial=0)) + 1
        rows, numbers = np.divmod(np.unique(rows * width + numbers), width)
        sizes = np.bincount(rows, minlength=len(row)).astype(np.int32)
        everything = self.everything | other.everything
        return SparseRows(sizes, numbers.astype(np.int32), self.null | other.null, everything)


def read_lists(
    column: pa.Array,
    header: str,
    vocabulary: Vocabulary,
    at: At,
    separator: Sequence[str] | None = None,
    words: Mapping[str, str] = {},
) -> SparseRows:
    """Return the label sets of a column of lists, of text with separators, or of class numbers.

    Unless a ``separator`` is given it is ``|``, and text may hold no comma or semicolon. The
    ``words`` mean "none" of them or, as null and the class number -1 do, "unknown".
    """
    if pa.types.is_integer(column.type):
        column = pc.if_else(pc.equal(column, -1), pa.scalar(None, column.type), column)
    null = np.array(column.is_null(), np.bool_)
    column = _as_text(column, header, vocabulary, at)
    if column.type in TEXT:
        column = _divided(column, header, at, separator, vocabulary.closed)
    if not isinstance(column.type, LISTS):
        got = f"got {column.type}; write the names of the labels"
        raise DataError(f"{at(0)}: {header!r} must hold lists or text, {got}")
    parents = np.asarray(pc.list_parent_indices(column), np.int64)
    items = _as_text(
        pc.list_flatten(column), header, vocabulary, lambda index: at(int(parents[index]))
    )
    if items.type not in TEXT:
        raise DataError(
            f"{at(0)}: {header!r} must hold names of labels, got {items.type}; write these alone"
        )
    coded = pc.utf8_trim_whitespace(pc.fill_null(items, "")).dictionary_encode()
    code = np.asarray(coded.indices, np.int64)
    dictionary = coded.dictionary.to_pylist()
    dictionary = unquoted(dictionary)
    numbers: list[list[int]] = [[] for _ in dictionary]
    everything = np.zeros(len(null), np.bool_)
    for index, text in enumerate(dictionary):
        word = vocabulary.spelled(text)
        if word == EVERYTHING:
            everything[parents[code == index]] = True
        elif (meaning := words.get(word.casefold())) == "unknown":
            null[parents[code == index]] = True
        elif word and meaning is None:
            strange = vocabulary.closed and word not in vocabulary.numbers  # this one stops it
            row = int(parents[(code == index).argmax()]) if strange else 0
            numbers[index] = vocabulary.path(word, at(row))
    named = pa.array(numbers, pa.list_(pa.int32())).take(pa.array(code))
    number = np.asarray(pc.list_flatten(named))
    parents = parents[np.asarray(pc.list_parent_indices(named), np.int64)]
    if vocabulary.levels is not None:  # two labels may have a level in common
        width = max(len(vocabulary.numbers), 1)
        parents, number = np.divmod(np.unique(parents * width + number), width)
    sizes = np.bincount(parents, minlength=len(null)).astype(np.int32)
    return SparseRows(sizes, number.astype(np.int32), null, everything)


def read_shares(
    column: pa.Array, header: str, names: SparseRows, at: At, separator: Sequence[str] = ("|",)
) -> NDArray[np.float32]:
    """Return the shares that belong to the named labels, row by row, each in [0, 1).

    A share of 0 says that a label is absent in a row of which all else is unknown.
    """
    if column.type in TEXT:
        column = split_cells(pc.fill_null(column, ""), separator)
    if not isinstance(column.type, LISTS):
        raise DataError(f"{at(0)}: {header!r} must hold lists of numbers, got {column.type}")
    parents = np.asarray(pc.list_parent_indices(column), np.int64)
    values = pc.list_flatten(column)
    if values.type in TEXT:
        values = pc.utf8_trim_whitespace(values)
        blank = np.asarray(pc.equal(values, ""))
        values, parents = values.filter(pa.array(~blank)), parents[~blank]
    try:
        shares = np.asarray(pc.fill_null(values.cast(pa.float64()), np.nan), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{at(0)} and on: {header!r} must hold numbers ({reason})") from None
    sizes = np.bincount(parents, minlength=len(names.sizes))
    for row in np.flatnonzero(sizes != names.sizes)[:1].tolist():
        got = f"{sizes[row]} for {names.sizes[row]}"
        raise DataError(f"{at(row)}: {header!r} must hold one number per soft label, got {got}")
    odd = ~((shares >= 0) & (shares < 1))
    if odd.any():
        entry = int(odd.argmax())
        raise DataError(
            f"{at(int(parents[entry]))}: a share of {header!r} must lie between 0 and 1, and "
            f"1 is not one, got {shares[entry]:g}; certain labels belong into 'labels'"
        )
    return shares.astype(np.float32)


def read_one_hot(
    batch: pa.RecordBatch,
    headers: Sequence[str],
    at: At,
    *,
    soft: bool = False,
    minus_one: MinusOne | None = None,
    meanings: Mapping[str, int] = STATES,
) -> tuple[SparseRows, SparseRows, SparseRows, NDArray[np.float32], bool]:
    """Return which labels are present, unknown and soft, with shares, and whether there was a -1.

    Column k is number k; a -1 means ``minus_one``, or is an error. ``meanings`` says which cells
    (in lower case) mean present (1), absent (0) and unknown (-1).
    """
    columns = [batch.column(header) for header in headers]
    if odd := [header for header in headers if not _is_scalar(batch.schema.field(header).type)]:
        raise DataError(
            f"{at(0)}: the label column {odd[0]!r} must hold 1, 0 or nothing, "
            f"got {batch.column(odd[0]).type}"
        )
    states = np.empty((len(headers), batch.num_rows), np.int8)
    shares = np.zeros(states.shape[::-1] if soft else (0, 0), np.float32)
    known = dict(meanings)
    if minus_one is not None:
        known |= dict.fromkeys(MINUS_ONES, 0 if minus_one == "absent" else -1)
    words = pa.array(list(known), pa.large_string())
    values = np.array([*known.values(), 2], np.int8)
    minus_ones = False
    for start, end in _of_one_type(columns, max(1, batch.num_rows)):
        column = pa.concat_arrays(columns[start:end])  # one after the other: a call costs 30 µs
        text = column.cast(pa.large_string())
        code = pc.index_in(text, value_set=words)
        if code.null_count:  # cells that are not words as they stand
            rest = code.is_null()
            plain = _plain(column.filter(rest))
            if pa.types.is_floating(column.type):
                plain = pc.if_else(pc.equal(plain, "nan"), "", plain)
            found = pc.index_in(plain, value_set=words)
            code = pc.replace_with_mask(code, rest, pc.fill_null(found, len(known)))
            text = pc.replace_with_mask(text, rest, plain)
        state_of = np.asarray(code)
        if minus_one is not None and not minus_ones:
            minus_ones = pc.any(pc.is_in(text, value_set=pa.array(MINUS_ONES, text.type))).as_py()
        of_columns = states[start:end].reshape(-1)
        np.take(values, state_of, out=of_columns)
        strange = np.flatnonzero(of_columns == 2)
        if len(strange):
            places, rows = start + strange // batch.num_rows, strange % batch.num_rows
            numbers = as_numbers(text.take(pa.array(strange)))
            between = (numbers > 0) & (numbers < 1)
            if not (soft and between.all()):
                first = int(between.argmin()) if soft else 0
                header = headers[int(places[first])]
                also = ", or a share in between" if soft else ""
                got = str(column[int(strange[first])].as_py())
                raise DataError(
                    f"{at(int(rows[first]))}: the label column {header!r} must hold 1, 0 or "
                    f"nothing (= unknown){also}, got {got!r}"
                )
            shares[rows, places] = numbers
    present, unknown, soft_rows = (_rows_where(states == state) for state in (1, -1, 2))
    of_soft = shares[states.T == 2] if soft else shares.ravel()
    return present, unknown, soft_rows, of_soft, minus_ones


def _of_one_type(columns: Sequence[pa.Array], rows: int) -> Iterator[tuple[int, int]]:
    """Yield neighbouring columns of one type, from and to, of about so many values together."""
    most, start = max(1, VALUES // rows), 0
    for column in range(1, len(columns) + 1):
        is_last = column == len(columns)
        if is_last or column - start == most or columns[column].type != columns[start].type:
            yield start, column
            start = column


def as_numbers(texts: pa.Array) -> NDArray[np.float64]:
    """Return texts as numbers, NaN where one is none."""
    try:
        return np.asarray(texts.cast(pa.float64()), np.float64)
    except pa.ArrowInvalid:
        numbers = np.full(len(texts), np.nan)
        for row, text in enumerate(texts.to_pylist()):
            with suppress(ValueError):
                numbers[row] = float(text)
        return numbers


def _plain(column: pa.Array) -> pa.Array:
    text = pc.fill_null(column.cast(pa.large_string()), "")
    return pc.utf8_lower(pc.utf8_trim_whitespace(text))


def first_true(mask: pa.Array) -> int:
    """Return the first row where an Arrow mask is true."""
    return int(np.asarray(pc.fill_null(mask, False)).argmax())


def _rows_where(mask: NDArray[np.bool_]) -> SparseRows:
    """Return the numbers of the columns, the rows of this mask, that hold in each row."""
    entries = np.flatnonzero(mask.T) if mask.any() else np.zeros(0, np.int64)
    numbers = (entries % len(mask)).astype(np.int32)
    sizes = np.count_nonzero(mask, axis=0).astype(np.int32)
    never = np.zeros(mask.shape[1], np.bool_)
    return SparseRows(sizes, numbers, never, never)


def _as_text(values: pa.Array, header: str, vocabulary: Vocabulary, at: At) -> pa.Array:
    """Return nulls, dictionaries and class numbers as text; without given names numbers are it."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    is_number = pa.types.is_integer(values.type)
    if pa.types.is_null(values.type) or (is_number and not vocabulary.closed):
        return values.cast(pa.string())
    if not is_number:
        return values
    names = list(vocabulary.numbers)
    outside = pc.or_(pc.less(values, 0), pc.greater_equal(values, len(names)))
    if pc.any(outside).as_py():
        row, last = first_true(outside), len(names) - 1
        raise DataError(f"{at(row)}: {header!r} must be in 0..{last}, got {values[row].as_py()}")
    return pa.array(names, pa.string()).take(values)


def may_hold(text: pa.Array, *marks: str) -> bool:
    """Return whether some text may hold one of these marks: one search instead of one for each.

    >>> may_hold(pa.array(["dog|cat", "sea"]), "|"), may_hold(pa.array(["dog"]), "|", ",")
    (True, False)
    """
    buffers = [chunk.buffers()[-1] for chunk in getattr(text, "chunks", [text])]
    every = [buffer.to_pybytes() for buffer in buffers if buffer is not None]
    return any(mark.encode() in content for content in every for mark in marks)


def split_cells(text: pa.Array, marks: Sequence[str]) -> pa.Array:
    """Return the parts of each cell, split at one mark or at each of several."""
    if len(marks) == 1:
        return pc.split_pattern(text, marks[0])
    return pc.split_pattern_regex(text, "|".join(map(re.escape, sorted(marks, key=len)[::-1])))


def _divided(
    column: pa.Array, header: str, at: At, separator: Sequence[str] | None, closed: bool
) -> pa.Array:
    text = pc.fill_null(column, "")
    maybe = text if may_hold(text, *"])}>") else text.slice(0, 0)
    bracketed = pc.match_substring_regex(maybe, BRACKETED)
    if pc.any(pc.and_not(bracketed, pc.match_substring_regex(maybe, PARENTHESES))).as_py():
        coded = text.dictionary_encode()
        cells = coded.dictionary.to_pylist()
        no_list = [cell.strip().casefold() in WORDS and cell[:1] not in "[{(<" for cell in cells]
        words = [
            [cell] * bool(cell.strip()) if no or not cell.strip() else written_or_plain(cell)
            for cell, no in zip(cells, no_list, strict=True)
        ]
        broken = np.array([word is None for word in words])[np.asarray(coded.indices)]
        if not broken.any():
            return pa.array([word or [] for word in words], pa.list_(pa.string())).take(
                coded.indices
            )
        if pc.any(pc.match_substring_regex(text, WRITTEN_LIST)).as_py():
            row = int(broken.argmax())
            raise DataError(
                f"{at(row)}: {header!r} must be a list of quoted names such as ['a', 'b'] in every "
                f"row if it is in one, got {text[row].as_py()!r:.80}; correct the cell"
            )
    for mark, word in () if separator or closed else ((",", "comma"), (";", "semicolon")):
        holds_mark = pc.match_substring(text, mark) if may_hold(text, mark) else None
        if holds_mark is not None and pc.any(holds_mark).as_py():
            row = first_true(holds_mark)
            raise DataError(
                f"{at(row)}: {header!r} is split on '|' but holds a {word}, got "
                f"{text[row].as_py()!r}; give `--set 'separator={mark}'` if it separates labels, "
                "or `--set 'separator=|'` if it belongs to a name"
            )
    return split_cells(text, separator or ("|",))


def unquoted(words: list[str]) -> list[str]:
    """Return words without their quotes, if every one is in quotes.

    >>> unquoted(["'dog'", "'hot dog'", ""]), unquoted(["'tis'", "dog"])
    (['dog', 'hot dog', ''], ["'tis'", 'dog'])
    """
    quoted = [word for word in words if word]
    for mark in "'\"":
        inside = [word[1:-1] for word in quoted if word[:1] == word[-1:] == mark and word[2:]]
        if quoted and len(inside) == len(quoted) and not any(mark in word for word in inside):
            return [word[1:-1].strip() for word in words]
    return words


def bracketed_list(text: str) -> list[str] | None:
    r"""Return the names of a list in brackets, quoted or not, None if it is something else.

    >>> bracketed_list("['dog' 'cat']"), bracketed_list("{dog, hot dog}"), bracketed_list("[dog")
    (['dog', 'cat'], ['dog', 'hot dog'], None)
    """
    text = text.strip()
    if (wrapped := WRAPPED.fullmatch(text)) is not None:
        inside = wrapped[1]  # of R's c("dog", "cat") the names stand by themselves
        return bracketed_list(inside if inside[:1] in ("[", "{", "(") else f"[{inside}]")
    if text[:1] + text[-1:] not in ("[]", "{}", "()", "<>"):
        return None
    if '":' in text and (names := _names_of_json(text)) is not None:
        return names
    inside = text[1:-1].strip()
    if (names := written_list(f"[{inside}]")) is not None:
        return names
    if inside[:1] in ("'", '"'):
        between = re.sub(QUOTED, "", inside)
        quoted = re.findall(QUOTED, inside)
        return [name[1:-1] for name in quoted] if not between.strip(" ,\r\n\t") else None
    if any(mark in inside for mark in "[]{}()<>'\""):
        return None
    return [name.strip() for name in inside.split(",") if name.strip()]


def written_or_plain(text: str) -> list[str] | None:
    """Return the names of a list in brackets, or a cell of one name as it is."""
    if re.match(BRACKETED, text, re.DOTALL):
        return bracketed_list(text)
    open_or_several = re.search(r"^\s*[\[{(<]|[\]})>]\s*$|[|,;\n]", text)
    return None if open_or_several else [text.strip()]


def _names_of_json(text: str) -> list[str] | None:
    """Return the names in JSON objects as tools write them, None if it is something else.

    >>> _names_of_json('{"choices": ["dog", "cat"]}'), _names_of_json('[{"label": "dog"}]')
    (['dog', 'cat'], ['dog'])
    >>> _names_of_json('{"dog": 1, "cat": 0}'), _names_of_json('{"dog": 0.93}')
    (['dog'], None)
    """
    try:
        return names_in(json.loads(text))
    except (ValueError, RecursionError):
        return None


def names_in(value: object) -> list[str] | None:
    """Return the names in what JSON holds, None where it does not say plainly which are present."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        found = [names_in(item) for item in value]
        return None if None in found else [name for names in found for name in names or ()]
    if not isinstance(value, dict) or not (LONG_SHARE | LONG_VALUE).isdisjoint(map(folded, value)):
        return None
    for keys in (NAME_KEYS, LIST_KEYS):
        if inside := [value[key] for key in keys if key in value]:
            return names_in(inside[:1] if keys is NAME_KEYS else inside)
    if value and all(state in (0, 1) for state in value.values()):
        return [name for name, state in value.items() if state]
    return None if value else []


def written_list(text: str) -> list[str] | None:
    r"""Return the names of a list written by Python or JSON, None if it is something else.

    >>> written_list("['Comedy', \"Ocean's\"]")
    ['Comedy', "Ocean's"]
    """
    text = text.strip()
    if not QUOTED_LIST.fullmatch(text or "[]"):
        return None
    if "\\" not in text:  # which is read in a quarter of the time
        return [word[1:-1] for word in re.findall(QUOTED, text)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that mean themselves
            words: list[str] = ast.literal_eval(text)
        "".join(words).encode()
    except (ValueError, SyntaxError):
        return None
    return words


def names_of_joined_labels(names: Sequence[str]) -> list[str]:
    """Return the names with blanks, if most of them seem to be several labels.

    They seem so if every word of most names recurs in another one; or if half of all their words
    do, and several of these words are labels by themselves: of many labels some occur once.

    >>> names_of_joined_labels(["dog", "beach", "dog beach", "traffic light"])
    ['dog beach']
    >>> names_of_joined_labels(["dog", "beach", "dog sofa", "beach dog kite"])
    ['dog sofa', 'beach dog kite']
    >>> names_of_joined_labels(["dog", "hot dog", "traffic light"])
    []
    """
    parted = {name: frozenset(name.split()) for name in names}
    held = Counter(word for words in parted.values() for word in words)
    several = [name for name, words in parted.items() if len(words) > 1]
    joined = [name for name in several if all(held[word] > 1 for word in parted[name])]
    if 2 * len(joined) >= len(several):
        return joined
    inside = [word for name in several for word in parted[name]]
    recurring = [word for word in inside if held[word] > 1]
    alone = parted.keys() & recurring
    if len(alone) < 2 or 2 * len(recurring) < len(inside):
        return []
    return [name for name in several if not parted[name].isdisjoint(recurring)]


def spelled(name: str) -> str:
    """Return a name with composed letters, single blanks and no characters of no width."""
    if name.isascii():
        return re.sub("  +", " ", name)
    plain = unicodedata.normalize("NFC", name.translate(NO_WIDTH)).strip()
    plain = re.sub("[ \u00a0]+", " ", plain)
    with suppress(UnicodeEncodeError):  # Persian, Hindi and emoji need joiners, others do not
        plain = plain.translate(JOINERS).encode("latin-1").decode("latin-1")
    return plain


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that differ only in case, signs at the end, or form of characters.

    >>> alike_names(["Dog", "dog", "cat", "cat."])
    [['Dog', 'dog'], ['cat', 'cat.']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        groups[plain.strip("()?*").rstrip(".,;:! ") or plain].append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _is_scalar(kind: pa.DataType) -> bool:
    plain = pa.types.is_null(kind) or pa.types.is_primitive(kind)
    return kind in TEXT or (plain and not pa.types.is_temporal(kind))
