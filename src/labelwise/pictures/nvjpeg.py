"""nvJPEG's decoder on the JPEG engines of a GPU, by the functions of its library.

torchvision calls them too, but keeps one decoder behind a lock, allocates each picture by itself
and reads each header twice. Of a :class:`HardwareDecoder` there can be several at work, and each
writes pictures of one size one after the other, ready to be resized. The library is the one that
torchvision brings along, so there is nothing to install. Where it cannot be found, or the GPU has
no such engines (they came with the A100), :func:`hardware_decoder` answers None.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.jpeg import operators_library

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
    """A decoder on a GPU's JPEG engines; one thread at a time may use it.

    It lives as long as the program, like the handle that all decoders of a GPU share.
    """

    def __init__(self, functions: dict[str, Any], device: torch.device):
        self._functions = functions
        self._device = device
        self._state = POINTER()
        self._batch = 0
        with torch.cuda.device(device):
            self._handle = _handle(device)
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(self, groups: Sequence[EqualSizes]) -> list[Tensor]:
        """Return the planes (n, 3, H, W) of each group, made in the current stream.

        Contents must be kept until the stream has got there. Raise a RuntimeError if one of them
        cannot be decoded.
        """
        planes = [
            torch.empty((len(contents), 3, height, width), dtype=torch.uint8, device=self._device)
            for contents, height, width in groups
        ]
        contents = [content for group in groups for content in group.contents]
        data = np.array([content.data_ptr() for content in contents], np.uint64)
        lengths = np.array([content.numel() for content in contents], np.uint64)
        places = np.concatenate([_places(one) for one in planes])
        with torch.cuda.device(self._device):
            if len(contents) != self._batch:
                self._batch = 0
                given = len(contents), 1, RGB
                self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, *given)
                self._batch = len(contents)
            arrays = (one.ctypes.data for one in (data, lengths, places))
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
    """Return nvJPEG's functions, from the library that torchvision's own is linked with."""
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
