"""From settings to the things that are trained: table, model, objective."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from labelwise.backbones import (
    SMALL_BACKBONES,
    Backbone,
    create_backbone,
    freeze,
    freeze_batch_norm,
)
from labelwise.data import FeatureRows, ImageSource, LabelTable
from labelwise.decide import find_rule
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.methods import find_method, make_objective
from labelwise.objectives import Objective
from labelwise.objectives.base import refuse_accumulation
from labelwise.predictor import HeadSpec, Model, find_head
from labelwise.training.augment import make_augment
from labelwise.training.fitting import find_calibrator
from labelwise.training.settings import AUTO, Settings
from labelwise.training.validation import VALIDATION_METRICS
from labelwise.types import DatasetFacts, nearest

__all__ = [
    "build_model",
    "build_objective",
    "check_names",
    "divide",
    "fingerprint",
    "hint_at_photos",
    "start_at_priors",
]

TABLE_ENTRIES = 1 << 26  # of a table on the GPU: 0.8 GB with Adam's moments
PHOTO = 3  # times the side of the input: pictures that lose most of what they show
LARGEST_START = 8.0  # of a bias: where a prior cannot be reached, the search ends far out


def check_names(settings: Settings) -> None:
    """Raise, before anything is loaded or written, if a name in the settings means nothing."""
    head = settings.head
    if settings.method != AUTO:
        head = head or find_method(settings.method).head
    if head is not None:
        find_head(head)
    find_calibrator(settings.calibrate)
    find_rule(settings.rule)
    make_augment(settings.augment)
    if settings.recipe.metric not in VALIDATION_METRICS:
        metric = settings.recipe.metric
        raise SettingsError(f"unknown metric {metric!r}{nearest(metric, VALIDATION_METRICS)}")


def divide(table: LabelTable) -> dict[str, LabelTable]:
    """Return the splits of a table, of which ``train`` must be one."""
    splits = table.splits()
    if "train" not in splits:
        raise DataError(f"{table.name} must have rows in the split train, got {', '.join(splits)}")
    return splits


def build_model(settings: Settings, table: LabelTable) -> tuple[Model, HeadSpec]:
    """Return the model with new weights (the backbone's may be given), and its head's spec."""
    backbone = _backbone(settings, table)
    if settings.freeze:
        freeze(backbone, settings.freeze)
    if settings.freeze_batch_norm:
        freeze_batch_norm(backbone)
    method = find_method(settings.method)
    head = HeadSpec(settings.head or method.head, settings.head_options)
    made = head.make(backbone.channels, len(table.space))
    return Model(backbone, made, mirrored=settings.mirror), head


def _backbone(settings: Settings, table: LabelTable) -> Backbone:
    features = table.images.features if isinstance(table.images, FeatureRows) else None
    if features is not None and settings.backbone != "identity":
        raise SettingsError(
            f"{table.name} holds features, so backbone must be 'identity', "
            f"got {settings.backbone!r}"
        )
    return create_backbone(
        settings.backbone,
        weights=settings.weights if settings.start is None else None,
        image_size=settings.image_size,
        squash=settings.squash,
        channels=None if features is None else features.shape[1],
    )


def hint_at_photos(backbone: Backbone, images: ImageSource) -> str:
    """Return advice for photos that go through a network for small pictures, else nothing."""
    size = backbone.transform.size
    if backbone.name not in SMALL_BACKBONES or not len(images):
        return ""
    try:
        side = min(images.read(0).size)
    except ImageError:  # whoever reads it next says so
        return ""
    if side < PHOTO * size:
        return ""
    return (
        f"{backbone.name} sees pictures at {size} pixels, these have {side}; "
        "for photos take --backbone resnet18 --weights pretrained"
    )


def build_objective(
    settings: Settings,
    facts: DatasetFacts,
    model: Model,
    device: torch.device | str = "cpu",
) -> Objective:
    """Return the objective of the method, checked against the head.

    A table that the method keeps for the training set lives on a GPU if it fits and nothing else
    was asked for.
    """
    options = dict(settings.options)
    entries = facts.num_images * facts.num_labels
    if torch.device(device).type == "cuda" and entries <= TABLE_ENTRIES:
        options = {**_device_table(settings.method), **options}
    try:
        objective = make_objective(settings.method, facts, **options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"method {settings.method!r}: {error}") from None
    missing = [name for name in objective.aux if name not in model.head.aux]
    if missing:
        raise SettingsError(
            f"method {settings.method!r} needs the head output {missing[0]!r}, "
            f"got head {settings.head!r} with {sorted(model.head.aux) or 'none'}"
        )
    if settings.recipe.metric == "log_loss" and objective.link is None:
        raise SettingsError(
            f"metric 'log_loss' needs probabilities, and method {settings.method!r} only ranks"
        )
    refuse_accumulation(objective, settings.method, settings.recipe.accumulate)
    return objective


def _device_table(method: str) -> dict[str, Any]:
    return {"table": "device"} if "table" in find_method(method).options else {}


def start_at_priors(model: Model, objective: Objective, facts: DatasetFacts) -> None:
    """Start each label where the objective comes to rest at its share in the training set.

    Where unknown labels take part in the loss, the share among the known ones says nothing.
    """
    if facts.priors is None or objective.reads_unknown:
        return
    least = 0.5 / max(facts.num_images, 1)
    priors = torch.tensor(facts.priors, dtype=torch.float64).clamp(least, 1 - least)
    logits = objective.start_logits(priors)
    if logits is not None:
        model.head.start_at(logits.clamp(-LARGEST_START, LARGEST_START).float())


def fingerprint(splits: Mapping[str, LabelTable]) -> str:
    """Return a hash of the names, images and labels of every split."""
    digest = hashlib.sha256()
    for name, table in splits.items():
        digest.update(repr((name, table.space.names, len(table))).encode())
        for text in table.ids:
            digest.update(text.encode() + b"\0")
        for sets in (table.present, table.unknown):
            arrays: tuple[Any, ...] = (sets.offsets, sets.columns, sets.inverted)
            for array in arrays:
                digest.update(array.tobytes())
    return digest.hexdigest()
