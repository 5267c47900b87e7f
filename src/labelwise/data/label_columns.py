"""The columns of labels as sparse rows of label numbers.

A list, or text split on ``|``, names the labels that are present or, with ``*`` for all, not known;
soft ones have as many shares between 0 and 1 beside them. One column per label holds 1, 0, or
nothing (also -1, unless the reader is told that it means absent) for unknown, and shares in between
if the reader is told so.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelwise.data.columns import Vocabulary
from labelwise.errors import DataError
from labelwise.system.text import one_line

EVERYTHING = "*"
WRITTEN_LIST = r"""^\s*\[\s*(['"]|\]\s*$)"""
LIST_ITEM = re.compile(r"""\s*('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")\s*(?:,|$)""")
STATES = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
STATES |= {"": -1, "nan": -1}  # unknown
MINUS_ONES = ("-1", "-1.0")
ANSWERS = ("yes", "no", "y", "n")  # words that say present or absent, in English alone
VALUES = 1 << 20  # of columns that are read together
MinusOne = Literal["unknown", "absent"]
TEXT = (pa.string(), pa.large_string())
LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
At = Callable[[int], str]  # the name of a row of this batch, for errors


@dataclass(frozen=True, eq=False)
class SparseRows:
    """How many labels each row has, their numbers row by row, and two kinds of special row.

    ``null`` rows have no list at all; ``everything`` rows say ``*``.
    """

    sizes: NDArray[np.int32]
    numbers: NDArray[np.int32]
    null: NDArray[np.bool_]
    everything: NDArray[np.bool_]


def read_lists(
    column: Any, header: str, vocabulary: Vocabulary, at: At, *, separator: str = "|"
) -> SparseRows:
    """Return the label sets of a column of lists, of separated text, or of class numbers.

    The class number -1 means that nothing is known, as null does.
    """
    if pa.types.is_integer(column.type):
        column = pc.if_else(pc.equal(column, -1), pa.scalar(None, column.type), column)
    null = np.asarray(column.is_null(), np.bool_)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if pa.types.is_integer(column.type):
        column = _names_of(column, header, vocabulary, at)
    if column.type in TEXT:
        column = _divided(column, header, vocabulary, at, separator)
    if not isinstance(column.type, LISTS):
        raise DataError(f"{at(0)}: {header!r} must hold lists or text, got {column.type}")
    parents = np.asarray(pc.list_parent_indices(column), np.int64)
    words = pc.list_flatten(column)
    if pa.types.is_dictionary(words.type):
        words = words.cast(words.type.value_type)
    if pa.types.is_integer(words.type):
        words = _names_of(words, header, vocabulary, lambda index: at(int(parents[index])))
    if pa.types.is_null(words.type):
        words = words.cast(pa.string())
    if words.type not in TEXT:
        raise DataError(f"{at(0)}: {header!r} must hold names of labels, got {words.type}")
    coded = pc.utf8_trim_whitespace(pc.fill_null(words, "")).dictionary_encode()
    code = np.asarray(coded.indices, np.int64)
    dictionary = coded.dictionary.to_pylist()
    numbers = np.full(len(dictionary) + 1, -1, np.int32)
    everything = np.zeros(len(null), np.bool_)
    first = np.unique(code, return_index=True)[1]  # each word of the dictionary occurs
    for index, word in enumerate(dictionary):
        if word == EVERYTHING:
            everything[parents[code == index]] = True
        elif word:
            numbers[index] = vocabulary.number(word, at(int(parents[first[index]])))
    number = numbers[code]
    kept = number >= 0
    sizes = np.bincount(parents[kept], minlength=len(null)).astype(np.int32)
    return SparseRows(sizes, number[kept], null, everything)


def read_shares(
    column: Any, header: str, names: SparseRows, at: At, *, separator: str = "|"
) -> NDArray[np.float32]:
    """Return the shares that belong to the named labels, row by row, each in [0, 1).

    A share of 0 says that a label is absent in a row of which all else is unknown.
    """
    if column.type in TEXT:
        column = pc.split_pattern(pc.fill_null(column, ""), separator)
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
    wrong = np.flatnonzero(sizes != names.sizes)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{at(row)}: {header!r} must hold one number per soft label, got {sizes[row]} for "
            f"{names.sizes[row]}"
        )
    odd = ~((shares >= 0) & (shares < 1))
    if odd.any():
        place = int(odd.argmax())
        raise DataError(
            f"{at(int(parents[place]))}: a share of {header!r} must lie between 0 and 1, and "
            f"1 is not one, got {shares[place]:g}; certain labels belong into 'labels'"
        )
    return shares.astype(np.float32)


class OneHot(NamedTuple):
    """Rows of one column per label: column k is number k; ``minus_ones`` says that there is a -1.

    ``shares`` are those of the soft labels.
    """

    present: SparseRows
    unknown: SparseRows
    soft: SparseRows
    shares: NDArray[np.float32]
    minus_ones: bool


def read_one_hot(
    batch: Any,
    headers: Sequence[str],
    at: At,
    *,
    soft: bool = False,
    minus_one: MinusOne | None = None,
) -> OneHot:
    """Return the labels of one column per label; shares are taken only if ``soft``.

    ``minus_one`` says what a -1 means; where nobody said so, it is an error.
    """
    columns = [batch.column(header) for header in headers]
    for header, column in zip(headers, columns, strict=True):
        if not _is_scalar(column.type):
            raise DataError(
                f"{at(0)}: the label column {header!r} must hold 1, 0 or nothing, "
                f"got {column.type}{_way_out(header)}"
            )
    states = np.empty((batch.num_rows, len(headers)), np.int8)
    shares = np.zeros(states.shape if soft else (0, 0), np.float32)
    known = STATES
    if minus_one is not None:
        known = STATES | dict.fromkeys(MINUS_ONES, 0 if minus_one == "absent" else -1)
    words = pa.array(list(known), pa.large_string())
    values = np.array([*known.values(), 2], np.int8)
    minus_ones = False
    for start, end in _of_one_type(columns, max(1, batch.num_rows)):
        column = pa.concat_arrays(columns[start:end])  # one after the other: a call costs 30 µs
        text = pc.fill_null(column.cast(pa.large_string()), "")
        text = pc.utf8_lower(pc.utf8_trim_whitespace(text))
        if pa.types.is_floating(column.type):
            text = pc.if_else(pc.fill_null(pc.is_nan(column), False), "", text)
        found = np.asarray(pc.fill_null(pc.index_in(text, value_set=words), len(known)))
        minus_ones = minus_ones or bool(((found >= len(STATES)) & (found < len(known))).any())
        states[:, start:end] = values[found].reshape(end - start, batch.num_rows).T
        strange = np.flatnonzero(values[found] == 2)
        if len(strange):
            places, rows = start + strange // batch.num_rows, strange % batch.num_rows
            numbers = _numbers(text.take(pa.array(strange)))
            between = (numbers > 0) & (numbers < 1)
            if not (soft and between.all()):
                first = int(between.argmin()) if soft else 0
                header = headers[int(places[first])]
                also = ", or a share in between" if soft else ""
                got = str(column[int(strange[first])].as_py())
                raise DataError(
                    f"{at(int(rows[first]))}: the label column {header!r} must hold 1, 0 or "
                    f"nothing (= unknown){also}, got {got!r}"
                    f"{_way_out(header, got, bool(between[first]))}"
                )
            shares[rows, places] = numbers
    there = states == 2
    of_soft = shares[there] if soft else shares.ravel()
    present, unknown = _rows_where(states == 1), _rows_where(states == -1)
    return OneHot(present, unknown, _rows_where(there), of_soft, minus_ones)


def _of_one_type(columns: Sequence[Any], rows: int) -> Iterator[tuple[int, int]]:
    """Yield neighbouring columns of one type, from and to, of about so many values together."""
    most, start = max(1, VALUES // rows), 0
    for place in range(1, len(columns) + 1):
        is_last = place == len(columns)
        if is_last or place - start == most or columns[place].type != columns[start].type:
            yield start, place
            start = place


def _numbers(texts: Any) -> NDArray[np.float64]:
    """Return texts as numbers, NaN where one is none."""

    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            return np.nan

    try:
        return np.asarray(texts.cast(pa.float64()), np.float64)
    except pa.ArrowInvalid:
        return np.array([number(text) for text in texts.to_pylist()])


def _way_out(header: str, got: str = "", share: bool = False) -> str:
    name = one_line(header)
    if got.strip().casefold() in ANSWERS:
        return "; write 1 for yes and 0 for no"
    if got.strip() in MINUS_ONES:
        return (
            ", which means unknown in some tables and absent in others; say `--set "
            "minus_one=unknown` or `--set minus_one=absent`"
        )
    return (
        f"; give `--set columns.labels={name}` if it names labels, or `--set ignore={name}` if it "
        "is not a label (several: `--set 'ignore=[a,b]'`); write 1 and 0 if it means yes and no"
        + (", or give `--set soft=true` if it is a soft label" if share else "")
    )


def first_true(mask: Any) -> int:
    """Return the first row where an Arrow mask is true."""
    return int(np.asarray(pc.fill_null(mask, False)).argmax())


def _rows_where(mask: NDArray[np.bool_]) -> SparseRows:
    rows, numbers = np.nonzero(mask)
    sizes = np.bincount(rows, minlength=len(mask)).astype(np.int32)
    never = np.zeros(len(mask), np.bool_)
    return SparseRows(sizes, numbers.astype(np.int32), never, never)


def _names_of(codes: Any, header: str, vocabulary: Vocabulary, at: At) -> Any:
    """Return the names of class numbers; without given names the number is the name."""
    if not vocabulary.closed:
        return codes.cast(pa.string())
    names = list(vocabulary.numbers)
    outside = pc.or_(pc.less(codes, 0), pc.greater_equal(codes, len(names)))
    if pc.any(outside).as_py():
        row = first_true(outside)
        raise DataError(
            f"{at(row)}: {header!r} must be in 0..{len(names) - 1}, got {codes[row].as_py()}"
        )
    return pa.array(names, pa.string()).take(codes)


def _divided(column: Any, header: str, vocabulary: Vocabulary, at: At, separator: str) -> Any:
    text = pc.fill_null(column, "")
    if pc.any(pc.match_substring_regex(text, WRITTEN_LIST)).as_py():
        return _written_lists(text, header, at)
    for mark, word in ((",", "comma"), (";", "semicolon")):
        found = pc.match_substring(text, mark)
        if separator != mark and not vocabulary.closed and pc.any(found).as_py():
            row = first_true(found)
            raise DataError(
                f"{at(row)}: {header!r} is split on {separator!r} but holds a {word}, got "
                f"{text[row].as_py()!r}; give `--set 'separator={mark}'` if it parts labels, or "
                "the names of all labels, one per line, as `--set names=FILE` if it belongs to one"
            )
    return pc.split_pattern(text, separator)


def _written_lists(text: Any, header: str, at: At) -> Any:
    """Return lists that were written as text, such as ``['Comedy', 'Drama']``."""
    coded = text.dictionary_encode()
    words = [written_list(cell) for cell in coded.dictionary.to_pylist()]
    code = np.asarray(coded.indices, np.int64)
    broken = np.array([word is None for word in words])[code]
    if broken.any():
        row = int(broken.argmax())
        raise DataError(
            f"{at(row)}: {header!r} must be a list of quoted names such as ['a', 'b'] in every "
            f"row if it is in one, got {text[row].as_py()!r:.80}"
        )
    return pa.array([word or [] for word in words], pa.list_(pa.string())).take(coded.indices)


def written_list(text: str) -> list[str] | None:
    r"""Return the names of a list written by Python or JSON, None if it is something else.

    >>> written_list("['Comedy', \"Ocean's\"]")
    ['Comedy', "Ocean's"]
    """
    text = text.strip()
    if not text:
        return []
    if not (text.startswith("[") and text.endswith("]")):
        return None
    place, end, words = 1, len(text) - 1, []
    while text[place:end].strip():
        item = LIST_ITEM.match(text, place, end)
        if item is None:
            return None
        words.append(_unquoted(item[1]))
        place = item.end()
    return None if None in words else [word for word in words if word is not None]


def _unquoted(literal: str) -> str | None:
    if "\\" not in literal:
        return literal[1:-1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that mean themselves
            text = str(ast.literal_eval(literal))
        text.encode()
        return text
    except (ValueError, SyntaxError):
        return None


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


def _is_scalar(kind: Any) -> bool:
    types = pa.types
    return bool(
        kind in TEXT
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_null(kind)
    )
