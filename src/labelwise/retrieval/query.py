"""Query: what an image should show, as in ``dog, -beach`` or ``(cat | dog) & !sofa``.

Its grammar is in :mod:`labelwise.retrieval.expression`. Here its labels are looked up, and what
people write otherwise ("dog and cat") is understood well enough to suggest the right text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from labelwise.errors import DataError
from labelwise.retrieval.expression import (
    SHOWN,
    AllOf,
    Expression,
    Has,
    Limit,
    Not,
    Parser,
    joined,
    labels_of,
    literal_of,
    quoted,
    written,
)
from labelwise.system.text import shortened
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

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
        """Return the query for images with all the wanted and none of the unwanted labels."""
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
        """Return the names in the query, each once."""
        names = dict.fromkeys(labels_of(self.expression))
        return tuple(names | dict.fromkeys(limit.name for limit in self.limits))

    @property
    def wanted(self) -> tuple[str, ...]:
        """The labels that every image found must carry."""
        return self._labels(True)

    @property
    def unwanted(self) -> tuple[str, ...]:
        """The labels that no image found may carry."""
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
            limit = (
                limits.pop((base.name, operand is base), None) if isinstance(base, Has) else None
            )
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
    while start < len(text) and text[start].isspace():
        start += 1
    typed = text[start:].casefold()
    parents = () if taxonomy is None else taxonomy.parents.values()
    names = dict.fromkeys([*space.names, *parents])
    first = [name for name in names if name.casefold().startswith(typed)]
    inside = [name for name in names if name not in first and f" {typed}" in f" {name.casefold()}"]
    head = text[:start].removesuffix('"')
    return [head + quoted(name) for name in (*first, *inside)]


def _mistaken(text: str, meant: Query) -> DataError:
    """Return the error that suggests how a query is written."""
    return DataError(
        f"a query joins labels by ',' (all of them) or '|' (one of them at least), got "
        f"{shortened(text, SHOWN)!r}; did you mean {shortened(str(meant), SHOWN)!r}?"
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
        names = [
            (*before, quoted(known[name]))
            for start in range(end)
            if (name := " ".join(words[start:end]).casefold()) in known
            for before in ways[start]
        ]
        fewest = min(map(len, names), default=0)
        ways.append([way for way in names if len(way) == fewest][:2])
    return ", ".join(ways[-1][0]) if len(ways[-1]) == 1 else text
