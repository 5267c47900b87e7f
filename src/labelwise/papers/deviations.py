"""Deviations: where the settings a run really has differ from what the paper states.

A row's published protocol is data: keys of the settings file, and these facts that are none:

    held_out         the share of the training images taken for validation
    decayed          which parameters weight decay acts on
    weights_tag      which of a library's pretrained weights the backbone starts from
    scores           what average-K thresholds in its first column
    split            who chose the validation images
    image_order      the order in which single positives are drawn
    chosen_on        the images by which the deployed epoch is chosen
    pooled           what of a vision transformer's tokens the head reads

The run's resolved settings are compared with it key by key, so that nothing has to be remembered.
A setting of which the paper says nothing is compared with that of our own protocol, so that
whatever was set for a run is named. Devices, workers and seeds decide no row and are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labelwise.methods import METHODS
from labelwise.papers.protocols import DATASETS, Experiment
from labelwise.papers.sources import (
    LAST_FIFTH,
    NO_SPLIT,
    OWN_SPLIT,
    STRATIFIED,
    ValidationImages,
)
from labelwise.training.settings import Settings, flattened

SMALL_INPUTS = {"resnet18-32", "vgg16-32", "densenet40-12", "densenet40-40"}  # 32 x 32 pixels
OURS = frozenset({"hardware", "seed", "data"})  # no part of a protocol


@dataclass(frozen=True)
class Deviation:
    """One thing that differs from the paper, in the rows where it does so alike.

    Where the paper does not state it, ``published`` is None and ``ours`` is what our protocol has.
    """

    rows: tuple[str, ...]
    key: str
    published: Any
    here: Any
    stated: bool = True
    ours: Any = None

    def __str__(self) -> str:
        if self.stated:
            return f"{self.key}: published {_shown(self.published)}, here {_shown(self.here)}"
        return f"{self.key}: not published, ours {_shown(self.ours)}, here {_shown(self.here)}"


def published_protocol(experiment: Experiment, row: str) -> dict[str, Any]:
    """Return what the paper states for a row, by key; nothing for a row that it does not print."""
    if row not in experiment.published.rows:
        return {}
    stated = {
        key: value
        for key, value in flattened({**experiment.protocol, **experiment.rows[row].values}).items()
        if key not in experiment.unstated
    }
    return {**stated, **flattened(experiment.stated), **flattened(experiment.rows[row].stated)}


def facts_of(
    settings: Settings,
    experiment: Experiment,
    row: str,
    data: str | None = None,
    held_out: ValidationImages | None = None,
) -> dict[str, Any]:
    """Return the same keys as the run has them; ``data`` is a source in place of the paper's.

    ``held_out`` is what was held out of the data that was read; before that, what will be.
    """
    facts = flattened(settings.model_dump(mode="json", exclude=set(OURS)))
    part = _held_out(experiment, row, data, held_out)
    facts["held_out"], facts["split"] = part.share, part.chosen_by
    in_order = data is None and experiment.data_options.get("string_order", False)
    facts["image_order"] = "ids as text" if in_order else "as the table has them"
    best = settings.recipe.keep == "best"
    facts["chosen_on"] = "validation images" if best else "none, the last epoch is deployed"
    facts["pooled"] = "mean over patches"
    facts["decayed"] = "weights, not biases and norms"
    facts["scores"] = "softmax"
    facts["weights_tag"] = _weights_tag(settings)
    if settings.image_size is None and settings.backbone in SMALL_INPUTS:
        facts["image_size"] = 32
    if settings.method in METHODS:
        method = METHODS[settings.method]
        facts = {f"options.{name}": value for name, value in method.options.items()} | facts
        facts["head"] = settings.head or method.head
    facts["data"] = data or experiment.data
    return facts


def _held_out(
    experiment: Experiment, row: str, data: str | None, found: ValidationImages | None
) -> ValidationImages:
    """Return what is held out for a row: as ``found`` in the data, or as the row will take it."""
    alone = experiment.rows[row].hold_out and not experiment.validation
    if found is not None and (not alone or found.chosen_by == OWN_SPLIT):
        return found
    if experiment.one_positive:
        return ValidationImages(0.2, LAST_FIFTH)
    if DATASETS[experiment.data].has_validation and data is None:
        return ValidationImages(0.0, OWN_SPLIT)
    return (
        ValidationImages(0.1, STRATIFIED)
        if experiment.validation or alone
        else ValidationImages(0.0, NO_SPLIT)
    )


def deviations_of(
    experiment: Experiment,
    settings: Mapping[str, Settings],
    ours: Mapping[str, Settings],
    data: str | None = None,
    held_out: ValidationImages | None = None,
) -> list[Deviation]:
    """Return every difference of the rows' settings from the paper, alike ones joined.

    ``ours`` are the settings of our protocol, without what was set for this request.
    """
    found: dict[str, tuple[Deviation, list[str]]] = {}
    for row, used in settings.items():
        published = published_protocol(experiment, row)
        facts = facts_of(used, experiment, row, data, held_out)
        plain = facts_of(ours[row], experiment, row, data, held_out)
        for key in dict.fromkeys([*published, *facts, *plain]):
            here = facts.get(key)
            if key in published:
                one = Deviation((), key, published[key], here)
                same = _same(published[key], here)
            else:
                one = Deviation((), key, None, here, stated=False, ours=plain.get(key))
                same = _same(plain.get(key), here)
            if not same:
                found.setdefault(repr(one), (one, []))[1].append(row)
    return [replace(one, rows=tuple(rows)) for one, rows in found.values()]


def _weights_tag(settings: Settings) -> str | None:
    """Return which published weights are meant, as exactly as the settings and the library say."""
    if settings.weights is None:
        return None
    if settings.backbone == "vgg16-fc7" and settings.weights == "pretrained":
        return "torchvision IMAGENET1K_V1"
    if settings.backbone.startswith("torchvision/"):
        from torchvision.models import get_model_weights

        tags = get_model_weights(settings.backbone.removeprefix("torchvision/"))
        if settings.weights == "pretrained":
            return f"torchvision {tags.DEFAULT.name}"
        if settings.weights in tags.__members__:
            return f"torchvision {settings.weights}"
    if settings.weights == "pretrained" and "_in22k" in settings.backbone:
        return "ImageNet-22k"
    return settings.weights


def _same(published: Any, here: Any) -> bool:
    if isinstance(published, int | float) and isinstance(here, int | float):
        return abs(published - here) <= 1e-12 * max(abs(published), abs(here))
    if isinstance(published, Sequence) and isinstance(here, Sequence) and len(published):
        return list(published) == list(here)
    return bool(published == here)


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
