"""The same answers, asserted: an exported file against the model it was made from.

Each stage is compared on the same input, so that a difference is named where it arises:

    pixels        uint8, from the same decoded picture       at most 1 level apart
    logits        from the same pixels                       at most 1e-4 apart
    probability   from the same logits                       at most 1e-5 apart
    label         from the same probabilities                equal, but where |p - t| < 1e-5

A link with steps may turn the last bit of a logit into another level: a probability also agrees if
it lies between those of the logits a rounding below and above. What comes of all stages together,
where a pixel that is off by one level moves the logits a little, is measured and shown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labelwise.data import ImageSource
from labelwise.errors import LabelwiseError
from labelwise.export.rules import default_thresholds
from labelwise.export.runtime import Decided, GraphModel, NodeValue
from labelwise.predictor import Predictor
from labelwise.progress import Silent, Watch

__all__ = [
    "Parity",
    "Program",
    "assert_parity",
    "assert_program_parity",
    "compare_answers",
    "first_difference",
]

MAX_LEVELS = 1
MAX_LOGIT = 1e-4
MAX_PROBABILITY = 1e-5
ROUNDING = 1e-6  # of a logit, relative above 1

Program = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Parity:
    """The largest differences of each stage over ``pictures``, and of all stages together.

    ``levels`` is None of a program that begins with scaled pixels.
    """

    pictures: int
    levels: int | None
    pixels_differing: float
    logit: float
    probability: float
    probability_end_to_end: float
    labels_end_to_end: int
    labels: int

    def __str__(self) -> str:
        scaled = ""
        if self.levels is not None:
            unit = "level" if self.levels == 1 else "levels"
            scaled = f"pixels within {self.levels} {unit} ({self.pixels_differing:.3%} differ), "
        lines = [
            f"agrees with the model on {self.pictures:,} pictures: {scaled}logits within "
            f"{self.logit:.1e}, probabilities within {self.probability:.1e}",
            f"from picture to answer: probabilities within {self.probability_end_to_end:.1e}, "
            f"{self.labels_end_to_end:,} of {self.labels:,} decisions differ",
        ]
        return "\n".join(lines)


def assert_parity(
    model: GraphModel,
    predictor: Predictor,
    images: ImageSource,
    rows: Sequence[int],
    *,
    watch: Watch | None = None,
) -> Parity:
    """Return how far the file is from the model on pictures; raise where it is too far."""
    way_out = "" if model.facts.exact_resize else "; leave --fast-resize out"
    levels, differing, logit, probability, whole, flipped = 0, 0.0, 0.0, 0.0, 0.0, 0
    watch = watch or Silent()
    watch.start("comparing", len(rows))
    for row in rows:
        watch.advance(1)
        picture = images.read(row, predictor.transform.at_least)
        expected = predictor.transform.pixels(picture).numpy()
        found = model.pixels(np.asarray(picture))
        apart = np.abs(found.astype(np.int16) - expected)
        levels, differing = max(levels, int(apart.max())), differing + float((apart > 0).mean())
        _require(
            apart.max() <= MAX_LEVELS,
            f"nothing was written: pixels of {images.ids[row]} are {apart.max()} levels apart "
            f"after the resize, more than {MAX_LEVELS}{way_out}",
        )
        pixels = torch.from_numpy(expected)[None]
        logits = predictor.logits(pixels)
        answers = model.answers(pixels.numpy())
        gap = float(np.abs(answers.logits - logits.numpy()).max())
        logit = max(logit, gap)
        if not gap <= MAX_LOGIT:
            values = model.values(predictor.transform.normalise(pixels).numpy())
            raise _logits_apart(images.ids[row], gap, first_difference(values, predictor, pixels))
        if predictor.link is None:
            continue
        decided = model.decided(answers.logits)
        apart_p = compare_answers(decided, predictor, answers.logits, images.ids[row])
        probability = max(probability, apart_p)
        if answers.probability is not None and answers.label is not None:
            mine = predictor.link(logits.double())
            own = answers if not apart.any() else model.answers(found[None])
            if own.probability is not None and own.label is not None:
                whole = max(whole, float(np.abs(own.probability - mine.numpy()).max()))
                flipped += int((own.label != predictor.rule(mine).numpy()).sum())
    watch.finish()
    count = len(rows)
    return Parity(
        count,
        levels,
        differing / max(count, 1),
        logit,
        probability,
        whole,
        flipped,
        count * len(predictor.space),
    )


def assert_program_parity(
    program: Program,
    values: Callable[[Tensor], Iterable[NodeValue]],
    predictor: Predictor,
    images: ImageSource,
    rows: Sequence[int],
    *,
    watch: Watch | None = None,
) -> Parity:
    """Return how far a program of scaled pixels is from the model; raise where it is too far.

    ``values`` gives what its nodes compute of pixels, in order, to name the first that differs.
    """
    watch = watch or Silent()
    logit, probability, whole, flipped = 0.0, 0.0, 0.0, 0
    watch.start("comparing", len(rows))
    for row in rows:
        watch.advance(1)
        name = images.ids[row]
        pixels = predictor.transform.pixels(images.read(row, predictor.transform.at_least))[None]
        with torch.no_grad():
            found = program(pixels)
        expected = predictor.logits(pixels)
        gap = float((found["logits"] - expected).abs().max())
        logit = max(logit, gap)
        if not gap <= MAX_LOGIT:
            raise _logits_apart(name, gap, first_difference(values(pixels), predictor, pixels))
        if predictor.link is None:
            continue
        decided = Decided(*(found[one].numpy() for one in ("probability", "label", "none")))
        apart = compare_answers(decided, predictor, found["logits"].numpy(), name)
        mine = predictor.link(expected.double())
        probability = max(probability, apart)
        whole = max(whole, float((found["probability"] - mine).abs().max()))
        flipped += int((found["label"] != predictor.rule(mine.float())).sum())
    watch.finish()
    entries = len(rows) * len(predictor.space)
    return Parity(len(rows), None, 0.0, logit, probability, whole, flipped, entries)


def _logits_apart(picture: str, gap: float, node: str) -> LabelwiseError:
    return LabelwiseError(
        f"nothing was written: logits of {picture} are {gap:.2g} apart, more than {MAX_LOGIT:g}; "
        f"the first node that differs is {node}"
    )


def compare_answers(
    found: Decided, predictor: Predictor, logits: NDArray[np.float32], name: str
) -> float:
    """Return how far what a file makes of logits is from the model's; raise if it is too far."""
    link, given = predictor.link, torch.from_numpy(np.ascontiguousarray(logits)).double()
    if link is None:
        return 0.0
    expected = link(given)
    slack = ROUNDING * given.abs().clamp(min=1)
    around = torch.stack([expected, link(given - slack), link(given + slack)])
    low, high = around.amin(0).numpy(), around.amax(0).numpy()
    p = found.probability
    apart = np.maximum(np.maximum(low - p, p - high), 0.0)
    _require(
        float(apart.max()) <= MAX_PROBABILITY and not np.isnan(p).any(),
        f"nothing was written: probabilities of {name} are {apart.max():.2g} apart, more than "
        f"{MAX_PROBABILITY:g}; the first node that differs is the link {link.kind!r}",
    )
    none = link.log_none(given).exp().numpy()
    _require(
        float(np.abs(found.none - none).max()) <= max(MAX_PROBABILITY, 10 * float(apart.max())),
        f"nothing was written: the probability of no label of {name} differs; "
        f"the first node that differs is in the link {link.kind!r}",
    )
    sets = predictor.rule(torch.from_numpy(p).double()).numpy()
    flips = found.label != sets
    thresholds = default_thresholds(predictor.rule, len(predictor.space))
    if thresholds is not None:
        flips &= np.abs(p - thresholds) >= MAX_PROBABILITY
    _require(
        not flips.any(),
        f"nothing was written: {int(flips.sum())} decided labels of {name} differ; "
        f"the first node that differs is the rule {predictor.rule.kind!r}",
    )
    return float(np.abs(p - expected.numpy()).max())


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise LabelwiseError(sentence)


def first_difference(values: Iterable[NodeValue], predictor: Predictor, pixels: Tensor) -> str:
    """Return the name of the first node of a network that gives what torch never computes.

    Every value that torch computes on its way is looked for among those of the graph's nodes, in
    their order. What comes after the last one that is found is where they part.
    """
    images = predictor.transform.normalise(pixels)
    with torch.no_grad(), _Recorded() as recorded:
        predictor.model.eval()(images)
    found = list(values)
    last = -1
    for place, (_, _, value) in enumerate(found):
        same_shape = (one for one in recorded.values if one.shape == value.shape)
        if any(np.allclose(value, one, atol=1e-4, rtol=1e-4) for one in same_shape):
            last = place
    name, kind, _ = found[min(last + 1, len(found) - 1)]
    return f"{name!r} ({kind})"


class _Recorded(TorchDispatchMode):
    """Keeps every value that torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[NDArray[np.float32]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                self.values.append(value.detach().numpy().copy())
        return result
