"""Images to batches of a network's inputs on its device, made by threads before they are asked for.

    on the CPU     file --threads: decode, resize--> uint8 (n, 3, size, size)
    on a GPU       file --threads: decode--> pixels of any size --one thread: copy, resize--> ...
    decode="cuda"  file --threads: read--> bytes --one thread: nvJPEG, resize--> ...

Pixels are the same in the first two: :meth:`Transform.resize_planes` is Pillow's resize to the bit.
nvJPEG's differ by a few levels, since it upsamples colours in its own way, and large JPEGs are
decoded whole instead of at a fraction of their size. What it does not take is decoded as usual.

Rows come in order, each once: as an input, or as a failure with its reason.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from labelwise.data import ArrayImages, FeatureRows, ImageSource
from labelwise.data.ahead import started_ahead
from labelwise.data.decode import MAX_PIXELS
from labelwise.data.jpeg import JpegHeader, plain_header, turned
from labelwise.errors import ImageError

__all__ = [
    "Decode",
    "Failure",
    "Inputs",
    "PlanesResizer",
    "Resizer",
    "available_cores",
    "decode_on_gpu",
    "decodes_on_gpu",
    "read_ahead",
    "resized_array",
]

AHEAD = 2  # batches decoded before they are asked for
AHEAD_OF_GPU = 4
CHUNK = 8  # images that a thread takes at once
MAX_SENT = 1 << 24  # bytes of a picture that is sent to a GPU as it is; larger are resized before
MAX_VALUES = 1 << 26  # that are resized at once

Decode = Literal["auto", "cpu", "cuda"]


class Resizer(Protocol):
    """How a picture becomes the pixels of a network's input; a Transform is one."""

    @property
    def size(self) -> int:
        """The side of the input."""

    @property
    def at_least(self) -> int:
        """The side that a JPEG must not be decoded below."""

    def scale_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) that a picture is scaled to before its middle is cut out."""

    def resize(self, image: Image.Image) -> Image.Image:
        """Return the (size, size) picture of an RGB picture."""


@runtime_checkable
class PlanesResizer(Protocol):
    """A resizer that can also do its work on a device, with equal pixels."""

    def resizes_planes(self, width: int, height: int) -> bool:
        """Return whether it can at a size."""

    def resize_planes(self, planes: Tensor) -> Tensor:
        """Return (n, 3, size, size) of uint8 planes (n, 3, H, W)."""


@dataclass(frozen=True)
class Failure:
    """An image without an answer: its row, its id, and a sentence that says why."""

    row: int
    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a batch, for the rows that could be read, and the failures."""

    rows: NDArray[np.int64]
    values: Tensor
    failures: list[Failure] = field(default_factory=list)


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decodes_on_gpu(decode: Decode, device: torch.device) -> bool:
    """Return whether JPEGs are decoded by a GPU; refuse what cannot be had."""
    if decode not in ("auto", "cpu", "cuda"):
        raise ValueError(f"decode must be auto, cpu or cuda, got {decode!r}")
    if decode == "cuda" and device.type != "cuda":
        raise ValueError(f"decode=cuda needs a model on a CUDA device; this one is on {device}")
    return decode != "cpu" and device.type == "cuda"


def read_ahead(
    images: ImageSource,
    transform: Resizer,
    batches: Sequence[NDArray[np.int64]],
    *,
    workers: int | None = None,
    device: torch.device,
    decode: Decode = "cpu",
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows on a device."""
    on_gpu = decodes_on_gpu(decode, device)
    array = resized_array(images, transform)
    if array is not None:
        yield from _from_array(array, batches, device)
    elif device.type == "cuda" and isinstance(transform, PlanesResizer):
        yield from _Feeder(images, transform, transform, device, on_gpu).batches(batches, workers)
    else:
        yield from _resized_by_threads(images, transform, batches, workers, device)


def resized_array(images: ImageSource, transform: Resizer) -> NDArray[np.generic] | None:
    """Return the inputs of all images if they are in memory as they should be, else None."""
    if isinstance(images, FeatureRows):
        return images.features
    if isinstance(images, ArrayImages):
        height, width = images.pixels.shape[1:3]
        if (height, width) == (transform.size,) * 2 == transform.scale_size(width, height):
            return images.pixels
    return None


def _from_array(
    array: NDArray[np.generic], batches: Sequence[NDArray[np.int64]], device: torch.device
) -> Iterator[Inputs]:
    pinned = device.type == "cuda"
    for batch in batches:
        values = torch.from_numpy(array[batch])  # indexing copies
        values = _sent(values.pin_memory() if pinned else values, device)
        yield Inputs(batch, values.permute(0, 3, 1, 2) if values.dtype == torch.uint8 else values)


def _sent(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device, non_blocking=device.type == "cuda")


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, ImageError):
        return str(error)
    what = "not enough memory" if isinstance(error, MemoryError) else str(error)
    return f"{name}: the image cannot be used ({what or type(error).__name__})"


# Decoded and resized by threads

_Errors = list[Exception | None]
_Started = tuple[NDArray[np.int64], Tensor, list[Future[_Errors]]]


def _resized_by_threads(
    images: ImageSource,
    transform: Resizer,
    batches: Sequence[NDArray[np.int64]],
    workers: int | None,
    device: torch.device,
) -> Iterator[Inputs]:
    threads = workers or available_cores()
    longest = max(map(len, batches), default=1)
    chunk = max(1, min(CHUNK, longest // (2 * threads)))
    ahead = max(AHEAD, ceil(2 * threads * chunk / longest))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    start = partial(_start, images, transform, pool, device.type == "cuda", chunk)
    try:
        for batch, buffer, waiting in started_ahead(batches, start, ahead):
            inputs = _finish(images, batch, buffer, waiting)
            yield Inputs(inputs.rows, _sent(inputs.values, device), inputs.failures)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(
    images: ImageSource,
    transform: Resizer,
    pool: ThreadPoolExecutor,
    pinned: bool,
    chunk: int,
    batch: NDArray[np.int64],
) -> _Started:
    side = transform.size
    buffer = torch.empty((len(batch), side, side, 3), dtype=torch.uint8, pin_memory=pinned)
    array = buffer.numpy()

    def fill(first: int, rows: list[int]) -> _Errors:
        errors: _Errors = []
        for at, row in enumerate(rows, first):
            try:
                array[at] = transform.resize(images.read(row, transform.at_least))
                errors.append(None)
            except Exception as error:
                errors.append(error)
        return errors

    places = range(0, len(batch), chunk)
    return batch, buffer, [pool.submit(fill, at, batch[at : at + chunk].tolist()) for at in places]


def _finish(
    images: ImageSource, batch: NDArray[np.int64], buffer: Tensor, waiting: list[Future[_Errors]]
) -> Inputs:
    errors = [error for future in waiting for error in future.result()]
    failures = [
        Failure(row, images.ids[row], _reason(images.ids[row], error))
        for row, error in zip(batch.tolist(), errors, strict=True)
        if error is not None
    ]
    if failures:
        good = [at for at, error in enumerate(errors) if error is None]
        batch, buffer = batch[good], buffer[good]
    return Inputs(batch, buffer.permute(0, 3, 1, 2), failures)


# Decoded by threads or by the device, resized on the device


@dataclass(frozen=True, eq=False)
class _Encoded:
    """A JPEG for the device's decoder."""

    content: Tensor
    header: JpegHeader


@dataclass(frozen=True, eq=False)
class _Pixels:
    """Pixels (H, W, 3) on the host, or planes (3, H, W) on the device; resized or not."""

    values: Tensor
    resized: bool = False

    def sent(self, device: torch.device) -> "_Pixels":
        return _Pixels(_sent(self.values, device).permute(2, 0, 1), self.resized)


_Loaded = _Pixels | _Encoded | Exception


@dataclass(frozen=True, eq=False)
class _Feeder:
    """Sends pictures to a device and resizes them there, in a stream beside the network's."""

    images: ImageSource
    transform: Resizer
    planes: PlanesResizer
    device: torch.device
    decodes: bool  # on the device

    def batches(
        self, batches: Sequence[NDArray[np.int64]], workers: int | None
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches of rows, some batches after they were started."""
        threads = workers or available_cores()
        longest = max(map(len, batches), default=1)
        chunk = max(1, min(CHUNK, longest // threads))
        ahead = max(AHEAD_OF_GPU, ceil(2 * threads * chunk / longest))
        on_gpu = self.device.type == "cuda"
        stream = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]
        pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        feeder = ThreadPoolExecutor(1, thread_name_prefix="feed")

        def start(batch: NDArray[np.int64]) -> Future[tuple[Inputs, torch.cuda.Event | None]]:
            parts = [batch[at : at + chunk] for at in range(0, len(batch), chunk)]
            waiting = [pool.submit(self._load, part.tolist()) for part in parts]
            return feeder.submit(self._feed, batch, waiting, stream)

        try:
            for future in started_ahead(batches, start, ahead):
                inputs, ready = future.result()
                if ready is not None:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(ready)
                    inputs.values.record_stream(current)
                yield inputs
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            feeder.shutdown(wait=True, cancel_futures=True)

    def _load(self, rows: list[int]) -> list[_Loaded]:
        loaded: list[_Loaded] = []
        for row in rows:
            try:
                found = self._bytes_for_device(row) if self.decodes else None
                loaded.append(self._pixels(row) if found is None else found)
            except Exception as error:
                loaded.append(error)
        return loaded

    def _bytes_for_device(self, row: int) -> _Encoded | None:
        content = self.images.encoded(row)
        header = None if content is None else plain_header(content)
        if content is None or header is None or header.layers != 3:
            return None
        sides = header.width, header.height
        if sides[0] * sides[1] > MAX_PIXELS or not self.planes.resizes_planes(*sides):
            return None
        return _Encoded(torch.frombuffer(bytearray(content), dtype=torch.uint8), header)

    def _pixels(self, row: int) -> _Pixels:
        pixels = self.images.read_pixels(row, self.transform.at_least)
        height, width = pixels.shape[:2]
        resized = pixels.nbytes > MAX_SENT or not self.planes.resizes_planes(width, height)
        if resized:
            pixels = np.asarray(self.transform.resize(Image.fromarray(pixels)))
        pinned = self.device.type == "cuda"
        host = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=pinned)
        host.numpy()[...] = pixels
        return _Pixels(host, resized)

    def _feed(
        self,
        batch: NDArray[np.int64],
        waiting: list[Future[list[_Loaded]]],
        stream: torch.cuda.Stream | None,
    ) -> tuple[Inputs, torch.cuda.Event | None]:
        loaded = [one for future in waiting for one in future.result()]
        beside: AbstractContextManager[object] = nullcontext()
        if stream is not None:
            beside = torch.cuda.stream(stream)
        with torch.inference_mode(), beside:
            planes = self._on_device(batch, loaded)
            good = [at for at, one in enumerate(planes) if isinstance(one, _Pixels)]
            failures = [
                Failure(row, self.images.ids[row], _reason(self.images.ids[row], one))
                for row, one in zip(batch.tolist(), planes, strict=True)
                if isinstance(one, Exception)
            ]
            values = self._resized([one for one in planes if isinstance(one, _Pixels)])
            ready = None if stream is None else stream.record_event()  # type: ignore[no-untyped-call]
        return Inputs(batch[good], values, failures), ready

    def _on_device(
        self, batch: NDArray[np.int64], loaded: list[_Loaded]
    ) -> list[_Pixels | Exception]:
        """Return planes on the device, or what is wrong with an image."""
        decoded = iter(self._decoded(batch, loaded))
        planes: list[_Pixels | Exception] = []
        for one in loaded:
            if isinstance(one, _Pixels):
                planes.append(one.sent(self.device))
            else:
                planes.append(next(decoded) if isinstance(one, _Encoded) else one)
        return planes

    def _decoded(
        self, batch: NDArray[np.int64], loaded: list[_Loaded]
    ) -> list[_Pixels | Exception]:
        encoded = [one for one in loaded if isinstance(one, _Encoded)]
        if not encoded:
            return []
        try:
            decoded = decode_on_gpu([one.content for one in encoded], self.device)
        except RuntimeError:  # one picture that it does not take spoils them all
            rows = [
                row for row, one in zip(batch, loaded, strict=True) if isinstance(one, _Encoded)
            ]
            return [self._decoded_here(int(row)) for row in rows]
        pairs = zip(decoded, encoded, strict=True)
        return [_Pixels(_upright(planes, one.header.orientation)) for planes, one in pairs]

    def _decoded_here(self, row: int) -> _Pixels | Exception:
        try:
            return self._pixels(row).sent(self.device)
        except Exception as error:
            return error

    def _resized(self, pictures: list[_Pixels]) -> Tensor:
        """Return the inputs (n, 3, size, size), in channels-last memory; equal sizes together."""
        side = self.transform.size
        if not pictures:
            return torch.empty((0, 3, side, side), dtype=torch.uint8, device=self.device)
        groups: dict[tuple[object, ...], list[int]] = {}
        for at, one in enumerate(pictures):
            kind = one.resized, one.values.shape, one.values.stride(-1)
            groups.setdefault(kind, []).append(at)
        order, parts = [], []
        for (resized, *_), places in groups.items():
            most = max(1, MAX_VALUES // pictures[places[0]].values.numel())
            for first in range(0, len(places), most):
                some = places[first : first + most]
                order += some
                planes = _stacked([pictures[at].values for at in some])
                parts.append(planes if resized else self.planes.resize_planes(planes))
        values = torch.cat(parts)
        if order != sorted(order):
            back = torch.from_numpy(np.argsort(order))
            back = back.pin_memory() if self.device.type == "cuda" else back
            values = values[_sent(back, self.device)]
        return values.contiguous(memory_format=torch.channels_last)


def _stacked(planes: list[Tensor]) -> Tensor:
    """Return planes (n, 3, H, W) of one size; those that are channels last are joined so."""
    if planes[0].stride(-1) == 1:
        return torch.stack(planes)
    return torch.stack([one.permute(1, 2, 0) for one in planes]).permute(0, 3, 1, 2)


def _upright(planes: Tensor, orientation: int) -> Tensor:
    exchanged, rows, columns = turned(orientation)
    if exchanged:
        planes = planes.transpose(1, 2)
    mirrored = [axis for axis, turn in ((1, rows), (2, columns)) if turn]
    return planes.flip(mirrored).contiguous() if orientation > 1 else planes


def decode_on_gpu(contents: list[Tensor], device: torch.device) -> list[Tensor]:
    """Return planes (3, H, W) of JPEGs by nvJPEG, in the current stream."""
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: list[Tensor] = decode_jpeg(contents, mode=ImageReadMode.RGB, device=device)
    return decoded
