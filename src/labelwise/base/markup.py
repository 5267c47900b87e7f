"""What every page is drawn with: escaped HTML, SVG frames, words for numbers, and the skeleton."""

from labelwise.base.document import (
    INFINITE,
    UNDEFINED,
    Cell,
    Part,
    chance,
    details,
    document,
    figure,
    paragraph,
    percent,
    plain,
    section,
    side_by_side,
    table,
)
from labelwise.base.html import Child, Markup, join, tag, trusted

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
