"""The fine-tuned tier of the survey: ten methods, four heads, one pretrained network, on a GPU.

    python benchmarks/survey_finetuned.py PHOTOS.npz WEIGHTS FOLDER --jobs 6

PHOTOS holds `blob` (all encoded photos, one after another), `off` (N + 1 offsets), `labels` (N, K),
`label_names`, and `words` (K, E): a sentence encoder's vectors of "a photo of a NAME".

Every finished row (a head, what is known, a method) is written at once; a second
command goes on after the rows that are there. Labels are hidden and splits are dealt as in
`labelwise papers run survey`, and the figures are those of its pages.

EfficientNet-Lite0 and its head are trained together with AdamW on one cycle. Photos are shifted by
up to 8 pixels and mirrored. The best of three learning rates by mAP on validation wins, on the
first seed. The head learns ten times as fast as the network where it is linear or BoostLU.
"""

import argparse
import io
import os
import platform
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
from labelwise.learn.heads import Head, WordDecoder
from labelwise.learn.methods import make_objective
from labelwise.metrics import average_precision
from labelwise.models import HeadSpec, Model
from labelwise.papers.survey import (
    Dealt,
    SurveyCell,
    Surveyed,
    commit,
    dealt_labels,
    figures_of,
)
from labelwise.predictions import Predictions
from labelwise.training.checkpoint import make_optimizer, rate, set_rate
from labelwise.training.features import set_biases_to_priors
from labelwise.training.settings import OptimizerSettings, ScheduleSettings
from labelwise.types import Targets

BACKBONE = "tf_efficientnet_lite0"
FULL = ("bce", "asl-official", "spa", "two-way", "quasibinary")
SINGLE = ("an", "ll-r", "role", "wan")
HEADS = {  # by the multiple of the head's rate that the network gets
    "linear": 0.1,
    "query2label": 1.0,
    "ml-decoder": 1.0,
    "boostlu": 0.1,
    "words": 1.0,
}
ONLY = {"words": ("bce", "asl-official")}
OPTIONS = {"query2label": {"width": 512}, "ml-decoder": {"width": 512}}
RATES = {"linear": (1e-3, 3e-3, 1e-2), "boostlu": (1e-3, 3e-3, 1e-2)}
OF_DECODERS = (1e-4, 3e-4, 1e-3)
SHIFT = 8


def rows_in_order() -> list[tuple[str, str, str]]:
    """Return head, cell and method of every row, the most telling first."""
    cells = {"full": FULL, "single": SINGLE}
    order = [("linear", "full"), ("linear", "single"), ("ml-decoder", "full")]
    order += [("query2label", "full"), ("words", "full")]
    order += [("boostlu", "single"), ("ml-decoder", "single"), ("query2label", "single")]
    order += [("boostlu", "full")]
    return [(head, cell, one) for head, cell in order for one in ONLY.get(head, cells[cell])]


def _decoded(photo: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(photo)).convert("RGB"))


def decode(file: Path, to: Path, jobs: int) -> None:
    """Write the pixels of all photos (N, H, W, 3) as one array."""
    with np.load(file) as stored:
        offsets, blob = stored["off"], stored["blob"].tobytes()
    photos = [blob[a:b] for a, b in pairwise(offsets)]
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        np.save(to, np.stack(list(pool.map(_decoded, photos, chunksize=100))))


@cache
def _pixels(file: str, device: str) -> Tensor:
    pixels = torch.from_numpy(np.load(file)).to(device).permute(0, 3, 1, 2).contiguous()
    return pixels.to(memory_format=torch.channels_last)


def _input(photos: Tensor, moved: bool) -> Tensor:
    """Return photos as the network takes them, mirrored and shifted by chance if ``moved``."""
    images = photos.float().div_(127.5).sub_(1)
    if moved:
        side, n = images.shape[2], len(images)
        mirrored = torch.rand(n, device=images.device) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        wide = pad(images, [SHIFT] * 4, "reflect")
        y, x = torch.randint(2 * SHIFT + 1, (2, n, 1), device=images.device)
        span = torch.arange(side, device=images.device)
        at = torch.arange(n, device=images.device)[:, None, None]
        images = wide.permute(0, 2, 3, 1)[at, (y + span)[:, :, None], (x + span)[:, None]]
        images = images.permute(0, 3, 1, 2)
    return images.contiguous(memory_format=torch.channels_last)


class Tuned:
    """What a worker needs of the photos: pixels on the device, labels, how long to train."""

    def __init__(self, options: argparse.Namespace) -> None:
        with np.load(options.photos) as stored:
            self.labels = stored["labels"].astype(np.float32)
            self.words = torch.from_numpy(stored["words"])
            self.names = tuple(str(name) for name in stored["label_names"])
        self.options = options
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.pixels = _pixels(str(options.pixels), self.device)

    def fit(
        self, head: str, cell: str, method: str, lr: float, seed: int
    ) -> dict[str, Predictions]:
        """Fine-tune the network with a head by a method; return what it says of val and test."""
        torch.manual_seed(seed)
        device, steps, batch = self.device, self.options.steps, self.options.batch
        chosen, labels, known = dealt_labels(self.labels, cell, seed)
        dealt = Dealt({}, labels, known, self.names)
        backbone = create_backbone(BACKBONE, weights=str(self.options.weights))
        if head == "words":
            made: Head = WordDecoder(backbone.channels, self.words, width=512)
        else:
            made = HeadSpec(head, OPTIONS.get(head, {})).make(backbone.channels, len(self.names))
        model = Model(backbone, made)
        facts = dealt.facts(False)
        objective = make_objective(method, facts)
        set_biases_to_priors(model, objective, facts)
        objective = objective.to(device)
        model = model.to(device, memory_format=torch.channels_last).train()
        settings = OptimizerSettings(lr=lr, backbone_lr=HEADS[head])
        optimizer, schedule = make_optimizer(model, objective, settings), ScheduleSettings()
        given = dealt.trained_on(False).to(device)
        observed = None if known is None else known.to(device)
        places = {s: torch.from_numpy(rows).to(device) for s, rows in chosen.items()}
        per_epoch = len(given) // batch
        for step in range(steps):
            if step % per_epoch == 0:
                order = torch.randperm(len(given), device=device)
            rows = order[step % per_epoch * batch :][:batch]
            set_rate(optimizer, rate(schedule, step, steps, per_epoch))
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                outputs = model(_input(self.pixels[places["train"][rows]], True))
            outputs = type(outputs)(
                outputs.logits.float(), {k: v.float() for k, v in outputs.aux.items()}
            )
            seen = None if observed is None else observed[rows]
            objective(outputs, Targets(given[rows], seen, rows)).backward()
            optimizer.step()
            objective.step(lr * rate(schedule, step, steps, per_epoch))
        model.eval()
        logits = {split: self._answers(model, rows) for split, rows in places.items()}
        objective = objective.cpu()
        link = objective.final_link(logits["train"], dealt.trained_on(False), known)
        return {s: dealt.predictions(s, logits[s], link) for s in ("val", "test")}

    @torch.no_grad()
    def _answers(self, model: Model, rows: Tensor) -> Tensor:
        found = []
        for some in rows.split(500):
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                found.append(model(_input(self.pixels[some], False)).logits.float().cpu())
        return torch.cat(found)


@cache
def _tuned(items: tuple[tuple[str, object], ...]) -> Tuned:
    return Tuned(argparse.Namespace(**dict(items)))


def surveyed(head: str, cell: str, method: str, options: argparse.Namespace) -> Surveyed:
    """Tune the learning rate of a row on the first seed, then train it with every other seed."""
    torch.set_num_threads(1)
    tuned = _tuned(tuple(sorted(vars(options).items())))
    tries: dict[float, float] = {}
    kept: dict[float, dict[str, float]] = {}
    for lr in RATES.get(head, OF_DECODERS):
        began = perf_counter()
        found = tuned.fit(head, cell, method, lr, 0)
        taken = perf_counter() - began
        if np.isfinite(found["val"].logits).all():
            tries[lr] = average_precision(found["val"].logits, found["val"].majority).value
            kept[lr] = {**figures_of(found["val"], found["test"]), "seconds": taken}
    best = max(tries, key=tries.__getitem__)
    figures = [kept[best]]
    for seed in range(1, options.seeds):
        began = perf_counter()
        found = tuned.fit(head, cell, method, best, seed)
        taken = perf_counter() - began
        figures.append({**figures_of(found["val"], found["test"]), "seconds": taken})
    scores = {f"{lr:.3g}": round(score, 6) for lr, score in sorted(tries.items())}
    return Surveyed(scores, best, tuple(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pixels", type=Path, default=Path("/dev/shm/pixels.npy"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    decode(options.photos, options.pixels, os.cpu_count() or 1)
    with np.load(options.photos) as stored:
        labels = stored["labels"].astype(np.float32)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cells: dict[tuple[str, str], SurveyCell] = {}
    for head, cell, _ in rows_in_order():
        images = {s: len(rows) for s, rows in dealt_labels(labels, cell, 0)[0].items()}
        facts = {
            "command": f"python benchmarks/survey_finetuned.py {options.photos.name} "
            f"{options.weights.name} FOLDER --seeds {options.seeds} --steps {options.steps}",
            "commit": commit(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {device}",
            "made": {
                "seeds": options.seeds,
                "images": images,
                "labels": labels.shape[1],
                "backbone": BACKBONE,
                "steps": options.steps,
                "batch_size": options.batch,
            },
        }
        file = options.folder / f"{head}.{cell}.json"
        cells[head, cell] = SurveyCell(head, cell, facts)
        if file.is_file():
            cells[head, cell] = SurveyCell.load(file)
    left = [row for row in rows_in_order() if row[2] not in cells[row[0], row[1]].methods]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        running = {pool.submit(surveyed, *row, options): row for row in left}
        for done in as_completed(running):
            head, cell, method = running[done]
            if error := done.exception():  # the other rows go on
                print(f"{head}.{cell} {method} failed: {error!r}", flush=True)
                continue
            found = done.result()
            cells[head, cell].methods[method] = found
            cells[head, cell].save(options.folder)
            mean = np.mean([run["mAP@class"] for run in found.figures])
            seconds = np.mean([run["seconds"] for run in found.figures])
            print(
                f"{head}.{cell} {method}: mAP@class {mean:.4f}, {seconds:.1f} s a run", flush=True
            )


if __name__ == "__main__":
    main()
