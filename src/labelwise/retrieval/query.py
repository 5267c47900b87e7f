r"""Query: what an image should show, as in ``dog, -beach`` or ``(cat | dog) & !sofa``.

query = any ("," | "&") any ...     all of them; "," and "&" mean the same
any   = item "|" item ...           one of them at least; "|" binds tighter, as in PhotoPrism
item  = ("-" | "!" | "not ") item | "(" query ")" | name [(">" | "<") number] | "none"
name  = plain text, or "quoted text" where every character stands for itself;
        a backslash takes the next character as it is: ``rock\, paper``, ``\-5 degrees``

``none`` asks for images that carry none of the labels. ``dog>0.8`` wants dogs, of images with
P(dog) > 0.8 alone; ``dog<0.2`` wants none, of images with P(dog) < 0.2. PhotoPrism's spelling
``label:"dog&!beach"`` is read as ``dog & !beach``.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from labelwise.errors import DataError
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

__all__ = [
    "AllOf",
    "AnyOf",
    "Expression",
    "Has",
    "Limit",
    "Not",
    "Nothing",
    "Query",
    "complete",
    "labels_of",
    "literal_of",
]

DEEPEST = 50  # of what stands in parentheses
SHOWN = 120  # letters of a query in an error
MOST_WORDS = 50  # of a query that are taken apart
_BUT_NOT = r"(?i)(?<=\w)\s+(?:(?:and\s+|but\s+)?not|without)\s+(?=\w)"
_AND, _OR = r"(?i)(?<=\w)\s+and\s+(?=\S)", r"(?i)(?<=\w)\s+or\s+(?=\S)"
_SIGN = r"(?<=\w)\s+(?=[-!]\w)"  # before a sign of what is not wanted
# From the first letter of a word alone: from each letter of a long word took quadratic time.
_WORDS = (
    r"(?<![^\s,|&()<>])(?P<before>[^\w\s,|&()<>]*)"
    r"(?P<words>\w[^\s,|&()<>]*(?:\s+\w[^\s,|&()<>]*)+)"
)


@dataclass(frozen=True)
class Has:
    """The image carries a label."""

    name: str


@dataclass(frozen=True)
class Nothing:
    """The image carries none of the labels."""


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: "Expression"


@dataclass(frozen=True)
class AllOf:
    """All parts hold."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True)
class AnyOf:
    """One part at least holds."""

    parts: tuple["Expression", ...]


Expression = Has | Nothing | Not | AllOf | AnyOf


@dataclass(frozen=True)
class Limit:
    """Only images whose probability of a label lies above (or below) a bound are listed."""

    name: str
    bound: float
    above: bool


@dataclass(frozen=True)
class Query:
    """What an image should show, and limits on single probabilities."""

    expression: Expression
    limits: tuple[Limit, ...] = ()

    @classmethod
    def of(cls, wanted: Iterable[str], unwanted: Iterable[str] = ()) -> "Query":
        """Return the query for images with all the wanted and none of the unwanted labels."""
        parts: list[Expression] = [Has(name) for name in dict.fromkeys(wanted)]
        parts += [Not(Has(name)) for name in dict.fromkeys(unwanted)]
        if not parts:
            raise DataError("a query must name at least one label, as in 'dog, -beach'; got none")
        query = cls(_joined(AllOf, parts))
        query._refuse_contradiction()
        return query

    @classmethod
    def parse(
        cls, text: str, space: LabelSpace | None = None, taxonomy: Taxonomy | None = None
    ) -> "Query":
        """Return the query that ``text`` writes; with ``space``, check that its labels exist."""
        parser = _Parser(text)
        try:
            expression = parser.whole()
        except DataError:
            if space is None or text.strip() not in space.names:
                raise
            raise _mistaken(text, cls(Has(text.strip()))) from None  # it has signs in its name
        query = cls(expression, tuple(parser.limits))
        query._refuse_contradiction()
        if space is not None:
            _refuse_unknown(query, text, space, taxonomy or Taxonomy())
        return query

    def names(self) -> tuple[str, ...]:
        """Return the names in the query, each once."""
        found = dict.fromkeys(labels_of(self.expression))
        return tuple(found | dict.fromkeys(limit.name for limit in self.limits))

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the labels that every image found must carry."""
        return tuple(name for name, wanted in self._literals() if wanted)

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Return the labels that no image found may carry."""
        return tuple(name for name, wanted in self._literals() if not wanted)

    def _literals(self) -> list[tuple[str, bool]]:
        return [literal for literal in map(literal_of, self._parts()) if literal is not None]

    def _parts(self) -> tuple[Expression, ...]:
        whole = self.expression
        return whole.parts if isinstance(whole, AllOf) else (whole,)

    def _refuse_contradiction(self) -> None:
        for name in self.wanted:
            if name in self.unwanted:
                raise DataError(f"a label cannot be both wanted and unwanted, got {name!r} twice")

    def __str__(self) -> str:
        limits = {(limit.name, limit.above): limit for limit in self.limits}
        items = []
        for part in self._parts():
            base = part.part if isinstance(part, Not) else part
            limit = None
            if isinstance(base, Has):
                limit = limits.pop((base.name, part is base), None)
            if limit is None:
                items.append(_written(part))
            else:
                items.append(f"{_quoted(limit.name)}{'>' if limit.above else '<'}{limit.bound!r}")
        return ", ".join(items)


def complete(text: str, space: LabelSpace, taxonomy: Taxonomy | None = None) -> list[str]:
    """Return the query texts in which the last, unfinished name of ``text`` is a label's.

    >>> complete("dog, -be", LabelSpace(("dog", "beach", "bench", "sea bear")))
    ['dog, -beach', 'dog, -bench', 'dog, -sea bear']
    """
    start = max((text.rfind(mark) for mark in ',&|(!-"'), default=-1) + 1
    while start < len(text) and text[start].isspace():
        start += 1
    typed = text[start:].casefold()
    parents = () if taxonomy is None else taxonomy.parents.values()
    names = dict.fromkeys([*space.names, *parents])
    first = [name for name in names if name.casefold().startswith(typed)]
    inside = [name for name in names if name not in first and f" {typed}" in f" {name.casefold()}"]
    head = text[:start].removesuffix('"')
    return [head + _quoted(name) for name in (*first, *inside)]


def labels_of(expression: Expression) -> list[str]:
    """Return the labels in the order in which they are named, as often as they are."""
    match expression:
        case Has(name):
            return [name]
        case Not(part):
            return labels_of(part)
        case AllOf(parts) | AnyOf(parts):
            return [name for part in parts for name in labels_of(part)]
        case _:
            return []


def literal_of(expression: Expression) -> tuple[str, bool] | None:
    """Return the label that an expression alone wants (True) or does not want, None for others."""
    match expression:
        case Has(name):
            return name, True
        case Not(Has(name)):
            return name, False
        case _:
            return None


def _refuse_unknown(query: Query, text: str, space: LabelSpace, taxonomy: Taxonomy) -> None:
    """Refuse names that are not labels; words between labels are rewritten as signs."""
    try:
        for name in query.names():
            taxonomy.labels(name, space)
    except DataError:
        whole = text.strip()
        meant = Query(Has(whole)) if whole in space.names else _with_signs(text, space, taxonomy)
        if meant is None:
            raise
        raise _mistaken(text, meant) from None


def _mistaken(text: str, meant: Query) -> DataError:
    """Return the error that suggests how a query is written."""
    return DataError(
        f"a query joins labels by ',' (all of them) or '|' (one of them at least), got "
        f"{_shortened(text)!r}; did you mean {_shortened(str(meant))!r}?"
    )


def _with_signs(text: str, space: LabelSpace, taxonomy: Taxonomy) -> Query | None:
    """Return the query in which words such as "and", or blanks alone, became signs.

    None if that does not give known labels alone, or could be read in two ways.
    """
    known = {name.casefold(): name for name in (*taxonomy.parents.values(), *space.names)}
    worded = re.sub(_OR, " | ", re.sub(_AND, ", ", re.sub(_BUT_NOT, ", -", text)))
    apart = re.sub(
        _WORDS,
        lambda run: run["before"] + _names_in(run["words"], known),
        re.sub(_SIGN, ", ", worded),
    )
    for signs in (worded, apart):
        if "|" in signs and set(signs) & set(",&"):
            continue
        try:
            query = Query.parse(signs)
            for name in query.names():
                taxonomy.labels(name, space)
        except DataError:
            continue
        return query
    return None


def _names_in(text: str, known: dict[str, str]) -> str:
    """Return words that are known names one after another with commas between the names.

    As few names as possible; words that are not such names, or are so in two ways, stay as they
    are. ``known`` has each name by how it is compared.
    """
    words = text.split()
    if len(words) > MOST_WORDS:
        return text
    ways: list[list[tuple[str, ...]]] = [[()]]  # the shortest ways to write the first n words
    for end in range(1, len(words) + 1):
        found = [
            (*before, _quoted(known[name]))
            for start in range(end)
            if (name := " ".join(words[start:end]).casefold()) in known
            for before in ways[start]
        ]
        fewest = min(map(len, found), default=0)
        ways.append([way for way in found if len(way) == fewest][:2])
    return ", ".join(ways[-1][0]) if len(ways[-1]) == 1 else text


def _joined(kind: type[AllOf] | type[AnyOf], parts: Sequence[Expression]) -> Expression:
    """Return all or any of the parts, each once; parts of the same kind are taken apart."""
    flat: list[Expression] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else [part]
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else kind(unique)


def _not(part: Expression) -> Expression:
    return part.part if isinstance(part, Not) else Not(part)


def _written(expression: Expression) -> str:
    match expression:
        case Has(name):
            return _quoted(name)
        case Not(part):
            return f"-{_written(part)}"
        case AllOf(parts):
            return f"({', '.join(map(_written, parts))})"
        case AnyOf(parts):
            return f"({' | '.join(map(_written, parts))})"
        case _:
            return "none"


def _quoted(name: str) -> str:
    words = name.casefold().split()
    plain = name == " ".join(name.split()) and not set(name) & set('\\",|&()<>!')
    plain = plain and not name.startswith("-") and words[:1] not in (["not"], ["none"])
    plain = plain and not name.startswith("label:")
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return name if plain else f'"{escaped}"'


class _Parser:
    """Reads a text from left to right; ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.limits: list[Limit] = []

    def whole(self) -> Expression:
        if not self.text.strip():
            raise DataError("a query must name at least one label, as in 'dog, -beach'; got none")
        expression = self.every(depth=0)
        if self.at < len(self.text):
            self.fail("a parenthesis must be opened before it is closed")
        return expression

    def every(self, depth: int) -> Expression:
        parts = [self.some(depth)]
        while self.peek() in (",", "&"):
            self.at += 1
            parts.append(self.some(depth))
        return _joined(AllOf, parts)

    def some(self, depth: int) -> Expression:
        start = len(self.limits)
        parts = [self.item(depth)]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.item(depth))
        if len(parts) > 1 and len(self.limits) > start:
            self.fail("a limit such as dog>0.8 must stand by itself between commas")
        return _joined(AnyOf, parts)

    def item(self, depth: int) -> Expression:
        if depth > DEEPEST:
            self.fail(f"parentheses and signs may be nested {DEEPEST} deep")
        mark = self.peek()
        rest = self.text[self.at :]
        if mark in ("-", "!") or (rest[:3].casefold() == "not" and rest[3:4].isspace()):
            self.at += 1 if mark in ("-", "!") else 3
            start = len(self.limits)
            part = self.item(depth + 1)
            if len(self.limits) > start:
                self.fail("a limit such as dog>0.8 cannot be negated; write dog<0.8")
            return _not(part)
        if mark == "(":
            self.at += 1
            expression = self.every(depth + 1)
            if self.peek() != ")":
                self.fail("a parenthesis must be closed")
            self.at += 1
            if self.peek() not in ("", ",", "&", "|", ")"):
                self.fail("a parenthesis must be followed by ',', '&' or '|'")
            return expression
        if rest.startswith('label:"'):
            self.at += len("label:")
            inner = _Parser(self.name()[0])
            expression = inner.whole()
            self.limits += inner.limits
            return expression
        name, literal = self.name()
        if name.casefold() == "none" and not literal:
            return Nothing()
        if self.peek() in ("<", ">"):
            return self.limit(name, depth)
        return Has(name)

    def limit(self, name: str, depth: int) -> Expression:
        above = self.text[self.at] == ">"
        self.at += 1
        if self.text[self.at : self.at + 1] == "=":
            self.at += 1
        number = self.name()[0]
        try:
            bound = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError:
            bound = -1.0
        if not 0 <= bound <= 1:
            self.fail(f"a limit must be a probability such as 0.8 or 80%, and {number!r} is none")
        if depth:
            self.fail("a limit such as dog>0.8 must stand by itself between commas")
        self.limits.append(Limit(name, bound, above))
        return Has(name) if above else Not(Has(name))

    def name(self) -> tuple[str, bool]:
        """Return the next name, and whether some of it was quoted or escaped."""
        self.peek()
        letters: list[tuple[str, bool]] = []
        quoted = literal = False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "\\":
                self.at += 1
                if self.at == len(self.text):
                    self.fail("a backslash must be followed by a character")
                letters.append((self.text[self.at], True))
                literal = True
            elif letter == '"':
                quoted = not quoted
                literal = True
            elif quoted:
                letters.append((letter, True))
            elif letter in ",&|()<>":
                break
            else:
                letters.append((letter, False))
            self.at += 1
        if quoted:
            self.fail("a quotation mark must be closed")
        while letters and letters[-1][0].isspace() and not letters[-1][1]:
            letters.pop()
        name = "".join(letter for letter, _ in letters)
        if not name.strip():
            self.fail("a query must name a label between commas")
        return name, literal

    def peek(self) -> str:
        """Return the next character that is not a space; empty at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def fail(self, rule: str) -> NoReturn:
        raise DataError(f"{rule}, got {_shortened(self.text)!r}")


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
