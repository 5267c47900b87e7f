"""The same answers, asserted: an exported file against the model it was made from.

Each stage is compared on the same input, so that a difference is named where it arises:

    decoding      from the same file, by Pillow alone        equal
    pixels        uint8, from the same decoded picture       at most 1 level apart
    logits        from the same pixels                       at most 1e-4 apart
    probability   from the same logits                       at most 1e-5 apart
    label         from the same probabilities                equal, but where |p - t| < 1e-5

A probability also agrees if it lies between those of the logits a rounding below and above: a link
with steps may turn the last bit of a logit into another level.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labelwise.base.arrays import to_numpy
from labelwise.base.progress import Silent, Watch
from labelwise.base.text import counted
from labelwise.errors import LabelwiseError
from labelwise.learn.predictor import Predictor
from labelwise.models.graph_links import default_thresholds
from labelwise.models.graph_model import GraphAnswers, OnnxModel
from labelwise.models.scoring import Scorer, inferred, raise_failure
from labelwise.pictures import BytesImages, ImageSource
from labelwise.pictures.decode import is_raw
from labelwise.pictures.inputs import input_array
from labelwise.pictures.labelwise_runtime import read_picture
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.types import matching_columns


def measured_predictions(
    scorer: Scorer,
    table: LabelTable,
    split: str,
    *,
    batch_size: int = 32,
    watch: Watch | None = None,
) -> Predictions:
    """Return the logits of a scorer with the labels of a table, in the scorer's columns."""
    names, there = scorer.space.names, table.space.names
    columns = matching_columns(names, there, of="the model", in_=table.name, others=True)
    labels, observed = table.targets()
    parts = []
    watch = watch or Silent()
    watch.start("scoring", len(table))
    for batch in inferred(
        scorer, lambda pixels: (scorer.logits(pixels),), table.images, batch_size=batch_size
    ):
        raise_failure(batch)
        parts.append(to_numpy(batch.values[0]))
        watch.advance(len(batch.rows))
    watch.finish()
    return Predictions(
        table.ids,
        np.concatenate(parts),
        np.ascontiguousarray(labels[:, columns]),
        None if observed is None else np.ascontiguousarray(observed[:, columns]),
        names,
        split,
        scorer.link,
        table.group,
    )


# Encoded files that every export of a picture model is compared on, made from one picture.
#
#     how a camera was held      JPEG with EXIF orientation 6 and 5 (turned, turned and mirrored)
#     a large photo              JPEG whose sides are many times those of the input
#     what has to be laid down   PNG with alpha, 16-bit grey PNG
#     another format             WebP
#
# Programs that ignore one of these are off by far more than a rounding.

LARGE = 4  # times the side of the input, at least


def encoded_examples(picture: Image.Image, side: int) -> BytesImages:
    """Return files of a picture in RGB, for a model whose input has ``side`` pixels."""
    grow = max(1.0, LARGE * side / min(picture.size))
    large = picture.resize((round(grow * picture.width), round(grow * picture.height)))
    clear = picture.copy()
    clear.putalpha(Image.linear_gradient("L").resize(picture.size))
    deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    turned, mirrored = Image.Exif(), Image.Exif()
    turned[ExifTags.Base.Orientation], mirrored[ExifTags.Base.Orientation] = 6, 5
    examples: dict[str, tuple[Image.Image, str, dict[str, object]]] = {
        "a turned JPEG": (picture, "JPEG", {"exif": turned, "quality": 90}),
        "a turned and mirrored JPEG": (picture, "JPEG", {"exif": mirrored, "quality": 90}),
        "a large JPEG": (large, "JPEG", {"quality": 85}),
        "a PNG with alpha": (clear, "PNG", {}),
        "a PNG of 16 bits": (deep, "PNG", {}),
        "a WebP": (picture, "WEBP", {}),
    }
    files = []
    for shown, kind, options in examples.values():
        buffer = BytesIO()
        shown.save(buffer, kind, **options)
        files.append(buffer.getvalue())
    return BytesImages(files, list(examples))


MAX_LEVELS = 1
MAX_LOGIT = 1e-4
MAX_PROBABILITY = 1e-5
ROUNDING = 1e-6  # of a logit, relative above 1

Row = TypeVar("Row")
Program = Callable[[Tensor], GraphAnswers]


@dataclass
class Parity:
    """The largest differences of each stage over ``pictures``, and of all stages together."""

    pictures: int
    levels: int | None = None
    pixels_differing: float = 0.0
    logit: float = 0.0
    probability: float = 0.0
    probability_end_to_end: float = 0.0
    labels_end_to_end: int = 0
    labels: int = 0
    files: int = 0

    def __str__(self) -> str:
        scaled = beside = ""
        if self.levels is not None:
            levels = counted(self.levels, "level")
            scaled = f"pixels within {levels} ({self.pixels_differing:.3%} differ), "
        if self.files:
            kinds = "rotated by EXIF, large, alpha, 16 bits, WebP"
            beside = f" and {self.files} test files ({kinds}), each from its bytes"
        return (
            f"agrees with the model on {counted(self.pictures, 'picture')}{beside}: {scaled}logits "
            f"within {self.logit:.1e}, probabilities within {self.probability:.1e}\n"
            f"from picture to answer: probabilities within {self.probability_end_to_end:.1e}, "
            f"{self.labels_end_to_end:,} of {self.labels:,} decisions differ"
        )


def assert_parity(
    model: OnnxModel,
    predictor: Predictor,
    images: ImageSource,
    rows: Sequence[int],
    *,
    watch: Watch | None = None,
) -> Parity:
    """Return how far the file is from the model on pictures; raise where it is too far."""
    transform = predictor.transform

    def program(pixels: Tensor) -> GraphAnswers:
        answers = model.answers(pixels.numpy())
        return answers if predictor.link is None else model.decided(answers.logits)

    graph = model if isinstance(model, OnnxModel) else None
    if transform.bands is not None:
        return assert_program_parity(program, predictor, images, rows, graph=graph, watch=watch)
    at_least = transform.at_least()
    examples = encoded_examples(images.read(rows[0], at_least), transform.size)
    parity = Parity(len(rows), levels=0, files=len(examples))
    every: list[tuple[ImageSource, int]] = [(images, row) for row in rows]
    every += [(examples, row) for row in range(len(examples))]
    for source, row in _shown(every, watch):
        name, picture = source.ids[row], source.read(row, at_least)
        content = source.encoded(row) if model.facts.input == "image" else None
        # Of pixels in memory there is none, and Pillow alone cannot read raw files.
        plain = None if content is None or is_raw(content) else read_picture(content)
        if plain is not None and not np.array_equal(plain, np.asarray(picture)):
            what = f"Pillow alone decodes {name} to other pixels than the model gets"
            raise LabelwiseError(f"nothing was written: {what}")
        scaled, pixels = model.pixels(np.asarray(picture)), transform.pixels(picture)
        apart = np.abs(scaled.astype(np.int16) - pixels.numpy())
        most = int(apart.max())
        if most > MAX_LEVELS:
            raise LabelwiseError(
                f"nothing was written: pixels of {name} are {most} levels apart after the resize, "
                f"more than {MAX_LEVELS}"
            )
        parity.levels = max(parity.levels or 0, most)
        parity.pixels_differing += float((apart > 0).mean())
        whole = None if np.array_equal(scaled, pixels) else model.answers(scaled[None])
        _take_answers(parity, predictor, pixels[None], program, name, graph, whole)
    parity.pixels_differing /= len(every)
    return parity


def assert_program_parity(
    program: Program,
    predictor: Predictor,
    images: ImageSource,
    rows: Sequence[int],
    *,
    graph: OnnxModel | None = None,
    watch: Watch | None = None,
) -> Parity:
    """Return how far a program of scaled pixels is from the model; raise where it is too far."""
    parity = Parity(len(rows))
    for row in _shown(rows, watch):
        pixels = torch.from_numpy(input_array(images, row, predictor.transform))[None]
        _take_answers(parity, predictor, pixels, program, images.ids[row], graph)
    return parity


def _shown(rows: Sequence[Row], watch: Watch | None) -> Iterator[Row]:
    watch = watch or Silent()
    watch.start("comparing", len(rows))
    for row in rows:
        watch.advance(1)
        yield row
    watch.finish()


def _take_answers(
    parity: Parity,
    predictor: Predictor,
    pixels: Tensor,
    program: Program,
    name: str,
    graph: OnnxModel | None = None,
    whole: GraphAnswers | None = None,
) -> None:
    """Compare logits with the model's for the same pixels, and what follows from the logits."""
    found, expected = program(pixels), predictor.logits(pixels)
    gap = float(np.abs(found.logits - expected.numpy()).max())
    if not gap <= MAX_LOGIT:  # NaN is too far too
        first = "" if graph is None else first_difference(graph, predictor, pixels)
        far = f"{gap:.2g} apart, more than {MAX_LOGIT:g}{first}"
        raise LabelwiseError(f"nothing was written: logits of {name} are {far}")
    parity.logit = max(parity.logit, gap)
    parity.labels += len(predictor.space)
    if predictor.link is None:
        return
    apart = compare_answers(found, predictor, found.logits, name)
    parity.probability = max(parity.probability, apart)
    answers, probs = whole or found, predictor.link(expected.double())
    sets = predictor.rule(probs.float() if parity.levels is None else probs)
    apart = float(np.abs(answers.probability - probs.numpy()).max())
    parity.probability_end_to_end = max(parity.probability_end_to_end, apart)
    parity.labels_end_to_end += int((answers.label != sets.numpy()).sum())


def compare_answers(
    found: GraphAnswers, predictor: Predictor, logits: NDArray[np.float32], name: str
) -> float:
    """Return how far what a file makes of logits is from the model's; raise if it is too far."""
    link, given = predictor.link, torch.from_numpy(np.ascontiguousarray(logits)).double()
    if link is None:
        return 0.0
    expected, p = link(given), found.probability
    slack = ROUNDING * given.abs().clamp(min=1)
    around = torch.stack([expected, link(given - slack), link(given + slack)])
    low, high = around.amin(0).numpy(), around.amax(0).numpy()
    apart = np.maximum(np.maximum(low - p, p - high), 0.0)
    if not float(apart.max()) <= MAX_PROBABILITY or np.isnan(p).any():  # NaN is too far too
        raise LabelwiseError(
            f"nothing was written: probabilities of {name} are {apart.max():.2g} apart, more than "
            f"{MAX_PROBABILITY:g}; the first node that differs is the link {link.kind!r}"
        )
    none = float(np.abs(found.none - link.log_none(given).exp().numpy()).max())
    if not none <= max(MAX_PROBABILITY, 10 * float(apart.max())):
        what = f"the probability of no label of {name} differs; the first node that differs"
        raise LabelwiseError(f"nothing was written: {what} is in the link {link.kind!r}")
    flips = found.label != predictor.rule(torch.from_numpy(p).double()).numpy()
    thresholds = default_thresholds(predictor.rule, len(predictor.space))
    if thresholds is not None:
        flips &= np.abs(p - thresholds) >= MAX_PROBABILITY
    if flips.any():
        what = f"{int(flips.sum())} decided labels of {name} differ; the first node that differs"
        raise LabelwiseError(f"nothing was written: {what} is the rule {predictor.rule.kind!r}")
    return float(np.abs(p - expected.numpy()).max())


def first_difference(graph: OnnxModel, predictor: Predictor, pixels: Tensor) -> str:
    """Return words for the first node of a network that gives what torch never computes."""
    images = predictor.transform.normalise(pixels)
    with torch.no_grad(), _Recorded() as recorded:
        predictor.model.eval()(images)
    nodes = list(graph.values(images.numpy()))
    last = -1
    for position, (_, _, value) in enumerate(nodes):
        alike = (known for known in recorded.values if known.shape == value.shape)
        if any(np.allclose(value, known, atol=1e-4, rtol=1e-4) for known in alike):
            last = position
    name, kind, _ = nodes[min(last + 1, len(nodes) - 1)]
    return f"; the first node that differs is {name!r} ({kind})"


class _Recorded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[NDArray[np.float32]] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                self.values.append(value.detach().numpy().copy())
        return result
