"""Features of a frozen backbone, computed once and kept on disk, then trained on in seconds.

The file's name is a hash of all the numbers depend on: the backbone's weights, its transform, the
bytes of every image in order. Another table, weight or size never meets a stale file, and a table
that was only relabelled meets its own again. Features are written in parts, in a folder beside the
file: a computation that was killed goes on after the last whole part. Up to 2 GiB the parts are
joined to the file; more stay shards and are mapped, so that they are never in memory together.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.data import LabelTable
from labelwise.errors import DataError, SettingsError
from labelwise.methods import find_method
from labelwise.models import HeadSpec, Model
from labelwise.models.scoring import infer, raise_failure
from labelwise.networks.backbones import Backbone, create_backbone
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.pictures.memory import Features, MappedFeatures, moments_of, scaled
from labelwise.pictures.transform import BandScale
from labelwise.system.files import locked, replacing, write_error
from labelwise.system.progress import Silent, Watch
from labelwise.training.build import advice_for_photos, scale_of, weights_of
from labelwise.training.settings import Settings

FORMAT = 1  # counts changes of how features are computed
PART = 512  # rows, written before the next ones are computed
LARGE_PART = 16384  # of more rows than MANY
MANY = 1 << 20
JOINED = 2 << 30  # bytes, up to which parts become one file
AT_ONCE = 4096  # images whose contents are asked for at once
FEW = 4  # images in the backbone at once on a CPU; 8 take a tenth less time and 80 MiB more


def frozen_backbone(
    name: str,
    *,
    weights: str | None = None,
    image_size: int | None = None,
    squash: bool = False,
    reduced_jpeg: bool = False,
    channels: int | None = None,
    bands: BandScale | None = None,
) -> Backbone:
    """Return the backbone of a name; without weights its random ones are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create_backbone(
            name,
            weights=weights,
            image_size=image_size,
            squash=squash,
            reduced_jpeg=reduced_jpeg,
            channels=channels,
            bands=bands,
        )


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
    """Return the table with the backbone's features in the place of its images.

    Pooled features (N, D), the mean over places, serve the linear heads; maps (N, D, h, w), not
    pooled, serve heads that look at places. Train on either with the backbone ``identity``.
    """
    if isinstance(table.images, FeatureRows):
        raise DataError(f"{table.name} already holds features, not images")
    key = content_key(table.images, backbone, pooled)
    path = Path(cache_dir) / f"features-{key}.npy"
    parts = path.with_suffix(".parts")
    if path.is_file():
        return replace(table, images=FeatureRows(_mapped(path), table.ids))
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(parts, error) from None
    with locked(parts):  # of two that want the same features one waits, and finds them
        run = _Computation(table.images, backbone, pooled, batch_size, device, workers)
        if not path.is_file():
            run.write_parts(parts, watch or Silent())
            shards = [_mapped(parts / name) for name in run.names]
            if sum(shard.nbytes for shard in shards) > JOINED:
                return replace(table, images=FeatureRows(MappedFeatures(shards), table.ids))
            run.join(shards, path)
    shutil.rmtree(parts, ignore_errors=True)
    return replace(table, images=FeatureRows(_mapped(path), table.ids))


def _mapped(path: Path) -> NDArray[np.float32]:
    try:
        features: NDArray[np.float32] = np.load(path, mmap_mode="c")  # the file is never changed
    except ValueError as error:
        raise DataError(f"{path} is not a feature file; delete it ({error})") from None
    return features


def content_key(images: ImageSource, backbone: Backbone, pooled: bool) -> str:
    """Return the hash of what features depend on, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    facts = [FORMAT, backbone.name, backbone.transform.spec(), pooled, len(images)]
    digest.update(json.dumps(facts).encode())
    for name, tensor in backbone.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(images), AT_ONCE):
            rows = range(first, min(first + AT_ONCE, len(images)))
            for part in pool.map(images.identity, rows):
                digest.update(part)
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class _Computation:
    """The features of images by a backbone, in parts of ``PART`` rows."""

    images: ImageSource
    backbone: Backbone
    pooled: bool
    batch_size: int
    device: torch.device | str
    workers: int

    @property
    def part(self) -> int:
        """The rows of a part."""
        return PART if len(self.images) <= MANY else LARGE_PART

    @property
    def firsts(self) -> range:
        """The first row of each part."""
        return range(0, len(self.images), self.part)

    @property
    def names(self) -> list[str]:
        """The file names of the parts, in the order of the rows."""
        return [f"{first:09d}.npy" for first in self.firsts]

    def write_parts(self, folder: Path, watch: Watch) -> None:
        """Write the parts that are not there yet."""
        todo = [first for first in self.firsts if not self._is_done(folder, first)]
        if not todo:
            return
        rows = np.concatenate([self._rows(first) for first in todo])
        watch.start(
            f"features of {self.backbone.name}", len(self.images), len(self.images) - len(rows)
        )
        try:
            held: list[NDArray[np.float32]] = []
            for batch in self._batches(rows):
                held.append(batch)
                watch.advance(len(batch))
                while todo and sum(map(len, held)) >= len(self._rows(todo[0])):
                    held = [self._save(folder, todo.pop(0), np.concatenate(held))]
        finally:
            watch.finish()

    def _rows(self, first: int) -> NDArray[np.int64]:
        return np.arange(first, min(first + self.part, len(self.images)))

    def _is_done(self, folder: Path, first: int) -> bool:
        try:
            return len(np.load(folder / f"{first:09d}.npy", mmap_mode="r")) == len(
                self._rows(first)
            )
        except (OSError, ValueError):
            return False

    def _save(self, folder: Path, first: int, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Write the part that begins at a row; return the values of the next one."""
        count = len(self._rows(first))
        with replacing(folder / f"{first:09d}.npy") as temporary, temporary.open("wb") as stream:
            np.save(stream, values[:count])
        return values[count:]

    def join(self, parts: Sequence[NDArray[np.float32]], path: Path) -> None:
        """Write the file of all features from its parts."""
        shape = (len(self.images), *parts[0].shape[1:])
        with replacing(path) as temporary:
            file = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            for first, part in zip(self.firsts, parts, strict=True):
                file[first : first + len(part)] = part
            file.flush()

    def _batches(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        backbone, transform = self.backbone, self.backbone.transform
        home = next(backbone.parameters()).device

        def features_of(values: Tensor) -> Tensor:
            features: Tensor = backbone(transform.inputs(values)).float()
            return features.mean(dim=(2, 3)) if self.pooled else features

        def network(values: Tensor) -> tuple[Tensor, ...]:
            few = len(values) if values.is_cuda else FEW
            return (torch.cat([features_of(part) for part in torch.split(values, few)]),)

        was_training = backbone.training
        backbone.eval().to(self.device)
        try:
            for part in infer(
                network,
                self.images,
                transform,
                rows=rows,
                batch_size=self.batch_size,
                workers=self.workers,
                device=self.device,
            ):
                raise_failure(part)
                yield part.values[0].numpy()
        finally:
            backbone.train(was_training).to(home)


# What stands before a head that is trained on features: a frozen backbone, and their scaling.


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
    name = settings.head or find_method(settings.method).head
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
