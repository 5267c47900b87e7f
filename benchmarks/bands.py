"""Pictures of bands: reading them at full depth, and keeping a GPU busy with them.

    python benchmarks/bands.py --part decode          on a CPU
    python benchmarks/bands.py --part stages          processor time and bytes of a tile, on a CPU
    python benchmarks/bands.py --part gpu             12-band tiles of 120 pixels, on a GPU

Part ``decode``: files of 16 bits to arrays (H, W, bands), in one thread, against the reader alone
(tifffile's ``imread``, pydicom's ``pixel_array``) from the same bytes. Ratio: our processor time
over theirs, the least of a few repeats in turns (goal: at most 1.2). The change to float32 comes
after it, and is a part of the resize.

Part ``stages``: what a 12-band tile costs on its way from a ``.npy`` file to a GPU, in processor
time: to fill a shared slot, in a decoding process, with float32 (as for the server) and with the
file's own numbers; and to hand it over, in the process that trains, without the copy, which a GPU
makes by itself.

Part ``gpu``: ResNet-50 in bfloat16 on generated tiles (uint16 ``.npy`` files). Training: our loader
and compiled step against the same step on one constant batch. Scoring: ``labelwise.score`` against
the network alone on one constant batch. Ratios of images a second (goal: at least 0.85). The tiles
are streamed from their files by decoding processes, and once more kept on the device. Feeding is
the same without a network, for comparison: what files and processes can give at most.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from training import constant, epochs_of, our_step, rate

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.models.scoring import score
from labelwise.pictures import FileImages, Transform
from labelwise.pictures.batches import read_ahead
from labelwise.pictures.processes import borrowed_processes, items_ahead
from labelwise.pictures.transform import Bands, BandScale
from labelwise.pictures.worker import SLOT_BYTES, Entry, Kind, OneImage, Work, fill
from labelwise.tables.table import LabelTable
from labelwise.training import loader as pixels
from labelwise.training.loader import Loader
from labelwise.types import LabelSpace

DECODE_GOAL, GPU_GOAL = 1.2, 0.85
BANDS, SIDE, LABELS = 12, 120, 19


def decode_part() -> dict[str, float]:
    """Return our processor time over the reader's, by format."""
    import tifffile
    from pydicom import dcmread

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from band_files import dicom, tiff

    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 4096, (64, 64)).repeat(32, 0).repeat(32, 1).astype(np.uint16)
    tile = rng.integers(0, 10_000, (SIDE, SIDE, BANDS)).astype(np.uint16)
    grey, twelve = Bands(("grey",), ("grey",)), Bands(tuple(map(str, range(BANDS))), ("0",))

    def by_tifffile(content: bytes) -> object:
        return tifffile.imread(io.BytesIO(content))

    def by_pydicom(content: bytes) -> object:
        return dcmread(io.BytesIO(content)).pixel_array

    jobs = {
        "DICOM, 2048 x 2048, 12 bit": (dicom(smooth), grey, by_pydicom, 20),
        "TIFF, 2048 x 2048, 16 bit": (tiff(smooth), grey, by_tifffile, 20),
        "TIFF, deflate, 2048 x 2048": (tiff(smooth, compression="deflate"), grey, by_tifffile, 10),
        "TIFF, 12 bands of 120 x 120": (tiff(tile), twelve, by_tifffile, 200),
    }
    ratios = {}
    for name, (content, bands, alone, times) in jobs.items():
        ours = lambda blob, bands=bands: OneImage(blob, "x").read_bands(0, bands)  # noqa: E731
        seconds = {"ours": np.inf, "alone": np.inf}
        for _ in range(7):
            for key, read in (("ours", ours), ("alone", alone)):
                seconds[key] = min(seconds[key], _processor_seconds(read, content, times))
        ratios[name] = seconds["ours"] / seconds["alone"]
        each = {key: 1000 * value / times for key, value in seconds.items()}
        verdict = "met" if ratios[name] <= DECODE_GOAL else "MISSED"
        print(
            f"{name:30s} {each['ours']:7.3f} ms, reader alone {each['alone']:7.3f} ms, "
            f"ratio {ratios[name]:.2f} (goal {DECODE_GOAL}: {verdict})"
        )
    return ratios


def _processor_seconds(read: Callable[[bytes], object], content: bytes, times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        read(content)
    return time.process_time() - start


def stages_part(tiles: int) -> dict[str, float]:
    """Return microseconds of processor time per tile."""
    with tempfile.TemporaryDirectory() as folder:
        table, scale = _tiles(Path(folder), tiles)
        transform = Transform(SIDE).with_bands(scale)
        rows = [list(range(at, min(at + 16, tiles))) for at in range(0, tiles, 16)]
        items = list(items_ahead(table.images, rows, 1))
        slot = np.zeros(SLOT_BYTES, np.uint8)
        figures = {}
        for name, kind in (("float32", Kind.RESIZED), ("own numbers", Kind.PIXELS)):
            work = Work(kind, transform)

            def fill_all(_: bytes, work: Work = work) -> None:
                for some in items:
                    entries = fill(work, some, slot, lambda: None)
                assert all(isinstance(entry, Entry) for entry in entries)

            (entry,) = fill(work, items[0][:1], slot, lambda: None)
            assert isinstance(entry, Entry)
            seconds = min(_processor_seconds(fill_all, b"", 1) for _ in range(7))
            figures[f"fill a slot, {name}"] = 1e6 * seconds / tiles
            print(f"fill a slot, {name:12s} {1e6 * seconds / tiles:6.0f} us, {entry.size:,} bytes")
        work = Work(Kind.PIXELS, transform)
        best = np.inf
        with borrowed_processes(2) as lent:
            assert lent is not None
            for _ in range(4):
                start = time.process_time()
                found = sum(len(chunk.entries) for chunk in lent.run(work, items))
                best = min(best, time.process_time() - start)
        assert found == tiles
        figures["hand over"] = 1e6 * best / tiles
        print(f"hand over                {1e6 * best / tiles:6.0f} us")
    return figures


def gpu_part(
    name: str, tiles: int, batch_size: int, steps: int, device: torch.device
) -> dict[str, float]:
    """Return images a second over those of a constant batch."""
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        table, scale = _tiles(Path(folder), tiles)
        backbone = create_backbone(name, image_size=SIDE, squash=True, bands=scale)
        head = HeadSpec("linear", {})
        model = Model(backbone, head.make(backbone.channels, LABELS)).to(device)
        model = model.to(memory_format=torch.channels_last)
        step = our_step(model, device)
        kept, limit = _loader(table, backbone, batch_size, device), pixels.CUDA_SHARE
        fixed = next(kept.epoch(0))
        rate(step, constant(fixed), 4, batch_size)  # compiles
        pixels.CUDA_SHARE = 0.0
        streamed = _loader(table, backbone, batch_size, device)
        alone = max(rate(step, constant(fixed), steps, batch_size) for _ in range(3))
        whole = len(table) // batch_size
        rates = {
            "training, kept on the device": rate(step, epochs_of(kept), steps, batch_size),
            "training, streamed from files": rate(
                step, epochs_of(streamed), min(steps, whole - 8), batch_size
            ),
        }
        pixels.CUDA_SHARE = limit
        _feeding(table, backbone.transform, batch_size, device)
        for what, value in rates.items():
            ratios[what] = value / alone
            print(f"{what:32s} {value:9,.0f} images/s, constant batch {alone:9,.0f}")
        del step, kept
        space = LabelSpace(tuple(f"label {number}" for number in range(LABELS)))
        predictor = Predictor(model.eval(), head, space, Sigmoid(), Threshold(0.5))
        ratios |= _scoring(_Bfloat16(predictor), table, batch_size, device)
    for what, ratio in ratios.items():
        verdict = "met" if ratio >= GPU_GOAL else "MISSED"
        print(f"{what:32s} ratio {ratio:.2f} (goal {GPU_GOAL}: {verdict})")
    return ratios


class _Bfloat16:
    """A predictor whose network computes in bfloat16."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def __getattr__(self, name: str) -> object:
        return getattr(self.predictor, name)

    def logits(self, inputs: Tensor) -> Tensor:
        with torch.inference_mode(), torch.autocast(inputs.device.type, torch.bfloat16):
            values = self.predictor.transform.inputs(inputs)
            values = values.contiguous(memory_format=torch.channels_last)
            return self.predictor.model(values).logits.float()


def _feeding(
    table: LabelTable, transform: Transform, batch_size: int, device: torch.device
) -> None:
    """Print how many tiles a second come to the device, with nothing done there."""
    rows = list(np.arange(len(table) // batch_size * batch_size).reshape(-1, batch_size))
    for _ in range(2):
        start = time.perf_counter()
        found = sum(
            len(part.rows) for part in read_ahead(table.images, transform, rows, device=device)
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        print(f"{'feeding, no network':32s} {found / seconds:9,.0f} images/s")


def _scoring(
    scorer: _Bfloat16, table: LabelTable, batch_size: int, device: torch.device
) -> dict[str, float]:
    values = 2000 + 300 * torch.randn(batch_size, BANDS, SIDE, SIDE, device=device)
    times = len(table) // batch_size

    def seconds(work: Callable[[], object]) -> float:
        best = np.inf
        for _ in range(3):
            start = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    alone = seconds(lambda: [scorer.logits(values).cpu() for _ in range(times)])
    engine = seconds(lambda: list(score(scorer, table.images, batch_size=batch_size)))
    print(
        f"{'scoring, from files':32s} {len(table) / engine:9,.0f} images/s, constant batch "
        f"{times * batch_size / alone:9,.0f}"
    )
    return {"scoring, from files": (len(table) / engine) / (times * batch_size / alone)}


def _tiles(folder: Path, count: int) -> tuple[LabelTable, BandScale]:
    """Write tiles and return them as a table; as many different ones as there is time to draw."""
    rng = np.random.default_rng(0)
    distinct = rng.normal(2000, 300, (64, SIDE, SIDE, BANDS)).clip(0, 65535).astype(np.uint16)

    def write(number: int) -> str:
        name = f"{number:06d}.npy"
        np.save(folder / name, np.roll(distinct[number % 64], number, axis=0))
        return name

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = list(pool.map(write, range(count)))
    labels = rng.random((count, LABELS)) < 0.15
    columns = [f"label {number}" for number in range(LABELS)]
    table = LabelTable.from_arrays(columns, FileImages(folder, names), labels)
    bands = Bands(tuple(f"B{number:02d}" for number in range(BANDS)), ("B03", "B02", "B01"))
    return table, BandScale(bands, (2000.0,) * BANDS, (300.0,) * BANDS)


def _loader(table: LabelTable, backbone: object, batch_size: int, device: torch.device) -> Loader:
    return Loader(
        table,
        backbone.transform,  # type: ignore[attr-defined]
        batch_size=batch_size,
        device=device,
        augment="turn",
        shuffle=True,
    )


def main() -> int:
    """Run a part; return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("decode", "stages", "gpu"), required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--tiles", type=int, default=16384)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.part == "decode":
        figures = decode_part()
        missed = max(figures.values()) > DECODE_GOAL
    elif given.part == "stages":
        figures, missed = stages_part(min(given.tiles, 512)), False
    else:
        device = torch.device(given.device)
        sizes = given.tiles, given.batch_size, given.steps
        figures = gpu_part(given.backbone, *sizes, device)
        missed = min(figures.values()) < GPU_GOAL
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
