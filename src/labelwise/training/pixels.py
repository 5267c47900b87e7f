"""Where the inputs of a table's rows come from: device memory, host memory, or decoding."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import ImageError
from labelwise.pictures import Transform
from labelwise.pictures.ahead import started_ahead
from labelwise.pictures.batches import CHUNK, available_cores, read_ahead
from labelwise.pictures.mapped import MappedFeatures
from labelwise.pictures.processes import (
    DecodedChunk,
    DecodingProcesses,
    are_worth_it,
    borrowed_processes,
    items_ahead,
)
from labelwise.pictures.sources import ArrayImages, FeatureRows, ImageSource
from labelwise.pictures.work import HEADER, NAME, Item, Kind, Work
from labelwise.training.augment import Windows

__all__ = [
    "DecodingStore",
    "DeviceStore",
    "FedStore",
    "HostStore",
    "InputStore",
    "RowRequest",
    "make_store",
    "to_device",
]

CPU_LIMIT = 1 << 30  # bytes of decoded pixels kept when the device is the host itself
CUDA_SHARE = 0.25  # of the free device memory
AHEAD = 3  # batches decoded before they are asked for
AT_ONCE = 1 << 25  # bytes of the float32 inputs and labels that are made at once
ROOMY = 1.5  # times the side of the input is kept of pictures that windows are cut from


@dataclass(frozen=True)
class RowRequest:
    """Rows to fetch: their numbers on the host and on the device, and windows to cut."""

    rows: NDArray[np.int64]
    index: Tensor | None = None
    windows: Windows | None = None


class InputStore(ABC):
    """Inputs by row: uint8 pixels (B, 3, H, W) in channels-last memory, or float32 features."""

    @abstractmethod
    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        """Return the inputs of each request, on the device, in the order of the requests."""

    def rows_at_once(self, labels: int) -> int:
        """Return how many rows a request may hold; 0 where fetching a batch takes time."""
        return 0


class DeviceStore(InputStore):
    """All inputs on the device; a batch is one gather.

    ``aspects`` (N,), width / height, are given where whole pictures were squashed into squares.
    """

    def __init__(self, values: Tensor, aspects: Tensor | None = None) -> None:
        self.values, self.aspects = values, aspects

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        for request in requests:
            yield _channels_first(self.values[request.index])

    def rows_at_once(self, labels: int) -> int:
        return AT_ONCE // (4 * (self.values[0].numel() + labels))


class HostStore(InputStore):
    """All inputs in host memory or mapped; a batch is gathered there, copied without waiting."""

    def __init__(self, values: NDArray[np.generic] | MappedFeatures, device: torch.device) -> None:
        self.values, self.device = values, device

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        for request in requests:
            part = torch.from_numpy(self.values[request.rows])
            yield _channels_first(to_device(part, self.device))


class FedStore(InputStore):
    """Images resized on a GPU, fed to it as those that are scored: with the same pixels, faster."""

    def __init__(
        self, images: ImageSource, transform: Transform, device: torch.device, workers: int = 0
    ) -> None:
        self.images, self.transform, self.device = images, transform, device
        self.workers = workers or available_cores()

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        rows = [request.rows for request in requests]
        workers, device = self.workers, self.device
        for inputs in read_ahead(self.images, self.transform, rows, workers=workers, device=device):
            if inputs.failures:
                raise ImageError(inputs.failures[0].reason)
            yield inputs.values.clone()  # those of inference cannot be changed


class DecodingStore(InputStore):
    """Images read, scaled and cut some batches ahead, then copied without waiting.

    Threads do it; processes for a GPU, which is faster than Python's lock lets threads be.
    """

    def __init__(
        self, images: ImageSource, transform: Transform, device: torch.device, workers: int = 0
    ) -> None:
        self.images, self.transform, self.device = images, transform, device
        self.workers = workers or available_cores()
        self.aspects = np.ones(len(images), np.float32)  # width / height, once read
        self.by_processes = device.type == "cuda"

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        work = Work(Kind.RESIZED, self.transform)
        with ExitStack() as stack:
            lent = None
            if (
                self.by_processes
                and self.images.all_encoded
                and work.most_items
                and are_worth_it(len(self.images), self.workers)
            ):
                lent = stack.enter_context(borrowed_processes(self.workers))
            buffers = (
                self._by_threads(requests)
                if lent is None
                else self._by_processes(lent, work, list(requests))
            )
            stack.callback(buffers.close)
            for buffer in buffers:
                yield _channels_first(to_device(buffer, self.device))

    def _by_threads(self, requests: Iterable[RowRequest]) -> Generator[Tensor]:
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        try:
            started = started_ahead(requests, lambda request: self._start(request, pool), AHEAD)
            for buffer, waiting in started:
                for future in waiting:
                    future.result()
                yield buffer
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _by_processes(
        self, processes: DecodingProcesses, work: Work, requests: list[RowRequest]
    ) -> Generator[Tensor]:
        size = min(CHUNK, work.most_items)
        parts = [
            (request, range(at, min(at + size, len(request.rows))))
            for request in requests
            for at in range(0, len(request.rows), size)
        ]
        rows = [request.rows[list(places)].tolist() for request, places in parts]
        windows = [request.windows for request, _ in parts]
        feeder = ThreadPoolExecutor(1, thread_name_prefix="feed")
        with ExitStack() as stack:
            items = stack.enter_context(closing(items_ahead(self.images, rows, self.workers)))
            cut = (
                some if drawn is None else _with_windows(some, drawn, places)
                for some, drawn, (_, places) in zip(items, windows, parts, strict=True)
            )
            chunks = stack.enter_context(closing(processes.run(work, cut)))
            stack.callback(feeder.shutdown, wait=True, cancel_futures=True)
            started = started_ahead(
                requests, lambda one: feeder.submit(self._collect, one, chunks, size), AHEAD
            )
            for future in started:
                yield future.result()

    def _collect(self, request: RowRequest, chunks: Iterator[DecodedChunk], size: int) -> Tensor:
        """Return the pixels of a batch, copied out of the memory that processes share."""
        buffer = self._buffer(len(request.rows))
        flat = buffer.view(-1)
        each = buffer[0].numel()
        for at in range(0, len(request.rows), size):
            chunk = next(chunks)
            for place, entry in enumerate(chunk.entries, at):
                row = int(request.rows[place])
                if isinstance(entry, str):
                    raise ImageError(entry.replace(NAME, self.images.shown_name(row)))
                if request.windows is None:
                    self.aspects[row] = entry.width / entry.height
            flat[at * each : (at + len(chunk.entries)) * each] = chunk.used[HEADER:]
        return buffer

    def _buffer(self, rows: int) -> Tensor:
        side, pinned = self.transform.size, self.device.type == "cuda"
        return torch.empty((rows, side, side, 3), dtype=torch.uint8, pin_memory=pinned)

    def _start(
        self, request: RowRequest, pool: ThreadPoolExecutor
    ) -> tuple[Tensor, list[Future[None]]]:
        buffer = self._buffer(len(request.rows))
        array = buffer.numpy()
        waiting = [pool.submit(self._fill, array, request, at) for at in range(len(request.rows))]
        return buffer, waiting

    def _fill(self, array: NDArray[np.uint8], request: RowRequest, at: int) -> None:
        row = int(request.rows[at])
        if request.windows is None:
            image = self.images.read(row, self.transform.at_least())
            self.aspects[row] = image.width / image.height
            array[at] = np.asarray(self.transform.resize(image))
            return
        window = request.windows.one(at)
        image = self.images.read(row, self.transform.at_least(window))
        array[at] = np.asarray(self.transform.resize_window(image, window))


def _with_windows(
    items: list[Item | str], windows: Windows, places: Iterable[int]
) -> list[Item | str]:
    return [
        item if isinstance(item, str) else item._replace(window=windows.one(place))
        for item, place in zip(items, places, strict=True)
    ]


def make_store(
    images: ImageSource,
    transform: Transform,
    device: torch.device,
    workers: int = 0,
    windows: bool = False,
) -> InputStore:
    """Return the fastest store the memory allows; ``windows`` will be cut from its pictures."""
    if isinstance(images, FeatureRows):
        return _array_store(images.features, device)
    side = transform.size
    if isinstance(images, ArrayImages):
        height, width = images.pixels.shape[1:3]
        if (height, width) == (side, side) == transform.scale_size(width, height):
            return _array_store(images.pixels, device)
    kept = replace(transform, size=ceil(ROOMY * side), crop=None) if windows else transform
    fits = len(images) * kept.size**2 * 3 <= _limit(device)
    if device.type == "cuda" and not windows:
        fed = FedStore(images, transform, device, workers)
        return DeviceStore(_decode_all(fed, len(images))) if fits else fed
    if not fits:
        return DecodingStore(images, transform, device, workers)
    stream = DecodingStore(images, kept, device, workers)
    values = _decode_all(stream, len(images))
    return DeviceStore(values, torch.from_numpy(stream.aspects).to(device) if windows else None)


def _array_store(values: NDArray[np.generic] | MappedFeatures, device: torch.device) -> InputStore:
    if isinstance(values, MappedFeatures):
        return HostStore(values, device)
    if device.type == "cpu" or values.nbytes <= _limit(device):
        return DeviceStore(torch.from_numpy(values).to(device))
    return HostStore(values, device)


def _decode_all(stream: DecodingStore | FedStore, count: int, chunk: int = 256) -> Tensor:
    side = stream.transform.size
    values = torch.empty((count, side, side, 3), dtype=torch.uint8, device=stream.device)
    starts = range(0, count, chunk)
    requests = (RowRequest(np.arange(start, min(start + chunk, count))) for start in starts)
    for start, pixels in zip(starts, stream.batches(requests), strict=True):
        values[start : start + len(pixels)] = pixels.permute(0, 2, 3, 1)
    return values


def _limit(device: torch.device) -> float:
    if device.type == "cuda":
        return CUDA_SHARE * torch.cuda.mem_get_info(device)[0]
    return CPU_LIMIT


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return the values on the device; a copy to a GPU is not waited for."""
    if device.type != "cuda":
        return values.to(device)
    pinned = values if values.is_pinned() else values.pin_memory()
    return pinned.to(device, non_blocking=True)


def _channels_first(values: Tensor) -> Tensor:
    return values.permute(0, 3, 1, 2) if values.dtype == torch.uint8 else values
