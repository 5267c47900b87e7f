"""What the first minutes of training cost: ``python benchmarks/first_minutes.py``, on a GPU.

Epochs of 11,392 photos (EfficientNet-Lite0 at 192 pixels, batches of 128, bf16), each way in a
process of its own:

eager     nothing is compiled
cold      network, head and objective compiled as one function, nothing kept from earlier runs
warm      the same again, with the compiler's files of the run before
regional  each block of the backbone compiled by itself, nothing kept
tuned     as cold, with the compiler's options as torch has them: it tries several ways to write a
          kernel (labelwise.training.execution.FEWER_TRIALS)
beside    steps computed one by one for eight epochs, while another process on the same GPU compiles
          for the cache on disk; compiled from then on, however long the other takes

The figures are the seconds of the first epoch and of the best of the others, and what a run of
10,000 steps takes in all, in multiples of 10,000 steps at the steady rate (goal 1.15). The losses
of the first steps are shown to the last bit: where eager and compiled ones differ, a run may not
go from one to the other at a moment that depends on the speed of the machine. ``--phases`` says
where the compiler's seconds went, by torch's own account.
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
from torch import Tensor, nn
from training import LABELS, make_model, make_sgd

from labelwise.data.table import LabelTable
from labelwise.networks.backbones import create_backbone
from labelwise.objectives import BCE
from labelwise.pictures.memory import ArrayImages
from labelwise.training import execution
from labelwise.training.execution import LossFunction, accelerated
from labelwise.training.loader import Loader
from labelwise.types import Targets

WAYS = ("cold", "warm", "eager", "regional", "beside", "tuned")
EAGER = ("eager", "regional")  # what is not one compiled function
BLOCKS = ("InvertedResidual", "DepthwiseSeparableConv")
BACKBONE, SIDE = "tf_efficientnet_lite0", 192
RUN_STEPS, EPOCHS, EAGER_EPOCHS = 10_000, 3, 8


def photos(count: int) -> LabelTable:
    """Return made pictures, kept in the device's memory, so that only the step is measured."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    labels = rng.random((count, LABELS)) < 0.03
    names = [f"label {number}" for number in range(LABELS)]
    return LabelTable.from_arrays(names, ArrayImages(pixels, resized=True), labels)


def train(way: str, count: int, batch: int, device: torch.device) -> dict[str, object]:
    """Train a few epochs in this process; return their seconds and the first losses.

    ``before`` are the seconds of steps that were computed one by one, and of waiting after them.
    """
    transform = create_backbone(BACKBONE, image_size=SIDE).transform
    loader = Loader(
        photos(count),
        transform,
        batch_size=batch,
        device=device,
        augment="flip",
        shuffle=True,
        drop_last=True,
    )
    model = make_model(device, backbone_name=BACKBONE)
    optimizer, objective = make_sgd(model, fused=device.type == "cuda"), BCE()
    prepare(way, [one for one in model.backbone.modules() if type(one).__name__ in BLOCKS])

    def loss_of(images: Tensor, targets: Targets) -> Tensor:
        return objective(model(images), targets)

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

    before = []
    if way == "beside":
        with started("cold", 2 * batch, batch, device) as compiling:
            plain = accelerated(loss_of, precision=torch.bfloat16)
            before = [epoch_seconds(number, plain) for number in range(EAGER_EPOCHS)]
            begun = time.perf_counter()
            compiling.communicate()
            before.append(time.perf_counter() - begun)
    compiled = accelerated(loss_of, precision=torch.bfloat16, compiled=way not in EAGER)
    seconds = [epoch_seconds(len(before) + number, compiled) for number in range(EPOCHS)]
    phases = "" if way == "eager" else torch._dynamo.utils.compile_times(aggregate=True)
    return {
        "before": before,
        "seconds": seconds,
        "losses": losses,
        "steps": len(loader),
        "phases": phases,
    }


def prepare(way: str, blocks: list[nn.Module]) -> None:
    """Set the compiler, and the blocks of a backbone, as a way wants them."""
    if way == "tuned":
        execution.FEWER_TRIALS.clear()
    for block in blocks if way == "regional" else ():
        block.compile(dynamic=False)


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
    parser.add_argument("--phases", action="store_true", help="the compiler's own account")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = given.photos, given.batch, torch.device(given.device)
    if given.only:
        print(json.dumps(train(given.only, *size)))
        return
    with tempfile.TemporaryDirectory() as folder:
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
            eager = found["before"][:-1]
            late = first - steady + sum(found["before"]) - len(eager) * steady
            times = (late + run) / run
            if eager:
                print(
                    f"{way:9s} {len(eager)} epochs one by one: {eager[0]:.1f} s the first, "
                    f"{eager[-1]:.1f} s the last; then waited {found['before'][-1]:.1f} s",
                    flush=True,
                )
            print(
                f"{way:9s} first epoch {first:6.1f} s, then {steady:5.2f} s; {RUN_STEPS:,} steps "
                f"{times:.3f} of the steady rate; losses {' '.join(found['losses'])}",
                flush=True,
            )
            if given.phases:
                print(found["phases"], flush=True)
            record(f"first-minutes-{way}", times)


if __name__ == "__main__":
    main()
