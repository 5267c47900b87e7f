r"""Query: labels wanted and unwanted, as in ``dog, -beach``.

query = item ("," item)*            item = ["-"] name
name  = plain text, or "quoted text" where commas and dashes stand for themselves;
        a backslash takes the next character as it is: ``rock\, paper``, ``\-5 degrees``
"""

from dataclasses import dataclass

from labelwise.errors import DataError
from labelwise.types import LabelSpace

__all__ = ["Query"]


@dataclass(frozen=True)
class Query:
    """Labels an image must carry, and labels it must not carry."""

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", tuple(dict.fromkeys(self.wanted)))
        object.__setattr__(self, "unwanted", tuple(dict.fromkeys(self.unwanted)))
        if not self.wanted and not self.unwanted:
            raise DataError("a query must name at least one label, as in 'dog, -beach'; got none")
        for name in self.wanted:
            if name in self.unwanted:
                raise DataError(f"a label cannot be both wanted and unwanted, got {name!r} twice")

    @classmethod
    def parse(cls, text: str, space: LabelSpace | None = None) -> "Query":
        """Return the query that ``text`` writes; with ``space``, check that its labels exist."""
        wanted: list[str] = []
        unwanted: list[str] = []
        for name, negated in _items(text):
            if not name:
                raise DataError(f"a query must name a label between commas, got {text!r}")
            (unwanted if negated else wanted).append(name)
        query = cls(tuple(wanted), tuple(unwanted))
        if space is not None:
            query.columns(space)
        return query

    def columns(self, space: LabelSpace) -> tuple[list[int], list[int]]:
        """Return the columns wanted and unwanted; an unknown label says which are nearest."""
        return [space.column(n) for n in self.wanted], [space.column(n) for n in self.unwanted]

    def __str__(self) -> str:
        items = [_quoted(name) for name in self.wanted]
        return ", ".join(items + [f"-{_quoted(name)}" for name in self.unwanted])


def _quoted(name: str) -> str:
    plain = name == name.strip() and not name.startswith("-") and not set(name) & set(',"\\')
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return name if plain else f'"{escaped}"'


def _items(text: str) -> list[tuple[str, bool]]:
    """Return (name, negated) for each item between commas outside quotes."""
    if not text.strip():
        return []
    items: list[tuple[str, bool]] = []
    name: list[tuple[str, bool]] = []  # characters, and whether they stand for themselves
    quoted = False
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, None)
            if following is None:
                raise DataError(f"a backslash must be followed by a character, got {text!r}")
            name.append((following, True))
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            items.append(_item(name))
            name = []
        else:
            name.append((character, quoted))
    if quoted:
        raise DataError(f"a quotation mark must be closed, got {text!r}")
    return [*items, _item(name)]


def _item(characters: list[tuple[str, bool]]) -> tuple[str, bool]:
    """Strip unprotected spaces at both ends and one unprotected dash at the front."""
    characters = _stripped(characters)
    negated = bool(characters) and characters[0] == ("-", False)
    if negated:
        characters = _stripped(characters[1:])
    return "".join(character for character, _ in characters), negated


def _stripped(characters: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    kept = [
        i for i, (character, literal) in enumerate(characters) if literal or not character.isspace()
    ]
    return characters[kept[0] : kept[-1] + 1] if kept else []
