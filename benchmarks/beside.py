"""The default of ``labelwise train`` beside what else people do with the same photos: one page.

    python benchmarks/default.py SET.npz... -o default.json
    python benchmarks/beside.py SET.npz... --default default.json --photos photos.npz

The first runs the default and scikit-learn. The second adds nearest neighbours to the same draws,
the default on the COCO photos that the fine-tuned rows of the survey are of
(packed by benchmarks/survey_features.py), and foreign photos, whose every tag is false. It keeps
all figures in results/beside.json, and writes evidence/beside.md with the words of beside.md.
Without arguments the page is written from the figures that are kept.
"""

import argparse
import io
import json
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from default import STATES, base, cut_of, deal, figures, half_width, ours, read, spoil, theirs
from PIL import Image

from labelwise.eyes import Eye
from labelwise.papers.survey import SurveyCell, commit, dealt_labels

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[1]
KEPT = HERE / "results" / "beside.json"
NEIGHBOURS = (1, 3, 5, 10, 20, 40)
NAMES = {"open": "Open photos", "coco": "COCO", "coarse": "CIFAR-100", "scene": "Mulan scene"}
WAYS = {"ours": "labelwise", "sklearn": "scikit-learn", "knn": "neighbours", "base": "base rate"}
SHOWN = (("map", 100, 1), ("log_loss", 1, 3), ("micro_f1", 100, 1))
FOREIGN, DRAWS, LANDSCAPES = 100, 2, (23, 33, 49, 60, 71)  # cloud, forest, mountain, plain, sea
OFTEN, COCO = 40, 1500


def by_neighbours(x: Any, y: Any, known: Any, new: Any, seed: int = 0) -> tuple[Any, Any]:
    """Return the shares of labels among the nearest photos by cosine, a photo of the prior added.

    How many are asked is chosen by the log loss of each photo among the others, as is the cut.
    """
    x, new = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, new))
    share = base(y, known, 1)[0]

    def shares(likeness: Any, count: int) -> Any:
        near = np.argsort(-likeness, axis=1)[:, :count]
        return ((y * known)[near].sum(1) + share) / (known[near].sum(1) + 1)

    own = x @ x.T - 2 * np.eye(len(x))
    held = [np.clip(shares(own, k), 1e-7, 1 - 1e-7) for k in NEIGHBOURS if k < len(x)]
    losses = [-np.where(y > 0, np.log(p), np.log1p(-p))[known].mean() for p in held]
    best = int(np.argmin(losses))
    probs = shares(new @ x.T, NEIGHBOURS[best])
    return probs, probs >= cut_of(held[best], y, known)


def cells(runs: list[dict[str, Any]], places: list[str]) -> list[dict[str, Any]]:
    """Return the figures of default.py's draws by cell, with those of nearest neighbours."""
    sets, found = {Path(place).stem: read(place) for place in places}, []
    key = itemgetter("set", "state", "photos")
    for (name, state, photos), some in groupby(sorted(runs, key=key), key=key):
        draws = sorted(some, key=itemgetter("draw"))
        for run in draws:
            rng, data = np.random.default_rng([photos, run["draw"]]), sets[name]
            train, test = deal(data, photos, rng)
            y, known = spoil(data["y"][train], state, rng)
            if state == "single":
                train, y, known = (side[y.any(1)] for side in (train, y, known))
            run["knn"] = figures(
                *by_neighbours(data["x"][train], y, known, data["x"][test]), data["y"][test]
            )
        by_way = {
            way: {one: [round(run[way][one], 5) for run in draws] for one, *_ in SHOWN}
            for way in WAYS
        }
        rows = float(np.mean([run["rows"] for run in draws]))
        found.append({"set": name, "state": state, "photos": photos, "rows": rows, "ways": by_way})
    return found


def unpacked(packed: Path, name: str, count: int) -> tuple[list[Image.Image], Any, Any]:
    """Return the first photos of a packed set, their labels and the names of these."""
    with np.load(packed) as stored:
        cuts, blob = stored[f"{name} offsets"][: count + 1], stored[f"{name} photos"].tobytes()
        photos = [Image.open(io.BytesIO(blob[a:b])) for a, b in pairwise(cuts)]
        return photos, stored[f"{name} labels"][:count], stored[f"{name} names"]


def open_photos() -> tuple[list[Image.Image], Any, Any, Any]:
    """Return the open photos, their labels, the names of these, and the photos' groups."""
    from pyarrow import csv

    rows = csv.read_csv(ROOT / "open-photos" / "labels.csv").to_pylist()
    tags = [set(row["labels"].split("|")) - {""} for row in rows]
    names = sorted(set().union(*tags))
    labels = np.array([[one in own for one in names] for own in tags])
    groups = np.unique([row["group"] or row["image"] for row in rows], return_inverse=True)[1]
    return [Image.open(ROOT / "open-photos" / r["image"]) for r in rows], labels, names, groups


def foreign_photos(packed: Path, name: str) -> dict[str, list[Image.Image]]:
    """Return photos by kind that carry none of the labels of a set."""
    from sklearn.datasets import load_digits

    drawn = np.random.default_rng(0).permutation(1797)[:FOREIGN]
    digits = [Image.fromarray((255 - 15.9 * load_digits().images[k]).astype("u1")) for k in drawn]
    found = {"digits": [one.resize((224, 224), Image.Resampling.BICUBIC) for one in digits]}
    if name == "coco":  # whose labels are things
        photos, labels, _ = unpacked(packed, "cifar100", 5000)
        there = np.flatnonzero(np.isin(labels[:, :100].argmax(1), LANDSCAPES))[:FOREIGN]
        found["landscapes"] = [photos[k] for k in there]
    return found


def seen(photos: list[Image.Image]) -> Any:
    """Return the features (N, 2,992) of photos by the built-in network."""
    eye, parts = Eye.open(), []
    for at in range(0, len(photos), 20):
        some = [eye.transform.pixels(one.convert("RGB")).numpy() for one in photos[at : at + 20]]
        outputs = eye.see(np.stack(some))
        parts.append(np.concatenate([outputs[name] for name in eye.head_features], 1))
    return np.concatenate(parts)


def tuned(packed: Path) -> list[dict[str, Any]]:
    """Return the default's figures on the photos of the survey's fine-tuned rows, by seed."""
    photos, labels, _ = unpacked(packed, "coco", 5000)
    x, found = seen(photos), []
    for known in ("full", "single"):
        for seed in range(1):
            chosen, dealt, _ = dealt_labels(labels.astype(np.float32), known, seed)
            train, test, y = chosen["train"], chosen["test"], dealt["train"].numpy().astype(float)
            if known == "single":
                train, y = train[y.any(1)], y[y.any(1)]
            probs, sets = ours(x[train], y, np.ones(y.shape, bool), x[test], seed)
            found.append({"known": known, "seed": seed, **figures(probs, sets, labels[test])})
            print(found[-1], flush=True)
    return found


def false_tags(packed: Path) -> list[dict[str, Any]]:
    """Return the tags per foreign photo of models of clean labels, by way and kind."""
    found = []
    for name, size in (("open", 50), ("coco", 100)):
        if name == "open":
            photos, labels, names, groups = open_photos()
        else:
            photos, labels, names = unpacked(packed, "coco", COCO)
            often, groups = labels.sum(0) >= OFTEN, np.arange(COCO)
            labels, names = labels[:, often], names[often]
        others = foreign_photos(packed, name)
        x, new = seen(photos), {kind: seen(some) for kind, some in others.items()}
        ways = {"labelwise": ours, "labelwise above .5": ours, "scikit-learn": theirs}
        ways["neighbours"] = by_neighbours
        for way, make in ways.items():
            tags: dict[str, list[float]] = {kind: [] for kind in new}
            for draw in range(DRAWS):
                rng = np.random.default_rng([size, draw])
                data = {"groups": groups, "test": np.arange(100) < 45}
                rows = deal(data, size, rng)[0]
                y = labels[rows].astype(float)
                every = np.concatenate([*new.values()])
                probs, sets = make(x[rows], y, np.ones(y.shape, bool), every, draw)
                sets = probs >= 0.5 if way.endswith(".5") else sets
                for number, kind in enumerate(new):
                    own = sets[FOREIGN * number :][:FOREIGN]
                    tags[kind].append(float(own.sum(1).mean()))
            found.append({"set": name, "photos": len(rows), "way": way, "tags": tags})
            print(found[-1], flush=True)
    return found


def warned(packed: Path) -> list[dict[str, Any]]:
    """Train and predict as people type it, and return what is said of foreign photos."""
    found, command = [], [sys.executable, "-m", "labelwise"]
    for name in ("open", "coco"):
        images, labels, names = (
            open_photos()[:3] if name == "open" else unpacked(packed, "coco", COCO)
        )
        drawn = np.random.default_rng(0).permutation(len(images))
        own, train = drawn[:FOREIGN], drawn[FOREIGN:][:400]
        with tempfile.TemporaryDirectory() as place:
            folder, lines = Path(place), ["path,labels"]
            for row in train:
                images[row].convert("RGB").save(folder / f"{row}.jpg")
                tags = "|".join(names[k] for k in np.flatnonzero(labels[row]))
                lines.append(f"{row}.jpg,{tags}")
            (folder / "table.csv").write_text("\n".join(lines) + "\n")
            subprocess.run([*command, "train", "table.csv", "-o", "run"], cwd=folder, check=True)
            for kind, some in {"none": [], **foreign_photos(packed, name)}.items():
                (folder / kind).mkdir()
                for number, image in enumerate([*(images[row] for row in own), *some]):
                    image.convert("RGB").save(folder / kind / f"{number}.jpg")
                run = [*command, "predict", "run", kind, "-o", f"{kind}.csv"]
                done = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True)
                lines = (done.stderr + done.stdout).splitlines()
                said = " ".join(line for line in lines if "differ" in line)
                found.append({"set": name, "kind": kind, "said": said})
                print(found[-1], flush=True)
    return found


def page(kept: dict[str, Any]) -> str:
    """Return the page of the figures that are kept."""
    parts = {"TABLES": _compared(kept["cells"]), "TUNED": _tuned(kept["tuned"])}
    parts["FOREIGN"] = ["| model | way | false tags per foreign photo |", "|---|---|---|"]
    for one in kept["foreign"]:
        tags = ", ".join(f"{kind} {np.mean(some):.2f}" for kind, some in one["tags"].items())
        what = f"{NAMES[one['set']]}, {one['photos']} photos"
        parts["FOREIGN"].append(f"| {what} | {one['way']} | {tags} |")
    parts["WARNED"] = ["| model | foreign photos | `predict` |", "|---|---|---|"]
    for one in kept["warns"]:
        said = one["said"] or "–"
        parts["WARNED"].append(f"| {NAMES[one['set']]} | {one['kind']} | {said} |")
    parts["MADE"] = [f"* {part}: {made}" for part, made in kept["made"].items()]
    text = (HERE / "beside.md").read_text("utf-8")
    for mark, lines in parts.items():
        text = text.replace(mark, "\n".join(lines))
    return text


def _compared(found: list[dict[str, Any]]) -> list[str]:
    """Return a table of each kind of labels; a star where a way differs from ours by its draws."""
    lines = []
    for state in STATES:
        some = [one for one in found if one["state"] == state]
        lines += ["", f"**{state}**", "", f"| set | photos | draws | {' | '.join(WAYS.values())} |"]
        lines += ["|---" * (3 + len(WAYS)) + "|"]
        for one in sorted(some, key=lambda one: ([*NAMES].index(one["set"]), one["rows"])):
            own, shown = one["ways"]["ours"], []
            for way in one["ways"].values():
                words = []
                for figure, scale, digits in SHOWN:
                    gap = np.subtract(way[figure], own[figure])
                    star = "*" if abs(gap.mean()) > half_width(gap) and way is not own else ""
                    words.append(f"{scale * np.mean(way[figure]):.{digits}f}{star}")
                shown.append(" / ".join(words))
            start = f"{NAMES[one['set']]} | {one['rows']:.0f} | {len(own['map'])}"
            lines.append(f"| {start} | {' | '.join(shown)} |")
    return lines[1:]


def _tuned(found: list[dict[str, Any]]) -> list[str]:
    """Return the default beside the rows that were fine-tuned on the same photos."""
    lines = ["| known labels | way | mAP | log loss | micro F1 |", "|---|---|---|---|---|"]
    for known, methods in (("full", ("bce",)), ("single", ("an", "ll-r"))):
        cell = SurveyCell.load(HERE / "survey" / "finetuned" / f"coco.{known}.json")
        rows = {
            f"fine-tuned with `{name}`": [
                (100 * run["mAP@class"], run["log loss after"], 100 * run["micro F1"])
                for run in cell.methods[name].figures
            ]
            for name in methods
        }
        rows["labelwise, frozen features"] = [
            (100 * run["map"], run["log_loss"], 100 * run["micro_f1"])
            for run in found
            if run["known"] == known
        ]
        for way, values in rows.items():
            means = np.mean(values, axis=0)
            lines.append(f"| {known} | {way} | {means[0]:.1f} | {means[1]:.3f} | {means[2]:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--default", type=Path, help="the draws of default.py")
    parser.add_argument("--photos", type=Path, help="COCO and CIFAR-100, packed")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {"made": {}}
    parts: dict[str, Callable[[], Any]] = {}
    if given.default:
        parts["cells"] = partial(cells, json.loads(given.default.read_text("utf-8")), given.sets)
    if given.photos:
        for name, make in (("tuned", tuned), ("foreign", false_tags), ("warns", warned)):
            parts[name] = partial(make, given.photos)
    for name, run in parts.items():
        kept[name] = run()
        kept["made"][name] = f"`{commit()}`, {cpu_count()} cores, {platform.machine()}"
        KEPT.write_text(json.dumps(kept) + "\n", "utf-8")
    (ROOT / "evidence" / "beside.md").write_text(page(kept), "utf-8")


if __name__ == "__main__":
    main()
