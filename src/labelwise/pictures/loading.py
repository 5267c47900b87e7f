"""Rows of a source to chunks of pixels and files, by threads or by processes, in order.

A chunk comes with its pixels on the device and its JPEGs, if the device is to decode them, on the
host. What cannot be read is in it with a reason.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.pictures.inputs import Failure, input_array
from labelwise.pictures.prefetch import available_cores, by_threads
from labelwise.pictures.processes import (
    DecodedChunk,
    DecodingProcesses,
    borrowed_processes,
    items_ahead,
)
from labelwise.pictures.sources import ImageSource, Rows
from labelwise.pictures.transform import Bands, Transform
from labelwise.pictures.worker import NAME, SLOT_BYTES, Entry, Kind, Work, reason_of

CHUNK = 8  # images that a thread or process takes at once

Decode = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a batch, for the rows that could be read, and the failures."""

    rows: Rows
    values: Tensor
    failures: list[Failure] = field(default_factory=list)


# Reads pictures for a network, where its process does not do it by itself: from images, a
# transform, batches of rows and ``device`` to the inputs of these batches, in order.
PictureReader = Callable[..., Generator[Inputs]]


def input_of(images: ImageSource, row: int, transform: Transform) -> Tensor:
    """Return the input (C, size, size) of one image, before it is normalised."""
    return torch.from_numpy(input_array(images, row, transform))


def decodes_on_gpu(decode: Decode, device: torch.device, bands: Bands | None = None) -> bool:
    """Return whether JPEGs are decoded by a GPU; refuse what cannot be had."""
    if decode == "cuda" and bands is not None:
        raise SettingsError("decode=cuda is for JPEGs, and this model takes bands; leave it out")
    if decode not in ("auto", "cpu", "cuda"):
        raise ValueError(f"decode must be auto, cpu or cuda, got {decode!r}")
    if decode == "cuda" and device.type != "cuda":
        raise ValueError(f"decode=cuda needs a model on a CUDA device; this one is on {device}")
    return decode != "cpu" and device.type == "cuda" and bands is None


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; on a GPU perhaps before they are there."""
    return values.to(device, non_blocking=device.type == "cuda")


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return the values on the device; a copy to a GPU is not waited for."""
    pins = device.type == "cuda" and not values.is_pinned()
    return sent(values.pin_memory() if pins else values, device)


FAILED = -1  # the kind of an entry that is a reason
CHUNKS_AHEAD = 2  # batches whose chunks threads have begun
CHUNK_OF_CUBES = 16  # that are read, and hardly computed with
CHUNK_OF_FILES = 64  # that are read, but not decoded: fewer turns of Python's lock
MAX_SENT = 1 << 24  # bytes of a picture that is sent to a GPU as it is; larger are resized before


class Pictures(NamedTuple):
    """Pictures of one size: their places among all rows, and pixels or bands (n, H, W, C)."""

    places: list[int]
    values: Tensor
    resized: bool = False

    def on(self, device: torch.device) -> "Pictures":
        return self._replace(values=sent(self.values, device))


class Jpeg(NamedTuple):
    """A file for the device's decoder: its bytes, and what its header says of it."""

    row: int
    place: int
    content: Tensor
    header: Entry


@dataclass(frozen=True, eq=False)
class Loaded:
    """Some rows one after the other: pictures and files in any order, reasons by place."""

    pictures: list[Pictures] = field(default_factory=list)
    files: list[Jpeg] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        decoded = sum(len(picture.places) for picture in self.pictures)
        return decoded + len(self.files) + len(self.failed)

    @property
    def values(self) -> int:
        """The size of all pictures, once they are decoded."""
        pixels = sum(picture.values.numel() for picture in self.pictures)
        return pixels + sum(3 * file.header.height * file.header.width for file in self.files)


class _Part(NamedTuple):
    """Rows that are loaded together, and the place of the first among all rows."""

    rows: list[int]
    first: int


@dataclass(frozen=True, eq=False)
class PictureLoader:
    """Loads pictures for a device, which decodes JPEGs if ``decodes``, and resizes."""

    images: ImageSource
    transform: Transform
    device: torch.device
    decodes: bool
    processes: bool = False

    @contextmanager
    def chunks(self, batches: Sequence[Rows], workers: int | None) -> Generator[Generator[Loaded]]:
        """Lend the chunks of all rows, whose pixels are sent in the current stream of the taker."""
        workers = workers or available_cores()
        rows = np.concatenate(batches)
        longest = max(map(len, batches))
        chunk = max(1, min(CHUNK, longest // workers))
        work = Work(Kind.JPEG if self.decodes else Kind.PIXELS, self.transform)
        with ExitStack() as stack:
            lent = None
            if self.processes and work.fits(self.images):
                lent = stack.enter_context(borrowed_processes(workers))
            if lent is not None:
                most = self.files_of_a_slot(batches) if self.decodes else CHUNK
                most = most if self.transform.bands is None else CHUNK_OF_CUBES
                chunk = min(most, work.most_items)
            parts = [_Part(rows[at : at + chunk].tolist(), at) for at in range(0, len(rows), chunk)]
            if lent is not None:
                chunks = self._by_processes(lent, work, parts, workers)
            else:
                ahead = max(CHUNKS_AHEAD * ceil(longest / chunk), 2 * workers)
                chunks = self._by_threads(parts, workers, ahead)
            yield stack.enter_context(closing(chunks))

    def pixels(self, row: int, place: int) -> Pictures:
        """Return one picture, decoded here, in memory that the device can read."""
        kind = Kind.PIXELS if self.transform.bands is None else Kind.RESIZED
        entry, values = Work(kind, self.transform).load(self.images, row, room=MAX_SENT)
        return self._on_host(entry, values, place)

    def _on_host(self, entry: Entry, values: NDArray[Any], place: int) -> Pictures:
        pinned = self.device.type == "cuda"
        host = torch.empty((1, *values.shape), dtype=self.transform.dtype, pin_memory=pinned)
        host.numpy()[0] = values
        return Pictures([place], host, entry.kind == Kind.RESIZED)

    def _by_threads(self, parts: list[_Part], threads: int, ahead: int) -> Generator[Loaded]:
        with closing(by_threads(parts, self._load, threads, ahead, "decode")) as chunks:
            for loaded in chunks:
                pictures = [picture.on(self.device) for picture in loaded.pictures]
                yield replace(loaded, pictures=pictures)

    def _load(self, part: _Part) -> Loaded:
        loaded = Loaded()
        for position, row in enumerate(part.rows, part.first):
            try:
                if not self.decodes:
                    loaded.pictures.append(self.pixels(row, position))
                    continue
                work = Work(Kind.JPEG, self.transform)
                entry, values = work.load(self.images, row, room=MAX_SENT)
                if entry.kind == Kind.JPEG:
                    loaded.files.append(Jpeg(row, position, torch.from_numpy(values.copy()), entry))
                else:
                    loaded.pictures.append(self._on_host(entry, values, position))
            except Exception as error:
                loaded.failed[position] = reason_of(self.images.ids[row], error)
        return loaded

    def files_of_a_slot(self, batches: Sequence[Rows]) -> int:
        sizes = [0]
        for location in self.images.locations([int(rows[0]) for rows in batches[:16] if len(rows)]):
            if location is None:
                return CHUNK
            with suppress(OSError, ValueError):  # its own failure, in time
                size = location.size
                sizes.append(os.stat(location.path).st_size if size is None else size)
        return max(1, min(CHUNK_OF_FILES, SLOT_BYTES // (max(sizes) + 1)))

    def _by_processes(
        self, processes: DecodingProcesses, work: Work, parts: list[_Part], threads: int
    ) -> Generator[Loaded]:
        if self.device.type == "cuda":
            processes.pin()
        with ExitStack() as stack:
            rows = [part.rows for part in parts]
            items = stack.enter_context(closing(items_ahead(self.images, rows, threads)))
            chunks = stack.enter_context(closing(processes.run(work, items)))
            for part, chunk in zip(parts, chunks, strict=True):  # to the end: it waits for copies
                yield self._taken(part, chunk)

    def _taken(self, part: _Part, chunk: DecodedChunk) -> Loaded:
        """Copy a chunk out of the shared memory: pixels to the device, files on the host."""
        on_gpu, used = self.device.type == "cuda", chunk.used
        if self.decodes:  # pinned memory is kept and used again, whose pages are there already
            values = torch.empty(len(used), dtype=torch.uint8, pin_memory=on_gpu).copy_(used)
        else:
            values = used.to(self.device, non_blocking=on_gpu, copy=True)
            if on_gpu:
                stream = torch.cuda.current_stream(self.device)
                chunk.copied = stream.record_event()  # type: ignore[no-untyped-call]
        loaded, side = Loaded(), self.transform.size
        reached = part.first
        for (kind, height, width, dtype), run in groupby(chunk.entries, key=_kind_and_sides):
            some: list[Any] = list(run)
            places = range(reached, reached + len(some))
            reached = places.stop
            if kind == FAILED:
                for position, reason in zip(places, some, strict=True):
                    name = self.images.shown_name(part.rows[position - part.first])
                    loaded.failed[position] = reason.replace(NAME, name)
                continue
            first, last = some[0], some[-1]
            bytes_of = values[first.offset : last.offset + last.size]
            if kind == Kind.JPEG:
                contents = bytes_of.split_with_sizes([file.size for file in some])
                rows = part.rows[places.start - part.first : places.stop - part.first]
                loaded.files.extend(map(Jpeg, rows, places, contents, some))
                continue
            resized = kind == Kind.RESIZED or self.transform.bands is not None
            sides = (side, side) if resized else (height, width)
            pixels = sent(bytes_of, self.device).view(getattr(torch, dtype))
            pixels = pixels.view(-1, *sides, self.transform.channels)
            loaded.pictures.append(Pictures(list(places), pixels, resized))
        return loaded


def _kind_and_sides(entry: Entry | str) -> tuple[int, int, int, str]:
    if isinstance(entry, str):
        return FAILED, 0, 0, ""
    if entry.kind == Kind.PIXELS:
        return entry.kind, entry.height, entry.width, entry.dtype
    return entry.kind, 0, 0, entry.dtype
