"""Batches of a table, on the device, in an order that depends only on seed, epoch and batch.

Rows that are streamed in blocks are shuffled by blocks: the blocks are laid end to end in a random
order, their rows shuffled, and the sequence is cut into at most 64 equal lanes. Each joined batch
takes the next few rows of every lane, and a process those of its own lanes.

Pixels that fit are kept on the device as uint8 and indexed; others are decoded a few batches ahead.
In shuffled epochs every process gets an equal share of each joined batch; otherwise each row is
seen by exactly one process.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import pairwise, tee
from math import ceil, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.base.allocator import memory_bytes
from labelwise.errors import ImageError, SettingsError
from labelwise.pictures import Transform
from labelwise.pictures.batches import BatchRows, HostResizer, resized_array, to_device
from labelwise.pictures.memory import ArrayImages, MappedFeatures
from labelwise.pictures.prefetch import available_cores
from labelwise.pictures.sources import Blocks, ImageSource, Rows
from labelwise.tables.table import LabelTable
from labelwise.training.augment import (
    ImageDraws,
    Windows,
    draw_windows,
    make_augment,
    mix,
    require_any_bands,
    resized_crop,
    zoom,
)
from labelwise.types import Targets

CPU = torch.device("cpu")
CPU_LIMIT = 1 << 30  # bytes of decoded pixels kept when the device is the host itself
CUDA_SHARE = 0.25  # of the free device memory
MEMORY_SHARE = 1 / 16  # of the host's memory, for pictures that are looked at after each epoch
ROOMY = 1.5  # times the side of the input is kept of pictures that windows are cut from

# A store has ``batches(requests)``: the inputs of each, pixels (B, C, H, W) in channels-last
# memory or float32 features, on the device, in the order of the requests.


@dataclass(frozen=True, eq=False)
class KeptStore:
    """All inputs on the device, where a batch is one gather; or an array of the host's memory."""

    values: Tensor | NDArray[np.generic] | MappedFeatures
    device: torch.device
    aspects: Tensor | None = None
    as_planes: bool = True

    def batches(self, requests: Iterable[BatchRows]) -> Iterator[Tensor]:
        for request in requests:
            if isinstance(self.values, Tensor):
                batch = self.values[request.on_device]
            else:
                batch = to_device(torch.from_numpy(self.values[request.rows]), self.device)
            yield batch.permute(0, 3, 1, 2) if self.as_planes else batch


class DecodingStore:
    """Images read, scaled and cut some batches ahead, then copied without waiting."""

    def __init__(
        self, images: ImageSource, transform: Transform, device: torch.device, workers: int = 0
    ) -> None:
        self.transform, self.device = transform, device
        workers = workers or available_cores()
        self.resizer = HostResizer(images, transform, device, workers, device.type == "cuda")
        self.aspects = np.ones(len(images), np.float32)  # width / height, once read

    def batches(self, requests: Iterable[BatchRows]) -> Iterator[Tensor]:
        requests, begun = tee(requests)  # batches are begun before they are asked for
        with closing(self.resizer.batches(begun)) as made:
            for request, resized in zip(requests, made, strict=True):
                if resized.failed:
                    raise ImageError(resized.failed[min(resized.failed)])
                if request.window is None:
                    self.aspects[request.rows] = resized.aspects
                yield to_device(resized.values, self.device).permute(0, 3, 1, 2)


def make_store(
    images: ImageSource,
    transform: Transform,
    device: torch.device,
    workers: int = 0,
    windows: bool = False,
) -> "KeptStore | DecodingStore":
    """Return the fastest store the memory allows; ``windows`` will be cut from its pictures."""
    array = resized_array(images, transform)
    if array is not None:
        as_planes = isinstance(images, ArrayImages)
        fits = device.type == "cpu" or array.nbytes <= _limit(device)
        if isinstance(array, MappedFeatures) or not fits:
            return KeptStore(array, device, as_planes=as_planes)
        return KeptStore(torch.from_numpy(array).to(device), device, as_planes=as_planes)
    kept = transform
    if windows:
        kept = replace(transform, size=ceil(ROOMY * transform.size), crop=None)
    fits = _size(images, kept) <= _limit(device)
    if not fits:
        return DecodingStore(images, transform, device, workers)
    stream = DecodingStore(images, kept, device, workers)
    values = _decode_all(stream, len(images))
    aspects = torch.from_numpy(stream.aspects).to(device) if windows else None
    return KeptStore(values, device, aspects)


def kept_in_memory(
    images: ImageSource, transform: Transform, *, workers: int = 0, limit: float | None = None
) -> ImageSource:
    """Return the images scaled to a model's input and held in memory, if they take little of it."""
    most = max(CPU_LIMIT, memory_bytes() * MEMORY_SHARE) if limit is None else limit
    needless = not len(images) or resized_array(images, transform) is not None
    if needless or _size(images, transform) > most:
        return images
    stream = DecodingStore(images, transform, CPU, workers)
    pixels = _decode_all(stream, len(images)).numpy()
    return ArrayImages(pixels, images.ids, resized=True, any_depth=transform.bands is not None)


def _decode_all(stream: DecodingStore, count: int, chunk: int = 256) -> Tensor:
    side, channels = stream.transform.size, stream.transform.channels
    shape = (count, side, side, channels)
    values = torch.empty(shape, dtype=stream.transform.dtype, device=stream.device)
    starts = range(0, count, chunk)
    requests = (BatchRows(np.arange(start, min(start + chunk, count))) for start in starts)
    for start, pixels in zip(starts, stream.batches(requests), strict=True):
        values[start : start + len(pixels)] = pixels.permute(0, 2, 3, 1)
    return values


def _size(images: ImageSource, transform: Transform) -> int:
    return len(images) * transform.size**2 * transform.channels * transform.dtype.itemsize


def _limit(device: torch.device) -> float:
    return CUDA_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else CPU_LIMIT


DENSE_LIMIT = 1 << 30  # entries of the label matrix kept on the device
LANES = 64
LANE_BYTES = 1 << 29  # of one block per lane; lanes end inside blocks, so there may be two
ORDER, AUGMENT = 0, 1  # keep the two kinds of random numbers apart


@dataclass(frozen=True)
class Batch:
    """Normalised images (B, 3, H, W) or feature rows (B, D), and what is known of them."""

    images: Tensor
    targets: Targets


@dataclass(eq=False)
class Loader:
    """The batches of ``batch_size`` rows a process; shuffled epochs leave a short last one out."""

    table: LabelTable
    transform: Transform
    _: KW_ONLY
    batch_size: int
    device: torch.device = CPU
    seed: int = 0
    augment: str = "none"
    shuffle: bool = False
    workers: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not len(self.table):
            raise SettingsError(f"{self.table.name} has no rows to load")
        self.steps = make_augment(self.augment)
        if self.transform.bands is not None:
            require_any_bands(self.augment)
        # Whether random windows are cut from whole pictures, not from the scaled input.
        self.cuts_windows = self.steps[:1] == (resized_crop,)

    def __len__(self) -> int:
        return len(self._spans)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        spans = self._spans[start:]
        if not spans:
            return
        order, key = self._order(number), mix(self.seed, AUGMENT, number)
        places = np.concatenate([np.arange(*span) for span in spans])
        rows = order[places]
        self.table.images.will_read(rows)
        index, here = (torch.from_numpy(values).to(self.device) for values in (rows, places))
        starts = np.cumsum([0, *(stop - first for first, stop in spans)]).tolist()
        batches = [slice(first, stop) for first, stop in pairwise(starts)]
        streams = self.cuts_windows and isinstance(self._store, DecodingStore)

        def windows(some: slice) -> Windows:
            return draw_windows(ImageDraws(key, torch.from_numpy(places[some])))

        requests = (  # a stream cuts windows while it decodes
            BatchRows(rows[some], windows(some).one if streams else None, index[some])
            for some in batches
        )
        for some, values in zip(batches, self._store.batches(requests), strict=True):
            images = self._images(values, index[some], ImageDraws(key, here[some]))
            yield Batch(images, self._targets(rows[some], index[some]))

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        rows, size = len(self.table), self.batch_size
        if not self.shuffle:
            first, end = rows * self.rank // self.world, rows * (self.rank + 1) // self.world
            return [(at, min(at + size, end)) for at in range(first, end, size)]
        joined = size * self.world
        if rows < joined:
            share = rows // self.world
            return [(self.rank * share, (self.rank + 1) * share)] if share else []
        starts = range(self.rank * size, rows // joined * joined, joined)
        return [(start, start + size) for start in starts]

    @cached_property
    def _store(self) -> KeptStore | DecodingStore:
        return make_store(
            self.table.images, self.transform, self.device, self.workers, self.cuts_windows
        )

    def _order(self, epoch: int) -> Rows:
        if not self.shuffle:
            return np.arange(len(self.table))
        generator = np.random.default_rng(mix(self.seed, ORDER, epoch))
        blocks = self.table.images.blocks
        if blocks is None:
            return generator.permutation(len(self.table))
        return order_of_blocks(blocks, self.batch_size * self.world, generator)

    def _images(self, values: Tensor, index: Tensor, draws: ImageDraws) -> Tensor:
        of_bands, steps = self.transform.bands is not None, self.steps
        if values.dtype != torch.uint8 and not of_bands:
            return (
                values.contiguous(memory_format=torch.channels_last) if values.ndim == 4 else values
            )
        if of_bands:  # 0, which augmentation fills with, is then a band's mean
            values = self.transform.normalise(values)
        if self.cuts_windows:
            windows, store, steps = draw_windows(draws), self._store, steps[1:]
            if not isinstance(store, DecodingStore):  # a stream has cut the same ones already
                aspects = store.aspects if isinstance(store, KeptStore) else None
                boxes = windows.boxes(1.0 if aspects is None else aspects[index])
                values = zoom(values, boxes, self.transform.size)
        for step in steps:
            values = step(values, draws)
        values = values if of_bands else self.transform.normalise(values)
        return values.contiguous(memory_format=torch.channels_last)

    @cached_property
    def _dense(self) -> tuple[Tensor, Tensor | None] | None:
        if len(self.table) * len(self.table.space) > DENSE_LIMIT:
            return None
        labels, observed = self.table.targets()
        known = None if observed is None else torch.from_numpy(observed).to(self.device)
        return torch.from_numpy(labels).to(self.device), known

    def _targets(self, rows: Rows, index: Tensor) -> Targets:
        if self._dense is not None:
            labels, observed = self._dense
            known = None if observed is None else observed[index]
            return Targets(labels[index].float(), known, index)
        chosen, mask = self.table.targets(rows)
        labels = to_device(torch.from_numpy(chosen), self.device).float()
        known = None if mask is None else to_device(torch.from_numpy(mask), self.device)
        return Targets(labels, known, index)


def order_of_blocks(blocks: Blocks, batch: int, generator: np.random.Generator) -> Rows:
    """Return a random order of rows whose batches need few blocks at a time."""
    rows, count = len(blocks.number), int(blocks.number.max(initial=-1)) + 1
    turn = generator.permutation(count)[blocks.number]
    sequence = np.lexsort((generator.random(rows), turn))
    wanted = min(LANES, max(1.0, LANE_BYTES / max(blocks.mean_bytes, 1.0)))
    divisors = [divisor for divisor in range(1, batch + 1) if batch % divisor == 0]
    lanes = min(divisors, key=lambda divisor: abs(log(divisor / wanted)))
    each, length = batch // lanes, rows // lanes  # rows of a lane: in a batch, in all
    full = length // each  # batches
    main = sequence[: lanes * length].reshape(lanes, length)
    mixed = main[:, : full * each].reshape(lanes, full, each).transpose(1, 0, 2).reshape(-1)
    rest = [main[:, full * each :].reshape(-1), sequence[lanes * length :]]
    return np.concatenate([mixed, *rest])
