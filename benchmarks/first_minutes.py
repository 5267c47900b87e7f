"""What the first minutes of training cost: ``python benchmarks/first_minutes.py``, on a GPU.

Epochs of 11,392 photos (EfficientNet-Lite0 at 192 pixels, batches of 128, bf16), each way in a
process of its own:

graphs    forward and backward pass captured as CUDA graphs, nothing compiled: shorter runs
cold      network, head and objective compiled as one function, nothing kept from earlier runs
warm      the same again, with the compiler's files of the run before
eager     one kernel after the other
same      graphs of kernels that compute the same bits each time (``--deterministic``)
same-eager  those kernels one after the other

The figures are the seconds of the first epoch and of the best of the others, and what a run of
10,000 steps takes in all, in multiples of 10,000 steps at the steady rate (goal 1.10). The losses
of the first steps are shown to the last bit. Blocks compiled one by one, a compiler in another
process on the same GPU and the compiler's own trials of kernels were measured before: see
evidence/train.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from measure import record
from torch import Tensor
from training import LABELS, make_model, make_sgd

from labelwise.learn.backbones import create_backbone
from labelwise.learn.objectives import BCE
from labelwise.pictures.memory import ArrayImages
from labelwise.tables.table import LabelTable
from labelwise.training.execution import (
    GraphedModel,
    LossFunction,
    accelerated,
    kernels,
)
from labelwise.training.loader import Loader
from labelwise.types import Targets

WAYS = ("graphs", "cold", "warm", "eager", "same", "same-eager")
COMPILED, GRAPHED = ("cold", "warm"), ("graphs", "same")
BACKBONE, SIDE = "tf_efficientnet_lite0", 192
RUN_STEPS, EPOCHS = 10_000, 4


def photos(count: int) -> LabelTable:
    """Return made pictures, kept in the device's memory, so that only the step is measured."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    labels = rng.random((count, LABELS)) < 0.03
    names = [f"label {number}" for number in range(LABELS)]
    return LabelTable.from_arrays(names, ArrayImages(pixels, resized=True), labels)


def train(way: str, count: int, batch: int, device: torch.device) -> dict[str, object]:
    """Train a few epochs in this process; return their seconds and the first losses."""
    transform = create_backbone(BACKBONE, image_size=SIDE).transform
    loader = Loader(
        photos(count),
        transform,
        batch_size=batch,
        device=device,
        augment="flip",
        shuffle=True,
    )
    model = make_model(device, backbone_name=BACKBONE)
    optimizer, objective = make_sgd(model, fused=device.type == "cuda"), BCE()
    network = GraphedModel(model, torch.bfloat16) if way in GRAPHED else model

    def loss_of(images: Tensor, targets: Targets) -> Tensor:
        return objective(network(images), targets)

    losses: list[str] = []

    def epoch_seconds(number: int, function: LossFunction) -> float:
        begun, last = time.perf_counter(), None
        for some in loader.epoch(number):
            loss = function(some.images, some.targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            last = loss.detach().clone()  # the next call may write the same memory
            if len(losses) < 3:
                losses.append(float(last).hex())
        if last is None or not last.isfinite():
            raise SystemExit(f"{way}: the loss is no longer a number")
        return time.perf_counter() - begun

    function = accelerated(loss_of, precision=torch.bfloat16, compiled=way in COMPILED)
    with kernels(deterministic=way.startswith("same")):
        seconds = [epoch_seconds(number, function) for number in range(EPOCHS)]
    captured = isinstance(network, GraphedModel) and network.replay is not None
    if way in GRAPHED and not captured:
        raise SystemExit(f"{way}: the network was not captured")
    return {"seconds": seconds, "losses": losses, "steps": len(loader)}


def started(
    way: str, count: int, batch: int, device: torch.device, **places: str
) -> subprocess.Popen[str]:
    """Start one way in a process of its own, which prints what :func:`train` returns."""
    command = [sys.executable, __file__, "--only", way, "--device", str(device)]
    return subprocess.Popen(
        [*command, "--photos", str(count), "--batch", str(batch)],
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=11_392)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = given.photos, given.batch, torch.device(given.device)
    if given.only:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        print(json.dumps(train(given.only, *size)))
        return
    with tempfile.TemporaryDirectory() as folder:
        steadies: dict[str, float] = {}
        for way in given.ways:
            kept = f"{folder}/{'cold' if way == 'warm' else way}"
            places = {"TORCHINDUCTOR_CACHE_DIR": kept, "TRITON_CACHE_DIR": f"{kept}/triton"}
            process = started(way, *size, **places)
            written, _ = process.communicate()
            if process.returncode:
                print(f"{way}: ended with status {process.returncode}", flush=True)
                continue
            found = json.loads(written.splitlines()[-1])
            first, steady = found["seconds"][0], min(found["seconds"][1:])
            run = RUN_STEPS / found["steps"] * steady
            times = (first - steady + run) / run
            print(
                f"{way:9s} first epoch {first:6.1f} s, then {steady:5.2f} s; {RUN_STEPS:,} steps "
                f"{run + first - steady:.0f} s, {times:.3f} of the steady rate; "
                f"losses {' '.join(found['losses'])}",
                flush=True,
            )
            record(f"first-epoch-{way}", first, steady)
            record(f"run-of-10000-{way}", run + first - steady)
            steadies[way] = steady
            free = {"same": "graphs", "same-eager": "eager"}.get(way)
            if free in steadies:
                record(f"deterministic-{way}", steady, steadies[free])
            record(f"first-minutes-{way}", times)


if __name__ == "__main__":
    main()
