"""RAW photos, as cameras write them, to upright 8-bit RGB: by rawpy (LibRaw), where installed.

    preview     the JPEG inside, if both its sides are at least ``at_least`` long, or half as long
                as the sensor's where no length is asked for: what the camera made of the photo
    demosaic    otherwise, at half the size (one pixel per 2 x 2 of the sensor) unless that is too
                small; white balance of the camera, sRGB

What they are known by stands in ``decode``.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, JpegImagePlugin

if TYPE_CHECKING:
    from rawpy import RawPy


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
