"""The skeleton of every page: one self-contained HTML file that asks nothing of the network.

Its content security policy forbids every request and every script but its own, which only makes
tables sortable; the page reads the same without it.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import unescape
from importlib.resources import files

from labelwise.markup.html import Markup, join, tag, trusted

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
    page = tag(
        "html",
        tag("head", _head(title, script)),
        tag("body", body, tag("script", trusted(script))),
        lang="en",
    )
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
        drawn = chart.replace("<svg ", opening, 1).replace(">", f"><style>{style}</style>", 1)
        charts[name] = drawn
    return charts


def _head(title: str, script: str) -> Markup:
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", trusted(_text("style.css"))),
    )


def _text(name: str) -> str:
    return files("labelwise.markup").joinpath(name).read_text(encoding="utf-8")
