r"""Query: what an image should show, as in ``dog, -beach`` or ``(cat | dog) & !sofa``.

query = any ("," | "&") any ...     all of them; "," and "&" mean the same
any   = item "|" item ...           one of them at least; "|" binds tighter, as in PhotoPrism
item  = ("-" | "!" | "not ") item | "(" query ")" | name [(">" | "<") number] | "none"
name  = plain text, or "quoted text" where every character stands for itself;
        a backslash takes the next character as it is: ``rock\, paper``, ``\-5 degrees``

``none`` asks for images that carry none of the labels. ``dog>0.8`` wants dogs, of images with
P(dog) > 0.8 alone; ``dog<0.2`` wants none, of images with P(dog) < 0.2. PhotoPrism's spelling
``label:"dog&!beach"`` is read as ``dog & !beach``. What people write otherwise ("dog and cat") is
understood well enough to suggest the right text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from labelwise.base.text import shortened
from labelwise.errors import DataError
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

DEEPEST = 50  # of what stands in parentheses
SHOWN = 120  # letters of a query in an error


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


def labels_of(expression: Expression) -> list[str]:
    """Return the labels in the order in which they are named, as often as they are."""
    match expression:
        case Has(name):
            return [name]
        case Not(part):
            return labels_of(part)
        case AllOf(parts) | AnyOf(parts):
            return [name for operand in parts for name in labels_of(operand)]
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


def joined(kind: type[AllOf] | type[AnyOf], parts: Sequence[Expression]) -> Expression:
    """Return all or any of the parts, each once; parts of the same kind are taken apart."""
    flat: list[Expression] = []
    for operand in parts:
        flat += operand.parts if isinstance(operand, kind) else [operand]
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else kind(unique)


def written(expression: Expression) -> str:
    """Return the text that is read as the expression."""
    match expression:
        case Has(name):
            return quoted(name)
        case Not(part):
            return f"-{written(part)}"
        case AllOf(parts):
            return f"({', '.join(map(written, parts))})"
        case AnyOf(parts):
            return f"({' | '.join(map(written, parts))})"
        case _:
            return "none"


def quoted(name: str) -> str:
    """Return a name as it stands in a text: in quotation marks where it has signs."""
    words = name.casefold().split()
    plain = name == " ".join(name.split()) and not set(name) & set('\\",|&()<>!')
    plain = plain and not name.startswith(("-", "label:")) and words[:1] not in (["not"], ["none"])
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return name if plain else f'"{escaped}"'


ESCAPED = re.compile(r"(?s)\\(.)")
NAME_PIECE = re.compile(
    r'\\(?P<letter>.)|"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<plain>[^\\",&|()<>]+)', re.DOTALL
)


class Parser:
    """Reads a text from left to right; ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.limits: list[Limit] = []

    def whole(self) -> Expression:
        if not self.text.strip():
            raise DataError("a query must name at least one label, as in 'dog, -beach'; got none")
        expression = self.every(depth=0)
        if not self.take(r"\Z"):
            self.fail("a parenthesis must be opened before it is closed")
        return expression

    def every(self, depth: int) -> Expression:
        parts = [self.some(depth)]
        while self.take("[,&]"):
            parts.append(self.some(depth))
        return joined(AllOf, parts)

    def some(self, depth: int) -> Expression:
        start = len(self.limits)
        parts = [self.item(depth)]
        while self.take(r"\|"):
            parts.append(self.item(depth))
        if len(parts) > 1 and len(self.limits) > start:
            self.fail("a limit such as dog>0.8 must stand by itself between commas")
        return joined(AnyOf, parts)

    def item(self, depth: int) -> Expression:
        if depth > DEEPEST:
            self.fail(f"parentheses and signs may be nested {DEEPEST} deep")
        if self.take(r"[-!]|(?i:not)(?=\s)"):
            start = len(self.limits)
            operand = self.item(depth + 1)
            if len(self.limits) > start:
                self.fail("a limit such as dog>0.8 cannot be negated; write dog<0.8")
            return operand.part if isinstance(operand, Not) else Not(operand)
        if self.take(r"\("):
            expression = self.every(depth + 1)
            if not self.take(r"\)"):
                self.fail("a parenthesis must be closed")
            if not self.take(r"(?=[,&|)]|\Z)"):
                self.fail("a parenthesis must be followed by ',', '&' or '|'")
            return expression
        if self.take('label:(?=")'):
            inner = Parser(self.name()[0])
            expression = inner.whole()
            self.limits += inner.limits
            return expression
        name, literal = self.name()
        if name.casefold() == "none" and not literal:
            return Nothing()
        sign = self.take("[<>]=?")
        return self.limit(name, ">" in sign[0], depth) if sign else Has(name)

    def limit(self, name: str, above: bool, depth: int) -> Expression:
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
        self.take("")
        name, kept, literal = "", 0, False  # blanks after ``kept`` letters do not count
        while piece := NAME_PIECE.match(self.text, self.at):
            self.at = piece.end()
            name += piece["letter"] or piece["plain"] or ESCAPED.sub(r"\1", piece["quoted"])
            kept = kept if piece["plain"] else len(name)
            literal = literal or not piece["plain"]
        if self.text.startswith("\\", self.at):
            self.fail("a backslash must be followed by a character")
        if self.text.startswith('"', self.at):
            self.fail("a quotation mark must be closed")
        name = name[:kept] + name[kept:].rstrip()
        if not name.strip():
            self.fail("a query must name a label between commas")
        return name, literal

    def take(self, pattern: str) -> re.Match[str] | None:
        """Go past what comes next, and blanks before it, if it is as the pattern says."""
        found = re.compile(rf"\s*(?:{pattern})").match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def fail(self, rule: str) -> NoReturn:
        raise DataError(f"{rule}, got {shortened(self.text, SHOWN)!r}")


MOST_REPEATED = 6


def simplified(expression: Expression) -> Expression:
    """Return an equal expression over the same labels or fewer; an error if it takes too long.

        not (a or b)                not a and not b     signs go down to the labels
        a and (a or b)              a                   what is said once holds everywhere
        (a or b) and (a or b or c)  a or b              the weaker of two parts is left out

    and the same with "and" and "or" exchanged. A label that is still named twice doubles the work
    of the exact probability.
    """
    simple = _simple(expression, wanted=True, facts={})
    # Always or never true: there is no word for that, so it stays as it was written.
    kept = expression if isinstance(simple, bool) else simple
    repeated = repeated_labels(kept)
    if len(repeated) > MOST_REPEATED:
        raise DataError(
            f"a query may name {MOST_REPEATED} labels more than once, as in (cat | dog), "
            f"(cat | sofa), got {len(repeated)} that cannot be simplified; ask in several queries"
        )
    return kept


def given(expression: Expression, name: str, present: bool) -> Expression | bool:
    """Return what is left to be asked where a label is known."""
    return _simple(expression, wanted=True, facts={name: present})


def independent_parts(expression: Expression) -> list[Expression]:
    """Return the parts of "all of" or "any of", those that share a label joined into one."""
    if not isinstance(expression, AllOf | AnyOf):
        return [expression]
    groups: list[tuple[set[str], list[Expression]]] = []
    for operand in expression.parts:
        names, members = set(labels_of(operand)), [operand]
        for group in [group for group in groups if group[0] & names]:
            names, members = names | group[0], group[1] + members
            groups.remove(group)
        groups.append((names, members))
    kind = type(expression)
    return [members[0] if len(members) == 1 else kind(tuple(members)) for _, members in groups]


def repeated_labels(expression: Expression) -> list[str]:
    """Return the labels named more than once, the most frequent first."""
    return [name for name, count in Counter(labels_of(expression)).most_common() if count > 1]


def _simple(expression: Expression, wanted: bool, facts: Mapping[str, bool]) -> Expression | bool:
    """Return an expression (its opposite, if not ``wanted``) where some labels are known."""
    match expression:
        case Has(name):
            if name in facts:
                return facts[name] == wanted
            return expression if wanted else Not(expression)
        case Not(part):
            return _simple(part, not wanted, facts)
        case AllOf(parts) | AnyOf(parts):
            return _joined(parts, wanted, isinstance(expression, AllOf) == wanted, facts)
        case _:
            raise ValueError("an expression must be bound to columns first")


def _joined(
    parts: tuple[Expression, ...], wanted: bool, every: bool, facts: Mapping[str, bool]
) -> Expression | bool:
    """Return all of some parts (``every``), or any of them, each negated if not ``wanted``."""
    own = AllOf if every else AnyOf
    flat: dict[Expression, None] = {}
    for operand in parts:
        simple = _simple(operand, wanted, facts)
        if isinstance(simple, bool):
            if simple != every:
                return simple
            continue
        flat |= dict.fromkeys(simple.parts if isinstance(simple, own) else (simple,))
    # A label alone decides what it is wherever the result still depends on other parts.
    alone = dict(literal for literal in map(literal_of, flat) if literal is not None)
    if any((Has(name) in flat) and (Not(Has(name)) in flat) for name in alone):
        return not every
    others = [operand for operand in flat if literal_of(operand) is None]
    if any(name in alone for operand in others for name in labels_of(operand)):
        learned = {**facts, **{name: yes == every for name, yes in alone.items()}}
        literals = tuple(operand for operand in flat if operand not in others)
        rest = _joined(tuple(others), True, every, learned)
        if isinstance(rest, bool):
            return rest if rest != every else joined(own, literals)
        return _joined((*literals, rest), True, every, facts)
    sets = {
        operand: frozenset(operand.parts if isinstance(operand, AllOf | AnyOf) else (operand,))
        for operand in flat
    }
    strongest = [each for each in flat if not any(weaker < sets[each] for weaker in sets.values())]
    return joined(own, strongest) if strongest else every


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
class Query:
    """What an image should show, and limits on single probabilities."""

    expression: Expression
    limits: tuple[Limit, ...] = ()

    @classmethod
    def of(cls, wanted: Iterable[str], unwanted: Iterable[str] = ()) -> "Query":
        parts: list[Expression] = [Has(name) for name in dict.fromkeys(wanted)]
        parts += [Not(Has(name)) for name in dict.fromkeys(unwanted)]
        if not parts:
            raise DataError("a query must name at least one label, as in 'dog, -beach'; got none")
        query = cls(joined(AllOf, parts))
        query._refuse_contradiction()
        return query

    @classmethod
    def parse(
        cls, text: str, space: LabelSpace | None = None, taxonomy: Taxonomy | None = None
    ) -> "Query":
        """Return the query that ``text`` writes; with ``space``, check that its labels exist."""
        parser = Parser(text)
        try:
            expression = parser.whole()
        except DataError:
            if space is None or text.strip() not in space.names:
                raise
            raise _mistaken(text, cls(Has(text.strip()))) from None  # it has signs in its name
        query = cls(expression, tuple(parser.limits))
        query._refuse_contradiction()
        if space is None:
            return query
        tree, whole = taxonomy or Taxonomy(), text.strip()
        try:
            for name in query.names():
                tree.labels(name, space)
        except DataError:
            meant = cls(Has(whole)) if whole in space.names else _with_signs(text, space, tree)
            if meant is None:
                raise
            raise _mistaken(text, meant) from None
        return query

    def names(self) -> tuple[str, ...]:
        names = dict.fromkeys(labels_of(self.expression))
        return tuple(names | dict.fromkeys(limit.name for limit in self.limits))

    @property
    def wanted(self) -> tuple[str, ...]:
        return self._labels(True)

    @property
    def unwanted(self) -> tuple[str, ...]:
        return self._labels(False)

    def _labels(self, wanted: bool) -> tuple[str, ...]:
        literals = filter(None, map(literal_of, self._parts()))
        return tuple(name for name, sign in literals if sign == wanted)

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
        for operand in self._parts():
            base = operand.part if isinstance(operand, Not) else operand
            limit = limits.pop((getattr(base, "name", ""), operand is base), None)
            if limit is None:
                items.append(written(operand))
            else:
                items.append(f"{quoted(limit.name)}{'>' if limit.above else '<'}{limit.bound!r}")
        return ", ".join(items)


def complete(text: str, space: LabelSpace, taxonomy: Taxonomy | None = None) -> list[str]:
    """Return the query texts in which the last, unfinished name of ``text`` is a label's.

    >>> complete("dog, -be", LabelSpace(("dog", "beach", "bench", "sea bear")))
    ['dog, -beach', 'dog, -bench', 'dog, -sea bear']
    """
    start = max((text.rfind(mark) for mark in ',&|(!-"'), default=-1) + 1
    start = len(text) - len(text[start:].lstrip())
    typed = text[start:].casefold()
    names = dict.fromkeys([*space.names, *(taxonomy or Taxonomy()).parents.values()])
    first = [name for name in names if name.casefold().startswith(typed)]
    inside = [name for name in names if name not in first and f" {typed}" in f" {name.casefold()}"]
    return [text[:start].removesuffix('"') + quoted(name) for name in (*first, *inside)]


def _mistaken(text: str, meant: Query) -> DataError:
    return DataError(
        f"a query joins labels by ',' (all of them) or '|' (one of them at least), got "
        f"{shortened(text, SHOWN)!r}; did you mean {shortened(str(meant), SHOWN)!r}?"
    )


def _with_signs(text: str, space: LabelSpace, taxonomy: Taxonomy) -> Query | None:
    """Return the query with signs for words or blanks; None if unknown or read in two ways."""
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

    As few names as possible; words that are not such names, or in two ways, stay as they are.
    """
    words = text.split()
    if len(words) > MOST_WORDS:
        return text
    ways: list[list[tuple[str, ...]]] = [[()]]  # the shortest ways to write the first n words
    for end in range(1, len(words) + 1):
        names = [
            (*before, quoted(known[name]))
            for start in range(end)
            if (name := " ".join(words[start:end]).casefold()) in known
            for before in ways[start]
        ]
        fewest = min(map(len, names), default=0)
        ways.append([way for way in names if len(way) == fewest][:2])
    return ", ".join(ways[-1][0]) if len(ways[-1]) == 1 else text
