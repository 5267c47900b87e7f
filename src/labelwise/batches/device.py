"""Batches whose pictures processes, threads or the device decode, and the device resizes.

    chunks --a thread: join--> portions --a thread: nvJPEG--> planes --a thread: resize--> batches

A portion is as much as is well decoded or resized at once, whatever the size of a batch. Each
thread works on another portion; nvJPEG, resizing and the network have a stream each.
"""

import os
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from labelwise.backbones import Transform
from labelwise.batches.inputs import (
    CHUNK,
    Failure,
    Inputs,
    PlanesResizer,
    Resizer,
    available_cores,
    sent,
)
from labelwise.data import ImageSource
from labelwise.data.ahead import in_thread, started_ahead
from labelwise.data.decode import MAX_PIXELS
from labelwise.data.jpeg import plain_header, turned
from labelwise.decoding import (
    NAME,
    SLOT_BYTES,
    DecodedChunk,
    DecodingProcesses,
    Entry,
    Kind,
    Work,
    borrowed_processes,
    items_ahead,
    reason_of,
)

__all__ = ["DeviceFeeder", "decode_on_gpu"]

PORTION = 256  # pictures that are decoded and resized together, or
DECODED_VALUES = 1 << 28  # values of theirs, or as much as is given to nvJPEG at once, or
DECODED_SHARE = 64  # one part in so many of a GPU's memory, for there are several at a time
RESIZED_VALUES = 1 << 26  # that are resized at once, or
RESIZED_SHARE = 512  # one part in so many of a GPU's memory
PORTIONS_AHEAD = 2  # joined, and decoded, before they are asked for
BATCHES_AHEAD = 2
CHUNKS_AHEAD = 2  # batches whose chunks threads have begun
CHUNK_OF_FILES = 64  # that are read, but not decoded: fewer turns of Python's lock
MAX_SENT = 1 << 24  # bytes of a picture that is sent to a GPU as it is; larger are resized before


class _Run(NamedTuple):
    """Pictures of one size, one after the other: their places, and pixels (n, H, W, 3).

    ``resized`` ones have the size of the input.
    """

    places: list[int]
    values: Tensor
    resized: bool


class _File(NamedTuple):
    """A JPEG for the device's decoder, and how the picture has to be turned."""

    place: int
    content: Tensor
    orientation: int
    values: int  # of the decoded picture


class _Planes(NamedTuple):
    """A picture as the device's decoder made it, (3, H, W); None if it did not take it."""

    place: int
    values: Tensor | None
    orientation: int


@dataclass(frozen=True, eq=False)
class _Loaded:
    """What is loaded of some rows one after the other, in no order; reasons by place."""

    runs: list[_Run] = field(default_factory=list)
    files: list[_File] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    planes: list[_Planes] = field(default_factory=list)  # in place of files, once decoded
    decoded: "torch.cuda.Event | None" = None  # when planes are there

    def __len__(self) -> int:
        pictures = sum(len(run.places) for run in self.runs)
        return pictures + len(self.files) + len(self.planes) + len(self.failed)

    @property
    def values(self) -> int:
        """The size of all pictures on the device."""
        pixels = sum(run.values.numel() for run in self.runs)
        return pixels + sum(file.values for file in self.files)

    def extend(self, other: "_Loaded") -> None:
        """Add what is loaded of the next rows."""
        self.runs.extend(other.runs)
        self.files.extend(other.files)
        self.failed.update(other.failed)


class _Part(NamedTuple):
    """Rows that are loaded together, and the place of the first among all rows."""

    rows: list[int]
    first: int


class _Resized(NamedTuple):
    """Inputs (n, 3, size, size) in channels-last memory, in the order of their places."""

    places: list[int]
    values: Tensor


@dataclass(frozen=True, eq=False)
class DeviceFeeder:
    """Sends pictures to a device and resizes them there, in a stream beside the network's.

    ``processes`` read and decode the files, which takes them a while to start; otherwise, and
    where pictures are not files, threads do.
    """

    images: ImageSource
    transform: Resizer
    planes: PlanesResizer
    device: torch.device
    decodes: bool  # on the device
    processes: bool = False

    def batches(
        self, batches: Sequence[NDArray[np.int64]], workers: int | None
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches of rows, some batches after they were started."""
        if not batches:
            return
        workers = workers or available_cores()
        rows = np.concatenate(batches)
        longest = max(map(len, batches))
        chunk = max(1, min(CHUNK, longest // workers))
        work = self._work() if self.processes else None
        with ExitStack() as stack:
            lent = stack.enter_context(borrowed_processes(workers)) if work is not None else None
            if work is not None and lent is not None:
                most = self._files_of_a_slot(batches) if self.decodes else CHUNK
                chunk = min(most, work.most_items)
            firsts = range(0, len(rows), chunk)
            parts = [_Part(rows[at : at + chunk].tolist(), at) for at in firsts]
            if work is not None and lent is not None:
                chunks = self._by_processes(lent, work, parts, workers)
            else:
                chunks = self._by_threads(parts, workers, ceil(longest / chunk))
            stack.callback(chunks.close)
            yield from self._fed(batches, rows, chunks)

    def _fed(
        self,
        batches: Sequence[NDArray[np.int64]],
        rows: NDArray[np.int64],
        chunks: Iterator[_Loaded],
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches, which three threads make of chunks."""
        stream, decoding = self._new_stream(), self._new_stream()
        with ExitStack() as stack:
            portions = in_thread(self._portions(chunks, stream), PORTIONS_AHEAD, "join")
            stack.enter_context(closing(portions))
            if self.decodes:
                planes = (self._decoded(portion, decoding) for portion in portions)
                portions = in_thread(planes, PORTIONS_AHEAD, "decode")
                stack.enter_context(closing(portions))
            made = in_thread(self._made(batches, rows, portions, stream), BATCHES_AHEAD, "feed")
            for inputs, ready in stack.enter_context(closing(made)):
                if ready is not None:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(ready)
                    inputs.values.record_stream(current)
                yield inputs

    def _new_stream(self) -> torch.cuda.Stream | None:
        if self.device.type != "cuda":
            return None
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def _at_least(self, values: int, share: int) -> int:
        """Return so many values, or more where the device has the memory for them."""
        if self.device.type != "cuda":
            return values
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return max(values, memory // share)

    def _portions(
        self, chunks: Iterator[_Loaded], stream: torch.cuda.Stream | None
    ) -> Generator[_Loaded]:
        """Yield chunks joined to portions."""
        most = self._at_least(DECODED_VALUES, DECODED_SHARE)
        whole = _Loaded()
        more = True
        while more:
            with _beside(stream):  # which pixels are sent in
                chunk = next(chunks, None)
            if chunk is not None:
                whole.extend(chunk)
            more = chunk is not None
            if len(whole) and (len(whole) >= PORTION or whole.values >= most or not more):
                yield whole
                whole = _Loaded()

    def _decoded(self, portion: _Loaded, stream: torch.cuda.Stream | None) -> _Loaded:
        """Let the device decode the files of a portion."""
        if not portion.files:
            return portion
        with _beside(stream):
            found = self._by_device([file.content for file in portion.files])
            ready = _recorded(stream)
        planes = [
            _Planes(file.place, values, file.orientation)
            for file, values in zip(portion.files, found, strict=True)
        ]
        return replace(portion, files=[], planes=planes, decoded=ready)

    def _made(
        self,
        batches: Sequence[NDArray[np.int64]],
        rows: NDArray[np.int64],
        portions: Iterator[_Loaded],
        stream: torch.cuda.Stream | None,
    ) -> Generator[tuple[Inputs, "torch.cuda.Event | None"]]:
        """Yield the inputs of batches, cut from portions that are resized.

        nvJPEG writes over planes that are freed without waiting for this stream. So those of a
        portion are kept until they have been copied.
        """
        pending: list[_Resized] = []
        failed: dict[int, str] = {}
        kept: tuple[_Loaded, torch.cuda.Event | None] = _Loaded(), None
        first = reached = 0
        try:
            for batch in batches:
                last = first + len(batch)
                while reached < last:
                    portion = next(portions)
                    reached += len(portion)
                    resized, copied = self._resized_portion(portion, rows, stream)
                    pending.append(resized)
                    failed.update(portion.failed)
                    _await(kept[1])
                    kept = portion, copied
                with torch.inference_mode(), _beside(stream):
                    values = self._cut(pending, first, last)
                    ready = _recorded(stream)
                lost = [place for place in range(first, last) if place in failed]
                failures = [
                    Failure(int(rows[place]), self.images.ids[int(rows[place])], failed.pop(place))
                    for place in lost
                ]
                left = np.delete(batch, [place - first for place in lost])
                yield Inputs(left, values, failures), ready
                pending = [one for one in pending if one.places and one.places[-1] >= last]
                first = last
        finally:
            _await(kept[1])

    # Files and pixels by threads

    def _by_threads(self, parts: list[_Part], threads: int, of_a_batch: int) -> Generator[_Loaded]:
        """Yield what is loaded of the parts, in their order."""
        pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        ahead = max(CHUNKS_AHEAD * of_a_batch, 2 * threads)
        try:
            for future in started_ahead(parts, lambda part: pool.submit(self._load, part), ahead):
                loaded = future.result()
                runs = [run._replace(values=sent(run.values, self.device)) for run in loaded.runs]
                yield replace(loaded, runs=runs)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _load(self, part: _Part) -> _Loaded:
        """Return pixels on the host, and files for the device."""
        loaded = _Loaded()
        for place, row in enumerate(part.rows, part.first):
            try:
                file = self._file_for_device(row, place) if self.decodes else None
                if file is not None:
                    loaded.files.append(file)
                else:
                    loaded.runs.append(self._pixels(row, place))
            except Exception as error:
                loaded.failed[place] = reason_of(self.images.ids[row], error)
        return loaded

    def _file_for_device(self, row: int, place: int) -> _File | None:
        content = self.images.encoded(row)
        header = None if content is None else plain_header(content)
        if content is None or header is None or header.layers != 3:
            return None
        sides = header.width, header.height
        if sides[0] * sides[1] > MAX_PIXELS or not self.planes.resizes_planes(*sides):
            return None
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return _File(place, data, header.orientation, 3 * sides[0] * sides[1])

    def _pixels(self, row: int, place: int) -> _Run:
        """Return the pixels of one picture on the host."""
        pixels = self.images.read_pixels(row, self.transform.at_least)
        height, width = pixels.shape[:2]
        resized = pixels.nbytes > MAX_SENT or not self.planes.resizes_planes(width, height)
        if resized:
            pixels = np.asarray(self.transform.resize(Image.fromarray(pixels)))
        pinned = self.device.type == "cuda"
        host = torch.empty((1, *pixels.shape), dtype=torch.uint8, pin_memory=pinned)
        host.numpy()[0] = pixels
        return _Run([place], host, resized)

    # Files and pixels by processes

    def _work(self) -> Work | None:
        """Return what processes can do of this, if they can do it."""
        if not isinstance(self.transform, Transform) or not self.images.all_encoded:
            return None
        work = Work(Kind.JPEG if self.decodes else Kind.PIXELS, self.transform)
        return work if work.most_items else None

    def _files_of_a_slot(self, batches: Sequence[NDArray[np.int64]]) -> int:
        """Return how many files fit into a slot, by the largest of some of them."""
        rows = [int(rows[0]) for rows in batches[:16] if len(rows)]
        sizes = [0]
        for place in self.images.locations(rows):
            if place is None:
                return CHUNK
            with suppress(OSError, ValueError):  # its own failure, in time
                sizes.append(os.stat(place.path).st_size if place.size is None else place.size)
        return max(1, min(CHUNK_OF_FILES, SLOT_BYTES // (max(sizes) + 1)))

    def _by_processes(
        self, processes: DecodingProcesses, work: Work, parts: list[_Part], threads: int
    ) -> Generator[_Loaded]:
        """Yield what is loaded of the parts, in their order."""
        if self.device.type == "cuda":
            processes.pin()
        with ExitStack() as stack:
            rows = [part.rows for part in parts]
            items = stack.enter_context(closing(items_ahead(self.images, rows, threads)))
            chunks = stack.enter_context(closing(processes.run(work, items)))
            for part, chunk in zip(parts, chunks, strict=True):
                yield self._taken(part, chunk)

    def _taken(self, part: _Part, chunk: DecodedChunk) -> _Loaded:
        """Copy a chunk out of the shared memory: pixels to the device, files on the host."""
        on_gpu, used = self.device.type == "cuda", chunk.used
        if self.decodes:  # pinned memory is kept and used again, whose pages are there already
            values = torch.empty(len(used), dtype=torch.uint8, pin_memory=on_gpu).copy_(used)
        else:
            values = used.to(self.device, non_blocking=on_gpu, copy=True)
            if on_gpu:
                stream = torch.cuda.current_stream(self.device)
                chunk.copied = stream.record_event()  # type: ignore[no-untyped-call]
        loaded, side = _Loaded(), self.transform.size
        reached = part.first
        for (kind, height, width), run in groupby(chunk.entries, key=_kind_and_sides):
            some: list[Any] = list(run)
            places = range(reached, reached + len(some))
            reached = places.stop
            if kind == FAILED:
                for place, reason in zip(places, some, strict=True):
                    name = self.images.shown_name(part.rows[place - part.first])
                    loaded.failed[place] = reason.replace(NAME, name)
                continue
            first, last = some[0], some[-1]
            bytes_of = values[first.offset : last.offset + last.size]
            if kind == Kind.JPEG:
                contents = bytes_of.split_with_sizes([one.size for one in some])
                turns = [one.orientation for one in some]
                sizes = [3 * one.height * one.width for one in some]
                loaded.files.extend(map(_File, places, contents, turns, sizes))
                continue
            resized = kind == Kind.RESIZED
            shape = (side, side, 3) if resized else (height, width, 3)
            pixels = sent(bytes_of, self.device).view(-1, *shape)
            loaded.runs.append(_Run(list(places), pixels, resized))
        return loaded

    # On the device

    def _resized_portion(
        self, portion: _Loaded, rows: NDArray[np.int64], stream: torch.cuda.Stream | None
    ) -> tuple[_Resized, "torch.cuda.Event | None"]:
        """Return the inputs of a portion, and when its planes are not needed any more."""
        copied = None
        with torch.inference_mode(), _beside(stream):
            runs = list(portion.runs)
            if portion.planes:
                if stream is not None and portion.decoded is not None:
                    stream.wait_event(portion.decoded)
                runs += self._runs_of_planes(portion, rows)
                copied = _recorded(stream)
            return self._inputs(runs), copied

    def _runs_of_planes(self, portion: _Loaded, rows: NDArray[np.int64]) -> list[_Run]:
        """Return the pixels of planes; what the device did not take is decoded here, or failed."""
        runs = []
        sizes: dict[tuple[int, ...], tuple[list[int], list[Tensor]]] = {}
        for place, planes, orientation in portion.planes:
            if planes is not None:
                upright = planes if orientation == 1 else _upright(planes, orientation)
                places, same = sizes.setdefault(upright.shape, ([], []))
                places.append(place)
                same.append(upright)
                continue
            row = int(rows[place])
            try:
                run = self._pixels(row, place)
                runs.append(run._replace(values=sent(run.values, self.device)))
            except Exception as error:
                portion.failed[place] = reason_of(self.images.ids[row], error)
        for places, same in sizes.values():
            runs.append(_Run(places, torch.stack(same).permute(0, 2, 3, 1), False))
        return runs

    def _by_device(self, contents: list[Tensor]) -> list[Tensor | None]:
        """Return planes, None for a picture that the device does not take.

        One such picture spoils all that are decoded with it, which are then decoded by halves.
        """
        try:
            return [*decode_on_gpu(contents, self.device)]
        except RuntimeError:
            half = len(contents) // 2
            if not half:
                return [None]
            return self._by_device(contents[:half]) + self._by_device(contents[half:])

    def _resized(self, runs: list[_Run]) -> _Run:
        """Return the pixels of runs in the size of the input; equal sizes together."""
        groups: dict[tuple[object, ...], list[_Run]] = {}
        for run in runs:
            kind = run.resized, run.values.shape[1:], run.values.stride(-1)
            groups.setdefault(kind, []).append(run)
        places: list[int] = []
        parts: list[Tensor] = []
        for some in groups.values():
            places += [place for run in some for place in run.places]
            most = max(
                1, self._at_least(RESIZED_VALUES, RESIZED_SHARE) // some[0].values[0].numel()
            )
            for planes in _joined([run.values for run in some], most):
                parts.append(planes if some[0].resized else self.planes.resize_planes(planes))
        return _Run(places, torch.cat(parts).permute(0, 2, 3, 1), True)

    def _inputs(self, runs: list[_Run]) -> _Resized:
        """Return the pixels of runs as inputs."""
        side = self.transform.size
        if not runs:
            return _Resized(
                [], torch.empty((0, 3, side, side), dtype=torch.uint8, device=self.device)
            )
        whole = self._resized(runs)
        values = whole.values.permute(0, 3, 1, 2)
        if whole.places != sorted(whole.places):
            back = torch.from_numpy(np.argsort(whole.places))
            back = back.pin_memory() if self.device.type == "cuda" else back
            values = values[sent(back, self.device)]
        values = values.contiguous(memory_format=torch.channels_last)
        return _Resized(sorted(whole.places), values)

    def _cut(self, pending: list[_Resized], first: int, last: int) -> Tensor:
        """Return the inputs from one place to another."""
        side = self.transform.size
        parts = [torch.empty((0, 3, side, side), dtype=torch.uint8, device=self.device)]
        for places, values in pending:
            some = slice(bisect_left(places, first), bisect_left(places, last))
            parts += [values[some]] if some.start < some.stop else []
        return parts[-1] if len(parts) < 3 else torch.cat(parts[1:])


def _beside(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _recorded(stream: torch.cuda.Stream | None) -> "torch.cuda.Event | None":
    return None if stream is None else stream.record_event()  # type: ignore[no-untyped-call]


def _await(event: "torch.cuda.Event | None") -> None:
    if event is not None:
        event.synchronize()


FAILED = -1


def _kind_and_sides(entry: Entry | str) -> tuple[int, int, int]:
    if isinstance(entry, str):
        return FAILED, 0, 0
    if entry.kind == Kind.PIXELS:
        return entry.kind, entry.height, entry.width
    return entry.kind, 0, 0


def _joined(pixels: list[Tensor], most: int) -> Iterator[Tensor]:
    """Yield planes (n, 3, H, W) of pixels (n, H, W, 3) of one size, at most so many at once.

    They keep the order in memory: of pixels as they are shared, of planes as nvJPEG makes them.
    """
    some: list[Tensor] = []
    count = 0
    for one in pixels:
        for at in range(0, len(one), most):
            part = one[at : at + most] if len(one) > most else one
            if count + len(part) > most:
                yield _planes(some)
                some, count = [], 0
            some.append(part)
            count += len(part)
    yield _planes(some)


def _planes(pixels: list[Tensor]) -> Tensor:
    if len(pixels) == 1:
        return pixels[0].permute(0, 3, 1, 2)
    if pixels[0].stride(-1) == 1:
        return torch.cat(pixels).permute(0, 3, 1, 2)
    return torch.cat([one.permute(0, 3, 1, 2) for one in pixels])


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
