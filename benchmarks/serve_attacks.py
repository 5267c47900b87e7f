"""Five attacks on a server, alone and behind nginx, beside honest clients.

    python benchmarks/serve_attacks.py [--seconds 40] [--scale 1] [--roads ...] [--loads ...]

    none       nobody attacks: what the others are compared with
    mix        eight requests that are costly to answer, again and again, and 200 idle connections
    slow       600 bodies that come a byte a second, from 600 addresses
    idle       1,100 connections that say nothing, from 40 addresses
    held       40 bodies of 28 MB whose last byte does not come, from 40 addresses
    pictures   one address with 16 forms of 16 large pictures at once

Eight honest clients of addresses of their own send a photo, wait for its labels, and go on after
0.2 s. Each load has a server of its own, with one limit of open files for the server and nginx,
which reads ``deploy/nginx.conf``. Printed: requests answered of those sent, p50 and p99, statuses,
and the memory of all processes of the server. The model is trained here on the eye of the package;
results at full scale go to ``benchmarks/results/serve_attacks.json``.
"""

import argparse
import asyncio
import base64
import io
import json
import multiprocessing
import random
import re
import resource
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from PIL import Image
from serve_load import request_bytes, resident

HONEST = 8
PAUSE = 0.2  # seconds between an answer and the next request
FILES = 4096  # open files of the server, and of each process of nginx
PREDICT = "/api/v1/predict"
FORM = "multipart/form-data; boundary=B"
PART = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
CONFIG = Path(__file__).parents[1] / "deploy" / "nginx.conf"
RESULTS = Path(__file__).parent / "results" / "serve_attacks.json"


# What is sent


def jpeg(seed: int, size: tuple[int, int] = (1280, 960)) -> bytes:
    draw, buffer = random.Random(seed), io.BytesIO()
    small = Image.frombytes("RGB", (80, 60), draw.randbytes(80 * 60 * 3))
    small.resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def large_pictures() -> bytes:
    picture = io.BytesIO()
    Image.new("L", (9000, 9000)).save(picture, "WEBP", lossless=True, method=0)
    return (PART + picture.getvalue() + b"\r\n") * 16 + b"--B--\r\n"


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()


def costly() -> dict[str, bytes]:
    """Return whole requests that are costly to answer."""
    long = base64.b64encode(bytes(20 << 20)).decode()
    chunks = head("POST /api/v1/session", "Transfer-Encoding: chunked") + b"1\r\n \r\n" * 30_000
    lines = PART + b"\r" * (30 << 20) + b"\r\n--B--\r\n"
    return {
        "cookie": head("GET /api/v1/model", "Cookie: " + "\\" * 15_000),
        "cookie too long": head("GET /api/v1/model", "Cookie: " + "\\" * 64_000),
        "many headers": head("GET /", *["a: b"] * 10_000),
        "tiny chunks": chunks,
        "nested lists": request_bytes(
            PREDICT, b"[" + b"[]," * 8_000_000 + b"1]", "application/json"
        ),
        "long base64": request_bytes(
            PREDICT, json.dumps({"pictures": [long]}).encode(), "application/json"
        ),
        "form of line ends": request_bytes(PREDICT, lines, FORM),
        "large pictures": request_bytes(PREDICT, large_pictures(), FORM),
    }


def unfinished(length: int) -> bytes:
    return head(f"POST {PREDICT}", "Content-Type: image/jpeg", f"Content-Length: {length}")


class Road:
    """How the server is reached: its port, and TLS where nginx is before it."""

    def __init__(self, port: int, tls: bool) -> None:
        self.port, self.tls = port, tls

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    async def open(
        self, address: str, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, local_addr=(address, 0)
        )


async def ask(road: Road, address: str, content: bytes, context: ssl.SSLContext | None) -> int:
    """Return the status of one request on a connection of its own, 0 where there is no answer."""
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        reader, writer = await road.open(address, context)
        try:
            writer.write(content)
            with suppress(ConnectionError):  # the answer may come before all was sent
                await writer.drain()
            status = int((await reader.readuntil(b"\r\n")).split()[1])
            await reader.readuntil(b"\r\n\r\n")
            return status
        finally:
            writer.transport.abort()
    return 0


# Attackers


async def repeat(road: Road, address: str, content: bytes, counts: Counter[int]) -> None:
    context = road.context()
    while True:
        counts[await ask(road, address, content, context)] += 1
        await asyncio.sleep(0.05)


async def hold(
    road: Road, address: str, content: bytes, slowly: bool, counts: Counter[int]
) -> None:
    """Hold a connection on which something was sent; open it again when it is ended."""
    context = road.context()
    while True:
        with suppress(OSError, asyncio.TimeoutError):
            reader, writer = await road.open(address, context)
            counts[1] += 1
            try:
                writer.write(content)
                await writer.drain()
                while slowly:
                    writer.write(b"x")
                    await writer.drain()
                    if reader.at_eof():
                        break
                    await asyncio.sleep(1)
                await reader.read()
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.5)


def address_of(number: int) -> str:
    return f"127.1.{number // 250}.{1 + number % 250}"


def attackers(load: str, road: Road, scale: float, counts: dict[str, Counter[int]]) -> Iterator:
    """Yield the tasks of a load."""

    def some(number: int) -> range:
        return range(max(1, round(number * scale)))

    def counter(name: str) -> Counter[int]:
        return counts.setdefault(name, Counter())

    if load == "mix":
        for name, content in costly().items():
            yield repeat(road, "127.1.0.1", content, counter(name))
        for _ in some(200):
            yield hold(road, "127.1.0.1", b"", False, counter("idle"))
    elif load == "slow":
        for number in some(600):
            address, content = address_of(number), unfinished(200_000)
            yield hold(road, address, content, True, counter("slow bodies"))
    elif load == "idle":
        for number in some(1100):
            yield hold(road, address_of(number % 40), b"", False, counter("idle"))
    elif load == "held":
        for number in some(40):
            content = unfinished(28_000_001) + bytes(28_000_000)
            yield hold(road, address_of(number), content, False, counter("held bodies"))
    elif load == "pictures":
        content = request_bytes(PREDICT, large_pictures(), FORM)
        for _ in some(16):
            yield repeat(road, "127.1.0.1", content, counter("forms"))


def attack(
    load: str, road: Road, scale: float, seconds: float, told: multiprocessing.Queue
) -> None:
    """Carry out a load in a process of its own; tell how many requests had which status."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    counts: dict[str, Counter[int]] = {}

    async def run() -> None:
        tasks = [asyncio.ensure_future(one) for one in attackers(load, road, scale, counts)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()

    asyncio.run(run())
    told.put({name: dict(sorted(some.items())) for name, some in counts.items()})


# Honest clients


def measure(road: Road, seconds: float) -> dict[str, object]:
    """Return what eight honest clients saw: answers, times in milliseconds, statuses."""
    times, statuses = [], Counter[int]()

    bodies = [request_bytes(PREDICT, jpeg(number)) for number in range(HONEST)]
    context = road.context()

    async def client(number: int, end: float) -> None:
        await asyncio.sleep(PAUSE * number / HONEST)
        while time.perf_counter() < end:
            began = time.perf_counter()
            status = 0
            with suppress(asyncio.TimeoutError):
                work = ask(road, f"127.0.0.{number + 2}", bodies[number], context)
                status = await asyncio.wait_for(work, 30)
            statuses[status] += 1
            times.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(PAUSE)

    async def run() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(number, end) for number in range(HONEST)))

    asyncio.run(run())
    times.sort()
    return {
        "sent": len(times),
        "answered": statuses[200],
        "p50 ms": round(statistics.median(times)),
        "p99 ms": round(times[min(len(times) - 1, int(0.99 * len(times)))]),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
    }


# Servers


def make_run(folder: Path) -> Path:
    """Train a classifier on the eye of the package, with photos that are drawn here."""
    lines = ["path,labels"]
    for number in range(48):
        (folder / f"{number}.jpg").write_bytes(jpeg(number % 6, (320, 240)))
        lines.append(f"{number}.jpg,{'cat' if number % 2 else 'dog'}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "-m",
        "labelwise",
        "train",
        folder / "photos.csv",
        "-o",
        folder / "run",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return folder / "run"


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


@contextmanager
def labelwise(run: Path, temporary: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port and its process."""
    command = [sys.executable, "-m", "labelwise", "serve", str(run), "--port=0", *options]
    log = (temporary / "server.log").open("w")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=limit_files,
    ) as process:  # fmt: skip
        try:
            yield int(re.search(r":(\d+)/", process.stdout.readline())[1]), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            log.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def nginx(server: int, folder: Path) -> Iterator[int]:
    """Run nginx with the site that is deployed, before the server; yield its port."""
    key, certificate, port = folder / "key.pem", folder / "certificate.pem", free_port()
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
    made += ["/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    site = CONFIG.read_text().replace("listen 443", f"listen 127.0.0.1:{port}")
    site = site.replace("127.0.0.1:8000", f"127.0.0.1:{server}")
    site = site.replace("/etc/ssl/photos.example.pem", str(certificate))
    site = site.replace("/etc/ssl/photos.example.key", str(key))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; user root; pid {folder}/pid; error_log {folder}/error.log crit;\n"
        f"worker_rlimit_nofile {FILES}; events {{ worker_connections {FILES}; }}\n"
        f"http {{ access_log off;\n{paths}{site}}}\n"
    )
    with subprocess.Popen(["nginx", "-c", folder / "nginx.conf"]) as process:
        try:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                with socket.socket() as line:
                    if not line.connect_ex(("127.0.0.1", port)):
                        break
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def meet(load: str, behind: str, run: Path, scale: float, seconds: float) -> dict[str, object]:
    """Return what one load did to a server of its own."""
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = ("--trusted-proxy=127.0.0.1",) if behind == "nginx" else ()
        port, pid = stack.enter_context(labelwise(run, temporary, *options))
        if behind == "nginx":
            port = stack.enter_context(nginx(port, temporary))
        road, told = Road(port, behind == "nginx"), multiprocessing.Queue()
        measure(road, 1)
        before, most = resident(pid), [0.0]
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(0.5):
                most[0] = max(most[0], resident(pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        work = multiprocessing.Process(target=attack, args=(load, road, scale, seconds + 3, told))
        work.start()
        time.sleep(3)  # the attack is under way
        seen = measure(road, seconds)
        statuses = told.get(timeout=600)  # a busy machine takes its time to end them
        work.join()
        is_over.set()
        watcher.join()
        answered = measure(road, 2)
        log = (temporary / "server.log").stat().st_size
    return {
        **seen,
        "memory MiB, before and at most": [round(before), round(most[0])],
        "bytes of the log": log,
        "afterwards": f"{answered['answered']} of {answered['sent']}",
        "attackers": statuses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    loads = ("none", "mix", "slow", "idle", "held", "pictures")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load")
    parser.add_argument("--scale", type=float, default=1.0, help="of the attackers' numbers")
    parser.add_argument(
        "--roads", nargs="+", default=["alone", "nginx"], choices=["alone", "nginx"]
    )
    parser.add_argument("--loads", nargs="+", default=loads, choices=loads)
    told = parser.parse_args()
    if "nginx" in told.roads and shutil.which("nginx") is None:
        raise SystemExit("nginx is not installed; say --roads alone")
    found: dict[str, object] = {"files": FILES, "seconds": told.seconds, "scale": told.scale}
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        for behind in told.roads:
            for load in told.loads:
                seen = meet(load, behind, run, told.scale, told.seconds)
                found[f"{behind}: {load}"] = seen
                print(f"{behind}: {load}: {json.dumps(seen)}", flush=True)
                if told.scale == 1:
                    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
