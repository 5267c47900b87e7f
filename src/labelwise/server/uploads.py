"""Pictures as they are sent: the files of a form, and how many pixels each says it has.

A form (multipart/form-data, RFC 7578) is read from a body that is there as a whole, in linear time
whatever it holds. Long bytes are searched and copied in pieces, so that other threads can run
between two of them: a call of C code such as a search, a copy or base64 holds the interpreter's
lock until it is done, in whichever thread it runs; 64 KiB take it less than a millisecond.

The pixels that a picture says it has, in its first bytes, decide only whose turn it is: one that
lies there is caught where it is decoded.
"""

import re
import struct
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from labelwise.pictures.decode import MAX_PIXELS
from labelwise.server.security import RefusedError
from labelwise.system.text import one_line

PIECE = 1 << 16
BOUNDARY = re.compile(
    r';\s*boundary=(?:"([ -!#-~]{1,70})"|([^\s;,"]{1,70}))\s*(?:;|$)', re.ASCII | re.I
)
FILE_NAME = re.compile(rb';\s*filename="((?:[^"\\]|\\.)*)"|;\s*filename=([^\s;"]+)', re.I)
PART_HEAD = 4096
FIELD_BYTES = 1 << 20
NAME_LENGTH = 255
SEGMENTS = 512  # of a JPEG, that are looked at
NO_SIZE = {0xC4, 0xC8, 0xCC}  # among the markers from C0 to CF

Pixels = NDArray[Any]  # uint8 (H, W, 3), or float32 (H, W, bands)


@dataclass(frozen=True)
class Upload:
    """A picture of a request: its name and its encoded bytes, or its pixels (H, W, 3)."""

    name: str
    content: bytes | Pixels

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.nbytes


def copied(content: bytes | memoryview, start: int, end: int) -> bytes:
    """Return ``content[start:end]``, which is copied in pieces."""
    end = min(end, len(content))
    # As bytes, of which many are joined without the lock; views would keep it.
    return b"".join(bytes(content[at : min(at + PIECE, end)]) for at in range(start, end, PIECE))


def read_form(body: bytes, content_type: str, most: int) -> list[Upload]:
    """Return the files of a form, ``most`` of them and as many other fields at most."""
    found = BOUNDARY.search(content_type)
    if found is None:
        raise _unreadable("its Content-Type names no boundary")
    mark = b"--" + (found[1] or found[2]).encode()
    at = 0 if body.startswith(mark) else _find(body, b"\r\n" + mark, 0) + 2
    if at == 1:
        raise _unreadable("the boundary does not occur in it")
    files: list[Upload] = []
    fields = 0
    while True:
        at += len(mark)
        if body.startswith(b"--", at):
            return files
        begin = body.find(b"\r\n", at, at + PART_HEAD)
        end = body.find(b"\r\n\r\n", begin, begin + PART_HEAD)
        after = _find(body, b"\r\n" + mark, end + 2)
        if min(begin, end, after) < 0 or body[at:begin].strip(b" \t"):
            raise _unreadable("a part has no head or no end")
        head = body[begin:end]
        if b"content-disposition:" not in head.lower():
            raise _unreadable("a part has no Content-Disposition")
        name = FILE_NAME.search(head)
        if name is None:
            fields += 1
            if fields > most:
                raise _unreadable(f"it may have {most} fields that are not files")
            if after - end > FIELD_BYTES:
                raise _unreadable(f"the size of a field is limited to {FIELD_BYTES:,} bytes")
        elif len(files) == most:
            raise _unreadable(f"it may have {most} files")
        else:
            content = copied(body, end + 4, after)
            files.append(Upload(_harmless(name[1] or name[2] or b""), content))
        at = after + 2


def _find(body: bytes, mark: bytes, start: int) -> int:
    for begin in range(start, len(body), PIECE):
        at = body.find(mark, begin, begin + PIECE + len(mark) - 1)
        if at >= 0:
            return at
    return -1


def _unreadable(why: str) -> RefusedError:
    return RefusedError(400, f"the form cannot be read: {why}")


def _harmless(name: bytes) -> str:
    """Return a client's file name as harmless text; it is shown and used for nothing else."""
    text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return one_line(text or "picture")[:NAME_LENGTH]


def claimed_pixels(content: bytes | Pixels) -> int:
    """Return the pixels of a PNG, GIF, BMP, WebP or JPEG; as many as may be for any other file."""
    if not isinstance(content, bytes):
        return content.size // 3
    sides: tuple[int, int] | None = None
    try:
        if content.startswith(b"\x89PNG\r\n\x1a\n"):
            sides = struct.unpack_from(">II", content, 16)
        elif content.startswith((b"GIF87a", b"GIF89a")):
            sides = struct.unpack_from("<HH", content, 6)
        elif content.startswith(b"BM"):
            sides = struct.unpack_from("<ii", content, 18)
        elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
            sides = _webp(content)
        elif content.startswith(b"\xff\xd8"):
            sides = _jpeg(content)
    except (struct.error, IndexError):
        return MAX_PIXELS
    return MAX_PIXELS if sides is None else min(max(1, abs(sides[0] * sides[1])), MAX_PIXELS)


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
