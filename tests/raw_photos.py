"""A RAW photo written by hand: an uncompressed DNG of a sensor whose colours are linear sRGB."""

import struct
from io import BytesIO

import numpy as np

BYTE, ASCII, SHORT, LONG, RATIONAL, SRATIONAL = 1, 2, 3, 4, 5, 10
XYZ_TO_SRGB = (3.2406, -1.5372, -0.4986, -0.9689, 1.8758, 0.0415, 0.0557, -0.2040, 1.0570)
TAKEN = "2024:05:01 12:00:00"


def dng(pixels, *, orientation=1, preview=None):
    """Return the DNG of linear RGB (H, W, 3) in [0, 1], with a Pillow image for its preview."""
    height, width = pixels.shape[:2]
    mosaic = np.empty((height, width), "<u2")
    for top, left, channel in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)):
        mosaic[top::2, left::2] = np.round(65535 * pixels[top::2, left::2, channel])
    longs = {254: 0, 256: width, 257: height, 278: height, 279: mosaic.nbytes, 50714: 0}
    shorts = {258: 16, 259: 1, 262: 32803, 277: 1, 284: 1}
    sensor = {tag: (LONG, (value,)) for tag, value in (longs | {50717: 65535}).items()}
    sensor |= {tag: (SHORT, (value,)) for tag, value in shorts.items()}
    sensor |= {273: mosaic.tobytes(), 33421: (SHORT, (2, 2)), 33422: (BYTE, (0, 1, 1, 2))}
    facts = {
        271: (ASCII, b"labelwise\0"),
        272: (ASCII, b"sensor\0"),
        274: (SHORT, (orientation,)),
        34665: {36867: (ASCII, TAKEN.encode() + b"\0")},
        50706: (BYTE, (1, 4, 0, 0)),
        50707: (BYTE, (1, 1, 0, 0)),
        50708: (ASCII, b"labelwise sensor\0"),
        50721: (SRATIONAL, [(round(1e4 * value), 10_000) for value in XYZ_TO_SRGB]),
        50728: (RATIONAL, [(1, 1)] * 3),
        50778: (SHORT, (21,)),
    }
    if preview is None:
        return _tiff(sensor | facts)
    stream = BytesIO()
    preview.save(stream, "JPEG", quality=95)
    jpeg = stream.getvalue()
    longs = {254: 1, 256: preview.width, 257: preview.height, 278: preview.height, 279: len(jpeg)}
    first = {tag: (LONG, (value,)) for tag, value in longs.items()}
    first |= {tag: (SHORT, (value,)) for tag, value in {259: 7, 262: 6, 277: 3}.items()}
    return _tiff(first | facts | {258: (SHORT, (8, 8, 8)), 273: jpeg, 330: sensor})


def _tiff(entries):
    content = bytearray(b"II*\0\0\0\0\0")
    struct.pack_into("<I", content, 4, _directory(content, entries))
    return bytes(content)


def _directory(content, entries):
    """Append a directory and what it points to; return where it begins."""
    rows = []
    for tag, value in sorted(entries.items()):
        if isinstance(value, dict):
            kind, count, packed = LONG, 1, struct.pack("<I", _directory(content, value))
        elif isinstance(value, bytes):
            kind, count, packed = LONG, 1, struct.pack("<I", _appended(content, value))
        else:
            kind, values = value
            count, packed = len(values), _packed(kind, values)
            if len(packed) > 4:
                packed = struct.pack("<I", _appended(content, packed))
        rows.append(struct.pack("<HHI", tag, kind, count) + packed.ljust(4, b"\0"))
    return _appended(content, struct.pack("<H", len(rows)) + b"".join(rows) + bytes(4))


def _packed(kind, values):
    if kind == ASCII:
        return values
    if kind in (RATIONAL, SRATIONAL):
        letter = "I" if kind == RATIONAL else "i"
        return b"".join(struct.pack(f"<2{letter}", *value) for value in values)
    return struct.pack(f"<{len(values)}" + {BYTE: "B", SHORT: "H", LONG: "I"}[kind], *values)


def _appended(content, block):
    content += bytes(len(content) % 2)
    start = len(content)
    content += block
    return start
