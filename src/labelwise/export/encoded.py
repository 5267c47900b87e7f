"""Encoded files that every export of a picture model is compared on, made from one picture.

    how a camera was held      JPEG with EXIF orientation 6 and 5 (turned, turned and mirrored)
    a large photo              JPEG whose sides are many times those of the input
    what has to be laid down   PNG with alpha, 16-bit grey PNG
    another format             WebP

Programs that ignore one of these are off by far more than a rounding, on photos that a
validation split may not hold.
"""

from io import BytesIO
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from labelwise.pictures import BytesImages

__all__ = ["encoded_examples"]

LARGE = 4  # times the side of the input, at least


def encoded_examples(picture: Image.Image, side: int) -> BytesImages:
    """Return files of a picture in RGB, for a model whose input has ``side`` pixels."""
    grow = max(1.0, LARGE * side / min(picture.size))
    large = picture.resize((round(grow * picture.width), round(grow * picture.height)))
    clear = picture.copy()
    clear.putalpha(Image.linear_gradient("L").resize(picture.size))
    deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    files = {
        "a turned JPEG": _encoded(picture, "JPEG", exif=_exif(6), quality=90),
        "a turned and mirrored JPEG": _encoded(picture, "JPEG", exif=_exif(5), quality=90),
        "a large JPEG": _encoded(large, "JPEG", quality=85),
        "a PNG with alpha": _encoded(clear, "PNG"),
        "a PNG of 16 bits": _encoded(deep, "PNG"),
        "a WebP": _encoded(picture, "WEBP"),
    }
    return BytesImages(list(files.values()), list(files))


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def _encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()
