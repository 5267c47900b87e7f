"""What commands cost before they do anything: ``python benchmarks/starts.py``.

Processor seconds of whole commands on tiny input, in processes of their own, the least of five,
with modules compiled before, as pip does; and the most memory of ``train`` as it comes (features of
a frozen backbone, a solved head) and of ``evaluate`` on 159 photos, as a first set has.

Then a small machine, one core of this one, and the model as a file of eight bits: ``predict``,
which needs no torch, and its start on one photo; ``index`` of the photos, a search, and ``serve``
with that index, all processes together, after it has tagged a photo, searched and sent its page.
Seconds of the small machine stand beside those of an interpreter that starts and ends; the start of
a server is the processor time of all its processes until it takes requests.
"""

import csv
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
from measure import record
from PIL import Image
from search import Index, Silent, make_index

WRITES_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}


PEAK = """
import atexit, sys
from pathlib import Path

place = Path(sys.argv.pop(1))
atexit.register(lambda: place.write_text(Path("/proc/self/status").read_text()))
from labelwise.cli import main

main()
"""


def spent(*arguments, repeats=5, at, one_core=False):
    """Return the least processor seconds and the most MiB of a command.

    Its memory is what the system says of the program itself: the usage that a parent is told begins
    with the parent's own.
    """
    first, place = {min(os.sched_getaffinity(0))}, at / "status"
    seconds, memory = [], []
    for _ in range(repeats):
        process = subprocess.Popen(
            [sys.executable, "-c", PEAK, place, *map(str, arguments)],
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
        memory.append(_peak(place))
    return min(seconds), max(memory)


def until_served(*arguments, at, repeats=3):
    """Return the least processor seconds of a server's processes until it takes requests."""
    found = []
    for _ in range(repeats):
        process = subprocess.Popen(
            [sys.executable, "-m", "labelwise", "serve", *map(str, arguments), "--port", "0"],
            cwd=at,
            env={**os.environ, "PYTHONPYCACHEPREFIX": str(at / "compiled")} | WRITES_COMPILED,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            process.stdout.readline()
            found.append(sum(_seconds(one) for one in _family(process.pid)))
        finally:
            process.terminate()
            process.wait()
    return min(found)


def _seconds(process):
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def served(photo, *arguments, at):
    """Return the most MiB of a server's processes, each at its worst, after it was used."""
    first = {min(os.sched_getaffinity(0))}
    process = subprocess.Popen(
        [sys.executable, "-m", "labelwise", "serve", *map(str, arguments), "--port", "0"],
        cwd=at,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, first),
    )
    try:
        address = next(word for word in process.stdout.readline().split() if "://" in word)
        address = address.rstrip("/")
        head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
        body = head + photo.read_bytes() + b"\r\n--B--\r\n"
        kind = {"Content-Type": "multipart/form-data; boundary=B"}
        asked = urllib.request.Request(f"{address}/api/v1/predict", body, kind)
        for one in (asked, f"{address}/", f"{address}/api/v1/search?q=dog&top=50"):
            with urllib.request.urlopen(one) as answer:
                answer.read()
        return sum(_peak(f"/proc/{one}/status") for one in _family(process.pid))
    finally:
        process.terminate()
        process.wait()


def _family(process):
    """Return a process and all below it."""
    below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(one for child in below for one in _family(int(child)))]


def _peak(status):
    """Return the most MiB that a process had in memory, by its status."""
    lines = Path(status).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


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
            "index": ("index", ".", "--model", "small.onnx", "-o", "own.index"),
            "search": ("search", "own.index", "dog, -car"),
        }.items():
            _, memory = spent(*words, repeats=1, at=folder, one_core=True)
            show(f"small-{name}", f"one core, {name}, most memory", memory, "MiB")
        memory = served(folder / "0.jpg", "small.onnx", "own.index", at=folder)
        show("small-serve", "one core, serve, all processes, most memory", memory, "MiB")
        seconds = until_served("small.onnx", at=folder)
        show("start-serve-onnx", "serve small.onnx, until it answers", seconds, "s, processor")


if __name__ == "__main__":
    main()
