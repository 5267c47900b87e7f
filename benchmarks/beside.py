"""JPEG objects to probabilities in Parquet, beside Ray Data and Daft.

    python benchmarks/beside.py --peers ENVIRONMENT/bin/python --s3

The same network (EfficientNet-Lite0 at 224 pixels, random weights) and two workers each. Ours is
``predict_shards`` with the local engine and with Ray, as ``labelwise predict PHOTOS -o FOLDER/``
runs it. The peers are what their documentation shows: ``ray.data.read_binary_files`` and
``map_batches`` with two actors; ``daft.from_glob_path``, download, and a batch UDF of two
processes; both decode with Pillow and transform with torchvision. What they do not do: a row that
fails stays in the answer, and a killed run is resumed to the same bytes.

Each way is a program of its own that does a few photos, and again with many. What counts are the
processor seconds of all processes that it started (each carries its mark in the environment), and
of these the difference between many and few: no start counts, nor what else the machine does.
Photos lie in a folder; with ``--s3`` also in a bucket of moto's server, whose work does not count.

Ray Data wants pandas, and Daft 0.7 a pyarrow before 26: ``--peers`` names the Python of an
environment that has both, torch, torchvision and labelwise (or the variable LABELWISE_PEERS does).
"""

import argparse
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from measure import record
from PIL import Image
from torchvision import transforms

WORKERS, BATCH, SHARD_ROWS = 2, 32, 32
MARK = "LABELWISE_BESIDE"
KEYS = {
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Scorer:
    """What a person writes for an actor: decode, transform, one forward pass a batch."""

    def __init__(self, folder: str) -> None:
        from labelwise.learn.predictor import Predictor

        torch.set_num_threads(1)
        predictor = Predictor.load(Path(folder))
        self.model, transform = predictor.model.eval(), predictor.transform
        self.steps = transforms.Compose(
            [
                transforms.Resize(transform.scaled_side),
                transforms.CenterCrop(transform.size),
                transforms.ToTensor(),
                transforms.Normalize(transform.mean, transform.std),
            ]
        )

    def probabilities(self, contents: list[bytes]) -> np.ndarray:
        images = [self.steps(Image.open(io.BytesIO(one)).convert("RGB")) for one in contents]
        with torch.inference_mode():
            return torch.sigmoid(self.model(torch.stack(images)).logits).numpy()

    def __call__(self, batch: dict) -> dict:
        return {"path": batch["path"], "p": self.probabilities(list(batch["bytes"]))}


def by_labelwise(model, photos, out, server, *, ray=False):
    from labelwise.shards import LocalEngine, ModelFiles, ScoringTask, predict_shards
    from labelwise.shards.ray_cluster import RayEngine

    if server:
        photos = f"{photos}?scheme=http&endpoint_override={server}&region=us-east-1"
    task = ScoringTask(out, ModelFiles.read(Path(model)), BATCH, decoders=1)
    engine = RayEngine(WORKERS) if ray else LocalEngine(WORKERS)
    predict_shards(task, [photos], engine, shard_rows=SHARD_ROWS)


def by_labelwise_on_ray(model, photos, out, server):
    by_labelwise(model, photos, out, server, ray=True)


def by_ray_data(model, photos, out, server):
    import ray
    from pyarrow import fs

    from labelwise.shards.ray_cluster import joined

    files = None
    if server:
        files, photos = fs.S3FileSystem(endpoint_override=server, scheme="http"), photos[5:]
    with joined(WORKERS):
        ray.data.DataContext.get_current().enable_progress_bars = False
        data = ray.data.read_binary_files(photos, include_paths=True, filesystem=files)
        data = data.map_batches(
            Scorer,
            fn_constructor_args=[model],
            batch_size=BATCH,
            concurrency=WORKERS,
            num_cpus=0.5,  # each task that reads or writes asks for a whole one, and waits for ever
        )
        data.write_parquet(out)


def by_daft(model, photos, out, server):
    import daft
    from daft.io import IOConfig, S3Config

    numbers = daft.DataType.list(daft.DataType.float32())
    if server:
        s3 = S3Config(
            endpoint_url=f"http://{server}", region_name="us-east-1", key_id="k", access_key="s"
        )
        daft.set_planning_config(default_io_config=IOConfig(s3=s3))

    @daft.cls(max_concurrency=WORKERS, use_process=True)
    class Scored:
        def __init__(self):
            self.scorer = Scorer(model)

        @daft.method.batch(return_dtype=numbers, batch_size=BATCH)
        def __call__(self, contents):
            return list(self.scorer.probabilities(contents.to_pylist()))

    scored = Scored()
    data = daft.from_glob_path(f"{photos}/*.jpg").select("path")
    data = data.with_column("bytes", data["path"].download())
    data = data.with_column("p", scored(data["bytes"])).exclude("bytes")
    data.write_parquet(out)


WAYS = {
    "labelwise": by_labelwise,
    "labelwise-ray": by_labelwise_on_ray,
    "ray-data": by_ray_data,
    "daft": by_daft,
}
PEERS = {  # of a peer, the figure and our way beside it
    "ray-data": ("beside-ray-data-{kind}", "labelwise-ray"),
    "daft": ("beside-daft-{kind}", "labelwise"),
}


class Marked:
    """Processor seconds of all processes whose environment carries a mark, ended ones too."""

    def __init__(self, mark: str) -> None:
        self.mark = f"{MARK}={mark}".encode()
        self.seconds: dict[str, float] = {}
        self.others: set[str] = set()

    def look(self) -> None:
        for place in os.listdir("/proc"):
            if not place.isdecimal() or place in self.others:
                continue
            try:
                if place not in self.seconds and self.mark not in _bytes(place, "environ"):
                    self.others.add(place)
                    continue
                fields = _bytes(place, "stat").rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            self.seconds[place] = max(used, self.seconds.get(place, 0.0))

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def _bytes(process: str, file: str) -> bytes:
    return Path("/proc", process, file).read_bytes()


def spent(python: str, *given: str) -> float:
    """Return the processor seconds of one way in a program of its own."""
    marked = Marked(uuid.uuid4().hex)
    mark = marked.mark.partition(b"=")[2].decode()
    process = subprocess.Popen(
        [python, __file__, *given],
        env={**os.environ, "OMP_NUM_THREADS": "1", **KEYS, MARK: mark},
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None:
        marked.look()
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(given)}: ended with status {process.returncode}")
    return marked.total


def rows_in(folder: str) -> int:
    """Return how many answers there are; our plan of them lies beside."""
    import pyarrow.parquet as pq

    files = [path for path in Path(folder).rglob("*.parquet") if "plan" not in str(path)]
    return sum(pq.read_metadata(path).num_rows for path in files)


def rate(python, way, model, few, many, server, repeats):
    """Return photos per second of processor time, of the photos that ``many`` has more."""
    best = []
    for photos, count in (few, many):
        tries = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                out = f"{folder}/out"
                given = ["--only", way, "--model", model, "--place", photos, "--out", out]
                tries.append(spent(python, *given, *(["--server", server] if server else [])))
                found = rows_in(folder)
                if found != count:
                    raise SystemExit(f"{way}: {count} photos, {found} answers")
        best.append(min(tries))
    if best[1] <= best[0]:
        raise SystemExit(f"{way}: {many[1]} photos took no more than {few[1]}, {best}")
    return (many[1] - few[1]) / (best[1] - best[0])


def linked(folder: Path, sources: list[Path], count: int) -> tuple[str, int]:
    folder.mkdir()
    for number in range(count):
        os.link(sources[number % len(sources)], folder / f"{number:06d}.jpg")
    return str(folder), count


@contextmanager
def bucket(folders: list[tuple[str, int]]):
    """Serve the files of folders as objects; yield the address and their places."""
    import boto3

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "from moto.server import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", program, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        os.environ.update(KEYS)
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
        client.create_bucket(Bucket="photos")
        places = []
        for folder, count in folders:
            for file in sorted(Path(folder).iterdir()):
                key = f"{Path(folder).name}/{file.name}"
                client.put_object(Bucket="photos", Key=key, Body=file.read_bytes())
            places.append((f"s3://photos/{Path(folder).name}", count))
        yield f"127.0.0.1:{port}", places
    finally:
        server.terminate()
        server.wait()


def compare(ways: dict[str, str], model: str, folders, repeats: int, server: str, kind: str):
    """Print and record the rates of ways, each by its Python, from one kind of place."""
    found = {}
    for way, python in ways.items():
        found[way] = rate(python, way, model, *folders, server, repeats)
        print(f"{kind:8s} {way:14s} {found[way]:8.2f} photos per processor second", flush=True)
        name, ours = PEERS.get(way, ("", ""))
        if ours in found:  # at once: a run may be ended before its last way
            record(name.format(kind=kind), found[ours], found[way])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--few", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    peers = os.environ.get("LABELWISE_PEERS", sys.executable)
    parser.add_argument("--peers", default=peers, help="the Python that has the peers")
    parser.add_argument("--s3", action="store_true", help="from a bucket, too (needs moto)")
    for name in ("only", "model", "place", "out", "server"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        WAYS[given.only](given.model, given.place, given.out, given.server)
        return
    from scoring import make_predictor
    from training import make_photos

    ways = {
        way: sys.executable if way.startswith("labelwise") else given.peers for way in given.ways
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = [folder / one for one in make_photos(folder, 128, (500, 375))]
        folders = [
            linked(folder / "few", sources, given.few),
            linked(folder / "many", sources, given.photos),
        ]
        model = str(folder / "model")
        make_predictor().save(Path(model))
        compare(ways, model, folders, given.repeats, "", "files")
        if given.s3:
            with bucket(folders) as (server, places):
                compare(ways, model, places, given.repeats, server, "s3")


if __name__ == "__main__":
    main()
