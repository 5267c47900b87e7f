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

LARGE = 4  # times the side of the input, at least


def encoded_examples(picture: Image.Image, side: int) -> BytesImages:
    """Return files of a picture in RGB, for a model whose input has ``side`` pixels."""
    grow = max(1.0, LARGE * side / min(picture.size))
    large = picture.resize((round(grow * picture.width), round(grow * picture.height)))
    clear = picture.copy()
    clear.putalpha(Image.linear_gradient("L").resize(picture.size))
    deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    turned, mirrored = Image.Exif(), Image.Exif()
    turned[ExifTags.Base.Orientation], mirrored[ExifTags.Base.Orientation] = 6, 5
    examples: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "a turned JPEG": (picture, "JPEG", {"exif": turned, "quality": 90}),
        "a turned and mirrored JPEG": (picture, "JPEG", {"exif": mirrored, "quality": 90}),
        "a large JPEG": (large, "JPEG", {"quality": 85}),
        "a PNG with alpha": (clear, "PNG", {}),
        "a PNG of 16 bits": (deep, "PNG", {}),
        "a WebP": (picture, "WEBP", {}),
    }
    files = []
    for shown, kind, options in examples.values():
        buffer = BytesIO()
        shown.save(buffer, kind, **options)
        files.append(buffer.getvalue())
    return BytesImages(files, list(examples))
