"""The page: one self-contained HTML file that asks nothing of the network.

Its content security policy forbids every request and every script but its own, which only makes
tables sortable; the page reads the same without it.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

from labelwise.evaluate import Evaluation
from labelwise.report.examples import ExampleGroup
from labelwise.report.html import Markup, join, tag, trusted
from labelwise.report.sections.calibration import calibration
from labelwise.report.sections.decisions import decisions
from labelwise.report.sections.examples import examples as show_examples
from labelwise.report.sections.glance import glance
from labelwise.report.sections.how import facts, how
from labelwise.report.sections.labels import labels
from labelwise.report.sections.search import search
from labelwise.report.sections.training import History, training
from labelwise.report.sections.zero_label import zero_label

__all__ = ["page"]


def page(
    evaluation: Evaluation,
    *,
    title: str,
    examples: Sequence[ExampleGroup] = (),
    history: History | None = None,
) -> str:
    """Return the whole page as text."""
    parts: list[tuple[str, str, Markup | None]] = [
        ("glance", "At a glance", glance(evaluation)),
        ("calibration", "Calibration", calibration(evaluation)),
        ("decisions", "Decisions", decisions(evaluation)),
        ("zero-label", "Nothing here", zero_label(evaluation)),
        ("search", "Search", search(evaluation)),
        ("labels", "Labels", labels(evaluation)),
        ("examples", "Examples", show_examples(examples)),
        ("training", "Training", training(history)),
        ("how", "How", how(evaluation)),
    ]
    present = [(name, word, part) for name, word, part in parts if part is not None]
    menu = [tag("li", tag("a", word, href=f"#{name}")) for name, word, _ in present]
    body = join(
        tag("a", "Skip to the numbers", href="#glance", class_="skip"),
        tag(
            "header",
            tag("h1", title),
            tag("p", facts(evaluation), class_="lead"),
            tag("nav", tag("ul", *menu), aria_label="Sections"),
            class_="top",
        ),
        tag("main", *(part for _, _, part in present)),
        tag("footer", "Written by labelwise. This file is complete and works offline."),
    )
    script = _text("sort.js")
    document = tag(
        "html",
        tag("head", _head(title, script)),
        tag("body", body, tag("script", trusted(script))),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


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
    return files("labelwise.report").joinpath(name).read_text(encoding="utf-8")
