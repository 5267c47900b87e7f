"""What stands before a head that is trained on features: a frozen backbone, and their scaling."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.data import LabelTable
from labelwise.errors import SettingsError
from labelwise.methods import find_method
from labelwise.models import HeadSpec, Model
from labelwise.networks.backbones import Backbone
from labelwise.pictures import FeatureRows
from labelwise.pictures.mapped import Features, moments_of, scaled
from labelwise.system.progress import Watch
from labelwise.training.band_scale import scale_of
from labelwise.training.build import advice_for_photos, weights_of
from labelwise.training.features import compute, frozen_backbone
from labelwise.training.settings import AUTO, Settings

LEAST_SPREAD = 1e-7  # of a feature, below which it is taken to be constant


@dataclass(frozen=True, eq=False)
class FrozenBackbone:
    """What stands before a head that is trained on features: the network, and their scaling.

    Heads that begin with a linear map see ``(features - mean) / scale``, with the mean and scale
    (D,) of the training rows; others see feature maps as they are.
    """

    backbone: Backbone
    mean: Tensor | None = None
    scale: Tensor | None = None

    def deployed(self, model: Model) -> Model:
        """Return the model of photos that answers as ``model`` does for their features."""
        head = deepcopy(model.head).cpu()
        if self.mean is not None and self.scale is not None:
            head.absorb_scaling(self.mean, self.scale)
        return Model(self.backbone, head)


def frozen_features(
    settings: Settings, table: LabelTable, device: torch.device, watch: Watch
) -> tuple[FrozenBackbone, LabelTable]:
    """Return the network that is not trained, and the table with its features as images."""
    held = table.images.features if isinstance(table.images, FeatureRows) else None
    bands = settings.bands
    if settings.backbone == "identity" and held is None:
        raise SettingsError(
            f"{table.name} holds images, and identity is for data that holds features; "
            "name a network, such as --features resnet18"
        )
    backbone = frozen_backbone(
        settings.backbone,
        weights=weights_of(settings),
        image_size=settings.image_size,
        squash=settings.squash,
        reduced_jpeg=settings.reduced_jpeg,
        channels=None if held is None else held.shape[1],
        bands=None if bands is None or held is not None else scale_of(bands, settings, table),
    )
    if held is not None:
        if backbone.channels != held.shape[1]:
            raise SettingsError(
                f"{table.name} holds {held.shape[1]} features per row, and {settings.features} "
                f"gives {backbone.channels}; for features of your own take --features identity"
            )
        return FrozenBackbone(backbone), table
    if settings.weights is None:
        watch.say(f"{settings.features} has random weights; trained ones come with --weights")
    advice = advice_for_photos(backbone, table.images)
    if advice:
        watch.say(advice.replace("--backbone", "--features"))
    name = settings.head or (
        "linear" if settings.method == AUTO else find_method(settings.method).head
    )
    pooled = HeadSpec(name, settings.head_options).make(backbone.channels, len(table.space)).pools
    rows = compute(
        table,
        backbone,
        settings.hardware.features_cache,
        pooled=pooled,
        device=device,
        workers=settings.hardware.workers,
        watch=watch,
    )
    return FrozenBackbone(backbone.cpu()), rows


def scaling_of(features: Features) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the scale (D,) of features; a constant one keeps the scale 1."""
    mean, spread = moments_of(features)
    return mean, np.where(spread > LEAST_SPREAD * (1 + np.abs(mean)), spread, 1.0)


def standardised(
    frozen: FrozenBackbone, splits: Mapping[str, LabelTable]
) -> tuple[FrozenBackbone, dict[str, LabelTable]]:
    """Return the splits with features of mean 0 and deviation 1 in training, and their scaling."""
    features = {
        name: table.images.features
        for name, table in splits.items()
        if isinstance(table.images, FeatureRows)
    }
    mean, scale = scaling_of(features["train"])
    standard = {
        name: replace(splits[name], images=FeatureRows(scaled(rows, mean, scale), splits[name].ids))
        for name, rows in features.items()
    }
    kept = replace(frozen, mean=torch.from_numpy(mean), scale=torch.from_numpy(scale))
    return kept, standard
