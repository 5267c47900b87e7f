"""Example images: which ones are shown, and as what.

    surprise of an image = - sum over its known labels of log p(the truth)

"Right" has the smallest surprise among images with labels whose every label lies on the right side
of one half. "Wrong" has the most probable labels that are absent, "missed" the least probable ones
that are present, "unknown, and probable" those that nobody knows.
Chosen examples flatter or frighten, so some are also drawn at random. Of a Query2Label model it is
also shown where the queries of the two surest labels looked.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from labelwise.base.arrays import Values
from labelwise.base.markup import Markup, chance, join, paragraph, section, tag
from labelwise.errors import ImageError
from labelwise.links import Link
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.predictions import Predictions

if TYPE_CHECKING:  # a page without photos is written without torch
    from labelwise.learn.predictor import Predictor

SIDE = 200  # pixels of the longer side of a picture in the page
TINY = 96  # below this pictures are stored exactly
TOP = 4
SEEN = 2  # of them, those whose attention is shown
NAMED = 12
REASONS = {
    "Right": "Every label on the right side of one half, the surest photos first.",
    "Wrong": "Marked absent, yet more probable than not. Some may be missing from the data.",
    "Missed": "Present, yet less probable than not.",
    "Unknown, and probable": "Nobody said whether the label is there; the model says yes.",
    "No label, loudest": "Images with none of the labels, by their largest probability.",
    "Drawn at random": "Not chosen for anything.",
}
COPIES = "Copies of training photos"
COPIED = "Held-out photos, each beside the training photo that it is a copy of; the surest first."


@dataclass(frozen=True)
class Guess:
    """One of the surest labels of an image, and whether it is present, absent or unknown."""

    name: str
    prob: float
    state: str


class Seen(NamedTuple):
    """Where the query of a label looked: the photo under its attention, as a data address."""

    name: str
    picture: str


@dataclass(frozen=True)
class Example:
    """One image: its picture as a data address (or none), its surest labels, its true ones.

    Without guesses it is a pair of photos in ``seen``.
    """

    id: str
    picture: str | None
    guesses: tuple[Guess, ...]
    truth: tuple[str, ...]
    more: int = 0
    tiny: bool = False
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True)
class ExampleGroup:
    """Examples chosen for one reason."""

    title: str
    reason: str
    examples: tuple[Example, ...]


def choose_examples(
    predictions: Predictions,
    link: Link,
    images: ImageSource | None = None,
    *,
    each: int = 8,
    seed: int = 0,
    predictor: "Predictor | None" = None,
) -> tuple[ExampleGroup, ...]:
    """Return the groups of examples; ``images`` may hold more rows than the predictions.

    Without images, or for rows that cannot be read, the examples have no picture. A
    ``predictor`` with attention maps shows where it looked.
    """
    log_p, log_q = link.log_probs(predictions.logits.astype(np.float64))
    observed = predictions.observed
    known = np.ones(log_p.shape, bool) if observed is None else observed
    present = (predictions.labels > 0.5) & known
    surprise = -np.where(known, np.where(present, log_p, log_q), 0.0).sum(1)
    right = (((log_p > log_q) == present) | ~known).all(1)
    labelled = np.any(present, axis=1)
    empty = np.all(known, axis=1) & ~labelled
    wrong = np.where(known & ~present, log_p, -np.inf).max(1)
    unsaid = np.where(known, -np.inf, log_p).max(1)
    missed = np.where(present, log_q, -np.inf).max(1)
    half = np.log(0.5)
    shuffled = np.random.default_rng(seed).permutation(len(surprise))
    rows_of = {
        "Right": _first(surprise, labelled & right, each),
        "Wrong": _first(-wrong, wrong > half, each),
        "Missed": _first(-missed, missed > half, each),
        "Unknown, and probable": _first(-unsaid, unsaid > half, each),
        "No label, loudest": _first(-log_p.max(1), empty, each),
        "Drawn at random": shuffled[:each].tolist(),
    }
    names, ids = predictions.names, predictions.ids
    source = None if isinstance(images, FeatureRows) else images
    places = {} if source is None else {name: at for at, name in enumerate(source.ids)}
    rows = sorted({row for group in rows_of.values() for row in group})
    best = {row: np.argsort(-log_p[row], kind="stable").tolist()[:TOP] for row in rows}
    looked = {places[ids[row]]: best[row][:SEEN] for row in rows if ids[row] in places}
    seen = {} if source is None else _attention(predictor, source, looked)

    def example(row: int) -> Example:
        guesses = []
        for k in best[row]:
            state = "present" if present[row, k] else "absent" if known[row, k] else "unknown"
            guesses.append(Guess(names[k], float(np.exp(log_p[row, k])), state))
        true = np.flatnonzero(present[row]).tolist()
        picture, tiny, at = None, False, places.get(ids[row], -1)
        with suppress(ImageError):
            if source is not None and at >= 0:
                image = source.read(at, at_least=SIDE)
                picture, tiny = picture_address(image), max(image.size) <= TINY
        named, more = tuple(names[k] for k in true[:NAMED]), max(0, len(true) - NAMED)
        return Example(ids[row], picture, tuple(guesses), named, more, tiny, seen.get(at, ()))

    chosen = ((title, tuple(map(example, group))) for title, group in rows_of.items() if group)
    return tuple(ExampleGroup(title, REASONS[title], examples) for title, examples in chosen)


def _attention(
    predictor: "Predictor | None", images: ImageSource, labels: Mapping[int, list[int]]
) -> dict[int, tuple[Seen, ...]]:
    """Return where the queries of labels looked, by place of the image; none without queries."""
    if predictor is None or not labels:
        return {}
    from labelwise.learn.heads import QueryDecoder
    from labelwise.report.explain import attended, overlay

    if not isinstance(predictor.model.head, QueryDecoder):
        return {}
    return {
        photo.row: tuple(
            Seen(predictor.space.names[k], picture_address(overlay(photo.picture, photo.maps[k])))
            for k in labels[photo.row]
        )
        for photo in attended(predictor, images, sorted(labels))
        if photo.maps[0].size > 1  # one place for the whole picture says nothing
    }


def copy_examples(
    pairs: Sequence[tuple[str, str]], images: ImageSource, *, each: int = 8
) -> tuple[ExampleGroup, ...]:
    """Return the first pairs of photos, by id, side by side; none where they cannot be read."""
    places = {name: at for at, name in enumerate(images.ids)}
    shown = []
    for pair in pairs[:each]:
        with suppress(ImageError, KeyError):
            photos = [images.read(places[name], at_least=SIDE) for name in pair]
            sides = map(Seen, pair, map(picture_address, photos))
            shown.append(Example(pair[0], None, (), (), seen=tuple(sides)))
    return (ExampleGroup(COPIES, COPIED, tuple(shown)),) if shown else ()


def _first(key: Values, where: Values, count: int) -> list[int]:
    rows = np.flatnonzero(where)
    first: list[int] = rows[np.argsort(key[rows], kind="stable")[:count]].tolist()
    return first


def picture_address(image: Image.Image) -> str:
    """Return an image as a small ``data:`` address: exact PNG if tiny, JPEG otherwise."""
    stream, kind = BytesIO(), "png" if max(image.size) <= TINY else "jpeg"
    if kind == "png":
        image.save(stream, "PNG", optimize=True)
    else:
        small = image.copy()
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        small.convert("RGB").save(stream, "JPEG", quality=82, optimize=True)
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode('ascii')}"


OPENING = ("Right", "Wrong", "Missed")
FIRST = 4  # photos of each that a report opens with
READ = "Each image with its four surest labels. ✓ marks a label that is there, ? an unknown one."
LOOKED = (
    " Below, where the queries of the two surest looked in the last decoder layer: light where "
    "they look, dark where they do not."
)
MARKS = {"present": "✓", "absent": "", "unknown": "?"}


def opening_photos(groups: Sequence[ExampleGroup]) -> list[Markup]:
    """Return what a report shows first: some photos that are right, wrong and missed."""
    opening = [replace(group, examples=group.examples[: _opens(group)]) for group in groups]
    shown = [_group(group) for group in opening if group.examples]
    return [*shown, paragraph(READ, class_="small muted")] if shown else []


def example_section(groups: Sequence[ExampleGroup]) -> Markup | None:
    """Return the section of the other examples, or nothing without any."""
    rest = [replace(group, examples=group.examples[_opens(group) :]) for group in groups]
    rest = [group for group in rest if group.examples]
    if not rest:
        return None
    looked = any(example.seen for group in groups for example in group.examples if example.guesses)
    words = paragraph(READ + LOOKED * looked, class_="muted")
    return section("examples", "Examples", words, *map(_group, rest))


def _opens(group: ExampleGroup) -> int:
    pictured = any(example.picture for example in group.examples)
    return FIRST if pictured and group.title in OPENING else 0


def _group(group: ExampleGroup) -> Markup:
    cards = [tag("li", _card(example), class_="example") for example in group.examples]
    heading = tag("h3", group.title), paragraph(group.reason, class_="muted")
    return join(*heading, tag("ul", *cards, class_="examples"))


def _card(example: Example) -> Markup:
    truth = ", ".join(example.truth) + (f" and {example.more} more" if example.more else "")
    alt, style = f"{example.id}: {truth or 'no label'}", "tiny" if example.tiny else None
    picture = example.picture and tag("img", src=example.picture, alt=alt, class_=style)
    seen = []
    for label in example.seen:
        what = f"Where {label.name} was seen" if example.guesses else label.name
        image = tag("img", src=label.picture, alt=what)
        seen.append(tag("figure", image, tag("figcaption", label.name)))
    if not example.guesses:
        return tag("div", *seen, class_="seen")
    guesses = []
    for guess in example.guesses:
        yes = "yes" if guess.state == "present" else None
        name = f"{guess.name} {MARKS[guess.state]}".rstrip()
        bar = tag("i", style=f"width:{100 * guess.prob:.1f}%", class_=yes)
        words = tag("span", name, class_="of yes" if yes else "of"), tag("span", chance(guess.prob))
        guesses.append(tag("li", *words, tag("span", bar, class_="meter", aria_hidden="true")))
    return join(
        picture,
        tag("ul", *guesses, class_="guesses" if picture else "guesses bare"),
        tag("div", *seen, class_="seen") if seen else None,
        tag("div", tag("span", "True: ", class_="muted"), truth or "none of them", class_="truth"),
        tag("div", example.id, class_="id"),
    )
