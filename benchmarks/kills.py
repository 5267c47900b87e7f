"""Random kills of `labelwise predict` into shards: ``python benchmarks/kills.py [--kills 20]``.

A model and pictures, one in a hundred of them corrupt, are made. One run is left alone. Another is
begun again and again with two workers, and at random moments a worker (which must be survived) and
then the driver are killed (SIGKILL). When all kills are spent it ends. Then: rows in = scored +
failed, no row twice, failed rows are the corrupt ones, and every shard has the hash of the run that
was left alone.
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
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from labelwise.backbones import create_backbone
from labelwise.decide import Threshold
from labelwise.links import Sigmoid
from labelwise.predictor import HeadSpec, Model, Predictor
from labelwise.types import LabelSpace

PICTURES, SHARD_ROWS, CORRUPT_EVERY = 3000, 25, 100


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


def command(model, photos, out):
    given = ["-o", f"{out}/", "--workers", "2", "--shard-rows", str(SHARD_ROWS)]
    return [sys.executable, "-m", "labelwise", "predict", str(model), str(photos), *given]


def shards_there(out):
    return len(list(out.glob("part-*.parquet")))


def workers_of(driver):
    """Return the processes that score for a driver."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == driver and b"--multiprocessing-fork" in words:
            found.append(int(place.name))
    return found


def wait_for_shards(process, out, count):
    while process.poll() is None and shards_there(out) < count:
        time.sleep(0.01)


def harm(model, photos, out, draw):
    """Start the command; kill a worker or not, then the driver. Return what was killed."""
    before, killed = shards_there(out), []
    with open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(command(model, photos, out), stdout=nothing, stderr=nothing)
        wait_for_shards(process, out, before + 1)
        time.sleep(draw.uniform(0, 0.5))
        workers = workers_of(process.pid)
        if workers and draw.random() < 0.7:
            os.kill(draw.choice(workers), signal.SIGKILL)
            killed.append("worker")
            wait_for_shards(process, out, shards_there(out) + 3)  # it is survived
            time.sleep(draw.uniform(0, 0.5))
        if process.poll() is None:
            process.kill()
            killed.append("driver")
        process.wait()
    return killed


def hashes(out):
    lines = (out / "_manifest.jsonl").read_text().splitlines()
    return {record["shard"]: record["hash"] for record in map(json.loads, lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = write_model(folder / "model")
        corrupt = write_pictures(folder / "photos", PICTURES)
        alone = command(model, folder / "photos", folder / "alone")
        status = subprocess.run(alone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert status.returncode == 1  # some pictures cannot be read
        kills = Counter()
        while kills.total() < arguments.kills:
            killed = harm(model, folder / "photos", folder / "out", draw)
            if not killed:
                raise SystemExit("the run ended before all kills; take more pictures")
            kills.update(killed)
            there = shards_there(folder / "out")
            print(f"{kills.total():2d}: {', '.join(killed)}; {there} shards there", flush=True)
        again = command(model, folder / "photos", folder / "out")
        subprocess.run(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = pq.ParquetDataset(sorted((folder / "out").glob("part-*.parquet"))).read()
        paths, errors = rows["path"].to_pylist(), rows["error"].to_pylist()
        failed = {path for path, error in zip(paths, errors, strict=True) if error}
        assert len(paths) == len(set(paths)) == PICTURES
        assert failed == corrupt
        assert hashes(folder / "out") == hashes(folder / "alone")
        assert (folder / "out" / "_SUCCESS").exists()
        print(
            f"{kills.total()} kills ({', '.join(f'{n} {kind}' for kind, n in kills.items())}): "
            f"{len(paths):,} rows in = {len(paths) - len(failed):,} scored + {len(failed)} failed, "
            f"none twice; {len(hashes(folder / 'out'))} shards, hashes those of the run left alone"
        )


if __name__ == "__main__":
    main()
