"""Speed of training from JPEG files, against the step alone and against a later epoch.

    python benchmarks/training.py --part files
    python benchmarks/training.py --part whole

Part ``files``: whole training steps of EfficientNet-Lite0 and ResNet-50 at 224 pixels from JPEG
files of 500 x 375, compiled, against the same step on one constant batch (goal 0.95), five times in
turns. The exit status is 1 if a goal is missed.

Part ``whole``: ``labelwise train`` on 15,104 JPEG files, three epochs of EfficientNet-Lite0, from
the command to the report; then the same again. The first epoch, which decodes every photo, is
compared with the fastest later one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice, pairwise
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np
import torch
from measure import record
from PIL import Image
from torch import Tensor

from labelwise.learn.backbones import create_backbone
from labelwise.learn.heads import LinearHead
from labelwise.learn.objectives import BCE
from labelwise.learn.predictor import Model
from labelwise.pictures.processes import WORTH_STARTING
from labelwise.pictures.sources import FileImages
from labelwise.tables.table import LabelTable
from labelwise.training.execution import accelerated
from labelwise.training.loader import Batch, Loader
from labelwise.types import Targets

LABELS = 100
GOAL, RUNS, SIZE = 0.95, 5, (500, 375)


def make_model(device: torch.device, backbone_name: str) -> Model:
    torch.manual_seed(0)
    backbone = create_backbone(backbone_name)
    model = Model(backbone, LinearHead(backbone.channels, LABELS)).to(device)
    return model.to(memory_format=torch.channels_last)


def our_step(model: Model, device: torch.device) -> Callable[[Batch], Tensor]:
    on_gpu = device.type == "cuda"
    objective = BCE()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=on_gpu
    )

    def loss_of(images: Tensor, targets: Targets) -> Tensor:
        return objective(model(images), targets)

    loss_of = accelerated(loss_of, precision=torch.bfloat16, compiled=on_gpu)

    def step(batch: Batch) -> Tensor:
        loss = loss_of(batch.images, batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def epochs_of(loader: Loader) -> Iterator[Batch]:
    number = 0
    while True:
        yield from loader.epoch(number)
        number += 1


def constant(batch: Batch) -> Iterator[Batch]:
    while True:
        yield batch


def rate(step: Callable[[Batch], Tensor], batches: Iterator[Batch], steps: int, size: int) -> float:
    """Return images a second over ``steps`` steps; the device's work is waited for at the end."""
    for batch in islice(batches, 4):
        step(batch)
    _wait()
    start = time.perf_counter()
    for batch in islice(batches, steps):
        loss = step(batch)
    if not loss.isfinite():
        raise RuntimeError("the loss is no longer a number")
    _wait()
    return steps * size / (time.perf_counter() - start)


def photo(number: int) -> bytes:
    """Return a JPEG with the detail, and so the decoding time, of photographs."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC))
    pixels = np.clip(smooth + rng.normal(0, 6, (SIZE[1], SIZE[0], 3)), 0, 255).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_photos(folder: Path, count: int) -> list[str]:
    """Write that many different photos into a folder, and return their names."""
    names = [f"{number:05d}.jpg" for number in range(count)]
    with ThreadPoolExecutor() as pool:  # NumPy and Pillow let go of the lock
        for name, content in zip(names, pool.map(photo, range(count)), strict=True):
            (folder / name).write_bytes(content)
    return names


def bench_whole(folder: Path, names: list[str], device: str) -> None:
    """Time the command as it is typed, and read the seconds of its epochs from its journal."""
    random = np.random.default_rng(0)
    lines = ["path,labels,split"]
    for number, name in enumerate(names):
        labels = "|".join(f"label {label}" for label in np.flatnonzero(random.random(20) < 0.15))
        split = ("val", "test")[number % 2] if number % 10 < 2 else "train"
        lines.append(f"{name},{labels},{split}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    settings = "--backbone tf_efficientnet_lite0 --weights pretrained --epochs 3 --batch-size 128"
    settings += f" --precision bf16 --augment flip --accelerator {device}"
    for again in ("", "-again"):
        name = f"whole-run{again}"
        command = [sys.executable, "-m", "labelwise", "train", str(folder / "photos.csv")]
        subprocess.run([*command, *settings.split(), "-o", str(folder / name)], check=True)
        journal = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
        seconds = [line["seconds"] for line in journal if "epoch" in line and "seconds" in line]
        later = min(end - start for start, end in pairwise(seconds))
        print(f"{name}: first epoch {seconds[0]:.2f} s, a later one {later:.2f} s")
        record(f"whole-run-first-epoch{again}", seconds[0], later)


def bench_files(
    name: str, folder: Path, names: list[str], steps: int, device: torch.device
) -> bool:
    batch_size, transform = 128, create_backbone(name).transform
    repeated = names * ceil(WORTH_STARTING / len(names))
    labels = np.random.default_rng(0).random((len(repeated), LABELS)) < 0.03
    known = [f"label {number}" for number in range(LABELS)]
    loader = Loader(
        LabelTable.from_arrays(known, FileImages(folder, repeated), labels),
        transform,
        batch_size=batch_size,
        device=device,
        augment="flip",
        shuffle=True,
    )
    step = our_step(make_model(device, name), device)
    fixed = next(loader.epoch(0))
    rate(step, constant(fixed), 4, batch_size)
    alone, ours = [], []
    for _ in range(RUNS):  # in turns, so that a slow moment of the machine meets both
        alone.append(rate(step, constant(fixed), steps, batch_size))
        ours.append(rate(step, epochs_of(loader), steps, batch_size))
    ratios = [mine / peer for mine, peer in zip(ours, alone, strict=True)]
    record(f"training-jpeg-{name}", median(ours), median(alone), ratios)
    shown = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
    return report(f"{name}: against a constant batch ({shown})", min(ratios), GOAL)


def report(what: str, ratio: float, goal: float) -> bool:
    print(f"{what}: {ratio:.2f} (goal {goal}) {'ok' if ratio >= goal else 'MISSED'}")
    return ratio >= goal


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--part", choices=("files", "whole"), default="files")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--photos", type=int, help="by default 384, or 15,104 of the whole run")
    parser.add_argument("--backbones", nargs="+", default=["tf_efficientnet_lite0", "resnet50"])
    options = parser.parse_args()
    device = torch.device(options.device)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as root:
        whole = options.part == "whole"
        names = make_photos(Path(root), options.photos or (15_104 if whole else 384))
        if whole:
            bench_whole(Path(root), names, options.device)
            return 0
        met = [
            bench_files(name, Path(root), names, options.steps, device)
            for name in options.backbones
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
