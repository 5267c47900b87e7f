"""How many pixels an encoded picture says it has, from its first bytes, without decoding it.

This decides only whose turn it is: a picture that lies here is caught where it is decoded.
"""

import struct

from labelwise.pictures.decode import MAX_PIXELS

__all__ = ["claimed_pixels"]

SEGMENTS = 512  # of a JPEG, that are looked at
NO_SIZE = {0xC4, 0xC8, 0xCC}  # among the markers from C0 to CF


def claimed_pixels(content: bytes) -> int:
    """Return the pixels of a PNG, GIF, BMP, WebP or JPEG; as many as may be for any other file."""
    try:
        sides = _sides(content)
    except (struct.error, IndexError):
        sides = None
    if sides is None:
        return MAX_PIXELS
    return min(max(1, abs(sides[0] * sides[1])), MAX_PIXELS)


def _sides(content: bytes) -> tuple[int, int] | None:
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", content, 16)
    elif content.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", content, 6)
    elif content.startswith(b"BM"):
        width, height = struct.unpack_from("<ii", content, 18)
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return _webp(content)
    elif content.startswith(b"\xff\xd8"):
        return _jpeg(content)
    else:
        return None
    return width, height


def _webp(content: bytes) -> tuple[int, int] | None:
    kind = content[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(content[24:27], "little") + 1
        return width, int.from_bytes(content[27:30], "little") + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(content: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(SEGMENTS):
        if content[at] != 0xFF:
            return None
        marker = content[at + 1]
        if marker == 0xFF:  # a byte that fills
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            height, width = struct.unpack_from(">HH", content, at + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", content, at + 2)
            at += 2 + length
    return None
