"""What a photo's own header says of how and where it was taken: the camera, and the place."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import ExifTags, Image

from labelwise.pictures.decode import is_raw, open_picture
from labelwise.pictures.raw import raw_header

UNREADABLE = (
    *(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError, struct.error),
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class PhotoFacts:
    """The camera, and the place in degrees north and east; None where the header is silent."""

    camera: str | None = None
    latitude: float | None = None
    longitude: float | None = None


def read_facts(content: bytes) -> PhotoFacts:
    """Return what the header of a picture file says; a damaged one says nothing."""
    with suppress(*UNREADABLE):
        if is_raw(content):
            _, exif = raw_header(content)
            return PhotoFacts(_camera(exif), *_place(exif))
        with open_picture(content) as image:  # parts of a TIFF header are read when asked for
            exif = image.getexif()
            return PhotoFacts(_camera(exif), *_place(exif))
    return PhotoFacts()


def _camera(exif: Any) -> str | None:
    with suppress(*UNREADABLE):
        make, model = (
            str(exif.get(tag) or "").strip("\0 ")
            for tag in (ExifTags.Base.Make, ExifTags.Base.Model)
        )
        words = model if model.casefold().startswith(make.casefold()) else f"{make} {model}"
        printable = "".join(one for one in words if one.isprintable()).strip()
        return printable[:100] or None
    return None


def _place(exif: Any) -> tuple[float | None, float | None]:
    with suppress(*UNREADABLE):
        gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
        north = _degrees(gps[ExifTags.GPS.GPSLatitude], gps[ExifTags.GPS.GPSLatitudeRef], "S", 90)
        east = _degrees(gps[ExifTags.GPS.GPSLongitude], gps[ExifTags.GPS.GPSLongitudeRef], "W", 180)
        return north, east
    return None, None


def _degrees(parts: Sequence[Any], side: Any, negative: str, most: float) -> float:
    """Return degrees, minutes and seconds as degrees; ValueError where that cannot be a place."""
    degrees, minutes, seconds = (float(one) for one in parts)
    value = degrees + minutes / 60 + seconds / 3600
    if not 0 <= value <= most:
        raise ValueError(f"degrees must lie between 0 and {most}, got {value}")
    return round(-value if str(side).strip("\0 ").upper() == negative else value, 6)
