"""Example images: which ones are shown, and as what.

    surprise of an image = - sum over its known labels of log p(the truth)

"Surest right" has the smallest surprise among images with labels, "surest wrong" the largest of
all. A missing-label suspect is an entry marked absent or unknown with the highest probability.
Chosen examples flatter or frighten, so some are also drawn at random. Of a Query2Label model it is
also shown where the queries of the two surest labels looked.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.errors import ImageError
from labelwise.links import Link
from labelwise.markup import Markup, chance, join, paragraph, section, tag
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.predictions import Predictions

if TYPE_CHECKING:  # a page without photos is written without torch
    from labelwise.models import Predictor

SIDE = 200  # pixels of the longer side of a picture in the page
TINY = 96  # below this pictures are stored exactly
TOP = 4
SEEN = 2  # of them, those whose attention is shown
NAMED = 12


@dataclass(frozen=True)
class Guess:
    """One of the surest labels of an image, and whether it is present, absent or unknown."""

    name: str
    prob: float
    state: str


@dataclass(frozen=True)
class Seen:
    """Where the query of a label looked: the photo under its attention, as a data address."""

    name: str
    picture: str


@dataclass(frozen=True)
class Example:
    """One image: its picture as a data address (or none), its surest labels, its true ones."""

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
    import torch

    log_p, log_q = link.log_probs(predictions.logits.astype(np.float64))
    known = np.ones(log_p.shape, bool)
    if predictions.observed is not None:
        known = predictions.observed
    present = (predictions.labels > 0.5) & known
    surprise = -np.where(known, np.where(present, log_p, log_q), 0.0).sum(1)
    right = (((log_p > log_q) == present) | ~known).all(1)
    labelled = np.any(present, axis=1)
    empty = np.all(known, axis=1) & ~labelled
    suspect = np.where(present, -np.inf, log_p).max(1)
    shuffled = torch.randperm(len(surprise), generator=torch.Generator().manual_seed(seed))
    chosen = [
        (
            "Surest right",
            "Every label on the right side of one half, and the whole label set given the highest "
            "probability.",
            _first(surprise, labelled & right, each),
        ),
        (
            "Surest wrong",
            "The whole label set was given the lowest probability.",
            _first(-surprise, surprise > 0, each),
        ),
        (
            "Missing labels?",
            "Marked absent or unknown, yet given the highest probability. Look "
            "here first for labels that are missing from the data.",
            _first(-suspect, suspect > np.log(0.5), each),
        ),
        (
            "No label, loudest",
            "Images with none of the labels, by their largest probability.",
            _first(-log_p.max(1), empty, each),
        ),
        ("Drawn at random", "Not chosen for anything.", shuffled[:each].tolist()),
    ]
    pictures = _Pictures(images)
    rows = sorted({row for _, _, group in chosen for row in group})
    best = {row: np.argsort(-log_p[row], kind="stable").tolist()[:TOP] for row in rows}
    seen = _attention(predictor, pictures, {predictions.ids[row]: best[row][:SEEN] for row in rows})
    return tuple(
        ExampleGroup(
            title,
            reason,
            tuple(
                replace(
                    _example(row, predictions, best[row], log_p[row], known, present, pictures),
                    seen=seen.get(predictions.ids[row], ()),
                )
                for row in group
            ),
        )
        for title, reason, group in chosen
        if group
    )


def _attention(
    predictor: "Predictor | None", pictures: "_Pictures", labels: Mapping[str, list[int]]
) -> dict[str, tuple[Seen, ...]]:
    """Return where the queries of the given labels looked, by image, if the model has queries."""
    if predictor is None:
        return {}
    from labelwise.networks.heads import QueryDecoder
    from labelwise.report.explain import attended, overlay

    if not isinstance(predictor.model.head, QueryDecoder):
        return {}
    places = {pictures.rows[name]: name for name in labels if name in pictures.rows}
    if pictures.images is None or not places:
        return {}
    maps = {}
    for photo in attended(predictor, pictures.images, sorted(places)):
        if photo.maps[0].size > 1:  # one place for the whole picture says nothing
            name = places[photo.row]
            maps[name] = tuple(
                Seen(
                    predictor.space.names[k],
                    picture_address(overlay(photo.picture, photo.maps[k])),
                )
                for k in labels[name]
            )
    return maps


def _first(key: NDArray[Any], where: NDArray[Any], count: int) -> list[int]:
    rows = np.flatnonzero(where)
    order = np.argsort(key[rows], kind="stable")[:count]
    return [int(row) for row in rows[order]]


def _example(
    row: int,
    predictions: Predictions,
    best: list[int],
    log_p: NDArray[Any],
    known: NDArray[Any],
    present: NDArray[Any],
    pictures: "_Pictures",
) -> Example:
    names = predictions.names
    guesses = tuple(
        Guess(
            names[column],
            float(np.exp(log_p[column])),
            "present" if present[row, column] else "absent" if known[row, column] else "unknown",
        )
        for column in best
    )
    true = np.flatnonzero(present[row]).tolist()
    picture, tiny = pictures.read(predictions.ids[row])
    return Example(
        predictions.ids[row],
        picture,
        guesses,
        tuple(names[column] for column in true[:NAMED]),
        max(0, len(true) - NAMED),
        tiny,
    )


class _Pictures:
    """Small pictures by the id of an image."""

    def __init__(self, images: ImageSource | None) -> None:
        self.images = None if isinstance(images, FeatureRows) else images
        self.rows = {} if self.images is None else _numbered(self.images.ids)

    def read(self, name: str) -> tuple[str | None, bool]:
        """Return the picture as a data address, and whether it is tiny."""
        if self.images is None or name not in self.rows:
            return None, False
        try:
            image = self.images.read(self.rows[name], at_least=SIDE)
        except ImageError:
            return None, False
        return picture_address(image), max(image.size) <= TINY


def _numbered(ids: Sequence[str]) -> dict[str, int]:
    return {name: row for row, name in enumerate(ids)}


def picture_address(image: Image.Image) -> str:
    """Return an image as a small ``data:`` address: exact PNG if tiny, JPEG otherwise."""
    stream = BytesIO()
    if max(image.size) <= TINY:
        image.save(stream, "PNG", optimize=True)
        kind = "png"
    else:
        small = image.copy()
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        small.convert("RGB").save(stream, "JPEG", quality=82, optimize=True)
        kind = "jpeg"
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode('ascii')}"


MARKS = {"present": "✓", "absent": "", "unknown": "?"}


def example_section(groups: Sequence[ExampleGroup]) -> Markup | None:
    """Return the section, or nothing without examples."""
    if not groups:
        return None
    return section(
        "examples",
        "Examples",
        paragraph(
            "Each image with its four surest labels. ✓ marks a label that is truly present, "
            "? one that is unknown."
            + (
                " Below, where the queries of the two surest looked in the last decoder layer: "
                "light where they look, dark where they do not."
                if any(example.seen for group in groups for example in group.examples)
                else ""
            ),
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
            *(tag("li", _card(e), class_="example") for e in group.examples),
            class_="examples",
        ),
    )


def _card(example: Example) -> Markup:
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
        tag(
            "ul",
            *map(_guess_line, example.guesses),
            class_="guesses" if picture else "guesses bare",
        ),
        tag("div", *map(_seen, example.seen), class_="seen") if example.seen else None,
        tag("div", tag("span", "True: ", class_="muted"), truth or "none of them", class_="truth"),
        tag("div", example.id, class_="id"),
    )


def _seen(seen: Seen) -> Markup:
    return tag(
        "figure",
        tag("img", src=seen.picture, alt=f"Where {seen.name} was seen"),
        tag("figcaption", seen.name),
    )


def _guess_line(guess: Guess) -> Markup:
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
