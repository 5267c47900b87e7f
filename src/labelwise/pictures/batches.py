"""Images to batches of a network's inputs on its device, made before they are asked for.

    on the CPU     file --threads: decode, resize--> uint8 (n, 3, size, size)
    on a GPU       file --processes: decode--> shared memory --one thread: copy, resize--> ...
    decode="cuda"  file --processes: read--> shared memory --threads: nvJPEG, resize--> ...

For few images, and for pictures in no file, threads take the place of processes.

Pixels are the same in the first two: :meth:`Transform.resize_planes` is Pillow's resize to the bit.
nvJPEG's differ by a few levels, and it decodes large JPEGs whole. What it does not take is decoded
as usual. Rows come in order, each once: as an input, or as a failure with its reason.

Training reads through :class:`HostResizer` too, which leaves black what cannot be read.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.device import DeviceFeeder
from labelwise.pictures.loading import (
    CHUNK,
    Decode,
    Failure,
    Inputs,
    PictureLoader,
    decodes_on_gpu,
    sent,
)
from labelwise.pictures.memory import ArrayImages, FeatureRows, MappedFeatures
from labelwise.pictures.prefetch import available_cores, in_thread, started_ahead
from labelwise.pictures.processes import (
    DecodedChunk,
    DecodingProcesses,
    are_worth_it,
    borrowed_processes,
    items_ahead,
)
from labelwise.pictures.sources import ImageSource
from labelwise.pictures.transform import Transform, Window
from labelwise.pictures.worker import HEADER, NAME, Kind, Work, reason_of

AHEAD = 3  # batches begun before they are asked for


def read_ahead(
    images: ImageSource,
    transform: Transform,
    batches: Sequence[NDArray[np.int64]],
    *,
    workers: int | None = None,
    device: torch.device,
    decode: Decode = "cpu",
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows on a device."""
    on_gpu = decodes_on_gpu(decode, device, transform.bands)
    array = resized_array(images, transform)
    if array is not None:
        for batch in batches:
            values = torch.from_numpy(array[batch])  # indexing copies
            values = sent(values.pin_memory() if device.type == "cuda" else values, device)
            as_planes = isinstance(images, ArrayImages)
            yield Inputs(batch, values.permute(0, 3, 1, 2) if as_planes else values)
    elif device.type == "cuda" and transform.is_plain:
        processes = are_worth_it(sum(map(len, batches)), workers or available_cores())
        loader = PictureLoader(images, transform, device, on_gpu, processes)
        yield from DeviceFeeder(loader).batches(batches, workers)
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
        kept = images.resized or (width, height) == transform.scale_size(width, height)
        as_input = transform.bands is None and images.is_rgb  # of bands, gaps are filled first
        if kept and (images.resized or as_input) and (height, width) == (transform.size,) * 2:
            return images.pixels
    return None


class BatchRows(NamedTuple):
    """The rows of a batch, and the window to cut from the picture at each place, if any."""

    rows: NDArray[np.int64]
    window: Callable[[int], Window] | None = None


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
        with ExitStack() as stack:
            lent = None
            able = self.processes and work.fits(self.images)
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
        """Yield the same, made by threads."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")

        def start(batch: BatchRows) -> tuple[Resized, list[Future[None]]]:
            made = self._empty(len(batch.rows))
            chunk = _chunk(len(batch.rows), self.workers)
            firsts = range(0, len(batch.rows), chunk)
            parts = [range(at, min(at + chunk, len(batch.rows))) for at in firsts]
            return made, [pool.submit(self._fill, made, batch, block) for block in parts]

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
            (batch, range(at, min(at + size, len(batch.rows))))
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
        """Return a batch, copied out of the memory that processes share."""
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
    """Return how many rows of a batch a thread takes at once."""
    return max(1, min(CHUNK, rows // (2 * threads)))


def resized_inputs(
    images: ImageSource,
    transform: Transform,
    batches: Sequence[NDArray[np.int64]],
    workers: int | None,
    device: torch.device,
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows on a device, resized by threads of the host."""
    threads = workers or available_cores()
    longest = max(map(len, batches), default=1)
    ahead = max(AHEAD - 1, ceil(2 * threads * _chunk(longest, threads) / longest))
    resizer = HostResizer(images, transform, device, threads, ahead=ahead)
    with closing(resizer.by_threads(map(BatchRows, batches))) as made:
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
