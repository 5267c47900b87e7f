"""SKOS vocabularies, such as Getty's AAT, as taxonomies.

Read are N-Triples (.nt, or a folder of them such as AAT's dump), RDF/XML (.rdf, .xml) and JSON-LD
(.jsonld). A concept is named by its prefLabel in the language asked for, else without a language,
else in the first one by name; in SKOS-XL by the literalForm of its term. Two concepts of one name
are named by their addresses. The parent is Getty's broaderPreferred, else broader or
broaderGeneric, or narrower of the other one.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from labelwise.errors import DataError
from labelwise.tables.rows import read_json, read_xml

SKOS = "http://www.w3.org/2004/02/skos/core#"
SKOS_XL = "http://www.w3.org/2008/05/skos-xl#"
GVP = "http://vocab.getty.edu/ontology#"
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
TRIPLE = re.compile(
    r"<([^>]*)>\s+<([^>]*)>\s+"
    r'(?:<([^>]*)>|(_:\S+)|"((?:[^"\\]|\\.)*)"(?:@([A-Za-z0-9-]+)|\^\^<[^>]*>)?)\s*\.\s*(?:#.*)?'
)
PREFERRED, BROADER = GVP + "broaderPreferred", (SKOS + "broader", GVP + "broaderGeneric")
NARROWER = SKOS + "narrower"  # the same, said by the other one
NAME, TERM, FORM = SKOS + "prefLabel", SKOS_XL + "prefLabel", SKOS_XL + "literalForm"
WANTED = (NAME, TERM, FORM, *BROADER, PREFERRED, NARROWER)
KEYS = {what.rpartition("#")[2]: what for what in reversed(WANTED)}
ESCAPE = re.compile(r'\\[tnr"\\]|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}')
ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", '\\"': '"', "\\\\": "\\"}

Statement = tuple[str, str, str, str | None]  # concept, property, value, language


class SkosNames(NamedTuple):
    """The parent of each name, and the address of each concept by its name."""

    parents: dict[str, str]
    uris: dict[str, str]


def read_skos(path: Path, language: str = "en") -> SkosNames:
    """Return the parent of each name of a vocabulary, and the address of each."""
    suffix = path.suffix.lower()
    if path.is_dir():
        files = sorted(path.glob("*.nt"))
        if not files:
            raise DataError(f"{path}: a folder of a vocabulary holds files of N-Triples (.nt)")
        return _names(path, (triple for file in files for triple in _triples(file)), language)
    if suffix == ".nt":
        return _names(path, _triples(path), language)
    if suffix == ".ttl":
        raise DataError(
            f"{path}: Turtle is not read; write it as N-Triples (.nt) or RDF/XML (.rdf), for "
            "example with `rapper -i turtle -o ntriples`"
        )
    try:
        statements = _json_ld(read_json(path)) if suffix == ".jsonld" else _xml(read_xml(path))
    except OSError as error:
        raise DataError(f"{path}: the vocabulary cannot be read ({error})") from None
    return _names(path, statements, language)


def _names(path: Path, statements: Iterable[Statement], language: str) -> SkosNames:
    said: dict[str, list[tuple[str, str, str]]] = {what: [] for what in WANTED}
    for concept, what, value, tongue in statements:
        if what in said:
            said[what].append((concept, value, tongue or ""))
    forms = {term: (value, tongue) for term, value, tongue in said[FORM]}
    terms = said[TERM]
    named = ((concept, *forms[term]) for concept, term, _ in terms if term in forms)
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for concept, value, tongue in (*said[NAME], *named):
        labels[concept].setdefault(tongue, value.strip())
    broader: dict[str, set[str]] = defaultdict(set)
    preferred: dict[str, set[str]] = defaultdict(set)
    turned = ((concept, parent, "") for parent, concept, _ in said[NARROWER])
    for concept, parent, _ in (*said[BROADER[0]], *said[BROADER[1]], *turned):
        broader[concept].add(parent)
    for concept, parent, _ in said[PREFERRED]:
        preferred[concept].add(parent)
    if terms and not labels:
        why = "no term of a concept has a skosxl:literalForm"
        raise DataError(f"{path}: {why}; of AAT's dump name the folder with all files")
    if not labels:
        raise DataError(f"{path}: no concept has a skos:prefLabel")
    chosen = {}
    for concept, by_tongue in labels.items():
        variants = [tag for tag in sorted(by_tongue) if tag.startswith(f"{language}-")]
        tongues = [tag for tag in (language, *variants, "") if tag in by_tongue]
        chosen[concept] = by_tongue[tongues[0] if tongues else min(by_tongue)]
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
    return SkosNames(parents, {name: concept for concept, name in names.items()})


def _triples(path: Path) -> Iterator[Statement]:
    """Yield the statements of a file of N-Triples, which may be large, line by line."""

    def plain(escape: re.Match[str]) -> str:
        return ESCAPES.get(escape[0]) or chr(int(escape[0][2:], 16))

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
                    value = other if other is not None else ESCAPE.sub(plain, words)
                    value.encode()  # half of a surrogate pair is not a letter
                except (ValueError, OverflowError):
                    raise DataError(f"{path}, line {number}: an escape is of no letter") from None
                yield concept, what, value, tongue
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the vocabulary cannot be read ({error})") from None


def _xml(root: ElementTree.Element) -> Iterator[Statement]:
    for node in root:
        concept = node.get(f"{RDF}about")
        if concept is None:
            continue
        for child in node:
            what = child.tag.replace("{", "").replace("}", "")
            value = child.get(f"{RDF}resource") or (child.text or "")
            yield concept, what, value, child.get(XML_LANG)


def _json_ld(content: Any) -> Iterator[Statement]:
    nodes = content.get("@graph", [content]) if isinstance(content, dict) else content
    for node in nodes if isinstance(nodes, list) else ():
        concept = node.get("@id", node.get("id")) if isinstance(node, dict) else None
        if not isinstance(concept, str):
            continue
        for key, value in node.items():
            what = KEYS.get(key.rpartition(":")[2].rpartition("#")[2])
            if what is not None:
                for item in value if isinstance(value, list) else [value]:
                    yield from _values(concept, what, item)


def _values(concept: str, what: str, one: Any) -> Iterator[Statement]:
    if isinstance(one, str):
        yield concept, what, one, None
    elif isinstance(one, dict):
        address = one.get("@id", one.get("id"))
        if "@id" not in one and ":" not in str(address):  # the name in Indonesian, "id"
            address = None
        value = one.get("@value") if address is None else address
        if isinstance(value, str):
            what = TERM if what == NAME and address is not None else what
            tongue = one.get("@language")
            yield concept, what, value, tongue if isinstance(tongue, str) else None
        elif what == NAME:  # a language map: {"en": "dog"}
            for tongue, word in one.items():
                if isinstance(word, str) and not tongue.startswith("@"):
                    yield concept, what, word, tongue
