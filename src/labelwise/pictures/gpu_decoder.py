"""JPEGs to pixels on a GPU: by its JPEG engines, by torchvision's nvJPEG, or refused."""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from labelwise.pictures.jpeg import turned
from labelwise.pictures.loading import Jpeg, Pictures
from labelwise.pictures.nvjpeg import EqualSizes, hardware_decoder


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
                usual = [file for file in files if file.usual_coding]
                pictures, refused = _by_halves(self._hardware.decode, usual)
                left = [file for file in files if not file.usual_coding] + refused
            others, refused = _by_halves(self._decode_by_torchvision, left)
            if self._stream is not None:
                self._stream.synchronize()
        return pictures + others, refused

    def _decode_by_torchvision(self, groups: Sequence[EqualSizes]) -> list[Tensor]:
        decoded = decode_by_torchvision(
            [one for group in groups for one in group.contents], self._device
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
    """Return upright pictures, and files that cannot be decoded.

    One such file spoils all that are decoded with it, which are then decoded by halves.
    """
    if not files:
        return [], []
    groups: dict[tuple[int, int, int], list[Jpeg]] = {}
    for file in files:
        groups.setdefault((file.height, file.width, file.orientation), []).append(file)
    try:
        decoded = decode(
            [
                EqualSizes([file.content for file in some], height, width)
                for (height, width, _), some in groups.items()
            ]
        )
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
    """Return planes (n, 3, H, W) as the camera was held."""
    if orientation == 1:
        return planes
    exchanged, rows, columns = turned(orientation)
    if exchanged:
        planes = planes.transpose(2, 3)
    mirrored = [axis for axis, turn in ((2, rows), (3, columns)) if turn]
    return planes.flip(mirrored).contiguous()
