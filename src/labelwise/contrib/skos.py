"""SKOS vocabularies, such as Getty's AAT, as taxonomies.

Read are N-Triples: a file (.nt), or a folder of them such as AAT's dump. A concept is named by its
prefLabel in the language asked for, else without a language, else in the first one by name; in
SKOS-XL by the literalForm of its term. Two concepts of one name are named by their addresses. The
parent is Getty's broaderPreferred, else broader or broaderGeneric, or narrower of the other one.
"""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from labelwise.errors import DataError

SKOS = "http://www.w3.org/2004/02/skos/core#"
SKOS_XL = "http://www.w3.org/2008/05/skos-xl#"
GVP = "http://vocab.getty.edu/ontology#"
TRIPLE = re.compile(
    r"<([^>]*)>\s+<([^>]*)>\s+(?:<([^>]*)>|(_:\S+)|"
    r'"((?:[^"\\]|\\[tbnrf"\x27\\]|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8})*)"'
    r"(?:@([A-Za-z0-9-]+)|\^\^<[^>]*>)?)\s*\.\s*(?:#.*)?"
)
PREFERRED, BROADER = GVP + "broaderPreferred", (SKOS + "broader", GVP + "broaderGeneric")
NARROWER = SKOS + "narrower"  # the same, said by the other one
NAME, TERM, FORM = SKOS + "prefLabel", SKOS_XL + "prefLabel", SKOS_XL + "literalForm"

Statement = tuple[str, str, str, str | None]  # concept, property, value, language


def read_skos(path: Path, language: str = "en") -> tuple[dict[str, str], dict[str, str]]:
    """Return the parent of each name of a vocabulary, and the address of each name's concept."""
    files = sorted(path.glob("*.nt")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: a folder of a vocabulary holds files of N-Triples (.nt)")
    if not path.is_dir() and path.suffix.lower() != ".nt":
        raise DataError(
            f"{path}: a vocabulary is read as N-Triples (.nt); convert it, for example with "
            f"`rapper -i guess -o ntriples {shlex.quote(str(path))} > vocabulary.nt`"
        )
    return _names(path, (triple for file in files for triple in _triples(file)), language)


def _names(
    path: Path, statements: Iterable[Statement], language: str
) -> tuple[dict[str, str], dict[str, str]]:
    listed: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for concept, what, value, tongue in statements:
        listed[what].append((concept, value, tongue or ""))
    forms = {term: (value, tongue) for term, value, tongue in listed[FORM]}
    named = ((concept, *forms[term]) for concept, term, _ in listed[TERM] if term in forms)
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for concept, value, tongue in (*listed[NAME], *named):
        labels[concept].setdefault(tongue, value.strip())
    broader: dict[str, set[str]] = defaultdict(set)
    preferred: dict[str, set[str]] = defaultdict(set)
    for concept, parent, _ in (*listed[BROADER[0]], *listed[BROADER[1]]):
        broader[concept].add(parent)
    for parent, concept, _ in listed[NARROWER]:
        broader[concept].add(parent)
    for concept, parent, _ in listed[PREFERRED]:
        preferred[concept].add(parent)
    if not labels:
        raise DataError(
            f"{path}: no concept has a skos:prefLabel, and no term a skosxl:literalForm; of AAT's "
            "dump name the folder with all files"
        )
    chosen = {}
    for concept, by_tongue in labels.items():
        ranked = [(t != language, not t.startswith(f"{language}-"), t) for t in by_tongue]
        chosen[concept] = by_tongue[min(ranked)[2]]  # "" is the first of all other languages
    counts = Counter(chosen.values())
    names = {concept: name if counts[name] == 1 else concept for concept, name in chosen.items()}
    parents: dict[str, str] = {}
    for concept, name in names.items():
        above = {parent for parent in preferred[concept] or broader[concept] if parent in names}
        if len(above) > 1:
            first, second, *_ = sorted(names[parent] for parent in above)
            raise DataError(
                f"{path}: {name!r} ({concept}) has two parents, {first!r} and {second!r}; a "
                "taxonomy has one: keep one, or state it as gvp:broaderPreferred"
            )
        if above:
            parents[name] = names[above.pop()]
    if not parents:
        raise DataError(f"{path}: the vocabulary says of nothing what it is a kind of")
    return parents, {name: concept for concept, name in names.items()}


def _triples(path: Path) -> Iterator[Statement]:
    """Yield the statements of a file of N-Triples, which may be large, line by line."""

    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(map(str.strip, lines), 1):
                if not line or line.startswith(("#", "_:")):  # a node without address names nothing
                    continue
                match = TRIPLE.fullmatch(line)
                if match is None:
                    raise DataError(f"{path}, line {number}: not a statement of N-Triples")
                concept, what, other, nameless, words, tongue = match.groups()
                if nameless is not None:
                    continue
                try:
                    escaped = (words or "").encode("latin-1", "backslashreplace")
                    value = other if other is not None else escaped.decode("unicode_escape")
                    value.encode()  # half of a surrogate pair is not a letter
                except (ValueError, OverflowError):
                    raise DataError(f"{path}, line {number}: an escape is of no letter") from None
                yield concept, what, value, tongue
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the vocabulary cannot be read ({error})") from None
