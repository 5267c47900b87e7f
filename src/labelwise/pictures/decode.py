"""Encoded bytes to an upright 8-bit RGB image, or an ImageError that names the image.

What the pixels of a file are is written in ``labelwise_runtime``, which other programs run too.
``at_least`` lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size as long as both sides stay at
least that long. Which files are taken for images, by name and by
content, is decided here and nowhere else; the formats are listed, because others, such as
PostScript, would be handed to other programs. RAW photos, which are read by ``raw``, are known by
their content: most are TIFF files of which Pillow would read the thumbnail.
"""

import io
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from labelwise.errors import ImageError, SettingsError
from labelwise.pictures.dicom import HAS_DICOM, is_dicom
from labelwise.pictures.jpeg import plain_pixels
from labelwise.pictures.labelwise_runtime import upright_rgb
from labelwise.pictures.raw import HAS_RAW, RAW_SUFFIXES, decode_raw

TOO_LARGE = ": the image has more than "
MAX_PIXELS = 89_478_485  # unless LABELWISE_MAX_PIXELS is set; 268 MB once decoded

# On one core a Pillow picture is made faster by Pillow, which fills it while it decodes; but many
# threads of it wait for each other. The pixels are the same.
MANY_CORES = (os.cpu_count() or 1) > 4

FORMATS = {
    "AVIF": (".avif",),
    "BMP": (".bmp",),
    "DICOM": (".dcm", ".dicom"),  # with pydicom installed, by models of bands
    "GIF": (".gif",),
    "HEIF": (".heic", ".heics", ".heif", ".heifs", ".hif"),  # with pillow-heif installed
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "JPEG2000": (".jp2", ".j2k", ".jpx"),
    "PNG": (".png",),
    "PPM": (".pbm", ".pgm", ".ppm"),
    "RAW": tuple(sorted(RAW_SUFFIXES)),  # with rawpy installed
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how its files begin, and those of BigTIFF
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}  # of TIFF files, by how they begin
ENTRIES_AT_MOST = 512
SUBFILE, PHOTOMETRIC, PARTS, DNG_VERSION = 254, 262, 330, 50706
MOSAIC, LINEAR = 32803, 34892  # kinds of PHOTOMETRIC that are a sensor's
OLYMPUS, PANASONIC = (b"IIRO", b"IIRS", b"MMOR"), (b"IIU\0",)
NOT_OF_THE_FORMAT = (SyntaxError, IndexError, TypeError, struct.error)  # as Pillow's readers say it
HAS_HEIF = find_spec("pillow_heif") is not None
UNREAD_SUFFIXES = frozenset(
    suffix
    for name, installed in (("DICOM", HAS_DICOM), ("HEIF", HAS_HEIF), ("RAW", HAS_RAW))
    for suffix in FORMATS[name]
    if not installed
)
IMAGE_SUFFIXES = frozenset(s for suffixes in FORMATS.values() for s in suffixes) - UNREAD_SUFFIXES


def install_for(suffixes: Iterable[str]) -> str:
    """Return the command that brings what reads files with some of the unread endings."""
    extras = {"dicom" if suffix in FORMATS["DICOM"] else "photos" for suffix in suffixes}
    return f"pip install 'labelwise[{','.join(sorted(extras))}]'"


def max_pixels() -> int:
    """Return how many pixels an image may have: so many that a decoder is not filled by one.

    Whoever has larger scans sets LABELWISE_MAX_PIXELS, which the decoding processes inherit.
    """
    given = os.environ.get("LABELWISE_MAX_PIXELS", "")
    if not given:
        return MAX_PIXELS
    if not given.isdecimal() or not int(given):
        raise SettingsError(
            f"LABELWISE_MAX_PIXELS must be a whole number of pixels above 0, got {given!r:.40}"
        )
    return int(given)


def too_large(name: str) -> str:
    """Return what is said of a picture with too many pixels."""
    return (
        f"{name}{TOO_LARGE}{max_pixels():,} pixels; set LABELWISE_MAX_PIXELS to "
        "read it, which takes 3 bytes of memory for each"
    )


def was_too_large(reason: str) -> bool:
    """Return whether a picture was refused for pixels that may be within today's limit."""
    _, found, limit = reason.partition(TOO_LARGE)
    return bool(found) and not limit.startswith(f"{max_pixels():,} ")


def decode(content: bytes, name: str, at_least: int | None = None) -> Image.Image:
    """Return the image as RGB, or raise an ImageError with ``name`` and what is wrong."""
    pixels = plain_pixels(content, max_pixels(), at_least) if MANY_CORES else None
    return by_pillow(content, name, at_least) if pixels is None else Image.fromarray(pixels)


def decode_pixels(content: bytes, name: str, at_least: int | None = None) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of :func:`decode`."""
    pixels = plain_pixels(content, max_pixels(), at_least)
    return np.asarray(by_pillow(content, name, at_least)) if pixels is None else pixels


def by_pillow(content: bytes, name: str, at_least: int | None = None) -> Image.Image:
    """Return what :func:`decode` does, JPEGs by Pillow too: all formats, and the same pixels."""
    if not content:
        raise ImageError(f"{name}: the image is empty (0 bytes)")
    try:
        if is_raw(content):
            return decode_raw(content, at_least, max_pixels())
        with open_picture(content) as image:
            width, height = image.size
            if width * height > max_pixels():
                raise ImageError(too_large(name))
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            return upright_rgb(image)
    except (ImageError, SettingsError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # of a frame inside
        raise ImageError(too_large(name)) from None
    except UnidentifiedImageError:
        raise ImageError(f"{name}: {_kind_of(content)}") from None
    except Exception as error:  # decoders raise a dozen kinds for broken bytes
        reason = str(error).strip() or type(error).__name__
        hint = "; if it holds bands, train with --bands all" if content.startswith(TIFF) else ""
        raise ImageError(f"{name}: the image cannot be read ({reason}){hint}") from error


def is_raw(content: bytes) -> bool:
    """Return whether a file is a RAW photo."""
    if content[:4] in OLYMPUS + PANASONIC or content.startswith(b"FUJIFILMCCD-RAW"):
        return True
    if content[4:12] == b"ftypcrx " or (content[:4] == b"II*\0" and content[8:10] == b"CR"):
        return True
    order = BYTE_ORDERS.get(content[:4])
    if order is None:
        return False
    entries = _first_entries(content, order)
    if DNG_VERSION in entries or entries.get(PHOTOMETRIC) in (MOSAIC, LINEAR):
        return True
    return PARTS in entries and entries.get(SUBFILE) == 1  # a thumbnail, and the rest elsewhere


def _first_entries(content: bytes, order: str) -> dict[int, int]:
    """Return the tags of a TIFF file's first directory, with their values as whole numbers."""
    if len(content) < 10:
        return {}
    (start,) = struct.unpack_from(order + "I", content, 4)
    if not 8 <= start <= len(content) - 2:
        return {}
    (count,) = struct.unpack_from(order + "H", content, start)
    whole = min(count, ENTRIES_AT_MOST, (len(content) - start - 2) // 12)
    entries = {}
    for at in range(start + 2, start + 2 + 12 * whole, 12):
        tag, kind = struct.unpack_from(order + "HH", content, at)
        entries[tag] = struct.unpack_from(order + ("H" if kind == 3 else "I"), content, at + 8)[0]
    return entries


def _kind_of(content: bytes) -> str:
    """Return what a file is that no model of 8-bit RGB reads."""
    if is_dicom(content):
        return "is a DICOM file, which is not 8-bit RGB; train with --bands all"
    if content.startswith((b"\x93NUMPY", *TIFF)):
        return "holds bands, not 8-bit RGB; train with --bands all, or name them"
    return "this is not an image file"


def open_picture(content: bytes) -> ImageFile.ImageFile:
    """Return what ``Image.open`` does, of the listed formats and without its limit of pixels.

    That one warns, then fails, by a setting that belongs to the program that imports us.
    """
    stream = io.BytesIO(content)
    for name in known_formats():
        factory, accept = Image.OPEN[name]
        with suppress(*NOT_OF_THE_FORMAT):
            verdict = accept is None or accept(content[:16])
            if verdict and not isinstance(verdict, str):  # text says which library is missing
                stream.seek(0)
                return factory(stream, "")
    raise UnidentifiedImageError


@cache
def known_formats() -> tuple[str, ...]:
    """Return the formats that this Pillow reads; it knows the rarer ones after ``init`` only."""
    Image.init()
    if HAS_HEIF:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def one_per_photo(names: Iterable[str]) -> Iterator[str]:
    """Yield sorted names without RAW files beside a picture of that name: both are one photo."""
    for _, group in groupby(names, key=lambda name: os.path.splitext(name)[0]):
        together = [(name, os.path.splitext(name)[1].lower()) for name in group]
        paired = any(suffix in IMAGE_SUFFIXES - RAW_SUFFIXES for _, suffix in together)
        yield from (name for name, suffix in together if not (paired and suffix in RAW_SUFFIXES))
