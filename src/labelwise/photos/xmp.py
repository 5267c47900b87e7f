"""Keywords in XMP side-cars: added to what is there, marked as ours, and taken out again.

Our keywords go into the lists that exist, unless they are there already; otherwise into lists of a
description of our own, which also notes, as ``labelwise:tags``, each label with its origin and the
lists it was added to. Anyone can write such a note, so :func:`untagged` takes out only what the
note names *and* the caller knows to be ours.

The tree is that of ``xml.dom.minidom``, which keeps prefixes, comments and white space; only the
padding around the root element is lost.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from xml.dom import XMLNS_NAMESPACE
from xml.dom.minidom import Comment, Document, Element, Node, Text, parseString
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from labelwise.errors import DataError

LARGEST = 4 << 20
MOST_TAGS = 200_000
SPACE = " \t\r\n"
# minidom writes white space in attributes as it is, which is read as blanks. Marks that no XML may
# hold keep its place until the tree is text.
MARKS = {"\n": "\ufffen", "\t": "\ufffet", "\r": "\ufffer"}


def _tree(text: str) -> Document:
    try:
        return parseString(text)
    except (expat.ExpatError, ValueError) as error:
        raise DataError(f"the side-car is not well-formed XML: {error}") from None


class Sidecar:
    """The tree of a side-car; anything but plain XML in UTF-8 of a usual size is a DataError."""

    def __init__(self, data: bytes) -> None:
        if len(data) > LARGEST:
            raise DataError(f"a side-car must have at most {LARGEST:,} bytes, got {len(data):,}")
        if data.count(b"<") > MOST_TAGS:
            raise DataError(f"a side-car must have at most {MOST_TAGS:,} tags")
        if b"<!DOCTYPE" in data:
            raise DataError("a side-car must not declare a document type")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise DataError("a side-car must be UTF-8 to be edited, this one is not") from None
        self._document = _tree(text)
        paths = (("adobe:ns:meta/ xmpmeta", f"{RDF} RDF"), (f"{RDF} RDF",))
        roots = [rdf for path in paths for rdf in _find(self._document, *path)]
        if not roots:
            raise DataError("the side-car holds no rdf:RDF element")
        self.rdf = roots[0]

    @property
    def notes(self) -> list[Element]:
        return list(_find(self.rdf, *NOTES))

    @property
    def about(self) -> str:
        """What the first description is about, as all of one photo must say."""
        abouts = (
            description.getAttributeNS(RDF, "about") for description in _find(self.rdf, DESCRIPTION)
        )
        return next(abouts, "")

    def containers(self, kind: "_List") -> list[Element]:
        """Return the lists of a kind; a property that holds no list is an error."""
        containers = []
        for prop in _find(self.rdf, DESCRIPTION, kind.property):
            bags = [child for child in _elements(prop) if _name(child) in CONTAINERS]
            if not bags:
                raise DataError(f"{kind.written} must be a list of keywords, it is something else")
            containers.append(bags[0])
        return containers

    def extend(self, container: Element, words: Sequence[str]) -> None:
        """Put words behind the last of a list, indented as that is."""
        prefix = container.tagName.rpartition(":")[0]
        items = list(_find(container, f"{RDF} li"))
        before = items[-1].previousSibling if items else None
        indent = before.data if isinstance(before, Text) and not before.data.strip(SPACE) else ""
        for word in words:
            item = self._document.createElementNS(RDF, f"{prefix}:li".lstrip(":"))
            item.appendChild(self._document.createTextNode(word))
            self._add(container, indent, item)

    def describe(self, text: str) -> None:
        """Add a description to the others."""
        (description,) = _elements(_tree(text))
        self._add(self.rdf, "\n  ", self._document.importNode(description, True))

    def _add(self, parent: Element, space: str, child: Element) -> None:
        """Put a child behind the last element of its parent, after some white space."""
        last = next((element for element in _elements(parent)[::-1]), None)
        following = parent.firstChild if last is None else last.nextSibling
        place = following if isinstance(following, Element | Text | Comment) else None
        if space:
            parent.insertBefore(self._document.createTextNode(space), place)
        parent.insertBefore(child, place)

    def data(self) -> bytes:
        """Return the side-car as bytes, which can be read again."""
        try:
            for element in self._document.getElementsByTagName("*"):
                for attribute in element.attributes.values():
                    for character in set(attribute.value).intersection(MARKS):
                        attribute.value = attribute.value.replace(character, MARKS[character])
            text = "\n".join(node.toxml() for node in self._document.childNodes)
        except RecursionError:
            raise DataError("the elements of a side-car must not be hundreds deep") from None
        for character, mark in MARKS.items():
            text = text.replace(mark, f"&#{ord(character)};")
        _tree(text)  # words may hold what XML has no way to write
        return text.encode()


def _name(element: Element) -> str:
    return f"{element.namespaceURI} {element.localName}"


def _elements(node: Node) -> list[Element]:
    return [child for child in node.childNodes if isinstance(child, Element)]


def _find(node: Node, *path: str) -> Iterator[Element]:
    """Yield the elements below a node along a path of names."""
    for child in _elements(node):
        if _name(child) == path[0]:
            yield from _find(child, *path[1:]) if path[1:] else (child,)


def _text(element: Element) -> str:
    return "".join(child.data for child in element.childNodes if isinstance(child, Text))


def _take_out(element: Element) -> None:
    """Remove an element with the white space before it."""
    before, parent = element.previousSibling, element.parentNode
    if isinstance(before, Text):
        before.data = before.data.rstrip(SPACE)
    if parent is not None:
        parent.removeChild(element)


RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
OURS = "urn:labelwise:xmp:1.0:"
DESCRIPTION = f"{RDF} Description"
CONTAINERS = (f"{RDF} Bag", f"{RDF} Seq", f"{RDF} Alt")
NOTES = (DESCRIPTION, f"{OURS} tags", f"{RDF} Bag", f"{RDF} li")

Written = Mapping[str, Collection[str]]  # the entries of each list, by its prefix
NOTHING: Written = MappingProxyType({})

EMPTY = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="{RDF}">
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>""".encode()


@dataclass(frozen=True)
class Keyword:
    """A label to be written, with where it comes from; ``parents`` lead from the top to it.

    ``caution`` is what must stand beside the probability, None if nothing must.
    """

    label: str
    probability: float
    model: str
    date: str
    parents: tuple[str, ...] = ()
    caution: str | None = None


@dataclass(frozen=True)
class _List:
    """A list of keywords that photo programs read; ``separator`` stands between levels."""

    prefix: str
    name: str
    space: str
    container: str
    separator: str | None

    @property
    def written(self) -> str:
        return f"{self.prefix}:{self.name}"

    @property
    def property(self) -> str:
        return f"{self.space} {self.name}"

    def spelled(self, keyword: Keyword) -> str:
        levels = () if self.separator is None else keyword.parents
        return (self.separator or "").join((*levels, keyword.label))

    def of(self, words: Sequence[str]) -> str:
        items = "".join(f"<rdf:li>{escape(word)}</rdf:li>" for word in words)
        bag = f"<rdf:{self.container}>{items}</rdf:{self.container}>"
        return f"   <{self.written}>{bag}</{self.written}>"


LISTS = {
    form.prefix: form
    for form in (
        _List("dc", "subject", "http://purl.org/dc/elements/1.1/", "Bag", None),
        _List("lr", "hierarchicalSubject", "http://ns.adobe.com/lightroom/1.0/", "Bag", "|"),
        _List("digiKam", "TagsList", "http://www.digikam.org/ns/1.0/", "Seq", "/"),
    )
}


def tagged(data: bytes | None, keywords: Sequence[Keyword], ours: Written = NOTHING) -> bytes:
    """Return a side-car with exactly these keywords of ours in place of ``ours``."""
    data = EMPTY if data is None or data == EMPTY else untagged(data, ours)
    if not keywords:
        return data
    sidecar, absent = Sidecar(data), list[str]()
    written: dict[str, list[str]] = {}  # the labels that we put into each list
    for prefix, kind in LISTS.items():
        containers = sidecar.containers(kind)[:1]
        there = _texts(*containers)
        new = [keyword for keyword in keywords if kind.spelled(keyword) not in there]
        written[prefix] = [keyword.label for keyword in new]
        for container in containers:
            sidecar.extend(container, [kind.spelled(keyword) for keyword in new])
        absent += [] if containers else [prefix]
    sidecar.describe(_description(sidecar.about, keywords, written, absent))
    return sidecar.data()


def differ_in_dates_alone(one: bytes, other: bytes) -> bool:
    """Return whether two side-cars say the same but for when our keywords were given."""
    date = re.compile(rb"<labelwise:date>[^<]*</labelwise:date>")
    return date.sub(b"", one) == date.sub(b"", other)


def begun(packet: bytes | None, words: Sequence[str]) -> bytes:
    """Return the first side-car of a photo: its packet, if readable, with its other words."""
    data = EMPTY
    if packet is not None:
        with suppress(DataError):
            Sidecar(packet)
            data = packet
    sidecar, kind = Sidecar(data), LISTS["dc"]
    containers = sidecar.containers(kind)[:1]
    there = _texts(*containers)
    new = [word for word in dict.fromkeys(words) if word not in there]
    if not new:
        return data
    if containers:
        sidecar.extend(containers[0], new)
    else:
        sidecar.describe(
            f'<rdf:Description xmlns:rdf="{RDF}" rdf:about={quoteattr(sidecar.about)}'
            f' xmlns:dc="{kind.space}">\n{kind.of(new)}\n  </rdf:Description>'
        )
    return sidecar.data()


def noted(data: bytes) -> dict[str, list[str]]:
    """Return what the notes of a side-car name: true of bytes that we wrote, else a claim."""
    notes = Sidecar(data).notes
    return {prefix: sorted({_field(note, prefix) for note in notes} - {""}) for prefix in LISTS}


def entries(data: bytes) -> dict[str, set[str]]:
    """Return the entries of each list of keywords of a side-car, ours and others."""
    sidecar = Sidecar(data)
    return {prefix: _texts(*sidecar.containers(kind)) for prefix, kind in LISTS.items()}


def _texts(*containers: Element) -> set[str]:
    return {_text(item).strip() for bag in containers for item in _find(bag, f"{RDF} li")}


def untagged(data: bytes, ours: Written) -> bytes:
    """Return a side-car without what :func:`tagged` put there: entries in ``ours`` and noted."""
    sidecar, gone = Sidecar(data), list[Element]()
    for prefix, kind in LISTS.items():
        claimed = {_field(note, prefix) for note in sidecar.notes} & set(ours.get(prefix, ()))
        for container in sidecar.containers(kind) if claimed else ():
            first: dict[str, Element] = {}
            for item in _find(container, f"{RDF} li"):
                first.setdefault(_text(item).strip(), item)
            gone += [first[spelled] for spelled in claimed if spelled in first]
    removed = set(map(id, gone))
    for description in _find(sidecar.rdf, DESCRIPTION):
        tags = list(_find(description, f"{OURS} tags"))
        if not tags:
            continue
        emptied = [
            prop
            for kind in LISTS.values()
            for prop in _find(description, kind.property)
            if all(id(item) in removed for child in _elements(prop) for item in _elements(child))
        ]
        others = {
            attribute.name
            for attribute in description.attributes.values()
            if attribute.namespaceURI != XMLNS_NAMESPACE
        }
        whole = len(tags) + len(emptied) == len(_elements(description))
        gone += [description] if whole and others <= {"rdf:about"} else [*tags, *emptied]
    for element in gone:
        _take_out(element)
    return sidecar.data() if gone else data


def _field(note: Element, name: str) -> str:
    """Return what a note says under a name, as an attribute or as an element."""
    for holder in (note, *_find(note, DESCRIPTION)):
        if value := holder.getAttributeNS(OURS, name):
            return value
        for child in _find(holder, f"{OURS} {name}"):
            return _text(child)
    return ""


def _description(
    about: str,
    keywords: Sequence[Keyword],
    written: Mapping[str, Sequence[str]],
    absent: Sequence[str],
) -> str:
    """Return our description: the lists that were absent, and the note of each keyword."""
    declared = "".join(f' xmlns:{prefix}="{LISTS[prefix].space}"' for prefix in absent)
    lines = [
        f'<rdf:Description xmlns:rdf="{RDF}" rdf:about={quoteattr(about)}'
        f' xmlns:labelwise="{OURS}"{declared}>'
    ]
    for kind in (LISTS[prefix] for prefix in absent):
        lines.append(kind.of([kind.spelled(keyword) for keyword in keywords]))
    lines.append("   <labelwise:tags><rdf:Bag>")
    for keyword in keywords:
        facts = {"label": keyword.label, "probability": f"{keyword.probability:.4f}"}
        facts |= {"model": keyword.model, "date": keyword.date}
        facts |= {} if keyword.caution is None else {"caution": keyword.caution}
        lists = {key: kind for key, kind in LISTS.items() if keyword.label in written[key]}
        facts |= {key: kind.spelled(keyword) for key, kind in lists.items()}
        tags = (f"<labelwise:{key}>{escape(text)}</labelwise:{key}>" for key, text in facts.items())
        lines.append(f'    <rdf:li rdf:parseType="Resource">{"".join(tags)}</rdf:li>')
    return "\n".join([*lines, "   </rdf:Bag></labelwise:tags>\n  </rdf:Description>"])
