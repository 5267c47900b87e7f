"""Where a Query2Label model looks: one map per label, drawn over the photo.

Each label's query spreads an attention of 1 over the places of the feature map. The map is scaled
up to the picture as the model saw it (scaled, perhaps cut) and laid over it: clear where the query
looks most, dark where it does not look. One HTML file that holds its pictures and works offline.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from labelwise.base.files import write_text
from labelwise.base.markup import Markup, document, tag
from labelwise.base.text import for_terminal
from labelwise.errors import SettingsError
from labelwise.learn.heads import QueryDecoder
from labelwise.learn.inference import infer
from labelwise.learn.predictor import Predictor
from labelwise.models.scoring import scored
from labelwise.pictures import ImageSource
from labelwise.report.contact_sheet import card

HEAT = np.array([255.0, 196.0, 0.0])
MOST = 4  # decided labels of a photo
DARKEST = 0.25  # of a place where the query does not look


@dataclass(frozen=True)
class Looked:
    """One label of one photo: its probability, and where its query looks (h, w), summing to 1."""

    id: str
    label: str
    probability: float
    picture: Image.Image
    attention: NDArray[np.float32]
    decided: bool


@dataclass(frozen=True)
class Attended:
    """One photo as the model saw it: its logits (K,), and where each label looks (K, h, w)."""

    row: int
    logits: Tensor
    maps: NDArray[np.float32]
    picture: Image.Image


def attended(
    predictor: Predictor, images: ImageSource, rows: Sequence[int] | None = None
) -> Iterator[Attended]:
    """Yield the photos of ``rows`` (default all) that can be read, with where every label looks."""
    head = predictor.model.head
    if not isinstance(head, QueryDecoder):
        own = f"this one has the head {predictor.head.name!r}"
        raise SettingsError(f"attention maps are of models with --head query2label, {own}")
    predictor.model.eval()

    def network(inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, features = predictor.model.outputs_and_features(predictor.transform.inputs(inputs))
        return outputs.logits.float(), head.attention(features).float(), inputs

    transform, device = predictor.transform, predictor.device
    for batch in infer(network, images, transform, rows=rows, batch_size=16, device=device):
        if not batch.values:
            continue
        for row, logits, maps, pixels in zip(batch.rows.tolist(), *batch.values, strict=True):
            values = pixels.permute(1, 2, 0).contiguous().numpy()
            of_bands = transform.bands is not None
            picture = transform.composite(values) if of_bands else Image.fromarray(values)
            yield Attended(row, logits, maps.numpy(), picture)


def look(predictor: Predictor, images: ImageSource) -> Iterable[Looked]:
    """Yield, photo by photo, its decided labels (else its surest) with where they were seen."""
    for photo in attended(predictor, images):
        if photo.maps[0].size == 1:
            place = f"one place of a picture of {predictor.transform.size} pixels"
            raise SettingsError(
                f"the backbone {predictor.model.backbone.name!r} makes {place}, so there is "
                "nothing to look at; train with a larger --image-size"
            )
        name = images.ids[photo.row]
        answers = scored(predictor, photo.logits[None], np.array([photo.row]), [name])
        for probs, sets in zip(answers.probs, answers.sets, strict=True):
            order = np.argsort(-probs, kind="stable").tolist()
            chosen = [k for k in order if sets[k]][:MOST] or order[:1]
            for k in chosen:
                label, prob, decided = predictor.space.names[k], float(probs[k]), bool(sets[k])
                yield Looked(name, label, prob, photo.picture, photo.maps[k], decided)


def overlay(picture: Image.Image, attention: NDArray[np.float32]) -> Image.Image:
    """Return the picture, darkened where the query does not look and warmer where it does most."""
    highest = float(attention.max())
    scaled = Image.fromarray(attention / highest if highest > 0 else attention)
    strength = np.asarray(scaled.resize(picture.size, Image.Resampling.BICUBIC)).clip(0, 1)
    pixels = np.asarray(picture, np.float64) * (DARKEST + (1 - DARKEST) * strength[:, :, None])
    warm = 0.35 * strength[:, :, None] ** 2
    return Image.fromarray(((1 - warm) * pixels + warm * HEAT).round().astype(np.uint8))


def write_explanation(path: Path, looked: Iterable[Looked]) -> int:
    """Write the page of all maps; return how many photos it shows."""
    by_photo: dict[str, list[Looked]] = {}
    for look in looked:
        by_photo.setdefault(look.id, []).append(look)
    lead = (
        f"{len(by_photo):,} photos as the model saw them, and where the query of each label looked "
        "in the last decoder layer: light where it looks, dark where it does not. A map says where "
        "the model gathered what it answered from, not that the answer is right."
    )
    content = tag("section", *(_photo(*item) for item in by_photo.items()), id="photos")
    write_text(path, document("Where the model looks", lead, [("photos", "Photos", content)]))
    return len(by_photo)


def _photo(name: str, labels: list[Looked]) -> Markup:
    shown = for_terminal(name)
    photo = (tag("strong", "the photo"), tag("small", shown, title=shown))
    cards = [card(labels[0].picture, shown, *photo)]
    for label in labels:
        words = f"{label.label} {label.probability:.0%}" + ("" if label.decided else " (not given)")
        seen = overlay(label.picture, label.attention)
        cards.append(card(seen, f"Where {label.label} was seen", tag("strong", words)))
    return tag("ul", *cards, class_="sheet")
