"""A served model under load, beside plain FastAPI with the same model, in one run on loopback.

    floor       decode and forward of one photo in this process, no server
    one         one client after the other: median time of a request above the floor
    sixteen     16 clients: photos per second, beside the same server without batches and FastAPI
    overload    ten times more clients than the queue holds: how fast 429 comes, what is broken
                (5xx), and whether a single request is as fast afterwards

All servers run in processes of their own with the same number of threads; the load comes from this
process, which takes its share of the cores. The model has random weights: its answers mean nothing.
"""

import argparse
import asyncio
import http.client
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from labelwise.backbones import create_backbone
from labelwise.decide import Threshold
from labelwise.links import Sigmoid
from labelwise.predictor import HeadSpec, Model, Predictor
from labelwise.types import LabelSpace

LABELS = 80
QUEUE = 16
REST = 0.2


def make_model(folder: Path, backbone: str, size: int) -> None:
    torch.manual_seed(0)
    network = create_backbone(backbone, image_size=size)
    head = HeadSpec("linear", {})
    model = Model(network, head.make(network.channels, LABELS)).eval()
    space = LabelSpace(tuple(f"label {n}" for n in range(LABELS)))
    Predictor(model, head, space, Sigmoid(), Threshold(0.5), "bce").save(folder)


def photo() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((1280, 960), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def plain_fastapi(folder: str) -> None:
    """Serve a model the way tutorials do: one request, one forward pass, in FastAPI's threads."""
    import uvicorn
    from fastapi import FastAPI, Request

    predictor = Predictor.load(folder)
    app = FastAPI()

    def answer(body: bytes) -> dict[str, float]:
        answer = predictor.predict([body], workers=1)
        return dict(zip(predictor.space.names, answer.probs[0].tolist(), strict=True))

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, float]:
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(answer, await request.body())

    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False)
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(f"plain at http://127.0.0.1:{port}/", flush=True)
        await serving

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@contextmanager
def running(command: list[str]):
    """Run a server that prints its address; yield the port and the process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(re.search(r":(\d+)/", process.stdout.readline())[1]), process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def ours(folder: Path, **options):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    base = [sys.executable, "-m", "labelwise", "serve", str(folder), "--port=0", "--rate=0"]
    return running([*base, *words])


def plain(folder: Path):
    return running([sys.executable, __file__, "--plain", str(folder)])


class Load:
    """Clients that ask one request after another until the time is over."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self.port, self.path, self.body = port, path, body
        self.answers: list[tuple[int, float]] = []

    def run(self, clients: int, seconds: float) -> "Load":
        self.end = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self

    def _client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while time.monotonic() < self.end:
            began = time.perf_counter()
            try:
                connection.request("POST", self.path, self.body, {"Content-Type": "image/jpeg"})
                response = connection.getresponse()
                response.read()
                status = response.status
            except OSError:
                connection.close()
                status = 0
            self.answers.append((status, 1000 * (time.perf_counter() - began)))
            if status == 429:
                time.sleep(REST)  # so that the load's own threads do not fill the cores

    def times(self, status: int = 200) -> list[float]:
        return sorted(ms for got, ms in self.answers if got == status)

    def share(self, part: float, status: int = 200) -> float:
        times = self.times(status)
        return times[min(len(times) - 1, int(part * len(times)))] if times else float("nan")

    def counts(self) -> dict[int, int]:
        statuses = [status for status, _ in self.answers]
        return {status: statuses.count(status) for status in sorted(set(statuses))}


def resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def floor(folder: Path, body: bytes) -> float:
    predictor, times = Predictor.load(folder), []
    for _ in range(30):
        began = time.perf_counter()
        predictor.predict([body], workers=1)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backbone", default="small-cnn")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if given.plain:
        plain_fastapi(given.plain)
        return
    body = photo()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        make_model(folder, given.backbone, given.size)
        least = floor(folder, body)
        print(f"{given.backbone} at {given.size}: decode + forward {least:.1f} ms")
        path = "/api/v1/predict"
        began = time.perf_counter()
        with ours(folder, max_queue=QUEUE * 4, max_files=1) as (port, process):
            print(f"start {time.perf_counter() - began:.1f} s until requests are taken")
            Load(port, path, body).run(2, 1.0)
            single = Load(port, path, body).run(1, given.seconds)
            many = Load(port, path, body).run(16, given.seconds)
            before = resident(process.pid)
            Load(port, path, body).run(16, given.seconds)
            grown = resident(process.pid) / before
        with ours(folder, max_batch=1, max_queue=QUEUE * 4, max_files=1) as (port, _):
            Load(port, path, body).run(2, 1.0)
            alone = Load(port, path, body).run(16, given.seconds)
        with plain(folder) as (port, _):
            Load(port, "/predict", body).run(2, 1.0)
            peer_single = Load(port, "/predict", body).run(1, given.seconds)
            peer_many = Load(port, "/predict", body).run(16, given.seconds)
        with ours(folder, max_queue=QUEUE, max_files=1) as (port, _):
            Load(port, path, body).run(2, 1.0)
            flood = Load(port, path, body).run(10 * QUEUE, given.seconds)
            after = Load(port, path, body).run(1, given.seconds)
    rate = {
        name: len(load.times()) / given.seconds
        for name, load in {"ours": many, "unbatched": alone, "fastapi": peer_many}.items()
    }
    print(
        f"one client: p50 {single.share(0.5):.1f} ms, {single.share(0.5) - least:+.1f} ms above "
        f"the floor; plain FastAPI {peer_single.share(0.5):.1f} ms"
    )
    print(
        f"16 clients: {rate['ours']:.0f} photos/s, {rate['ours'] / rate['unbatched']:.2f} x "
        f"without batches, {rate['ours'] / rate['fastapi']:.2f} x plain FastAPI; "
        f"p50 {many.share(0.5):.0f}, p99 {many.share(0.99):.0f} ms; memory x {grown:.2f}"
    )
    print(
        f"{10 * QUEUE} clients on a queue of {QUEUE}: answers {json.dumps(flood.counts())}, "
        f"429 after p50 {flood.share(0.5, 429):.0f} and p95 {flood.share(0.95, 429):.0f} ms"
    )
    print(
        f"afterwards one client: p50 {after.share(0.5):.1f} ms, "
        f"{after.share(0.5) / single.share(0.5):.2f} x what it was before"
    )


if __name__ == "__main__":
    main()
