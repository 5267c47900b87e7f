"""A mix of attacks on a server of one's own, on the loopback address: each kind in a thread.

The attackers come from 127.0.0.1. What is measured: a good client and one that asks for health,
from addresses of their own, and one that sends single photos from the attackers' address.
"""

import base64
import io
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPResponse

from PIL import Image
from serve_load import request_bytes

WAIT = 60.0


def connected(port: int, address: str) -> socket.socket:
    line = socket.socket()
    line.settimeout(WAIT)
    line.bind((address, 0))
    line.connect(("127.0.0.1", port))
    return line


def asked(port: int, address: str, content: bytes) -> int:
    """Return the status of one request on a connection of its own, 0 where there is no answer."""
    with suppress(OSError), connected(port, address) as line:
        line.sendall(content)
        answer = HTTPResponse(line)
        answer.begin()
        answer.read()
        return answer.status
    return 0


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def attacks() -> dict[str, bytes]:
    """Return whole requests that are costly to answer."""
    picture = io.BytesIO()
    Image.new("L", (9000, 9000)).save(picture, "WEBP", lossless=True, method=0)
    start = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    form = "multipart/form-data; boundary=B"
    text = "application/json"
    long = base64.b64encode(bytes(20 << 20)).decode()
    predict = "/api/v1/predict"
    return {
        "cookie": head("GET /api/v1/model", "Cookie: " + "\\" * 15_000),
        "cookie too long": head("GET /api/v1/model", "Cookie: " + "\\" * 64_000),
        "many headers": head("GET /", *["a: b"] * 10_000),
        "tiny chunks": head("POST /api/v1/session", "Transfer-Encoding: chunked")
        + b"1\r\n \r\n" * 30_000,
        "nested lists": request_bytes(predict, b"[" + b"[]," * 8_000_000 + b"1]", text),
        "long base64": request_bytes(predict, json.dumps({"pictures": [long]}).encode(), text),
        "form of line ends": request_bytes(
            predict, start + b"\r" * (30 << 20) + b"\r\n--B--\r\n", form
        ),
        "large pictures": request_bytes(
            predict, (start + picture.getvalue() + b"\r\n") * 16 + b"--B--\r\n", form
        ),
    }


def repeat(port: int, content: bytes, is_over: threading.Event, counts: dict[int, int]) -> None:
    while not is_over.is_set():
        status = asked(port, "127.0.0.1", content)
        counts[status] = counts.get(status, 0) + 1
        is_over.wait(0.05)


def hold(port: int, content: bytes, count: int, is_over: threading.Event) -> None:
    """Hold connections on which something was sent, and open them again when they are ended."""
    lines: list[socket.socket] = []
    while not is_over.is_set():
        with suppress(OSError):
            line = connected(port, "127.0.0.1")
            line.sendall(content)
            lines.append(line)
        while len(lines) > count:
            lines.pop(0).close()
        is_over.wait(0.02)
    for line in lines:
        line.close()


def measure(port: int, address: str, content: bytes, is_over: threading.Event, pause: float):
    """Return the milliseconds of each answer by status."""
    times: dict[int, list[float]] = {}
    while not is_over.is_set():
        began = time.perf_counter()
        status = asked(port, address, content)
        times.setdefault(status, []).append(1000 * (time.perf_counter() - began))
        is_over.wait(pause)
    return times


def run_mix(
    port: int, photo: bytes, seconds: float, each_second: Callable[[], None]
) -> tuple[dict[str, dict[int, list[float]]], dict[str, dict[int, int]]]:
    """Attack for some time; return the times of those who are measured, and statuses."""
    is_over = threading.Event()
    half = head("POST /api/v1/predict", "Content-Type: image/png", "Content-Length: 32505856")
    counts: dict[str, dict[int, int]] = {name: {} for name in attacks()}
    threads = [
        threading.Thread(target=repeat, args=(port, content, is_over, counts[name]))
        for name, content in attacks().items()
    ]
    for content, count in ((b"", 200), (b"GET / HTTP/1.1\r\n", 300), (half + bytes(2 << 20), 60)):
        threads.append(threading.Thread(target=hold, args=(port, content, count, is_over)))
    measured: dict[str, dict[int, list[float]]] = {}
    predict = request_bytes("/api/v1/predict", photo)

    def note(name: str, address: str, content: bytes) -> None:
        measured[name] = measure(port, address, content, is_over, 0.2)

    for given in (
        ("good client", "127.0.0.2", predict),
        ("health", "127.0.0.3", head("GET /health/live")),
        ("at the attacked address", "127.0.0.1", predict),
    ):
        threads.append(threading.Thread(target=note, args=given))
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        each_second()
        time.sleep(1)
    is_over.set()
    for thread in threads:
        thread.join()
    return measured, counts
