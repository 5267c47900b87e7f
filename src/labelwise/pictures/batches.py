"""Pictures to batches of a network's inputs on its device, made before they are asked for.

    files --threads or processes: decode, resize--> pixels (n, size, size, 3) --> device
    decode="cuda":  files --threads: read--> JPEGs --torchvision: decode, torch: resize--> device

:class:`HostResizer` is the one pool of decoders. It takes processes for many files, so that
Python's lock does not matter, and threads otherwise; the pixels are the same. Training reads
through it too, and leaves black what cannot be read.

A GPU's decoder and resize differ from Pillow's by a few levels, and large JPEGs are decoded whole.
Pictures that it does not take are decoded on the host. Rows come in order, each once: as an input,
or as a failure with its reason.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from io import BytesIO
from math import ceil
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import JpegImagePlugin
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.pictures.decode import max_pixels
from labelwise.pictures.inputs import Failure, input_array
from labelwise.pictures.memory import ArrayImages, FeatureRows, MappedFeatures
from labelwise.pictures.prefetch import available_cores, by_threads, in_thread, started_ahead
from labelwise.pictures.processes import (
    DecodedChunk,
    DecodingProcesses,
    are_worth_it,
    borrowed_processes,
    items_ahead,
)
from labelwise.pictures.sources import ImageSource, Rows
from labelwise.pictures.transform import Transform, Window
from labelwise.pictures.worker import HEADER, NAME, Kind, Work, reason_of

AHEAD = 3  # batches begun before they are asked for
CHUNK = 8  # images that a thread or process takes at once
ORIENTATION = 0x0112

Decode = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a batch, for the rows that could be read, and the failures."""

    rows: Rows
    values: Tensor
    failures: list[Failure] = field(default_factory=list)


def decodes_on_gpu(decode: Decode, device: torch.device, transform: Transform) -> bool:
    """Return whether a GPU decodes JPEGs; a request that it cannot meet is an error."""
    if decode not in ("auto", "cpu", "cuda"):
        raise ValueError(f"decode must be auto, cpu or cuda, got {decode!r}")
    if decode == "cuda" and transform.bands is not None:
        raise SettingsError("decode=cuda is for JPEGs, and this model takes bands; leave it out")
    if decode == "cuda" and not transform.resizes_planes:
        how = transform.interpolation
        raise SettingsError(f"decode=cuda cannot scale by {how}, as this model does; leave it out")
    if decode == "cuda" and device.type != "cuda":
        raise ValueError(f"decode=cuda needs a model on a CUDA device; this one is on {device}")
    return decode != "cpu" and device.type == "cuda" and transform.resizes_planes


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; on a GPU perhaps before they are there."""
    return values.to(device, non_blocking=device.type == "cuda")


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return the values on the device; a copy to a GPU is not waited for."""
    pins = device.type == "cuda" and values.device.type == "cpu" and not values.is_pinned()
    return sent(values.pin_memory() if pins else values, device)


def read_ahead(
    images: ImageSource,
    transform: Transform,
    batches: Sequence[Rows],
    *,
    workers: int | None = None,
    device: torch.device,
    decode: Decode = "cpu",
) -> Generator[Inputs]:
    """Yield the inputs of batches of rows on a device."""
    on_gpu = decodes_on_gpu(decode, device, transform)
    array = resized_array(images, transform)
    if array is not None:
        for batch in batches:
            values = to_device(torch.from_numpy(array[batch]), device)  # indexing copies
            as_planes = isinstance(images, ArrayImages)
            yield Inputs(batch, values.permute(0, 3, 1, 2) if as_planes else values)
    elif on_gpu:
        yield from decoded_inputs(images, transform, batches, workers, device)
    else:
        yield from resized_inputs(images, transform, batches, workers, device)


def resized_array(
    images: ImageSource, transform: Transform
) -> NDArray[np.generic] | MappedFeatures | None:
    """Return the inputs of all images if they are in memory as they should be, else None."""
    if isinstance(images, FeatureRows):
        return images.features
    if isinstance(images, ArrayImages):
        height, width = images.pixels.shape[1:3]
        fits = images.resized or (width, height) == transform.scale_size(width, height)
        as_input = transform.bands is None and images.is_rgb  # of bands, gaps are filled first
        if fits and (images.resized or as_input) and (height, width) == (transform.size,) * 2:
            return images.pixels
    return None


class BatchRows(NamedTuple):
    """The rows of a batch, the window to cut at each place, if any, and the rows on a device."""

    rows: Rows
    window: Callable[[int], Window] | None = None
    on_device: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Resized:
    """Pixels (n, size, size, C) of a batch, width / height of whole pictures, reasons by place."""

    values: Tensor
    aspects: NDArray[np.float32]
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class HostResizer:
    """Reads, scales and cuts pictures for a device."""

    images: ImageSource
    transform: Transform
    device: torch.device
    workers: int
    processes: bool = False
    ahead: int = AHEAD

    def batches(self, wanted: Iterable[BatchRows]) -> Generator[Resized]:
        """Yield the pictures of each batch, on the host."""
        work = Work(Kind.RESIZED, self.transform)
        able = self.processes and work.fits(self.images)
        with ExitStack() as stack:
            lent = None
            if able and are_worth_it(len(self.images), self.workers):
                lent = stack.enter_context(borrowed_processes(self.workers))
            if lent is None:
                yield from stack.enter_context(closing(self.by_threads(wanted)))
            else:
                made = self._by_processes(lent, work, list(wanted))
                yield from stack.enter_context(closing(in_thread(made, self.ahead, "feed")))

    def _empty(self, count: int) -> Resized:
        side, pinned = self.transform.size, self.device.type == "cuda"
        shape = (count, side, side, self.transform.channels)
        values = torch.empty(shape, dtype=self.transform.dtype, pin_memory=pinned)
        return Resized(values, np.ones(count, np.float32))

    def by_threads(self, wanted: Iterable[BatchRows]) -> Generator[Resized]:
        """Yield the pictures of each batch, made by threads of this process."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")

        def start(batch: BatchRows) -> tuple[Resized, list[Future[None]]]:
            made, places = self._empty(len(batch.rows)), range(len(batch.rows))
            size = _chunk(len(places), self.workers)
            parts = [places[at : at + size] for at in places[::size]]
            return made, [pool.submit(self._fill, made, batch, part) for part in parts]

        try:
            for made, waiting in started_ahead(wanted, start, self.ahead):
                for future in waiting:
                    future.result()
                yield made
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self, made: Resized, batch: BatchRows, places: Sequence[int]) -> None:
        array, work = made.values.numpy(), Work(Kind.RESIZED, self.transform)
        for at in places:
            row = int(batch.rows[at])
            try:
                window = None if batch.window is None else batch.window(at)
                entry, array[at] = work.load(self.images, row, window)
                if window is None:
                    made.aspects[at] = entry.width / entry.height
            except Exception as error:
                array[at] = 0
                made.failed[at] = reason_of(self.images.ids[row], error)

    def _by_processes(
        self, processes: DecodingProcesses, work: Work, wanted: list[BatchRows]
    ) -> Generator[Resized]:
        size = min(CHUNK, work.most_items)
        parts = [
            (batch, range(len(batch.rows))[at : at + size])
            for batch in wanted
            for at in range(0, len(batch.rows), size)
        ]
        rows = [batch.rows[places.start : places.stop].tolist() for batch, places in parts]
        with ExitStack() as stack:
            items = stack.enter_context(closing(items_ahead(self.images, rows, self.workers)))
            cut = (
                [
                    item
                    if isinstance(item, str) or batch.window is None
                    else item._replace(window=batch.window(at))
                    for item, at in zip(some, places, strict=True)
                ]
                for some, (batch, places) in zip(items, parts, strict=True)
            )
            chunks = stack.enter_context(closing(processes.run(work, cut)))
            for batch in wanted:
                yield self._collected(batch, chunks, size)

    def _collected(self, batch: BatchRows, chunks: Iterator[DecodedChunk], size: int) -> Resized:
        made = self._empty(len(batch.rows))
        side = self.transform.size
        for first in range(0, len(batch.rows), size):
            chunk = next(chunks)
            good = []
            for at, entry in enumerate(chunk.entries, first):
                if isinstance(entry, str):
                    name = self.images.shown_name(int(batch.rows[at]))
                    made.values[at] = 0
                    made.failed[at] = entry.replace(NAME, name)
                    continue
                good.append(at)
                if batch.window is None:
                    made.aspects[at] = entry.width / entry.height
            if good:
                whole = len(good) == len(chunk.entries)
                places = slice(good[0], good[-1] + 1) if whole else good
                used = chunk.used[HEADER:].view(self.transform.dtype)
                made.values[places] = used.view(-1, side, side, self.transform.channels)
        return made


def _chunk(rows: int, threads: int) -> int:
    return max(1, min(CHUNK, rows // (2 * threads)))


def resized_inputs(
    images: ImageSource,
    transform: Transform,
    batches: Sequence[Rows],
    workers: int | None,
    device: torch.device,
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows on a device, resized on the host."""
    threads = workers or available_cores()
    longest = max(map(len, batches), default=1) or 1
    ahead = max(AHEAD - 1, ceil(2 * threads * _chunk(longest, threads) / longest))
    resizer = HostResizer(images, transform, device, threads, device.type == "cuda", ahead)
    with closing(resizer.batches(map(BatchRows, batches))) as made:
        for rows, inputs in zip(batches, made, strict=True):
            failures = [
                Failure(int(rows[at]), images.ids[int(rows[at])], reason)
                for at, reason in sorted(inputs.failed.items())
            ]
            values = inputs.values
            if failures:
                good = [at for at in range(len(rows)) if at not in inputs.failed]
                rows, values = rows[good], values[good]
            yield Inputs(rows, sent(values.permute(0, 3, 1, 2), device), failures)


# JPEGs that a GPU decodes


class Jpeg(NamedTuple):
    """A file for a GPU's decoder, and how its picture is turned upright."""

    content: Tensor
    orientation: int


def jpeg_of(content: bytes) -> Jpeg | None:
    """Return a JPEG that a GPU may decode; None for what Pillow has to read or to judge."""
    if not (content.startswith(b"\xff\xd8\xff") and content.endswith(b"\xff\xd9")):
        return None
    with JpegImagePlugin.JpegImageFile(BytesIO(content)) as image:
        names = bytes(layer[0] for layer in image.layer)
        stored_as_rgb = names == b"RGB" or image.info.get("adobe_transform") == 0
        if image.mode != "RGB" or stored_as_rgb or image.width * image.height > max_pixels():
            return None
        orientation = image.getexif().get(ORIENTATION, 1)
    return Jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), orientation)


def decoded_inputs(
    images: ImageSource,
    transform: Transform,
    batches: Sequence[Rows],
    workers: int | None,
    device: torch.device,
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows, whose JPEGs torchvision decodes on the device."""

    def read(rows: Rows) -> list[Jpeg | Tensor | Failure]:
        return [_jpeg_or_pixels(images, row, transform) for row in rows.tolist()]

    parts = [batch[at : at + CHUNK] for batch in batches for at in range(0, len(batch), CHUNK)]
    threads = workers or available_cores()
    ahead = threads + AHEAD * ceil(max(map(len, batches), default=0) / CHUNK)
    with closing(by_threads(parts, read, threads, ahead, "read")) as chunks:
        for batch in batches:
            items = [item for _ in range(0, len(batch), CHUNK) for item in next(chunks)]
            files = [(at, item) for at, item in enumerate(items) if isinstance(item, Jpeg)]
            decoded = _decoded([file.content for _, file in files], device)
            for (at, file), planes in zip(files, decoded, strict=True):
                if planes is None:
                    items[at] = _pixels(images, int(batch[at]), transform)
                else:
                    items[at] = transform.resize_planes(upright(planes, file.orientation))
            good = [at for at, item in enumerate(items) if isinstance(item, Tensor)]
            ready = [to_device(item, device) for item in items if isinstance(item, Tensor)]
            values = torch.stack(ready) if ready else torch.empty(0, dtype=torch.uint8)
            if device.type == "cuda":
                # torchvision decodes in a stream of its own, which does not wait for whoever still
                # reads a picture whose memory it is given again: scale these before they are freed
                torch.cuda.current_stream(device).synchronize()
            failures = [item for item in items if isinstance(item, Failure)]
            yield Inputs(batch[good], values, failures)


def _jpeg_or_pixels(images: ImageSource, row: int, transform: Transform) -> Jpeg | Tensor | Failure:
    with suppress(Exception):  # what is wrong is said by the host's decoder
        content = images.encoded(row)
        jpeg = None if content is None else jpeg_of(content)
        if jpeg is not None:
            return jpeg
    return _pixels(images, row, transform)


def _pixels(images: ImageSource, row: int, transform: Transform) -> Tensor | Failure:
    """Return the input (3, size, size) of a picture that the host decodes, or why it cannot."""
    try:
        return torch.from_numpy(input_array(images, row, transform).copy())
    except Exception as error:
        return Failure(row, images.ids[row], reason_of(images.ids[row], error))


def _decoded(contents: list[Tensor], device: torch.device) -> list[Tensor | None]:
    """Return planes (3, H, W) of JPEGs on a device, None for those that it refuses.

    A refused file spoils the call, so the files are then decoded in two halves.
    """
    if not contents:
        return []
    try:
        return [*decode_by_torchvision(contents, device)]
    except RuntimeError:
        half = len(contents) // 2
        if not half:
            return [None]
        return [*_decoded(contents[:half], device), *_decoded(contents[half:], device)]


def decode_by_torchvision(contents: list[Tensor], device: torch.device) -> list[Tensor]:
    """Return planes (3, H, W) of JPEGs, by nvJPEG on a GPU and by libjpeg on a CPU."""
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: list[Tensor] = decode_jpeg(contents, mode=ImageReadMode.RGB, device=device)
    return decoded


def upright(planes: Tensor, orientation: int) -> Tensor:
    """Return planes (3, H, W) turned as an EXIF orientation from 1 to 8 says."""
    planes = planes.transpose(1, 2) if orientation > 4 else planes
    axes = [axis for axis, turns in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in turns]
    return planes.flip(axes)
