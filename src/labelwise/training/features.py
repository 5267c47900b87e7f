"""Features of a frozen backbone, computed once and kept on disk, then trained on in seconds.

The file's name is a hash of all the numbers depend on: the backbone's weights, its transform, the
bytes of every image in order. Another table, weight or size never meets a stale file, and a table
that was only relabelled meets its own again.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.backbones import Backbone
from labelwise.data import FeatureRows, ImageSource, LabelTable
from labelwise.errors import DataError
from labelwise.files import replacing
from labelwise.progress import Silent, Watch
from labelwise.scoring import infer, raise_failure

__all__ = ["compute", "content_key"]

FORMAT = 1  # counts changes of how features are computed


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
    if not path.is_file():
        with replacing(path) as temporary:
            parts = _feature_batches(table.images, backbone, pooled, batch_size, device, workers)
            _write(temporary, parts, len(table), backbone.name, watch or Silent())
    try:
        features = np.load(path, mmap_mode="c")  # writable pages, the file is never changed
    except ValueError as error:
        raise DataError(f"{path} is not a feature file; delete it ({error})") from None
    return replace(table, images=FeatureRows(features, table.ids))


def content_key(images: ImageSource, backbone: Backbone, pooled: bool) -> str:
    """Return the hash of what features depend on, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    facts = [FORMAT, backbone.name, backbone.transform.spec(), pooled, len(images)]
    digest.update(json.dumps(facts).encode())
    for name, tensor in backbone.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    with ThreadPoolExecutor() as pool:
        for part in pool.map(lambda row: _content_hash(images, row), range(len(images))):
            digest.update(part)
    return digest.hexdigest()[:32]


def _content_hash(images: ImageSource, row: int) -> bytes:
    return hashlib.sha256(images.content(row)).digest()


def _write(
    path: Path,
    parts: Iterator[NDArray[np.float32]],
    count: int,
    name: str,
    watch: Watch,
) -> None:
    watch.start(f"features of {name}", count)
    try:
        first = next(parts)
        file = np.lib.format.open_memmap(path, "w+", np.float32, (count, *first.shape[1:]))
        start = 0
        for part in chain([first], parts):
            file[start : start + len(part)] = part
            start += len(part)
            watch.advance(len(part))
        file.flush()
    finally:
        watch.finish()


def _feature_batches(
    images: ImageSource,
    backbone: Backbone,
    pooled: bool,
    batch_size: int,
    device: torch.device | str,
    workers: int,
) -> Iterator[NDArray[np.float32]]:
    transform, home = backbone.transform, next(backbone.parameters()).device

    def network(values: Tensor) -> tuple[Tensor, ...]:
        features = backbone(transform.inputs(values)).float()
        return (features.mean(dim=(2, 3)) if pooled else features,)

    was_training = backbone.training
    backbone.eval().to(device)
    try:
        for part in infer(
            network, images, transform, batch_size=batch_size, workers=workers, device=device
        ):
            raise_failure(part)
            yield part.values[0].numpy()
    finally:
        backbone.train(was_training).to(home)
