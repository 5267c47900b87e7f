"""What commands cost before they do anything: ``python benchmarks/starts.py``.

Processor seconds of whole commands on tiny input, in processes of their own, the least of five,
with modules compiled before, as pip does; and the most memory of ``train`` as it comes (features of
a frozen backbone, a solved head) and of ``evaluate`` on 159 photos, as a first set has.

Then a small machine, one core of this one: ``predict`` by the model as a file of eight bits, which
needs no torch, the start of it on one photo, ``index`` of the photos by the run, and a search.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import record
from PIL import Image
from search import Index, Silent, make_index

WRITES_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}


def spent(*arguments, repeats=5, at, one_core=False):
    """Return the least processor seconds and the most MiB of a command."""
    first = {min(os.sched_getaffinity(0))}
    seconds, memory = [], []
    for _ in range(repeats):
        process = subprocess.Popen(
            [sys.executable, "-m", "labelwise", *map(str, arguments)],
            cwd=at,
            env={**os.environ, "PYTHONPYCACHEPREFIX": str(at / "compiled")} | WRITES_COMPILED,
            stdout=subprocess.DEVNULL,
            preexec_fn=(lambda: os.sched_setaffinity(0, first)) if one_core else None,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"labelwise {' '.join(map(str, arguments))}: {process.returncode}")
        seconds.append(used.ru_utime + used.ru_stime)
        memory.append(used.ru_maxrss / 1024)
    return min(seconds), max(memory)


def show(name, what, value, unit):
    print(f"{what:44s} {value:8.2f} {unit}", flush=True)
    record(name, value)


def main():
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row in range(159):
            pixels = random.integers(0, 256, (120, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{row}.jpg")
        with (folder / "table.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "labels"])
            rows.writerows([f"{row}.jpg", "dog|cat" if row % 3 else "car"] for row in range(159))
        make_index(2000, folder / "photos.index")
        with Index(folder / "photos.index") as index:  # as `labelwise index` does at its end
            index.store.checksums.put_missing()
            index.prepare(Silent())
        seconds, _ = spent("data", "describe", "table.csv", at=folder)
        show("start-describe", "data describe", seconds, "s of processor time")
        seconds, _ = spent("search", "photos.index", "dog, -beach", at=folder)
        show("start-search", "search", seconds, "s of processor time")
        seconds, _ = spent("predict", "--help", at=folder)
        show("start-predict", "predict --help", seconds, "s of processor time")
        _, memory = spent("train", "table.csv", "-o", "run", repeats=1, at=folder)
        show("memory-train-features", "train as it comes, most memory", memory, "MiB")
        _, memory = spent("evaluate", "run", "--split", "val", repeats=1, at=folder)
        show("memory-evaluate", "evaluate, most memory", memory, "MiB")
        given = ("--int8-anyway", "--data", "table.csv", "-o", "small.onnx")
        spent("export", "run", "--int8", *given, repeats=1, at=folder)
        seconds, _ = spent("predict", "small.onnx", "0.jpg", repeats=3, at=folder)
        show("start-predict-onnx", "predict small.onnx, one photo", seconds, "s of processor time")
        photos = [f"{row}.jpg" for row in range(159)]
        for name, words in {
            "predict": ("predict", "small.onnx", *photos, "-o", "answers.csv"),
            "index": ("index", ".", "--model", "run", "-o", "own.index"),
            "search": ("search", "own.index", "dog, -car"),
        }.items():
            seconds, memory = spent(*words, repeats=1, at=folder, one_core=True)
            show(f"small-{name}", f"one core, {name}, most memory", memory, "MiB")
            print(f"{'':44s} {seconds:8.2f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
