"""JPEG files to probabilities, beside Ray Data and Daft: ``python benchmarks/beside.py``.

The same network (EfficientNet-Lite0 at 224 pixels, random weights) and two workers each. Ours is
``predict_shards`` with the local engine and with Ray, as ``labelwise predict PHOTOS -o FOLDER/``
runs it. The peers are what their documentation shows: ``ray.data.read_binary_files`` and
``map_batches`` with two actors; ``daft.from_glob_path``, download, and a batch
UDF of two processes; both decode with Pillow and transform with torchvision. Each does a few photos
and then many; photos per second are those of the difference, so that no start counts. What they do
not do: a row that fails stays in the answer, and a killed run is resumed to the same bytes.

Daft is left out where it is not installed; its 0.7 wants a pyarrow before 26, so it goes into an
environment of its own, without ``constraints.txt``.
"""

import argparse
import importlib.util
import io
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from measure import record
from PIL import Image
from scoring import make_predictor
from torchvision import transforms
from training import make_photos

from labelwise.models import Predictor
from labelwise.shards import LocalEngine, ModelFiles, ScoringTask, predict_shards
from labelwise.shards.ray_cluster import RayEngine, joined

WORKERS, BATCH, SHARD_ROWS = 2, 32, 64


class Scorer:
    """What a person writes for an actor: decode, transform, one forward pass a batch."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        predictor = Predictor.load(Path(folder)).fused()
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


def by_labelwise(engine, model, photos, out):
    task = ScoringTask(str(out), ModelFiles.read(model), BATCH, decoders=1)
    predict_shards(task, [str(photos)], engine, shard_rows=SHARD_ROWS)


def by_ray_data(model, photos, out):
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_binary_files(str(photos), include_paths=True)
    data = data.map_batches(
        Scorer,
        fn_constructor_args=[str(model)],
        batch_size=BATCH,
        concurrency=WORKERS,
        num_cpus=0.5,  # each task that reads or writes asks for a whole one, and waits for ever
    )
    data.write_parquet(str(out))


def by_daft(model, photos, out):
    import daft

    numbers = daft.DataType.list(daft.DataType.float32())

    @daft.cls(max_concurrency=WORKERS, use_process=True)
    class Scored:
        def __init__(self):
            self.scorer = Scorer(str(model))

        @daft.method.batch(return_dtype=numbers, batch_size=BATCH)
        def __call__(self, contents):
            return list(self.scorer.probabilities(contents.to_pylist()))

    scored = Scored()
    data = daft.from_glob_path(f"{photos}/*.jpg").select("path")
    data = data.with_column("bytes", data["path"].download())
    data = data.with_column("p", scored(data["bytes"])).exclude("bytes")
    data.write_parquet(str(out))


def rows_in(folder):
    """Return how many answers there are; our plan of them lies beside."""
    files = [path for path in Path(folder).rglob("*.parquet") if "plan" not in str(path)]
    return sum(pq.read_metadata(path).num_rows for path in files)


def rate(way, few, many):
    """Return photos per second of the photos that ``many`` has more, so that no start counts."""
    times, counts = [], []
    for photos in (few, many):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            way(photos, Path(folder, "out"))
            times.append(time.perf_counter() - start)
            counts.append(len(os.listdir(photos)))
            assert rows_in(folder) == counts[-1], (rows_in(folder), counts[-1])
    if times[1] <= times[0]:
        raise SystemExit(f"{counts[1]} photos took no longer than {counts[0]}: other work disturbs")
    return (counts[1] - counts[0]) / (times[1] - times[0])


def linked(folder, sources, count):
    folder.mkdir()
    for number in range(count):
        os.link(sources[number % len(sources)], folder / f"{number:06d}.jpg")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=int, default=1536)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, joined(WORKERS):
        folder = Path(name)
        sources = [folder / one for one in make_photos(folder, 128, (500, 375))]
        few = linked(folder / "few", sources, given.photos // 4)
        many = linked(folder / "many", sources, given.photos)
        model = folder / "model"
        make_predictor().save(model)
        ways = {
            "labelwise, local": partial(by_labelwise, LocalEngine(WORKERS), model),
            "labelwise, Ray": partial(by_labelwise, RayEngine(WORKERS), model),
            "Ray Data": partial(by_ray_data, model),
        }
        if importlib.util.find_spec("daft"):
            ways["Daft"] = partial(by_daft, model)
        best = dict.fromkeys(ways, 0.0)
        for _ in range(given.repeats):  # in turns, so that a slow moment meets all alike
            for way, call in ways.items():
                best[way] = max(best[way], rate(call, few, many))
    for way, value in best.items():
        print(f"{way:20s} {value:8.1f} photos/s")
    record("beside-ray-data", best["labelwise, Ray"], best["Ray Data"])
    if "Daft" in best:
        record("beside-daft", best["labelwise, local"], best["Daft"])


if __name__ == "__main__":
    main()
