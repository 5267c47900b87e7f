"""Batches of inputs that the device makes: it resizes pictures, and may decode them.

    chunks --a thread: join--> portions --threads: nvJPEG--> pixels --a thread: resize--> batches

A portion is as much as is well decoded or resized at once, whatever the size of a batch. Each
thread works on another portion, and decoding, resizing and the network have a stream each.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.ahead import by_threads, in_thread
from labelwise.pictures.gpu_decoder import GpuDecoder, beside, borrowed_decoder, new_stream
from labelwise.pictures.inputs import Failure, Inputs, sent
from labelwise.pictures.loading import Jpeg, Loaded, PictureLoader, Pictures
from labelwise.pictures.work import reason_of

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


@dataclass(frozen=True, eq=False)
class DeviceFeeder:
    """Makes inputs of what a loader sends to its device, in a stream beside the network's."""

    loader: PictureLoader

    @property
    def device(self) -> torch.device:
        """The device that the inputs are made on."""
        return self.loader.device

    def batches(
        self, batches: Sequence[NDArray[np.int64]], workers: int | None
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches of rows, some batches after they were started."""
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
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return max(values, memory // share)

    def _portions(
        self, chunks: Iterator[Loaded], stream: torch.cuda.Stream | None
    ) -> Generator[Loaded]:
        """Yield chunks joined to portions."""
        most = self._at_least(DECODED_VALUES, DECODED_SHARE)
        whole = Loaded()
        more = True
        while more:
            with beside(stream):  # which pixels are sent in
                chunk = next(chunks, None)
            if chunk is not None:
                whole.extend(chunk)
            more = chunk is not None
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
                self._decode_here(file, whole)
            return whole

        with ExitStack() as stack:
            for _ in range(DECODERS):
                decoders.put(stack.enter_context(borrowed_decoder(self.device)))
            decoded = by_threads(portions, decode, DECODERS, DECODERS, "nvjpeg")
            yield from stack.enter_context(closing(decoded))

    def _decode_here(self, file: Jpeg, decoded: Loaded) -> None:
        """Add a picture that the device does not take, or why nobody can decode it."""
        try:
            decoded.pictures.append(self.loader.pixels(file.row, file.place))
        except Exception as error:
            decoded.failed[file.place] = reason_of(self.loader.images.ids[file.row], error)

    def _made(
        self,
        batches: Sequence[NDArray[np.int64]],
        portions: Iterator[Loaded],
        stream: torch.cuda.Stream | None,
    ) -> Generator[tuple[Inputs, "torch.cuda.Event | None"]]:
        """Yield batches cut from portions that are resized, and when their inputs are there."""
        pending: list[_Inputs] = []
        failed: dict[int, str] = {}
        first = reached = 0
        for batch in batches:
            last = first + len(batch)
            with torch.inference_mode(), beside(stream):
                while reached < last:
                    portion = next(portions)
                    reached += len(portion)
                    pending.append(self._inputs(self._sent(portion.pictures, stream)))
                    failed.update(portion.failed)
                values = self._cut(pending, first, last)
                ready = None if stream is None else stream.record_event()  # type: ignore[no-untyped-call]
            yield self._batch(batch, first, values, failed), ready
            pending = [one for one in pending if one.places and one.places[-1] >= last]
            first = last

    def _sent(self, pictures: list[Pictures], stream: torch.cuda.Stream | None) -> list[Pictures]:
        """Return pictures on the device, kept there until the stream has read them."""
        pictures = [one.on(self.device) for one in pictures]
        if stream is not None:
            for one in pictures:
                one.values.record_stream(stream)
        return pictures

    def _batch(
        self, rows: NDArray[np.int64], first: int, values: Tensor, failed: dict[int, str]
    ) -> Inputs:
        """Return the inputs of rows, of which some may have failed."""
        ids = self.loader.images.ids
        lost = [place for place in range(len(rows)) if first + place in failed]
        failures = [
            Failure(int(rows[place]), ids[int(rows[place])], failed.pop(first + place))
            for place in lost
        ]
        return Inputs(np.delete(rows, lost), values, failures)

    def _resized(self, pictures: list[Pictures]) -> Pictures:
        """Return pictures in size and numbers of the input; those that are alike together."""
        groups: dict[tuple[object, ...], list[Pictures]] = {}
        for one in pictures:
            kind = one.resized, one.values.shape[1:], one.values.stride(-1), one.values.dtype
            groups.setdefault(kind, []).append(one)
        places: list[int] = []
        parts: list[Tensor] = []
        for some in groups.values():
            places += [place for one in some for place in one.places]
            most = max(
                1, self._at_least(RESIZED_VALUES, RESIZED_SHARE) // some[0].values[0].numel()
            )
            for planes in _joined([one.values for one in some], most):
                sized = planes if some[0].resized else self.loader.planes.resize_planes(planes)
                parts.append(sized.to(self.loader.transform.dtype))
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Pictures(places, whole.permute(0, 2, 3, 1), True)

    def _inputs(self, pictures: list[Pictures]) -> _Inputs:
        """Return the pixels of pictures as inputs."""
        if not pictures:
            return _Inputs([], self._none)
        whole = self._resized(pictures)
        values = whole.values.permute(0, 3, 1, 2)
        if whole.places != sorted(whole.places):
            back = torch.from_numpy(np.argsort(whole.places))
            back = back.pin_memory() if self.device.type == "cuda" else back
            values = values[sent(back, self.device)]
        values = values.contiguous(memory_format=torch.channels_last)
        return _Inputs(sorted(whole.places), values)

    @property
    def _none(self) -> Tensor:
        """The inputs of no pictures."""
        own = self.loader.transform
        shape = 0, own.channels, own.size, own.size
        return torch.empty(shape, dtype=own.dtype, device=self.device)

    def _cut(self, pending: list[_Inputs], first: int, last: int) -> Tensor:
        """Return the inputs from one place to another."""
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
