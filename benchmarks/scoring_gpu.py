"""JPEG files to probabilities on a GPU, and the parts of that work alone.

    python benchmarks/scoring.py --device cuda --decode cpu
    python benchmarks/scoring.py --device cuda --decode cuda --sizes 500x375 --json figures.json

files read   by as many threads, for comparison; for nvJPEG also by processes, as the engine does
decode       the same files decoded and not used: by processes, by threads and by Pillow in threads;
             or by nvJPEG in batches, the files in memory
forward      EfficientNet-Lite0 in bfloat16 on one batch of pixels again and again
engine       ``labelwise.score`` over the files, with processes and with threads alone
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

from labelwise.models import Predictor
from labelwise.models.scoring import score
from labelwise.pictures import FileImages, batches
from labelwise.pictures.batches import decode_by_torchvision
from labelwise.pictures.decode import by_pillow, decode_pixels
from labelwise.pictures.loading import CHUNK, CHUNK_OF_FILES
from labelwise.pictures.prefetch import available_cores
from labelwise.pictures.processes import borrowed_processes, items_ahead
from labelwise.pictures.worker import SLOT_BYTES, Kind, Work

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


def by_threads(work: Callable[[int], object], count: int, threads: int) -> Callable[[], None]:
    def some(rows: range) -> None:
        for row in rows:
            work(row)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            parts = [range(at, min(at + 8, count)) for at in range(0, count, 8)]
            list(pool.map(some, parts))

    return run


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


def by_processes(
    images: FileImages, transform: object, workers: int, kind: Kind = Kind.PIXELS, most: int = CHUNK
) -> Callable[[], None]:
    work = Work(kind, transform)
    size = min(most, work.most_items)
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
    transform, at_least = predictor.transform, predictor.transform.at_least()
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
        threads = by_threads(images.content, len(few), workers)
        figures.add("files read by threads", rate(len(few), threads, 1))
        if decode == "cpu":
            decoded = by_processes(images, transform, workers)
            figures.add("decode by processes", rate(count, decoded))
            for name, work in (("threads", decode_pixels), ("Pillow in threads", by_pillow)):
                run = by_threads(
                    lambda row, w=work: w(content_of(row), "x", at_least), len(few), workers
                )
                figures.add(f"decode by {name}", rate(len(few), run, 1))
        else:
            most = max(1, min(CHUNK_OF_FILES, SLOT_BYTES // (max(map(len, contents)) + 1)))
            read = by_processes(images, transform, workers, Kind.JPEG, most)
            figures.add("files read by processes", rate(count, read, 1))
            tensors = [
                torch.frombuffer(bytearray(content_of(row)), dtype=torch.uint8)
                for row in range(len(few))
            ]

            def decoded() -> None:
                for some in slices(tensors, batch):
                    decode_by_torchvision(some, device)

            figures.add("decode by torchvision's nvJPEG", rate(len(few), decoded))
        at_size = at_least if decode == "cpu" else None
        height, width = decode_pixels(contents[0], "x", at_size).shape[:2]
        at_once = max(1, min(batch, (1 << 30) // (3 * height * width)))
        planes = torch.zeros(at_once, height, width, 3, dtype=torch.uint8, device=device)
        planes = planes.permute(0, 3, 1, 2)
        rounds = max(1, len(few) // batch)

        def resized() -> None:
            with torch.inference_mode():
                for _ in range(rounds):
                    transform.resize_planes(planes)

        figures.add("resize on the device", rate(rounds * at_once, resized))
        pixels = torch.zeros(batch, side, side, 3, dtype=torch.uint8, device=device)
        pixels = pixels.permute(0, 3, 1, 2)

        def forward() -> None:
            for _ in range(rounds):
                scorer.logits(pixels)

        figures.add("forward", rate(rounds * batch, forward))
        run = engine(scorer, images, batch, workers, decode, True)
        figures.add("engine", rate(count, run, given.repeats))
        run = engine(scorer, few, batch, workers, decode, False)
        figures.add("engine, threads alone", rate(len(few), run, 1))
        found = figures.values
        decoding = max(value for name, value in found.items() if name.startswith("decode"))
        ratio = found["engine"] / min(decoding, found["forward"])
        print(f"  engine / slower of decode and forward: {ratio:.2f} (goal {RATIO_GOALS[decode]})")
        if size == (500, 375):
            name = "nvjpeg-small" if decode == "cuda" else "cpu-decode"
            record(name, found["engine"], min(decoding, found["forward"]))
            print(f"  goal at this size: {GOALS[decode]:,} images/s")
        if decode == "cuda" and size[0] < 2000:
            compare_pixels(contents[:32], at_least, device)
        facts = {"size": size, "decode": decode, "workers": workers, "batch": batch, "count": count}
        return {**facts, "ratio": ratio, "images per second": found}


def compare_pixels(contents: list[bytes], at_least: int | None, device: torch.device) -> None:
    """Print how far nvJPEG's levels are from libjpeg's, at full size."""
    tensors = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    apart = [
        (found.permute(1, 2, 0).cpu().int() - torch.from_numpy(decode_pixels(content, "x").copy()))
        .abs()
        .flatten()
        for found, content in zip(decode_by_torchvision(tensors, device), contents, strict=True)
    ]
    levels = torch.cat(apart).float()
    print(
        f"  nvJPEG's levels against libjpeg's: mean {levels.mean():.2f}, "
        f"99.9 % within {np.quantile(levels[:5_000_000].numpy(), 0.999):.0f}, "
        f"largest {levels.max():.0f}"
    )
