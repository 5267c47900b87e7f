"""The pixels of a plain JPEG by libjpeg alone, several times as many per second as by Pillow.

Pillow holds Python's lock between its steps, so that sixteen threads decode little more than three;
torchvision's ``decode_jpeg`` is one step without it. Both call libjpeg-turbo, with equal pixels,
which is tried once per process on a small picture (:func:`_decoder`): where they differ, Pillow
decodes everything.

:func:`plain_pixels` takes files whose header has nothing in it that Pillow could refuse: baseline
or progressive, 8 bits, grey or three components, well-formed tables, and no metadata but JFIF,
Adobe, ICC and an EXIF rotation. It answers None for all others and whenever anything goes wrong, so
that every verdict on a file, and its words, is Pillow's.
"""

import io
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor


Pixels = NDArray[np.uint8]

RGB = 3  # torchvision's ImageReadMode.RGB
SCAN, TABLE, EXIF_SEGMENT, BASELINE = 0xDA, 0xDB, 0xE1, 0xC0
FRAMES = frozenset((0xC0, 0xC1, 0xC2))  # baseline, extended and progressive Huffman coding
UNREAD = frozenset((0xC4, 0xDD, 0xFE))  # Huffman tables, restart interval, comment: libjpeg's own
JFIF, ADOBE = 0xE0, 0xEE
KNOWN = {JFIF: (b"JFIF\0", 14), 0xE2: (b"ICC_PROFILE\0", 15), ADOBE: (b"Adobe", 12)}
USUAL_SAMPLING = frozenset((b"\x11", b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11"))
ORIENTATION = 0x0112


@dataclass(frozen=True)
class JpegHeader:
    """Size as stored, colour components (1 or 3), and the EXIF orientation (1 for upright).

    ``rgb`` is stored as it is, not as brightness and colour differences. ``usual_coding`` is
    baseline in one scan with colours at full, half or a quarter of the resolution (4:4:4, 4:2:2,
    4:2:0): what cameras write and JPEG hardware decodes.
    """

    width: int
    height: int
    layers: int
    orientation: int = 1
    rgb: bool = False
    usual_coding: bool = True


def plain_pixels(content: bytes, largest: int, at_least: int | None = None) -> Pixels | None:
    """Return the upright pixels (H, W, 3) of a plain JPEG, or None where Pillow has to decide.

    It also decides where it would decode at a fraction of the size, and on more than ``largest``
    pixels.
    """
    header = plain_header(content)
    if (
        header is None
        or header.width * header.height > largest
        or draft_scale(header, at_least) > 1
    ):
        return None
    decoder = _decoder() if "torch" in sys.modules else None  # not worth its import
    if decoder is None:
        return None
    try:
        pixels = decoder(content)
    except RuntimeError:
        return None
    if pixels.shape != (header.height, header.width, 3):
        return None
    return _upright(pixels, header.orientation)


def draft_scale(header: JpegHeader, at_least: int | None) -> int:
    """Return the divisor, 1, 2, 4 or 8, at which Pillow decodes so that no side falls below."""
    if at_least is None:
        return 1
    fit = min(header.width // at_least, header.height // at_least)
    return 8 if fit >= 8 else 4 if fit >= 4 else 2 if fit >= 2 else 1


def plain_header(content: bytes) -> JpegHeader | None:
    """Return the header of a JPEG that is plain up to its first scan, else None."""
    if not content.startswith(b"\xff\xd8") or not content.endswith(b"\xff\xd9"):
        return None  # not a JPEG, or cut off
    frame: tuple[int, bytes] | None = None
    orientation, exif, profiles, at = 1, False, 0, 2
    known: dict[int, bytes] = {}
    while at + 4 <= len(content):
        lead, marker, length = struct.unpack_from(">BBH", content, at)
        start, at = at + 4, at + 2 + length
        if lead != 0xFF or length < 2 or at > len(content):
            return None
        if marker == SCAN:
            if frame is None:
                return None
            return _header(*frame, known, content[start:at], orientation)
        if marker in UNREAD:
            continue
        if marker == TABLE:
            if not _plain_tables(content[start:at]):
                return None
        elif marker in FRAMES:
            if frame is not None or length < 8:
                return None
            bits, height, width, layers = struct.unpack_from(">BHHB", content, start)
            if bits != 8 or not height or not width or layers not in (1, 3):
                return None
            if length != 8 + 3 * layers:
                return None
            frame = marker, content[start:at]
        elif marker == EXIF_SEGMENT:
            found = _exif_orientation(content[start:at])
            if exif or found is None:
                return None
            exif, orientation = True, found
        else:
            word, least = KNOWN.get(marker, (b"", 0))
            if not word or length - 2 < least or not content.startswith(word, start):
                return None
            known[marker] = content[start:at]
            profiles += marker == 0xE2
            if profiles > 1:
                return None
    return None


def _header(
    coding: int, frame: bytes, known: dict[int, bytes], scan: bytes, orientation: int
) -> JpegHeader:
    """Return what the segments of a JPEG say; whether it is RGB as libjpeg tells it."""
    height, width, layers = struct.unpack_from(">HHB", frame, 1)
    names, sampling = frame[6::3], frame[7::3]
    if JFIF in known:
        rgb = False
    elif ADOBE in known:
        rgb = layers == 3 and known[ADOBE][11] == 0
    else:
        rgb = names == b"RGB"
    usual = coding == BASELINE and sampling in USUAL_SAMPLING and scan[:1] == frame[5:6]
    return JpegHeader(width, height, layers, orientation, rgb, usual)


def _plain_tables(body: bytes) -> bool:
    return len(body) > 0 and len(body) % 65 == 0 and all(first < 4 for first in body[::65])


def _exif_orientation(body: bytes) -> int | None:
    """Return the orientation that Pillow finds in an APP1 segment; None if it is not simple."""
    if not body.startswith(b"Exif\0\0"):
        return None
    exif = Image.Exif()
    try:
        exif.load(body)
        orientation = exif.get(ORIENTATION, 1)
    except Exception:  # as many kinds as there are ways to break it
        return None
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else None


def turned(orientation: int) -> tuple[bool, bool, bool]:
    """Return whether the axes are exchanged, then the rows and the columns mirrored."""
    return orientation > 4, orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Return the picture as its camera was held."""
    if orientation == 1:
        return pixels
    exchanged, rows, columns = turned(orientation)
    if exchanged:
        pixels = pixels.transpose(1, 0, 2)
    return np.ascontiguousarray(pixels[:: -1 if rows else 1, :: -1 if columns else 1])


@cache
def _decoder() -> Callable[[bytes], Pixels] | None:
    """Return torchvision's decoder if it gives Pillow's pixels, else None."""
    import torch

    try:
        _load_operators()
        operator = torch.ops.image.decode_jpeg
    except (ImportError, OSError, AttributeError, RuntimeError):
        return None

    def decode(content: bytes) -> Pixels:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        pixels: Tensor = operator(data, RGB)
        return pixels.permute(1, 2, 0).numpy()

    return decode if _agrees(decode) else None


def _load_operators() -> None:
    """Load torchvision's image operators without its models, which take a second."""
    import torch

    library = operators_library()
    if library is not None:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        return
    import torchvision.io  # noqa: F401


def operators_library() -> str | None:
    """Return the path of torchvision's library of image operators, if it is where it usually is."""
    package = find_spec("torchvision")
    for folder in (package.submodule_search_locations or ()) if package else ():
        library = os.path.join(folder, "image.so")
        if os.path.exists(library):
            return library
    return None


def _agrees(decode: Callable[[bytes], Pixels]) -> bool:
    """Decode a small picture, with colours at half the resolution, by both and compare."""
    noise = np.random.default_rng(0).integers(0, 256, (19, 35, 3), np.uint8)
    for options in ({"subsampling": 2}, {"subsampling": 1, "progressive": True}):
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "JPEG", quality=90, **options)
        with Image.open(buffer) as image:
            expected = np.asarray(image)
        if not np.array_equal(decode(buffer.getvalue()), expected):
            return False
    return True
