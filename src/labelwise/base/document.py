"""Pages: one self-contained HTML file each, that asks nothing of the network, and its parts.

Its content security policy forbids every request and every script but its own, which only makes
tables sortable; the page reads the same without it.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import unescape
from importlib.resources import files

from labelwise.base.html import Child, Markup, join, tag, trusted

Part = tuple[str, str, Markup | None]  # id of the section, word in the menu, content


def document(title: str, lead: str, parts: Sequence[Part]) -> str:
    """Return the whole page as text; parts without content are left out, also of the menu."""
    present = [(name, word, section) for name, word, section in parts if section is not None]
    menu = [tag("li", tag("a", word, href=f"#{name}")) for name, word, _ in present]
    body = join(
        tag("a", "Skip to the numbers", href=f"#{present[0][0]}", class_="skip"),
        tag(
            "header",
            tag("h1", title),
            tag("p", lead, class_="lead"),
            tag("nav", tag("ul", *menu), aria_label="Sections") if len(menu) > 1 else None,
            class_="top",
        ),
        tag("main", *(section for _, _, section in present)),
        tag("footer", "Written by labelwise. This file is complete and works offline."),
    )
    script = _text("sort.js")
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    facts = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
    )
    head = tag("head", *facts, tag("title", title), tag("style", trusted(_text("style.css"))))
    page = tag("html", head, tag("body", body, tag("script", trusted(script))), lang="en")
    return f"<!doctype html>\n{page}\n"


def charts_of(page: str) -> dict[str, str]:
    """Return every chart of a page as a complete SVG file, by a name made of its title."""
    style = re.sub(r"(?s)@media.*?\n}\n", "", _text("style.css"))  # one look, in light colours
    opening = '<svg xmlns="http://www.w3.org/2000/svg" '
    charts: dict[str, str] = {}
    for chart in re.findall(r'(?s)<svg [^>]*class="chart">.*?</svg>', page):
        title = unescape(chart.partition("<title>")[2].partition("</title>")[0])
        name = re.sub(r"\W+", "-", title.lower()).strip("-")
        while name in charts:
            name += "-"
        complete = chart.replace("<svg ", opening, 1)
        charts[name] = complete.replace(">", f"><style>{style}</style>", 1)
    return charts


def _text(name: str) -> str:
    return files("labelwise.base").joinpath(name).read_text(encoding="utf-8")


UNDEFINED = "–"
INFINITE = "∞"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share in percent, a dash where it is undefined.

    >>> percent(0.1234), percent(None)
    ('12.3%', '–')
    """
    return UNDEFINED if value is None else f"{100 * value:.{digits}f}%"


def chance(prob: float) -> str:
    """Return a probability in percent that never rounds to certainty.

    >>> chance(0.9999), chance(0.5), chance(0.0001), chance(1.0)
    ('>99.9%', '50.0%', '<0.1%', '100.0%')
    """
    if 0.9995 <= prob < 1:
        return ">99.9%"
    return "<0.1%" if 0 < prob < 0.0005 else percent(prob)


def plain(value: float | None, digits: int = 4) -> str:
    """Return a number with ``digits`` decimals, a dash where it is undefined."""
    return UNDEFINED if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Cell:
    """What a cell shows and the number it is sorted by; ``meter`` draws a bar before it."""

    text: str
    value: float | None = None
    meter: bool = False
    strong: bool = False


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    caption: str,
    sortable: bool = False,
    wide: bool = False,
    pinned: bool = False,
) -> Markup:
    """Return a table in a box that scrolls sideways by itself and can be reached by keyboard.

    ``pinned`` keeps the first column in sight while the others scroll.
    """
    columns = tag("tr", *(tag("th", name, scope="col") if name else tag("td") for name in head))
    firsts = (row[0].text if isinstance(row[0], Cell) else row[0] for row in rows)
    heads = (tag("th", text, scope="row") for text in firsts)
    body = [tag("tr", h, *map(_cell, row[1:])) for h, row in zip(heads, rows, strict=True)]
    parts = tag("caption", tag("span", caption)), tag("thead", columns), tag("tbody", *body)
    content = tag("table", *parts, class_="sortable" if sortable else None)
    style = "scroll" + " wide" * wide + " pinned" * pinned
    return tag("div", content, class_=style, tabindex=0, role="region", aria_label=caption)


def figure(chart: Markup, title: str, text: Child, numbers: Markup | None = None) -> Markup:
    """Return a chart with its caption and, folded away, its numbers."""
    return tag("figure", chart, tag("figcaption", tag("b", title), " ", text), numbers)


def side_by_side(*children: Child) -> Markup:
    """Return figures and tables beside each other where there is room."""
    return tag("div", *children, class_="figures")


def details(summary: str, content: Markup) -> Markup:
    """Return content folded behind a word."""
    return tag("details", tag("summary", summary), content)


def paragraph(*children: Child, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return tag("p", *children, class_=class_)


def section(name: str, title: str, *children: Child) -> Markup:
    """Return a named section of the page."""
    return tag("section", tag("h2", title, id=name), join(*children), aria_labelledby=name)


def _cell(cell: str | Cell) -> Markup:
    if isinstance(cell, str):
        return tag("td", cell)
    bar = None
    if cell.meter and cell.value is not None:
        filled = tag("i", style=f"width:{100 * cell.value:.1f}%")
        bar = tag("span", filled, class_="meter", aria_hidden="true")
    text = tag("b", cell.text) if cell.strong else cell.text
    return tag("td", bar, text, data_value="" if cell.value is None else f"{cell.value:.9g}")
