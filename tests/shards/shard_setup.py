"""Pictures, a model and a look at shards, for the tests of the engines."""

import io
import json
import os
import signal
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tiny_predictor import make

from labelwise.shards import ModelFiles, ScoringTask

BROKEN_EVERY = 20

# Ray's own limits are those of a machine at rest. Its processes read them when they start.
os.environ |= {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "300",
}


def started(start, attempts=3):
    """Return what ``start`` starts with Ray, which gives a node 30 seconds and no say in it."""
    try:
        return start()
    except Exception as error:  # Ray raises this very class where a node is too slow
        if type(error) not in (Exception, RuntimeError, TimeoutError, ConnectionError):
            raise
        if attempts == 1:
            pytest.skip(f"Ray cannot start a node on this machine: {error}")
        return started(start, attempts - 1)


def picture(number):
    """Return the bytes of a small PNG; each twentieth is cut off."""
    pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    content = stream.getvalue()
    return content[:60] if number % BROKEN_EVERY == 7 else content


def write_photos(folder, count):
    for number in range(count):
        path = folder / f"day {number % 3}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return folder


def write_tar(path, files):
    """Write files, names and contents, into a tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_parquet(path, count, nested=False):
    blobs = [picture(number) for number in range(count)]
    column = [{"bytes": blob, "path": None} for blob in blobs] if nested else blobs
    pq.write_table(pa.table({"image": column, "n": range(count)}), path, row_group_size=4)
    return path


def write_model(folder):
    make().save(folder)
    return folder


def task(model, out, batch_size=4):
    return ScoringTask(str(out), ModelFiles.read(model), batch_size, decoders=1)


def hashes(out):
    lines = (out / "_manifest.jsonl").read_text().splitlines()
    return {record["shard"]: record["hash"] for record in map(json.loads, lines)}


def answers(out):
    """Return the rows of all shards in order."""
    parts = sorted(out.glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts]).to_pylist()


# Workers that are started anew read these from here: what `test_shards` imports takes seconds.


class Counting:
    """Notes its shards in a folder; those of ``deadly`` kill their worker so many times."""

    def __init__(self, folder, deadly):
        self.folder, self.deadly = folder, deadly

    def start(self):
        def work(shard):
            before = len(list(self.folder.glob(f"{shard}-*")))
            (self.folder / f"{shard}-{before}").touch()
            if before < self.deadly.get(shard, 0):
                os.kill(os.getpid(), signal.SIGKILL)
            return shard

        return work


class Large:
    """A task that no pipe holds at once."""

    def __init__(self):
        self.content = bytes(1 << 20)

    def start(self):
        return lambda shard: (shard, len(self.content))
