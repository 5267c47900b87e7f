"""The bodies of requests: pictures in forms, JSON at a bounded cost, base64."""

import base64
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from labelwise.base.arrays import Values
from labelwise.base.text import one_line
from labelwise.pictures.decode import MAX_PIXELS
from labelwise.server.security import RefusedError

PIECE = 1 << 16  # bytes of a body that are handed over at a time
FIELD_BYTES = 1 << 20
NAME_LENGTH = 255
PLAIN_SIDES = (  # how a picture starts, and where its sides are
    (b"\x89PNG\r\n\x1a\n", ">II", 16),
    ((b"GIF87a", b"GIF89a"), "<HH", 6),
    (b"BM", "<ii", 18),
)
SEGMENTS = 512  # of a JPEG, that are looked at
SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers that a size follows

M = TypeVar("M", bound=BaseModel)
Pixels = Values  # uint8 (H, W, 3), or float32 (H, W, bands)


@dataclass(frozen=True)
class Upload:
    """A picture of a request: its name and its encoded bytes."""

    name: str
    content: bytes


class _Form(MultiPartParser):
    """A reader that knows whether the form came to its end."""

    has_end = False

    def on_end(self) -> None:
        self.has_end = True


async def read_form(request: Request, most: int) -> list[Upload]:
    """Return the files of a form, ``most`` of them and as many other fields at most."""
    limits = {"max_files": most, "max_fields": most, "max_part_size": FIELD_BYTES}
    reader = _Form(request.headers, request.stream(), **limits)
    try:
        form = await reader.parse()
    except (MultiPartException, LookupError) as error:
        raise _unreadable(getattr(error, "message", "its Content-Type names no boundary")) from None
    uploads = []
    try:
        if not reader.has_end:  # Starlette would leave out the last part
            raise _unreadable("a part has no end")
        for _, file in form.multi_items():
            if isinstance(file, UploadFile):
                name = (file.filename or "").replace("\\", "/").rpartition("/")[2]  # only shown
                name = one_line(name or "picture")[:NAME_LENGTH]
                uploads.append(Upload(name, await file.read()))
    finally:
        for spooled in reader._files_to_close_on_error:  # also that of a part without an end
            spooled.close()
    return uploads


def _unreadable(why: str) -> RefusedError:
    return RefusedError(400, f"the form cannot be read: {why}")


def claimed_pixels(content: bytes) -> int:
    """Return the pixels that a PNG, GIF, BMP, WebP or JPEG says it has; else the most there may be.

    They decide only whose turn it is: a picture that lies is caught where it is decoded.
    """
    try:
        width, height = _sides(content)
    except (struct.error, LookupError):
        return MAX_PIXELS
    return min(max(1, abs(width * height)), MAX_PIXELS)


def _sides(content: bytes) -> tuple[int, ...]:
    """Return the sides of a picture in some order; raise LookupError if they are not found."""
    for starts, form, place in PLAIN_SIDES:
        if content.startswith(starts):
            return struct.unpack_from(form, content, place)
    kind = content[12:16] if content[:4] + content[8:12] == b"RIFFWEBP" else b""
    if kind == b"VP8X":
        width, height = (int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
        return width + 1, height + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    at = 2
    for _ in range(SEGMENTS if content.startswith(b"\xff\xd8") else 0):
        if content[at] != 0xFF:
            break
        if (marker := content[at + 1]) in SIZES:
            return struct.unpack_from(">HH", content, at + 5)
        # A byte that fills is one byte; another segment gives its length.
        at += 1 if marker == 0xFF else 2 + struct.unpack_from(">H", content, at + 2)[0]
    raise LookupError("no sides")


# JSON from strangers, read at a bounded cost. A parser holds the interpreter's lock until it is
# done, so its cost is counted before. A unit is about 40 ns, as a small number takes; long strings
# cost next to nothing, so pictures in base64 may fill the body.
#
#     cost = commas + backslashes + 2 quotes + 5 brackets + 10 braces

MOST_COST = 50_000
COSTS = {b",": 1, b"\\": 1, b'"': 2, b"[": 5, b"{": 10}
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,64};base64,")


def read_json(body: bytes) -> Any:
    """Return what a body holds, or raise RefusedError."""
    require_cheap(body)
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RefusedError(422, f"the body is not JSON: {error}") from None


def read_json_as(kind: type[M], body: bytes) -> M:
    """Return what a body holds as a type, or raise RefusedError with the first that is wrong."""
    try:
        return kind.model_validate(read_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RefusedError(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def require_cheap(body: bytes) -> None:
    """Refuse JSON that would cost more to read."""
    if sum(weight * body.count(mark) for mark, weight in COSTS.items()) > MOST_COST:
        words = f"JSON may hold about {MOST_COST:,} numbers"
        raise RefusedError(413, f"{words}; send pictures as files or base64")


def from_base64(text: object) -> bytes:
    """Return the bytes of base64, which may stand in a data URL of an image."""
    if not isinstance(text, str):
        raise RefusedError(422, "a picture must be text in base64")
    address = DATA_URL.match(text)
    try:
        return base64.b64decode(text[address.end() if address else 0 :], validate=True)
    except ValueError:
        raise RefusedError(422, "a picture must be in base64, or an image's data URL") from None


def json_list(parts: Iterable[bytes]) -> bytes:
    """Return a JSON list of parts that are JSON."""
    return b"[" + b",".join(parts) + b"]"
