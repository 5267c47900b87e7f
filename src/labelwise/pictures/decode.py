"""Encoded bytes to an upright 8-bit RGB image, or an ImageError that names the image.

``at_least`` lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size as long as both sides stay at
least that long. The formats are listed, because others, such as PostScript, run other programs.
RAW photos are known by their content: most are TIFF files with a thumbnail.
"""

import io
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import (
    ExifTags,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    UnidentifiedImageError,
)

from labelwise.base.storage import LocalStorage, left_out_note
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.pictures.labelwise_runtime import upright_rgb

if TYPE_CHECKING:
    from rawpy import RawPy


def image_files(folder: Path) -> list[str]:
    """Return the image files under a folder, sorted, relative to it, hidden ones left out."""
    return find_images(folder)[0]


def find_images(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the image files under a folder as above, and a note on pictures that are skipped."""
    images, skipped, left_out = list[str](), Counter[str](), Counter[str]()
    files = LocalStorage(folder).files(left_out, IMAGE_SUFFIXES | UNREAD_SUFFIXES)
    for inside in one_per_photo(sorted(files)):
        suffix = os.path.splitext(inside)[1].lower()
        if suffix in IMAGE_SUFFIXES:
            images.append(inside)
        elif suffix in UNREAD_SUFFIXES:
            skipped[suffix] += 1
    notes = (note,) if (note := left_out_note(left_out)) else ()
    if not skipped:
        return images, notes
    counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(skipped.items()))
    return images, (f"skipped {counts}: `{install_for(skipped)}` reads them", *notes)


def image_paths(places: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files given and the images in and below the folders given, in order; and notes."""
    if not any(path.exists() for path in places):
        raise DataError(f"there is no file or folder {places[0]}")
    images, notes = list[Path](), list[str]()
    for path in places:
        names, more = find_images(path) if path.is_dir() else ([""], ())
        notes += [f"{path}: {note}" for note in more]
        if not names:
            raise DataError(". ".join((f"there are no images in the folder {path}", *more)))
        images += [path / name for name in names]
    return images, notes


# RAW photos, by rawpy (LibRaw): the preview inside if both sides are at least ``at_least`` long,
# or half as long as the sensor's; otherwise a demosaic with the camera's white balance, in sRGB.

RAW_SUFFIXES = frozenset(
    {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw"}
)
HAS_RAW = find_spec("rawpy") is not None

TURNS = {3: 3, 5: 8, 6: 6}  # LibRaw's flip as an EXIF orientation
SIDEWAYS = (5, 6, 7, 8)


@contextmanager
def _opened(content: bytes) -> Iterator["RawPy"]:
    """Give a RAW photo of which only the header was read; what LibRaw refuses is a ValueError."""
    if not HAS_RAW:
        raise ValueError("RAW photos need rawpy: pip install 'labelwise[photos]'")
    from rawpy import LibRawError, NotSupportedError, RawPy

    try:
        with RawPy() as raw:
            raw.open_buffer(io.BytesIO(content))
            yield raw
    except (LibRawError, NotSupportedError) as error:
        reason = error.args[0] if error.args else type(error).__name__
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"LibRaw: {text}") from error


def decode_raw(content: bytes, at_least: int | None, max_pixels: int) -> Image.Image:
    """Return a RAW photo as upright RGB, or raise a ValueError that says why not."""
    with _opened(content) as raw:
        sides = sorted((raw.sizes.width, raw.sizes.height))
        if sides[0] * sides[1] > 2 * max_pixels:
            raise ValueError(f"it has more than {2 * max_pixels:,} pixels")
        preview = _preview(raw, sides[0] // 2 if at_least is None else at_least, max_pixels)
        if preview is not None:
            return preview
        raw.unpack()
        half = at_least is None or sides[0] // 2 >= at_least
        return Image.fromarray(raw.postprocess(use_camera_wb=True, half_size=half))


def _preview(raw: "RawPy", wanted: int, max_pixels: int) -> Image.Image | None:
    """Return the preview if it is whole and large enough, turned as the camera was held."""
    from rawpy import LibRawError

    try:
        data = raw.extract_thumb().data
        image: Image.Image
        if isinstance(data, bytes):
            image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        else:
            image = Image.fromarray(np.asarray(data))
        if min(image.size) < wanted or image.width * image.height > max_pixels:
            return None
        image.draft(None, (wanted, wanted))
        unturned = (image.width > image.height) == (raw.sizes.width > raw.sizes.height)
        exif, turn = image.getexif(), ExifTags.Base.Orientation
        exif.setdefault(turn, TURNS.get(raw.sizes.flip, 1))
        if exif[turn] in SIDEWAYS and not unturned:  # LibRaw writes this for all previews
            exif[turn] = 1
        return ImageOps.exif_transpose(image).convert("RGB")
    except (LibRawError, OSError, ValueError, SyntaxError):  # there is none, or it is broken
        return None


def raw_header(content: bytes) -> tuple[tuple[int, int], Image.Exif]:
    """Return the upright width and height of a RAW photo, and its EXIF facts."""
    with _opened(content) as raw:
        width, height = raw.sizes.width, raw.sizes.height
        if TURNS.get(raw.sizes.flip, 1) in SIDEWAYS:
            width, height = height, width
    exif = Image.Exif()
    if content[:2] in (b"II", b"MM"):  # the others keep their facts elsewhere
        exif.load((b"II*\0" if content[:2] == b"II" else b"MM\0*") + content[4:])
    return (width, height), exif


TOO_LARGE = ": the image has more than "
PNG_START, MOST_EXIF = b"\x89PNG\r\n\x1a\n", 1 << 20
MAX_PIXELS = 89_478_485  # unless LABELWISE_MAX_PIXELS is set; 268 MB once decoded
MAX_SIDE = 1 << 20  # no transform keeps more of a thin picture, and each row costs 16 bytes more

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
OLYMPUS, PANASONIC = (b"IIRO", b"IIRS", b"MMOR"), b"IIU\0"
NOT_OF_THE_FORMAT = (SyntaxError, IndexError, TypeError, struct.error)  # as Pillow's readers say it
HAS_HEIF = find_spec("pillow_heif") is not None
HAS_DICOM = find_spec("pydicom") is not None
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
    """Return how many pixels an image may have: so many that a decoder is not filled by one."""
    limit = os.environ.get("LABELWISE_MAX_PIXELS") or str(MAX_PIXELS)
    if not limit.isdecimal() or not int(limit):
        raise SettingsError(f"LABELWISE_MAX_PIXELS must be a whole number, got {limit!r:.40}")
    return int(limit)


def too_large(name: str) -> str:
    """Return what is said of a picture with too many pixels."""
    return (
        f"{name}{TOO_LARGE}{max_pixels():,} pixels; set LABELWISE_MAX_PIXELS to "
        "read it, which takes 3 bytes of memory for each"
    )


def check_size(name: str, width: int, height: int) -> None:
    """Raise an ImageError for a picture that would take too much memory to decode."""
    if width * height > max_pixels():
        raise ImageError(too_large(name))
    if max(width, height) > MAX_SIDE:
        raise ImageError(
            f"{name}: a side has {max(width, height):,} pixels, and at most {MAX_SIDE:,} are read; "
            "cut the picture into pieces"
        )


def was_too_large(reason: str) -> bool:
    """Return whether a picture was refused for pixels that may be within today's limit."""
    _, mark, limit = reason.partition(TOO_LARGE)
    return bool(mark) and not limit.startswith(f"{max_pixels():,} ")


def decode(content: bytes, name: str, at_least: int | None = None) -> Image.Image:
    """Return the image as RGB, or raise an ImageError with ``name`` and what is wrong."""
    if not content:
        raise ImageError(f"{name}: the image is empty (0 bytes)")
    try:
        if is_raw(content):
            return decode_raw(content, at_least, max_pixels())
        with open_picture(content) as image:
            check_size(name, *image.size)
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            return upright_rgb(image)
    except (ImageError, SettingsError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # of a frame inside
        raise ImageError(too_large(name)) from None
    except UnidentifiedImageError:
        what = "this is not an image file"
        if is_dicom(content):
            what = "is a DICOM file, which is not 8-bit RGB; train with --bands all"
        elif content.startswith((b"\x93NUMPY", *TIFF)):
            what = "holds bands, not 8-bit RGB; train with --bands all, or name them"
        raise ImageError(f"{name}: {what}") from None
    except Exception as error:  # decoders raise a dozen kinds for broken bytes
        reason = str(error).strip() or type(error).__name__
        hint = "; if it holds bands, train with --bands all" if content.startswith(TIFF) else ""
        raise ImageError(f"{name}: the image cannot be read ({reason}){hint}") from error


def is_raw(content: bytes) -> bool:
    """Return whether a file is a RAW photo."""
    if content.startswith((*OLYMPUS, PANASONIC, b"FUJIFILMCCD-RAW")):
        return True
    if content[4:12] == b"ftypcrx " or (content[:4] == b"II*\0" and content[8:10] == b"CR"):
        return True
    entries = _first_entries(content)
    thumbnail = PARTS in entries and entries.get(SUBFILE) == 1  # and the rest is elsewhere
    return thumbnail or DNG_VERSION in entries or entries.get(PHOTOMETRIC) in (MOSAIC, LINEAR)


def _first_entries(content: bytes) -> dict[int, int]:
    """Return the tags of a TIFF file's first directory, with their values as whole numbers."""
    order = BYTE_ORDERS.get(content[:4])
    if order is None or len(content) < 10:
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


def is_dicom(content: bytes) -> bool:
    """Return whether a file says it is DICOM, by the mark behind its preamble."""
    return content[128:132] == b"DICM"


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


def exif_of(image: Image.Image) -> Image.Exif:
    """Return what the header of an opened picture says; no pixel is decoded.

    Pillow's own method decodes a PNG to reach what stands behind its pixels, however many it has.
    """
    stream = image.fp if isinstance(image, PngImagePlugin.PngImageFile) else None
    if stream is not None and "exif" not in image.info:
        place = stream.tell()
        stream.seek(len(PNG_START))
        while len(head := stream.read(8)) == 8:
            size, kind = struct.unpack(">I4s", head)
            if kind == b"eXIf" and size <= MOST_EXIF:
                image.info["exif"] = b"Exif\0\0" + stream.read(size)
            else:
                stream.seek(size, os.SEEK_CUR)
            stream.seek(4, os.SEEK_CUR)  # its checksum
        stream.seek(place)
    return Image.Image.getexif(image)


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
