"""Features of a frozen backbone, computed once and kept on disk, then trained on in seconds.

On a CPU an eye computes the features of a photo (:mod:`labelwise.eyes`). Torch does on a GPU, of
bands, and where a head reads whole feature maps: into a file whose name is a hash of all that the
numbers depend on, which are the backbone's weights, its transform and the bytes of every image.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.base.arrays import Values
from labelwise.base.files import replacing
from labelwise.base.progress import Silent, Watch
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.eyes import features as eye_features
from labelwise.eyes.eye import BUILT_IN, PRETRAINED, Eye
from labelwise.learn.backbones import (
    SMALL_BACKBONES,
    Backbone,
    create_backbone,
    freeze,
    freeze_batch_norm,
)
from labelwise.learn.backbones.weights import load_eye
from labelwise.learn.inference import infer
from labelwise.learn.methods import find_method, make_head, make_objective
from labelwise.learn.objectives import Objective
from labelwise.learn.objectives.base import refuse_accumulation
from labelwise.learn.predictor import Model
from labelwise.models import HeadSpec
from labelwise.models.scoring import raise_failure
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.pictures.memory import MappedFeatures, moments_of, scaled
from labelwise.pictures.transform import BandScale
from labelwise.tables import LabelTable
from labelwise.training.data import bands_of
from labelwise.training.made_eyes import eye_named
from labelwise.training.plan import weights_of
from labelwise.training.settings import Settings
from labelwise.types import DatasetFacts

TABLE_ENTRIES = 1 << 26  # of a table on the GPU: 0.8 GB with Adam's moments
PHOTO = 3  # times the side of the input: pictures that lose most of what they show
LARGEST_BIAS = 8.0  # where a prior cannot be reached, the search ends far out


def inputs_of(settings: Settings, table: LabelTable) -> dict[str, Any]:
    """Return the options of a backbone that follow from settings and data."""
    held = table.images.features if isinstance(table.images, FeatureRows) else None
    named = settings.bands if held is None else None
    return {
        "image_size": settings.image_size,
        "squash": settings.squash,
        "reduced_jpeg": settings.reduced_jpeg,
        "channels": None if held is None else held.shape[1],
        "bands": None if named is None else scale_of(named, settings, table),
    }


def build_model(settings: Settings, table: LabelTable) -> tuple[Model, HeadSpec]:
    """Return the model with new weights (the backbone's may be given), and its head's spec."""
    features = isinstance(table.images, FeatureRows)
    name = settings.backbone if settings.features is None else "identity"
    needed = (("backbone", name, "identity"), ("crops", settings.crops, 1))
    for key, given, wanted in needed if features else ():
        if given != wanted:
            raise SettingsError(
                f"{table.name} holds features, so {key} must be {wanted!r}, got {given!r}"
            )
    weights = weights_of(settings) if settings.start is None else None
    backbone = create_backbone(name, weights=weights, **inputs_of(settings, table))
    if settings.freeze:
        freeze(backbone, settings.freeze)
    if settings.freeze_batch_norm:
        freeze_batch_norm(backbone)
    head = HeadSpec(settings.head or find_method(settings.method).head, settings.head_options)
    made = make_head(head, backbone.channels, len(table.space))
    return Model(backbone, made, mirrored=settings.mirror, crops=settings.crops), head


def advice_for_photos(backbone: Backbone, images: ImageSource) -> str:
    """Return advice for photos that go through a network for small pictures, else nothing."""
    size = backbone.transform.size
    if backbone.name in SMALL_BACKBONES and len(images) and not backbone.transform.bands:
        with suppress(ImageError):  # whoever reads it next says so
            side = min(images.read(0).size)
            if side >= PHOTO * size:
                return (
                    f"{backbone.name} sees pictures at {size} pixels, these have {side}; "
                    "for photos take --backbone resnet18 --weights pretrained"
                )
    return ""


def build_objective(
    settings: Settings, facts: DatasetFacts, model: Model, device: torch.device | str = "cpu"
) -> Objective:
    """Return the objective of the method, checked against the head."""
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
        raise SettingsError(f"'log_loss' needs probabilities; {settings.method!r} only ranks")
    refuse_accumulation(objective, settings.method, settings.recipe.accumulate)
    return objective


def set_biases_to_priors(model: Model, objective: Objective, facts: DatasetFacts) -> None:
    """Start each label where the objective comes to rest at its share in the training set."""
    shares = objective.shares_read(facts)
    if shares is None:
        return
    low = 0.5 / max(facts.num_images, 1)
    logits = objective.start_logits(torch.tensor(shares, dtype=torch.float64).clamp(low, 1 - low))
    model.head.start_at(logits.clamp(-LARGEST_BIAS, LARGEST_BIAS).float())


# The bands of a run: which its pictures hold, and the scale of each in the training split.
#
#     mean_b = sum of values / n        std_b = sqrt(sum of squares / n - mean_b^2)
#
# over all pixels with data of up to 1,024 training pictures, spread evenly over the split.

LOOKED_AT = 1024


def scale_of(named: str, settings: Settings, table: LabelTable) -> BandScale:
    """Return the ``named`` bands of a run with their means and deviations in its training split."""
    train = table.splits().get("train", table)
    bands = bands_of(named, settings, train.images)
    if not len(train):
        raise DataError(f"{table.name} has no training pictures to take the scale of bands from")
    rows = np.unique(np.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).astype(int))
    # summed about the first picture's mean, so that large offsets cost no digits
    first = train.images.read_bands(int(rows[0]), bands).reshape(-1, len(bands))
    there = ~np.isnan(first)
    offset = np.where(there, first, 0.0).sum(0, dtype=np.float64) / np.maximum(there.sum(0), 1)

    def moments(row: int) -> tuple[Values, ...] | None:
        try:
            values = train.images.read_bands(row, bands).reshape(-1, len(bands)).astype(np.float64)
        except ImageError:  # whoever reads it next says so
            return None
        known = ~np.isnan(values)
        values = np.where(known, values - offset, 0.0)
        return values.sum(0), np.square(values).sum(0), known.sum(0)

    with ThreadPoolExecutor(settings.hardware.workers or None) as pool:
        parts = [moment for moment in pool.map(moments, rows.tolist()) if moment is not None]
    total, squares, count = (np.sum(some, axis=0) for some in zip(*parts, strict=True))
    if not count.all():
        name = bands.names[int(np.argmin(count))]
        raise DataError(f"band {name!r} has no data in the training pictures; leave it out")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    for name, spread, middle in zip(bands.names, std, mean + offset, strict=True):
        if not spread > 1e-6 * max(abs(float(middle)), 1e-30):
            raise DataError(f"band {name!r} is {middle:g} in every training picture; leave it out")
    return BandScale(bands, tuple(map(float, mean + offset)), tuple(map(float, std)))


FORMAT = 1  # counts changes of how features are computed
IN_MEMORY = 2 << 30  # bytes; of more features only rows that are asked for are read and scaled
AT_ONCE = 4096  # images whose contents are asked for at once
FEW = 4  # images in the backbone at once on a CPU; 8 take a tenth less time and 80 MiB more


def frozen_backbone(name: str, **options: Any) -> Backbone:
    """Return what ``create_backbone`` does; random weights are the same each time.

    Published weights of EfficientNet-Lite0 are the rounded ones of its eye.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name != BUILT_IN or options.get("weights") != PRETRAINED or options.get("bands"):
            return create_backbone(name, **options)
        backbone = create_backbone(name, **options | {"weights": None})
        stored = Eye.open().weights()
        load_eye(backbone, {name: torch.from_numpy(values) for name, values in stored.items()})
        return backbone


def compute(
    table: LabelTable,
    backbone: Backbone,
    cache_dir: str | Path,
    *,
    pooled: bool = True,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    workers: int = 0,
    watch: Watch | None = None,
) -> LabelTable:
    """Return the table with the backbone's features in the place of its images."""
    if isinstance(table.images, FeatureRows):
        raise DataError(f"{table.name} already holds features, not images")
    path = Path(cache_dir) / f"features-{content_key(table.images, backbone, pooled)}.npy"
    if not path.is_file():
        home, was_training = next(backbone.parameters()).device, backbone.training
        watch = watch or Silent()
        watch.start(f"features of {backbone.name}", len(table))
        how = {"batch_size": batch_size, "device": device, "workers": workers}
        try:
            with replacing(path) as temporary, temporary.open("wb") as stream:
                for values in _features(table.images, backbone.eval().to(device), pooled, how):
                    if not stream.tell():
                        shape = (len(table), *values.shape[1:])
                        facts = {"descr": "<f4", "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_1_0(stream, facts)
                    stream.write(values.tobytes())
                    watch.advance(len(values))
        finally:
            backbone.train(was_training).to(home)
            watch.finish()
    try:
        features: Any = np.load(path, mmap_mode="c")  # the file is never changed
    except ValueError as error:
        raise DataError(f"{path} is not a feature file; delete it ({error})") from None
    if features.nbytes > IN_MEMORY:
        features = MappedFeatures(features)
    return replace(table, images=FeatureRows(features, table.ids))


def _features(
    images: ImageSource, backbone: Backbone, pooled: bool, how: dict[str, Any]
) -> Iterator[NDArray[np.float32]]:
    """Yield the features of all images, batch by batch."""

    def features_of(values: Tensor) -> Tensor:
        features: Tensor = backbone(backbone.transform.inputs(values)).float()
        return features.mean(dim=(2, 3)) if pooled else features

    def network(values: Tensor) -> tuple[Tensor, ...]:
        few = len(values) if values.is_cuda else FEW
        return (torch.cat([features_of(block) for block in torch.split(values, few)]),)

    for batch in infer(network, images, backbone.transform, **how):
        raise_failure(batch)
        yield batch.values[0].numpy()


def content_key(images: ImageSource, backbone: Backbone, pooled: bool) -> str:
    """Return the hash of what features depend on, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    facts = [FORMAT, backbone.name, backbone.transform.spec(), pooled, len(images)]
    facts += [backbone.pooling] * (backbone.pooling != "mean")
    digest.update(json.dumps(facts).encode())
    for name, tensor in backbone.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(images), AT_ONCE):
            rows = range(first, min(first + AT_ONCE, len(images)))
            for identity in pool.map(images.identity, rows):
                digest.update(identity)
    return digest.hexdigest()[:32]


LEAST_SPREAD = 1e-7  # of a feature, below which it is taken to be constant


@dataclass(frozen=True, eq=False)
class FrozenBackbone:
    """What stands before a head that is trained on features: the network, and their scaling."""

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
    if settings.backbone == "identity" and held is None:
        raise SettingsError(
            f"{table.name} holds images, and identity is for data that holds features; "
            "name a network, such as --features resnet18"
        )
    weights = weights_of(settings)
    backbone = frozen_backbone(settings.backbone, weights=weights, **inputs_of(settings, table))
    if held is not None:
        if backbone.channels != held.shape[1]:
            raise SettingsError(
                f"{table.name} holds {held.shape[1]} features per row, and {settings.features} "
                f"gives {backbone.channels}; for features of your own take --features identity"
            )
        return FrozenBackbone(backbone), table
    if settings.weights is None:
        watch.say(f"{settings.features} has random weights; trained ones come with --weights")
    if advice := advice_for_photos(backbone, table.images):
        watch.say(advice.replace("--backbone", "--features"))
    name = settings.head or find_method(settings.method).head
    pooled = make_head(
        HeadSpec(name, settings.head_options), backbone.channels, len(table.space)
    ).pools
    as_eye = pooled and (backbone.name, weights) == (BUILT_IN, PRETRAINED)
    if as_eye and settings.bands is None and not settings.means_only:
        from labelwise.learn.backbones.timm_models import EyeBackbone

        backbone = EyeBackbone(backbone)
    cache, workers = settings.hardware.features_cache, settings.hardware.workers
    eye = None
    if device.type == "cpu" and pooled and settings.bands is None:
        eye = eye_named(settings.backbone, weights, settings.image_size, cache, "cpu")
    if eye is None:
        rows = compute(
            table, backbone, cache, pooled=pooled, device=device, workers=workers, watch=watch
        )
        return FrozenBackbone(backbone.cpu()), rows
    eye = eye if eye.transform == backbone.transform else eye.with_transform(backbone.transform)
    eye = eye.of_means() if settings.means_only else eye
    seen = eye_features(
        eye, table.images, cache, outputs=eye.head_features, workers=workers, watch=watch
    )
    return FrozenBackbone(backbone.cpu()), replace(table, images=FeatureRows(seen, table.ids))


def standardised(
    frozen: FrozenBackbone, splits: Mapping[str, LabelTable]
) -> tuple[FrozenBackbone, dict[str, LabelTable]]:
    """Return the splits with features of mean 0 and deviation 1 in training, and their scaling."""
    features = {
        name: table.images.features
        for name, table in splits.items()
        if isinstance(table.images, FeatureRows)
    }
    mean, spread = moments_of(features["train"])
    scale = np.where(spread > LEAST_SPREAD * (1 + np.abs(mean)), spread, 1.0)
    standard = {
        name: replace(splits[name], images=FeatureRows(scaled(rows, mean, scale), splits[name].ids))
        for name, rows in features.items()
    }
    return FrozenBackbone(frozen.backbone, *map(torch.from_numpy, (mean, scale))), standard
