"""Speed and memory of the data part: ``python benchmarks/data.py [--quick]``.

scenes        images a second on two threads (claim: 5,000)
split         against scikit-multilearn's iterative split, 40,000 x 80 (claim: 50 times)
csv           ten million rows to a table, in a process of its own: seconds and peak memory
parquet       8 GiB of image bytes to a table with its splits: memory that cannot be given back
decode        JPEG folder to RGB of at least 224 pixels, against a plain Pillow decode
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from labelwise.pictures import FeatureRows
from labelwise.pictures.decode import decode
from labelwise.tables import LabelTable, scenes
from labelwise.tables.derived import stratified_split


def seconds(function, *arguments):
    """Return CPU seconds of one call and its result: other users of the machine do not count."""
    start = time.process_time()
    result = function(*arguments)
    return time.process_time() - start, result


def measure_scenes(quick):
    scenes(256, 0, 0)
    rows = 4_000 if quick else 20_000
    start = time.perf_counter()
    cpu, _ = seconds(scenes, rows, 0, 0)
    wall = time.perf_counter() - start
    return {"images": rows, "images/s": rows / wall, "images/s a core": rows / cpu}


def correlated(rows, labels):
    """Return labels with frequencies from 30 % to under 1 %, four an image, correlated."""
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((rows, 3)) @ rng.standard_normal((3, labels)) / 2
    level = np.linspace(0.7, 3.4, labels)
    return (rng.standard_normal((rows, labels)) + shared > level).astype(int)


def measure_split(quick):
    from skmultilearn.model_selection import IterativeStratification, iterative_train_test_split

    rows = 5_000 if quick else 40_000
    labels = correlated(rows, 80)
    images = FeatureRows(np.zeros((rows, 1), np.float32))
    table = LabelTable.from_arrays([f"l{k}" for k in range(80)], images, labels)
    shares = {"train": 0.8, "test": 0.2}

    def ours():
        return stratified_split(table, shares, by_content=False).split == "test"

    times, test = min((seconds(ours) for _ in range(3)), key=lambda pair: pair[0])
    number = np.arange(rows)[:, None]
    peer, (_, held, _, _) = seconds(iterative_train_test_split, number, labels, 0.2)
    first = IterativeStratification(2, order=1, sample_distribution_per_fold=[0.2, 0.8])
    single, _ = seconds(lambda: next(first.split(number, labels)))
    chosen = np.isin(np.arange(rows), held)

    def off(mask):
        """Return how far labels and frequent pairs are from 20 %, on average."""
        whole, part = labels.T @ labels, labels[mask].T @ labels[mask]
        often = whole >= 10
        return float(np.abs(part[often] / whole[often] - 0.2).mean())

    return {
        "rows": rows,
        "seconds": times,
        "peer seconds (its default, pairs)": peer,
        "peer seconds (single labels)": single,
        "times faster (pairs)": peer / times,
        "times faster (single labels)": single / times,
        "off": off(test),
        "peer off": off(chosen),
    }


CHILD = """
import json, resource, sys, time
from labelwise.tables import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
table = load(sys.argv[1], check_files=False)
spent = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([len(table), spent, before / 1024, peak / 1024]))
"""


def measure_csv(quick):
    rows = 500_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.csv"
        block = 100_000
        names = [f"label{k:02d}" for k in range(80)]
        picks = np.random.default_rng(0).integers(0, 80, (block, 3))
        texts = ["|".join(names[k] for k in set(row)) for row in picks.tolist()]
        with path.open("w") as stream:
            stream.write("path,labels,split\n")
            for start in range(0, rows, block):
                stream.writelines(
                    f"images/{start + n:08d}.jpg,{text},{'test' if n % 10 == 0 else 'train'}\n"
                    for n, text in enumerate(texts)
                )
        size = path.stat().st_size / 2**20
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True
        )
    found, spent, before, peak = json.loads(done.stdout)
    return {
        "rows": found,
        "file MiB": size,
        "seconds": spent,
        "rows/s": found / spent,
        "MiB before": before,
        "MiB at most": peak,
    }


ANONYMOUS = """
import json, sys, time
import numpy as np
from labelwise.tables import load
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
before, start = anonymous(), time.perf_counter()
table = load(sys.argv[1])
spent = time.perf_counter() - start
splits = table.splits()
rows = np.random.default_rng(0).permutation(len(splits["train"]))[:2000]
start = time.perf_counter()
size = sum(len(splits["train"].images.content(row)) for row in rows)
print(json.dumps([len(table), spent, before, anonymous(), size / (time.perf_counter() - start)]))
"""


def measure_parquet(quick):
    rows, size = (8_000 if quick else 80_000), 107_374
    noise = np.random.default_rng(0).integers(0, 256, (1_000, size), np.uint8)
    parts = [0] * 900 + [1] * 100
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "big.parquet"
        block = pa.table(
            {
                "image": [bytes(row) for row in noise],
                "labels": [["x"]] * len(noise),
                "split": [("train", "test")[part] for part in parts],
            }
        )
        with pq.ParquetWriter(path, block.schema) as writer:
            for _ in range(rows // len(noise)):
                writer.write_table(block)
        done = subprocess.run(
            [sys.executable, "-c", ANONYMOUS, str(path)], capture_output=True, text=True, check=True
        )
        mebibytes = path.stat().st_size / 2**20
    found, spent, before, after, rate = json.loads(done.stdout)
    return {
        "rows": found,
        "file MiB": mebibytes,
        "seconds": spent,
        "MiB more": after - before,
        "share of the file": (after - before) / mebibytes,
        "MiB/s at random": rate / 2**20,
    }


def measure_decode(quick):
    photo = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(photo).resize((1600, 1200), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    content = buffer.getvalue()
    count = 5 if quick else 40

    def plain():
        for _ in range(count):
            Image.open(io.BytesIO(content)).convert("RGB")

    def ours():
        for _ in range(count):
            decode(content, "x", at_least=224)

    peer, times = seconds(plain)[0], seconds(ours)[0]
    return {"images/s": count / times, "plain images/s": count / peer, "ratio": peer / times}


PARTS = {
    "scenes": measure_scenes,
    "split": measure_split,
    "csv": measure_csv,
    "parquet": measure_parquet,
    "decode": measure_decode,
}


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.only:
        figures = PARTS[name](arguments.quick)
        print(name, "  ".join(f"{key} {value:,.4g}" for key, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
