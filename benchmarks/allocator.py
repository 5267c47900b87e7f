"""Freed memory kept (as our commands do) or given back: CPU seconds and peak memory per command.

    python benchmarks/allocator.py [--photos 96] [--weights FILE]

predict, features (``train --features``), training (one epoch of the whole network) and serving (one
photo per request) run as a person would start them, once with LABELWISE_MALLOC=system and once
without it, on generated photos of 500 x 375 with EfficientNet-Lite0 at 224 pixels. CPU seconds are
those of the command and its children, in the processor and in the kernel, less those of the same
command on eight photos, so that starting Python is not counted. Peak memory is the command's own.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

BACKBONE = "tf_efficientnet_lite0"
PORT = 8731


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    seconds: float
    kernel: float
    mib: float

    def less(self, start: "Cost") -> "Cost":
        return Cost(self.seconds - start.seconds, self.kernel - start.kernel, self.mib)


def write_photos(folder: Path, count: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["image,labels,split"]
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        photo.save(folder / f"{number}.jpg", quality=90)
        labels = "|".join(name for name in "abcd" if rng.random() < 0.4)
        split = ("val", "test")[number % 2] if number < count // 4 else "train"
        lines.append(f"{number}.jpg,{labels},{split}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")


def finish(process: subprocess.Popen[bytes]) -> Cost:
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, -signal.SIGTERM):
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_stime, used.ru_maxrss / 1024)


def start(setting: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "LABELWISE_MALLOC": setting, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "labelwise", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=sys.stderr)


def serve(setting: str, model: Path, photos: list[Path]) -> Cost:
    process = start(setting, "serve", str(model), "--port", str(PORT))
    address = f"http://127.0.0.1:{PORT}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health/ready", timeout=5).close()
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    for photo in photos:
        request = urllib.request.Request(f"{address}/api/v1/predict", photo.read_bytes())
        request.add_header("Content-Type", "image/jpeg")
        urllib.request.urlopen(request, timeout=60).read()
    process.terminate()
    return finish(process)


def measure(setting: str, folder: Path, out: Path, weights: list[str]) -> dict[str, Cost]:
    table, model = str(folder / "photos.csv"), out / "trained"
    network = ["--set", "recipe.epochs=1", "--set", "batch_size=32", "--fresh"]
    found = {
        "training": finish(
            start(
                setting,
                "train",
                table,
                "-o",
                str(model),
                "--backbone",
                BACKBONE,
                *weights,
                *network,
            )
        ),
        "features": finish(
            start(
                setting,
                *("train", table, "-o", str(out / "solved"), "--features", BACKBONE, *weights),
                *("--set", f"hardware.features_cache={out / 'cache'}"),
            )
        ),
        "predict": finish(
            start(setting, "predict", str(model), str(folder), "-o", str(out / "scores.parquet"))
        ),
    }
    found["serving"] = serve(setting, model, sorted(folder.glob("*.jpg")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=96)
    parser.add_argument("--weights", help="a weights file; else the network is random")
    given = parser.parse_args()
    weights = ["--weights", given.weights] if given.weights else []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_photos(root / "few", 8)
        write_photos(root / "many", given.photos)
        costs = {}
        for setting in ("system", "keep"):
            few, many = (
                measure(setting, root / size, root / f"{setting}-{size}", weights)
                for size in ("few", "many")
            )
            costs[setting] = {job: many[job].less(few[job]) for job in many}
    for job, kept in costs["keep"].items():
        given_back = costs["system"][job]
        print(
            f"{job:<9} given back {given_back.seconds:7.2f} s ({given_back.kernel:6.2f} kernel) "
            f"{given_back.mib:6.0f} MiB   kept {kept.seconds:7.2f} s ({kept.kernel:6.2f} kernel) "
            f"{kept.mib:6.0f} MiB   {given_back.seconds / kept.seconds:5.2f}x as fast, "
            f"{kept.mib / given_back.mib:.2f}x the memory"
        )


if __name__ == "__main__":
    main()
