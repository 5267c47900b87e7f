"""Which reading of a table explains every cell: what its columns, marks and words mean.

A table is looked at once, as the distinct cells of each column. Every open point (which columns
name the labels, what separates them, what ``x`` or ``?`` means) has one or several possible
answers, best first. If each has one, the table is read so, and a note says how. Otherwise the
combinations are the readings that a person is asked to choose from; each is a set of options.
"""

import json
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import chain, islice, product
from math import isnan, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from labelwise.base.text import counted, listed, one_line
from labelwise.base.yaml_values import parse_assignments
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables.columns import (
    BRACKETED,
    LISTS,
    ROW_NUMBERS,
    alike_names,
    find_columns,
    names_of_joined_labels,
    spelled,
    written_or_plain,
)
from labelwise.tables.table import SPLIT_WORDS
from labelwise.tables.words import (
    ABSENT,
    ANSWERS,
    DASHES,
    DENYING,
    LIKELY_LABELS,
    LONG_ACTION,
    LONG_LABEL,
    LONG_SHARE,
    LONG_VALUE,
    MEANINGS,
    MINUS_ONE,
    MISSING,
    NO_OBJECTS,
    NO_STATE,
    NONE_WORDS,
    PAIRS,
    PATH_HEADERS,
    PRESENT,
    SPLIT_NAMES,
    STATES,
    SURELY_NO_LABEL,
    TICKS,
    UNSURE,
    USUAL_PATHS,
    WORDS,
    folded,
    name_parts,
    no_label,
    record_level,
)

MOST_CELLS = 100_000  # distinct ones of a column that are kept
MOST_READINGS = 6
MOST_SHARED = 3  # words that columns of labels share, such as yes, no and unknown
MOST_ODD = 6  # words in the columns of labels of which a person is asked
FREE_TEXT = 30  # letters of a cell that is a sentence and no label

STRONG = (";#", "\\n", "<br>", "<br/>", "<br />", "|", ";", "；", "、", "،")
COMMAS = (",", "，", "\t", "\n")
SOFT = ("·", "•", "\\", ":", "~", " - ", " – ", " — ")
WEAK = ("/", "+", "#", "&", " and ", " und ", " et ", " y ", " und/oder ")
MARK_NAMES = {"\t": "a tab", "\n": "a line end", " ": "a blank"}
NUMBER = re.compile(r"[-+]?[0-9]*[.,]?[0-9]+(e[-+]?[0-9]+)?\s*%?", re.IGNORECASE)
CODES = re.compile(r"\d+([ |,;]+\d+)+")  # class numbers, several in a cell
INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"([01])[.,]0+|([01])00?\s*%")
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2})?")
BOX = re.compile(r"[\[(]?-?\d+(\.\d+)?([,; ]+-?\d+(\.\d+)?){3}[\])]?")
SEXES = ({"m", "f"}, {"m", "w"}, {"male", "female"})
OUT = "out"  # what a split value means whose rows are set aside


@dataclass
class Cells:
    """The distinct cells of one column, without the blanks around them, and their numbers."""

    name: str
    place: int
    counts: Counter[str] = field(default_factory=Counter)
    nulls: int = 0  # of the empty cells: those that the format itself calls unknown
    nested: bool = False
    number: bool = False
    binary: bool = False

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def texts(self) -> list[str]:
        return [text for text in self.counts if text]

    def add(self, column: Any) -> None:
        kind = column.type
        if pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            self.binary = True
            return
        if isinstance(kind, LISTS):
            self.nested = True
            column = pc.list_flatten(column)
        self.number = self.number or pa.types.is_integer(column.type)
        if pa.types.is_nested(column.type) or len(self.counts) > MOST_CELLS:
            return
        self.nulls += column.null_count
        try:
            text = pc.fill_null(column.cast(pa.large_string()), "")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self.binary = True
            return
        for count in pc.utf8_trim_whitespace(text).value_counts().to_pylist():
            self.counts[count["values"]] += count["counts"]


@dataclass(frozen=True)
class RoleChoice:
    """One answer to an open point: options, how a question and how a note names it."""

    options: dict[str, Any] = field(default_factory=dict)
    phrase: str = ""
    note: str = ""
    clear: bool = True
    quiet: bool = False  # the note is only for a reading that has another one


@dataclass(frozen=True)
class Reading:
    """A complete reading: all its options, and those that settle what is open."""

    options: dict[str, Any]
    settling: dict[str, Any]
    phrase: str
    notes: tuple[str, ...]


Given = Mapping[str, Any]


def combined(choices: Iterable[RoleChoice], joint: str = "; ") -> RoleChoice:
    """Return one choice that makes all of these; it is clear if they all are."""
    options: dict[str, Any] = {}
    several = list(choices)
    for choice in several:
        _lay_over(options, choice.options)
    phrase = joint.join(choice.phrase for choice in several if choice.phrase)
    note = "; ".join(choice.note for choice in several if choice.note)
    return RoleChoice(options, phrase, note, all(choice.clear for choice in several))


def readings(table: Sequence[Cells], given: Given, text_only: bool) -> tuple[list[Reading], bool]:
    """Return the readings of a table, best first, and whether the first one is clearly right."""
    found: list[Reading] = []
    clear = True
    possible = roles(table, given, text_only)
    broken: DataError | None = None
    for role in possible:
        try:
            settled = dict(given)
            _lay_over(settled, role.options)
            points = [[role], *_points(table, settled, text_only)]
        except DataError as error:  # its cells cannot be read so
            broken, clear = broken or error, False
            continue
        for choices in islice(product(*points), MOST_READINGS):
            options: dict[str, Any] = {}
            settling: dict[str, Any] = {}
            phrases: list[str] = []
            for choice, answers in zip(choices, points, strict=True):
                _lay_over(options, choice.options)
                is_open = len(answers) > 1 or not choice.clear
                if is_open or (choice is role and len(possible) > 1):
                    _lay_over(settling, choice.options)
                    clear = clear and choice.clear
                    phrases.append(choice.phrase)
            phrase = "; ".join(filter(None, phrases))
            notes = tuple(choice.note for choice in choices if choice.note)
            if role.quiet and notes == (role.note,):
                notes = ()
            found.append(Reading(options, settling, phrase, notes))
    if broken is not None and not found:
        raise broken
    return found[:MOST_READINGS], clear and len(found) == 1


def _lay_over(options: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            value = options.get(key, {}) | value
        options[key] = value


def _points(table: Sequence[Cells], given: Given, text_only: bool) -> Iterator[list[RoleChoice]]:
    """Yield the possible answers to each point that is open once the columns' roles are known."""
    header, by_name = [cells.name for cells in table], {cells.name: cells for cells in table}
    columns, ignore, one_hot = given["columns"], given["ignore"], given.get("one_hot")
    layout = find_columns(header, given["where"], columns, ignore, text_only, one_hot)
    if layout.split is not None:
        yield split_points(by_name[layout.split], given)
    if layout.labels is None:
        yield state_points([by_name[name] for name in layout.one_hot], given)
    else:
        names = (layout.labels, *layout.more_labels)
        yield label_points([by_name[name] for name in names], given)


def _taken(table: Sequence[Cells], given: Given, text_only: bool) -> set[str]:
    """Return the columns whose meaning is known: given, ignored, or called as it is."""
    taken = {*given["ignore"]}
    for name in given["columns"].values():
        taken.update([name] if isinstance(name, str) else name)
    names = [cells.name.strip() for cells in table]
    usual: list[str] = [m for m in MEANINGS if m not in given["columns"] and m != "labels"]
    if text_only:
        usual.remove("image") if "image" in usual else None
    if "labels" not in names and "labels" not in given["columns"]:
        usual = [meaning for meaning in usual if meaning not in ("soft", "shares", "unknown")]
    taken.update(name for name in names if name in usual)
    if not {"path", "image"} & given["columns"].keys():
        exact = [name for name in (*PATH_HEADERS, "image") if name in names and name not in taken]
        taken.update(exact[:1] if "path" not in names else ())
    taken.update(cells.name.strip() for cells in table if cells.binary)
    return taken


# Which column means what


def roles(table: Sequence[Cells], given: Given, text_only: bool) -> list[RoleChoice]:
    """Return what the columns may mean, best first."""
    found = []
    for path in path_roles(table, given, text_only):
        columns = {**given["columns"], **path.options.get("columns", {})}
        for role in _label_roles(table, {**given, "columns": columns}, text_only):
            both = combined((path, role), ", ")
            found.append(replace(both, quiet=role.quiet and not path.note))
    return found


def holds_photos(cells: Cells) -> bool:
    """Return whether every cell of a column is the name of a photo."""
    texts = cells.texts
    return bool(texts) and all(
        f".{text.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES for text in texts
    )


def path_roles(table: Sequence[Cells], given: Given, text_only: bool) -> list[RoleChoice]:
    """Return which column may name the photos."""
    columns = given["columns"]
    if {"path", "image"} & columns.keys() or any(cells.binary for cells in table):
        return [RoleChoice()]
    taken = {*given["ignore"], *(given.get("one_hot") or ())}
    for name in columns.values():
        taken.update([name] if isinstance(name, str) else name)
    free = [cells for cells in table if cells.name.strip() and cells.name.strip() not in taken]
    by_name = {cells.name.strip(): cells for cells in free}
    exact = [name for name in (*PATH_HEADERS, *["image"] * text_only) if name in by_name]
    if not exact and any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in by_name):
        return [RoleChoice()]  # a table without a header
    twins = [name for name in by_name if exact and name.lower() == exact[0] and name != exact[0]]
    if twins:
        return [_photos_in(name, clear=False) for name in (exact[0], *twins)]
    photos = [cells.name.strip() for cells in free if holds_photos(cells)]
    if exact and (exact[0] in photos or not photos):
        return [RoleChoice()]
    usual = [name for name in by_name if folded(name) in USUAL_PATHS]
    clear = True
    if exact or len(photos) != 1:
        both = [name for name in usual if name in photos]
        names = both if len(both) == 1 else photos or usual
        names = [*names, *(exact if exact and exact[0] not in ("id", *names) else [])]
    else:
        names = photos
    if not names:  # a column in which every cell differs may be the one
        clear = False
        names = [
            cells.name.strip()
            for cells in free
            if cells.texts and len(cells.texts) == cells.rows and _kind(cells) != "states"
        ]
    if not names:
        return [RoleChoice()]
    return [_photos_in(name, clear) for name in names[:3]]


def _photos_in(name: str, clear: bool) -> RoleChoice:
    options = {"columns": {"path": name}}
    return RoleChoice(options, f"photos in {name!r}", f"photos are in {name!r}", clear)


def _family(name: str) -> str:
    """Return the name of numbered columns: ``species`` of ``species_2`` and ``Species 2``."""
    return folded(re.sub(r"[\s_.\-#]*\d+$", "", name.strip()))


def state_of(cell: str) -> str:
    """Return a cell of a label's own column as it is compared: ``1`` for ``1.00`` or ``100 %``."""
    text = unicodedata.normalize("NFKC", cell).strip().lower()
    if (number := DECIMAL.fullmatch(text)) is not None:
        return number[1] or ("1" if text.startswith("1") else "0")
    return "0" if re.fullmatch(r"0\s*%", text) else text


def _kind(cells: Cells, stated: Collection[str] = ()) -> str:
    """Return what a column seems to hold: states, nothing, lists, text, numbers, or labels.

    ``stated`` are the words that the options call present or absent.
    """
    if cells.nested:
        return "lists"
    if not cells.texts:
        return "nothing"
    words = {text.lower() for text in cells.texts}
    if all(map(BOX.fullmatch, words)):
        return "text"
    if words in SEXES or all(map(DATE.fullmatch, words)):
        return "text"
    if _pair(words) is not None or (stated and words <= {*stated}):
        return "states"
    known = PRESENT | ABSENT | DASHES | NO_STATE | MINUS_ONE | {"none"}
    filled = sum(cells.counts[text] for text in cells.texts)
    right = sum(cells.counts[text] for text in cells.texts if state_of(text) in known)
    telling = any(state_of(text) in PRESENT | ABSENT | MINUS_ONE for text in cells.texts)
    telling = telling or right == filled
    if len(cells.texts) == filled > 2 and all(map(INTEGER.fullmatch, cells.texts)):
        return "text"  # numbers of the rows
    if {"1", "2"} == {*cells.texts}:
        return "states"
    if any(CODES.fullmatch(text) and not DECIMAL.fullmatch(text) for text in cells.texts):
        return "labels"
    if telling and 2 * right >= filled:
        return "states"
    numbers = all(NUMBER.fullmatch(text) for text in cells.texts)
    if numbers and all(_share(text) for text in cells.texts):
        return "shares"
    if numbers:
        return "numbers"
    lengths = [len(text) / (1 + sum(map(text.count, "|,;/"))) for text in cells.texts]
    if sum(lengths) / len(lengths) > FREE_TEXT or holds_photos(cells):
        return "text"
    marks = _marks_in(cells.texts, (*STRONG, *COMMAS, *WEAK), None)
    backed = bool(marks) and evidence(cells.texts, marks).some
    if len(cells.texts) == filled and filled > 3 and not backed:
        return "text"
    return "labels"


def _share(text: str) -> bool:
    return 0 <= _number(text) <= 1


def _number(text: str) -> float:
    """Return a number, NaN for what is none."""
    return float(text) if NUMBER.fullmatch(text) and text[-1] != "%" and "," not in text else nan


def _has_counts(cells: Cells) -> bool:
    """Return whether a column may count things: it holds small numbers, and zero or nothing."""
    whole = all(INTEGER.fullmatch(text) and 0 <= int(text) <= 100 for text in cells.texts)
    return whole and ("0" in cells.counts or "" in cells.counts)


def _has_percents(cells: Cells) -> bool:
    return len(cells.texts) > 2 and all(text[-1] in "05" for text in cells.texts)


def _label_roles(table: Sequence[Cells], given: Given, text_only: bool) -> list[RoleChoice]:
    columns, one_hot = given["columns"], given.get("one_hot")
    taken = _taken(table, given, text_only)
    free = [cells for cells in table if cells.name.strip() not in taken]
    nameless = [cells for cells in free if ROW_NUMBERS.fullmatch(cells.name)]
    free = [cells for cells in free if cells not in nameless]
    split, split_note = _split_role(free, given)
    free = [cells for cells in free if cells.name.strip() != split.get("split")]
    base: dict[str, Any] = {"columns": split} if split else {}

    def without(*read: str) -> str:
        some = {*read}
        names = [
            repr(one_line(cells.name.strip())) for cells in free if cells.name.strip() not in some
        ]
        names += [f"column {cells.place}" for cells in nameless if _has_content(cells)]
        return f"not read: {listed(names, 10)}" if names else ""

    def of_labels(names: Sequence[str], clear: bool = True, rivals: bool = False) -> RoleChoice:
        chosen: str | list[str] = names[0] if len(names) == 1 else list(names)
        shown = " and ".join(map(repr, names))
        is_plain = list(names) == ["labels"] and clear and not rivals
        options = base if is_plain else {**base, "columns": {**split, "labels": chosen}}
        note = "" if is_plain else f"labels are named in {shown}"
        notes = filter(None, (split_note, note, without(*names)))
        return RoleChoice(options, f"labels named in {shown}", "; ".join(notes), clear)

    if "labels" in columns:
        names = [columns["labels"]] if isinstance(columns["labels"], str) else columns["labels"]
        rest = "; ".join(filter(None, (split_note, without(*names))))
        return [RoleChoice(base, "", rest)]
    if one_hot is not None:
        rest = "; ".join(filter(None, (split_note, without(*(name.strip() for name in one_hot)))))
        return [RoleChoice(base, "", rest)]
    meanings = ("present", "absent", "means_unknown") if given.get("present") else ("absent",)
    stated = {w.strip().lower() for k in meanings for w in as_list(given.get(k))}
    kinds = {cells.name.strip(): _kind(cells, stated) for cells in free}
    levels = {name: record_level(name) for name in kinds}
    _refuse_long_form(table, kinds, given)
    headless = bool(kinds) and all(re.fullmatch(r"column \d+", name) for name in kinds)
    if headless and len(kinds) > 1 and "states" in kinds.values():
        raise DataError(
            f"{given['where']}: the first line names a photo, and no line says what the columns "
            "are; write their names above it, as in 'path,dog,cat'"
        )
    exact = "labels" in kinds
    several = [cells.name.strip() for cells in free if len({*cells.texts} - {"-1"}) > 2]
    named = [
        name
        for name, kind in kinds.items()
        if levels[name] < 2
        and (name in LIKELY_LABELS or DENYING.isdisjoint(name_parts(name)))
        and (name == "labels" or kind not in ("states", "shares") or name in several)
        and _is_likely(name, kind)
    ]
    others = {name: kind for name, kind in kinds.items() if name not in named}
    wanted = ("states", "shares") if given.get("soft") else ("states",)
    block = [name for name, kind in others.items() if kind in wanted and levels[name] < 2]
    by_name = {cells.name.strip(): cells for cells in free}
    words = {text.casefold() for name in block for text in by_name[name].texts}
    for name in [name for name, kind in others.items() if kind == "labels" and levels[name] < 2]:
        if words and words.issuperset(map(str.casefold, by_name[name].texts)):
            kinds[name] = others[name] = "states"  # most of its cells are words of the others
            block.append(name)
    chosen = {*block}
    block = [name for name in kinds if name in chosen]
    shares = [name for name, kind in others.items() if kind == "shares" and levels[name] < 2]
    if named and (len(block) < 2 or exact):
        beside = [n for n, k in kinds.items() if re.fullmatch(r"column \d+", n) and k != "numbers"]
        if beside and not headless:  # cells beyond the named column may be further labels
            every = [text for c in free if c.name.strip() in (*named, *beside) for text in c.texts]
            shared = len({*every}) < len(every)
            together = of_labels([*named, *beside], clear=shared)
            return [together] if shared else [together, *_named_roles(named, kinds, of_labels)]
        alike = _sharing(named, free, kinds)
        found = _named_roles(named, kinds, of_labels)
        if not alike or len(found) > 1:
            return found
        return _with_sharing(_named_roles(named, kinds, partial(of_labels, rivals=True))[0], alike)
    block = block or ([] if named else shares)
    texts = [n for n, k in kinds.items() if k in ("labels", "lists") and levels[n] < 2]
    texts = [n for n in texts if not levels[n]] or texts
    numbered = _numbered(free, texts)
    if block and not numbered:
        as_written = table[0].name == "path" and _as_written(free)
        found = _block_roles(free, kinds, block, base, split_note, without, as_written)
        if named:
            found = [of_labels(named, clear=False), *found]
        return found
    if numbered:
        return [of_labels(numbered)]
    cells = [{text.lower() for text in c.texts} for c in free if c.name.strip() in texts]
    grades = len(texts) > 1 and len({*chain.from_iterable(cells)}) <= MOST_ODD
    if grades and all(words & NONE_WORDS for words in cells):  # "none, mild, severe" of each
        return _block_roles(free, kinds, texts, base, split_note, without)
    pairs = [name for name in _columns_of_few_words(free, kinds) if not levels[name]]
    if len(pairs) > 1:
        found = _block_roles(free, kinds, pairs, base, split_note, without)
        words = {text.lower() for c in free if c.name.strip() in pairs for text in c.texts}
        return found if words <= PRESENT | ABSENT | {*stated} else [of_labels(pairs, False), *found]
    if len(texts) == 1:
        beyond = [name for name in kinds if name != texts[0]]
        alone = all(levels[name] == 2 or kinds[name] == "nothing" for name in beyond)
        return [of_labels(texts, clear=headless or (alone and not levels[texts[0]]))]
    if texts:
        return [*(of_labels([name], clear=False) for name in texts[:3]), of_labels(texts, False)]
    amounts = [c for c in free if kinds[n := c.name.strip()] == "numbers" and levels[n] < 2]
    counts = [cells.name.strip() for cells in amounts if _has_counts(cells)]
    if counts and len(counts) == len(amounts) and not all(map(_has_percents, amounts)):
        return _block_roles(free, kinds, counts, base, split_note, without)
    nothing = kinds and all(kind == "nothing" for kind in kinds.values())
    if nothing or any(cells.binary and cells.name == "labels" for cells in table):
        return [RoleChoice(base, "", split_note)]
    if [folded(name) for name in kinds] == ["id"] and "labels" in kinds.values():
        return [of_labels([*kinds], clear=False)]  # whose animal it is
    there = [f"{one_line(name)!r} ({SHOWN_KINDS.get(k, k)})" for name, k in kinds.items()]
    raise DataError(
        f"{given['where']}: no column seems to say which labels a photo has"
        f"{f', of {listed(there, 8)}' if there else ''}; write a column 'labels', or one column "
        "for each label, or say which column names labels with `--set columns.labels=NAME`"
    )


SHOWN_KINDS = {"labels": "words", "states": "yes or no", "shares": "numbers", "nothing": "empty"}


def _is_likely(name: str, kind: str) -> bool:
    """Return whether labels are often called so; of text one word of the name is enough."""
    if {folded(name), _family(name)} & LIKELY_LABELS:
        return True
    return kind in ("labels", "lists") and not LIKELY_LABELS.isdisjoint(name_parts(name))


def _numbered(free: Sequence[Cells], texts: Sequence[str]) -> list[str]:
    """Return the columns such as ``l1, l2, l3`` that name the labels of a photo together."""
    columns = [c for c in free if c.name.strip() in texts and _family(c.name) != folded(c.name)]
    families = Counter(_family(cells.name) for cells in columns)
    names = [c.name.strip() for c in columns if families[_family(c.name)] > 1]
    uses = Counter(text for c in columns for text in c.texts if c.name.strip() in names)
    return names if len(families) == 1 and any(count > 1 for count in uses.values()) else []


def _refuse_long_form(table: Sequence[Cells], kinds: Mapping[str, str], given: Given) -> None:
    """Stop where each row says of one photo and one label whether it is present."""
    names = [name for name, kind in kinds.items() if folded(name) in LONG_LABEL]
    values = [
        name
        for name, kind in kinds.items()
        if folded(name) in LONG_ACTION or (folded(name) in LONG_VALUE and kind == "states")
    ]
    paths = [cells for cells in table if holds_photos(cells)]
    paths = paths or [cells for cells in table if folded(cells.name) in USUAL_PATHS]
    denied = {
        cells.name.strip()
        for cells in table
        if folded(cells.name) in ANSWERS and any(text.casefold() in ABSENT for text in cells.texts)
    }
    for cells in table:
        unsure = cells.name.strip() in kinds and folded(cells.name) in LONG_SHARE
        numbers = [text.rstrip("% ").replace(",", ".") for text in cells.texts]
        if unsure and names and paths and len(paths[0].texts) < paths[0].rows:
            low = 50 if any(_number(text) > 1 for text in numbers) else 0.5
            if any(_number(text) < low for text in numbers):
                raise DataError(
                    f"{given['where']}: each row says of one photo and one label how sure it is; "
                    f"keep the rows whose {cells.name.strip()!r} is high enough and remove that "
                    "column, or write one row for each photo"
                )
    several = bool(paths) and len(paths[0].texts) < paths[0].rows
    if names and values and paths and (several or not denied.isdisjoint(values)):
        raise DataError(
            f"{given['where']}: each row says of one photo whether it has the label in "
            f"{names[0]!r}; write one row for each photo, or keep the rows in which {values[0]!r} "
            "says yes and remove that column"
        )


def _columns_of_few_words(free: Sequence[Cells], kinds: Mapping[str, str]) -> list[str]:
    """Return the columns most of whose cells are words that they share, whatever these are."""
    columns = [cells for cells in free if kinds[cells.name.strip()] in ("states", "labels", "text")]
    uses = Counter(word for cells in columns for word in {*map(str.casefold, cells.texts)})
    shared = {word for word, count in uses.items() if count > 1}
    found = []
    for cells in columns:
        sharing = [cells.counts[text] for text in cells.texts if text.casefold() in shared]
        filled = sum(cells.counts[text] for text in cells.texts)
        if 2 * sum(sharing) >= filled and not all(map(NUMBER.fullmatch, cells.texts)):
            found.append(cells.name.strip())
    return found if len(shared) <= MOST_SHARED else []


def _as_written(free: Sequence[Cells]) -> bool:
    """Return whether all columns hold 1, 0 or nothing, as in the tables that labelwise writes."""
    cells = set().union(*(column.counts for column in free))
    names = {folded(column.name) for column in free}
    split = len(names & {"train", "val", "valid", "test"}) > 1 or not names.isdisjoint(NO_OBJECTS)
    return (
        cells <= {"1", "0", "", "unknown"}
        and not split
        and all(record_level(column.name) < 2 for column in free)
    )


def _has_content(cells: Cells) -> bool:
    """Return whether a column without a name holds more than row numbers."""
    texts = cells.texts
    return bool(texts) and not all(INTEGER.fullmatch(text) for text in texts)


def _named_roles(named: list[str], kinds: Mapping[str, str], of_labels: Any) -> list[RoleChoice]:
    filled = [name for name in named if kinds[name] != "nothing"] or named[:1]
    filled = [n for n in filled if kinds[n] != "numbers"] or filled
    if len(filled) == 1:
        return [of_labels(filled)]
    families = Counter(map(_family, filled))
    if len(families) == 1:
        return [of_labels(filled)]
    return [*(of_labels([name], rivals=True) for name in filled[:3]), of_labels(filled)]


def _sharing(named: Sequence[str], free: Sequence[Cells], kinds: Mapping[str, str]) -> list[str]:
    """Return the columns that are not read although most of their words are labels."""
    by_name = {
        cells.name.strip(): {
            part.casefold() for text in cells.texts for part in split_text(text, (*STRONG, ","))
        }
        for cells in free
    }
    labels = set().union(*(by_name[name] for name in named))
    return [
        name
        for name, parts in by_name.items()
        if name not in named
        and kinds[name] in ("labels", "lists")
        and 2 * len(parts & labels) >= len(parts) > 0
    ]


def _with_sharing(role: RoleChoice, names: Sequence[str]) -> list[RoleChoice]:
    """Return the reading that leaves such columns out, and one by which they say the unknown."""
    found = [replace(role, phrase=f"{role.phrase}; {_left_out(names)}", clear=False)]
    if not UNSURE.isdisjoint(name_parts(names[0])) and len(names) == 1:
        columns = {**role.options.get("columns", {}), "unknown": names[0]}
        phrase = f"{role.phrase}; those in {names[0]!r} are unknown"
        found.insert(0, RoleChoice({**role.options, "columns": columns}, phrase, clear=False))
    return found


def _split_role(free: Sequence[Cells], given: Given) -> tuple[dict[str, str], str]:
    """Return the column that says the split, where another name than ``split`` does."""
    if "split" in given["columns"] or "split" in given["ignore"]:
        return {}, ""
    for cells in free:
        texts = {text.lower() for text in cells.texts}
        says = texts and texts <= SPLIT_WORDS.keys() and "train" in map(SPLIT_WORDS.get, texts)
        if says and (folded(cells.name) in SPLIT_NAMES or len(texts) > 1):
            name = cells.name.strip()
            return {"split": name}, f"the split is in {name!r}"
    return {}, ""


def _block_roles(
    free: Sequence[Cells],
    kinds: Mapping[str, str],
    block: list[str],
    base: dict[str, Any],
    split_note: str,
    without: Any,
    as_written: bool = False,
) -> list[RoleChoice]:
    """Return which columns may be labels of their own, of those that hold states."""
    by_name = {cells.name.strip(): cells for cells in free}

    def of_block(
        names: Sequence[str], phrase: str = "", clear: bool = True, every: bool = False
    ) -> RoleChoice:
        some = {*names}
        out = [name for name in by_name if name not in some]
        options: dict[str, Any] = {**base, **({"ignore": out} if out else {})}
        if every:
            options = {**base, "one_hot": list(names)}
        places = [by_name[name].place for name in names]
        at = f"column {places[0]}"
        if len(places) > 1:
            together = places[-1] - places[0] + 1 == len(places)
            at = f"columns {places[0]} to {places[-1]}" if together else f"{len(places)} columns"
        label, rest = f"{counted(len(names), 'label')} in {at}", without(*names)
        notes = filter(None, (split_note, label, rest))
        return RoleChoice(options, phrase, "; ".join(notes), clear, not (split_note or rest))

    unsure = [name for name in block if len(name) > 1 and record_level(name)]
    if as_written:  # by labelwise itself, where a column such as 'row' or 'train' is a label
        unsure = []
    unsure += _saying_none(block)
    unsure = list(dict.fromkeys([*unsure, *_other_words(by_name, block)]))
    within, plain = {*block}, [name for name in kinds if not record_level(name)]
    empty = [n for n, kind in kinds.items() if kind == "nothing" and record_level(n) < 2]
    texts = [name for name in plain if kinds[name] == "labels" and name not in within]
    texts += [n for n, k in kinds.items() if k == "lists"]
    numbers = [
        name
        for name in plain
        if name not in within
        and (kinds[name] == "shares" or (kinds[name] == "numbers" and _has_counts(by_name[name])))
    ]
    doubted = {*unsure}
    sure = [name for name in block if name not in doubted]
    open_columns = [*(unsure if sure else []), *numbers]
    labels = {*(sure or unsure), *empty}
    sure = [name for name in by_name if name in labels]
    if not open_columns:
        found = [of_block(sure, _left_out(texts), clear=not texts)]
    else:
        labels |= {*open_columns}
        every = [name for name in by_name if name in labels]
        found = [
            of_block(sure, _left_out([*open_columns, *texts]), clear=False),
            of_block(every, f"labels too: {listed([*map(repr, open_columns)], 5)}", False, True),
        ]
    for text in texts[:2] if len(sure) <= 2 else ():
        options = {**base, "columns": {**base.get("columns", {}), "labels": text}}
        note = f"labels are named in {text!r}; {without(text)}"
        found.insert(0, RoleChoice(options, f"labels named in {text!r}", note, clear=False))
    return found


def _saying_none(labels: Sequence[str]) -> list[str]:
    """Return the columns that may say that a photo has none of the other labels."""
    uses = Counter(part for label in labels for part in {*name_parts(label)})
    found = []
    for label in labels:
        text = label.replace("_", " ").casefold()
        alone = len(text) > 3 and all(uses[part] == 1 for part in name_parts(label))
        if alone and label not in MEANINGS and text not in ABSENT and no_label(text):
            found.append(label)
    return found


def _left_out(names: Sequence[str]) -> str:
    are = "is not a label" if len(names) == 1 else "are not labels"
    return f"{listed([*map(repr, names)], 5)} {are}" if names else ""


def _other_words(by_name: Mapping[str, Cells], block: Sequence[str]) -> list[str]:
    """Return columns of the block that say present and absent in words that no other one uses."""
    telling = PRESENT | ABSENT | DASHES
    numbers = {"1", "0", "true", "false"}
    words_of = {}
    for name in block:
        words = {state_of(text) for text in by_name[name].texts} & telling
        words_of[name] = {"1"} if words & numbers else words
    uses = Counter(word for words in words_of.values() for word in words)
    common = max(uses.values(), default=0)
    main = {word for word, count in uses.items() if count == common}
    group = set().union(*(words for words in words_of.values() if words & main))
    return [name for name, words in words_of.items() if words and not words & group]


# What the cells of a label's own column mean


def state_points(own: Sequence[Cells], given: Given) -> list[RoleChoice]:
    """Return what the cells of one-hot columns may mean."""
    uses: Counter[str] = Counter()
    first: dict[str, Cells] = {}
    for cells in own:
        for text, count in cells.counts.items():
            word = text.strip().lower()
            uses[word] += count
            first.setdefault(word, cells)
    stated: dict[str, list[str]] = {
        "present": as_list(given.get("present")),
        "absent": as_list(given.get("absent")),
        "means_unknown": as_list(given.get("means_unknown")),
    }
    settled = {word.strip().lower() for words in stated.values() for word in words}
    plain = {word: state_of(word) for word in uses if word not in settled}
    if (pair := _pair({state for state in plain.values() if state})) is not None:
        plain |= {word: "10"[state == pair[1]] for word, state in plain.items() if state}
    present = [word for word, state in plain.items() if state in PRESENT]
    absent = [word for word, state in plain.items() if state in ABSENT]
    dashes = [word for word in plain if word in DASHES]
    unknown = [word for word, state in plain.items() if state in NO_STATE]
    ticks = [word for word in present if word in TICKS]
    minus = [word for word in plain if word in MINUS_ONE]
    crosses = ["x"] if "x" in present and {*ticks} - {"x", "*"} else []
    present = [word for word in present if word not in crosses]
    known = {*crosses, *present, *absent, *dashes, *unknown, *minus, ""}
    odd = [word for word in plain if word not in known]
    points: list[list[RoleChoice]] = []
    if dashes and present and len(ticks) == len(present) and not absent:
        absent, dashes = [*absent, *dashes], []
    odd += dashes
    blanks = uses[""] - sum(cells.nulls for cells in own)
    nothing = [word for word in plain if word in MISSING and (word or blanks)]
    if nothing and not (absent or minus or stated["absent"]):
        if present and len(ticks) == len(present) and "" in nothing:
            absent = [*absent, ""]
        elif present and not odd and {*unknown} <= {*nothing}:
            unknown, shown = [], " and ".join(word or "an empty cell" for word in nothing)
            points.append(
                [
                    RoleChoice({"means_unknown": nothing}, f"{shown} means unknown"),
                    RoleChoice({"absent": nothing}, f"{shown} means absent"),
                ]
            )
    base: dict[str, Any] = {}
    for key, words in (("present", present), ("absent", absent), ("means_unknown", unknown)):
        new = [word for word in words if word not in STATES or (not word and key == "absent")]
        if new:
            base[key] = [*stated[key], *new]
    if minus and given.get("minus_one") is None:
        points.append(
            [RoleChoice({"minus_one": m}, f"-1 means {m}") for m in ("unknown", "absent")]
        )
    if crosses:  # beside a tick they may say the opposite
        points.append(
            [
                RoleChoice({"absent": [*absent, "x"]}, "'x' means absent", clear=False),
                RoleChoice({"present": [*present, "x"]}, "'x' means present", clear=False),
            ]
        )
    if odd:
        words = [word for word in plain if word not in unknown and (word or not absent)]
        marks = {*words} in ({"o", "x"}, {"1", "2"})
        two = tuple(words) if len(words) == 2 and (marks or len(odd) > 1) else None
        two = (odd[0], "") if odd == [word for word in words if word] and len(odd) == 1 else two
        unusual = {*words}.isdisjoint(NONE_WORDS)
        if len(words) == len(odd) == 3 and unusual:  # words of a language that is not known
            two = tuple(sorted(words, key=uses.__getitem__, reverse=True))
        found = _odd_states(odd, base, stated, given, plain, first, two)
        if two is None and len(found) == 3 and {*odd} == {*filter(None, plain)} < {*plain}:
            shown = listed([*map(repr, odd)], 5)  # initials or dates where something was seen
            present_too = f"{shown} mean present, an empty cell absent"
            seen = RoleChoice({"present": [*odd], "absent": [""]}, present_too, clear=False)
            found = [seen, *found[:2]]
        points.append(found)
    usual = RoleChoice(base, note=_state_note(base, uses))
    return [combined((usual, *choices)) for choices in product(*points)]


def _pair(words: set[str]) -> tuple[str, str] | None:
    return next((pair for pair in PAIRS if words == {*pair}), None)


def as_list(value: Any) -> list[str]:
    """Return an option that may be one text or several as a list."""
    return [value] if isinstance(value, str) else list(value or ())


def _odd_states(
    odd: Sequence[str],
    base: Mapping[str, Any],
    stated: Mapping[str, Any],
    given: Given,
    plain: Mapping[str, str],
    first: Mapping[str, Cells],
    opposite: Sequence[str] | None = None,
) -> list[RoleChoice]:
    """Return what cells may mean that are not usual words.

    ``opposite`` are the only two, and perhaps a rarer third one, which means unknown.
    """
    shares = [word for word in odd if _share(word)]
    if given.get("soft"):  # the columns' reader names the row of a number outside 0 to 1
        odd = [word for word in odd if isnan(_number(word))]
        if not odd:
            return [RoleChoice()]
    if len(shares) == len(odd):
        shown = listed([*map(repr, odd)], 3)
        soft = RoleChoice({"soft": True}, f"{shown}: shares between 0 and 1", clear=False)
        if len(odd) > 2:
            return [soft]
        unknown = [*base.get("means_unknown", stated["means_unknown"]), *odd]
        return [soft, RoleChoice({"means_unknown": unknown}, f"{shown}: unknown", clear=False)]
    numbers = [word for word in odd if NUMBER.fullmatch(word)]
    counts = all(INTEGER.fullmatch(word) and 0 <= int(word) <= 100 for word in numbers)
    few = counts and ("0" in plain or "" in plain or len(odd) == 1)
    if (numbers and not few) or len(odd) > MOST_ODD + len(numbers):
        shown = listed([*map(repr, odd)], 3)
        raise DataError(
            f"{given['where']}: the column {first[odd[0]].name.strip()!r} holds cells that say "
            f"neither yes nor no, such as {shown}; write 1, 0 or nothing, or keep the columns "
            "that are not labels apart with `--set ignore=[COLUMN]`"
        )
    shown = listed([*map(repr, odd)], 5)
    verb = "means" if len(odd) == 1 else "mean"
    if opposite is not None:
        one, other, *rare = opposite
        third = {"means_unknown": [*base.get("means_unknown", ()), *rare]} if rare else {}
        last = f", {rare[0]!r} unknown" if rare else ""
        return [
            RoleChoice(
                {"present": [yes], "absent": [no], **third},
                f"{yes!r} means present, {no or 'empty'!r} absent{last}",
                clear=False,
            )
            for yes, no in ((one, other), (other, one))
            if yes
        ]

    def meaning(parts: Sequence[tuple[str, str, Sequence[str]]]) -> RoleChoice:
        options = {key: [*base.get(key, stated[key]), *words] for key, _, words in parts if words}
        phrase = "; ".join(f"{listed([*map(repr, ws)], 5)}: {say}" for _, say, ws in parts if ws)
        return RoleChoice(options, phrase, clear=False)

    heads = {word: re.split(r"[^\w✓✔+-]+", word.strip("([{ "), maxsplit=1)[0] for word in odd}
    yes = [word for word in odd if heads[word] in PRESENT or {*word} <= {"x"}]
    no = [word for word in odd if heads[word] in ABSENT or word in NONE_WORDS - DASHES]
    if no and not yes and len(odd) > 2:
        yes = [word for word in odd if word not in no]
    if yes or no:
        rest = ("means_unknown", "unknown", [word for word in odd if word not in (*yes, *no)])
        qualified = meaning([("present", "present", yes), ("absent", "absent", no), rest])
        return [qualified, meaning([("means_unknown", "unknown", odd)])]
    meanings = [("means_unknown", "unknown"), ("present", "present"), ("absent", "absent")]
    if all(INTEGER.fullmatch(word) for word in odd):
        meanings = [("present", "present"), ("means_unknown", "unknown")]
    elif all(word in DASHES for word in odd):
        meanings = [("means_unknown", "unknown"), ("absent", "absent")]
    return [
        RoleChoice(
            {key: [*base.get(key, stated[key]), *odd]}, f"{shown} {verb} {word}", clear=False
        )
        for key, word in meanings
    ]


def _state_note(base: Mapping[str, Any], uses: Mapping[str, int]) -> str:
    parts = []
    for key, meaning in (("present", "present"), ("absent", "absent")):
        if words := base.get(key):
            shown = ", ".join(one_line(word) or "empty" for word in words if word != meaning)
            parts += [f"{shown} = {meaning}"] if shown else []
    notes = [", ".join(parts)] if parts else []
    for word in base.get("means_unknown", ()):
        if word and uses.get(word):
            are = "is" if uses[word] == 1 else "are"
            notes.append(f"{counted(uses[word], 'cell')} with {one_line(word)} {are} unknown")
    return "; ".join(notes)


# What separates the labels of a cell, and which words are none


def label_points(columns: Sequence[Cells], given: Given) -> list[RoleChoice]:
    """Return what may separate the labels of a cell, and what their words may mean."""
    counts: Counter[str] = Counter()
    for cells in columns:
        counts.update({text: count for text, count in cells.counts.items() if text})
    nested = bool(columns) and all(cells.nested for cells in columns)
    numbers = bool(columns) and all(cells.number for cells in columns)
    no_list = {text for text in counts if text.casefold() in WORDS and text[:1] not in "[{(<"}
    for text in () if nested or given.get("separator") else counts:
        if JSON_LIKE.match(text) and written_or_plain(text) is None:
            raise DataError(
                f"{given['where']}: cells hold JSON that does not say plainly which labels are "
                f"present, such as {text!r:.80}; write the names of the present labels alone"
            )
        if MARKUP.search(text):
            raise DataError(
                f"{given['where']}: cells hold the signs of a web page, such as {text!r:.80}; "
                "write the names as a person reads them, such as '&' for '&amp;'"
            )
    written = not nested and is_written_list({*counts} - no_list)
    if written:
        lists = {text: written_or_plain(text) or [text] * (text in no_list) for text in counts}
        marks = [RoleChoice()]
    elif nested or numbers:
        lists, marks = {text: [text] for text in counts}, [RoleChoice()]
    else:
        lists = {}
        marks = mark_points(counts, given)
    found = []
    for mark in marks:
        separator = mark.options.get("separator") or given.get("separator") or "|"
        parts: Counter[str] = Counter()
        for text, count in counts.items():
            for part in lists.get(text) or ([] if lists else split_text(text, separator)):
                parts[spelled(part)] += count
        if not (lists or given.get("separator")):
            _refuse_beside(parts, given)
        if given.get("names") is not None or given.get("classes"):
            found.append(mark)
            continue
        words = word_points(parts, given, numbers)
        joined = [] if nested or numbers or written else blank_points(counts, parts, mark, given)
        alike = alike_points(parts, given)
        found += map(combined, product([mark], words, alike, joined or [RoleChoice()]))
    return found


# A number beside a name: "dog (2)", "dog: 0.93", "dog=1", "dog 93 %", "2x dog"; a list's own signs.
AMOUNT = re.compile(
    r"(?P<name>.*[^\W\d].*?)\s*(?:\(\s*[x×]?\s*\d+(?:[.,]\d+)?\s*%?\s*\)|[:=]\s*\d+(?:[.,]\d+)?\s*%?"
    r"|\s\d+(?:[.,]\d+)?\s*%)|\d+\s*[x×]?\s+(?P<counted>[^\W\d].*)"
)
NEGATED = re.compile(
    r"(?:not?|kein|keine|pas de|sin|ohne|without|geen|bez|non) +(.+)|[!¬~-] ?(\w.*)"
)
EITHER = re.compile(r" (?:or|oder|ou|o|eller|vagy|lub|albo|nebo|или|або|atau|veya) | ?/ ?\? ?")
JSON_LIKE = re.compile(r"""\s*[\[{].*['"]\s*:""", re.DOTALL)
MARKUP = re.compile(r"&(?:[a-z]+|#\d+);|</\w+>")
PERHAPS = re.compile(
    r"(?:probably|possibly|maybe|perhaps|likely|prob\.|poss\.|wahrscheinlich|vermutlich|evtl\.?"
    r"|vielleicht|peut-être|probablement|probablemente|quizás|forse|cf\.|cfr\.?|aff\.) *(.+)",
    re.IGNORECASE,
)
BULLET = re.compile(r"(?:[-*•]|\d+[.)])\s+\S")


def _refuse_beside(parts: Iterable[str], given: Given) -> None:
    """Stop where names stand beside numbers, the signs of a list, yes and no, or a negation."""
    found = {part: AMOUNT.fullmatch(part) for part in parts}
    amounts = {part: match["name"] or match["counted"] for part, match in found.items() if match}
    bullets = [part for part in found if BULLET.match(part)]
    states = PRESENT | ABSENT | NO_STATE
    stated = [part for part in found if re.split(r"[:=]\s*", part)[-1].lower() in states]
    denied = [p for p in found if (no := NEGATED.fullmatch(p)) and (no[1] or no[2]) in found]
    units = {part: [unit.strip(" ?") for unit in EITHER.split(part)] for part in found}
    uses = Counter(unit for parts in units.values() for unit in parts)
    either = [
        part
        for part, names in units.items()
        if len(names) > 1 and any(name in found or uses[name] > 1 for name in names)
    ]
    perhaps = [p for p in found if (word := PERHAPS.fullmatch(p)) and word[1] in found]
    photos = [p for p in found if Path(p).suffix.lower() in IMAGE_SUFFIXES]
    several = len({*amounts.values()}) < len(amounts) or len(amounts) > 2
    if several and 2 * len(amounts) >= len(found):
        what, shown = "a number beside a label", next(iter(amounts))
    elif len(bullets) > 1 and 2 * len(bullets) >= len(found):
        what, shown = "the signs of a list", bullets[0]
    elif stated and len(stated) == sum(":" in part or "=" in part for part in found):
        what, shown = "yes or no beside a label", stated[0]
    elif denied:
        what, shown = "a label that is denied", denied[0]
    elif perhaps:
        what, shown = "a label that is not certain", perhaps[0]
    elif photos:
        what, shown = "the name of a photo", photos[0]
    elif either:
        what, shown = "labels of which one is meant", either[0]
    else:
        return
    raise DataError(
        f"{given['where']}: cells hold {what}, such as {shown!r:.80}; write the present labels "
        "alone; if it belongs to their names, say what separates them with `--set separator=WORD`"
    )


def is_written_list(texts: Iterable[str]) -> bool:
    """Return whether every cell that is not empty is a list in brackets."""
    texts = [text for text in texts if text]
    found = [text for text in texts if re.match(BRACKETED, text, re.DOTALL)]
    objects = all(text[0] == "{" for text in found)  # as Label Studio writes several choices
    whole = len(found) == len(texts) or objects
    return bool(found) and whole and all(written_or_plain(text) is not None for text in texts)


def split_text(text: str, separator: str | Sequence[str]) -> list[str]:
    """Return the parts of a cell that are not empty."""
    marks = (separator,) if isinstance(separator, str) else tuple(separator)
    return [part.strip() for part in _at_marks(marks).split(text) if part.strip()]


@lru_cache
def _at_marks(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len)[::-1])))


@dataclass(frozen=True)
class CellEvidence:
    """How well the parts of cells are labels elsewhere: of all cells with a mark, which share."""

    full: float
    some: bool
    alone: bool


def evidence(texts: Iterable[str], separator: Sequence[str]) -> CellEvidence:
    """Return how many cells with a mark have only parts that another cell has too."""
    lists = {text: {*split_text(text, separator)} for text in texts}
    uses = Counter(part for parts in lists.values() for part in parts)
    alone = {text for text, parts in lists.items() if parts == {text}}
    marked = [parts for text, parts in lists.items() if text not in alone]
    backed = [[part in alone or uses[part] > 1 for part in parts] for parts in marked]
    full = sum(map(all, backed)) / max(len(backed), 1)
    by_itself = any(part in alone for parts in marked for part in parts)
    return CellEvidence(full, any(map(any, backed)), by_itself)


def mark_points(counts: Mapping[str, int], given: Given) -> list[RoleChoice]:
    """Return what may separate the labels in a column of text, best first.

    A strong mark separates; a comma or a weak mark if the parts of cells are labels elsewhere.
    Where labels are separated already, only what is left between two marks is looked at.
    """
    if given.get("separator"):
        return [RoleChoice()]
    texts = [text for text in counts if not no_label(text)]
    levels = given.get("levels")
    if (names := given.get("names")) is not None:
        return _marks_of_names(texts, (*STRONG, *COMMAS, *WEAK, *SOFT), {str(n) for n in names})
    strong = _marks_in(texts, STRONG, levels)
    units = [*{unit for text in texts for unit in split_text(text, strong)}] if strong else texts
    units = [unit for unit in units if not no_label(unit)]
    commas = _marks_in(units, COMMAS, levels)
    weak = _marks_in(units, WEAK, levels)
    if not strong and any(text.startswith("#") for text in texts) and "#" not in weak:
        weak.append("#")
    soft = [mark for mark in _marks_in(units, SOFT, levels) if evidence(units, [mark]).some]
    soft += _other_marks(units, {*STRONG, *COMMAS, *SOFT, *WEAK, levels})
    rest = [*commas, *weak, *soft]
    if not rest:
        return [RoleChoice()] if strong in ([], ["|"]) else [_by_marks(texts, strong)]
    by_commas = evidence(units, commas)
    if commas and (weak or soft) and by_commas.full >= 0.5 and by_commas.alone:
        strong = [*strong, *commas]
        units = [*{unit for text in units for unit in split_text(text, commas)}]
        commas, rest = [], [*weak, *soft]
    backed = evidence(units, rest)
    sure = backed.full == 1 and (backed.alone or len(strong) > 0)
    if not strong and rest == commas:
        sure = backed.full >= 0.5 and (backed.alone or backed.full == 1)
    if sure:
        return [_by_marks(texts, [*strong, *rest])]
    if strong and not backed.some:
        return [_by_marks(texts, strong, len(commas) == 0)] + (
            [_by_marks(texts, [*strong, *rest], False)] if commas else []
        )
    found = [_by_marks(texts, [*strong, *rest], False)]
    if rest == ["/"] and not strong:
        phrase = "levels: a/b means a too"
        found.append(RoleChoice({"levels": "/"}, phrase, phrase, False))
    if commas and len(rest) > len(commas):
        found.append(_by_marks(texts, [*strong, *commas], False))
    found.append(_by_marks(texts, strong or ["|"], False))
    return found


def _other_marks(units: Sequence[str], known: Collection[str | None]) -> list[str]:
    """Return further signs, and short words, between parts that are all labels by themselves."""
    alone = {*units}
    signs = {sign for unit in units for sign in re.findall(r"[^\w\s().'\"]+", unit)} - {"-"}
    words = {word for unit in units for word in re.findall(r"(?<=\s)\w{1,4}(?=\s)", unit)}
    links = {f" {word} " for word in words - alone if not EITHER.fullmatch(f" {word} ")}
    found = []
    for mark in sorted((signs | links).difference(known)):
        parts = [split_text(unit, mark) for unit in units if mark in unit]
        if any(len(cells) > 1 and alone.issuperset(cells) for cells in parts):
            found.append(mark)
    return found


def _marks_in(texts: Iterable[str], marks: Sequence[str], but: str | None) -> list[str]:
    inside = [text.strip().strip("#") for text in texts]
    return [mark for mark in marks if mark != but and any(mark in text for text in inside)]


def _by_marks(texts: Iterable[str], marks: Sequence[str], clear: bool = True) -> RoleChoice:
    """Return the choice that these marks separate labels; a bar that no cell holds: that none."""
    value: str | list[str] = marks[0] if len(marks) == 1 else list(marks)
    if list(marks) == ["|"]:
        has_bar = any("|" in text for text in texts)
        phrase = "labels separated by '|'" if has_bar else "one label in each cell"
        return RoleChoice({"separator": "|"}, phrase, "", clear)
    shown = " or ".join(MARK_NAMES.get(mark, repr(mark)) for mark in marks)
    note = f"labels are separated by {shown}"
    return RoleChoice({"separator": value}, f"labels separated by {shown}", note, clear)


def _marks_of_names(
    texts: Sequence[str], marks: Sequence[str], names: set[str]
) -> list[RoleChoice]:
    """Return the mark under which every part is one of the given names."""
    for mark in ("|", *marks):
        if all(part in names for text in texts for part in split_text(text, mark)):
            return [RoleChoice() if mark == "|" else RoleChoice({"separator": mark})]
    return [RoleChoice()]


def blank_points(
    texts: Iterable[str], parts: Mapping[str, int], mark: RoleChoice, given: Given
) -> list[RoleChoice]:
    """Return choices where blanks or underscores seem to join labels into one."""
    if given.get("separator") or mark.options or any("|" in text for text in texts):
        return []
    for joint in (" ", "_", "-"):
        spaced = {part.replace(joint, " "): part for part in parts}
        names = [name for name in spaced if joint == " " or " " not in spaced[name]]
        if joint != " " and not any(joint in part for part in parts):
            continue
        joined = names_of_joined_labels(names)
        alone = {word for name in joined for word in name.split()} & {*parts}
        if joint == " " and all(re.fullmatch(r"[\d ]+", part) for part in parts):
            joined = [part for part in parts if " " in part]
        words = [word for name in spaced for word in {*name.split()} if " " in name]
        shared = {word for word, count in Counter(words).items() if count > 1} & {*parts}
        held = [name for name in spaced if " " in name and shared & {*name.split()}]
        if joint == " " and not joined and 2 * len(held) >= sum(" " in name for name in spaced) > 0:
            joined = held
        spaced_words = {word for name in spaced if " " in name for word in name.split()}
        several = sum(" " in name for name in spaced)
        numeric = all(re.fullmatch(r"[\d ]+", part) for part in parts)
        thousands = all(re.fullmatch(r"\d{1,3}( \d{3})*", part) for part in parts)
        if joint == " " and ((several > 1 and spaced_words <= {*parts}) or numeric > thousands):
            return [RoleChoice({"separator": joint}, "", "labels are separated by a blank")]
        if joined and (joint == " " or alone):
            shown = MARK_NAMES.get(joint, repr(joint))
            return [
                RoleChoice({"separator": joint}, f"labels separated by {shown}", clear=False),
                RoleChoice({"separator": "|"}, "one label in each cell", clear=False),
            ]
    holding = [(name, word) for name in parts for word in name.split() if word in parts]
    for name, word in [pair for pair in holding if pair[0] != pair[1]][:1]:
        one = f"{name!r} is read as one label, and {word!r} as another"
        return [RoleChoice(note=f"{one}; give `--set 'separator= '` if blanks part labels")]
    return []


def word_points(parts: Mapping[str, int], given: Given, numbers: bool) -> list[RoleChoice]:
    """Return what words such as ``none``, ``nan`` and ``?`` may mean."""
    if given.get("means_none") is not None or given.get("means_unknown") is not None:
        return [RoleChoice()]
    codes = [part for part in parts if NUMBER.fullmatch(part) and part != "-1"]
    classes = len(codes) > 2 or numbers or any(map(CODES.fullmatch, parts))
    others = [code for code in codes if code.strip("0.")]
    small = not others or any(len(code) == 1 or not code.isdigit() for code in others)
    found: dict[str, list[str]] = {"none": [], "unknown": []}
    for part in parts:
        word = part.casefold()
        if (word in ("0", "0.0") and classes and small) or (word == "-1" and numbers):
            continue
        if meaning := no_label(part):
            found[meaning].append(part)
    every = [*found["none"], *found["unknown"]]
    if not every:
        return [RoleChoice()]
    shown = ", ".join(f"{word!r} ({counted(parts[word], 'row')})" for word in every[:5])
    verb = "means" if len(every) == 1 else "mean"
    choices = []
    if found["none"] and found["unknown"]:
        options = {f"means_{key}": words for key, words in found.items()}
        none, unknown = (listed([*map(repr, words)], 3) for words in found.values())
        phrase = f"{none} = none of the labels, {unknown} = unknown"
        choices.append(RoleChoice(options, phrase, phrase, False))
    order = ("none", "unknown") if found["none"] else ("unknown", "none")
    for meaning in order:
        means = "none of the labels" if meaning == "none" else "unknown"
        phrase = f"{shown} {verb} {means}"
        choices.append(RoleChoice({f"means_{meaning}": every}, phrase, phrase, False))
    signs = {word for word in every if not any(map(str.isalnum, word))}
    if not all(word in signs or word.casefold() in SURELY_NO_LABEL for word in every):
        are = "is a label" if len(every) == 1 else "are labels"
        choices.append(RoleChoice({"means_none": []}, f"{shown} {are}", "", False))
    return choices


def alike_points(parts: Mapping[str, int], given: Given) -> list[RoleChoice]:
    """Return whether labels that differ only in case or in the form of letters are one."""
    groups = alike_names(parts) if given.get("alike") is None else []
    if not groups:
        return [RoleChoice()]
    shown = "; ".join(" and ".join(map(repr, group)) for group in groups[:3])
    return [
        RoleChoice({"alike": "one"}, f"one label: {shown}", "", False),
        RoleChoice({"alike": "several"}, f"labels that differ: {shown}", "", False),
    ]


def split_points(cells: Cells, given: Given) -> list[RoleChoice]:
    """Return what the words of a split column may mean."""
    stated = given.get("splits") or {}
    words = [word for word in cells.counts if word not in stated]
    strange = [word for word in words if word.lower() not in SPLIT_WORDS]
    if not strange:
        return [RoleChoice()]
    name = cells.name.strip()
    without = {"ignore": [*given["ignore"], name]}
    if "split" in given["columns"]:
        without = {}
    ignored = RoleChoice(without, f"{name!r} is not read", f"not read: {name!r}", False)
    usable = any(word.lower() in SPLIT_WORDS for word in words if word) or stated
    if not usable and {*strange} - {""} <= {"0", "1", "2"}:
        order = dict(zip(sorted(strange), ("train", "val", "test"), strict=False))
        if {*strange} == {"0", "1"}:
            order = {"0": "train", "1": "test"}
        order |= {"": OUT} if "" in strange else {}
        shown = ", ".join(f"{word or 'empty'} = {split}" for word, split in order.items())
        return [RoleChoice({"splits": order}, shown, shown, False), *([ignored] if without else [])]
    shown = listed([repr(word) if word else "an empty cell" for word in strange], 4)
    rows = counted(sum(cells.counts[word] for word in strange), "row")
    meant = {word: get_close_matches(word.lower(), SPLIT_WORDS, 1, 0.75) for word in strange}
    if all(meant.values()):
        order = {word: SPLIT_WORDS[near[0]] for word, near in meant.items()}
        shown = ", ".join(f"{word} = {split}" for word, split in order.items())
        return [RoleChoice({"splits": order}, shown, shown, False), *([ignored] if without else [])]
    found = [
        RoleChoice(
            {"splits": {**stated, **dict.fromkeys(strange, OUT)}},
            f"rows whose split is {shown} are left out",
            f"{rows} whose split is {shown} {'is' if rows == '1 row' else 'are'} left out",
            False,
        )
    ]
    if not usable:
        found = []
    elif strange == [""]:
        found.append(
            RoleChoice({"splits": {**stated, "": "train"}}, "an empty split is train", "", False)
        )
    return [*found, *([ignored] if without else [])] or [RoleChoice()]


def reads_as_columns(names: Sequence[str]) -> bool:
    """Return whether each of these is read as a label in a table with a column for each.

    >>> [reads_as_columns([name]) for name in ("dog", "row", "group", "patient")]
    [True, True, False, False]
    >>> reads_as_columns(["cat", "dog"])
    True
    """
    beside = [name for name in ("dog", "cat") if name not in names][:1]
    header = ("path", *beside, *names, "split")
    rows = {"path": ("1.png", "2.png"), "split": ("train", "test")}
    table = [
        Cells(column, place, Counter(rows.get(column, ("1", "0"))))
        for place, column in enumerate(header, 1)
    ]
    given: dict[str, Any] = {"where": "", "columns": {}, "ignore": []}
    try:
        found, clear = readings(table, given, text_only=True)
        options = {**given, **found[0].options}
        columns, ignore = options["columns"], options["ignore"]
        layout = find_columns(header, "", columns, ignore, True, one_hot=options.get("one_hot"))
    except DataError:
        return False
    return clear and layout.one_hot == (*beside, *names)


def reads_as_lists(names: Sequence[str], several: bool, nested: bool) -> bool:
    """Return whether these labels in lists are read as they are, without a question.

    ``several``: a photo may have more than one, separated by ``|`` unless they are ``nested``.

    >>> [reads_as_lists(["dog", name], True, False) for name in ("hot dog", "none", "a, b")]
    [True, False, False]
    """
    odd = () if nested else [n for n in names if "|" in n or re.match(BRACKETED, n, re.DOTALL)]
    counts = Counter(names) + Counter(["|".join(names)] * (several and not nested))
    try:
        points = label_points([Cells("labels", 1, counts, nested=nested)], {"where": ""})
    except DataError:
        return False
    plain = points[0].options in ({}, {"separator": "|"})
    return len(points) == 1 and points[0].clear and plain and not odd


def as_setting(key: str, value: Any) -> str:
    """Return an option as it is typed in a shell: ``--set 'separator=;'``."""
    if isinstance(value, dict) and key == "columns":
        return " ".join(as_setting(f"{key}.{name}", column) for name, column in value.items())
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = value
        try:
            if parse_assignments([f"{key}={text}"])[key] != value or "\n" in value:
                text = json.dumps(value, ensure_ascii=False)
        except SettingsError:
            text = json.dumps(value, ensure_ascii=False)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return f"--set {shlex.quote(f'{key}={text}')}"
