"""The keywords inside a photo: its XMP packet, and what IPTC and Windows keep beside it.

    XMP        JPEG, TIFF, PNG, WebP and HEIC: dc:subject, lr:hierarchicalSubject, digiKam:TagsList
    IPTC       JPEG and TIFF: Keywords, in UTF-8 where it says so or can be, else in Latin-1
    Windows    Exif's XPKeywords: UTF-16, parted by semicolons

No pixels are decoded. The XMP of a PNG may stand behind them, so its chunks are gone through.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, IptcImagePlugin

from labelwise.errors import DataError
from labelwise.photos.xml_bytes import LARGEST
from labelwise.pictures.decode import known_formats
from labelwise.system.text import one_line_of

IPTC_KEYWORDS, IPTC_CHARSET, UTF8 = (2, 25), (1, 90), b"\x1b%G"
XP_KEYWORDS = 0x9C9E
UNREADABLE = (
    *(OSError, ValueError, SyntaxError, LookupError, TypeError, ArithmeticError, zlib.error),
    *(struct.error, Image.DecompressionBombError),
)
PNG_START, PNG_PACKET = b"\x89PNG\r\n\x1a\n", b"XML:com.adobe.xmp"


@dataclass(frozen=True)
class PhotoMetadata:
    """The XMP ``packet`` of a photo, None without one, and the ``words`` of its other keywords."""

    format: str
    packet: bytes | None = None
    words: tuple[str, ...] = ()


def read_photo_metadata(path: Path) -> PhotoMetadata:
    """Return what a photo holds, or raise a DataError where it cannot be read as a picture."""
    known_formats()  # HEIC among them
    try:
        with Image.open(path) as image:
            format = image.format or "unknown"
            packet = _packet_of_png(path) if format == "PNG" else image.info.get("xmp")
            iptc = IptcImagePlugin.getiptcinfo(image) or {}
            windows = image.getexif().get(XP_KEYWORDS)
    except UNREADABLE as error:
        raise DataError(one_line_of(error)) from None
    packet = packet.encode() if isinstance(packet, str) else packet
    packet = packet.strip(b"\0 \r\n\t") if packet else None
    words = dict.fromkeys((*_of_iptc(iptc), *_of_windows(windows)))
    return PhotoMetadata(format, packet or None, tuple(words))


def _packet_of_png(path: Path) -> bytes | None:
    """Return the text of the chunk that holds XMP, wherever it stands."""
    with path.open("rb") as file:
        file.seek(len(PNG_START))
        while len(head := file.read(8)) == 8:
            size, kind = struct.unpack(">I4s", head)
            if kind == b"iTXt" and size <= LARGEST:
                keyword, _, rest = file.read(size).partition(b"\0")
                if keyword == PNG_PACKET:
                    text = rest[2:].split(b"\0", 2)[-1]  # behind language and translated keyword
                    return (
                        zlib.decompressobj().decompress(text, LARGEST) if rest[:1] > b"\0" else text
                    )
                file.seek(4, 1)
            else:
                file.seek(size + 4, 1)
    return None


def _of_iptc(records: dict[tuple[int, int], bytes | list[bytes]]) -> Iterator[str]:
    given = records.get(IPTC_KEYWORDS, [])
    stated = records.get(IPTC_CHARSET) == UTF8
    for raw in [given] if isinstance(given, bytes) else given:
        try:
            word = raw.decode("utf-8", "replace" if stated else "strict")
        except UnicodeDecodeError:
            word = raw.decode("latin-1")
        if word.strip("\0 "):
            yield word.strip("\0 ")


def _of_windows(value: object) -> Iterator[str]:
    """Yield the words of a field that holds bytes, or numbers that are bytes."""
    if isinstance(value, tuple) and all(isinstance(one, int) and 0 <= one < 256 for one in value):
        value = bytes(value)
    if isinstance(value, bytes):
        for word in value.decode("utf-16-le", "ignore").replace("\0", "").split(";"):
            if word.strip():
                yield word.strip()
