"""A contact sheet: the photos that answer a query, with their probabilities and the reasons.

One HTML file that holds its pictures and works offline.
"""

from base64 import b64encode
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from PIL import Image

from labelwise.errors import LabelwiseError
from labelwise.markup import Markup, chance, document, tag
from labelwise.photos import Index
from labelwise.photos.query import Found, Hit
from labelwise.pictures.worker import OneImage, shown_images
from labelwise.system.files import replacing
from labelwise.system.text import for_terminal

SIDE = 320


def write_contact_sheet(path: Path, index: Index, found: Found, caution: str | None = None) -> None:
    """Write the page of an index's answer; a caution must stand beside its probabilities."""
    with replacing(path) as temporary:
        temporary.write_text(contact_sheet(index, found, caution), encoding="utf-8")


def contact_sheet(index: Index, found: Found, caution: str | None = None) -> str:
    """Return the page of an index's answer as text."""
    lead = _sentence(found.counted)
    if caution is not None:
        lead += f" {_sentence(caution)}"
    if found.positives:  # of others the count says that it was never tested
        lead += (
            f" Probabilities are calibrated for this query on {found.checked_on:,} photos that the "
            f"model was not trained on, of which {found.positives:,} match it."
        )
    if any(hit.why for hit in found.hits):
        lead += " Beneath each stand the probabilities of its labels by themselves."
    stated = "" if found.statement is None else found.statement.sentence
    said = (stated, found.copies_sentence, found.likeness.sentence())
    notes = [tag("p", words, class_="note") for words in said if words]
    shown = f"The {len(found.hits)} most probable" if found.hits else "No photo"
    if found.above is not None:
        shown += f" of {found.above:,} above the cut"
    content = tag(
        "section",
        tag("h2", shown),
        *notes,
        tag("ul", *_figures(index, found.hits), class_="sheet"),
        id="photos",
    )
    return document(f"Photos: {found.query}", lead, [("photos", "Photos", content)])


def _sentence(text: str) -> str:
    """Return words as a sentence; what is in capitals in them stays so."""
    return f"{text[:1].upper()}{text[1:]}."


def _figures(index: Index, hits: Iterable[Hit]) -> Iterable[Markup]:
    for hit in hits:
        name = for_terminal(hit.paths[0])
        reasons = (f"{label} {prob:.2f}" for label, prob in hit.why.items())
        why = ", ".join(reason.replace(" ", "\N{NO-BREAK SPACE}") for reason in reasons)
        picture = _thumbnail(index, hit.row)
        image = (
            tag("p", "The file cannot be read now.", class_="note")
            if picture is None
            else tag("img", src=picture, alt=f"{name}: {why}", loading="lazy")
        )
        caption = tag(
            "figcaption",
            tag("strong", chance(hit.probability)),
            tag("span", why),
            tag("small", Path(name).name, title=name),
        )
        yield tag("li", tag("figure", image, caption))


def _thumbnail(index: Index, row: int) -> str | None:
    """Return a small picture without any of the file's metadata, as a data address."""
    picture = index.picture(row)
    if picture is None:
        return None
    try:
        images = shown_images(OneImage(*picture), index.spec.transform)
        return picture_address(images.read(0, SIDE))
    except LabelwiseError:
        return None


def picture_address(image: Image.Image) -> str:
    """Return a small copy of a picture, without any of its metadata, as a data address."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode('ascii')}"
