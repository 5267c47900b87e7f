"""Bodies of requests within one budget of memory; what is beyond it waits on disk.

    arriving      in memory while half of the budget has room, else in a temporary file
    whole         read back into memory when the other half has room, in the order of arrival
    answered      or given up, refused, too slow: given back at once, and to the system too
                  where it was much

So clients that send half of what they announced hold half of the memory at most, no whole body
waits for them, and no more disk than a limit of its own is taken, beyond which the answer is 429
(503: the disk is full).

The event loop itself reads bodies without pictures: they are refused if that would take it long.
"""

import asyncio
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.server.json_bodies import SMALL_COST, require_cheap
from labelwise.server.security import RefusedError, picture_route, problem
from labelwise.system.allocator import give_back_freed_memory

METHODS_WITH_BODY = ("POST", "PUT", "PATCH")
WORTH_GIVING_BACK = 64 << 20


class Budget:
    """So many bytes, taken and given back; who must wait for some comes in order."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0
        self.most = 0  # at any moment since it was last set to what is used
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, count: int) -> bool:
        """Take bytes if there are as many and nobody waits; return whether that was so."""
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
        """Give bytes back, and to those who wait what there is, in their order."""
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

    def __init__(self, app: ASGIApp, memory: int, disk: int) -> None:
        self.app = app
        self.arriving, self.whole = Budget(memory // 2), Budget(memory - memory // 2)
        self.disk = Budget(disk)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] not in METHODS_WITH_BODY:
            await self.app(scope, receive, send)
            return
        body = _Body(receive, self.arriving, self.whole, self.disk)
        try:
            await body.fill()
            if picture_route(scope["path"]) is None:
                require_cheap(body.content(), SMALL_COST)
        except RefusedError as refused:
            body.close()  # before the client takes its answer, however slowly
            await problem(refused.status, refused.detail, refused.headers)(scope, receive, send)
        else:
            await self.app(scope, body.next_part, send)
        finally:
            body.close()
            memory = (self.arriving, self.whole)
            if sum(half.most - half.used for half in memory) > WORTH_GIVING_BACK:
                for half in memory:
                    half.most = half.used
                await asyncio.to_thread(give_back_freed_memory)


@dataclass(eq=False)
class _Body:
    """The body of one request, in memory or on disk."""

    receive: Receive
    arriving: Budget
    whole: Budget
    disk: Budget
    _parts: deque[bytes] = field(default_factory=deque)
    _file: IO[bytes] | None = None
    _arrived: int = 0  # bytes in memory
    _loaded: int = 0  # bytes in memory, from disk
    _on_disk: int = 0
    _is_over: bool = False

    async def fill(self) -> None:
        """Receive the whole body into memory, or raise RefusedError."""
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(408, "the client has gone")  # nobody reads it; it is counted
            part, more = message.get("body", b""), message.get("more_body", False)
            if self._file is None and self.arriving.take_now(len(part)):
                self._arrived += len(part)
                self._parts.append(part)
            elif part:
                await self._spool(part)
        if self._file is not None:
            await self._load(self._file)

    async def _spool(self, part: bytes) -> None:
        parts = [*self._parts, part]
        size = sum(map(len, parts))
        if not self.disk.take_now(size):
            raise RefusedError(
                429,
                "the server has as many bytes of requests as it takes; try again",
                {"retry-after": "5", "connection": "close"},
            )
        self._on_disk += size
        try:
            await asyncio.to_thread(self._write, parts)
        except OSError:  # a disk that is full, or may only be read
            raise RefusedError(
                503,
                "the disk of the server has no room for the bodies of requests; try again later",
                {"retry-after": "5", "connection": "close"},
            ) from None
        self._parts.clear()
        self.arriving.give(self._arrived)
        self._arrived = 0

    def _write(self, parts: list[bytes]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="labelwise-")  # noqa: SIM115
        self._file.writelines(parts)
        self._file.flush()

    async def _load(self, file: IO[bytes]) -> None:
        """Read a body from disk as soon as memory has room."""
        await self.whole.take(self._on_disk)
        self._loaded = self._on_disk

        def read() -> bytes:
            file.seek(0)
            return file.read()

        self._parts.append(await asyncio.to_thread(read))
        self._leave_disk()

    def content(self) -> bytes:
        """Return the body, which must be in memory."""
        return b"".join(self._parts)

    async def next_part(self) -> Message:
        """Hand the body over, and then say when the client goes: what an application receives."""
        if self._is_over:
            return await self.receive()
        part = self._parts.popleft() if self._parts else b""
        self._is_over = not self._parts
        return {"type": "http.request", "body": part, "more_body": not self._is_over}

    def close(self) -> None:
        """Give everything back."""
        self._parts.clear()
        self.arriving.give(self._arrived)
        self.whole.give(self._loaded)
        self._arrived = self._loaded = 0
        if self._on_disk:
            self._leave_disk()

    def _leave_disk(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what a full disk did not take is given up with the file
                self._file.close()
            self._file = None
        self.disk.give(self._on_disk)
        self._on_disk = 0
