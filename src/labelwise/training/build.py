"""Build what a run trains: its method, model and objective, and where the biases start.

The method ``auto`` is what the comparisons in docs/reproduction.md recommend for a training set.
The first line that applies decides:

    some labels are soft                  bce
    no label is known to be absent        wan
    some labels are unknown               bce
    an image has several labels           bce
    every image has exactly one label     softmax
    otherwise                             softmax-or-none
"""

from collections.abc import Mapping

import torch

from labelwise.data import LabelTable
from labelwise.errors import ImageError, SettingsError
from labelwise.methods import find_method, make_objective
from labelwise.models import HeadSpec, Model
from labelwise.models.run_folder import fetched_run
from labelwise.networks.backbones import (
    SMALL_BACKBONES,
    Backbone,
    create_backbone,
    freeze,
    freeze_batch_norm,
)
from labelwise.objectives import Objective
from labelwise.objectives.base import refuse_accumulation
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.system.storage import is_uri
from labelwise.training.band_scale import scale_of
from labelwise.training.settings import Settings
from labelwise.types import DatasetFacts

TABLE_ENTRIES = 1 << 26  # of a table on the GPU: 0.8 GB with Adam's moments
PHOTO = 3  # times the side of the input: pictures that lose most of what they show
LARGEST_BIAS = 8.0  # where a prior cannot be reached, the search ends far out


def choose_method(table: LabelTable) -> tuple[str, str]:
    """Return the name of a method for a training split, and why."""
    present, unknown = table.present.sizes(), table.unknown.sizes()
    if table.soft is not None:
        return "bce", "labels are soft"
    if not (present + unknown < len(table.space)).any():
        return "wan", "no label is known to be absent"
    if unknown.any() or present.max() > 1:
        return "bce", "images may have several labels"
    if present.min() == 1:
        return "softmax", "every image has exactly one label"
    return "softmax-or-none", "no image has more than one label"


def weights_of(settings: Settings) -> str | None:
    """Return what the backbone's weights are; of a run in a bucket, the copy of its model."""
    weights = settings.weights
    return str(fetched_run(weights, "model")) if weights and is_uri(weights) else weights


def build_model(settings: Settings, table: LabelTable) -> tuple[Model, HeadSpec]:
    """Return the model with new weights (the backbone's may be given), and its head's spec."""
    features = table.images.features if isinstance(table.images, FeatureRows) else None
    name, bands = settings.backbone if settings.features is None else "identity", settings.bands
    if features is not None and name != "identity":
        raise SettingsError(
            f"{table.name} holds features, so backbone must be 'identity', "
            f"got {settings.backbone!r}"
        )
    if features is not None and settings.crops != 1:
        raise SettingsError(
            f"{table.name} holds features, so crops must be 1, got {settings.crops}"
        )
    backbone = create_backbone(
        name,
        weights=weights_of(settings) if settings.start is None else None,
        image_size=settings.image_size,
        squash=settings.squash,
        reduced_jpeg=settings.reduced_jpeg,
        channels=None if features is None else features.shape[1],
        bands=None if bands is None or features is not None else scale_of(bands, settings, table),
    )
    if settings.freeze:
        freeze(backbone, settings.freeze)
    if settings.freeze_batch_norm:
        freeze_batch_norm(backbone)
    head = HeadSpec(settings.head or find_method(settings.method).head, settings.head_options)
    made = head.make(backbone.channels, len(table.space))
    return Model(backbone, made, mirrored=settings.mirror, crops=settings.crops), head


def advice_for_photos(backbone: Backbone, images: ImageSource) -> str:
    """Return advice for photos that go through a network for small pictures, else nothing."""
    size = backbone.transform.size
    if backbone.name not in SMALL_BACKBONES or not len(images) or backbone.transform.bands:
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
    keeps_table = "table" in find_method(settings.method).options
    fits = facts.num_images * facts.num_labels <= TABLE_ENTRIES
    if keeps_table and fits and torch.device(device).type == "cuda":
        options = {"table": "device", **options}
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


def labels_per_image(method: str, splits: Mapping[str, LabelTable]) -> float:
    """Return the mean number of labels, which training images with unknown ones do not tell."""
    if "val" not in splits or splits["val"].has_unknown():
        raise SettingsError(
            f"method {method!r} needs the mean number of labels per image, and training images "
            "with unknown labels do not tell it: set options.k, or give a validation split in "
            "which every label is known"
        )
    return splits["val"].facts().mean_labels


def set_biases_to_priors(model: Model, objective: Objective, facts: DatasetFacts) -> None:
    """Start each label where the objective comes to rest at its share in the training set.

    It is the share as the objective reads the labels: see ``Objective.shares_read``.
    """
    shares = objective.shares_read(facts)
    if shares is None:
        return
    least = 0.5 / max(facts.num_images, 1)
    logits = objective.start_logits(
        torch.tensor(shares, dtype=torch.float64).clamp(least, 1 - least)
    )
    model.head.start_at(logits.clamp(-LARGEST_BIAS, LARGEST_BIAS).float())
