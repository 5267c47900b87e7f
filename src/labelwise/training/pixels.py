"""Where the inputs of a table's rows come from: device memory, host memory, or decoding."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import tee
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import ImageError
from labelwise.pictures import Transform
from labelwise.pictures.ahead import available_cores
from labelwise.pictures.batches import BatchRows, HostResizer, read_ahead, resized_array
from labelwise.pictures.mapped import MappedFeatures
from labelwise.pictures.memory import ArrayImages, FeatureRows
from labelwise.pictures.sources import ImageSource
from labelwise.system.allocator import memory_bytes
from labelwise.training.augment import Windows

CPU_LIMIT = 1 << 30  # bytes of decoded pixels kept when the device is the host itself
CUDA_SHARE = 0.25  # of the free device memory
MEMORY_SHARE = 1 / 16  # of the host's memory, for pictures that are looked at after each epoch
AT_ONCE = 1 << 25  # bytes of the float32 inputs and labels that are made at once
ROOMY = 1.5  # times the side of the input is kept of pictures that windows are cut from


@dataclass(frozen=True)
class RowRequest:
    """BatchRows to fetch: their numbers on the host and on the device, and windows to cut."""

    rows: NDArray[np.int64]
    index: Tensor | None = None
    windows: Windows | None = None


class InputStore(ABC):
    """Inputs by row: pixels (B, C, H, W) in channels-last memory, or float32 features."""

    @abstractmethod
    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        """Return the inputs of each request, on the device, in the order of the requests."""

    def rows_at_once(self, labels: int) -> int:
        """Return how many rows a request may hold; 0 where fetching a batch takes time."""
        return 0


class DeviceStore(InputStore):
    """All inputs on the device; a batch is one gather.

    Pictures are kept (N, H, W, C), and go out with their channels first (``as_planes``).
    ``aspects`` (N,), width / height, are given where whole pictures were squashed into squares.
    """

    def __init__(
        self, values: Tensor, aspects: Tensor | None = None, *, as_planes: bool = True
    ) -> None:
        self.values, self.aspects, self.as_planes = values, aspects, as_planes

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        for request in requests:
            part = self.values[request.index]
            yield part.permute(0, 3, 1, 2) if self.as_planes else part

    def rows_at_once(self, labels: int) -> int:
        return AT_ONCE // (4 * (self.values[0].numel() + labels))


class HostStore(InputStore):
    """All inputs in host memory or mapped; a batch is gathered there, copied without waiting."""

    def __init__(
        self,
        values: NDArray[np.generic] | MappedFeatures,
        device: torch.device,
        *,
        as_planes: bool = True,
    ) -> None:
        self.values, self.device, self.as_planes = values, device, as_planes

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        for request in requests:
            part = to_device(torch.from_numpy(self.values[request.rows]), self.device)
            yield part.permute(0, 3, 1, 2) if self.as_planes else part


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
        self.transform, self.device = transform, device
        workers = workers or available_cores()
        by_processes = device.type == "cuda"
        self.resizer = HostResizer(images, transform, device, workers, by_processes)
        self.aspects = np.ones(len(images), np.float32)  # width / height, once read

    def batches(self, requests: Iterable[RowRequest]) -> Iterator[Tensor]:
        requests, begun = tee(requests)  # batches are begun before they are asked for
        wanted = (
            BatchRows(one.rows, None if one.windows is None else one.windows.one) for one in begun
        )
        with closing(self.resizer.batches(wanted)) as made:
            for request, resized in zip(requests, made, strict=True):
                if resized.failed:
                    raise ImageError(resized.failed[min(resized.failed)])
                if request.windows is None:
                    self.aspects[request.rows] = resized.aspects
                yield to_device(resized.values, self.device).permute(0, 3, 1, 2)


def make_store(
    images: ImageSource,
    transform: Transform,
    device: torch.device,
    workers: int = 0,
    windows: bool = False,
) -> InputStore:
    """Return the fastest store the memory allows; ``windows`` will be cut from its pictures."""
    if isinstance(images, FeatureRows):
        return _array_store(images.features, device, as_planes=False)
    side = transform.size
    if isinstance(images, ArrayImages) and images.is_rgb and transform.bands is None:
        height, width = images.pixels.shape[1:3]
        if (height, width) == (side, side) == transform.scale_size(width, height):
            return _array_store(images.pixels, device, as_planes=True)
    kept = replace(transform, size=ceil(ROOMY * side), crop=None) if windows else transform
    fits = len(images) * kept.size**2 * kept.channels * kept.dtype.itemsize <= _limit(device)
    if device.type == "cuda" and not windows:
        fed = FedStore(images, transform, device, workers)
        return DeviceStore(_decode_all(fed, len(images))) if fits else fed
    if not fits:
        return DecodingStore(images, transform, device, workers)
    stream = DecodingStore(images, kept, device, workers)
    values = _decode_all(stream, len(images))
    return DeviceStore(values, torch.from_numpy(stream.aspects).to(device) if windows else None)


def kept_in_memory(
    images: ImageSource, transform: Transform, *, workers: int = 0, limit: float | None = None
) -> ImageSource:
    """Return the images scaled to a model's input and held in memory, if they take little of it.

    For images that are looked at again and again, such as a validation split. ``limit``, in bytes,
    is a sixteenth of the memory by default, at least one GiB.
    """
    if limit is None:
        limit = max(CPU_LIMIT, memory_bytes() * MEMORY_SHARE)
    size = len(images) * transform.size**2 * transform.channels * transform.dtype.itemsize
    if size > limit or not len(images) or resized_array(images, transform) is not None:
        return images
    stream = DecodingStore(images, transform, torch.device("cpu"), workers)
    pixels = _decode_all(stream, len(images)).numpy()
    return ArrayImages(pixels, images.ids, resized=True, any_depth=transform.bands is not None)


def _array_store(
    values: NDArray[np.generic] | MappedFeatures, device: torch.device, *, as_planes: bool
) -> InputStore:
    if isinstance(values, MappedFeatures):
        return HostStore(values, device, as_planes=as_planes)
    if device.type == "cpu" or values.nbytes <= _limit(device):
        return DeviceStore(torch.from_numpy(values).to(device), as_planes=as_planes)
    return HostStore(values, device, as_planes=as_planes)


def _decode_all(stream: DecodingStore | FedStore, count: int, chunk: int = 256) -> Tensor:
    side, channels = stream.transform.size, stream.transform.channels
    shape = (count, side, side, channels)
    values = torch.empty(shape, dtype=stream.transform.dtype, device=stream.device)
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
