"""XML of strangers, edited as bytes: where each element lies, and splices between them.

The tree only says where its elements lie, so nothing is written anew. It is read in time linear in
its size. Refused is what is not plain XML in UTF-8, declares a document type, is very deep or has
very many elements, each of which takes about 430 bytes and 5 microseconds for every reading.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from xml.parsers import expat

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
        """The characters between the tags, those of children left out."""
        return "".join(self.pieces)

    def find(self, *path: str) -> Iterator["Element"]:
        """Yield the descendants along a path of names."""
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
    stack = [root]
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        at = parser.CurrentByteIndex
        count += 1
        if len(stack) > DEEPEST:
            raise DataError(f"the elements of a side-car must be at most {DEEPEST} deep")
        if count > MOST_ELEMENTS:
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

    def text(characters: str) -> None:
        stack[-1].pieces.append(characters)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DataError(f"the side-car is not well-formed XML: {error}") from None
    return root


def _tag_end(data: bytes, start: int) -> int:
    """Return where the tag that begins at ``start`` ends; a > in quotes does not end it."""
    found = TAG_END.match(data, start)
    if found is None:
        raise DataError("the side-car is not well-formed XML: a tag does not end")
    return found.end()


def spliced(data: bytes, splices: Sequence[Splice]) -> bytes:
    """Return the bytes with all splices done, which must not overlap."""
    parts, at = [], 0
    for start, end, new in sorted(splices, key=lambda splice: splice[0]):
        parts += [data[at:start], new]
        at = end
    return b"".join([*parts, data[at:]])


def outermost(elements: Sequence[Element]) -> list[Element]:
    """Return the elements that lie in no other of them."""
    kept: list[Element] = []
    for element in sorted(elements, key=lambda one: (one.start, -one.end)):
        if not kept or element.start >= kept[-1].end:
            kept.append(element)
    return kept


def with_space(data: bytes, element: Element) -> int:
    """Return where the white space before an element starts."""
    start = element.start
    while start and data[start - 1] in SPACE:
        start -= 1
    return start


def raw_name(data: bytes, element: Element) -> str:
    """Return an element's name as it is written, prefix included."""
    tag = data[element.start + 1 : element.inner_start]
    end = next(at for at, byte in enumerate(tag) if byte in SPACE + b"/>")
    return tag[:end].decode()


def into_element(data: bytes, element: Element, text: bytes) -> list[Splice]:
    """Return the splices that put text behind the last child of an element."""
    if element.inner_start != element.end:
        at = element.children[-1].end if element.children else element.inner_start
        return [(at, at, text)]
    name = raw_name(data, element).encode()
    opened = data[element.start : element.end - 2].rstrip(SPACE) + b">"
    return [(element.start, element.end, opened + text + b"</" + name + b">")]
