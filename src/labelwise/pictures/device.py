"""Batches of inputs that the device makes: it resizes pictures, and may decode them.

    chunks --a thread: join--> portions --threads: nvJPEG--> pixels --a thread: resize--> batches

A portion is as much as is well decoded or resized at once, whatever the size of a batch. Each
thread works on another portion, and decoding, resizing and the network have a stream each.
"""

import ctypes
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.decode import operators_library, turned
from labelwise.pictures.loading import Failure, Inputs, Jpeg, Loaded, PictureLoader, Pictures, sent
from labelwise.pictures.prefetch import by_threads, in_thread
from labelwise.pictures.worker import reason_of

# torchvision calls nvJPEG too, but keeps one decoder behind a lock and allocates each alone.
# Several :class:`HardwareDecoder` can work at once, with torchvision's copy of the library.

HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE
RGB = 3  # NVJPEG_OUTPUT_RGB: three planes
CHANNELS = 4  # NVJPEG_MAX_COMPONENT

POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int
SIGNATURES: dict[str, list[Any]] = {
    "nvjpegCreateEx": [NUMBER, POINTER, POINTER, ctypes.c_uint, POINTER],
    "nvjpegJpegStateCreate": [POINTER, POINTER],
    "nvjpegDecodeBatchedInitialize": [POINTER, POINTER, NUMBER, NUMBER, NUMBER],
    "nvjpegDecodeBatched": [POINTER, POINTER, POINTER, POINTER, POINTER, POINTER],
}


class EqualSizes(NamedTuple):
    """JPEGs on the host, uint8 (bytes,) each, of pictures with equal sides."""

    contents: list[Tensor]
    height: int
    width: int


class HardwareDecoder:
    """A decoder on a GPU's JPEG engines; one thread at a time may use it."""

    def __init__(self, functions: dict[str, Any], device: torch.device):
        self._functions = functions
        self._device = device
        self._state = POINTER()
        self._batch = 0
        with torch.cuda.device(device):
            self._handle = _handle(device)
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(self, groups: Sequence[EqualSizes]) -> list[Tensor]:
        planes = [
            torch.empty((len(contents), 3, height, width), dtype=torch.uint8, device=self._device)
            for contents, height, width in groups
        ]
        contents = [content for group in groups for content in group.contents]
        data = np.array([content.data_ptr() for content in contents], np.uint64)
        lengths = np.array([content.numel() for content in contents], np.uint64)
        places = np.concatenate([_places(plane) for plane in planes])
        with torch.cuda.device(self._device):
            if len(contents) != self._batch:
                self._batch = 0
                given = len(contents), 1, RGB
                self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, *given)
                self._batch = len(contents)
            arrays = (array.ctypes.data for array in (data, lengths, places))
            stream = torch.cuda.current_stream(self._device).cuda_stream
            self._call("nvjpegDecodeBatched", self._handle, self._state, *arrays, stream)
        return planes

    def _call(self, name: str, *given: object) -> None:
        _check(name, self._functions[name](*given))


def hardware_decoder(device: torch.device) -> HardwareDecoder | None:
    """Return a new decoder, or None where there are no engines for it."""
    functions = _functions()
    if device.type != "cuda" or functions is None:
        return None
    try:
        return HardwareDecoder(functions, device)
    except RuntimeError:
        return None


@cache
def _handle(device: torch.device) -> ctypes.c_void_p:
    handle = POINTER()
    functions = _functions() or {}
    given = HARDWARE, None, None, 0, ctypes.byref(handle)
    _check("nvjpegCreateEx", functions["nvjpegCreateEx"](*given))
    return handle


def _check(name: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{name} answered {status}")


def _places(planes: Tensor) -> NDArray[np.uint64]:
    """Return an nvjpegImage_t for each picture: four pointers to planes, then their pitches."""
    count, _, height, width = planes.shape
    images = np.zeros((count, 2 * CHANNELS), np.uint64)
    steps = np.arange(3 * count, dtype=np.uint64).reshape(count, 3)
    images[:, :3] = planes.data_ptr() + steps * np.uint64(height * width)
    images[:, CHANNELS : CHANNELS + 3] = width
    return images


@cache
def _functions() -> dict[str, Any] | None:
    path = operators_library()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
        functions = {name: getattr(library, name) for name in SIGNATURES}
    except (AttributeError, OSError):
        return None
    for name, function in functions.items():
        function.argtypes = SIGNATURES[name]
    return functions


class GpuDecoder:
    """Decodes JPEGs in a stream of its own; one thread at a time may use it."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = new_stream(device, urgent=True)
        self._hardware = hardware_decoder(device)

    def decode(self, files: Sequence[Jpeg]) -> tuple[list[Pictures], list[Jpeg]]:
        """Return upright pictures, there already, and the files that the GPU does not take."""
        pictures: list[Pictures] = []
        left = list(files)
        with torch.inference_mode(), beside(self._stream):
            if self._hardware is not None:
                usual = [file for file in files if file.header.usual_coding]
                pictures, refused = _by_halves(self._hardware.decode, usual)
                left = [file for file in files if not file.header.usual_coding] + refused
            others, refused = _by_halves(self._decode_by_torchvision, left)
            if self._stream is not None:
                self._stream.synchronize()
        return pictures + others, refused

    def _decode_by_torchvision(self, groups: Sequence[EqualSizes]) -> list[Tensor]:
        decoded = decode_by_torchvision(
            [content for group in groups for content in group.contents], self._device
        )
        planes, reached = [], 0
        for group in groups:
            last = reached + len(group.contents)
            planes.append(torch.stack(decoded[reached:last]))
            reached = last
        if self._stream is not None:
            # torchvision decodes in a stream of its own, which does not wait for whoever still
            # reads a picture whose memory it is given anew: copy before these are freed
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


def new_stream(device: torch.device, *, urgent: bool = False) -> torch.cuda.Stream | None:
    """Return a stream of a GPU, whose work comes before that of others if it is urgent."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-int(urgent))  # type: ignore[no-untyped-call]


def beside(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Make a stream the current one; without one, do nothing."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _by_halves(
    decode: Callable[[Sequence[EqualSizes]], list[Tensor]], files: list[Jpeg]
) -> tuple[list[Pictures], list[Jpeg]]:
    """Return upright pictures, and the files that fail: they spoil the batch, so halve it."""
    if not files:
        return [], []
    groups: dict[tuple[int, int, int], list[Jpeg]] = {}
    for file in files:
        sides = file.header.height, file.header.width, file.header.orientation
        groups.setdefault(sides, []).append(file)
    equal = [
        EqualSizes([file.content for file in some], height, width)
        for (height, width, _), some in groups.items()
    ]
    try:
        decoded = decode(equal)
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
    if exchanged:
        planes = planes.transpose(2, 3)
    mirrored = [axis for axis, turn in ((2, rows), (3, columns)) if turn]
    return planes.flip(mirrored).contiguous()


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
                try:
                    whole.pictures.append(self.loader.pixels(file.row, file.place))
                except Exception as error:
                    name = self.loader.images.ids[file.row]
                    whole.failed[file.place] = reason_of(name, error)
            return whole

        with ExitStack() as stack:
            for _ in range(DECODERS):
                decoders.put(stack.enter_context(borrowed_decoder(self.device)))
            decoded = by_threads(portions, decode, DECODERS, DECODERS, "nvjpeg")
            yield from stack.enter_context(closing(decoded))

    def _made(
        self,
        batches: Sequence[NDArray[np.int64]],
        portions: Iterator[Loaded],
        stream: torch.cuda.Stream | None,
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

    def _resized(self, pictures: list[Pictures]) -> Pictures:
        """Return pictures in size and numbers of the input; those that are alike together."""
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
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Pictures(places, whole.permute(0, 2, 3, 1), True)

    def _inputs(self, pictures: list[Pictures]) -> _Inputs:
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
        own = self.loader.transform
        shape = 0, own.channels, own.size, own.size
        return torch.empty(shape, dtype=own.dtype, device=self.device)

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
