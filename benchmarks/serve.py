"""A served model under load on the loopback address, one part after the other or some of them:

    python benchmarks/serve.py [PART ...] [--backbone NAME] [--size PIXELS] [--seconds N]

    single      a request that is alone: its median above decode + forward in a process of its own
    clients     16 clients: photos per second beside the same server with batches of one, and which
                part of the program had the processor
    fair        two models of one server: how long one client of the second waits while 32 ask for
                the first
    peers       single and 16 clients beside plain FastAPI and, where it is installed, LitServe
    overload    ten times more requests than can be answered: how fast 429 comes, what breaks, and
                whether all is as before afterwards
    search      a million photos (--photos): first byte of the page and of queries
    steady      --minutes at 80 % of capacity: 5xx, memory, p99 / p50

The part steady runs only where it is named.

Servers run in processes of their own and take the same number of threads (OMP_NUM_THREADS). The
load shares the cores; how much it takes is printed. Weights are random: answers mean nothing.
"""

import argparse
import importlib.util
import io
import os
import re
import signal
import socket
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
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import torch
from measure import record
from PIL import Image
from serve_load import Processor, closed_load, open_load, request_bytes, resident

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.models.run_folder import RunFolder
from labelwise.models.scoring import score
from labelwise.photos import Index
from labelwise.photos.index import IndexFacts
from labelwise.photos.store import Content
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
    minutes: float
    photos: int

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
def running(command: list[str], port: int | None = None) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port, which it prints unless it was told, and its process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if port is None:
                assert process.stdout is not None
                port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
            else:
                await_health(port)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def await_health(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            answers = closed_load(port, request_bytes("/health"), 1, 0.01)
        except OSError:
            continue
        if answers.times.get(200):
            return
        time.sleep(0.2)
    raise SystemExit("the server did not start within a minute")


def ours(folder: Path, *arguments: str, **options: float):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    base = [sys.executable, *LABELWISE, "serve", str(folder), *arguments]
    return running([*base, "--port=0", *words])


def peer(kind: str, folder: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("serve_peers.py")
    return running([sys.executable, str(script), kind, str(folder), str(port)], port)


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


def peers(setting: Setting) -> None:
    """Every server gets the photo as the file of a form, the only way that all of them take."""
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
    form = head + b"Content-Type: image/jpeg\r\n\r\n" + setting.body + b"\r\n--B--\r\n"
    kind = "multipart/form-data; boundary=B"
    names = ["labelwise", "fastapi"]
    if importlib.util.find_spec("litserve"):
        names.append("litserve")
    else:
        print("peers: LitServe is not installed, so it is left out")
    seen = {}
    for name in names:
        server = ours(setting.folder) if name == "labelwise" else peer(name, setting.folder)
        request = request_bytes(PREDICT if name == "labelwise" else "/predict", form, kind)
        with server as (port, pid):
            closed_load(port, request, 2, 1.0)
            alone = closed_load(port, request, 1, setting.seconds)
            processor = Processor(pid)
            many = closed_load(port, request, CLIENTS, setting.seconds)
            shares = processor.shares()
            busy = sum(shares.get(part, 0.0) for part in SERVER_PARTS) * processor.cores
        seen[name] = (alone.quantile(0.5), many.rate(), 1000 * busy / many.rate())
        print(
            f"{name}: one client p50 {seen[name][0]:.1f} ms; {CLIENTS} clients {many.rate():.1f} "
            f"photos/s, p50 {many.quantile(0.5):.0f}, p99 {many.quantile(0.99):.0f} ms, "
            f"{seen[name][2]:.1f} ms of processor per photo, answers {many.counts()}"
        )
    for name in names[1:]:
        print(
            f"peers: labelwise answers {seen['labelwise'][1] / seen[name][1]:.2f} x the photos per "
            f"second of {name}, a single request takes {seen['labelwise'][0] / seen[name][0]:.2f} x"
        )


def overload(setting: Setting) -> None:
    with ours(setting.folder, max_queue=QUEUE, client_queue=QUEUE, max_files=1) as (port, pid):
        closed_load(port, setting.request, 2, 1.0)
        before = closed_load(port, setting.request, 1, setting.seconds)
        capacity = closed_load(port, setting.request, QUEUE, setting.seconds).rate()
        processor = Processor(pid)
        flood = open_load(
            port, setting.request, 10 * capacity, setting.seconds, 10 * QUEUE, from_sending=True
        )
        shares = processor.shares()
        after = closed_load(port, setting.request, 1, setting.seconds)
        again = closed_load(port, setting.request, QUEUE, setting.seconds).rate()
    print(
        f"overload: {10 * capacity:.0f} requests/s where {capacity:.1f} can be answered: answers "
        f"{flood.counts()}, {flood.rate():.1f} photos/s; "
        f"429 after p50 {flood.quantile(0.5, 429):.1f}, p95 {flood.quantile(0.95, 429):.1f}, "
        f"p99 {flood.quantile(0.99, 429):.1f} ms (goal 50)"
    )
    print(f"  processor: {shares_in_words(shares)}")
    print(
        f"  afterwards: one client p50 {after.quantile(0.5):.1f} ms, "
        f"{after.quantile(0.5) / before.quantile(0.5):.2f} x what it was before; "
        f"capacity {again / capacity:.2f} x"
    )


def steady(setting: Setting) -> None:
    with ours(setting.folder) as (port, pid):
        closed_load(port, setting.request, 2, 1.0)
        closed_load(port, setting.request, CLIENTS, setting.seconds)
        capacity = closed_load(port, setting.request, CLIENTS, 2 * setting.seconds).rate()
        rate, parts = 0.8 * capacity, 10
        print(f"steady: {rate:.1f} requests/s of {capacity:.1f}, {setting.minutes:g} minutes")
        memory = [resident(pid)]
        p50s, errors, counts = [], 0, {}
        times: list[float] = []
        for part in range(parts):
            found = open_load(port, setting.request, rate, 60 * setting.minutes / parts, 256)
            memory.append(resident(pid))
            errors += found.errors()
            times += found.times.get(200, [])
            p50s.append(found.quantile(0.5))
            for status, count in found.counts().items():
                counts[status] = counts.get(status, 0) + count
            print(
                f"  part {part + 1}: p50 {p50s[-1]:.1f}, p99 {found.quantile(0.99):.1f} ms, "
                f"memory {memory[-1]:.0f} MiB",
                *found.problems,
                flush=True,
            )
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
    drift = 100 * (memory[-1] / memory[1] - 1)
    print(
        f"steady: answers {counts}, 5xx or broken {errors}; p50 {p50:.1f}, p99 {p99:.1f} ms, "
        f"{p99 / p50:.1f} x (goal 10); memory {drift:+.1f} % from the first to the last tenth "
        f"(goal within 5)"
    )


def search(setting: Setting) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder, index = Path(temporary) / "model", Path(temporary) / "photos.index"
        make_model(folder, "small-cnn", 64, labels=12)
        make_index(index, folder, setting.photos)
        print(f"search: {setting.photos:,} photos made in {time.perf_counter() - began:.0f} s")
        with ours(folder, str(index)) as (port, _):
            paths = {"the page": "/", "completion": "/api/v1/complete?q=lab"}
            for query in ("label 1", "label 1, -label 2", "(label 3 | label 4), -label 5"):
                paths[query] = SEARCH + quote(query)
            paths["label 1, newest first"] = f"{SEARCH}{quote('label 1')}&sort=date"
            for name, path in paths.items():
                request = request_bytes(path)
                once = closed_load(port, request, 1, 0.0).times
                first = max(ms for times in once.values() for ms in times)
                found = closed_load(port, request, 1, setting.seconds / 2)
                print(
                    f"  {name}: p50 {found.quantile(0.5):.1f}, p95 {found.quantile(0.95):.1f} ms "
                    f"(goal 30), first {first:.0f} ms, answers {found.counts()}",
                    flush=True,
                )


SEARCH = "/api/v1/search?top=50&q="


def make_index(folder: Path, model: Path, photos: int, chunk: int = 100_000) -> None:
    """Write an index of photos that are nowhere; their labels are there in 3 % of them."""
    spec = RunFolder(model).spec
    index = Index.create(folder, spec, IndexFacts(model=str(model)))
    random = np.random.default_rng(0)
    root = index.store.root("/photos")
    for first in range(0, photos, chunk):
        count = min(chunk, photos - first)
        logits = random.normal(np.log(0.03 / 0.97), 2, (count, len(spec.space)))
        contents = [
            Content(row.to_bytes(32), 1_000_000, 4000, 3000, f"20{row % 24:02d}-05-01T12:00:00")
            for row in range(first, first + count)
        ]
        index.store.append(contents, logits.astype(np.float32), None, [])
    with index.store.transaction() as database:
        database.executemany(
            "INSERT INTO files (root, folder, name, size, mtime_ns, row, state) "
            "VALUES (?, ?, ?, 1000000, 0, ?, 'ok')",
            ((root, f"{row // 500:05d}", f"{row}.jpg", row) for row in range(photos)),
        )
        database.execute("UPDATE contents SET alive = 1")
    index.store.close()


PARTS = {part.__name__: part for part in (single, clients, fair, peers, overload, search, steady)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = [name for name in PARTS if name != "steady"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS), default=usual)
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--minutes", type=float, default=1.0, help="of the part steady")
    parser.add_argument("--photos", type=int, default=1_000_000, help="of the part search")
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
        setting = Setting(folder, photo(), given.seconds, given.minutes, given.photos)
        for name in given.parts:
            PARTS[name](setting)


if __name__ == "__main__":
    main()
