"""PhotoFeatures: pooled features of photos, computed once for each content and kept in parts.

A part is a .npz file of up to 512 photos: ``digests`` (n, 32), the SHA-256 of their contents, and
``features`` (n, D). Parts lie in a folder named after all the numbers depend on besides the photo:
the network's weights and its transform. A photo that was moved, copied or met again in another
table is found by its content; what was interrupted goes on after its last part.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import ImageError
from labelwise.models.scoring import infer
from labelwise.networks.backbones import Backbone
from labelwise.pictures import ImageSource, PictureImages
from labelwise.pictures.inputs import Failure
from labelwise.system.files import locked, replacing, write_error
from labelwise.system.progress import Silent, Watch
from labelwise.training.features import content_key

PART = 512  # photos


@dataclass(frozen=True, eq=False)
class PhotoFeatures:
    """Features of photos by content: ``digests`` are those of the rows that could be read.

    ``known`` are all features of the cache; ``computed`` of them were not there before.
    """

    digests: Mapping[int, bytes]
    known: Mapping[bytes, NDArray[np.float32]]
    failures: tuple[Failure, ...]
    computed: int

    def of(self, digests: Sequence[bytes]) -> Tensor:
        """Return the features (n, D) of photos."""
        return torch.from_numpy(np.stack([self.known[digest] for digest in digests]))

    def every(self) -> Tensor:
        """Return the features (n, D) of the photos that were asked for, each content once."""
        return self.of(list(dict.fromkeys(self.digests.values())))


def features_of(
    images: ImageSource,
    backbone: Backbone,
    cache: Path,
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    watch: Watch | None = None,
) -> PhotoFeatures:
    """Return the features of photos, from the cache or computed and written there."""
    folder = Path(cache) / content_key(PictureImages([]), backbone, pooled=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None
    with locked(folder):
        return _features_of(images, backbone, folder, batch_size, device, watch or Silent())


def _features_of(
    images: ImageSource,
    backbone: Backbone,
    folder: Path,
    batch_size: int,
    device: torch.device | str,
    watch: Watch,
) -> PhotoFeatures:
    digests, failures = _digests(images)
    known = _read_parts(folder)
    first: dict[bytes, int] = {}  # of photos with one content the first is computed
    for row, digest in digests.items():
        if digest not in known:
            first.setdefault(digest, row)
    todo = np.array(sorted(first.values()), np.int64)
    held: dict[bytes, NDArray[np.float32]] = {}
    home = next(backbone.parameters()).device

    def network(values: Tensor) -> tuple[Tensor, ...]:
        return (backbone(backbone.transform.inputs(values)).float().mean(dim=(2, 3)),)

    backbone.eval().to(device)
    watch.start("reading photos", len(digests), len(digests) - len(todo))
    try:
        for part in infer(
            network,
            images,
            backbone.transform,
            rows=todo.tolist(),
            batch_size=batch_size,
            device=torch.device(device),
        ):
            failures += part.failures
            if part.values:
                vectors = part.values[0].numpy()
                for row, vector in zip(part.rows.tolist(), vectors, strict=True):
                    held[digests[row]] = vector
            watch.advance(len(part.rows) + len(part.failures))
            if len(held) >= PART:
                known |= _write_part(folder, held)
                held = {}
    finally:
        if held:  # also when someone stops it: what was computed is kept
            known |= _write_part(folder, held)
        backbone.to(home)
        watch.finish()
    readable = {row: digest for row, digest in digests.items() if digest in known}
    return PhotoFeatures(readable, known, tuple(failures), len(first))


def _digests(images: ImageSource) -> tuple[dict[int, bytes], list[Failure]]:
    """Return the hash of each photo's content, and the photos that cannot be opened."""

    def identity(row: int) -> bytes | str:
        try:
            return images.identity(row)
        except ImageError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(identity, range(len(images))))
    found = {row: one for row, one in enumerate(answers) if isinstance(one, bytes)}
    bad = [
        Failure(row, images.ids[row], one)
        for row, one in enumerate(answers)
        if isinstance(one, str)
    ]
    return found, bad


def _read_parts(folder: Path) -> dict[bytes, NDArray[np.float32]]:
    """Return the features by content; a part that is damaged is computed again."""
    known: dict[bytes, NDArray[np.float32]] = {}
    for path in sorted(folder.glob("*.npz")):
        try:
            with path.open("rb") as stream, np.load(stream) as arrays:
                digests, features = arrays["digests"], arrays["features"]
        except (OSError, ValueError, LookupError, EOFError, BadZipFile):
            path.unlink(missing_ok=True)
            continue
        known |= {bytes(digest): vector for digest, vector in zip(digests, features, strict=True)}
    return known


def _write_part(
    folder: Path, held: dict[bytes, NDArray[np.float32]]
) -> dict[bytes, NDArray[np.float32]]:
    numbers = [int(path.stem) for path in folder.glob("*.npz") if path.stem.isdigit()]
    path = folder / f"{max(numbers, default=0) + 1:09d}.npz"
    digests = np.frombuffer(b"".join(held), np.uint8).reshape(len(held), -1)
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, digests=digests, features=np.stack(list(held.values())))
    return held
