"""What every page is drawn with: escaped HTML, SVG frames, words for numbers, and the skeleton."""

from labelwise.markup.document import Part, document
from labelwise.markup.html import Child, Markup, join, tag, trusted
from labelwise.markup.words import (
    INFINITE,
    UNDEFINED,
    Cell,
    chance,
    details,
    figure,
    paragraph,
    percent,
    plain,
    section,
    side_by_side,
    table,
)

__all__ = [
    "INFINITE",
    "UNDEFINED",
    "Cell",
    "Child",
    "Markup",
    "Part",
    "chance",
    "details",
    "document",
    "figure",
    "join",
    "paragraph",
    "percent",
    "plain",
    "section",
    "side_by_side",
    "table",
    "tag",
    "trusted",
]
