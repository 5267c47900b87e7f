"""Examples: pictures with their surest labels and their true ones."""

from collections.abc import Sequence

from labelwise.report.examples import Example, ExampleGroup, Guess
from labelwise.report.html import Markup, join, tag
from labelwise.report.words import chance, paragraph, section

__all__ = ["examples"]

MARKS = {"present": "✓", "absent": "", "unknown": "?"}


def examples(groups: Sequence[ExampleGroup]) -> Markup | None:
    """Return the section, or nothing without examples."""
    if not groups:
        return None
    return section(
        "examples",
        "Examples",
        paragraph(
            "Each image with its four surest labels. ✓ marks a label that is truly present, "
            "? one that is unknown.",
            class_="muted",
        ),
        *map(_group, groups),
    )


def _group(group: ExampleGroup) -> Markup:
    return join(
        tag("h3", group.title),
        paragraph(group.reason, class_="muted"),
        tag(
            "ul",
            *(tag("li", _example(e), class_="example") for e in group.examples),
            class_="examples",
        ),
    )


def _example(example: Example) -> Markup:
    truth = ", ".join(example.truth) + (f" and {example.more} more" if example.more else "")
    picture = None
    if example.picture is not None:
        picture = tag(
            "img",
            src=example.picture,
            alt=f"{example.id}: {truth or 'no label'}",
            class_="tiny" if example.tiny else None,
        )
    return join(
        picture,
        tag("ul", *map(_guess, example.guesses), class_="guesses" if picture else "guesses bare"),
        tag("div", tag("span", "True: ", class_="muted"), truth or "none of them", class_="truth"),
        tag("div", example.id, class_="id"),
    )


def _guess(guess: Guess) -> Markup:
    yes = "yes" if guess.state == "present" else None
    bar = tag("i", style=f"width:{100 * guess.prob:.1f}%", class_=yes)
    return tag(
        "li",
        tag(
            "span", f"{guess.name} {MARKS[guess.state]}".rstrip(), class_=f"of {yes or ''}".strip()
        ),
        tag("span", chance(guess.prob)),
        tag("span", bar, class_="meter", aria_hidden="true"),
    )
