"""Speed of the inference engine: ``python benchmarks/scoring.py [--quick]``.

``--device cuda --decode cpu|cuda`` measures it on a GPU instead (benchmarks/scoring_gpu.py).

engine      JPEG files to probabilities, against decode + forward by hand (the same network, one
            after the other, the lower bound of the work; goal 0.95) and against a torchvision
            DataLoader loop with the network as it comes (goal 1.3); then the same on all cores,
            against a fair share of the work by hand and a DataLoader with a process per core
All are CPU seconds of the same work on one thread, in one run, but for the seconds on all cores;
ratios above 1 favour labelwise.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from scoring_gpu import measure_gpu, noisy_photo
from torchvision.transforms import (
    CenterCrop,
    Compose,
    InterpolationMode,
    Normalize,
    Resize,
    ToTensor,
)

from labelwise.base.allocator import keep_freed_memory
from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.models.scoring import score
from labelwise.pictures import FileImages
from labelwise.pictures.decode import decode
from labelwise.pictures.prefetch import available_cores
from labelwise.types import LabelSpace

BACKBONES, LABELS = ("small-cnn", "efficientnet_lite0"), 80


def cpu_seconds(function, repeats=3):
    """Return the least CPU seconds of a few calls."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def wall_seconds(function, threads, repeats=3):
    """Return the least seconds of a few calls, with so many threads for torch."""
    found = []
    torch.set_num_threads(threads)
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    torch.set_num_threads(1)
    return min(found)


def make_predictor(name="efficientnet_lite0"):
    torch.manual_seed(0)
    head = HeadSpec("linear")
    backbone = create_backbone(name, image_size=224 if name == "efficientnet_lite0" else 64)
    model = Model(backbone, make_head(head, backbone.channels, LABELS)).eval()
    model.to(memory_format=torch.channels_last)
    space = LabelSpace(tuple(f"label {column}" for column in range(LABELS)))
    return Predictor(model, head, space, Sigmoid(), Threshold(0.5))


class Files(torch.utils.data.Dataset):
    """What a user of torchvision writes: open, convert, transform."""

    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, row):
        with Image.open(self.files[row]) as image:
            return self.transform(image.convert("RGB"))


def plain_transform(transform):
    """Return the transform as torchvision's own steps."""
    whole = transform.scale_size(1, 1)[0]
    kinds = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}
    side = whole if transform.crop is not None else (whole, whole)
    return Compose(
        [
            Resize(side, kinds[transform.interpolation]),
            CenterCrop(transform.size),
            ToTensor(),
            Normalize(transform.mean, transform.std),
        ]
    )


def measure_engine(name, count, size):
    predictor = make_predictor(name)
    with tempfile.TemporaryDirectory() as folder:
        source = FileImages(folder, [f"{row}.jpg" for row in range(count)])
        files = [source.path(row) for row in range(count)]
        for row, file in enumerate(files):
            file.write_bytes(noisy_photo(size, row))
        transform = predictor.transform
        plain = plain_transform(transform)

        def ours(workers=1):
            list(score(predictor, source, batch_size=32, workers=workers))

        def by_hand():
            for at in range(0, count, 32):
                images = [
                    decode(file.read_bytes(), "x", transform.at_least())
                    for file in files[at : at + 32]
                ]
                pixels = torch.stack([transform.pixels(image) for image in images])
                predictor.link(predictor.logits(pixels).double())

        def loader_loop(workers=0):
            loader = torch.utils.data.DataLoader(Files(files, plain), 32, num_workers=workers)
            with torch.inference_mode():
                for images in loader:
                    predictor.link(predictor.model(images).logits)

        ours()
        seconds = {f.__name__: cpu_seconds(f) for f in (ours, by_hand, loader_loop)}
        cores = available_cores()
        wall = wall_seconds(lambda: ours(None), cores)
        loader_wall = wall_seconds(lambda: loader_loop(cores), cores)
    for peer in ("by_hand", "loader_loop"):
        print(
            f"engine {name} {size[0]}x{size[1]}: "
            f"{count / seconds['ours']:.1f} images per CPU second, "
            f"{seconds[peer] / seconds['ours']:.2f} x {peer}"
        )
    print(
        f"engine {name} {size[0]}x{size[1]} on {cores} cores: {count / wall:.1f} images/s, "
        f"{seconds['by_hand'] / cores / wall:.2f} x by_hand / {cores}, "
        f"{loader_wall / wall:.2f} x loader_loop with {cores} processes"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--decode", choices=("cpu", "cuda", "both"), default="cpu", help="with a GPU"
    )
    parser.add_argument("--count", type=int, default=8192, help="files, with a GPU")
    parser.add_argument("--batch", type=int, default=256, help="batch size, with a GPU")
    parser.add_argument("--workers", type=int, help="with a GPU; by default one per core")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the engine, with a GPU")
    parser.add_argument("--sizes", help="as 500x375,1440x1080; with a GPU also 4000x3000")
    parser.add_argument("--json", help="a file for the figures, with a GPU")
    given = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    names = given.sizes or ("500x375,1440x1080" + ",4000x3000" * (given.device == "cuda"))
    sizes = [tuple(map(int, name.split("x"))) for name in names.split(",")]
    if given.device == "cuda":
        decoders = ("cpu", "cuda") if given.decode == "both" else (given.decode,)
        found = [
            measure_gpu(make_predictor(), decode, size, given)
            for size in sizes
            for decode in decoders
        ]
        if given.json:
            Path(given.json).write_text(json.dumps(found, indent=2) + "\n")
        return
    for size in sizes:
        for name in BACKBONES:
            measure_engine(name, 64 if given.quick else 256, size)


if __name__ == "__main__":
    main()
