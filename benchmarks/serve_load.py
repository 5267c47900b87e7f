"""Load for a server on the loopback address, and where the processor's time goes meanwhile.

The load comes from one thread that sends ready-made bytes, so that it takes little of the cores it
shares with the server; what it takes is measured and shown too. Closed load asks again as soon as
an answer has come; open load asks at fixed times whether answers come or not, and times each from
the moment it was due.
"""

import asyncio
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TICKS = os.sysconf("SC_CLK_TCK")
REST = 0.2  # seconds that a client of closed load waits after a refusal


def request_bytes(path: str, body: bytes | None = None, kind: str = "image/jpeg") -> bytes:
    """Return a request as it goes over the wire; without a body it is a GET."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Answers:
    """Milliseconds of each request by status; seconds that the load took, and of processor."""

    seconds: float = 0.0
    cpu: float = 0.0
    times: dict[int, list[float]] = field(default_factory=dict)

    def add(self, status: int, milliseconds: float) -> None:
        self.times.setdefault(status, []).append(milliseconds)

    def quantile(self, part: float, status: int = 200) -> float:
        times = sorted(self.times.get(status, []))
        return times[min(len(times) - 1, int(part * len(times)))] if times else float("nan")

    def rate(self, status: int = 200) -> float:
        return len(self.times.get(status, [])) / self.seconds

    def counts(self) -> dict[str, int]:
        names = {0: "broken", -1: "not sent"}
        return {str(names.get(one, one)): len(self.times[one]) for one in sorted(self.times)}


class _Connection(asyncio.Protocol):
    """One connection: sends a request, tells the status and the time of its first byte."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.waiter: asyncio.Future[int] | None = None
        self.received = bytearray()
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.received += data
        head = self.received.find(b"\r\n\r\n")
        if head < 0 or self.waiter is None:
            return
        length = LENGTH.search(self.received, 0, head + 2)
        if len(self.received) >= head + 4 + (int(length[1]) if length else 0):
            status = int(self.received[9:12])
            self.problem = "" if status < 400 else self.received[head + 4 :].decode()
            self.received.clear()
            self._tell(status)

    def connection_lost(self, error: Exception | None) -> None:
        self._tell(0)

    @property
    def is_closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def _tell(self, status: int) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(status)

    async def ask(self, request: bytes) -> int:
        """Return the status of the answer, 0 if the connection broke."""
        assert self.transport is not None
        if self.is_closed:
            return 0
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.waiter


async def _connect(port: int) -> _Connection:
    loop = asyncio.get_running_loop()
    for attempt in range(20):
        try:
            return (await loop.create_connection(_Connection, "127.0.0.1", port))[1]
        except OSError:
            await asyncio.sleep(0.05 * (attempt + 1))
    raise OSError("the server takes no connection")


def closed_load(port: int, request: bytes, clients: int, seconds: float) -> Answers:
    """Return the answers that clients get who ask one request after another, at least one."""
    answers = Answers()

    async def client(end: float) -> None:
        connection = await _connect(port)
        while True:
            began = time.perf_counter()
            status = await connection.ask(request)
            answers.add(status, 1000 * (time.perf_counter() - began))
            if status == 429:
                await asyncio.sleep(REST)
            elif status == 0:
                connection = await _connect(port)
            if time.perf_counter() >= end:
                break
        if connection.transport is not None:
            connection.transport.close()

    async def run() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(end) for _ in range(clients)))

    return _timed(run, answers)


def _timed(run, answers: Answers) -> Answers:
    began, used = time.perf_counter(), time.process_time()
    asyncio.run(run())
    answers.seconds, answers.cpu = time.perf_counter() - began, time.process_time() - used
    return answers


# Where the time goes


class Processor:
    """Seconds of processor time since it was made: by part of the server, the load, and others."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.cores = len(os.sched_getaffinity(0))
        self.began, self.before = time.perf_counter(), self._now()

    def _now(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for process in (self.server, *_descendants(self.server)):
            for task in Path(f"/proc/{process}/task").iterdir():
                try:
                    text = (task / "stat").read_text()
                except OSError:
                    continue
                name, rest = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2]
                seconds = sum(map(int, rest.split()[11:13])) / TICKS
                used[self._part(process, task.name, name)] += seconds
        used["load"] = time.process_time()
        used["idle"] = _idle()
        return used

    def _part(self, process: int, task: str, name: str) -> str:
        if process != self.server:
            return "decode"
        if task == str(self.server):
            return "HTTP"
        return {"lw-model": "forward", "lw-open": "passing on"}.get(name, "rest of server")

    def seconds(self) -> Counter[str]:
        """Return the processor time of each part since the start."""
        return self._now() - self.before

    def shares(self) -> dict[str, float]:
        """Return the share of all cores that each part had since the start."""
        whole = (time.perf_counter() - self.began) * self.cores
        used = self.seconds()
        shares = {name: seconds / whole for name, seconds in used.items()}
        shares["other programs"] = max(0.0, 1 - sum(shares.values()))
        return shares


def _descendants(pid: int) -> list[int]:
    found, parents = [], {pid}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    while parents:
        parents = {child for parent in parents for child in children.get(parent, [])}
        found += sorted(parents)
    return found


def _idle() -> float:
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, words[4:6])) / TICKS


def resident(pid: int) -> float:
    """Return the MiB that a process and its descendants have to themselves or share."""
    whole = 0
    for process in (pid, *_descendants(pid)):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        whole += int(re.search(r"^Pss: +(\d+)", text, re.MULTILINE)[1])
    return whole / 1024
