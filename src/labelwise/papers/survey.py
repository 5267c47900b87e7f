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
from math import ceil
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable, load, with_validation
from labelwise.data.feature_files import write_features
from labelwise.data.observe import keep_known, single_positive
from labelwise.errors import DataError, SettingsError
from labelwise.methods import METHODS
from labelwise.papers.compare import ComparisonPlan, Measuring, compare
from labelwise.papers.jobs import (
    Executor,
    InProcess,
    LocalProcesses,
    TrainingJob,
    run_job,
)
from labelwise.papers.measures import FinishedRun, image_effects, measure
from labelwise.papers.protocols import DATASETS, FROZEN
from labelwise.papers.sources import Frozen, holds_files, with_features
from labelwise.papers.survey_page import JUDGED, PICTURES, Survey, SurveyCell
from labelwise.pictures import FeatureRows
from labelwise.pictures.mapped import scaled
from labelwise.system.files import replacing
from labelwise.system.progress import Watch
from labelwise.training.features import scaling_of
from labelwise.training.settings import Settings, read_settings
from labelwise.types import nearest

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
