"""Speed of a training step and of the data path, each against a peer in the same run.

    python benchmarks/training.py                     both parts on the GPU, if there is one
    python benchmarks/training.py --part jpeg --device cpu

Part ``step``: ResNet-18 on CIFAR-sized pictures, batch 128 and 64, bf16. Ours is the loader
(pixels kept on the device, random crop and flip there) and the compiled loss with fused SGD. Peer
one is a plain eager loop with the same network, augmentation, loss and optimiser, its pixels on
the device too, in the faster of the two memory formats (goal 2.4). Peer two is our own compiled
step fed with one constant batch: what the data path costs (goal 0.85).

Part ``jpeg``: a folder of JPEG files to normalised tensors on the device. Peer is torchvision's
ImageFolder with a DataLoader as it comes (goal 2), and with one worker process a core for
comparison.

Part ``files``: whole training steps of EfficientNet-Lite0 and ResNet-50 at 224 pixels from JPEG
files of 500 x 375, against the same step on one constant batch (goal 0.95), five times in turns:
with CUDA graphs alone, as runs of fewer than 6,000 steps are computed, then compiled. The exit
status is 1 if a goal is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np
import torch
from measure import record
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, pad
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from labelwise.learn.backbones import create_backbone
from labelwise.learn.heads import LinearHead
from labelwise.learn.objectives import BCE
from labelwise.models import Model
from labelwise.pictures import Transform
from labelwise.pictures.memory import ArrayImages
from labelwise.pictures.processes import WORTH_STARTING
from labelwise.pictures.sources import FileImages
from labelwise.tables.table import LabelTable
from labelwise.training.execution import GraphedModel, accelerated
from labelwise.training.loader import Batch, BatchRows, DecodingStore, FedStore, Loader
from labelwise.types import Outputs, Targets

LABELS = 100
EAGER_GOAL, CONSTANT_GOAL, JPEG_GOAL, FILES_GOAL = 2.4, 0.85, 2.0, 0.95
RUNS = 5
PHOTO_SIZES = ((500, 375), (1600, 1200))


def cifar_like(rows: int) -> LabelTable:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
    labels = np.eye(LABELS, dtype=bool)[rng.integers(0, LABELS, rows)]
    names = [f"label {number}" for number in range(LABELS)]
    return LabelTable.from_arrays(names, ArrayImages(pixels), labels)


def make_model(
    device: torch.device, channels_last: bool = True, backbone_name: str = "resnet18-32"
) -> Model:
    torch.manual_seed(0)
    backbone = create_backbone(backbone_name)
    model = Model(backbone, LinearHead(backbone.channels, LABELS)).to(device)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def make_sgd(model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused
    )


def our_step(
    model: Model, device: torch.device, *, compiled: bool = True
) -> Callable[[Batch], Tensor]:
    on_gpu = device.type == "cuda"
    optimizer, objective = make_sgd(model, fused=on_gpu), BCE()
    network = GraphedModel(model, torch.bfloat16) if on_gpu and not compiled else model

    def loss_of(images: Tensor, targets: Targets) -> Tensor:
        return objective(network(images), targets)

    loss_of = accelerated(loss_of, precision=torch.bfloat16, compiled=on_gpu and compiled)

    def step(batch: Batch) -> Tensor:
        loss = loss_of(batch.images, batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def plain_batches(table: LabelTable, batch_size: int, device: torch.device) -> Iterator[Batch]:
    """Yield augmented batches as a plain loop makes them, with the pixels on the device."""
    pixels = torch.from_numpy(table.images.pixels).to(device).permute(0, 3, 1, 2)
    labels = torch.from_numpy(table.targets()[0]).to(device).float()
    mean, std = create_backbone("resnet18-32").transform.statistics(device)
    rows = torch.arange(batch_size, device=device)[:, None, None]
    side = torch.arange(32, device=device)
    while True:
        order = torch.randperm(len(table), device=device)
        for start in range(0, len(table) - batch_size + 1, batch_size):
            index = order[start : start + batch_size]
            padded = pad(pixels[index], (4, 4, 4, 4)).permute(0, 2, 3, 1)
            down = torch.randint(0, 9, (batch_size, 1, 1), device=device)
            right = torch.randint(0, 9, (batch_size, 1, 1), device=device)
            crops = padded[rows, side[:, None] + down, side + right].permute(0, 3, 1, 2)
            flip = torch.rand(batch_size, 1, 1, 1, device=device) < 0.5
            images = (torch.where(flip, crops.flip(3), crops).float() - mean) / std
            yield Batch(images, Targets(labels[index]))


def eager_step(device: torch.device, channels_last: bool) -> Callable[[Batch], Tensor]:
    model = make_model(device, channels_last)
    optimizer = make_sgd(model, fused=False)

    def step(batch: Batch) -> Tensor:
        images = batch.images
        if channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            outputs: Outputs = model(images)
            loss = binary_cross_entropy_with_logits(outputs.logits, batch.targets.labels)
        loss.backward()
        optimizer.step()
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


def bench_step(batch_size: int, rows: int, steps: int, device: torch.device) -> bool:
    table = cifar_like(rows)
    loader = Loader(
        table,
        create_backbone("resnet18-32").transform,
        batch_size=batch_size,
        device=device,
        augment="crop-flip",
        shuffle=True,
    )
    ours, ours_batches = our_step(make_model(device), device), epochs_of(loader)
    fixed = next(loader.epoch(0))
    contenders = {
        "labelwise": (ours, ours_batches),
        "constant batch": (ours, constant(fixed)),
        "eager": (eager_step(device, False), plain_batches(table, batch_size, device)),
        "eager, channels last": (
            eager_step(device, True),
            plain_batches(table, batch_size, device),
        ),
    }
    begun = time.perf_counter()
    rate(ours, ours_batches, 4, batch_size)
    print(f"batch {batch_size}: compiled in {time.perf_counter() - begun:.0f} s")
    rates = dict.fromkeys(contenders, 0.0)
    for _ in range(3):  # in turns, so that a slow moment of the machine meets all alike
        for name, (step, batches) in contenders.items():
            rates[name] = max(rates[name], rate(step, batches, steps, batch_size))
    for name, value in rates.items():
        print(f"  {name:22s} {value:10,.0f} images/s   {50_000 / value:6.2f} s an epoch of CIFAR")
    eager = max(rates["eager"], rates["eager, channels last"])
    return all(
        [
            report("  against the eager loop", rates["labelwise"] / eager, EAGER_GOAL),
            report(
                "  against a constant batch",
                rates["labelwise"] / rates["constant batch"],
                CONSTANT_GOAL,
            ),
        ]
    )


def make_photos(folder: Path, count: int, size: tuple[int, int]) -> list[str]:
    """Write JPEG files with the detail, and so the decoding time, of photographs."""
    rng = np.random.default_rng(0)
    names = []
    (folder / "photos").mkdir()
    for number in range(count):
        coarse = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        fine = rng.normal(0, 6, (size[1], size[0], 3))
        smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))
        pixels = np.clip(smooth + fine, 0, 255).astype(np.uint8)
        names.append(f"photos/{number:05d}.jpg")
        Image.fromarray(pixels).save(folder / names[-1], quality=90)
    return names


def our_photos(
    folder: Path, names: list[str], transform: Transform, device: torch.device
) -> Iterator[Tensor]:
    kind = FedStore if device.type == "cuda" else DecodingStore
    stream = kind(FileImages(folder, names), transform, device)
    mean, std = transform.statistics(device)
    rows = np.arange(len(names))
    jobs = (BatchRows(rows[start : start + 64]) for start in range(0, len(rows), 64))
    for pixels in stream.batches(jobs):
        yield (pixels - mean).div_(std)


def torchvision_photos(
    folder: Path, transform: Transform, device: torch.device, workers: int
) -> Iterator[Tensor]:
    steps = [
        transforms.Resize(transform.scaled_side),
        transforms.CenterCrop(transform.size),
        transforms.ToTensor(),
        transforms.Normalize(transform.mean, transform.std),
    ]
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    for images, _ in DataLoader(dataset, batch_size=64, num_workers=workers):
        yield images.to(device)


def bench_jpeg(size: tuple[int, int], count: int, device: torch.device) -> bool:
    transform, cores = Transform(224, crop=0.875), os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = make_photos(folder, count, size)
        # on a GPU enough of them for decoding processes; the second of two rounds counts
        repeats = ceil(WORTH_STARTING / count) if device.type == "cuda" else 1
        contenders: dict[str, Callable[[], Iterator[Tensor]]] = {
            "labelwise": lambda: our_photos(folder, names * repeats, transform, device),
            "torchvision": lambda: torchvision_photos(folder, transform, device, 0),
            f"torchvision, {cores} workers": lambda: torchvision_photos(
                folder, transform, device, cores
            ),
        }
        rates = dict.fromkeys(contenders, 0.0)
        for _ in range(2):
            for label, images in contenders.items():
                start = time.perf_counter()
                seen = sum(len(batch) for batch in images())
                _wait()
                rates[label] = max(rates[label], seen / (time.perf_counter() - start))
    print(f"{count} JPEG files of {size[0]} x {size[1]}, {cores} cores")
    for label, value in rates.items():
        print(f"  {label:24s} {value:8,.0f} images/s")
    return report("  against its defaults", rates["labelwise"] / rates["torchvision"], JPEG_GOAL)


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
    met = []
    for compiled in (False, True):
        step = our_step(make_model(device, backbone_name=name), device, compiled=compiled)
        fixed = next(loader.epoch(0))
        begun = time.perf_counter()
        rate(step, constant(fixed), 4, batch_size)
        way = "compiled" if compiled else "graphs alone"
        print(f"{name}, {way}: ready in {time.perf_counter() - begun:.1f} s")
        alone, ours = [], []
        for _ in range(RUNS):  # in turns, so that a slow moment of the machine meets both
            alone.append(rate(step, constant(fixed), steps, batch_size))
            ours.append(rate(step, epochs_of(loader), steps, batch_size))
        ratios = [mine / peer for mine, peer in zip(ours, alone, strict=True)]
        print(f"  constant batch {median(alone):,.0f} images/s, from files {median(ours):,.0f}")
        kind = "" if compiled else "graphs-"
        record(f"training-jpeg-{kind}{name}", median(ours), median(alone), ratios)
        shown = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        met.append(report(f"  against a constant batch ({shown})", min(ratios), FILES_GOAL))
    return all(met)


def report(what: str, ratio: float, goal: float) -> bool:
    print(f"{what}: {ratio:.2f} (goal {goal}) {'ok' if ratio >= goal else 'MISSED'}")
    return ratio >= goal


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--part", choices=("all", "jpeg", "step", "files"), default="all")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--photos", type=int, default=384)
    parser.add_argument("--backbones", nargs="+", default=["tf_efficientnet_lite0", "resnet50"])
    options = parser.parse_args()
    device, met = torch.device(options.device), []
    if options.part in ("all", "step"):
        for batch_size in (128, 64):
            met.append(bench_step(batch_size, options.rows, options.steps, device))
    if options.part in ("all", "jpeg"):
        for size in PHOTO_SIZES:
            met.append(bench_jpeg(size, options.photos, device))
    if options.part == "files":
        with tempfile.TemporaryDirectory(
            dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        ) as root:
            names = make_photos(Path(root), options.photos, PHOTO_SIZES[0])
            for name in options.backbones:
                met.append(bench_files(name, Path(root), names, options.steps, device))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
