"""Speed of the inference engine: ``python benchmarks/scoring.py [--quick]``.

``--device cuda --decode cpu|cuda`` measures it on a GPU instead (benchmarks/scoring_gpu.py).

engine      JPEG files to probabilities, against decode + forward by hand (one after the other, the
            lower bound of the work) and against a plain torchvision DataLoader loop
decoder     one JPEG to a Pillow picture: Pillow, and torchvision's ``decode_jpeg`` with the copy
            that scaling as in training needs
allocator   a forward pass with freed memory kept (as our commands do) and given back

All are CPU seconds of the same work on one thread, in one run; ratios above 1 favour labelwise.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from labelwise.allocator import keep_freed_memory
from labelwise.backbones import create_backbone
from labelwise.data import FileImages
from labelwise.data.decode import decode
from labelwise.decide import Threshold
from labelwise.links import Sigmoid
from labelwise.predictor import HeadSpec, Model, Predictor
from labelwise.scoring import score
from labelwise.types import LabelSpace

BACKBONE, LABELS = "efficientnet_lite0", 80


def cpu_seconds(function, repeats=3):
    """Return the least CPU seconds of a few calls."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def make_predictor():
    torch.manual_seed(0)
    head = HeadSpec("linear")
    backbone = create_backbone(BACKBONE, image_size=224)
    model = Model(backbone, head.make(backbone.channels, LABELS)).eval()
    model.to(memory_format=torch.channels_last)
    space = LabelSpace(tuple(f"label {column}" for column in range(LABELS)))
    return Predictor(model, head, space, Sigmoid(), Threshold(0.5))


def photo(size, seed):
    coarse = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


class Files(torch.utils.data.Dataset):
    """What a user of torchvision writes: open, convert, transform."""

    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, row):
        with Image.open(self.files[row]) as image:
            return self.transform(image.convert("RGB"))


def measure_engine(count, size):
    predictor = make_predictor()
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{row}.jpg" for row in range(count)]
        for row, name in enumerate(names):
            photo(size, row).save(Path(folder) / name, quality=90)
        source = FileImages(folder, names)
        files = [Path(folder) / name for name in names]
        transform = predictor.transform

        def ours():
            list(score(predictor, source, batch_size=32, workers=1))

        def by_hand():
            for at in range(0, count, 32):
                images = [
                    decode(file.read_bytes(), "x", transform.at_least)
                    for file in files[at : at + 32]
                ]
                pixels = torch.stack([transform.pixels(image) for image in images])
                predictor.link(predictor.logits(pixels).double())

        def loader_loop():
            loader = torch.utils.data.DataLoader(Files(files, transform), batch_size=32)
            with torch.inference_mode():
                for images in loader:
                    predictor.link(predictor.model(images).logits)

        ours()
        seconds = {f.__name__: cpu_seconds(f, 2) for f in (ours, by_hand, loader_loop)}
    for peer in ("by_hand", "loader_loop"):
        print(
            f"engine {size[0]}x{size[1]}: {count / seconds['ours']:.1f} images per CPU second, "
            f"{seconds[peer] / seconds['ours']:.2f} x {peer}"
        )


def measure_decoder(size):
    buffer = io.BytesIO()
    photo(size, 0).save(buffer, "JPEG", quality=90)
    content = buffer.getvalue()

    def pillow():
        for _ in range(20):
            decode(content, "x")

    def torchvision():
        for _ in range(20):
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            pixels = decode_jpeg(data, mode=ImageReadMode.RGB)
            Image.fromarray(pixels.permute(1, 2, 0).numpy())

    ratio = cpu_seconds(torchvision) / cpu_seconds(pillow)
    print(f"decoder {size[0]}x{size[1]}: torchvision takes {ratio:.2f} of Pillow's time")


def forward():
    """Print images per CPU second and peak MiB of a forward pass, as JSON."""
    keep_freed_memory()
    torch.set_num_threads(1)
    predictor = make_predictor()
    pixels = torch.zeros(64, 224, 224, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    predictor.logits(pixels)
    seconds = cpu_seconds(lambda: predictor.logits(pixels))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rate": 64 / seconds, "mib": peak}))


def measure_allocator():
    found = {}
    for setting in ("keep", "system"):
        done = subprocess.run(
            [sys.executable, __file__, "--forward"],
            env={**os.environ, "LABELWISE_MALLOC": setting},
            stdout=subprocess.PIPE,
            check=True,
        )
        found[setting] = json.loads(done.stdout)
    kept, given = found["keep"], found["system"]
    print(
        f"allocator: {kept['rate']:.1f} images per CPU second, "
        f"{kept['rate'] / given['rate']:.2f} x the system's setting, "
        f"peak memory {kept['mib'] / given['mib']:.2f} x"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--forward", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--decode", choices=("cpu", "cuda"), default="cpu", help="with a GPU")
    parser.add_argument("--count", type=int, default=8192, help="files, with a GPU")
    parser.add_argument("--batch", type=int, default=256, help="batch size, with a GPU")
    parser.add_argument("--threads", type=int, help="with a GPU; by default one per core")
    given = parser.parse_args()
    if given.forward:
        forward()
        return
    keep_freed_memory()
    torch.set_num_threads(1)
    if given.device == "cuda":
        from scoring_gpu import measure_gpu

        for size in ((500, 375), (1440, 1080)):
            measure_gpu(make_predictor(), given.decode, size, given)
        return
    for size in ((500, 375), (1440, 1080)):
        measure_engine(64 if given.quick else 256, size)
        measure_decoder(size)
    measure_allocator()


if __name__ == "__main__":
    main()
