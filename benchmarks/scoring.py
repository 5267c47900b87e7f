"""JPEG files to probabilities: beside plain torch on a CPU, and beside its own parts on a GPU.

    python benchmarks/scoring.py
    python benchmarks/scoring.py --device cuda

On a CPU, ``labelwise predict RUN PHOTOS`` beside a loop of Pillow, torchvision and the same network
in timm: photos of 500 x 375 per processor second, one thread, without the start of either (goal 2).

On a GPU, ``labelwise.score`` in bfloat16 beside the slower of its parts alone, the best of a few
runs after one that warms up. *Decode*: the files decoded and scaled by processes (goal 0.9), or by
torchvision's decoder on the GPU (goal 0.6). *Forward*: the network on one batch again and again.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from measure import record
from PIL import Image
from starts import spent
from torch import Tensor
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor
from training import make_photos

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.models.scoring import score
from labelwise.pictures import FileImages, batches
from labelwise.pictures.batches import CHUNK, decode_by_torchvision
from labelwise.pictures.prefetch import available_cores
from labelwise.pictures.processes import borrowed_processes, items_ahead
from labelwise.pictures.worker import Kind, Work
from labelwise.types import LabelSpace

NETWORK, LABELS, FEW, BATCH = "tf_efficientnet_lite0", 80, 16, 256


def make_predictor(name: str = "efficientnet_lite0") -> Predictor:
    torch.manual_seed(0)
    backbone, head = create_backbone(name, image_size=224), HeadSpec("linear")
    model = Model(backbone, make_head(head, backbone.channels, LABELS)).eval()
    model.to(memory_format=torch.channels_last)
    space = LabelSpace(tuple(f"label {column}" for column in range(LABELS)))
    return Predictor(model, head, space, Sigmoid(), Threshold(0.5))


def beside_plain_torch(folder: Path, names: list[str]) -> None:
    table = "".join(f"{name},{'dog' if row % 2 else 'cat'}\n" for row, name in enumerate(names))
    (folder / "table.csv").write_text(f"path,labels\n{table}")
    spent("train", "table.csv", "-o", "run", repeats=1, at=folder)
    few, many = (
        spent("predict", "run", *some, "-o", "a.csv", "--overwrite", repeats=3, at=folder)[0]
        for some in (names[:FEW], names)
    )
    ours = (len(names) - FEW) / (many - few)
    network = timm.create_model(NETWORK, num_classes=LABELS).eval()
    steps = Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])
    tries = []
    for _ in range(3):
        start = time.process_time()
        for at in range(0, len(names), 4):
            images = [Image.open(folder / name).convert("RGB") for name in names[at : at + 4]]
            with torch.inference_mode():
                torch.sigmoid(network(torch.stack([steps(image) for image in images])))
        tries.append(time.process_time() - start)
    peer = len(names) / min(tries)
    print(f"predict: {ours:.1f} photos per processor second, plain torch {peer:.1f}")
    record("predict-plain-torch", ours, peer)


@dataclass(frozen=True)
class Bfloat16:
    """A predictor whose network computes in bfloat16."""

    predictor: Predictor

    def __getattr__(self, name: str) -> object:
        return getattr(self.predictor, name)

    @property
    def device(self) -> torch.device:
        return self.predictor.device

    def inferred(self, *given: object, **how: object) -> object:
        """Infer on the device; stated here, since a check of the protocol sees no __getattr__."""
        return self.predictor.inferred(*given, **how)

    def logits(self, inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            values = self.predictor.transform.inputs(inputs).bfloat16()
            return self.predictor.model(values).logits.float()


def rate(count: int, run: Callable[[], object]) -> float:
    """Return the images per second of the fastest of three runs; one before warms up."""
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return count / best


def on_gpu(folder: Path, names: list[str], count: int, decode: str) -> None:
    """Record the rate of the engine beside that of the slower of its parts."""
    predictor, workers, device = make_predictor(), available_cores(), torch.device("cuda")
    predictor.model.to(device, torch.bfloat16, memory_format=torch.channels_last)
    scorer, transform = Bfloat16(predictor), predictor.transform
    images = FileImages(folder, [names[row % len(names)] for row in range(count)])
    work = Work(Kind.RESIZED, transform)
    size = min(CHUNK, work.most_items)
    chunks = [range(at, min(at + size, count)) for at in range(0, count, size)]
    contents = [bytearray((folder / name).read_bytes()) for name in images.ids[: count // 4]]
    tensors = [torch.frombuffer(content, dtype=torch.uint8) for content in contents]
    pixels = torch.zeros(BATCH, transform.size, transform.size, 3, dtype=torch.uint8, device=device)

    def by_processes() -> None:
        with borrowed_processes(workers) as lent:
            for _ in lent.run(work, items_ahead(images, chunks, workers)):
                pass

    def by_torchvision() -> None:
        for at in range(0, len(tensors), BATCH):
            decode_by_torchvision(tensors[at : at + BATCH], device)

    def forward() -> None:
        for _ in range(10):
            scorer.logits(pixels.permute(0, 3, 1, 2))

    def engine() -> None:
        batches.are_worth_it = lambda *given: True
        parts = score(scorer, images, batch_size=BATCH, workers=workers, decode=decode)
        assert sum(len(part) for part in parts) == count

    decoded, alone = (count, by_processes) if decode == "cpu" else (len(tensors), by_torchvision)
    slower = min(rate(decoded, alone), rate(10 * BATCH, forward))
    ours = rate(count, engine)
    print(f"decode={decode}: {ours:,.0f} images/s, {ours / slower:.2f} of the slower part")
    record("nvjpeg-small" if decode == "cuda" else "cpu-decode", ours, slower)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, help="files; by default 128, or 8,192 on a GPU")
    given = parser.parse_args()
    torch.set_num_threads(1)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as root:
        count = given.count or (8192 if given.device == "cuda" else 128)
        names = make_photos(Path(root), min(count, 256))
        if given.device == "cpu":
            beside_plain_torch(Path(root), names)
        for decode in ("cpu", "cuda") if given.device == "cuda" else ():
            on_gpu(Path(root), names, count, decode)


if __name__ == "__main__":
    main()
