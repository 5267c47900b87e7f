"""Random kills of `labelwise predict` into shards: ``python benchmarks/kills.py [--engine ray]``.

    nice python benchmarks/kills.py --engine ray          20 kills
    python benchmarks/kills.py --kills 3 --pictures 500   a first look

A model and pictures, one in a hundred of them corrupt, are made. One run is left alone. Another is
begun again and again with two workers, and at random moments a worker (which must be survived) and
then the driver are killed (SIGKILL); with Ray, on a cluster of two nodes, one of these as well,
which must be survived too and comes back. A run that comes to its end before all kills are spent is
followed by another one. Of each, at the end: rows in = scored + failed, no row twice, failed rows
are the corrupt ones, and every shard has the hash of the run that was left alone, which is one of
the local engine. Whatever waits for more than five minutes ends the benchmark.
"""

import argparse
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.shards.ray_cluster import require_ray
from labelwise.types import LabelSpace

SHARD_ROWS, CORRUPT_EVERY, PATIENCE = 25, 100, 300.0


def write_model(folder):
    torch.manual_seed(0)
    names = LabelSpace(("dog", "cat", "car"))
    backbone = create_backbone("small-cnn", image_size=32)
    head = HeadSpec("linear", {})
    model = Model(backbone, head.make(backbone.channels, len(names))).eval()
    Predictor(model, head, names, Sigmoid(), Threshold(0.5), "bce").save(folder)
    return folder


def write_pictures(folder, count):
    """Write small pictures; each hundredth is cut off, empty, or no picture at all."""
    folder.mkdir()
    bad = (lambda blob: blob[: len(blob) // 2], lambda blob: b"", lambda blob: b"no picture")
    names = set()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        path, content = folder / f"{number:06d}.png", stream.getvalue()
        if number % CORRUPT_EVERY == 37:
            content = bad[number // CORRUPT_EVERY % 3](content)
            names.add(str(path))
        path.write_bytes(content)
    return names


def command(model, photos, out, engine="local"):
    given = ["-o", f"{out}/", "--workers", "2", "--shard-rows", str(SHARD_ROWS), "--engine", engine]
    return [sys.executable, "-m", "labelwise", "predict", str(model), str(photos), *given]


def shards_there(out):
    return len(list(out.glob("part-*.parquet")))


class LocalProcesses:
    """The workers of the local engine: processes of the driver."""

    engine, environment = "local", {}

    def workers(self, driver):
        return children({driver}, b"--multiprocessing-fork")

    def end(self):
        pass


class TwoNodes:
    """The workers of a Ray cluster on this machine, and a node of it that can be killed."""

    engine = "ray"

    def __init__(self):
        require_ray()
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 1 << 27}
        self.cluster = Cluster(initialize_head=True, head_node_args=node)
        self.add = lambda: self.cluster.add_node(**node)
        self.second = self.add()
        self.environment = {"RAY_ADDRESS": self.cluster.address}

    def workers(self, driver):
        nodes = (self.cluster.head_node, self.second)
        raylets = {info.process.pid for node in nodes for info in node.all_processes["raylet"]}
        return children(raylets, b"ray::_Worker")

    def end(self):
        self.cluster.shutdown()

    def kill_node(self):
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.add()


def children(parents, word):
    """Return the processes of some parents whose command line holds a word."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in parents and word in words:
            found.append(int(place.name))
    return found


def wait_for_shards(process, out, count):
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and shards_there(out) < count:
        if time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"{shards_there(out)} shards after {PATIENCE:.0f} seconds of waiting")
        time.sleep(0.01)


def harm(model, photos, out, draw, place):
    """Start the command; kill a worker or a node or not, then the driver; return what was."""
    before, killed = shards_there(out), []
    given = command(model, photos, out, place.engine)
    with open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(
            given, stdout=nothing, stderr=nothing, env={**os.environ, **place.environment}
        )
        wait_for_shards(process, out, before + 1)
        time.sleep(draw.uniform(0, 0.5))
        if isinstance(place, TwoNodes) and draw.random() < 0.5:
            place.kill_node()
            killed.append("node")
            wait_for_shards(process, out, shards_there(out) + 3)  # it is survived
        workers = place.workers(process.pid)
        if workers and draw.random() < 0.7:
            os.kill(draw.choice(workers), signal.SIGKILL)
            killed.append("worker")
            wait_for_shards(process, out, shards_there(out) + 3)
            time.sleep(draw.uniform(0, 0.5))
        if process.poll() is None:
            process.kill()
            killed.append("driver")
        process.wait()
    return killed


def hashes(out):
    lines = (out / "_manifest.jsonl").read_text().splitlines()
    return {record["shard"]: record["hash"] for record in map(json.loads, lines)}


def finish(model, photos, out, place):
    """Run the command until its end; its status is 1 because some pictures cannot be read."""
    given, environment = command(model, photos, out, place.engine), os.environ | place.environment
    limit = 10 * PATIENCE
    ended = subprocess.run(given, capture_output=True, env=environment, timeout=limit)
    if ended.returncode != 1:
        raise SystemExit(f"status {ended.returncode}: {ended.stderr.decode()[-500:]}")


def check(out, alone, corrupt, pictures):
    """Compare what came out with what went in and with the run left alone; return it in words."""
    rows = pq.ParquetDataset(sorted(out.glob("part-*.parquet"))).read()
    paths, errors = rows["path"].to_pylist(), rows["error"].to_pylist()
    failed = {path for path, error in zip(paths, errors, strict=True) if error}
    assert len(paths) == len(set(paths)) == pictures
    assert failed == corrupt
    assert hashes(out) == hashes(alone)
    assert (out / "_SUCCESS").exists()
    return (
        f"{pictures:,} rows in = {len(paths) - len(failed):,} scored + {len(failed)} failed, none "
        f"twice; {len(hashes(out))} shards, whose hashes are those of the local engine left alone"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    arguments = parser.parse_args()
    draw, kills, begun = random.Random(arguments.seed), Counter(), time.monotonic()
    place = TwoNodes() if arguments.engine == "ray" else LocalProcesses()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        stack.callback(place.end)
        folder = Path(made)
        model, photos = write_model(folder / "model"), folder / "photos"
        corrupt = write_pictures(photos, arguments.pictures)
        finish(model, photos, folder / "alone", LocalProcesses())
        for number in count():
            out = folder / f"out-{number}"
            while kills.total() < arguments.kills:
                killed = harm(model, photos, out, draw, place)
                kills.update(killed)
                there = shards_there(out)
                print(f"{kills.total():2d}: {', '.join(killed) or 'ended'}; {there} shards there")
                sys.stdout.flush()
                if (out / "_SUCCESS").exists():
                    break
            finish(model, photos, out, place)
            print(check(out, folder / "alone", corrupt, arguments.pictures), flush=True)
            if kills.total() >= arguments.kills:
                break
    words = ", ".join(f"{n} {kind}" for kind, n in sorted(kills.items()))
    minutes = (time.monotonic() - begun) / 60
    print(f"{kills.total()} kills ({words}), engine {place.engine}, {minutes:.1f} minutes: passed")


if __name__ == "__main__":
    main()
