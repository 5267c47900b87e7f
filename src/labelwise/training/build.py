"""Build what a run trains: its model and objective, and where the biases start."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.data import LabelTable
from labelwise.errors import DataError, ImageError, SettingsError
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
from labelwise.pictures.transform import ALL, Bands, BandScale, named_bands
from labelwise.system.storage import is_uri
from labelwise.training.settings import Settings
from labelwise.types import DatasetFacts

TABLE_ENTRIES = 1 << 26  # of a table on the GPU: 0.8 GB with Adam's moments
PHOTO = 3  # times the side of the input: pictures that lose most of what they show
LARGEST_BIAS = 8.0  # where a prior cannot be reached, the search ends far out


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


# The bands of a run: which its pictures hold, and the scale of each in the training split.
#
#     mean_b = sum of values / n        std_b = sqrt(sum of squares / n - mean_b^2)
#
# over all pixels with data of up to 1,024 training pictures, spread evenly over the split. They are
# summed about the first picture's mean, so that large offsets cost no digits.


LOOKED_AT = 1024

Moments = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]


def bands_of(bands: str, settings: Settings, images: ImageSource) -> Bands:
    """Return the bands that a run was told of; ``all`` are those of its first picture."""
    window = settings.window or "none"
    found = images.cube(0, window).found_names if bands == ALL and len(images) else None
    return named_bands(bands, settings.composite, window, found)


def scale_of(named: str, settings: Settings, table: LabelTable) -> BandScale:
    """Return the ``named`` bands of a run with their means and deviations in its training split."""
    train = table.splits().get("train", table)
    bands = bands_of(named, settings, train.images)
    if not len(train):
        raise DataError(f"{table.name} has no training pictures to take the scale of bands from")
    rows = np.unique(np.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).astype(int))
    offset = np.nan_to_num(_mean(train.images.read_bands(int(rows[0]), bands)))

    def moments(row: int) -> Moments | None:
        try:
            values = train.images.read_bands(row, bands).reshape(-1, len(bands)).astype(np.float64)
        except ImageError:  # whoever reads it next says so
            return None
        known = ~np.isnan(values)
        values = np.where(known, values - offset, 0.0)
        return values.sum(0), np.square(values).sum(0), known.sum(0)

    with ThreadPoolExecutor(settings.hardware.workers or None) as pool:
        parts = [one for one in pool.map(moments, rows.tolist()) if one is not None]
    total, squares, count = (np.sum([part[at] for part in parts], axis=0) for at in range(3))
    for name, known in zip(bands.names, count, strict=True):
        if not known:
            raise DataError(f"band {name!r} has no data in the training pictures; leave it out")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    for name, spread, middle in zip(bands.names, std, mean + offset, strict=True):
        if not spread > 1e-6 * max(abs(float(middle)), 1e-30):
            raise DataError(
                f"band {name!r} is {middle:g} in every training picture; leave it out of --bands"
            )
    return BandScale(bands, tuple(map(float, mean + offset)), tuple(map(float, std)))


def _mean(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of each band where it has data, NaN where it has none."""
    known = ~np.isnan(values)
    count = known.sum((0, 1))
    total = np.where(known, values, 0.0).sum((0, 1), dtype=np.float64)
    mean: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
