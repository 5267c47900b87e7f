"""The survey: every method on three data sets, with all labels known, a tenth, or one per image.

    data     coco      photos, features of a frozen backbone
             scene     294 features that come with the data (Mulan)
             cifar100  pictures with two labels of 120, the fine class and the coarse one
    known    full      all labels of training images
             tenth     every entry with chance 1/10, the rest unknown
             single    one present label of each image (Cole et al.'s draw), the rest unknown

Validation and test keep all labels. At most ``ROWS`` images of a split are used, drawn once, and
features are standardised by the training rows. All methods share one recipe, about ``STEPS`` steps
of a linear head (average-k: its two heads), and have the same number of tries; the best mAP on
validation wins. Every cell is a comparison of its own (``compare``), so that a survey goes on where
it was stopped. Runs are measured where they ran, those of the chosen settings alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable, load, with_validation
from labelwise.data.derived import keep_known, single_positive
from labelwise.data.feature_files import write_features
from labelwise.errors import DataError, SettingsError
from labelwise.methods import METHODS
from labelwise.papers.compare import ComparisonPlan, Measuring, compare
from labelwise.papers.comparison import Comparison, show_figure
from labelwise.papers.jobs import (
    Executor,
    InProcess,
    LocalProcesses,
    TrainingJob,
    run_job,
)
from labelwise.papers.measures import MEASURES, FinishedRun, image_effects, measure
from labelwise.papers.protocols import DATASETS, FROZEN
from labelwise.papers.sources import Frozen, holds_files, with_features
from labelwise.papers.statistics import SeedMean
from labelwise.pictures import FeatureRows
from labelwise.pictures.memory import scaled
from labelwise.system.files import replacing
from labelwise.system.progress import Watch
from labelwise.training.features import scaling_of
from labelwise.training.settings import Settings, read_settings
from labelwise.types import nearest

# What a survey found, as plain data and as a page.
#
# In every cell (a data set and what is known of its labels) methods are ranked by each measure;
# equal ones share a rank. A method is *level* with the best where the difference is not
# significant: all pairs are decided together by Shaffer's rule, against the spread over seeds and
# over test images. For the power of promises only the spread over seeds is known, so no difference
# is called significant there.


COLUMNS = (
    *("mAP@class", "log loss before", "log loss after", "ACE before", "ACE after"),
    "promised",
)
JUDGED = tuple(name for name in COLUMNS if name != "promised")
RANKED = ("mAP@class", "log loss after", "ACE before", "promised")
RESULTS, PAGE = "survey.json", "survey.md"
PICTURES = ("image_size", "squash")  # settings of the backbone of photos, idle without one
LEVEL = "≈"
KNOWN_WORDS = {
    "full": "all labels known",
    "tenth": "a tenth of the entries known",
    "single": "one present label known per image",
}
DIGITS = 6


@dataclass(frozen=True)
class Surveyed:
    """One figure of a method: its mean, half its interval (None: too few seeds), rank, level."""

    mean: float
    half: float | None
    rank: int
    level: bool

    def text(self, name: str, seeds: int) -> str:
        """Return the figure as the page shows it: the best bold, those level with it marked."""
        spread = float("inf") if self.half is None else self.half
        shown = show_figure(
            SeedMean(self.mean, self.mean - spread, self.mean + spread, seeds),
            MEASURES[name].percent,
        )
        if self.rank == 1:
            return f"**{shown}**"
        return f"{shown} {LEVEL}" if self.level else shown


@dataclass(frozen=True)
class SurveyCell:
    """A data set and what is known of it: images by split, labels, figures by method and column."""

    data: str
    known: str
    images: Mapping[str, int]
    labels: int
    methods: Mapping[str, Mapping[str, Surveyed]]

    @property
    def name(self) -> str:
        """The name of the cell."""
        return f"{self.data}.{self.known}"

    @classmethod
    def of(
        cls, data: str, known: str, images: Mapping[str, int], labels: int, found: Comparison
    ) -> "SurveyCell":
        """Return the cell of a comparison."""
        methods: dict[str, dict[str, Surveyed]] = {name: {} for name in found.figures}
        for column in COLUMNS:
            means = {m: one for m, one in found.intervals(column).items() if isfinite(one.mean)}
            sign = -1.0 if MEASURES[column].higher_is_better else 1.0
            losses = {method: sign * one.mean for method, one in means.items()}
            level = set()
            if column in JUDGED:
                gaps = found.differences(column)
                level = {gap.first for gap in gaps if not gap.distinguishable}
            for method, one in means.items():
                methods[method][column] = Surveyed(
                    _rounded(one.mean),
                    _rounded(one.half_width) if isfinite(one.half_width) else None,
                    1 + sum(loss < losses[method] for loss in losses.values()),
                    method in level,
                )
        return cls(data, known, dict(images), labels, methods)

    def markdown(self, seeds: int) -> list[str]:
        """Return the cell as a table, the best mAP first."""
        last = len(self.methods) + 1
        order = sorted(
            self.methods,
            key=lambda m: self.methods[m]["mAP@class"].rank if self.methods[m] else last,
        )
        header = [f"{name} {'↑' if MEASURES[name].higher_is_better else '↓'}" for name in COLUMNS]
        rows = [
            [
                f"`{method}`",
                *(
                    self.methods[method][name].text(name, seeds)
                    if name in self.methods[method]
                    else "–"
                    for name in COLUMNS
                ),
            ]
            for method in order
        ]
        return _table(["method", *header], rows)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Survey:
    """The cells there are, by name, and how they were made."""

    cells: Mapping[str, SurveyCell]
    facts: Mapping[str, Any]

    def with_cell(self, cell: SurveyCell) -> "Survey":
        """Return the survey with one more cell."""
        return Survey({**self.cells, cell.name: cell}, self.facts)

    def joined(self, other: "Survey") -> "Survey":
        """Return the cells of both; raise if they were made otherwise.

        How photos became features must agree only where both have photos.
        """
        with_photos = self if self.facts["backbone"] else other
        both = self.facts["backbone"] and other.facts["backbone"]
        alike = self.facts == other.facts if both else _apart(self.facts) == _apart(other.facts)
        if not alike:
            raise DataError(
                "surveys are joined if their seeds, tries and settings are the same, got "
                f"{dict(self.facts)} and {dict(other.facts)}"
            )
        return Survey({**self.cells, **other.cells}, with_photos.facts)

    def save(self, folder: Path) -> None:
        """Write ``survey.json`` and ``survey.md``."""
        for name, text in ((RESULTS, self.plain()), (PAGE, self.markdown())):
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def plain(self) -> str:
        """Return the survey as JSON."""
        cells = {
            name: {
                "images": cell.images,
                "labels": cell.labels,
                "methods": {
                    method: {c: [f.mean, f.half, f.rank, f.level] for c, f in figures.items()}
                    for method, figures in cell.methods.items()
                },
            }
            for name, cell in self.cells.items()
        }
        lines = json.dumps({"facts": dict(self.facts), "cells": cells}, allow_nan=False)
        return lines.replace('"], "', '"],\n"').replace("]}, ", "]},\n") + "\n"

    @staticmethod
    def load(file: Path) -> "Survey":
        """Return the survey that :meth:`save` wrote."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            cells = {}
            for name, one in content["cells"].items():
                data, _, known = name.rpartition(".")
                methods = {
                    method: {column: Surveyed(*figure) for column, figure in figures.items()}
                    for method, figures in one["methods"].items()
                }
                cells[name] = SurveyCell(data, known, one["images"], one["labels"], methods)
            return Survey(cells, content["facts"])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{file} is not the result of a survey ({error})") from None

    def markdown(self) -> str:
        """Return all tables as Markdown: mean ranks first, then every cell."""
        lines = [self._how(), ""]
        for known in dict.fromkeys(cell.known for cell in self.cells.values()):
            chosen = [cell for cell in self.cells.values() if cell.known == known]
            sets = ", ".join(cell.data for cell in chosen)
            lines += [f"## Mean ranks, {KNOWN_WORDS[known]}", ""]
            lines += [f"Over {sets}; in brackets on how many of them a method is best or level "]
            lines[-1] += "with the best."
            lines += ["", *_ranks(chosen), ""]
        for cell in self.cells.values():
            counts = ", ".join(f"{count:,} {split}" for split, count in cell.images.items())
            lines += [f"## {cell.data}, {KNOWN_WORDS[cell.known]}", ""]
            lines += [f"Images: {counts}; {cell.labels} labels.", ""]
            lines += [*cell.markdown(self.facts["seeds"]), ""]
        return "\n".join(lines)

    def _how(self) -> str:
        facts = self.facts
        tries = "1 try" if facts["tries"] == 1 else f"{facts['tries']} tries"
        words = f"{facts['seeds']} seeds, {tries} of each method"
        if facts["backbone"]:
            words += f", photos as features of {facts['backbone']}"
        changed = ", ".join(f"{key} {value}" for key, value in facts["changed"].items())
        words += f", set: {changed}" if changed else ""
        return f"Made with {words}{', the quick budget' if facts['quick'] else ''}."


def _ranks(cells: Sequence[SurveyCell]) -> list[str]:
    """Return the table of mean ranks over cells, by mAP; a method without a figure is last."""
    names = list(dict.fromkeys(method for cell in cells for method in cell.methods))
    ranks: dict[str, list[float]] = {}
    rows = []
    for method in names:
        shown, ranks[method] = [f"`{method}`"], []
        for column in RANKED:
            figures = [cell.methods.get(method, {}).get(column) for cell in cells]
            places = [
                float(len(cell.methods)) if figure is None else float(figure.rank)
                for cell, figure in zip(cells, figures, strict=True)
            ]
            ranks[method].append(float(np.mean(places)))
            first = sum(f is not None and (f.rank == 1 or f.level) for f in figures)
            none = all(figure is None for figure in figures)
            told = f" ({first})" if column in JUDGED else ""
            shown.append("–" if none else f"{ranks[method][-1]:.1f}{told}")
        rows.append(shown)
    rows.sort(key=lambda row: ranks[row[0].strip("`")])
    return _table(["method", *RANKED], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]


def _apart(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts apart from those of photos."""
    changed = {key: value for key, value in facts["changed"].items() if key not in PICTURES}
    return {**facts, "backbone": None, "changed": changed}


Say = Callable[[str], None]
SETS = ("coco", "scene", "cifar100")
KNOWN: dict[str, Callable[[LabelTable], LabelTable]] = {
    "full": lambda train: train,
    "tenth": lambda train: keep_known(train, 0.1),
    "single": lambda train: single_positive(train),
}
ROWS = {"train": 10_000, "val": 2_000, "test": 5_000}
QUICK_ROWS = {"train": 600, "val": 300, "test": 600}
STEPS, QUICK_STEPS = 1000, 150
TRIES, QUICK_TRIES = 3, 1
BATCH, QUICK_BATCH = 128, 64
HELD_OUT = 0.2  # of train, where a set has no validation images
READ_BY: dict[str, dict[str, Any]] = {"cifar100": {"labels": "both"}}
RECIPE: dict[str, Any] = {
    **FROZEN,
    "calibrate": "none",
    "rule": "0.5",
    "recipe.keep": "last",
    "recipe.metric": "map",
    "recipe.optimizer.lr": 1e-3,
    "hardware.accelerator": "cpu",  # a head of this size trains no faster on a GPU
}
FIGURES, EFFECTS = "survey-figures.json", "survey-effects.npz"


@dataclass(frozen=True)
class SurveyPlan:
    """What is surveyed: sources by data set, methods, seeds, the backbone of photos, the budget.

    A set without a source is looked for below ``root``.
    """

    root: Path = Path("data")
    sources: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    frozen: Frozen | None = None
    quick: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.sources:
            if name not in SETS:
                raise SettingsError(
                    f"the survey has the data sets {', '.join(SETS)}, got {name!r}"
                    f"{nearest(name, SETS)}"
                )
        own = {"data", "method", "seed", "features", "backbone", "options"}
        for key in self.overrides:
            if key in own or key.startswith("options."):
                raise SettingsError(f"{key} is chosen by the survey itself; leave out --set {key}")

    @property
    def tries(self) -> int:
        """How many settings are tried for each method."""
        return QUICK_TRIES if self.quick else TRIES

    @property
    def rows(self) -> dict[str, int]:
        """The most images of each split."""
        return QUICK_ROWS if self.quick else ROWS

    @property
    def compared(self) -> tuple[str, ...]:
        """The methods, in the order of the catalogue."""
        return self.methods or tuple(METHODS)

    def places(self) -> dict[str, str]:
        """Return the source of each data set that is there; raise if none is."""
        found = {}
        for name in SETS:
            if name in self.sources:
                found[name] = self.sources[name]
            elif name == "scene" and (self.root / "scene.npz").is_file():
                found[name] = f"features:{self.root / 'scene.npz'}"
            elif name in DATASETS and holds_files(self.root / DATASETS[name].folder):
                found[name] = f"{DATASETS[name].format}:{self.root / DATASETS[name].folder}"
        if self.sources:
            found = {name: place for name, place in found.items() if name in self.sources}
        if not found:
            raise DataError(
                f"the survey needs data: put into {self.root} the folders "
                f"{DATASETS['coco'].folder} and {DATASETS['cifar100'].folder} or the file "
                "scene.npz, or name sources as --data coco=FILE"
            )
        return found

    def settings(self, table: Path, train_rows: int) -> Settings:
        """Return the recipe on a table of so many training rows."""
        batch = int(self.overrides.get("batch_size", QUICK_BATCH if self.quick else BATCH))
        steps = QUICK_STEPS if self.quick else STEPS
        epochs = max(2, ceil(steps / max(train_rows // batch, 1)))
        given = {key: value for key, value in self.overrides.items() if key not in PICTURES}
        recipe = {**RECIPE, "batch_size": batch, "recipe.epochs": epochs, **given}
        return read_settings(None, {"data": f"features:{table}", **recipe})


def run_survey(
    plan: SurveyPlan, folder: Path, *, jobs: int = 1, say: Say = print, watch: Watch | None = None
) -> Survey:
    """Run the survey in ``folder``, or what is left of it; write and return what came out."""
    executor: Executor = LocalProcesses(jobs, run_and_measure) if jobs > 1 else _one_by_one
    trying: Executor = LocalProcesses(jobs) if jobs > 1 else InProcess()
    judged = Measuring(_stored_figures, _stored_effects, JUDGED)
    survey = Survey({}, _facts(plan))
    for name, place in plan.places().items():
        for known, file in _tables(plan, name, place, folder / "tables", watch).items():
            table = load(f"features:{file}")
            counts = {split: len(part) for split, part in table.splits().items()}
            base = plan.settings(file, counts["train"])
            comparison = compare(
                ComparisonPlan(base, plan.compared, plan.seeds, plan.tries),
                folder / f"{name}.{known}",
                executor=executor,
                trying=trying,
                measuring=judged,
                say=_named(say, f"{name}.{known}"),
                watch=watch,
            )
            cell = SurveyCell.of(name, known, counts, len(table.space), comparison)
            survey = survey.with_cell(cell)
            survey.save(folder)  # whatever is done stands there if the rest is lost
    return survey


def _named(say: Say, cell: str) -> Say:
    return lambda text: say(f"{cell} {text}")


def _facts(plan: SurveyPlan) -> dict[str, Any]:
    """Return what the page says about how it was made."""
    return {
        "seeds": len(plan.seeds),
        "tries": plan.tries,
        "backbone": None if plan.frozen is None else plan.frozen.name,
        "quick": plan.quick,
        "changed": {key: str(value) for key, value in plan.overrides.items()},
    }


def _tables(
    plan: SurveyPlan, name: str, place: str, folder: Path, watch: Watch | None
) -> dict[str, Path]:
    """Return the files of a data set by what is known, written where they are not there yet."""
    files = {known: folder / f"{name}.{known}.npz" for known in KNOWN}
    frozen = None if plan.frozen is None else asdict(plan.frozen)
    stated = json.dumps({"source": place, "frozen": frozen, "rows": plan.rows}, indent=1)
    facts = folder / f"{name}.json"
    if facts.is_file():
        if facts.read_text(encoding="utf-8") != stated:
            raise SettingsError(
                f"{folder.parent} was begun with other data, backbone or budget for {name}; choose "
                "another folder with -o"
            )
        return files
    splits = _prepared(plan, name, place, watch)
    for known, hide in KNOWN.items():
        write_features(_joined({**splits, "train": hide(splits["train"])}, name), files[known])
    with replacing(facts) as temporary:
        temporary.write_text(stated, encoding="utf-8")
    return files


def _prepared(
    plan: SurveyPlan, name: str, place: str, watch: Watch | None
) -> dict[str, LabelTable]:
    """Return the splits of a data set, as standardised features of the rows that are used."""
    by_name = place.startswith(f"{name}:") and name in READ_BY
    table = load(place, **(READ_BY[name] if by_name else {}))
    if not isinstance(table.images, FeatureRows) and plan.frozen is None:
        raise SettingsError(
            f"{name} holds photos, and the survey trains heads on frozen features; name their "
            "backbone with --features and its weights with --weights"
        )
    table = with_validation(table, share=HELD_OUT)
    table.require_hard("the survey hides labels, which must be 0 or 1")
    if table.split is None or not {"train", "val", "test"} <= set(table.split.tolist()):
        raise DataError(f"{place}: the survey needs the splits train and test")
    rows = [_drawn(table.split, split, most) for split, most in plan.rows.items()]
    table = table.subset(np.sort(np.concatenate(rows)))
    if plan.frozen is not None and not isinstance(table.images, FeatureRows):
        table = with_features(table, plan.frozen, watch=watch)
    splits = table.splits()
    features = {split: _features(part) for split, part in splits.items()}
    mean, scale = scaling_of(features["train"])
    return {
        split: replace(part, images=FeatureRows(scaled(features[split], mean, scale), part.ids))
        for split, part in splits.items()
    }


def _joined(splits: Mapping[str, LabelTable], name: str) -> LabelTable:
    """Return the splits as one table of features."""
    targets = [part.targets() for part in splits.values()]
    known = [np.ones(y.shape, np.bool_) if seen is None else seen for y, seen in targets]
    ids = [one for part in splits.values() for one in part.ids]
    return LabelTable.from_arrays(
        next(iter(splits.values())).space,
        FeatureRows(np.concatenate([_features(part) for part in splits.values()]), ids),
        np.concatenate([labels for labels, _ in targets]),
        np.concatenate(known),
        split=np.repeat(list(splits), [len(part) for part in splits.values()]),
        name=name,
    )


def _drawn(split: NDArray[np.str_], name: str, most: int) -> NDArray[np.int64]:
    """Return the rows of a split, at most so many of them, the same at every call."""
    rows = np.flatnonzero(split == name)
    return rows if len(rows) <= most else np.random.default_rng(0).permutation(rows)[:most]


def _features(table: LabelTable) -> NDArray[np.float32]:
    if not isinstance(table.images, FeatureRows):
        raise TypeError(f"the rows of {table.name} must be features")
    return np.asarray(table.images.features)


def run_and_measure(job: TrainingJob, watch: Watch | None = None) -> TrainingJob:
    """Train one job, or what is left of it, and keep its figures beside it."""
    done = run_job(job, watch=watch)
    if (done.folder / FIGURES).is_file():
        return done
    run = FinishedRun(done.folder)
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # of labels that a method ranks no better than chance
        effects, figures = image_effects(run), measure(run, queries=0)
    with replacing(done.folder / EFFECTS) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **effects)  # type: ignore[arg-type]
    with replacing(done.folder / FIGURES) as temporary:
        temporary.write_text(json.dumps(figures), encoding="utf-8")
    return done


def _one_by_one(jobs: Sequence[TrainingJob], watch: Watch | None) -> Iterator[TrainingJob]:
    """Run and measure jobs one after the other in this process."""
    return (run_and_measure(job, watch) for job in jobs)


def _stored_figures(run: FinishedRun) -> dict[str, float]:
    figures: dict[str, float] = json.loads((run.folder / FIGURES).read_text(encoding="utf-8"))
    return figures


def _stored_effects(run: FinishedRun) -> dict[str, NDArray[np.float64]]:
    with np.load(run.folder / EFFECTS) as arrays:
        return {name: arrays[name] for name in arrays.files}
