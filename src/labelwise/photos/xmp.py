"""Keywords in XMP side-cars: added to what is there, marked as ours, and taken out again exactly.

A side-car is edited as bytes: the parser only says where its elements lie. Our keywords go into the
lists that exist, unless they are there already; otherwise into lists of a description of our own,
which also notes, as ``labelwise:tags``, each label with its origin and the lists it was added to.
Anyone can write such a note, so :func:`untagged` takes out only what the note names *and* the
caller knows to be ours.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from labelwise.errors import DataError

LARGEST = 4 << 20
DEEPEST = 64
MOST_ELEMENTS = 100_000
SPACE = b" \t\r\n"
TAG_END = re.compile(rb"""(?:[^>"']|"[^"]*"|'[^']*')*>""")

Splice = tuple[int, int, bytes]  # from, to, what stands there instead


@dataclass(eq=False)
class Element:
    """An element and where its bytes lie: ``start`` to ``end``, inner bytes between the tags."""

    name: str
    start: int
    inner_start: int
    attributes: Mapping[str, str]
    inner_end: int = 0
    end: int = 0
    pieces: list[str] = field(default_factory=list)
    children: list["Element"] = field(default_factory=list)

    @cached_property
    def text(self) -> str:
        return "".join(self.pieces)

    def find(self, *path: str) -> Iterator["Element"]:
        for child in self.children:
            if child.name == path[0]:
                if len(path) == 1:
                    yield child
                else:
                    yield from child.find(*path[1:])


def parsed(data: bytes) -> Element:
    """Return the tree of a side-car; anything but plain XML in UTF-8 is refused."""
    if len(data) > LARGEST:
        raise DataError(f"a side-car must have at most {LARGEST:,} bytes, got {len(data):,}")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError("a side-car must be UTF-8 to be edited, this one is not") from None
    parser = expat.ParserCreate("utf-8", " ")
    parser.buffer_text = True
    root = Element("", 0, 0, {}, len(data), len(data))
    stack, numbers = [root], itertools.count(1)

    def start(name: str, attributes: dict[str, str]) -> None:
        at = parser.CurrentByteIndex
        if len(stack) > DEEPEST:
            raise DataError(f"the elements of a side-car must be at most {DEEPEST} deep")
        if next(numbers) > MOST_ELEMENTS:
            raise DataError(f"a side-car must have at most {MOST_ELEMENTS:,} elements")
        element = Element(name, at, _tag_end(data, at), attributes)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        element, at = stack.pop(), parser.CurrentByteIndex
        if data[element.inner_start - 2 : element.inner_start] == b"/>":
            element.inner_end = element.end = element.inner_start
        else:
            element.inner_end, element.end = at, _tag_end(data, at)

    def refuse(*_: object) -> None:
        raise DataError("a side-car must not declare a document type")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda characters: stack[-1].pieces.append(characters)
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DataError(f"the side-car is not well-formed XML: {error}") from None
    return root


def _tag_end(data: bytes, start: int) -> int:
    match = TAG_END.match(data, start)
    if match is None:
        raise DataError("the side-car is not well-formed XML: a tag does not end")
    return match.end()


def spliced(data: bytes, splices: Sequence[Splice]) -> bytes:
    """Return the bytes with all splices done, which must not overlap."""
    parts, at = [], 0
    for start, end, new in sorted(splices, key=lambda splice: splice[0]):
        parts += [data[at:start], new]
        at = end
    return b"".join([*parts, data[at:]])


def with_space(data: bytes, element: Element) -> int:
    """Return where the white space before an element starts."""
    start = element.start
    while start and data[start - 1] in SPACE:
        start -= 1
    return start


def raw_name(data: bytes, element: Element) -> str:
    """Return an element's name as it is written, prefix included."""
    tag = data[element.start + 1 : element.inner_start]
    return re.split(rb"[\s/>]", tag, maxsplit=1)[0].decode()


def into_element(data: bytes, element: Element, text: bytes) -> list[Splice]:
    """Return the splices that put text behind the last child of an element."""
    if element.inner_start != element.end:
        at = element.children[-1].end if element.children else element.inner_start
        return [(at, at, text)]
    name = raw_name(data, element).encode()
    opened = data[element.start : element.end - 2].rstrip(SPACE) + b">"
    return [(element.start, element.end, opened + text + b"</" + name + b">")]


RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
OURS = "urn:labelwise:xmp:1.0:"
CONTAINERS = (f"{RDF} Bag", f"{RDF} Seq", f"{RDF} Alt")
NOTES = (f"{RDF} Description", f"{OURS} tags", f"{RDF} Bag", f"{RDF} li")

Written = Mapping[str, Collection[str]]  # the entries of each list, by its prefix
NOTHING: Written = MappingProxyType({})

EMPTY = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="{RDF}">
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
""".encode()


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
    rdf = _rdf(parsed(data))
    splices, absent = list[Splice](), list[str]()
    written: dict[str, list[str]] = {}  # the labels that we put into each list
    for prefix, kind in LISTS.items():
        containers = [*itertools.islice(_containers(rdf, kind), 1)]
        there = _texts(*containers)
        new = [keyword for keyword in keywords if kind.spelled(keyword) not in there]
        written[prefix] = [keyword.label for keyword in new]
        for container in containers:
            splices += _into_list(data, container, [kind.spelled(keyword) for keyword in new])
        absent += [] if containers else [prefix]
    splices += into_element(data, rdf, _description(rdf, keywords, written, absent))
    return _checked(spliced(data, splices))


def differ_in_dates_alone(one: bytes, other: bytes) -> bool:
    """Return whether two side-cars say the same but for when our keywords were given."""
    date = re.compile(rb"<labelwise:date>[^<]*</labelwise:date>")
    return date.sub(b"", one) == date.sub(b"", other)


def begun(packet: bytes | None, words: Sequence[str]) -> bytes:
    """Return the first side-car of a photo: its packet, if readable, with its other words."""
    data = EMPTY
    if packet is not None:
        with suppress(DataError):
            _rdf(parsed(packet))
            data = packet
    rdf, kind = _rdf(parsed(data)), LISTS["dc"]
    containers = [*itertools.islice(_containers(rdf, kind), 1)]
    there = _texts(*containers)
    new = [word for word in dict.fromkeys(words) if word not in there]
    if not new:
        return data
    if containers:
        return spliced(data, _into_list(data, containers[0], new))
    text = (
        f'\n  <rdf:Description xmlns:rdf="{RDF}" rdf:about={quoteattr(_about(rdf))}'
        f'\n    xmlns:dc="{kind.space}">\n{kind.of(new)}\n  </rdf:Description>'
    )
    return _checked(spliced(data, into_element(data, rdf, text.encode())))


def _checked(data: bytes) -> bytes:
    """Return a side-car that can be read again; words may hold what XML has no way to write."""
    try:
        if len(data) > LARGEST or data.count(b"<") > MOST_ELEMENTS:
            raise expat.ExpatError
        expat.ParserCreate("utf-8", " ").Parse(data, True)  # no handlers: much faster than a tree
    except expat.ExpatError:
        parsed(data)
    return data


def _about(rdf: Element) -> str:
    about = (own.attributes.get(f"{RDF} about", "") for own in rdf.find(f"{RDF} Description"))
    return next(about, "")


def noted(data: bytes) -> dict[str, list[str]]:
    """Return what the notes of a side-car name: true of bytes that we wrote, else a claim."""
    notes = list(_rdf(parsed(data)).find(*NOTES))
    return {prefix: sorted({_field(note, prefix) for note in notes} - {""}) for prefix in LISTS}


def entries(data: bytes) -> dict[str, set[str]]:
    """Return the entries of each list of keywords of a side-car, ours and others."""
    rdf = _rdf(parsed(data))
    return {prefix: _texts(*_containers(rdf, kind)) for prefix, kind in LISTS.items()}


def _texts(*containers: Element) -> set[str]:
    return {item.text.strip() for bag in containers for item in bag.find(f"{RDF} li")}


def untagged(data: bytes, ours: Written) -> bytes:
    """Return a side-car without what :func:`tagged` put there: entries in ``ours`` and noted."""
    rdf, gone = _rdf(parsed(data)), list[Element]()
    notes = list(rdf.find(*NOTES))
    for prefix, kind in LISTS.items():
        known = set(ours.get(prefix, ()))
        claimed = {_field(note, prefix) for note in notes} & known
        for container in _containers(rdf, kind) if claimed else ():
            first: dict[str, Element] = {}
            for item in container.find(f"{RDF} li"):
                first.setdefault(item.text.strip(), item)
            gone += [first[spelled] for spelled in claimed if spelled in first]
    removed = set(map(id, gone))
    for description in rdf.find(f"{RDF} Description"):
        tags = list(description.find(f"{OURS} tags"))
        if not tags:
            continue
        emptied = [
            prop
            for kind in LISTS.values()
            for prop in description.find(kind.property)
            if all(id(item) in removed for child in prop.children for item in child.children)
        ]
        whole = len(tags) + len(emptied) == len(description.children)
        if whole and set(description.attributes) <= {f"{RDF} about"}:
            gone.append(description)
        else:
            gone += [*tags, *emptied]
    splices: list[Splice] = []
    for element in sorted(gone, key=lambda element: (element.start, -element.end)):
        if not splices or element.start >= splices[-1][1]:  # in no other of them
            splices.append((with_space(data, element), element.end, b""))
    return spliced(data, splices)


def _rdf(root: Element) -> Element:
    for path in (("adobe:ns:meta/ xmpmeta", f"{RDF} RDF"), (f"{RDF} RDF",)):
        for rdf in root.find(*path):
            return rdf
    raise DataError("the side-car holds no rdf:RDF element")


def _containers(rdf: Element, kind: "_List") -> Iterator[Element]:
    for prop in rdf.find(f"{RDF} Description", kind.property):
        bags = [child for child in prop.children if child.name in CONTAINERS]
        if not bags:
            raise DataError(f"{kind.written} must be a list of keywords, it is something else")
        yield bags[0]


def _field(note: Element, name: str) -> str:
    for holder in (note, *note.find(f"{RDF} Description")):
        if f"{OURS} {name}" in holder.attributes:
            return holder.attributes[f"{OURS} {name}"]
        for child in holder.find(f"{OURS} {name}"):
            return child.text
    return ""


def _into_list(data: bytes, container: Element, names: Sequence[str]) -> list[Splice]:
    if not names:
        return []
    item = f"{raw_name(data, container).rpartition(':')[0]}:li".lstrip(":")
    items = list(container.find(f"{RDF} li"))
    indent = data[with_space(data, items[-1]) : items[-1].start].decode() if items else ""
    text = "".join(f"{indent}<{item}>{escape(name)}</{item}>" for name in names).encode()
    if items:
        return [(items[-1].end, items[-1].end, text)]
    return into_element(data, container, text)


def _description(
    rdf: Element,
    keywords: Sequence[Keyword],
    written: Mapping[str, Sequence[str]],
    absent: Sequence[str],
) -> bytes:
    declared = "".join(f'\n    xmlns:{prefix}="{LISTS[prefix].space}"' for prefix in absent)
    lines = [
        f'\n  <rdf:Description xmlns:rdf="{RDF}" rdf:about={quoteattr(_about(rdf))}'
        f'\n    xmlns:labelwise="{OURS}"{declared}>'
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
        inner = "".join(tags)
        lines.append(f'    <rdf:li rdf:parseType="Resource">{inner}</rdf:li>')
    lines.append("   </rdf:Bag></labelwise:tags>\n  </rdf:Description>")
    return "\n".join(lines).encode()
