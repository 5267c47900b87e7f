"""JPEG files to probabilities on a GPU, and the parts of that work alone.

    python benchmarks/scoring.py --device cuda --decode cpu
    python benchmarks/scoring.py --device cuda --decode cuda

decode     the same files decoded and not used: by threads, or by nvJPEG in batches
forward    EfficientNet-Lite0 in bfloat16 on one batch of pixels again and again
engine     ``labelwise.scoring.score`` over the files
ratio      engine / the slower of decode and forward (goal 0.85)

Beside them, to see what holds what up: the resize on the device, reading the files, and with the
CPU decoder also Pillow in as many threads. Images per second, the best of a few runs.
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
from PIL import Image
from torch import Tensor

from labelwise.batches import available_cores, decode_on_gpu
from labelwise.data import FileImages
from labelwise.data.decode import by_pillow, decode_pixels
from labelwise.predictor import Predictor
from labelwise.scoring import score

DISTINCT = 256
GOALS = {"cpu": 6_000, "cuda": 10_000}  # at 500 x 375


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


def by_threads(work: Callable[[int], object], count: int, threads: int) -> Callable[[], None]:
    def some(rows: range) -> None:
        for row in rows:
            work(row)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            parts = [range(at, min(at + 8, count)) for at in range(0, count, 8)]
            list(pool.map(some, parts))

    return run


def slices(items: list[Tensor], size: int) -> Iterator[list[Tensor]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def measure_gpu(predictor: Predictor, decode: str, size: tuple[int, int], given: object) -> None:
    """Print one block of figures for pictures of one size."""
    count, batch, threads = given.count, given.batch, given.threads or available_cores()
    device = torch.device(given.device)
    model = predictor.model.to(device, torch.bfloat16, memory_format=torch.channels_last)
    scorer = Bfloat16(predictor)
    transform, at_least = predictor.transform, predictor.transform.at_least
    side = transform.size
    assert next(model.parameters()).device.type == device.type
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        contents = [noisy_photo(size, seed) for seed in range(min(DISTINCT, count))]
        for number, content in enumerate(contents):
            (Path(root) / f"{number}.jpg").write_bytes(content)
        images = FileImages(root, [f"{row % len(contents)}.jpg" for row in range(count)])
        print(
            f"\n{size[0]} x {size[1]}, {np.mean([len(c) for c in contents]) / 1024:.0f} KiB each, "
            f"{count:,} files, batches of {batch}, {threads} threads, decode={decode}",
            flush=True,
        )

        def content_of(row: int) -> bytes:
            return contents[row % len(contents)]

        figures: dict[str, float] = {}

        def show(name: str, figure: float) -> None:
            figures[name] = figure
            print(f"  {name:<34}{figure:>10,.0f} images/s", flush=True)

        show("files read", rate(count, by_threads(images.content, count, threads)))
        if decode == "cpu":
            decoded = by_threads(
                lambda row: decode_pixels(content_of(row), "x", at_least), count, threads
            )
            show("decode", rate(count, decoded))
            pillow = by_threads(
                lambda row: by_pillow(content_of(row), "x", at_least), count, threads
            )
            show("decode by Pillow", rate(count, pillow, 1))
        else:
            tensors = [
                torch.frombuffer(bytearray(content_of(row)), dtype=torch.uint8)
                for row in range(count)
            ]
            show(
                "decode",
                rate(
                    count, lambda: [decode_on_gpu(some, device) for some in slices(tensors, batch)]
                ),
            )
        height, width = decode_pixels(
            contents[0], "x", at_least if decode == "cpu" else None
        ).shape[:2]
        planes = torch.zeros(batch, height, width, 3, dtype=torch.uint8, device=device)
        planes = planes.permute(0, 3, 1, 2)
        rounds = max(1, count // batch)

        def resized() -> None:
            with torch.inference_mode():
                for _ in range(rounds):
                    transform.resize_planes(planes)

        show("resize on the device", rate(rounds * batch, resized))
        pixels = torch.zeros(batch, side, side, 3, dtype=torch.uint8, device=device)
        pixels = pixels.permute(0, 3, 1, 2)

        def forward() -> None:
            for _ in range(rounds):
                scorer.logits(pixels)

        show("forward", rate(rounds * batch, forward))

        def engine() -> None:
            found = score(scorer, images, batch_size=batch, workers=threads, decode=decode)
            assert sum(len(part) for part in found) == count

        show("engine", rate(count, engine))
        slower = min(figures["decode"], figures["forward"])
        print(
            f"  engine / slower of decode and forward: {figures['engine'] / slower:.2f} (goal 0.85)"
        )
        if size == (500, 375):
            print(f"  goal at this size: {GOALS[decode]:,} images/s")
        if decode == "cuda":
            compare_pixels(contents[:32], at_least, device)


def compare_pixels(contents: list[bytes], at_least: int, device: torch.device) -> None:
    """Print how far nvJPEG's levels are from libjpeg's, at full size."""
    tensors = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    apart = [
        (found.permute(1, 2, 0).cpu().int() - torch.from_numpy(decode_pixels(content, "x").copy()))
        .abs()
        .flatten()
        for found, content in zip(decode_on_gpu(tensors, device), contents, strict=True)
    ]
    levels = torch.cat(apart).float()
    print(
        f"  nvJPEG's levels against libjpeg's: mean {levels.mean():.2f}, "
        f"99.9 % within {np.quantile(levels[:5_000_000].numpy(), 0.999):.0f}, "
        f"largest {levels.max():.0f}"
    )
