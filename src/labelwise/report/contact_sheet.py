"""Sheets of photos: those that answer a query, suspects, and what to label next.

Each is one HTML file that holds its pictures and works offline. ``blind`` leaves the probabilities
out: a person who sees the model's guess tends to agree with it.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from labelwise.base.files import write_text
from labelwise.base.markup import Cell, Markup, chance, document, paragraph, section, table, tag
from labelwise.base.text import for_terminal
from labelwise.errors import LabelwiseError
from labelwise.photos import Index
from labelwise.photos.query import Found, Hit
from labelwise.pictures import BytesImages
from labelwise.pictures.worker import shown_images

if TYPE_CHECKING:  # searches do without torch, which takes seconds to import
    from labelwise.answers.suspects import Reviewed, SuspectPromise
    from labelwise.models import Scored
    from labelwise.pictures import ImageSource

SIDE, PHOTOS = 320, 100  # pixels of a photo's side; photos with their pictures
ReadPicture = Callable[[str], Image.Image | None]


def card(image: Image.Image | None, alt: str, *caption: Markup, missing: str = "") -> Markup:
    """Return a small photo without metadata and its caption, or why it is ``missing``."""
    drawn = tag("p", missing, class_="note")
    if image is not None:
        small, buffer = image.convert("RGB"), BytesIO()
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        small.save(buffer, "JPEG", quality=80)
        address = f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode('ascii')}"
        drawn = tag("img", src=address, alt=alt, loading="lazy")
    return tag("li", tag("figure", drawn, tag("figcaption", *caption)))


def file_name(path: str) -> Markup:
    """Return the name of a file, with its path where one points at it."""
    name = for_terminal(path)
    return tag("small", Path(name).name, title=name)


def write_contact_sheet(path: Path, index: Index, found: Found, caution: str | None = None) -> None:
    """Write the page of an index's answer; a caution must stand beside its probabilities."""
    lead = _sentence(found.counted)
    if caution is not None:
        lead += f" {_sentence(caution)}"
    if found.positives:  # of others the count says that it was never tested
        lead += f" Probabilities are calibrated for this query on {found.checked_on:,} photos that "
        lead += f"the model was not trained on, of which {found.positives:,} match it."
    if any(hit.why for hit in found.hits):
        lead += " Beneath each stand the probabilities of its labels by themselves."
    stated = "" if found.statement is None else found.statement.sentence
    said = (stated, found.copies_sentence, found.likeness.sentence())
    notes = [paragraph(words, class_="note") for words in said if words]
    shown = f"The {len(found.hits)} most probable" if found.hits else "No photo"
    if found.above is not None:
        shown += f" of {found.above:,} above the cut"
    sheet = tag("ul", *(_hit(index, hit) for hit in found.hits), class_="sheet")
    content = tag("section", tag("h2", shown), *notes, sheet, id="photos")
    write_text(path, document(f"Photos: {found.query}", lead, [("photos", "Photos", content)]))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _hit(index: Index, hit: Hit) -> Markup:
    reasons = (f"{label} {prob:.2f}" for label, prob in hit.why.items())
    why = ", ".join(reason.replace(" ", "\N{NO-BREAK SPACE}") for reason in reasons)
    image, picture = None, index.picture(hit.row)
    with suppress(LabelwiseError):
        if picture is not None:
            content, name = picture
            image = shown_images(BytesImages([content], [name]), index.spec.transform).read(0, SIDE)
    caption = (tag("strong", chance(hit.probability)), tag("span", why), file_name(hit.paths[0]))
    alt = f"{for_terminal(hit.paths[0])}: {why}"
    return card(image, alt, *caption, missing="The file cannot be read now.")


def write_tagged_sheet(path: Path, images: "ImageSource", scored: "Scored", which: str) -> None:
    """Write the page of photos with the tags of a model; ``which`` names the photos.

    Args:
        path: the HTML file.
        images: the photos that were scored.
        scored: the model's answers about them.
        which: what they are, such as "test photos".
    """
    cards, names = [], scored.space.names
    for row, photo, tags, probs in zip(
        scored.rows.tolist(), scored.ids, scored.labels, scored.probabilities, strict=True
    ):
        chances = dict(zip(names, probs.tolist(), strict=True))
        caption = [tag("span", tag("strong", chance(chances[name])), f" {name}") for name in tags]
        alt = f"{for_terminal(photo)}: {', '.join(tags) or 'no tag'}"
        cards.append(
            card(images.read(row, SIDE), alt, *(caption or [tag("span", "none")]), file_name(photo))
        )
    lead = (
        f"{len(cards)} {which}, with the tags that the model gives them. Each percentage is the "
        "probability that the tag is right; none means that no label is probable enough."
    )
    sheet = tag("ul", *cards, class_="sheet")
    content = tag("section", tag("h2", "Tags"), sheet, id="photos")
    write_text(path, document("New photos with their tags", lead, [("photos", "Photos", content)]))


def write_suspects_page(
    path: Path,
    questions: "Sequence[Reviewed]",
    *,
    promise: "SuspectPromise | None" = None,
    picture: ReadPicture | None = None,
    blind: bool = False,
) -> None:
    """Write the page of a review file, with its first photos."""
    sheet, count = _sheet(questions, picture, blind)
    lead = (
        f"{len(questions):,} labels of {count:,} photos that are probably mistakes, the "
        "likeliest first. Each was judged by a model that had not seen its photo."
    )
    sentence = "No promise yet: nobody has looked." if promise is None else _sentence(str(promise))
    stated = section("promise", "What is promised", paragraph(sentence))
    parts = [("promise", "Promise", stated), ("photos", "Photos", sheet)]
    parts.append(("labels", "Labels", _labels(questions)))
    write_text(path, document("Labels that may be mistakes", lead, parts))


def write_questions_page(
    path: Path,
    questions: "Sequence[Reviewed]",
    *,
    by: str,
    picture: ReadPicture | None = None,
    blind: bool = False,
) -> None:
    """Write the page of what to label next, chosen by a criterion."""
    sheet, count = _sheet(questions, picture, blind)
    lead = (
        f"{count:,} photos whose answers are worth most by {by}, the best first; photos that "
        "look like others come last. The chances are the model's."
    )
    write_text(path, document("What to label next", lead, [("photos", "Photos", sheet)]))


def _sheet(
    questions: "Sequence[Reviewed]", picture: ReadPicture | None, blind: bool
) -> tuple[Markup, int]:
    own: dict[str, list[Markup]] = {}
    for rank, question in enumerate(questions, start=1):
        words = f"{rank}. {'no ' if question.given == 'present' else ''}{question.label}?"
        words += "" if blind else f" {chance(question.probability)} present"
        words += "" if question.given == "unknown" else f" · said {question.given}"
        words += f" · answered {question.answer}" if question.answer else ""
        words += " · check" if question.check and not question.answer else ""
        own.setdefault(question.photo, []).append(tag("span", words))
    cards = []
    for photo, said in list(own.items())[:PHOTOS]:
        image = None if picture is None else picture(photo)
        caption = (*said, file_name(photo))
        cards.append(card(image, for_terminal(photo), *caption, missing="No picture here."))
    heading = f"The first {len(cards)} photos"
    return section("photos", heading, tag("ul", *cards, class_="sheet")), len(own)


def _labels(questions: "Sequence[Reviewed]") -> Markup:
    rows: dict[str, list[Reviewed]] = {}
    for question in questions:
        rows.setdefault(question.label, []).append(question)
    cells: list[list[str | Cell]] = []
    for label, own in sorted(rows.items(), key=lambda item: -len(item[1])):
        confirmed = [question.confirmed for question in own if question.confirmed is not None]
        counts = (len(own), len(confirmed), sum(confirmed))
        cells.append([label, *(Cell(f"{count:,}", count) for count in counts)])
    head = ("label", "suspects", "answered", "confirmed mistakes")
    content = table(head, cells, caption="Suspects per label", sortable=True)
    return section("labels", "Labels", content)
