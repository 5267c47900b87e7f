"""The survey: every method, one protocol, on any data sets that become frozen features.

    full      all labels of training images are known
    tenth     every entry is known with chance 1/10
    single    one present label of each image is known
    noise     a tenth of the present labels is removed, and as many absent ones are added
    half      half of the training images

Every seed deals all images into train, val and test again (``SHARES``). A method is a head trained
by AdamW on one cycle. Its learning rate is the best by mAP on validation, on the first seed, of
``RATES`` and of more while the best is at an edge. Every cell is one results file.

Validation chooses learning rates, the Platt fit, thresholds and the mean number of labels that
``role`` and ``epr`` are told. It is complete and right by default. With ``--set validation=alike``
its labels are hidden or flipped as those of training are: figures then rest on its known entries,
and where one present label per image is known, on what is unknown read as absent.
"""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from math import inf, isnan, sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.base.files import write_text
from labelwise.base.progress import Watch
from labelwise.base.special import stdtrit
from labelwise.calibration import platt
from labelwise.decide import best_f
from labelwise.errors import DataError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import LEFT, METHODS, find_method, make_head, make_objective
from labelwise.learn.predictor import Model
from labelwise.links import Link
from labelwise.metrics import average_precision, confusion
from labelwise.models import HeadSpec
from labelwise.papers.comparison import table_lines
from labelwise.papers.measures import probability_figures
from labelwise.papers.protocols import DATASETS, STATED
from labelwise.papers.sources import Frozen, holds_files, with_features
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.tables import load
from labelwise.tables.derived import observe_uniform
from labelwise.training.checkpoint import make_optimizer, rate, set_rate
from labelwise.training.features import set_biases_to_priors
from labelwise.training.settings import OptimizerSettings, ScheduleSettings
from labelwise.types import DatasetFacts, Targets, nearest

Floats = NDArray[np.float32]
Say = Callable[[str], None]
CELLS: dict[str, str] = STATED["survey"]["cells"]
KNOWN_SETS = ("coco", "cifar100", "scene")
SHARES = {"train": 0.6, "val": 0.15, "test": 0.25}
RATES = tuple(1e-2 * 3.0**power for power in (-2, -1, 0, 1, 2))
MOST_TRIES = 9
VALIDATION = ("complete", "alike")
TAKEN: dict[str, Any] = {"cells": ",".join(CELLS), "image_size": None, **STATED["survey"]["budget"]}
QUICK: dict[str, Any] = STATED["survey"]["quick"]
READ_BY: dict[str, dict[str, Any]] = {"cifar100": {"labels": "both"}}


@dataclass(frozen=True)
class SurveyPlan:
    """What is surveyed: sources by data set, methods, seeds, the backbone of photos, the budget."""

    root: Path = Path("data")
    sources: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    seeds: int = 5
    frozen: Frozen | None = None
    quick: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    command: str = "labelwise papers run survey"

    def __post_init__(self) -> None:
        for key in self.overrides:
            if key not in TAKEN:
                raise SettingsError(
                    f"the survey chooses {key} itself{nearest(key, TAKEN)}; leave out --set {key}"
                )
        for name in self.methods:
            find_method(name)
        for name in self.cells:
            if name not in CELLS:
                raise SettingsError(f"the survey has no cell {name!r}{nearest(name, CELLS)}")
        if self.budget["validation"] not in VALIDATION:
            known, got = " or ".join(VALIDATION), self.budget["validation"]
            raise SettingsError(f"validation must be {known}, got {got!r}")

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(str(self.budget["cells"]).split(","))

    @property
    def budget(self) -> dict[str, Any]:
        return {**TAKEN, **(QUICK if self.quick else {}), **self.overrides}

    @property
    def compared(self) -> tuple[str, ...]:
        return self.methods or tuple(METHODS)

    def places(self) -> dict[str, str]:
        """Return the source of each data set that is there; raise if none is."""
        places = dict(self.sources)
        for name in () if places else KNOWN_SETS:
            if name == "scene" and (self.root / "scene.npz").is_file():
                places[name] = f"features:{self.root / 'scene.npz'}"
            elif name in DATASETS and holds_files(self.root / DATASETS[name].folder):
                places[name] = f"{DATASETS[name].format}:{self.root / DATASETS[name].folder}"
        if not places:
            raise DataError(
                f"the survey needs data: put into {self.root} the folders "
                f"{DATASETS['coco'].folder} and {DATASETS['cifar100'].folder} or the file "
                "scene.npz, or name sources as --source coco=FILE"
            )
        return places


@dataclass(frozen=True)
class SurveyRows:
    """All images of a data set: features (N, D), labels (N, K) that may be soft, names."""

    features: Floats
    labels: Floats
    names: tuple[str, ...]


@dataclass(frozen=True)
class Dealt:
    """The splits of one seed as tensors, and the known entries of those where some are not."""

    features: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    known: Mapping[str, Tensor]
    names: tuple[str, ...]

    def facts(self, soft: bool) -> DatasetFacts:
        labels = self.trained_on(soft).double()
        present, known = self._counts("train", labels)
        shares, among_all = present / known.clamp(min=1), present / len(labels)
        present, known = self._counts("val", (self.labels["val"] > 0.5).double())
        mean = float((present / known.clamp(min=1)).sum())
        priors, known_present = tuple(shares.tolist()), tuple(among_all.tolist())
        return DatasetFacts(len(labels), labels.shape[1], mean, priors, known_present)

    def _counts(self, split: str, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return how often each label is present among its known entries, and their number."""
        known = self.known.get(split, torch.ones_like(labels)).double()
        return (labels * known).sum(0), known.sum(0)

    def predictions(self, split: str, logits: Tensor, link: Link | None) -> Predictions:
        ids = [str(row) for row in range(len(logits))]
        labels = self.labels[split].numpy()
        known = self.known[split].numpy() if split in self.known else None
        return Predictions(ids, logits.numpy(), labels, known, self.names, split, link)

    def trained_on(self, soft: bool) -> Tensor:
        """Return the training labels, the majority's where soft ones are not used."""
        labels = self.labels["train"]
        return labels if soft else (labels > 0.5).float()


def rows_of(name: str, place: str, plan: SurveyPlan, watch: Watch | None = None) -> SurveyRows:
    """Return at most so many rows of a data set as the budget says, the same at every call."""
    by_name = place.startswith(f"{name}:") and name in READ_BY
    table = load(place, **(READ_BY[name] if by_name else {}))
    stored = isinstance(table.images, FeatureRows)
    if not stored and plan.frozen is None:
        raise SettingsError(
            f"{name} holds photos, and the survey trains heads on frozen features; name their "
            "backbone with --features and its weights with --weights"
        )
    if table.has_unknown():
        raise DataError(f"{place}: the survey hides labels itself, so all of them must be known")
    most = int(plan.budget["rows"])
    if len(table) > most:
        table = table.subset(np.sort(np.random.default_rng(0).permutation(len(table))[:most]))
    if not stored and plan.frozen is not None:
        table = with_features(table, plan.frozen, watch=watch)
    if not isinstance(table.images, FeatureRows) or table.images.features.ndim != 2:
        raise DataError(f"{table.name}: the survey needs one feature vector per row")
    features = np.asarray(table.images.features, np.float32)
    return SurveyRows(features, table.targets()[0].astype(np.float32), table.space.names)


def dealt_labels(
    labels: Floats, cell: str, seed: int, validation: str = "complete"
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Tensor], dict[str, Tensor]]:
    """Return the rows of each split of a seed, its labels, and its known entries if not all are."""
    random = np.random.default_rng([seed, 44])
    order, edges = random.permutation(len(labels)), np.cumsum(list(SHARES.values()))
    parts = np.split(order, (len(order) * edges[:-1]).astype(int))
    chosen = dict(zip(SHARES, parts, strict=True))
    if cell == "half":
        chosen["train"] = chosen["train"][: len(chosen["train"]) // 2]
    dealt = {split: labels[which] for split, which in chosen.items()}
    known: dict[str, NDArray[np.bool_]] = {}
    for split, first in (("train", 1200), ("val", 2200))[: 1 + (validation == "alike")]:
        truth = dealt[split] > 0.5
        if cell == "tenth":
            known[split] = random.random(truth.shape) < 0.1
        elif cell == "single":
            known[split] = observe_uniform(truth, seed=first + seed) != 0
        elif cell == "noise":
            added = 0.1 * truth.sum() / max((~truth).sum(), 1)
            flipped = random.random(truth.shape) < np.where(truth, 0.1, added)
            dealt[split] = np.where(flipped, ~truth, truth).astype(np.float32)
        if split in known:
            dealt[split] = (truth & known[split]).astype(np.float32)
    if cell == "single":  # where no label is known to be absent, unknown is read as absent
        known.pop("val", None)
    tensors = {split: torch.from_numpy(values) for split, values in dealt.items()}
    return chosen, tensors, {split: torch.from_numpy(mask) for split, mask in known.items()}


def deal(rows: SurveyRows, cell: str, seed: int, validation: str = "complete") -> Dealt:
    """Return the splits of a seed, whose labels are known as far as the cell says."""
    chosen, labels, known = dealt_labels(rows.labels, cell, seed, validation)
    trained = rows.features[chosen["train"]]
    mean, scale = trained.mean(0), max(float(trained.std(0).mean()), 1e-6)
    features = {s: torch.from_numpy((rows.features[w] - mean) / scale) for s, w in chosen.items()}
    return Dealt(features, labels, known, rows.names)


def fit(
    method: str, dealt: Dealt, lr: float, seed: int, steps: int, batch: int
) -> dict[str, Predictions]:
    """Train the head of a method by its objective; return what it says of val and test."""
    torch.manual_seed(seed)
    channels, count = dealt.features["train"].shape[1], dealt.labels["train"].shape[1]
    head = make_head(HeadSpec(find_method(method).head), channels, count)
    model = Model(create_backbone("identity", channels=channels), head)
    soft = make_objective(method, dealt.facts(False)).soft_labels
    facts, labels = dealt.facts(soft), dealt.trained_on(soft)
    objective = make_objective(method, facts)
    set_biases_to_priors(model, objective, facts)
    optimizer = make_optimizer(model, objective, OptimizerSettings(lr=lr))
    schedule, maps = ScheduleSettings(), {s: x[..., None, None] for s, x in dealt.features.items()}
    batch = min(batch, len(labels))
    per_epoch = len(labels) // batch
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(labels))
        rows = order[step % per_epoch * batch :][:batch]
        factor = rate(schedule, step, steps, per_epoch)
        set_rate(optimizer, factor)
        optimizer.zero_grad(set_to_none=True)
        seen = dealt.known["train"][rows] if "train" in dealt.known else None
        loss = objective(model.head(maps["train"][rows]), Targets(labels[rows], seen, rows))
        loss.backward()
        optimizer.step()
        objective.step(lr * factor)
    model.eval()
    with torch.no_grad():
        logits = {split: model.head(x).logits for split, x in maps.items()}
        link = objective.final_link(logits["train"], labels, dealt.known.get("train"))
    return {split: dealt.predictions(split, logits[split], link) for split in ("val", "test")}


def figures_of(val: Predictions, test: Predictions) -> dict[str, float]:
    """Return the columns of one run; ``after`` is the shared Platt fit, also for the sets."""
    figures = {"mAP@class": average_precision(test.logits, test.majority).value}
    fitted = platt(val.logits, val.labels, test.link, val.observed)
    for stage, link in (("before", test.link), ("after", fitted)):
        if link is not None:
            probabilities = probability_figures(link, test)
            figures |= {f"{name} {stage}": probabilities[name] for name in ("log loss", "ACE")}
    rule = best_f(fitted(val.logits), val.majority, val.observed, scope="shared")
    counts = confusion(rule(fitted(test.logits)), test.majority)
    figures |= {"macro F1": counts.f_score().value, "micro F1": counts.micro().f_score().value}
    return {name: value for name, value in figures.items() if not isnan(value)}


@dataclass(frozen=True)
class Surveyed:
    """What one method gave in one cell: the tries by learning rate, the best, figures by seed."""

    tries: Mapping[str, float]
    rate: float
    figures: tuple[Mapping[str, float], ...]


def survey_method(method: str, cell: str, rows: SurveyRows, plan: SurveyPlan) -> Surveyed:
    """Tune the learning rate of a method on the first seed, then train it with every seed."""
    steps, batch = int(plan.budget["steps"]), int(plan.budget["batch_size"])
    tries: dict[float, float] = {}
    validation = str(plan.budget["validation"])
    best, first = 0.0, deal(rows, cell, 0, validation)
    waiting = list(RATES[1:4] if plan.quick else RATES)
    while waiting:
        lr = waiting.pop()
        val = fit(method, first, lr, 0, steps, batch)["val"]
        finite = np.isfinite(val.logits).all()
        score = average_precision(val.logits, val.majority, val.observed).value if finite else 0.0
        tries[lr] = 0.0 if isnan(score) else score
        best = max(tries, key=tries.__getitem__)
        if not waiting and len(tries) < MOST_TRIES and not plan.quick:
            low, high = min(tries), max(tries)
            waiting = [high * 3] if best == high else [low / 3] if best == low else []
    figures = []
    for seed in range(plan.seeds):
        began = perf_counter()
        fitted = fit(method, deal(rows, cell, seed, validation), best, seed, steps, batch)
        taken = perf_counter() - began
        figures.append({**figures_of(**fitted), "seconds": taken})
    scores = {f"{lr:.3g}": round(score, 6) for lr, score in sorted(tries.items())}
    return Surveyed(scores, best, tuple(figures))


Unit = tuple[str, str, str]  # data set, cell, method
_ROWS: dict[str, SurveyRows] = {}  # by data set, in the process that trains


def _take(rows: Mapping[str, SurveyRows]) -> None:
    _ROWS.update(rows)


def _surveyed(unit: Unit, plan: SurveyPlan) -> Surveyed:
    name, cell, method = unit
    torch.set_num_threads(1)
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # of labels ranked no better than chance
        return survey_method(method, cell, _ROWS[name], plan)


@dataclass
class SurveyCell:
    """The results file of one data set and cell."""

    data: str
    cell: str
    facts: dict[str, Any]
    methods: dict[str, Surveyed] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        order = sorted(self.methods, key=[*METHODS, *self.methods].index)
        figures = {m: _by_column(self.methods[m].figures) for m in order}
        tuning = {m: {"lr": self.methods[m].rate, "tries": self.methods[m].tries} for m in order}
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self.facts.items()]
        blocks: dict[str, dict[str, Any]] = {"figures": figures, "tuning": tuning}
        for name, block in blocks.items():
            inner = ",\n".join(f" {json.dumps(m)}: {json.dumps(v)}" for m, v in block.items())
            lines.append(f"{json.dumps(name)}: {{\n{inner}\n}}")
        write_text(folder / f"{self.data}.{self.cell}.json", "{" + ",\n".join(lines) + "}\n")

    @staticmethod
    def load(file: Path) -> "SurveyCell":
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            figures, tuning = content.pop("figures"), content.pop("tuning")
            methods = {
                name: Surveyed(tuning[name]["tries"], tuning[name]["lr"], _by_seed(columns))
                for name, columns in figures.items()
            }
            data, _, cell = file.stem.rpartition(".")
            return SurveyCell(data, cell, content, methods)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{file} is not the result of a survey ({error})") from None


def _by_column(runs: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Return the figures of each column by seed; an undefined one is None."""
    return {
        name: [float(f"{run[name]:.5g}") if name in run else None for run in runs]
        for name in dict.fromkeys(name for run in runs for name in run)
    }


def _by_seed(columns: Mapping[str, Sequence[float | None]]) -> tuple[dict[str, float], ...]:
    runs = (zip(columns, run, strict=True) for run in zip(*columns.values(), strict=True))
    return tuple({name: v for name, v in run if v is not None} for run in runs)


def run_survey(
    plan: SurveyPlan, folder: Path, *, jobs: int = 1, say: Say = print, watch: Watch | None = None
) -> list[SurveyCell]:
    """Run the survey in ``folder``, or what is left of it; write and return its cells."""
    # The mark of a folder of a survey.
    write_text(folder / "survey.json", json.dumps({"command": plan.command}) + "\n")
    rows = {name: rows_of(name, source, plan, watch) for name, source in plan.places().items()}
    cells = {
        (name, cell): _opened(folder, name, cell, plan, rows[name])
        for cell, name in product(plan.cells, rows)
    }
    every = product(cells, plan.compared)
    left = [(*key, method) for key, method in every if method not in cells[key].methods]
    for number, (unit, result) in enumerate(_finished(left, rows, plan, jobs), 1):
        name, cell, method = unit
        cells[name, cell].methods[method] = result
        cells[name, cell].save(folder)
        mean = np.mean([run["mAP@class"] for run in result.figures])
        say(f"[{number}/{len(left)}] {name}.{cell} {method}: mAP@class {mean:.4f}")
    return list(cells.values())


def _finished(
    units: list[Unit], rows: Mapping[str, SurveyRows], plan: SurveyPlan, jobs: int
) -> Iterator[tuple[Unit, Surveyed]]:
    if jobs == 1:
        _take(rows)
        yield from ((unit, _surveyed(unit, plan)) for unit in units)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _take, (rows,)) as pool:
        running = {pool.submit(_surveyed, unit, plan): unit for unit in units}
        yield from ((running[done], done.result()) for done in as_completed(running))


def _opened(folder: Path, name: str, cell: str, plan: SurveyPlan, rows: SurveyRows) -> SurveyCell:
    """Return the cell of an earlier command, or an empty one; raise if it was made otherwise."""
    made = {
        "seeds": plan.seeds,
        "images": {split: len(x) for split, x in deal(rows, cell, 0).features.items()},
        "labels": len(rows.names),
        "features": rows.features.shape[1],
        "backbone": None if plan.frozen is None else plan.frozen.name,
        **{key: plan.budget[key] for key in ("steps", "batch_size", "validation")},
        "quick": plan.quick,
    }
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    facts = {"command": plan.command, "commit": commit(), "machine": machine, "made": made}
    file = folder / f"{name}.{cell}.json"
    if not file.is_file():
        return SurveyCell(name, cell, facts)
    survey_cell = SurveyCell.load(file)
    if survey_cell.facts["made"] != made:
        other = f"was started with other data, backbone or budget for {name}"
        raise SettingsError(f"{folder} {other}; choose another folder with -o")
    return survey_cell


def commit() -> str:
    """Return the commit of the source, where it is a checkout."""
    try:
        asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# Seeds share images. The variance of a mean over J seeds is that over seeds times
# 1 / J + test images / training images (Nadeau and Bengio 2003). Nemenyi's critical difference of
# mean ranks is q sqrt(k (k + 1) / 6 N) for k methods on N sets.


HIGHER = ("mAP@class", "macro F1", "micro F1")
PERCENT = (*HIGHER, "ACE before", "ACE after")
COLUMNS = (*HIGHER, "log loss before", "log loss after", "ACE before", "ACE after", "seconds")


def values_of(cell: SurveyCell, method: str, column: str) -> list[float]:
    """Return the figures of a method by seed; none where one of them is undefined."""
    runs = cell.methods[method].figures if method in cell.methods else ()
    return [run[column] for run in runs] if all(column in run for run in runs) else []


def inflation(cell: SurveyCell, seeds: int) -> float:
    """Return what the variance over seeds is multiplied by for the variance of a mean."""
    images = cell.facts["made"]["images"]
    return 1 / seeds + float(images["test"] / images["train"])


def ranks_of(cell: SurveyCell, column: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the rank of each method, 1 the best; means equal to four decimals share a rank."""
    sign = -1 if column in HIGHER else 1
    means = [fmean(values_of(cell, m, column) or [sign * inf]) for m in methods]
    losses = [inf if mean in (inf, -inf) else round(sign * mean, 4) for mean in means]
    from scipy.stats import rankdata

    return dict(zip(methods, rankdata(losses).tolist(), strict=True))


def critical_difference(methods: int, sets: int) -> float:
    """Return by how much mean ranks must differ, by Nemenyi's test at 5 %."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(0.95, methods, inf)) / sqrt(2)
    return quantile * sqrt(methods * (methods + 1) / (6 * sets))


def complete(cells: Sequence[SurveyCell]) -> list[SurveyCell]:
    """Return the cells that have as many methods as the largest, in the order of the survey."""
    most, order = max(len(cell.methods) for cell in cells), list(CELLS)
    kept = (cell for cell in cells if len(cell.methods) == most)
    return sorted(kept, key=lambda cell: (order.index(cell.cell), cell.data))


def page(cells: Sequence[SurveyCell], before: str) -> str:
    """Return the page: what goes before, then one table for everything known of labels."""
    lines = [before.rstrip(), ""]
    for name, words in CELLS.items():
        if here := [cell for cell in cells if cell.cell == name]:
            lines += [f"## {words[0].upper()}{words[1:]}", "", *_table(here), ""]
    return "\n".join(lines)


def _table(cells: Sequence[SurveyCell]) -> list[str]:
    methods = list(cells[0].methods)
    ranks = [ranks_of(cell, "mAP@class", methods) for cell in cells]
    mean_rank = {method: fmean(rank[method] for rank in ranks) for method in methods}
    lines = [_how(cells)]
    if len(cells) > 1:
        from scipy.stats import friedmanchisquare

        p = float(friedmanchisquare(*([rank[m] for rank in ranks] for m in methods)).pvalue)
        lines += [
            f"Friedman's test of equal ranks: p = {p:.1e}. The critical difference of mean ranks "
            f"of {len(methods)} methods is {critical_difference(len(methods), len(cells)):.1f}."
        ]
    header = ["method", "probabilities", "mean rank"]
    header += [f"mAP {cell.data}" for cell in cells] + [*COLUMNS[1:], "learning rates"]
    rows = []
    for method in sorted(methods, key=lambda name: (mean_rank[name], name)):
        left = method.removesuffix("+boostlu") in LEFT  # each of these is improper
        reading = "improper" if left else find_method(method).probabilities
        row = [f"`{method}`", reading, f"{mean_rank[method]:.1f}"]
        row += [_spread(cell, method, "mAP@class") for cell in cells]
        row += [_mean(cells, method, column) for column in COLUMNS[1:]]
        rows.append([*row, " ".join(_rate(cell, method) for cell in cells)])
    return [*lines, "", *table_lines(header, rows)]


def _how(cells: Sequence[SurveyCell]) -> str:
    parts = []
    for cell in cells:
        made = cell.facts["made"]
        images = " / ".join(f"{count:,}" for count in made["images"].values())
        parts.append(f"{cell.data} {images}, {made['labels']} labels")
    seeds = cells[0].facts["made"]["seeds"]
    return f"Images for training / validation / test: {'; '.join(parts)}. {seeds} seeds."


def interval(cell: SurveyCell, method: str, column: str) -> tuple[float, float]:
    """Return mean and half the corrected 95 % interval over seeds."""
    values = values_of(cell, method, column)
    if len(values) < 3:
        return fmean(values), inf
    half = stdtrit(len(values) - 1, 0.975) * stdev(values) * sqrt(inflation(cell, len(values)))
    return fmean(values), float(half)


def _spread(cell: SurveyCell, method: str, column: str) -> str:
    mean, half = interval(cell, method, column)
    return f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if half < inf else "")


def _mean(cells: Sequence[SurveyCell], method: str, column: str) -> str:
    found = [values_of(cell, method, column) for cell in cells]
    if not all(found):
        return "–"
    mean = fmean(fmean(values) for values in found)
    return f"{100 * mean:.1f}" if column in PERCENT else "∞" if mean == inf else f"{mean:.3f}"


def _rate(cell: SurveyCell, method: str) -> str:
    """Return the chosen learning rate, marked where it is the last that was tried on a side."""
    chosen, tried = cell.methods[method].rate, list(map(float, cell.methods[method].tries))
    near = min(tried, key=lambda lr: abs(lr - chosen))
    edge = "!" if near in (min(tried), max(tried)) and len(tried) >= len(RATES) else ""
    return f"{chosen:.2g}{edge}"
