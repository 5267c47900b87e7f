"""The fine-tuned tier of the survey: one pretrained network, trained with its head, on a GPU.

    python benchmarks/survey_features.py DATA FOLDER photos        photos.npz of two data sets
    python benchmarks/survey_finetuned.py FOLDER/photos.npz WEIGHTS OUT --jobs 6

Splits are dealt and labels hidden as in `labelwise papers run survey`, and the figures are those of
its pages. EfficientNet-Lite0 and its head are trained by AdamW on one cycle, with deterministic
kernels, on photos that are shifted by up to 8 pixels and mirrored. The network learns at a tenth of
the rate of the head, or at the same rate below Query2Label's decoder. Three rates are tried on the
first seed, and up to two more while the best is at an edge; the best mAP on validation wins.

Every training run is a line of OUT/runs.jsonl, so that a second command does what is left. Rows
come in the order of ``ROWS``: the five papers' methods and `ll-r` beside `bce` and `an` first.
"""

import argparse
import io
import json
import os
import platform
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import find_method, make_head, make_objective
from labelwise.learn.predictor import Model
from labelwise.metrics import average_precision
from labelwise.models import HeadSpec
from labelwise.papers.survey import Dealt, SurveyCell, Surveyed, dealt_labels, figures_of
from labelwise.training.checkpoint import make_optimizer, rate, set_rate
from labelwise.training.execution import kernels
from labelwise.training.features import set_biases_to_priors
from labelwise.training.settings import OptimizerSettings, ScheduleSettings
from labelwise.types import Targets

BACKBONE = "tf_efficientnet_lite0"
DECODER = " with query2label"  # of a row's name: the head that is not the method's own
ROWS = [
    *(("full", name) for name in ("bce", "quasibinary", "spa", "two-way", "average-k")),
    *(("single", name) for name in ("an", "ll-r", "role")),
    *(("full", name) for name in (f"asl-official{DECODER}", "asl-official", "spa+lpr")),
    *(("single", name) for name in ("ll-r+boostlu", "epr", "wan")),
]
SIDES = {"coco": 128, "cifar100": 96}
RATES, OF_DECODER = (1e-3, 3e-3, 1e-2), (1e-4, 3e-4, 1e-3)
MOST_TRIES, SHIFT = 5, 8


class Photos:
    """The photos and labels of one data set; pixels are on the device."""

    def __init__(self, file: Path, name: str) -> None:
        with np.load(file) as stored:
            self.labels = stored[f"{name} labels"].astype(np.float32)
            self.names = tuple(map(str, stored[f"{name} names"]))
            offsets, blob = stored[f"{name} offsets"], stored[f"{name} photos"].tobytes()
        side = (SIDES[name], SIDES[name])
        images = (Image.open(io.BytesIO(blob[a:b])).convert("RGB") for a, b in pairwise(offsets))
        decoded = [np.asarray(one.resize(side, Image.Resampling.BICUBIC)) for one in images]
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.pixels = torch.from_numpy(np.stack(decoded)).to(self.device)

    def at(self, rows: Tensor, moved: bool) -> Tensor:
        """Return photos as the network takes them, mirrored and shifted by chance if ``moved``."""
        images = self.pixels[rows].permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        if moved:
            side, n, device = images.shape[2], len(images), self.device
            mirrored = torch.rand(n, device=device) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
            wide = pad(images, [SHIFT] * 4, "reflect").permute(0, 2, 3, 1)
            y, x = torch.randint(2 * SHIFT + 1, (2, n, 1), device=device)
            span, each = (torch.arange(k, device=device) for k in (side, n))
            images = wide[each[:, None, None], (y + span)[:, :, None], (x + span)[:, None]]
            images = images.permute(0, 3, 1, 2)
        return images.contiguous(memory_format=torch.channels_last)


@cache
def _photos(file: Path, name: str) -> Photos:
    return Photos(file, name)


def fit(photos: Photos, cell: str, row: str, lr: float, seed: int, given: argparse.Namespace):
    """Train the network with the head of a row; return its validation mAP and its figures."""
    torch.manual_seed(seed)
    method, device, began = row.removesuffix(DECODER), photos.device, perf_counter()
    chosen, labels, known = dealt_labels(photos.labels, cell, seed)
    dealt = Dealt({}, labels, known, photos.names)
    backbone = create_backbone(BACKBONE, weights=str(given.weights))
    decoder = row.endswith(DECODER)
    spec = HeadSpec("query2label", {"width": 512}) if decoder else HeadSpec(find_method(row).head)
    model = Model(backbone, make_head(spec, backbone.channels, len(photos.names)))
    objective = make_objective(method, dealt.facts(False))
    set_biases_to_priors(model, objective, dealt.facts(False))
    model = model.to(device, memory_format=torch.channels_last).train()
    objective = objective.to(device)
    settings = OptimizerSettings(lr=lr, backbone_lr=1.0 if decoder else 0.1)
    optimizer, schedule = make_optimizer(model, objective, settings), ScheduleSettings()
    truth = dealt.trained_on(False).to(device)
    observed = known["train"].to(device) if "train" in known else None
    places = {split: torch.from_numpy(rows).to(device) for split, rows in chosen.items()}

    def outputs_at(rows: Tensor, moved: bool):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            found = model(photos.at(rows, moved))
        return type(found)(found.logits.float(), {k: v.float() for k, v in found.aux.items()})

    per_epoch = len(truth) // given.batch
    for step in range(given.steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(truth), device=device)
        rows = order[step % per_epoch * given.batch :][: given.batch]
        factor = rate(schedule, step, given.steps, per_epoch)
        set_rate(optimizer, factor)
        optimizer.zero_grad(set_to_none=True)
        seen = None if observed is None else observed[rows]
        outputs = outputs_at(places["train"][rows], True)
        objective(outputs, Targets(truth[rows], seen, rows)).backward()
        optimizer.step()
        objective.step(lr * factor)
    model.eval()
    logits = {}
    with torch.no_grad():
        for split, rows in places.items():
            parts = [outputs_at(some, False).logits.cpu() for some in rows.split(500)]
            logits[split] = torch.cat(parts)
    if not all(torch.isfinite(found).all() for found in logits.values()):
        return {"score": 0.0}
    link = objective.cpu().final_link(logits["train"], truth.cpu(), known.get("train"))
    val, test = (dealt.predictions(split, logits[split], link) for split in ("val", "test"))
    score = average_precision(val.logits, val.majority).value
    return {"score": score, **figures_of(val, test), "seconds": perf_counter() - began}


def surveyed(data: str, cell: str, row: str, given: argparse.Namespace) -> Surveyed:
    """Tune the learning rate of a row on the first seed, then train it with every other seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # of labels ranked no better than chance
    runs = given.folder / "runs.jsonl"
    lines = runs.read_text("utf-8").splitlines() if runs.is_file() else []
    done = {tuple(run.pop("of")): run for run in map(json.loads, lines)}

    def run(lr: float, seed: int) -> dict[str, float]:
        of = (data, cell, row, f"{lr:.3g}", seed)
        if of not in done:
            with kernels(deterministic=True):
                done[of] = fit(_photos(given.photos, data), cell, row, lr, seed, given)
            with runs.open("a", encoding="utf-8") as file:  # one write a line, from any process
                file.write(json.dumps({"of": of, **done[of]}) + "\n")
        return dict(done[of])

    tries: dict[float, float] = {}
    waiting = [*(OF_DECODER if row.endswith(DECODER) else RATES)]
    while waiting:
        lr = waiting.pop()
        tries[lr] = run(lr, 0)["score"]
        best = max(tries, key=tries.__getitem__)
        if not waiting and len(tries) < MOST_TRIES and best in (min(tries), max(tries)):
            waiting = [best * 10**0.5 if best == max(tries) else best / 10**0.5]
    figures = [run(best, seed) for seed in range(given.seeds)]
    for one in figures:
        one.pop("score")
    return Surveyed(
        {f"{lr:.3g}": round(s, 6) for lr, s in sorted(tries.items())}, best, (*figures,)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("photos", "weights", "folder"):
        parser.add_argument(name, type=Path)
    for name, value in (("jobs", 6), ("seeds", 3), ("steps", 240), ("batch", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--commit", default="unknown", help="of the tree, which has no history")
    given = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # equal sums each time
    given.folder.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    command = f"{given.photos.name} {given.weights.name} FOLDER"
    command += f" --seeds {given.seeds} --steps {given.steps}"
    cells: dict[tuple[str, str], SurveyCell] = {}
    for data in SIDES:
        with np.load(given.photos) as stored:
            labels = stored[f"{data} labels"].astype(np.float32)
        images = {split: len(rows) for split, rows in dealt_labels(labels, "full", 0)[0].items()}
        made = {"seeds": given.seeds, "images": images, "labels": labels.shape[1]}
        made |= {"backbone": BACKBONE, "steps": given.steps, "batch_size": given.batch}
        facts = {
            "command": f"python benchmarks/survey_finetuned.py {command}",
            "commit": given.commit,
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {device}",
            "made": {**made, "side": SIDES[data]},
        }
        for cell in dict.fromkeys(cell for cell, _ in ROWS):
            file = given.folder / f"{data}.{cell}.json"
            there = file.is_file()
            cells[data, cell] = SurveyCell.load(file) if there else SurveyCell(data, cell, facts)
    rows = [(data, *row) for row in ROWS for data in SIDES]
    left = [(data, cell, row) for data, cell, row in rows if row not in cells[data, cell].methods]
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        running = {pool.submit(surveyed, *row, given): row for row in left}
        for done in as_completed(running):
            data, cell, row = running[done]
            if error := done.exception():  # the other rows go on
                print(f"{data}.{cell} {row} failed: {error!r}", flush=True)
                continue
            cells[data, cell].methods[row] = found = done.result()
            cells[data, cell].save(given.folder)
            mean, seconds = (
                np.mean([one[column] for one in found.figures])
                for column in ("mAP@class", "seconds")
            )
            print(f"{data}.{cell} {row}: mAP {mean:.4f}, {seconds:.1f} s a run", flush=True)


if __name__ == "__main__":
    main()
