"""Pages of questions about photos, with the pictures: suspects, and what to label next.

One HTML file that holds its pictures and works offline. ``blind`` leaves the probabilities out: a
person who sees the model's guess tends to agree with it.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from PIL import Image

from labelwise.answers.suspects import Reviewed, SuspectPromise
from labelwise.markup import Cell, Markup, chance, document, paragraph, section, table, tag
from labelwise.report.contact_sheet import picture_address
from labelwise.system.files import replacing
from labelwise.system.text import for_terminal

ReadPicture = Callable[[str], Image.Image | None]


def write_suspects_page(
    path: Path,
    questions: Sequence[Reviewed],
    *,
    promise: SuspectPromise | None = None,
    picture: ReadPicture | None = None,
    photos: int = 100,
    blind: bool = False,
) -> None:
    """Write the page of a review file."""
    text = suspects_page(questions, promise=promise, picture=picture, photos=photos, blind=blind)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_questions_page(
    path: Path,
    questions: Sequence[Reviewed],
    *,
    by: str,
    picture: ReadPicture | None = None,
    photos: int = 100,
    blind: bool = False,
) -> None:
    """Write the page of what to label next, chosen by a criterion."""
    own = _by_photo(questions)
    shown = list(own.items())[:photos]
    sheet = tag("ul", *_figures(shown, picture, blind), class_="sheet")
    lead = (
        f"{len(own):,} photos whose answers are worth most by {by}, the best first; photos that "
        "look like others come last. The chances are the model's."
    )
    parts = [("photos", "Photos", section("photos", f"The first {len(shown)} photos", sheet))]
    with replacing(path) as temporary:
        temporary.write_text(document("What to label next", lead, parts), encoding="utf-8")


def suspects_page(
    questions: Sequence[Reviewed],
    *,
    promise: SuspectPromise | None = None,
    picture: ReadPicture | None = None,
    photos: int = 100,
    blind: bool = False,
) -> str:
    """Return the page as text, with the first ``photos`` photos."""
    own = _by_photo(questions)
    lead = (
        f"{len(questions):,} labels of {len(own):,} photos that are probably mistakes, the "
        "likeliest first. Each was judged by a model that had not seen its photo."
    )
    shown = list(own.items())[:photos]
    sheet = tag("ul", *_figures(shown, picture, blind), class_="sheet")
    sentence = "No promise yet: nobody has looked." if promise is None else f"{promise}."
    parts = [
        ("photos", "Photos", section("photos", f"The first {len(shown)} photos", sheet)),
        ("labels", "Labels", _labels(questions)),
    ]
    title = "Labels that may be mistakes"
    content = section("promise", "What is promised", paragraph(sentence[0].upper() + sentence[1:]))
    return document(title, lead, [("promise", "Promise", content), *parts])


def _by_photo(questions: Sequence[Reviewed]) -> dict[str, list[tuple[int, Reviewed]]]:
    """Return the questions of each photo with their ranks, in the order they first come up."""
    own: dict[str, list[tuple[int, Reviewed]]] = {}
    for rank, question in enumerate(questions, start=1):
        own.setdefault(question.photo, []).append((rank, question))
    return own


def _figures(
    photos: Iterable[tuple[str, list[tuple[int, Reviewed]]]],
    picture: ReadPicture | None,
    blind: bool,
) -> Iterable[Markup]:
    for photo, own in photos:
        name = for_terminal(photo)
        image = None if picture is None else picture(photo)
        words = [
            tag(
                "span",
                f"{rank}. {'no ' if question.given == 'present' else ''}{question.label}?",
                "" if blind else f" {chance(question.probability)} present",
                None if question.given == "unknown" else f" · said {question.given}",
                f" · answered {question.answer}" if question.answer else None,
                " · check" if question.check and not question.answer else None,
            )
            for rank, question in own
        ]
        drawn = (
            tag("p", "No picture here.", class_="note")
            if image is None
            else tag("img", src=picture_address(image), alt=name, loading="lazy")
        )
        caption = tag("figcaption", *words, tag("small", Path(name).name, title=name))
        yield tag("li", tag("figure", drawn, caption))


def _labels(questions: Sequence[Reviewed]) -> Markup:
    """Return a table of the labels: suspects, answered, confirmed."""
    rows: dict[str, list[Reviewed]] = {}
    for question in questions:
        rows.setdefault(question.label, []).append(question)
    cells: list[list[str | Cell]] = []
    for label, own in sorted(rows.items(), key=lambda item: -len(item[1])):
        confirmed = [question.confirmed for question in own if question.confirmed is not None]
        counts = (len(own), len(confirmed), sum(confirmed))
        cells.append([label, *(Cell(f"{count:,}", count) for count in counts)])
    head = ("label", "suspects", "answered", "confirmed mistakes")
    return section(
        "labels", "Labels", table(head, cells, caption="Suspects per label", sortable=True)
    )
