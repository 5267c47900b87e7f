"""Worlds, queries and attempts for the table of list promises: see ``promises.py --lists``.

A world is a pool of photos with log-odds and labels; held-out photos, tuning photos and the
library are drawn from it independently, with replacement, so that the pool is the population.

    made        20 labels of known probabilities that depend on each other, as the model says them
    rare        the same with labels in about 1 % of the photos
    overstated  the model says twice the log-odds; its labels' link was fitted on other photos
    scene       Mulan scene: 6 labels, logistic regression on its training photos
    coco        80 labels, linear head on features of a pretrained network (made once, kept)
"""

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binomtest

from labelwise.calibration import platt
from labelwise.data import posterior
from labelwise.decide import (
    ListCheck,
    list_bound,
    list_to_check,
    sure_list,
)
from labelwise.links import Link, Sigmoid
from labelwise.retrieval import Query, ScoredLibrary, bind, calibrate_query
from labelwise.types import LabelSpace

MADE = ("made", "rare", "overstated")
FEATURES = Path(os.environ.get("COCO_FEATURES", "coco_features.npz"))
WEIGHTS = "weights/tf_efficientnet_lite0_fp16.safetensors"
LEAST_POSITIVES = 0.008  # of the pool, of the photos that answer a query


@dataclass(frozen=True)
class World:
    """Log-odds and labels (N, K) of all photos there are."""

    name: str
    log_p: np.ndarray
    log_q: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, name, odds, labels):
        odds = np.clip(np.asarray(odds, np.float64), -30, 30)
        return cls(name, -np.logaddexp(0, -odds), -np.logaddexp(0, odds), labels.astype(bool))

    def queries(self, length, rng):
        """Yield queries of so many labels that some photos answer: wanted, and one unwanted."""
        space = LabelSpace(tuple(f"l{k}" for k in range(self.labels.shape[1])))
        while True:
            columns = rng.permutation(self.labels.shape[1])[:length]
            unwanted = length > 1 and rng.random() < 0.5
            words = [f"l{k}" for k in columns]
            words[-1] = "-" * unwanted + words[-1]
            bound = bind(Query.parse(", ".join(words), space), space)
            hits, _ = bound.right(torch.from_numpy(self.labels[:, list(bound.columns)]))
            if LEAST_POSITIVES <= hits.mean() <= 0.6:
                yield bound, np.asarray(hits)


WORLDS = (*MADE, "scene", "coco")
KINDS = ("selected", "expected", "sure", "any cut", "checked")
WRONG, MOST_CHECKS = 0.1, 40


def list_table(arguments):
    """Print the table; return whether every kind kept its word, all attempts of it together."""
    print(
        f"{'world':10} labels  held-out  library  {'kind':8}  tries   made  broken of tries"
        "            of made  mean wrong              of made  power  checks"
    )
    everything = {}
    worlds = arguments.worlds or [name for name in WORLDS if arguments.data or name in MADE]
    for name in worlds:
        world = world_of(name, arguments.data)
        for length in arguments.labels:
            for photos in arguments.held_out:
                for size in arguments.library:
                    rng = np.random.default_rng([arguments.seed, length, photos, size])
                    queries = world.queries(length, rng)
                    results = {}
                    for _ in range(arguments.draws):
                        found = attempt(world, *next(queries), photos, size, rng, arguments.kinds)
                        for kind, one in found.items():
                            results.setdefault(kind, []).append(one)
                    for kind, some in results.items():
                        row(f"{name:10} {length:6} {photos:9,} {size:8,}", kind, some)
                        everything.setdefault((name, kind), []).extend(some)
    kept = [row(f"{name:10} {'all':>6} {'':9} {'':8}", kind, some)
            for (name, kind), some in everything.items()]  # fmt: skip
    return all(kept)


def row(start, kind, results):
    made, wrong, power, checks = np.array(results, float).T
    tried, made = checks >= 0, made == 1
    broken = wrong > 0 if kind == "any cut" else made & (wrong > WRONG + 1e-9)
    low, high = binomtest(int(broken.sum()), len(made)).proportion_ci(method="exact")
    powers = power[np.isfinite(power)]
    share = broken.sum() / made.sum() if made.any() and kind != "any cut" else np.nan
    reach = 1.96 * wrong.std() / np.sqrt(len(wrong))  # searches that are refused have none wrong
    print(
        f"{start}  {kind:8} {len(made):6} {made.sum() / max(tried.sum(), 1):6.2f}  "
        f"{broken.mean():.3f} [{low:.3f}, {high:.3f}] {share:14.3f} "
        f"{wrong.mean():11.3f} ± {reach:.3f} "
        f"{wrong[made].mean() if made.any() else np.nan:12.3f} "
        f"{powers.mean() if len(powers) else np.nan:6.2f} "
        f"{np.median(checks[made]) if made.any() else np.nan:7.0f}",
        flush=True,
    )
    if kind in ("selected", "expected"):
        return wrong.mean() <= WRONG + reach
    return low <= 0.05


def calibrated(world, bound, rows):
    columns = np.ix_(rows, bound.columns)
    return calibrate_query(bound, world.log_p[columns], world.log_q[columns], world.labels[columns])


def scores_of(world, bound, rows):
    columns = np.ix_(rows, bound.columns)
    return np.asarray(bound.log_scores(world.log_p[columns], world.log_q[columns]))


def made_world(name, photos=40_000):
    if name == "rare":
        data = posterior(photos, 1, 1, num_labels=20, spread=3.0, rho=0.5, seed=1)
        eta = 1 / (1 + np.exp(-(np.log(data.eta / (1 - data.eta)) - 3.0)))
        draw = np.random.default_rng(2).random(eta.shape)
        return World.of(name, np.log(eta / (1 - eta)), draw < eta)
    data = posterior(photos, 1, 1, num_labels=20, spread=3.0, rho=0.5, seed=0)
    odds = np.log(data.eta[:photos] / (1 - data.eta[:photos]))
    labels = data.table.targets()[0][:photos].astype(bool)
    return World.of(name, odds * (2 if name == "overstated" else 1), labels)


def linear_head(features, labels, decay):
    """Return weights of a logistic regression per label, by L-BFGS."""
    x = torch.from_numpy(features).double()
    y = torch.from_numpy(labels).double()
    weights = torch.zeros(x.shape[1] + 1, y.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=150, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        logits = x @ weights[:-1] + weights[-1]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
        (loss + decay * weights[:-1].square().sum()).backward()
        return loss

    optimizer.step(closure)
    fitted = weights.detach().numpy()
    return lambda part: part @ fitted[:-1] + fitted[-1]


def scene_world(folder):
    with np.load(folder / "mulan_scene.npz") as file:
        (x, y), (new_x, new_y) = ((file[f"X_{p}"], file[f"Y_{p}"] > 0) for p in ("train", "test"))
    middle, spread = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    head = linear_head((x - middle) / spread, y, 1e-2)
    return World.of("scene", head((new_x - middle) / spread), new_y)


@dataclass(frozen=True)
class CocoModel:
    """A linear head on features of a pretrained network, and the photos it came from."""

    raw: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    logits: Callable[[np.ndarray], np.ndarray]
    link: Link

    def log_probs(self, features):
        """Return log p and log 1 - p (N, K) of photos with these features (N, D)."""
        both = self.link.log_probs(torch.from_numpy(self.logits(features)))
        return tuple(one.numpy() for one in both)


@cache
def coco_model(folder):
    """Return the model, trained on the training photos and calibrated on validation photos."""
    if not FEATURES.is_file():
        write_coco_features(folder)
    with np.load(FEATURES) as file:
        features, labels = file["features"].astype(np.float64), file["labels"]
        split = file["split"]
    train, val = split == "train", split == "val"
    middle, spread = features[train].mean(0), features[train].std(0) + 1e-6
    head = linear_head((features[train] - middle) / spread, labels[train], 2e-4)

    def logits(some):
        return head((some - middle) / spread)

    known = torch.from_numpy(labels[val]).float()
    link = platt(torch.from_numpy(logits(features[val])), known, Sigmoid(), scope="shared")
    return CocoModel(features, labels, split, logits, link)


def coco_world(folder):
    model = coco_model(folder)
    test = model.split == "test"
    return World("coco", *model.log_probs(model.raw[test]), model.labels[test])


def features_of(photos, folder):
    """Return the features (N, D) of a pretrained network for pictures of one size."""
    import timm
    from safetensors.torch import load_file

    model = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    model.load_state_dict({key: one.float() for key, one in load_file(folder / WEIGHTS).items()})
    middle, spread = (torch.tensor(model.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    features = []
    for some in batched(photos, 64):
        arrays = [torch.from_numpy(np.array(one)).permute(2, 0, 1) / 255 for one in some]
        with torch.inference_mode():
            maps = model.forward_features((torch.stack(arrays) - middle) / spread)
            features.append(model.forward_head(maps, pre_logits=True).numpy())
    return np.concatenate(features).astype(np.float16)


def batched(items, size):
    """Yield lists of so many items."""
    items = iter(items)
    while some := list(islice(items, size)):
        yield some


def write_coco_features(folder):
    """Write features of the COCO photos, which takes minutes on one core."""
    import pyarrow.parquet as pq
    from PIL import Image

    tables = [
        pq.read_table(folder / f"coco80-{part}.parquet")
        for part in ("train-a", "train-b", "val-test", "zero-label")
    ]
    names = json.loads(tables[0].schema.metadata[b"classes"])
    rows = [row for table in tables for row in table.to_pylist()]
    photos = (Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows)
    temporary = FEATURES.with_name(f"{FEATURES.name}.part.npz")
    np.savez(
        temporary,
        features=features_of(photos, folder),
        labels=np.array([[name in row["labels"] for name in names] for row in rows], bool),
        split=np.array([row["split"] for row in rows]),
        id=np.array([str(row["id"]) for row in rows]),
        names=np.array(names),
    )
    temporary.replace(FEATURES)


def world_of(name, folder):
    if name in MADE:
        return made_world(name)
    return {"scene": scene_world, "coco": coco_world}[name](folder)


def attempt(world, bound, hits, photos, size, rng, kinds=KINDS, wrong=WRONG):
    """Return, for each of some kinds, (made, share wrong, hits listed / the oracle's, checks)."""
    count = len(world.labels)
    held, tuned, library = (rng.integers(count, size=n) for n in (photos, photos, size))
    tuning = calibrated(world, bound, tuned)
    scores, right = scores_of(world, bound, held), hits[held]
    listed, truth = scores_of(world, bound, library), hits[library]
    order = np.argsort(-listed, kind="stable")
    listed, truth = listed[order], truth[order]
    share = (~truth).cumsum() / np.arange(1, size + 1)
    ends = np.append(np.flatnonzero(np.diff(listed)), size - 1)  # lists do not part ties
    reach = ends[share[ends] <= wrong]
    best = int(truth[: reach[-1] + 1].sum()) if len(reach) else 0
    known, rows = calibrated(world, bound, held), ScoredLibrary(listed.astype(np.float32))

    def seen(length, checks=0, removed=0):
        if length == 0:
            return False, 0.0, 0.0 if best else np.nan, checks
        misses = (~truth[:length]).sum() - removed
        power = min(1.0, truth[:length].sum() / best) if best else np.nan
        return True, misses / max(length - removed, 1), power, checks

    def sure():
        tuned_chances = tuning.probs(tuning.scores)
        return sure_list(scores, right, listed, wrong_at_most=wrong, tuning=tuned_chances)

    def any_cut():
        bound_of = list_bound(scores, right, listed)
        lengths = np.searchsorted(-listed, -bound_of.cuts, side="right")
        shares = bound_of.misses / lengths
        anywhere = lengths[shares <= wrong]
        bad = (share[lengths - 1] > shares + 1e-12).any()
        made, _, power, _ = seen(int(anywhere[-1]) if len(anywhere) else 0)
        return made, 1.0 if bad else 0.0, power, 0

    makers = {
        "selected": lambda: seen(known.cut(rows, wrong).listed),  # as without validation photos
        "expected": lambda: seen(known.cut(rows, wrong, tuning=tuning).listed),
        "sure": lambda: seen(sure().listed),
        "any cut": any_cut,
        "checked": lambda: checked(tuning, scores, right, listed, truth, wrong, rng, seen),
    }
    return {kind: makers[kind]() for kind in kinds}


def checked(tuning, scores, right, listed, truth, wrong, rng, seen):
    """Check photos in a random order until the list is promised, or ``MOST_CHECKS`` were."""
    share = len(scores) / len(listed)
    start = list_to_check(tuning.probs(listed), wrong, held_out=share)
    if start is None:
        return False, 0.0, np.nan, -1  # there is no list to check
    length = int(np.searchsorted(-listed, -listed[start.length - 1], side="right"))
    above = scores >= listed[length - 1]
    check = ListCheck(
        length,
        wrong,
        held_out=int(above.sum()),
        held_out_wrong=int((above & ~right).sum()),
        prior=start.prior,
    )
    answers = truth[:length][rng.permutation(length)][:MOST_CHECKS]
    for done in range(len(answers) + 1):
        misses = int((~answers[:done]).sum())
        if check.after(done, misses).promised:
            return seen(length, done, misses)
    return False, 0.0, 0.0, MOST_CHECKS
