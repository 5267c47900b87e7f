"""The default of ``labelwise train`` beside what else people do with the same photos: one page.

    python benchmarks/beside.py RESULTS.jsonl --photos photos.npz --jobs 2
    python benchmarks/beside.py RESULTS.jsonl --page evidence/beside.md     the page alone

Photos are the 286 open ones of this repository (12 labels, whole groups on one side) and, with
``--photos`` of benchmarks/survey_features.py, 1,500 of COCO (the labels of 40 photos or more).
Every draw deals 45 % to test and takes its training photos from the others; all ways get the same:

    labelwise   what ``train`` does: features of the built-in network, fit, names, link and rule
    sklearn     the same features, standardised; a logistic regression per label, C by
                cross-validated log loss over all rows, a threshold by out-of-fold F1
    knn         the same features, cosine; the number of neighbours by the loss of one left out
    torch       the same network, pretrained, trained as a whole in a plain loop of PyTorch: AdamW
                with rates by part, one cycle, mirrored photos, sigmoids cut at one half
    base        each label's share in training

Labels are ``clean``; ``flipped`` (one entry in ten); ``unknown`` (30 % of the entries, masked in
every way); ``single`` (one label of each photo was noted, the rest reads as absent). Test labels
are always clean. Foreign photos (handwritten digits; landscapes of CIFAR-100 beside COCO, whose
labels are things) carry none of the labels, so that every tag on them is false.

Each finished draw of a way is a line of RESULTS, and is not done again. ``--warns`` trains and
predicts by the command line on a folder that half consists of foreign photos.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from default import STATES, base, cut_of, deal, figures, half_width, ours, spoil, theirs
from PIL import Image

from labelwise.papers.survey import commit

ROOT = Path(__file__).parents[1]
NAMES = {"open": "The open photos", "coco": "COCO"}
SIZES = {"open": (20, 50, 100, 0), "coco": (20, 100, 400, 0)}
NEIGHBOURS = (1, 3, 5, 10, 20, 40)
SHOWN, FOREIGN, TEST = 40, 100, 0.45
LANDSCAPES = (23, 33, 49, 60, 71)  # of CIFAR-100: cloud, forest, mountain, plain, sea
STEPS, BATCH, RATE, SLOWER = 240, 32, 3e-3, 0.1  # of the fine-tuned network; the body's rate


def pictures(name: str, packed: Path | None) -> tuple[Any, ...]:
    """Return photos, labels (N, K) and their names, groups, and foreign photos by kind."""
    from sklearn.datasets import load_digits

    drawn = np.random.default_rng(0).permutation(1797)[:FOREIGN]
    digits = [Image.fromarray((255 - one * 15.9).astype(np.uint8)) for one in load_digits().images]
    foreign = {"digits": [digits[k].resize((224, 224), Image.Resampling.BICUBIC) for k in drawn]}
    if name == "open":
        import pyarrow.csv as csv

        rows = csv.read_csv(ROOT / "open-photos" / "labels.csv").to_pylist()
        tags = [set(row["labels"].split("|")) - {""} for row in rows]
        names = sorted(set().union(*tags))
        labels = np.array([[one in own for one in names] for own in tags])
        images = [Image.open(ROOT / "open-photos" / row["image"]) for row in rows]
        groups = np.unique([row["group"] or row["image"] for row in rows], return_inverse=True)[1]
        return images, labels, names, groups, foreign
    with np.load(packed) as stored:
        images, labels = (
            [
                Image.open(io.BytesIO(stored[f"{kind} photos"][a:b].tobytes()))
                for a, b in pairwise(stored[f"{kind} offsets"][: count + 1])
            ]
            for kind, count in (("coco", 1500), ("cifar100", 5000))
        )
        others, labels, names = labels, stored["coco labels"][:1500], stored["coco names"]
        kinds = stored["cifar100 labels"][:, :100].argmax(1)
    there = np.flatnonzero(np.isin(kinds, LANDSCAPES))[:FOREIGN]
    foreign["landscapes"] = [others[k] for k in there]
    often = labels.sum(0) >= SHOWN
    return images, labels[:, often], names[often].tolist(), np.arange(len(images)), foreign


@cache
def read(name: str, packed: Path | None, kept: Path) -> dict[str, Any]:
    """Return pixels, features and labels of a set; they are made once and kept in a file."""
    file = kept / f"{name}.npz"
    if not file.is_file():
        import torch

        from labelwise.eyes import Eye
        from labelwise.learn.backbones import create_backbone
        from labelwise.learn.backbones.weights import EYE, PRETRAINED

        images, labels, names, groups, foreign = pictures(name, packed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        transform, network = Eye.open().transform, create_backbone(EYE, weights=PRETRAINED)
        network = network.eval().to(device)
        torch.backends.cudnn.allow_tf32 = False
        every = images + [one for some in foreign.values() for one in some]
        pixels = torch.stack([transform.pixels(one.convert("RGB")) for one in every])
        with torch.inference_mode():
            parts = [
                network(transform.inputs(some.to(device))).flatten(1).cpu()
                for some in pixels.split(32)
            ]
        kinds = [kind for kind, some in foreign.items() for _ in some]
        np.savez(
            file,
            pixels=pixels.numpy(),
            x=torch.cat(parts).numpy(),
            groups=groups,
            names=np.array(names),
            test=np.arange(100) < 100 * TEST,
            y=labels.astype(np.float64),
            kinds=np.array(kinds),
        )
    with np.load(file) as stored:
        return dict(stored)


def by_neighbours(x: Any, y: Any, known: Any, new: Any, seed: int) -> tuple[Any, Any]:
    """Return the shares of labels among the nearest photos, one photo of the prior added."""
    x, new = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, new))
    share = base(y, known, 1)[0]

    def shares(likeness: Any, count: int) -> Any:
        near = np.argsort(-likeness, axis=1)[:, :count]
        counted, there = known[near].sum(1), (y * known)[near].sum(1)
        return (there + share) / (counted + 1)

    own = x @ x.T - 2 * np.eye(len(x))
    held = [shares(own, count) for count in NEIGHBOURS if count < len(x)]
    best = int(np.argmin([np.where(y, -np.log(p), -np.log1p(-p))[known].mean() for p in held]))
    probs = shares(new @ x.T, NEIGHBOURS[best])
    return probs, probs >= cut_of(held[best], y, known)


def by_torch(pixels: Any, y: Any, known: Any, new: Any, seed: int) -> tuple[Any, Any]:
    """Return the sigmoids of the network, trained as people write it, and what is above .5."""
    import timm
    import torch

    from labelwise.learn.backbones import PRETRAINED, create_backbone

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = timm.create_model("tf_efficientnet_lite0", num_classes=y.shape[1])
    state = create_backbone("tf_efficientnet_lite0", weights=PRETRAINED).network.state_dict()
    missing = network.load_state_dict(state, strict=False).missing_keys
    assert set(missing) == {"classifier.weight", "classifier.bias"}, missing
    network = network.to(device, memory_format=torch.channels_last).train()
    head = set(network.get_classifier().parameters())
    groups = [{"params": [*head]}, {"params": [p for p in network.parameters() if p not in head]}]
    rates = [RATE, RATE * SLOWER]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=STEPS)
    images, truth, seen = (torch.from_numpy(one).to(device) for one in (pixels, y, known))

    def logits(rows: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return network(rows.float() / 127.5 - 1).float()

    for _ in range(STEPS):
        rows = torch.randperm(len(images), device=device)[:BATCH]
        batch = images[rows]
        batch = batch.flip(3) if torch.rand(()) < 0.5 else batch
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits(batch), truth[rows].float(), reduction="none"
        )
        optimizer.zero_grad()
        losses[seen[rows]].mean().backward()
        optimizer.step()
        cycle.step()
    network.eval()
    with torch.inference_mode():
        parts = [logits(some.to(device)).cpu() for some in torch.from_numpy(new).split(100)]
    probs = torch.cat(parts).sigmoid().numpy().astype(np.float64)
    return probs, probs >= 0.5


WAYS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "labelwise": ours,
    "sklearn": theirs,
    "knn": by_neighbours,
    "torch": by_torch,
    "base": lambda x, y, known, new, seed: base(y, known, len(new)),
}


def work(job: tuple[Any, ...], packed: Path | None, kept: Path) -> dict[str, Any]:
    """Return the figures of one draw of one way."""
    warnings.simplefilter("ignore")
    name, state, photos, draw, way = job
    data = read(name, packed, kept)
    rng = np.random.default_rng([photos, draw])
    train, test = deal(data, photos, rng)
    y, known = spoil(data["y"][train], state, rng)
    if state == "single":
        train, y, known = (side[y.any(1)] for side in (train, y, known))
    foreign = np.arange(len(data["y"]), len(data["x"]))
    seen = data["pixels" if way == "torch" else "x"]
    began = time.perf_counter()
    probs, sets = WAYS[way](seen[train], y, known, seen[np.r_[test, foreign]], draw)
    took = time.perf_counter() - began
    result = {"job": job, "rows": len(train), "seconds": took}
    result |= figures(probs[: len(test)], sets[: len(test)], data["y"][test])
    own = sets[len(test) :].sum(1)
    kinds = {kind: own[data["kinds"] == kind].mean() for kind in np.unique(data["kinds"]).tolist()}
    return {**result, "foreign": kinds}


def warned(name: str, packed: Path | None) -> Iterator[tuple[str, str]]:
    """Train and predict as people type it; yield what is said of foreign photos of each kind."""
    images, labels, names, _, foreign = pictures(name, packed)
    drawn = np.random.default_rng(0).permutation(len(images))
    own, train = drawn[:FOREIGN], drawn[FOREIGN:][:400]
    with tempfile.TemporaryDirectory() as place:
        folder, command = Path(place), [sys.executable, "-m", "labelwise"]
        lines = ["path,labels"]
        for row in train:
            images[row].convert("RGB").save(folder / f"{row}.jpg")
            lines.append(f"{row}.jpg,{'|'.join(names[k] for k in np.flatnonzero(labels[row]))}")
        (folder / "table.csv").write_text("\n".join(lines) + "\n")
        subprocess.run([*command, "train", "table.csv", "-o", "run"], cwd=folder, check=True)
        for kind, some in {"none": [], **foreign}.items():
            (folder / kind).mkdir()
            for number, image in enumerate([*(images[row] for row in own), *some]):
                image.convert("RGB").save(folder / kind / f"{number}.jpg")
            run = [*command, "predict", "run", kind, "-o", f"{kind}.csv"]
            said = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True)
            yield kind, said.stderr + said.stdout


def page(results: list[dict[str, Any]]) -> str:
    """Return the page: its words are in beside.md, beside this file."""
    runs = {tuple(one["job"]): one for one in results if "job" in one}
    tables: dict[str, list[str]] = {"TABLES": [], "FOREIGN": [], "WARNED": []}
    for name, state in product(SIZES, STATES):
        lines = _rows(runs, name, state, _compared)
        tables["TABLES"] += ["", f"**{NAMES[name]}, {state} labels**", "", *lines] if lines else []
    for name in SIZES:
        lines = _rows(runs, name, STATES[0], _false_tags)
        tables["FOREIGN"] += ["", f"**{NAMES[name]}**", "", *lines] if lines else []
    tables["WARNED"] += ["| trained on | foreign photos | `predict` says |", "|---|---|---|"]
    tables["WARNED"] += [
        f"| {NAMES[name]} | {kind} | {said} |"
        for name, kind, said in (one["warns"] for one in results if "warns" in one)
    ]
    made = {f"`{one['commit']}` ({one['machine']})": 0 for one in results}
    text = Path(__file__).with_suffix(".md").read_text("utf-8").replace("MADE", " and ".join(made))
    for mark, lines in tables.items():
        text = text.replace(mark, "\n".join(lines).strip())
    return text


def _rows(runs: dict[Any, Any], name: str, state: str, shown: Callable[..., str]) -> list[str]:
    """Return a table of one kind of labels: a row for each number of photos, a column a way."""
    lines = []
    for photos in SIZES[name]:
        by_way = {
            way: {job[3]: runs[job] for job in runs if job == (name, state, photos, job[3], way)}
            for way in WAYS
        }
        if own := by_way["labelwise"]:
            count = np.mean([run["rows"] for run in own.values()])
            lines += [f"| {count:.0f} | {' | '.join(shown(own, by_way[w]) for w in WAYS)} |"]
    header = [f"| photos | {' | '.join(WAYS)} |", "|---" * (1 + len(WAYS)) + "|"]
    return header + lines if lines else []


def _compared(own: dict[int, Any], way: dict[int, Any]) -> str:
    """Return mAP / log loss / micro F1; a star where ours is significantly another, by draws."""
    both, shown = sorted(own.keys() & way.keys()), []
    for figure, scale, digits in (("map", 100, 1), ("log_loss", 1, 3), ("micro_f1", 100, 1)):
        values = np.array([scale * way[draw][figure] for draw in both])
        gap = values - [scale * own[draw][figure] for draw in both]
        apart = len(both) > 1 and abs(gap.mean()) > half_width(gap) and own is not way
        shown.append(f"{values.mean():.{digits}f}{'*' if apart else ''}" if both else "–")
    return " / ".join(shown)


def _false_tags(own: dict[int, Any], way: dict[int, Any]) -> str:
    kinds = [run["foreign"] for run in way.values()]
    mean = {kind: np.mean([one[kind] for one in kinds]) for kind in (kinds or [{}])[0]}
    return ", ".join(f"{value:.2f} {kind}" for kind, value in mean.items()) or "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--photos", type=Path, help="of COCO and CIFAR-100, packed")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=WAYS)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--warns", action="store_true")
    parser.add_argument("--page", type=Path, help="write the page, and measure nothing")
    parser.add_argument("--commit", default=commit())
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that are started below
    there = given.results.read_text("utf-8").splitlines() if given.results.is_file() else []
    results = [json.loads(line) for line in there]
    if given.page:
        given.page.write_text(page(results), "utf-8")
        return
    made = {"commit": given.commit, "machine": f"{os.cpu_count()} cores, {platform.machine()}"}

    def keep(result: dict[str, Any]) -> None:
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**result, **made}) + "\n")

    sets = [name for name in SIZES if name == "open" or given.photos]
    for name in sets:
        read(name, given.photos, given.kept)
        for kind, said in warned(name, given.photos) if given.warns else ():
            keep({"warns": (name, kind, said)})
    done = {tuple(one["job"]) for one in results if "job" in one}
    every = product(sets, STATES, (0, 1, 2, 3), range(given.draws), given.ways)
    jobs = [(name, state, SIZES[name][at], draw, way) for name, state, at, draw, way in every]
    left = sorted((j for j in jobs if j not in done), key=lambda j: (j[3], j[2] or 10**6))
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        running = [pool.submit(work, job, given.photos, given.kept) for job in left]
        for number, future in enumerate(as_completed(running), 1):
            keep(future.result())
            print(f"{number} of {len(left)}", end="\r", flush=True)


if __name__ == "__main__":
    main()
