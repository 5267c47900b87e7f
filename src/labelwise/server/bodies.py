"""Bodies of requests within one budget of memory; what is beyond it waits on disk.

    arriving      in memory while half of the budget has room, else in a temporary file
    complete      read back into memory when the other half has room, in the order of arrival
    answered      or given up: given back at once, and to the system where it was much

So clients that send half of what they announced hold half of the memory at most, and no complete
body waits for them. Beyond the limit on disk the answer is 429.
"""

import asyncio
import base64
import re
import struct
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Message, Receive, Scope

from labelwise.base.allocator import give_back_freed_memory
from labelwise.base.text import one_line
from labelwise.pictures.decode import MAX_PIXELS
from labelwise.server.security import CLOSE, RefusedError, picture_route

# Long bytes are searched and copied in pieces, so that other threads run between two: a call of C
# code holds the interpreter's lock until it is done. 64 KiB take less than a millisecond.

PIECE = 1 << 16
BOUNDARY = re.compile(
    r';\s*boundary=(?:"([ -!#-~]{1,70})"|([^\s;,"]{1,70}))\s*(?:;|$)', re.ASCII | re.I
)
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
Pixels = NDArray[Any]  # uint8 (H, W, 3), or float32 (H, W, bands)


@dataclass(frozen=True)
class Upload:
    """A picture of a request: its name and its encoded bytes, or its pixels (H, W, 3)."""

    name: str
    content: bytes | Pixels


def copied(content: bytes | memoryview, start: int, end: int) -> bytes:
    """Return ``content[start:end]``, which is copied in pieces."""
    end = min(end, len(content))
    # As bytes, of which many are joined without the lock; views would keep it.
    return b"".join(bytes(content[at : min(at + PIECE, end)]) for at in range(start, end, PIECE))


class _Form(MultiPartParser):
    spool_max_size = 1 << 40  # files stay in memory: their bytes are counted already
    has_end = False

    def on_end(self) -> None:
        self.has_end = True


async def read_form(parts: AsyncIterable[bytes], content_type: str, most: int) -> list[Upload]:
    """Return the files of a form, ``most`` of them and as many other fields at most."""
    match = BOUNDARY.search(content_type)
    if match is None:
        raise _unreadable("its Content-Type names no boundary")
    headers = Headers({"content-type": f'form-data; boundary="{match[1] or match[2]}"'})

    async def pieces() -> AsyncGenerator[bytes]:
        async for chunk in parts:
            for at in range(0, len(chunk), PIECE):
                yield chunk[at : at + PIECE]
                await asyncio.sleep(0)  # others have a turn
        if not reader.has_end:  # Starlette would leave out the last part
            raise MultiPartException("a part has no end")

    reader = _Form(headers, pieces(), max_files=most, max_fields=most, max_part_size=FIELD_BYTES)
    try:
        form = await reader.parse()
    except MultiPartException as error:
        raise _unreadable(error.message) from None
    uploads = []
    for _, file in form.multi_items():
        if isinstance(file, UploadFile):
            name = (file.filename or "").replace("\\", "/").rpartition("/")[2]  # only shown
            name = one_line(name or "picture")[:NAME_LENGTH]
            uploads.append(Upload(name, await file.read()))
    await form.close()
    return uploads


def _unreadable(why: str) -> RefusedError:
    return RefusedError(400, f"the form cannot be read: {why}")


def claimed_pixels(content: bytes | Pixels) -> int:
    """Return the pixels that a PNG, GIF, BMP, WebP or JPEG says it has; else the most there may be.

    They decide only whose turn it is: a picture that lies is caught where it is decoded.
    """
    if not isinstance(content, bytes):
        return content.size // 3
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
# done, so its cost is counted before, piece by piece. A unit is about 40 ns, as a small number
# takes; long strings cost next to nothing, so pictures in base64 may fill the body.
#
#     cost = commas + backslashes + 2 quotes + 5 brackets + 10 braces + 5 runs of 19 digits
#          <= 450,000     a picture of 224 x 224 in lists of lists takes 403,000
#          <=  50,000     where the framework reads it, on the event loop, and lists every error
#
# Letters beyond ASCII make a string several times as large, so long JSON has none.

MOST, SMALL_COST = 450_000, 50_000
COSTS = {b",": 1, b"\\": 1, b'"': 2, b"[": 5, b"{": 10}
OTHERS = bytes(code for code in range(256) if bytes([code]) not in COSTS)
LONG = 1 << 20
DIGITS = 64
DIGITS_AS_ZEROS = bytes(48 if 48 <= code < 58 else 32 for code in range(256))
BIG_NUMBER, BIG_COST = b"0" * 19, 5
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,64};base64,")


def read_json(body: bytes) -> Any:
    """Return what a body holds, or raise RefusedError."""
    require_cheap(body, MOST)
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


def require_cheap(body: bytes, most: int) -> None:
    """Refuse JSON that would cost more to read."""
    cost = 0
    for start in range(0, len(body), PIECE):
        piece = body[start : start + PIECE + DIGITS - 1]
        marks = piece[:PIECE].translate(None, OTHERS)
        cost += sum(weight * marks.count(mark) for mark, weight in COSTS.items())
        digits = piece.translate(DIGITS_AS_ZEROS)
        cost += BIG_COST * digits.count(BIG_NUMBER)
        if cost > most:
            raise RefusedError(413, f"JSON may hold about {most:,} numbers here; send files")
        if b"0" * DIGITS in digits:
            raise RefusedError(422, f"JSON may not hold {DIGITS} digits in a row")
        if len(body) > LONG and not piece.isascii():
            raise RefusedError(422, f"JSON of more than {LONG:,} bytes must be ASCII, with \\u....")


def from_base64(text: Any) -> bytes:
    """Return the bytes of base64, which may stand in a data URL of an image."""
    if not isinstance(text, str):
        raise RefusedError(422, "a picture must be text in base64")
    address = DATA_URL.match(text)
    start = address.end() if address else 0
    pieces = [text[at : at + PIECE] for at in range(start, len(text), PIECE)]
    try:
        if any("=" in piece for piece in pieces[:-1]):
            raise ValueError("only the end of base64 is padded")
        return b"".join([base64.b64decode(piece, validate=True) for piece in pieces])
    except ValueError:
        raise RefusedError(422, "a picture must be in base64, or an image's data URL") from None


def json_list(parts: Iterable[bytes]) -> bytes:
    """Return a JSON list of parts that are JSON."""
    return b"[" + b",".join(parts) + b"]"


def json_object(facts: dict[str, Any], written: dict[str, bytes]) -> bytes:
    """Return a JSON object of some facts, and of others that are JSON already."""
    more = (b"," + to_json(name) + b":" + value for name, value in written.items())
    return b"".join([to_json(facts)[:-1], *more, b"}"])


METHODS_WITH_BODY = ("POST", "PUT", "PATCH")
WORTH_GIVING_BACK = 64 << 20


class Budget:
    """A byte budget with FIFO waiters."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0
        self.most = 0  # at any moment since it was last set to what is used
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, count: int) -> bool:
        if self._waiting or self.used + count > self.size:
            return False
        self.used += count
        self.most = max(self.most, self.used)
        return True

    async def take(self, count: int) -> None:
        """Take bytes once there are as many; more than the budget once nobody has any."""
        if self.take_now(count):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        self.give(0)  # at once, where nobody has any
        try:
            await turn
        except asyncio.CancelledError:
            self.give(count if turn.done() and not turn.cancelled() else 0)
            raise

    def give(self, count: int) -> None:
        self.used -= count
        while self._waiting:
            count, turn = self._waiting[0]
            if not turn.done():
                if self.used and self.used + count > self.size:
                    return
                self.used += count
                self.most = max(self.most, self.used)
                turn.set_result(None)
            self._waiting.popleft()


class Bodies:
    """Takes the body of each request as a whole before the application sees the request."""

    def __init__(self, memory: int, disk: int) -> None:
        self.arriving, self.whole = Budget(memory // 2), Budget(memory - memory // 2)
        self.disk = Budget(disk)

    @asynccontextmanager
    async def taken(self, scope: Scope, receive: Receive) -> AsyncIterator[Receive]:
        if scope["method"] not in METHODS_WITH_BODY:
            yield receive
            return
        body = _Body(receive, self)
        try:
            await body.fill()
            if picture_route(scope["path"]) is None:  # the event loop itself reads it
                require_cheap(b"".join(body.parts), SMALL_COST)
            yield body.next_part
        finally:
            body.parts.clear()
            self.arriving.give(body.arrived)
            self.whole.give(body.loaded)
            body.leave_disk()
            memory = (self.arriving, self.whole)
            if sum(half.most - half.used for half in memory) > WORTH_GIVING_BACK:
                for half in memory:
                    half.most = half.used
                await asyncio.to_thread(give_back_freed_memory)


@dataclass(eq=False)
class _Body:
    receive: Receive
    budgets: Bodies
    parts: deque[bytes] = field(default_factory=deque)
    file: IO[bytes] | None = None
    arrived: int = 0  # bytes in memory
    loaded: int = 0  # bytes in memory, from disk
    on_disk: int = 0
    is_over: bool = False

    async def fill(self) -> None:
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(408, "the client has gone")  # nobody reads it; it is counted
            chunk, more = message.get("body", b""), message.get("more_body", False)
            if self.file is None and self.budgets.arriving.take_now(len(chunk)):
                self.arrived += len(chunk)
                self.parts.append(chunk)
            elif chunk:
                await self._spool([*self.parts, chunk])
        if self.file is not None:
            file = self.file
            await self.budgets.whole.take(self.on_disk)
            self.loaded = self.on_disk
            file.seek(0)
            self.parts.append(await asyncio.to_thread(file.read))
            self.leave_disk()

    async def _spool(self, parts: list[bytes]) -> None:
        size, later = sum(map(len, parts)), {"retry-after": "5"} | CLOSE
        if not self.budgets.disk.take_now(size):
            raise RefusedError(429, "the server has as many bytes as it takes; try again", later)
        self.on_disk += size
        try:
            await asyncio.to_thread(self._write, parts)
        except OSError:  # a disk that is full, or may only be read
            raise RefusedError(503, "the disk has no room for the bodies", later) from None
        self.parts.clear()
        self.budgets.arriving.give(self.arrived)
        self.arrived = 0

    def _write(self, parts: list[bytes]) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(prefix="labelwise-")  # noqa: SIM115
        self.file.writelines(parts)
        self.file.flush()

    async def next_part(self) -> Message:
        """Hand the body over, and then say when the client goes: what an application receives."""
        if self.is_over:
            return await self.receive()
        chunk = self.parts.popleft() if self.parts else b""
        self.is_over = not self.parts
        return {"type": "http.request", "body": chunk, "more_body": not self.is_over}

    def leave_disk(self) -> None:
        if self.file is not None:
            with suppress(OSError):  # what a full disk did not take is given up with the file
                self.file.close()
            self.file = None
        self.budgets.disk.give(self.on_disk)
        self.on_disk = 0
