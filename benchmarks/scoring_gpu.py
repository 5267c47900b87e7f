"""JPEG files to probabilities on a GPU, and the parts of that work alone.

    python benchmarks/scoring.py --device cuda --decode cpu
    python benchmarks/scoring.py --device cuda --decode cuda --sizes 500x375 --json figures.json

decode       the files decoded and scaled, not used: by processes, or by nvJPEG from memory
forward      EfficientNet-Lite0 in bfloat16 on one batch of pixels again and again
engine       ``labelwise.score`` over the files
ratio        engine / the slower of decode and forward (goals: 0.9, by nvJPEG 0.6)

Images per second, the best of a few runs after one that warms up.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from measure import record
from PIL import Image
from torch import Tensor

from labelwise.learn.predictor import Predictor
from labelwise.models.scoring import score
from labelwise.pictures import FileImages, batches
from labelwise.pictures.batches import CHUNK, decode_by_torchvision
from labelwise.pictures.prefetch import available_cores
from labelwise.pictures.processes import borrowed_processes, items_ahead
from labelwise.pictures.worker import Kind, Work

DISTINCT = 1 << 26  # pixels of all the different pictures
MOST_DISTINCT = 256
GOALS = {"cpu": 6_000, "cuda": 10_000}  # at 500 x 375
RATIO_GOALS = {"cpu": 0.9, "cuda": 0.6}


@dataclass(frozen=True)
class Bfloat16:
    """A predictor whose network computes in bfloat16."""

    predictor: Predictor

    def __getattr__(self, name: str) -> object:
        return getattr(self.predictor, name)

    def logits(self, inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            values = self.predictor.transform.inputs(inputs).bfloat16()
            return self.predictor.model(values).logits.float()


def noisy_photo(size: tuple[int, int], seed: int) -> bytes:
    """Return a JPEG of about two bits per pixel, as photos have."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.integers(-12, 12, smooth.shape, np.int16)
    buffer = BytesIO()
    pixels = (smooth + grain).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def rate(count: int, run: Callable[[], object], repeats: int = 3) -> float:
    """Return the images per second of the fastest run; the first one warms up."""
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return count / best


def slices(items: list, size: int) -> Iterator[list]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


class Figures:
    """Images per second by name, printed as they come."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, name: str, figure: float) -> None:
        self.values[name] = figure
        print(f"  {name:<34}{figure:>10,.0f} images/s", flush=True)


def by_processes(images: FileImages, transform: object, workers: int) -> Callable[[], None]:
    work = Work(Kind.RESIZED, transform)
    size = min(CHUNK, work.most_items)
    parts = [range(at, min(at + size, len(images))) for at in range(0, len(images), size)]

    def run() -> None:
        with borrowed_processes(workers) as lent:
            for _ in lent.run(work, items_ahead(images, parts, workers)):
                pass

    return run


def engine(scorer: object, images: FileImages, batch: int, workers: int, decode: str, own: bool):
    """Return a run of the engine, with processes of its own or with threads alone."""

    def run() -> None:
        batches.are_worth_it = lambda *given: own
        found = score(scorer, images, batch_size=batch, workers=workers, decode=decode)
        assert sum(len(part) for part in found) == len(images)

    return run


def measure_gpu(
    predictor: Predictor, decode: str, size: tuple[int, int], given: object
) -> dict[str, object]:
    """Print one block of figures for pictures of one size, and return them."""
    count, batch, workers = given.count, given.batch, given.workers or available_cores()
    count = max(4 * batch, int(count * min(1.0, 4 * 500 * 375 / (size[0] * size[1]))))
    device = torch.device(given.device)
    model = predictor.model.to(device, torch.bfloat16, memory_format=torch.channels_last)
    scorer = Bfloat16(predictor)
    transform = predictor.transform
    side = transform.size
    assert next(model.parameters()).device.type == device.type
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        distinct = min(MOST_DISTINCT, count, max(8, DISTINCT // (size[0] * size[1])))
        with ThreadPoolExecutor(workers) as pool:
            contents = list(pool.map(lambda seed: noisy_photo(size, seed), range(distinct)))
        for number, content in enumerate(contents):
            (Path(root) / f"{number}.jpg").write_bytes(content)
        images = FileImages(root, [f"{row % len(contents)}.jpg" for row in range(count)])
        few = images.subset(np.arange(max(batch, count // 4)))
        print(
            f"\n{size[0]} x {size[1]}, {np.mean([len(c) for c in contents]) / 1024:.0f} KiB each, "
            f"{count:,} files, batches of {batch}, {workers} workers, decode={decode}",
            flush=True,
        )

        def content_of(row: int) -> bytes:
            return contents[row % len(contents)]

        figures = Figures()
        if decode == "cpu":
            decoded = by_processes(images, transform, workers)
            figures.add("decode by processes", rate(count, decoded))
        else:
            tensors = [
                torch.frombuffer(bytearray(content_of(row)), dtype=torch.uint8)
                for row in range(len(few))
            ]

            def decoded() -> None:
                for some in slices(tensors, batch):
                    decode_by_torchvision(some, device)

            figures.add("decode by torchvision's nvJPEG", rate(len(few), decoded))
        rounds = max(1, len(few) // batch)
        pixels = torch.zeros(batch, side, side, 3, dtype=torch.uint8, device=device)
        pixels = pixels.permute(0, 3, 1, 2)

        def forward() -> None:
            for _ in range(rounds):
                scorer.logits(pixels)

        figures.add("forward", rate(rounds * batch, forward))
        run = engine(scorer, images, batch, workers, decode, True)
        figures.add("engine", rate(count, run, given.repeats))
        found = figures.values
        decoding = max(value for name, value in found.items() if name.startswith("decode"))
        ratio = found["engine"] / min(decoding, found["forward"])
        print(f"  engine / slower of decode and forward: {ratio:.2f} (goal {RATIO_GOALS[decode]})")
        if size == (500, 375):
            name = "nvjpeg-small" if decode == "cuda" else "cpu-decode"
            record(name, found["engine"], min(decoding, found["forward"]))
            print(f"  goal at this size: {GOALS[decode]:,} images/s")
        facts = {"size": size, "decode": decode, "workers": workers, "batch": batch, "count": count}
        return {**facts, "ratio": ratio, "images per second": found}
