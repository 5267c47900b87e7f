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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, islice, product
from math import isnan, nan
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from labelwise.base.text import counted, listed, one_line
from labelwise.base.yaml_values import parse_assignments
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables.columns import (
    BRACKETED,
    LISTS,
    PARENTHESES,
    MinusOne,
    alike_names,
    names_of_joined_labels,
    spelled,
    written_or_plain,
)
from labelwise.tables.options import AS_IT_IS, OUT, ROW_NUMBERS, TableOptions, find_columns
from labelwise.tables.table import SPLIT_WORDS
from labelwise.tables.words import (
    ABSENT,
    ANSWERS,
    CORRECTED,
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
    RECORDS,
    SCENES,
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
WEAK = ("/", "+", "#", "&", ">", "→", " and ", " und ", " et ", " y ", " und/oder ")
MARK_NAMES = {"\t": "a tab", "\n": "a line end", " ": "a blank"}
NUMBER = re.compile(r"[-+]?[0-9]*[.,]?[0-9]+(e[-+]?[0-9]+)?\s*%?", re.IGNORECASE)
CODES = re.compile(r"\d+([ |,;]+\d+)+")  # class numbers, several in a cell
INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"([01])(?:[.,]0*)?(?:e[-+]?0+)?|([01])00?\s*%")
OTHER_NUMBER = re.compile(r"[2-9]|[1-8]\d")  # in a column of 1 and 0
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2})?")
BOX = re.compile(r"[\[(]?-?\d+(\.\d+)?([,; ]+-?\d+(\.\d+)?){3}[\])]?")
BITS = {"-1", "0", "1"}
SEXES = ({"m", "f"}, {"m", "w"}, {"male", "female"})


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
    def filled(self) -> int:
        """How many cells are not empty."""
        return self.counts.total() - self.counts[""]

    @property
    def texts(self) -> list[str]:
        return [text for text in self.counts if text]

    @property
    def holds_photos(self) -> bool:
        """Whether every cell is the name of a photo."""
        ends = [text.rpartition(".")[2].lower() for text in self.texts]
        return bool(ends) and all(f".{end}" in IMAGE_SUFFIXES for end in ends)

    @property
    def counts_things(self) -> bool:
        """Whether it holds small numbers, and zero or nothing."""
        whole = all(INTEGER.fullmatch(text) and 0 <= int(text) <= 100 for text in self.texts)
        return whole and ("0" in self.counts or "" in self.counts)

    def add(self, column: pa.Array) -> None:
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
class Look:
    """The columns of a table, what is ``given`` of its reading, and what its format says.

    A ``text_only`` format cannot hold the bytes of images; ``classes``: it states class names.
    """

    where: str
    columns: Sequence[Cells]
    given: TableOptions
    text_only: bool = True
    classes: bool = False


@dataclass(frozen=True)
class RoleChoice:
    """One answer to an open point: options, how a question and how a note names it."""

    options: TableOptions = AS_IT_IS
    phrase: str = ""
    note: str = ""
    clear: bool = True
    quiet: bool = False  # the note is only for a reading that has another one


@dataclass(frozen=True)
class Reading:
    """A complete reading: all its options, and those that settle what is open."""

    options: TableOptions
    settling: TableOptions
    phrase: str
    notes: tuple[str, ...]


def combined(choices: Iterable[RoleChoice], joint: str = "; ") -> RoleChoice:
    """Return one choice that makes all of these; it is clear if they all are."""
    options, several = AS_IT_IS, list(choices)
    for choice in several:
        options = options.over(choice.options)
    phrase = joint.join(choice.phrase for choice in several if choice.phrase)
    note = "; ".join(choice.note for choice in several if choice.note)
    return RoleChoice(options, phrase, note, all(choice.clear for choice in several))


def readings(look: Look) -> tuple[list[Reading], bool]:
    """Return the readings of a table, best first, and whether the first one is clearly right."""
    found: list[Reading] = []
    clear = True
    possible = [
        replace(combined((path, role), ", "), quiet=role.quiet and not path.note)
        for path in _path_roles(look)
        for role in _label_roles(replace(look, given=look.given.over(path.options)))
    ]
    broken: DataError | None = None
    for role in possible:
        try:
            settled = replace(look, given=look.given.over(role.options))
            points = [[role], *_points(settled)]
        except DataError as error:  # its cells cannot be read so
            broken, clear = broken or error, False
            continue
        for choices in islice(product(*points), MOST_READINGS):
            open_points = [
                choice
                for choice, answers in zip(choices, points, strict=True)
                if len(answers) > 1 or not choice.clear or (choice is role and len(possible) > 1)
            ]
            settling = combined(open_points)
            clear = clear and settling.clear
            notes = tuple(choice.note for choice in choices if choice.note)
            if role.quiet and notes == (role.note,):
                notes = ()
            options = combined(choices).options
            found.append(Reading(options, settling.options, settling.phrase, notes))
    if broken is not None and not found:
        raise broken
    return found[:MOST_READINGS], clear and len(found) == 1


def _points(look: Look) -> Iterator[list[RoleChoice]]:
    """Yield the possible answers to each point that is open once the columns' roles are known."""
    by_name = {cells.name: cells for cells in look.columns}
    layout = find_columns([*by_name], look.where, look.given, look.text_only)
    if layout.split is not None:
        yield split_points(by_name[layout.split], look.given)
    if layout.labels is None:
        yield state_points(look, [by_name[name] for name in layout.one_hot])
    else:
        names = (layout.labels, *layout.more_labels)
        yield label_points(look, [by_name[name] for name in names])


# Which column means what


def _path_roles(look: Look) -> list[RoleChoice]:
    """Return which column may name the photos."""
    given = look.given
    if {"path", "image"} & given.columns.keys() or any(cells.binary for cells in look.columns):
        return [RoleChoice()]
    taken = {*given.placed(), *(given.one_hot or ()), ""}
    by_name = {c.name.strip(): c for c in look.columns if c.name.strip() not in taken}
    exact = [name for name in (*PATH_HEADERS, *["image"] * look.text_only) if name in by_name]
    if not exact and any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in by_name):
        return [RoleChoice()]  # a table without a header
    twins = [name for name in by_name if exact and name.lower() == exact[0] and name != exact[0]]
    if twins:
        return [_photos_in(name, clear=False) for name in (exact[0], *twins)]
    photos = [name for name, cells in by_name.items() if cells.holds_photos]
    if exact and (exact[0] in photos or not photos):
        return [RoleChoice()]
    usual = [name for name in by_name if folded(name) in USUAL_PATHS]
    names, clear = photos, True
    if exact or len(photos) != 1:
        both = [name for name in usual if name in photos]
        names = both if len(both) == 1 else photos or usual
        names = [*names, *(exact if exact and exact[0] not in ("id", *names) else [])]
    if not names:  # a column in which every cell differs may be the one
        clear = False
        names = [
            name
            for name, cells in by_name.items()
            if cells.texts and len(cells.texts) == cells.counts.total() and _kind(cells) != "states"
        ]
        names = [name for name in names if folded(name) not in LIKELY_LABELS] or names
    return [_photos_in(name, clear) for name in names[:3]] or [RoleChoice()]


def _photos_in(name: str, clear: bool) -> RoleChoice:
    options = TableOptions(columns={"path": name})
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
    texts, filled = cells.texts, cells.filled
    if not texts:
        return "nothing"
    words = {text.lower() for text in texts}
    if all(map(BOX.fullmatch, words)) or words in SEXES or all(map(DATE.fullmatch, words)):
        return "text"
    if _pair(words) is not None or (stated and words <= {*stated}):
        return "states"
    states = {text: state_of(text) for text in texts}
    known = PRESENT | ABSENT | DASHES | NO_STATE | MINUS_ONE | {"none"}
    right = sum(cells.counts[text] for text, state in states.items() if state in known)
    telling = right == filled or not (PRESENT | ABSENT | MINUS_ONE).isdisjoint(states.values())
    if len(texts) == filled > 2 and all(map(INTEGER.fullmatch, texts)) and not words <= BITS:
        return "text"  # numbers of the rows
    if {"1", "2"} == {*texts}:
        return "states"
    if any(CODES.fullmatch(text) and not DECIMAL.fullmatch(text) for text in texts):
        return "labels"
    if telling and 2 * right >= filled:
        return "states"
    if all(map(NUMBER.fullmatch, texts)):
        return "shares" if all(map(_share, texts)) else "numbers"
    lengths = [len(text) / (1 + sum(map(text.count, "|,;/"))) for text in texts]
    if sum(lengths) / len(lengths) > FREE_TEXT or cells.holds_photos:
        return "text"
    marks = _marks_in(texts, (*STRONG, *COMMAS, *WEAK), None)
    backed = bool(marks) and evidence(texts, marks).some
    return "text" if len(texts) == filled > 3 and not backed else "labels"


def _share(text: str) -> bool:
    return 0 <= _number(text) <= 1


def _number(text: str) -> float:
    """Return a number, NaN for what is none."""
    return float(text) if NUMBER.fullmatch(text) and text[-1] != "%" and "," not in text else nan


class _Free:
    """The columns whose meaning is open: what they seem to hold, and readings that use them."""

    def __init__(self, look: Look) -> None:
        self.look, given = look, look.given
        taken = _taken(look)
        free = [cells for cells in look.columns if cells.name.strip() not in taken]
        self.nameless = [cells for cells in free if ROW_NUMBERS.fullmatch(cells.name)]
        self.columns = {c.name.strip(): c for c in free if not ROW_NUMBERS.fullmatch(c.name)}
        split = _split_column(self.columns, given)
        self.columns.pop(split, None)
        self.base = TableOptions(columns={"split": split} if split else {})
        self.split_note = f"the split is in {split!r}" if split else ""
        stated = [*(given.absent or ()), *(given.present or ())]
        stated += (given.means_unknown or ()) if given.present else ()
        self.stated = {word.strip().lower() for word in stated}
        self.kinds = {name: _kind(cells, self.stated) for name, cells in self.columns.items()}
        self.levels = {name: record_level(name) for name in self.columns}

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the columns of a kind that are not surely records."""
        return [n for n, kind in self.kinds.items() if kind in kinds and self.levels[n] < 2]

    def texts(self, names: Iterable[str]) -> list[str]:
        return [text for name in names for text in self.columns[name].texts]

    def without(self, read: Iterable[str] = ()) -> str:
        """Return a note on the columns that are not read beside these."""
        some = {*read}
        names = [repr(one_line(name)) for name in self.columns if name not in some]
        names += [
            f"column {cells.place}"
            for cells in self.nameless  # which hold more than the numbers of rows
            if not all(map(INTEGER.fullmatch, cells.texts))
        ]
        return f"not read: {listed(names, 10)}" if names else ""

    def rest(self, read: Iterable[str] = ()) -> RoleChoice:
        """Return the choice that leaves the labels as they are given."""
        notes = filter(None, (self.split_note, self.without(read)))
        return RoleChoice(self.base, "", "; ".join(notes))

    def labels_in(
        self, names: Sequence[str], clear: bool = True, rivals: bool = False
    ) -> RoleChoice:
        """Return the choice that these columns name the labels."""
        shown = " and ".join(map(repr, names))
        options, note = self.base, f"labels are named in {shown}"
        if [*names] == ["labels"] and clear and not rivals:
            note = ""
        else:
            chosen = names[0] if len(names) == 1 else tuple(names)
            options = options.over(TableOptions(columns={"labels": chosen}))
        notes = filter(None, (self.split_note, note, self.without(names)))
        return RoleChoice(options, f"labels named in {shown}", "; ".join(notes), clear)

    def named_roles(self, named: Sequence[str], rivals: bool = False) -> list[RoleChoice]:
        """Return which of the columns that are called so may name the labels."""
        filled = [name for name in named if self.kinds[name] != "nothing"] or named[:1]
        filled = [n for n in filled if self.kinds[n] != "numbers"] or filled
        together = self.labels_in(filled, rivals=rivals)
        if len({*map(_family, filled)}) == 1:
            return [together]
        return [*(self.labels_in([name], rivals=True) for name in filled[:3]), together]

    def block(
        self, names: Sequence[str], phrase: str = "", clear: bool = True, every: bool = False
    ) -> RoleChoice:
        """Return the choice that each of these columns is a label of its own."""
        labels = {*names}
        out = tuple(name for name in self.columns if name not in labels)
        chosen = TableOptions(one_hot=tuple(names)) if every else TableOptions(ignore=out or None)
        places = [self.columns[name].place for name in names]
        at = f"column {places[0]}"
        if len(places) > 1:
            together = places[-1] - places[0] + 1 == len(places)
            at = f"columns {places[0]} to {places[-1]}" if together else f"{len(places)} columns"
        label, rest = f"{counted(len(names), 'label')} in {at}", self.without(names)
        notes = filter(None, (self.split_note, label, rest))
        quiet = not (self.split_note or rest)
        return RoleChoice(self.base.over(chosen), phrase, "; ".join(notes), clear, quiet)


def _taken(look: Look) -> set[str]:
    """Return the columns whose meaning is known: given, ignored, or called as it is."""
    given = look.given
    taken, names = {*given.placed()}, [cells.name.strip() for cells in look.columns]
    usual = {*MEANINGS} - {*given.columns, "labels", *["image"] * look.text_only}
    if "labels" not in names and "labels" not in given.columns:
        usual -= {"soft", "shares", "unknown"}
    taken.update(usual.intersection(names))
    if "path" not in names and not {"path", "image"} & given.columns.keys():
        exact = [name for name in (*PATH_HEADERS, "image") if name in names and name not in taken]
        taken.update(exact[:1])
    return taken | {cells.name.strip() for cells in look.columns if cells.binary}


def _split_column(columns: Mapping[str, Cells], given: TableOptions) -> str:
    """Return the column that says the split, where another name than ``split`` does, else ""."""
    if "split" in given.columns or "split" in (given.ignore or ()):
        return ""
    for name, cells in columns.items():
        texts = {text.lower() for text in cells.texts}
        says = texts and texts <= SPLIT_WORDS.keys() and "train" in map(SPLIT_WORDS.get, texts)
        if says and (folded(name) in SPLIT_NAMES or len(texts) > 1):
            return name
    return ""


def _label_roles(look: Look) -> list[RoleChoice]:
    """Return which columns may say the labels, best first."""
    free, given = _Free(look), look.given
    columns, kinds, levels = free.columns, free.kinds, free.levels
    if "labels" in given.columns or given.one_hot is not None:
        own = [name.strip() for name in given.one_hot or ()]
        return [free.rest(given.columns_of("labels") or own)]
    _refuse_long_form(look, kinds)
    headless = bool(kinds) and all(re.fullmatch(r"column \d+", name) for name in kinds)
    if headless and len(kinds) > 1 and "states" in kinds.values():
        raise DataError(
            f"{look.where}: the first line names a photo, and no line says what the columns "
            "are; write their names above it, as in 'path,dog,cat'"
        )
    if headless and [*kinds.values()] == ["states"]:
        return [free.labels_in([*kinds], clear=False)]  # class numbers, as it seems
    named = [name for name in kinds if levels[name] < 2 and _names_labels(name, free)]
    wanted = ("states", "shares") if given.soft else ("states",)
    states = {name for name in free.of_kind(*wanted) if name not in named}
    words = {text.casefold() for text in free.texts(states)}
    for name in free.of_kind("labels"):
        cells = map(str.casefold, columns[name].texts)
        if name not in named and words and words.issuperset(cells):
            kinds[name] = "states"  # most of its cells are words of the others
            states.add(name)
    block = [name for name in kinds if name in states]
    if named and (len(block) < 2 or "labels" in kinds):
        return _of_named(named, free, headless)
    block = block or ([] if named else free.of_kind("shares"))
    texts = free.of_kind("labels", "lists")
    texts = [name for name in texts if not levels[name]] or texts
    if numbered := _numbered(free, texts):
        return [free.labels_in(numbered)]
    if block:
        found = _block_roles(free, block, look.columns[0].name == "path" and _as_written(free))
        words = (
            {state_of(text) for text in free.texts(block)} - PRESENT - ABSENT - NO_STATE - DASHES
        )
        named = named or (block if len(block) == 1 and len(words - BITS) > 1 else [])
        return [*([free.labels_in(named, clear=False)] if named else []), *found]
    every = [{text.lower() for text in columns[name].texts} for name in texts]
    grades = len(texts) > 1 and len({*chain.from_iterable(every)}) <= MOST_ODD
    if grades and all(words & NONE_WORDS for words in every):  # "none, mild, severe" of each
        return _block_roles(free, texts)
    pairs = [n for n in _columns_of_few_words(free) if not levels[n] and not _is_denied(n)]
    if len(pairs) > 1:
        words = {text.lower() for text in free.texts(pairs)}
        told = words <= PRESENT | ABSENT | free.stated
        return [*([] if told else [free.labels_in(pairs, False)]), *_block_roles(free, pairs)]
    if len(texts) == 1:
        beyond = [name for name in kinds if name != texts[0]]
        alone = all(levels[name] == 2 or kinds[name] == "nothing" for name in beyond)
        one = free.labels_in(texts, clear=headless or (alone and not levels[texts[0]]))
        both = free.of_kind("labels", "lists")
        return [one] if one.clear or len(both) == 1 else [one, free.labels_in(both, False)]
    if texts and headless and len({*free.texts(texts)}) < len(free.texts(texts)):
        return [free.labels_in(texts)]
    if texts:
        found = [free.labels_in([name], clear=False) for name in texts[:3]]
        return [*found, free.labels_in(texts, False)]
    amounts = [columns[name] for name in free.of_kind("numbers")]
    fives = all(len(c.texts) > 2 and all(t[-1] in "05" for t in c.texts) for c in amounts)
    if amounts and not fives and all(cells.counts_things for cells in amounts):
        return _block_roles(free, [cells.name.strip() for cells in amounts])
    nothing = kinds and all(kind == "nothing" for kind in kinds.values())
    if nothing or any(cells.binary and cells.name == "labels" for cells in look.columns):
        return [RoleChoice(free.base, "", free.split_note)]
    last = [
        name for name, cells in columns.items() if _may_name_labels(name, cells, len(kinds) == 1)
    ]
    if last:
        return [free.labels_in([name], clear=False) for name in last[:3]]
    there = [f"{one_line(name)!r} ({SHOWN_KINDS.get(k, k)})" for name, k in kinds.items()]
    raise DataError(
        f"{look.where}: no column seems to say which labels a photo has"
        f"{f', of {listed(there, 8)}' if there else ''}; write a column 'labels', or one column "
        "for each label, or say which column names labels with `--set columns.labels=NAME`"
    )


def _may_name_labels(name: str, cells: Cells, alone: bool) -> bool:
    """Return whether a column may name classes where no other does: its few cells recur."""
    if folded(name) == "id":
        return _kind(cells) == "labels"  # whose animal it is
    classes = not LONG_LABEL.isdisjoint(name_parts(name))
    numbers = [text for text in cells.texts if NUMBER.fullmatch(text)]
    amounts = numbers and not ((classes or alone) and all(map(str.isdigit, numbers)))
    recurs = 2 <= len(cells.texts) < cells.filled or classes
    dates = any(map(DATE.fullmatch, cells.texts))
    return recurs and not (dates or amounts) and (classes or folded(name) not in RECORDS)


SHOWN_KINDS = {"labels": "words", "states": "yes or no", "shares": "numbers", "nothing": "empty"}


def _is_denied(name: str) -> bool:
    return not DENYING.isdisjoint(name_parts(name))


def _names_labels(name: str, free: _Free) -> bool:
    """Return whether labels are often called so; of text one word of the name is enough."""
    kind = free.kinds[name]
    if name not in LIKELY_LABELS and _is_denied(name):
        return False
    if name != "labels" and kind in ("states", "shares"):
        several = len({*free.columns[name].texts} - {"-1"}) > 2
        return several and not {folded(name), _family(name)}.isdisjoint(LIKELY_LABELS)
    parts = name_parts(name) if kind in ("labels", "lists") else []
    return not {folded(name), _family(name), *parts}.isdisjoint(LIKELY_LABELS)


def _of_named(named: Sequence[str], free: _Free, headless: bool) -> list[RoleChoice]:
    """Return which columns may name the labels, where some are called so."""
    beside = [n for n, k in free.kinds.items() if re.fullmatch(r"column \d+", n) and k != "numbers"]
    found = free.named_roles(named)
    cells = free.columns[named[0]]
    photos = any(other.holds_photos and other.place > cells.place for other in free.look.columns)
    once = "" in cells.counts and len(cells.texts) == cells.filled
    if len(named) == 1 and photos and once:  # a cell may be merged with those below it
        return [free.labels_in(named, clear=False)]
    if beside and not headless:  # cells beyond the named column may be further labels
        every = free.texts([*named, *beside])
        shared = len({*every}) < len(every)
        together = free.labels_in([*named, *beside], clear=shared)
        return [together] if shared else [together, *found]
    alike = _sharing(named, free)
    if not alike or len(found) > 1:
        return found
    # One reading leaves such columns out, and in others they say labels, or what is not known.
    role = free.named_roles(named, rivals=True)[0]
    found = [replace(role, phrase=f"{role.phrase}; {_left_out(alike)}", clear=False)]
    if len(alike) == 1 and not UNSURE.isdisjoint(name_parts(alike[0])):
        unknown = TableOptions(columns={"unknown": alike[0]})
        phrase = f"{role.phrase}; those in {alike[0]!r} are unknown"
        found.insert(0, RoleChoice(role.options.over(unknown), phrase, clear=False))
    scenes = [name for name in alike if not SCENES.isdisjoint(name_parts(name))]
    return [*found, *([free.labels_in([*named, *scenes], False)] if scenes else [])]


def _sharing(named: Sequence[str], free: _Free) -> list[str]:
    """Return the columns that are not read although most of their words are labels."""
    words = {
        name: {part.casefold() for text in c.texts for part in split_text(text, (*STRONG, ","))}
        for name, c in free.columns.items()
    }
    labels = set().union(*(words[name] for name in named))
    return [
        name
        for name, parts in words.items()
        if name not in named
        and free.kinds[name] in ("labels", "lists")
        and (
            2 * len(parts & labels) >= len(parts)
            or not (CORRECTED | SCENES).isdisjoint(name_parts(name))
        )
    ]


def _numbered(free: _Free, texts: Sequence[str]) -> list[str]:
    """Return the columns such as ``l1, l2, l3`` that name the labels of a photo together."""
    columns = [name for name in texts if _family(name) != folded(name)]
    families = Counter(map(_family, columns))
    names = [name for name in columns if families[_family(name)] > 1]
    uses = Counter(free.texts(names))
    return names if len(families) == 1 and any(count > 1 for count in uses.values()) else []


def _refuse_long_form(look: Look, kinds: Mapping[str, str]) -> None:
    """Stop where each row says of one photo and one label whether it is present."""
    names = [name for name in kinds if folded(name) in LONG_LABEL]
    values = [
        name
        for name, kind in kinds.items()
        if folded(name) in LONG_ACTION or (folded(name) in LONG_VALUE and kind == "states")
    ]
    paths = [cells for cells in look.columns if cells.holds_photos]
    paths = paths or [cells for cells in look.columns if folded(cells.name) in USUAL_PATHS]
    if not names or not paths:
        return
    several = len(paths[0].texts) < paths[0].counts.total()
    for cells in look.columns:
        unsure = cells.name.strip() in kinds and folded(cells.name) in LONG_SHARE
        numbers = [_number(text.rstrip("% ").replace(",", ".")) for text in cells.texts]
        low = 50 if any(number > 1 for number in numbers) else 0.5
        if unsure and several and any(number < low for number in numbers):
            raise DataError(
                f"{look.where}: each row says of one photo and one label how sure it is; "
                f"keep the rows whose {cells.name.strip()!r} is high enough and remove that "
                "column, or write one row for each photo"
            )
    denied = {
        cells.name.strip()
        for cells in look.columns
        if folded(cells.name) in ANSWERS and any(text.casefold() in ABSENT for text in cells.texts)
    }
    if values and (several or not denied.isdisjoint(values)):
        raise DataError(
            f"{look.where}: each row says of one photo whether it has the label in "
            f"{names[0]!r}; write one row for each photo, or keep the rows in which {values[0]!r} "
            "says yes and remove that column"
        )


def _columns_of_few_words(free: _Free) -> list[str]:
    """Return the columns most of whose cells are words that they share, whatever these are."""
    columns = [
        cells
        for name, cells in free.columns.items()
        if free.kinds[name] in ("states", "labels", "text")
    ]
    uses = Counter(word for cells in columns for word in {*map(str.casefold, cells.texts)})
    shared = {word for word, count in uses.items() if count > 1}
    found = []
    for cells in columns:
        sharing = sum(cells.counts[text] for text in cells.texts if text.casefold() in shared)
        if 2 * sharing >= cells.filled and not all(map(NUMBER.fullmatch, cells.texts)):
            found.append(cells.name.strip())
    return found if len(shared) <= MOST_SHARED else []


def _as_written(free: _Free) -> bool:
    """Return whether all columns hold 1, 0 or nothing, as in the tables that labelwise writes."""
    cells = set().union(*(column.counts for column in free.columns.values()))
    names = {*map(folded, free.columns)}
    split = len(names & {"train", "val", "valid", "test"}) > 1 or not names.isdisjoint(NO_OBJECTS)
    return cells <= {"1", "0", "", "unknown"} and not split and max(free.levels.values()) < 2


def _block_roles(free: _Free, block: Sequence[str], as_written: bool = False) -> list[RoleChoice]:
    """Return which columns may be labels of their own, of those that hold states.

    In a table ``as_written`` by labelwise a column such as 'row' or 'train' is a label.
    """
    columns, kinds, levels = free.columns, free.kinds, free.levels
    unsure = [n for n in block if len(n) > 1 and levels[n] and not as_written]
    told = any(state_of(text) in ABSENT for text in free.texts(block))
    empty = free.of_kind("nothing")  # labels where nothing means no, or where it means unknown
    empty = [] if told and not _as_written(free) else empty
    unsure += [*_saying_none([*block, *empty]), *_other_words(columns, block)]
    unsure, doubted = list(dict.fromkeys(unsure)), {*unsure}
    states = {*block}
    plain = [name for name in kinds if not levels[name] and name not in states]
    texts = [name for name in plain if kinds[name] == "labels"]
    texts += [n for n, k in kinds.items() if k == "lists"]
    numbers = [
        name
        for name in plain
        if kinds[name] == "shares" or (kinds[name] == "numbers" and columns[name].counts_things)
    ]
    sure = [name for name in block if name not in doubted]
    open_columns = [*(unsure if sure else []), *numbers]
    labels = {*(sure or unsure), *(name for name in empty if name not in doubted)}
    sure = [name for name in columns if name in labels]
    if not open_columns:
        found = [free.block(sure, _left_out(texts), clear=not texts)]
    else:
        labels |= {*open_columns}
        every = [name for name in columns if name in labels]
        too = f"labels too: {listed([*map(repr, open_columns)], 5)}"
        found = [
            free.block(sure, _left_out([*open_columns, *texts]), clear=False),
            free.block(every, too, clear=False, every=True),
        ]
    for text in texts[:2] if len(sure) <= 2 else ():
        note = f"labels are named in {text!r}; {free.without([text])}"
        options = free.base.over(TableOptions(columns={"labels": text}))
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
    """Return columns of the block that say yes and no in words or numbers that few others use."""
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
    odd = {
        n: sum(c for t, c in by_name[n].counts.items() if OTHER_NUMBER.fullmatch(t)) for n in block
    }
    others = [name for name in block if 4 * odd[name] > by_name[name].filled]
    others = others if 2 * len(others) < len(block) else []
    return [n for n, words in words_of.items() if n in others or (words and not words & group)]


# What the cells of a label's own column mean


def state_points(look: Look, own: Sequence[Cells]) -> list[RoleChoice]:
    """Return what the cells of one-hot columns may mean."""
    uses: Counter[str] = Counter()
    first: dict[str, Cells] = {}
    for cells in own:
        for text, count in cells.counts.items():
            word = text.strip().lower()
            uses[word] += count
            first.setdefault(word, cells)
    given = look.given
    stated = {
        "present": given.present or (),
        "absent": given.absent or (),
        "means_unknown": given.means_unknown or (),
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
                    RoleChoice(
                        TableOptions(means_unknown=tuple(nothing)), f"{shown} means unknown"
                    ),
                    RoleChoice(TableOptions(absent=tuple(nothing)), f"{shown} means absent"),
                ]
            )
    base: dict[str, tuple[str, ...]] = {}
    for key, words in (("present", present), ("absent", absent), ("means_unknown", unknown)):
        new = [word for word in words if word not in STATES or (not word and key == "absent")]
        if new:
            base[key] = (*stated[key], *new)
    if minus and given.minus_one is None:
        means: tuple[MinusOne, ...] = ("unknown", "absent")
        points.append([RoleChoice(TableOptions(minus_one=m), f"-1 means {m}") for m in means])
    if crosses:  # beside a tick they may say the opposite
        points.append(
            [
                RoleChoice(TableOptions(absent=(*absent, "x")), "'x' means absent", clear=False),
                RoleChoice(TableOptions(present=(*present, "x")), "'x' means present", clear=False),
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
        column = first[odd[0]].name.strip()
        found = _odd_states(look, odd, {**stated, **base}, column, {*plain}, two)
        if two is None and len(found) == 3 and {*odd} == {*filter(None, plain)} < {*plain}:
            shown = listed([*map(repr, odd)], 5)  # initials or dates where something was seen
            present_too = f"{shown} mean present, an empty cell absent"
            seen = TableOptions(present=tuple(odd), absent=("",))
            found = [RoleChoice(seen, present_too, clear=False), *found[:2]]
        elif present and "" in nothing and blanks and not (absent or minus or stated["absent"]):
            found = [_with_empty(choice) for choice in found]
        points.append(found)
    usual = RoleChoice(_of_states(base), note=_state_note(base, uses))
    return [combined((usual, *choices)) for choices in product(*points)]


def _with_empty(choice: RoleChoice) -> RoleChoice:
    """Return a choice that says what an empty cell means, too: absent beside what is present."""
    if choice.options.present and choice.options.absent is None:
        empty = RoleChoice(TableOptions(absent=("",)), "an empty cell means absent")
        return combined((choice, empty))
    unknown = choice.options.means_unknown
    words = None if unknown is None else (*unknown, "")
    return replace(choice, options=choice.options.over(TableOptions(means_unknown=words)))


def _pair(words: set[str]) -> tuple[str, str] | None:
    return next((pair for pair in PAIRS if words == {*pair}), None)


def _of_states(words: Mapping[str, tuple[str, ...]]) -> TableOptions:
    present, absent, unknown = map(words.get, ("present", "absent", "means_unknown"))
    return TableOptions(present=present, absent=absent, means_unknown=unknown)


def _odd_states(
    look: Look,
    odd: Sequence[str],
    stated: Mapping[str, tuple[str, ...]],
    column: str,
    words: set[str],
    opposite: Sequence[str] | None = None,
) -> list[RoleChoice]:
    """Return what cells may mean that are not usual words, the first of them in a column.

    ``stated`` are the words whose meaning is known, ``words`` are all; ``opposite`` are the only
    two, and perhaps a rarer third one, which means unknown.
    """
    shares = [word for word in odd if _share(word)]
    if look.given.soft:  # the columns' reader names the row of a number outside 0 to 1
        odd = [word for word in odd if isnan(_number(word))]
        if not odd:
            return [RoleChoice()]

    def meaning(phrase: str, **of: Sequence[str]) -> RoleChoice:
        options = {key: (*stated[key], *words) for key, words in of.items() if words}
        return RoleChoice(_of_states(options), phrase, clear=False)

    if len(shares) == len(odd):
        shown = listed([*map(repr, odd)], 3)
        options = TableOptions(soft=True)
        soft = RoleChoice(options, f"{shown}: shares between 0 and 1", clear=False)
        return [soft] if len(odd) > 2 else [soft, meaning(f"{shown}: unknown", means_unknown=odd)]
    numbers = [word for word in odd if NUMBER.fullmatch(word)]
    counts = all(INTEGER.fullmatch(word) and 0 <= int(word) <= 100 for word in numbers)
    few = counts and (not words.isdisjoint({"0", ""}) or len(odd) == 1)
    if (numbers and not few) or len(odd) > MOST_ODD + len(numbers):
        shown = listed([*map(repr, odd)], 3)
        raise DataError(
            f"{look.where}: the column {column!r} holds cells that say "
            f"neither yes nor no, such as {shown}; write 1, 0 or nothing, or keep the columns "
            "that are not labels apart with `--set ignore=[COLUMN]`"
        )
    if opposite is not None:
        one, other, *rare = opposite
        third = (*stated["means_unknown"], *rare) if rare else None
        last = f", {rare[0]!r} unknown" if rare else ""
        return [
            RoleChoice(
                TableOptions(present=(yes,), absent=(no,), means_unknown=third),
                f"{yes!r} means present, {no or 'empty'!r} absent{last}",
                clear=False,
            )
            for yes, no in ((one, other), (other, one))
            if yes
        ]
    heads = {word: re.split(r"[^\w✓✔+-]+", word.strip("([{ "), maxsplit=1)[0] for word in odd}
    yes = [word for word in odd if heads[word] in PRESENT or {*word} <= {"x"}]
    no = [word for word in odd if heads[word] in ABSENT or word in NONE_WORDS - DASHES]
    if no and not yes and len(odd) > 2:
        yes = [word for word in odd if word not in no]
    shown = listed([*map(repr, odd)], 5)
    if yes or no:
        rest = [word for word in odd if word not in (*yes, *no)]
        parts = (("present", yes), ("absent", no), ("unknown", rest))
        phrase = "; ".join(f"{listed([*map(repr, ws)], 5)}: {say}" for say, ws in parts if ws)
        qualified = meaning(phrase, present=yes, absent=no, means_unknown=rest)
        return [qualified, meaning(f"{shown}: unknown", means_unknown=odd)]
    says = f"{shown} {'means' if len(odd) == 1 else 'mean'}"
    unknown = meaning(f"{says} unknown", means_unknown=odd)
    present = meaning(f"{says} present", present=odd)
    if all(INTEGER.fullmatch(word) for word in odd):
        return [present, unknown]
    absent = meaning(f"{says} absent", absent=odd)
    return [unknown, *([] if all(word in DASHES for word in odd) else [present]), absent]


def _state_note(base: Mapping[str, Sequence[str]], uses: Mapping[str, int]) -> str:
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


def label_points(look: Look, columns: Sequence[Cells]) -> list[RoleChoice]:
    """Return what may separate the labels of a cell, and what their words may mean."""
    given = look.given
    counts: Counter[str] = Counter()
    for cells in columns:
        counts.update({text: cells.counts[text] for text in cells.texts})
    nested = bool(columns) and all(cells.nested for cells in columns)
    numbers = bool(columns) and all(cells.number for cells in columns)
    no_list = {text for text in counts if text.casefold() in WORDS and text[:1] not in "[{(<"}
    for text in () if nested or given.separator else counts:
        if JSON_LIKE.match(text) and written_or_plain(text) is None:
            raise DataError(
                f"{look.where}: cells hold JSON that does not say plainly which labels are "
                f"present, such as {text!r:.80}; write the names of the present labels alone"
            )
        if MARKUP.search(text):
            raise DataError(
                f"{look.where}: cells hold the signs of a web page, such as {text!r:.80}; "
                "write the names as a person reads them, such as '&' for '&amp;'"
            )
    if not (nested or numbers or given.separator) and _are_vectors([*counts]):
        raise DataError(
            f"{look.where}: cells hold a row of 1 and 0, such as {next(iter(counts))!r:.80}, and "
            "nothing names its places; write a column for each label"
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
        separator = mark.options.separator or given.separator or ("|",)
        parts: Counter[str] = Counter()
        for text, count in counts.items():
            for part in lists.get(text) or ([] if lists else split_text(text, separator)):
                parts[spelled(part)] += count
        if not (lists or given.separator):
            _refuse_beside(parts, look.where)
        if given.names is not None or look.classes:
            found.append(mark)
            continue
        words = word_points(parts, given, numbers)
        joined = [] if nested or numbers or written else blank_points(counts, parts, mark, given)
        alike = alike_points(parts, given)
        found += map(combined, product([mark], words, alike, joined or [RoleChoice()]))
    return found


def _are_vectors(texts: Sequence[str]) -> bool:
    """Return whether cells are rows of 1 and 0: of one length, and no list of class numbers.

    >>> _are_vectors(["1 0 1", "0 1 0"]), _are_vectors(["0 1", "1"]), _are_vectors(["10", "11"])
    (True, False, False)
    """
    rows = [re.findall("[01]", text.replace(".0", "")) for text in texts if VECTOR.fullmatch(text)]
    if len(rows) < len(texts) or len({*map(len, rows)}) != 1 or len(rows[0]) == len({*rows[0]}):
        return False
    return not all(map(str.isdigit, texts)) or any(text[0] == "0" != text for text in texts)


VECTOR = re.compile(r"[\[(]?[01](?:\.0*)?(?:[\s,;|]*[01](?:\.0*)?)+[\])]?")

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
    r"|vielleicht|peut-être|probablement|probablemente|quizás|forse|cf\.|cfr\.?|aff\.) *(.+)"
    r"|.+ \((?:high|medium|low|(?:un)?sure|(?:un)?certain|(?:un)?sicher|probabl[ey]|possibl[ey])\)",
    re.IGNORECASE,
)
EMOJI = re.compile("[☀-➿🌀-🫿](?:[\ufe0f🏻-🏿]|\u200d.)*")
BULLET = re.compile(r"(?:[-*•]|\d+[.)])\s+\S")


def _refuse_beside(parts: Iterable[str], where: str) -> None:
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
    perhaps = [p for p in found if (word := PERHAPS.fullmatch(p)) and word[1] in {*found, None}]
    photos = [p for p in found if Path(p).suffix.lower() in IMAGE_SUFFIXES]
    signs = {part: EMOJI.findall(part) for part in found}
    shared = Counter(sign for emoji in signs.values() for sign in {*emoji})
    joined = [p for p in found if len(signs[p]) > 1 and any(shared[s] > 1 for s in signs[p])]
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
    elif joined:
        what, shown = "several signs without a mark between them", joined[0]
    elif either:
        what, shown = "labels of which one is meant", either[0]
    else:
        return
    raise DataError(
        f"{where}: cells hold {what}, such as {shown!r:.80}; write the present labels "
        "alone; if it belongs to their names, say what separates them with `--set separator=WORD`"
    )


def is_written_list(texts: Iterable[str]) -> bool:
    """Return whether every cell that is not empty is a list in brackets, not a name in some."""
    texts = [text for text in texts if text]
    found = [text for text in texts if re.match(BRACKETED, text, re.DOTALL)]
    objects = all(text[:2] == "c(" or text[0] == "{" for text in found)  # where there are several
    whole = len(found) == len(texts) or objects
    named = all(re.match(PARENTHESES, text) for text in found)
    return not named and whole and all(written_or_plain(text) is not None for text in texts)


def split_text(text: str, marks: Sequence[str]) -> list[str]:
    """Return the parts of a cell that are not empty."""
    return [part.strip() for part in _at_marks(tuple(marks)).split(text) if part.strip()]


@lru_cache
def _at_marks(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len)[::-1])))


@dataclass(frozen=True)
class CellEvidence:
    """How well the parts of cells are labels elsewhere: of all cells with a mark, which share."""

    full: float
    some: bool
    alone: bool


def evidence(texts: Iterable[str], marks: Sequence[str]) -> CellEvidence:
    """Return how many cells with a mark have only parts that another cell has too."""
    lists = {text: {*split_text(text, marks)} for text in texts}
    uses = Counter(part for parts in lists.values() for part in parts)
    alone = {text for text, parts in lists.items() if parts == {text}}
    marked = [parts for text, parts in lists.items() if text not in alone]
    backed = [[part in alone or uses[part] > 1 for part in parts] for parts in marked]
    full = sum(map(all, backed)) / max(len(backed), 1)
    by_itself = any(part in alone for parts in marked for part in parts)
    return CellEvidence(full, any(map(any, backed)), by_itself)


def mark_points(counts: Mapping[str, int], given: TableOptions) -> list[RoleChoice]:
    """Return what may separate the labels in a column of text, best first.

    A strong mark separates; a comma or a weak mark if the parts of cells are labels elsewhere.
    Where labels are separated already, only what is left between two marks is looked at.
    """
    if given.separator:
        return [RoleChoice()]
    marks, levels = (*STRONG, *COMMAS, *WEAK), given.levels
    texts = [
        text
        for text in counts
        if not no_label(text)
        or (text.casefold() not in WORDS and not all(map(no_label, split_text(text, marks))))
    ]
    if given.names is not None:
        return _marks_of_names(texts, {*given.names})
    strong = _marks_in(texts, STRONG, levels)
    units = [*{unit for text in texts for unit in split_text(text, strong)}] if strong else texts
    units = [
        unit
        for unit in units
        if not no_label(unit) or not {*units}.isdisjoint({*split_text(unit, marks)} - {unit})
    ]
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
    if backed.full < 1 or not backed.alone:  # some of these signs may belong to names
        good = [m for m in rest if (by := evidence(units, [m])).full == 1 and by.alone]
        rest, commas = good or rest, [mark for mark in commas if mark in (good or rest)]
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
    if rest in (["/"], [">"], ["→"]) and not strong:
        phrase = f"levels: a{rest[0]}b means a too"
        found.append(RoleChoice(TableOptions(levels=rest[0]), phrase, phrase, False))
    single = [m for m in rest if (by := evidence(units, [m])).full >= 0.5 and by.alone]
    if len(rest) > 1 and len(single) == 1 and single != commas:
        found.append(_by_marks(texts, [*strong, *single], False))
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
        parts = [split_text(unit, [mark]) for unit in units if mark in unit]
        if any(len(cells) > 1 and alone.issuperset(cells) for cells in parts):
            found.append(mark)
    return found


def _marks_in(texts: Iterable[str], marks: Sequence[str], but: str | None) -> list[str]:
    inside = [text.strip().strip("#") for text in texts]
    return [mark for mark in marks if mark != but and any(mark in text for text in inside)]


def _by_marks(texts: Iterable[str], marks: Sequence[str], clear: bool = True) -> RoleChoice:
    """Return the choice that these marks separate labels; a bar that no cell holds: that none."""
    options = TableOptions(separator=tuple(marks))
    if list(marks) == ["|"]:
        has_bar = any("|" in text for text in texts)
        phrase = "labels separated by '|'" if has_bar else "one label in each cell"
        return RoleChoice(options, phrase, "", clear)
    shown = " or ".join(MARK_NAMES.get(mark, repr(mark)) for mark in marks)
    note = f"labels are separated by {shown}"
    return RoleChoice(options, f"labels separated by {shown}", note, clear)


def _marks_of_names(texts: Sequence[str], names: set[str]) -> list[RoleChoice]:
    """Return the mark under which every part is one of the given names."""
    for mark in ("|", *STRONG, *COMMAS, *WEAK, *SOFT):
        if all(part in names for text in texts for part in split_text(text, [mark])):
            return [RoleChoice(TableOptions(separator=None if mark == "|" else (mark,)))]
    return [RoleChoice()]


def blank_points(
    texts: Iterable[str], parts: Mapping[str, int], mark: RoleChoice, given: TableOptions
) -> list[RoleChoice]:
    """Return choices where blanks or underscores seem to join labels into one."""
    if given.separator or mark.options != AS_IT_IS or any("|" in text for text in texts):
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
            by_blanks = TableOptions(separator=(joint,))
            return [RoleChoice(by_blanks, "", "labels are separated by a blank")]
        if joined and (joint == " " or alone):
            return [
                replace(_by_marks([], [joint]), note="", clear=False),
                _by_marks([], ["|"], clear=False),
            ]
    if any({*name.split("_")} <= {*parts} - {name} for name in parts):
        return [_by_marks([], [mark], clear=False) for mark in ("|", "_")]
    holding = [(name, word) for name in parts for word in name.split() if word in parts]
    for name, word in [pair for pair in holding if pair[0] != pair[1]][:1]:
        one = f"{name!r} is read as one label, and {word!r} as another"
        return [RoleChoice(note=f"{one}; give `--set 'separator= '` if blanks part labels")]
    return []


def word_points(parts: Mapping[str, int], given: TableOptions, numbers: bool) -> list[RoleChoice]:
    """Return what words such as ``none``, ``nan`` and ``?`` may mean."""
    if given.means_none is not None or given.means_unknown is not None:
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
        options = TableOptions(
            means_none=tuple(found["none"]), means_unknown=tuple(found["unknown"])
        )
        none, unknown = (listed([*map(repr, words)], 3) for words in found.values())
        phrase = f"{none} = none of the labels, {unknown} = unknown"
        choices.append(RoleChoice(options, phrase, phrase, False))
    alike = [
        (TableOptions(means_none=tuple(every)), f"{shown} {verb} none of the labels"),
        (TableOptions(means_unknown=tuple(every)), f"{shown} {verb} unknown"),
    ]
    for options, phrase in alike if found["none"] else alike[::-1]:
        choices.append(RoleChoice(options, phrase, phrase, False))
    signs = {word for word in every if not any(map(str.isalnum, word))}
    if not all(word in signs or word.casefold() in SURELY_NO_LABEL for word in every):
        are = "is a label" if len(every) == 1 else "are labels"
        choices.append(RoleChoice(TableOptions(means_none=()), f"{shown} {are}", "", False))
    return choices


def alike_points(parts: Mapping[str, int], given: TableOptions) -> list[RoleChoice]:
    """Return whether labels that differ only in case or in the form of letters are one."""
    groups = alike_names(parts) if given.alike is None else []
    if not groups:
        return [RoleChoice()]
    shown = "; ".join(" and ".join(map(repr, group)) for group in groups[:3])
    return [
        RoleChoice(TableOptions(alike="one"), f"one label: {shown}", "", False),
        RoleChoice(TableOptions(alike="several"), f"labels that differ: {shown}", "", False),
    ]


def split_points(cells: Cells, given: TableOptions) -> list[RoleChoice]:
    """Return what the words of a split column may mean."""
    words = [word for word in cells.counts if word not in given.splits]
    strange = [word for word in words if word.lower() not in SPLIT_WORDS]
    if not strange:
        return [RoleChoice()]
    name, found = cells.name.strip(), []
    if "split" not in given.columns:
        without = TableOptions(ignore=(*(given.ignore or ()), name))
        found = [RoleChoice(without, f"{name!r} is not read", f"not read: {name!r}", False)]
    usable = any(word.lower() in SPLIT_WORDS for word in words if word) or given.splits
    meant = {word: get_close_matches(word.lower(), SPLIT_WORDS, 1, 0.75) for word in strange}
    order: dict[str, str] = {}
    if not usable and {*strange} - {""} <= {"0", "1", "2"}:
        order = dict(zip(sorted(strange), ("train", "val", "test"), strict=False))
        if {*strange} == {"0", "1"}:
            order = {"0": "train", "1": "test"}
        order |= {"": OUT} if "" in strange else {}
    elif all(meant.values()):
        order = {word: SPLIT_WORDS[near[0]] for word, near in meant.items()}
    if order:
        shown = ", ".join(f"{word or 'empty'} = {split}" for word, split in order.items())
        return [RoleChoice(TableOptions(splits=order), shown, shown, False), *found]
    if not usable:
        return found or [RoleChoice()]
    shown = listed([repr(word) if word else "an empty cell" for word in strange], 4)
    rows = counted(sum(cells.counts[word] for word in strange), "row")
    if strange == [""]:
        train = TableOptions(splits={"": "train"})
        found.insert(0, RoleChoice(train, "an empty split is train", "", False))
    aside = f"rows whose split is {shown} are left out"
    note = f"{rows} whose split is {shown} {'is' if rows == '1 row' else 'are'} left out"
    out = TableOptions(splits=dict.fromkeys(strange, OUT))
    return [RoleChoice(out, aside, note, False), *found]


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
    try:
        found, clear = readings(Look("", table, AS_IT_IS))
        layout = find_columns(header, "", found[0].options, text_only=True)
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
        cells = [Cells("labels", 1, counts, nested=nested)]
        points = label_points(Look("", cells, AS_IT_IS), cells)
    except DataError:
        return False
    plain = points[0].options in (AS_IT_IS, TableOptions(separator=("|",)))
    return len(points) == 1 and points[0].clear and plain and not odd


def as_setting(key: str, value: object) -> str:
    """Return an option as it is typed in a shell: ``--set 'separator=;'``."""
    if isinstance(value, dict) and key == "columns":
        return " ".join(as_setting(f"{key}.{name}", column) for name, column in value.items())
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and "\n" not in value:
        with suppress(SettingsError):
            text = value if parse_assignments([f"{key}={value}"])[key] == value else text
    return f"--set {shlex.quote(f'{key}={text}')}"
