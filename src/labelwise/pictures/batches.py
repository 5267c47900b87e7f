"""Images to batches of a network's inputs on its device, made before they are asked for.

    on the CPU     file --threads: decode, resize--> uint8 (n, 3, size, size)
    on a GPU       file --processes: decode--> shared memory --one thread: copy, resize--> ...
    decode="cuda"  file --processes: read--> shared memory --threads: nvJPEG, resize--> ...

For few images, and for pictures in no file, threads take the place of processes.

Pixels are the same in the first two: :meth:`Transform.resize_planes` is Pillow's resize to the bit.
nvJPEG's differ by a few levels, and it decodes large JPEGs whole. What it does not take is decoded
as usual. Rows come in order, each once: as an input, or as a failure with its reason.

Training reads through :class:`HostResizer` too, which leaves black what cannot be read.

What a GPU is fed with comes in portions, as much as is well decoded or resized at once, whatever
the size of a batch. Each thread works on another portion, and decoding, resizing and the network
have a stream each:

    chunks --a thread: join--> portions --threads: nvJPEG--> pixels --a thread: resize--> batches
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.decode import turned
from labelwise.pictures.inputs import Failure
from labelwise.pictures.loading import (
    CHUNK,
    Decode,
    Inputs,
    Jpeg,
    Loaded,
    PictureLoader,
    Pictures,
    decodes_on_gpu,
    sent,
    to_device,
)
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
    on_gpu = decodes_on_gpu(decode, device, transform.bands)
    array = resized_array(images, transform)
    if array is not None:
        for batch in batches:
            values = to_device(torch.from_numpy(array[batch]), device)  # indexing copies
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


Stream = torch.cuda.Stream | None


class GpuDecoder:
    """Decodes JPEGs by torchvision's nvJPEG, in a stream of its own, for one thread at a time."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = new_stream(device, urgent=True)

    def decode(self, files: Sequence[Jpeg]) -> tuple[list[Pictures], list[Jpeg]]:
        """Return upright pictures, there already, and the files that the GPU does not take."""
        with torch.inference_mode(), beside(self._stream):
            pictures, refused = _by_halves(self._decoded, list(files))
            if self._stream is not None:
                self._stream.synchronize()
        return pictures, refused

    def _decoded(self, groups: Sequence[list[Tensor]]) -> list[Tensor]:
        contents = [content for group in groups for content in group]
        remaining = iter(decode_by_torchvision(contents, self._device))
        planes = [torch.stack(list(islice(remaining, len(group)))) for group in groups]
        if self._stream is not None:
            # torchvision decodes in a stream of its own, which does not wait for whoever still
            # reads a picture whose memory it is given again: copy before these are freed
            self._stream.synchronize()
        return planes


_idle: defaultdict[torch.device, list[GpuDecoder]] = defaultdict(list)


@contextmanager
def borrowed_decoder(device: torch.device) -> Generator[GpuDecoder]:
    """Lend a decoder, which takes up to a second to make and is kept for the next who asks."""
    try:
        decoder = _idle[device].pop()
    except IndexError:
        decoder = GpuDecoder(device)
    try:
        yield decoder
    finally:
        _idle[device].append(decoder)


def decode_by_torchvision(contents: list[Tensor], device: torch.device) -> list[Tensor]:
    """Return planes (3, H, W) of JPEGs by nvJPEG, in the current stream."""
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: list[Tensor] = decode_jpeg(contents, mode=ImageReadMode.RGB, device=device)
    return decoded


def new_stream(device: torch.device, *, urgent: bool = False) -> Stream:
    """Return a stream of a GPU, whose work comes before that of others if it is urgent."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-int(urgent))  # type: ignore[no-untyped-call]


def beside(stream: Stream) -> AbstractContextManager[object]:
    """Make a stream the current one; without one, do nothing."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _by_halves(
    decode: Callable[[Sequence[list[Tensor]]], list[Tensor]], files: list[Jpeg]
) -> tuple[list[Pictures], list[Jpeg]]:
    """Return upright pictures, and the files that fail: they spoil the batch, so halve it."""
    if not files:
        return [], []
    groups: dict[tuple[int, int, int], list[Jpeg]] = {}
    for file in files:
        sides = file.header.height, file.header.width, file.header.orientation
        groups.setdefault(sides, []).append(file)
    try:
        decoded = decode([[file.content for file in some] for some in groups.values()])
    except RuntimeError:
        half = len(files) // 2
        if not half:
            return [], files
        pictures, refused = _by_halves(decode, files[:half])
        more, left = _by_halves(decode, files[half:])
        return pictures + more, refused + left
    pictures = [
        Pictures([file.place for file in some], _upright(planes, orientation).permute(0, 2, 3, 1))
        for ((_, _, orientation), some), planes in zip(groups.items(), decoded, strict=True)
    ]
    return pictures, []


def _upright(planes: Tensor, orientation: int) -> Tensor:
    if orientation == 1:
        return planes
    exchanged, rows, columns = turned(orientation)
    planes = planes.transpose(2, 3) if exchanged else planes
    return planes.flip([axis for axis, turn in ((2, rows), (3, columns)) if turn]).contiguous()


PORTION = 256  # pictures that are decoded and resized together, or
DECODED_VALUES = 1 << 28  # values of theirs, or as much as is given to nvJPEG at once, or
DECODED_SHARE = 64  # one part in so many of a GPU's memory, for there are several at a time
RESIZED_VALUES = 1 << 26  # that are resized at once, or
RESIZED_SHARE = 512  # one part in so many of a GPU's memory
DECODERS = 2  # on a GPU: while one waits for it, another prepares the next portion
PORTIONS_AHEAD = 2  # joined before they are asked for
BATCHES_AHEAD = 2


class _Inputs(NamedTuple):
    """Inputs (n, C, size, size) in channels-last memory, in the order of their places."""

    places: list[int]
    values: Tensor


class DeviceFeeder:
    """Makes inputs of what a loader sends to its device, in a stream beside the network's."""

    def __init__(self, loader: PictureLoader) -> None:
        self.loader, self.device = loader, loader.device

    def batches(self, batches: Sequence[Rows], workers: int | None) -> Iterator[Inputs]:
        if not batches:
            return
        stream = new_stream(self.device)
        with ExitStack() as stack:
            chunks = stack.enter_context(self.loader.chunks(batches, workers))
            portions = in_thread(self._portions(chunks, stream), PORTIONS_AHEAD, "join")
            stack.enter_context(closing(portions))
            if self.loader.decodes:
                portions = stack.enter_context(closing(self._decoded(portions)))
            made = in_thread(self._made(batches, portions, stream), BATCHES_AHEAD, "feed")
            for inputs, ready in stack.enter_context(closing(made)):
                if ready is not None:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(ready)
                    inputs.values.record_stream(current)
                yield inputs

    def _at_least(self, values: int, share: int) -> int:
        """Return so many values, or more where the device has the memory for them."""
        if self.device.type != "cuda":
            return values
        return max(values, torch.cuda.get_device_properties(self.device).total_memory // share)

    def _portions(self, chunks: Iterator[Loaded], stream: Stream) -> Generator[Loaded]:
        most = self._at_least(DECODED_VALUES, DECODED_SHARE)
        whole = Loaded()
        more = True
        while more:
            with beside(stream):  # which pixels are sent in
                chunk = next(chunks, None)
            more = chunk is not None
            if chunk is not None:
                whole.pictures.extend(chunk.pictures)
                whole.files.extend(chunk.files)
                whole.failed.update(chunk.failed)
            if len(whole) and (len(whole) >= PORTION or whole.values >= most or not more):
                yield whole
                whole = Loaded()

    def _decoded(self, portions: Iterator[Loaded]) -> Generator[Loaded]:
        """Yield portions whose files the device has decoded, several of them at once."""
        decoders: SimpleQueue[GpuDecoder] = SimpleQueue()

        def decode(portion: Loaded) -> Loaded:
            if not portion.files:
                return portion
            decoder = decoders.get()
            try:
                pictures, refused = decoder.decode(portion.files)
            finally:
                decoders.put(decoder)
            whole = Loaded(portion.pictures + pictures, [], dict(portion.failed))
            for file in refused:
                try:
                    whole.pictures.append(self.loader.pixels(file.row, file.place))
                except Exception as error:
                    whole.failed[file.place] = reason_of(self.loader.images.ids[file.row], error)
            return whole

        with ExitStack() as stack:
            for _ in range(DECODERS):
                decoders.put(stack.enter_context(borrowed_decoder(self.device)))
            decoded = by_threads(portions, decode, DECODERS, DECODERS, "nvjpeg")
            yield from stack.enter_context(closing(decoded))

    def _made(
        self, batches: Sequence[Rows], portions: Iterator[Loaded], stream: Stream
    ) -> Generator[tuple[Inputs, "torch.cuda.Event | None"]]:
        """Yield batches cut from portions that are resized, and when their inputs are there."""
        ids, pending, failed = self.loader.images.ids, list[_Inputs](), dict[int, str]()
        first = reached = 0
        for batch in batches:
            last = first + len(batch)
            with torch.inference_mode(), beside(stream):
                while reached < last:
                    portion = next(portions)
                    reached += len(portion)
                    pictures = [picture.on(self.device) for picture in portion.pictures]
                    if stream is not None:  # keep them until it has read them
                        for picture in pictures:
                            picture.values.record_stream(stream)
                    pending.append(self._inputs(pictures))
                    failed.update(portion.failed)
                values = self._cut(pending, first, last)
                ready = None if stream is None else stream.record_event()  # type: ignore[no-untyped-call]
            lost = [at for at in range(len(batch)) if first + at in failed]
            failures = [
                Failure(int(batch[at]), ids[int(batch[at])], failed.pop(first + at)) for at in lost
            ]
            yield Inputs(np.delete(batch, lost), values, failures), ready
            pending = [some for some in pending if some.places and some.places[-1] >= last]
            first = last

    def _inputs(self, pictures: list[Pictures]) -> _Inputs:
        """Return the inputs that pictures become; those of one size and type are made together."""
        if not pictures:
            return _Inputs([], self._none)
        groups: dict[tuple[object, ...], list[Pictures]] = {}
        for picture in pictures:
            values = picture.values
            kind = picture.resized, values.shape[1:], values.stride(-1), values.dtype
            groups.setdefault(kind, []).append(picture)
        places: list[int] = []
        parts: list[Tensor] = []
        for some in groups.values():
            places += [position for picture in some for position in picture.places]
            at_once = self._at_least(RESIZED_VALUES, RESIZED_SHARE)
            most = max(1, at_once // some[0].values[0].numel())
            for planes in _joined([picture.values for picture in some], most):
                sized = planes if some[0].resized else self.loader.transform.resize_planes(planes)
                parts.append(sized.to(self.loader.transform.dtype))
        values = parts[0] if len(parts) == 1 else torch.cat(parts)
        if places != sorted(places):
            values = values[to_device(torch.from_numpy(np.argsort(places)), self.device)]
        return _Inputs(sorted(places), values.contiguous(memory_format=torch.channels_last))

    @property
    def _none(self) -> Tensor:
        own, device = self.loader.transform, self.device
        return torch.empty((0, own.channels, own.size, own.size), dtype=own.dtype, device=device)

    def _cut(self, pending: list[_Inputs], first: int, last: int) -> Tensor:
        parts = [self._none]
        for places, values in pending:
            some = slice(bisect_left(places, first), bisect_left(places, last))
            parts += [values[some]] if some.start < some.stop else []
        return parts[-1] if len(parts) < 3 else torch.cat(parts[1:])


def _joined(pixels: list[Tensor], most: int) -> Iterator[Tensor]:
    """Yield planes (n, C, H, W) of pixels (n, H, W, C) of one size, at most so many at once.

    They keep the order in memory: of pixels as they are shared, of planes as nvJPEG makes them.
    """
    some: list[Tensor] = []
    count = 0
    for array in pixels:
        for at in range(0, len(array), most):
            block = array[at : at + most] if len(array) > most else array
            if count + len(block) > most:
                yield _planes(some)
                some, count = [], 0
            some.append(block)
            count += len(block)
    yield _planes(some)


def _planes(pixels: list[Tensor]) -> Tensor:
    if len(pixels) == 1:
        return pixels[0].permute(0, 3, 1, 2)
    if pixels[0].stride(-1) == 1:
        return torch.cat(pixels).permute(0, 3, 1, 2)
    return torch.cat([array.permute(0, 3, 1, 2) for array in pixels])
