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
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.experiments.protocols import DATASETS, Experiment
from labelwise.methods import METHODS
from labelwise.training.settings import Settings, flattened

__all__ = ["Deviation", "deviations_of", "facts_of", "published_protocol"]

SMALL_INPUTS = {"resnet18-32", "vgg16-32", "densenet40-12", "densenet40-40"}  # 32 x 32 pixels
OURS = frozenset({"hardware", "seed", "data", "data_options", "start"})  # no part of a protocol


@dataclass(frozen=True)
class Deviation:
    """One thing that differs from the paper, in the rows where it does so alike."""

    rows: tuple[str, ...]
    key: str
    published: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.key}: published {_shown(self.published)}, here {_shown(self.here)}"


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
    settings: Settings, experiment: Experiment, row: str, data: str | None = None
) -> dict[str, Any]:
    """Return the same keys as the run has them; ``data`` is a source in place of the paper's."""
    facts = flattened(settings.model_dump(mode="json", exclude=set(OURS)))
    taken = experiment.validation or experiment.rows[row].hold_out
    own_split = DATASETS[experiment.data].has_validation and data is None
    facts["held_out"] = 0.1 if taken and not own_split else 0.0
    facts["split"] = "the data set's own" if own_split else "a stratified tenth of train"
    if experiment.one_positive:
        facts["held_out"], facts["split"] = 0.2, experiment.stated["split"]
    in_order = data is None and experiment.data_options.get("string_order", False)
    facts["image_order"] = "ids as text" if in_order else "as the table has them"
    facts["chosen_on"] = "validation images"
    facts["pooled"] = "mean over patches"
    facts["decayed"] = "weights, not biases and norms"
    facts["scores"] = "softmax"
    facts["weights_tag"] = _weights_tag(settings)
    if settings.image_size is None and settings.backbone in SMALL_INPUTS:
        facts["image_size"] = 32
    if settings.method in METHODS:
        defaults = METHODS[settings.method].options
        facts = {f"options.{name}": value for name, value in defaults.items()} | facts
    facts["data"] = data or experiment.data
    return facts


def deviations_of(
    experiment: Experiment, settings: Mapping[str, Settings], data: str | None = None
) -> list[Deviation]:
    """Return every difference of the rows' settings from the paper, alike ones joined."""
    found: dict[str, tuple[Deviation, list[str]]] = {}
    for row, used in settings.items():
        published = published_protocol(experiment, row)
        facts = facts_of(used, experiment, row, data)
        for key, value in published.items():
            here = facts.get(key)
            if not _same(value, here):
                alike = f"{key} {value!r} {here!r}"
                found.setdefault(alike, (Deviation((), key, value, here), []))[1].append(row)
    return [
        Deviation(tuple(rows), one.key, one.published, one.here) for one, rows in found.values()
    ]


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
