"""A served model under load on the loopback address, one part after the other or some of them:

    python benchmarks/serve.py [PART ...] [--backbone NAME] [--size PIXELS] [--seconds N]

    single      a request that is alone: its median above decode + forward in a process of its own
    clients     16 clients: photos per second beside the same server with batches of one, and which
                part of the program had the processor
    fair        two models of one server: how long one client of the second waits while 32 ask for
                the first

Servers run in processes of their own and take the same number of threads (OMP_NUM_THREADS). The
load shares the cores; how much it takes is printed. Weights are random: answers mean nothing.
"""

import argparse
import io
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import torch
from measure import record
from PIL import Image
from serve_load import Processor, closed_load, request_bytes

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.models.scoring import score
from labelwise.pictures import ArrayImages, BytesImages
from labelwise.types import LabelSpace

LABELS = 80
CLIENTS = 16
QUEUE = 16
PREDICT = "/api/v1/predict"
LABELWISE = ("-m", "labelwise")


@dataclass(frozen=True)
class Setting:
    folder: Path
    body: bytes
    seconds: float

    @property
    def request(self) -> bytes:
        return request_bytes(PREDICT, self.body)


def make_model(folder: Path, backbone: str, size: int, labels: int = LABELS) -> None:
    torch.manual_seed(0)
    network = create_backbone(backbone, image_size=size)
    head = HeadSpec("linear", {})
    model = Model(network, make_head(head, network.channels, labels)).eval()
    space = LabelSpace(tuple(f"label {n}" for n in range(labels)))
    Predictor(model, head, space, Sigmoid(), Threshold(0.5), "bce").save(folder)


def photo() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((1280, 960), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


# Servers


@contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port, which it prints, and its process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(re.search(r":(\d+)/", process.stdout.readline())[1]), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def ours(folder: Path, *arguments: str, **options: float):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    base = [sys.executable, *LABELWISE, "serve", str(folder), *arguments]
    return running([*base, "--port=0", *words])


# Parts


def single(setting: Setting) -> None:
    """Alternate between the floor and requests, so that both meet the same neighbours."""
    decode, forward = floor_steps(setting)
    began = time.perf_counter()
    with ours(setting.folder) as (port, pid):
        print(f"start: {time.perf_counter() - began:.1f} s until requests are taken")
        closed_load(port, setting.request, 1, 1.0)
        decodes, forwards, asked, own = [], [], [], []
        before, processor = server_times(port), Processor(pid)
        end = time.monotonic() + 2 * setting.seconds
        while time.monotonic() < end:
            for _ in range(3):
                began = time.process_time()
                decodes.append(milliseconds(decode))
                forwards.append(milliseconds(forward))
                own.append(1000 * (time.process_time() - began))
            asked += closed_load(port, setting.request, 1, 0.2).times[200]
        spent = processor.seconds()
        after = server_times(port)
    floor = statistics.median(decodes) + statistics.median(forwards)
    median = statistics.median(asked)
    print(
        f"single: p50 {median:.1f} ms of {len(asked)} requests; decode "
        f"{statistics.median(decodes):.1f} + forward {statistics.median(forwards):.1f} ms, so "
        f"{median - floor:+.1f} ms above the floor (goal: at most +5)"
    )
    each = 1000 * sum(spent[part] for part in SERVER_PARTS) / len(asked)
    above = each - statistics.median(own)
    print(f"  processor time: {each:.1f} ms per request, {above:+.1f} ms above decode + forward")
    record("serve-single", above)
    count = after["open_seconds_count"] - before["open_seconds_count"]
    opening, passing = (
        1000 * (after[f"{name}_seconds_sum"] - before[f"{name}_seconds_sum"]) / count
        for name in ("open", "forward")
    )
    rest = statistics.mean(asked) - opening - passing
    print(
        f"  the server's own clock, means: opening {opening:.1f}, forward pass {passing:.1f}, "
        f"HTTP and the load {rest:.1f} ms"
    )


def server_times(port: int) -> dict[str, float]:
    """Return the sums and counts of the server's histograms."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith("labelwise_"))
    return {name.removeprefix("labelwise_"): float(value) for name, _, value in found}


def floor_steps(setting: Setting):
    predictor = Predictor.load(setting.folder)
    transform = predictor.transform
    images = BytesImages([setting.body], ["photo"])

    def decode() -> np.ndarray:
        return np.asarray(transform.resize(images.read(0, transform.at_least())))

    pixels = ArrayImages(decode()[None], resized=True)
    return decode, lambda: list(score(predictor, pixels, batch_size=1))


def milliseconds(call) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def clients(setting: Setting) -> None:
    """Take turns, so that a busy machine hurts both; the processor's time decides."""
    rates: dict[int, list[float]] = {32: [], 1: []}
    costs: dict[int, float] = {}
    with ours(setting.folder, max_batch=32) as many, ours(setting.folder, max_batch=1) as one:
        for port, _ in (many, one):
            closed_load(port, setting.request, 2, 1.0)
        for turn in range(4):
            for batch, (port, pid) in ((32, many), (1, one)):
                processor = Processor(pid)
                answers = closed_load(port, setting.request, CLIENTS, setting.seconds)
                rates[batch].append(answers.rate())
                shares = processor.shares()
                busy = sum(shares.get(part, 0.0) for part in SERVER_PARTS)
                costs[batch] = min(
                    costs.get(batch, 1e9), 1000 * busy * processor.cores / answers.rate()
                )
                if turn == 3:
                    print(
                        f"{CLIENTS} clients, batches of at most {batch}: {answers.rate():.1f} "
                        f"photos/s, p50 {answers.quantile(0.5):.0f}, "
                        f"p99 {answers.quantile(0.99):.0f} ms, answers {answers.counts()}"
                    )
                    print(f"  processor: {shares_in_words(shares)}")
    print(
        f"clients: {max(rates[32]) / max(rates[1]):.2f} x the photos per second without batches "
        f"(best of four turns; goal 1.8, or a full processor); processor time per photo "
        f"{costs[32]:.1f} against {costs[1]:.1f} ms, {costs[1] / costs[32]:.2f} x"
    )
    record("serve-batching", max(rates[32]), max(rates[1]))
    record("serve-batching-bound", costs[1] / costs[32], print_bound(setting, costs))


def fair(setting: Setting) -> None:
    """Models take turns at the thread that computes, so the few need not wait for the many."""
    second = request_bytes("/api/v1/models/second/predict", setting.body)
    with ours(setting.folder, "--model", f"second={setting.folder}", max_batch=8) as (port, _):
        for request in (setting.request, second):
            closed_load(port, request, 2, 1.0)
        alone = closed_load(port, second, 1, setting.seconds)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(closed_load, port, setting.request, 32, 2 * setting.seconds)
            time.sleep(setting.seconds / 4)
            few = closed_load(port, second, 1, setting.seconds)
            many = asking.result()
    print(
        f"fair: 32 clients of one model wait {many.quantile(0.5):.0f} ms, one of another "
        f"{few.quantile(0.5):.0f} ms (alone {alone.quantile(0.5):.0f} ms)"
    )
    record("serve-fair", few.quantile(0.5), many.quantile(0.5))


SERVER_PARTS = ("forward", "decode", "HTTP", "passing on", "rest of server")


def shares_in_words(shares: dict[str, float]) -> str:
    order = sorted(shares, key=shares.get, reverse=True)
    return ", ".join(f"{name} {100 * shares[name]:.0f} %" for name in order if shares[name] > 0.004)


def print_bound(setting: Setting, costs: dict[int, float]) -> float:
    """Return what batches can gain at most: forward passes are all that they make cheaper."""
    predictor = Predictor.load(setting.folder)
    size = predictor.transform.size
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    each = {}
    for count in (1, CLIENTS):
        images = ArrayImages(np.zeros((count, size, size, 3), np.uint8), resized=True)
        times = []
        for _ in range(6):
            began = time.thread_time()
            list(score(predictor, images, batch_size=count))
            times.append(1000 * (time.thread_time() - began) / count)
        each[count] = min(times)
    torch.set_num_threads(threads)
    bound = costs[1] / (costs[1] - each[1] + each[CLIENTS])
    print(
        f"  a forward pass of one takes {each[1]:.1f} ms of one core, of {CLIENTS} "
        f"{each[CLIENTS]:.1f} ms per photo: on a full processor batches can gain at most "
        f"{bound:.2f} x"
    )
    return bound


PARTS = {part.__name__: part for part in (single, clients, fair)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS), default=[*PARTS])
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    given = parser.parse_args()
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    threads = os.environ.get("OMP_NUM_THREADS")
    print(
        f"{given.backbone} at {given.size}, {LABELS} labels, JPEG of 1280 x 960; "
        f"{len(os.sched_getaffinity(0))} cores, torch threads {threads or 'one per core'}; "
        f"load of the machine before: {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        make_model(folder, given.backbone, given.size)
        setting = Setting(folder, photo(), given.seconds)
        for name in given.parts:
            PARTS[name](setting)


if __name__ == "__main__":
    main()
