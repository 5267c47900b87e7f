"""Reproduce: a paper's table run here, its printed figures beside ours.

The data is looked for below a root folder, in the layout its authors publish; another source may
be given instead, and is then named as a deviation. Where the quick recipe trains heads on frozen
features, these are computed once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, isinf
from pathlib import Path

from labelwise.base.files import together, write_text
from labelwise.base.progress import Watch
from labelwise.base.text import one_line_of
from labelwise.errors import DataError, SettingsError
from labelwise.learn.methods import METHODS, check_options, make_objective
from labelwise.papers.comparison import INFINITE, SeedMean, seed_mean, show_figure, table_page
from labelwise.papers.jobs import (
    Executor,
    InProcess,
    TrainingJob,
    figures_of,
    run_jobs,
)
from labelwise.papers.protocols import DATASETS, EXPERIMENTS, FROZEN, Experiment
from labelwise.papers.sources import (
    LAST_FIFTH,
    NO_SPLIT,
    OWN_SPLIT,
    STRATIFIED,
    Frozen,
    ValidationImages,
    divided,
    holds_files,
    with_features,
)
from labelwise.pictures import ImageSource
from labelwise.tables import LabelTable, load
from labelwise.training.settings import Settings, flattened, read_settings
from labelwise.types import nearest

# Deviations: where a run's settings differ from what the paper states, or, where it says nothing,
# from our own protocol. Beside keys of the settings file, a protocol has these facts:
#
#     held_out         the share of the training images taken for validation
#     decayed          which parameters weight decay acts on
#     weights_tag      which of a library's pretrained weights the backbone starts from
#     scores           what average-K thresholds in its first column
#     split            who chose the validation images
#     image_order      the order in which single positives are drawn
#     chosen_on        the images by which the deployed epoch is chosen
#     pooled           what of a vision transformer's tokens the head reads


SMALL_INPUTS = {"resnet18-32", "vgg16-32", "densenet40-12", "densenet40-40"}  # 32 x 32 pixels
OURS = frozenset({"hardware", "seed", "data"})  # no part of a protocol


@dataclass(frozen=True)
class Deviation:
    """One thing that differs from the paper; else ``ours`` is our protocol's."""

    rows: tuple[str, ...]
    key: str
    published: object
    here: object
    stated: bool = True
    ours: object = None

    def __str__(self) -> str:
        if self.stated:
            return f"{self.key}: published {_shown(self.published)}, here {_shown(self.here)}"
        return f"{self.key}: not published, ours {_shown(self.ours)}, here {_shown(self.here)}"


def published_protocol(experiment: Experiment, row: str) -> dict[str, object]:
    """Return what the paper states for a row, by key; nothing for a row that it does not print."""
    if row not in experiment.published.rows:
        return {}
    own = experiment.rows[row]
    given = flattened({**experiment.protocol, **own.values}).items()
    stated = {key: value for key, value in given if key not in experiment.unstated}
    return {**stated, **flattened(experiment.stated), **flattened(own.stated)}


def facts_of(
    settings: Settings,
    experiment: Experiment,
    row: str,
    data: str | None = None,
    held_out: ValidationImages | None = None,
) -> dict[str, object]:
    """Return the same keys as the run has them; ``data`` is a source in place of the paper's."""
    held = _held_out(experiment, row, data, held_out)
    in_order = data is None and experiment.data_options.get("string_order", False)
    best = settings.recipe.keep == "best"
    facts = {
        **flattened(settings.model_dump(mode="json", exclude=set(OURS))),
        "held_out": held.share,
        "split": held.chosen_by,
        "image_order": "ids as text" if in_order else "as the table has them",
        "chosen_on": "validation images" if best else "none, the last epoch is deployed",
        "pooled": "mean over patches",
        "decayed": "weights, not biases and norms",
        "scores": "softmax",
        "weights_tag": _weights_tag(settings),
        "data": data or experiment.data,
    }
    if settings.image_size is None and settings.backbone in SMALL_INPUTS:
        facts["image_size"] = 32
    if method := METHODS.get(settings.method):
        facts = {f"options.{name}": value for name, value in method.options.items()} | facts
        facts["head"] = settings.head or method.head
    return facts


def _held_out(
    experiment: Experiment, row: str, data: str | None, found: ValidationImages | None
) -> ValidationImages:
    """Return what is held out for a row: as ``found`` in the data, or as the row will take it."""
    alone = experiment.rows[row].hold_out and not experiment.validation
    if found is not None and (not alone or found.chosen_by == OWN_SPLIT):
        return found
    if experiment.one_positive:
        return ValidationImages(0.2, LAST_FIFTH)
    if DATASETS[experiment.data].has_validation and data is None:
        return ValidationImages(0.0, OWN_SPLIT)
    if experiment.validation or alone:
        return ValidationImages(0.1, STRATIFIED)
    return ValidationImages(0.0, NO_SPLIT)


def _weights_tag(settings: Settings) -> str | None:
    if settings.weights is None:
        return None
    if settings.backbone == "vgg16-fc7" and settings.weights == "pretrained":
        return "torchvision IMAGENET1K_V1"
    if settings.backbone.startswith("torchvision/"):
        from torchvision.models import get_model_weights

        tags = get_model_weights(settings.backbone.removeprefix("torchvision/"))
        if settings.weights == "pretrained":
            return f"torchvision {tags.DEFAULT.name}"
        if settings.weights in tags.__members__:
            return f"torchvision {settings.weights}"
    if settings.weights == "pretrained" and "_in22k" in settings.backbone:
        return "ImageNet-22k"
    return settings.weights


def _same(published: object, here: object) -> bool:
    if isinstance(published, int | float) and isinstance(here, int | float):
        return abs(published - here) <= 1e-12 * max(abs(published), abs(here))
    if isinstance(published, Sequence) and isinstance(here, Sequence) and len(published):
        return list(published) == list(here)
    return bool(published == here)


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


Say = Callable[[str], None]
SHOWN = 3  # figures of a run that are shown when it is done


@dataclass(frozen=True)
class Request:
    """What to run: a table, its data, the budget, seeds, rows, and settings to override."""

    table: str
    root: Path = Path("data")
    source: str | None = None
    quick: bool = False
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: tuple[str, ...] = ()
    frozen: Frozen | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        return find_experiment(self.table)

    @property
    def data(self) -> str:
        dataset = DATASETS[self.experiment.data]
        return self.source or f"{dataset.format}:{self.root / dataset.folder}"

    def chosen_rows(self) -> tuple[str, ...]:
        """Return the rows to run: those named and what they start from, else all in the budget."""
        rows = self.experiment.rows
        for name in self.rows:
            if name not in rows:
                raise SettingsError(f"{self.table} has no row {name!r}{nearest(name, rows)}")
            if self.quick and rows[name].runs == "not with --quick":
                raise SettingsError(f"row {name!r} of {self.table} has no quick recipe")
        unasked = {"if named", *({"not with --quick"} if self.quick else ())}
        named = self.rows or (name for name, row in rows.items() if row.runs not in unasked)
        pairs = ((rows[name].after, name) for name in named)
        return tuple(dict.fromkeys(name for pair in pairs for name in pair if name is not None))

    def settings(self, row: str, seed: int) -> Settings:
        experiment = self.experiment
        values = {"data": self.data, **experiment.protocol}
        if self.source is None:
            values |= {f"data_options.{k}": value for k, value in experiment.data_options.items()}
        values |= experiment.quick if self.quick else {}
        values |= experiment.rows[row].values
        values |= FROZEN if self.frozen else {}
        instead = {"data": "--data", "seed": "--seeds", experiment.seed_key: "--seeds"}
        for key in self.overrides:
            if key in instead:
                raise SettingsError(f"{key} is not set by --set here but by {instead[key]}")
        values |= {"seed": seed, **self.overrides}
        if experiment.seed_key is not None:
            values[experiment.seed_key] = seed
        return read_settings(None, values)

    def without_changes(self) -> "Request":
        """Return the request of the same rows and data by our full protocol."""
        return replace(self, quick=False, rows=self.chosen_rows(), frozen=None, overrides={})

    def features(self, settings: Settings) -> Frozen | None:
        if self.frozen is None:
            return None
        return replace(self.frozen, image_size=settings.image_size, squash=settings.squash)

    def deviations(self, held_out: ValidationImages | None = None) -> list[str]:
        deviations = list(self.experiment.deviations)
        notes = {name: self.experiment.rows[name].note for name in self.chosen_rows()}
        deviations += [f"{name}: {note}" for name, note in notes.items() if note]
        if self.source is not None:
            deviations.append(f"Data: {self.source} in place of the paper's.")
        if self.frozen is not None:
            deviations.append(f"Heads on the frozen features of {self.frozen.name}.")
        unstated = sorted(self.experiment.unstated & set(self.experiment.protocol))
        if unstated:
            deviations.append(f"Not in the paper's text, so chosen here: {', '.join(unstated)}.")
        rows = self.chosen_rows()
        for deviation in self.protocol_deviations(held_out):
            some = "" if len(deviation.rows) == len(rows) else f" ({', '.join(deviation.rows)})"
            deviations.append(f"{deviation}{some}.")
        return deviations

    def protocol_deviations(self, held_out: ValidationImages | None = None) -> list[Deviation]:
        """Return where the settings of the rows to run differ from the published protocol."""
        experiment, seed = self.experiment, self.seeds[0]
        found: dict[str, tuple[Deviation, list[str]]] = {}
        for row in self.chosen_rows():
            published = published_protocol(experiment, row)
            facts, ours = (
                facts_of(request.settings(row, seed), experiment, row, self.source, held_out)
                for request in (self, self.without_changes())
            )
            for key in dict.fromkeys([*published, *facts, *ours]):
                own, here = None if key in published else ours.get(key), facts.get(key)
                if not _same(published.get(key, own), here):
                    one = Deviation((), key, published.get(key), here, key in published, own)
                    found.setdefault(repr(one), (one, []))[1].append(row)
        return [replace(deviation, rows=tuple(rows)) for deviation, rows in found.values()]


@dataclass(frozen=True)
class Reproduction:
    """The printed table and ours: ``ours[row][column]`` over seeds, and how many runs are left."""

    request: Request
    ours: Mapping[str, Mapping[str, SeedMean]]
    left: int = 0
    held_out: ValidationImages | None = None

    def deviations(self) -> list[str]:
        return self.request.deviations(self.held_out)

    def verdicts(self) -> list[str]:
        seeds = len(self.request.seeds)
        judged = (claim.verdict(self.ours, seeds) for claim in self.request.experiment.claims)
        return [sentence for sentence in judged if sentence is not None]

    @property
    def title(self) -> str:
        source = self.request.source
        return self.request.experiment.published.title + (f"; ours on {source}" if source else "")

    def cells(self) -> tuple[list[str], list[list[str]]]:
        published = self.request.experiment.published
        own = {name: None for columns in self.ours.values() for name in columns}
        names = [name for name in published.columns if name in own]
        names += [name for name in own if name not in names]
        rows = []
        undefined = seed_mean(())
        for row, columns in self.ours.items():
            printed = dict(zip(published.columns, published.rows.get(row, ()), strict=False))
            figures = [printed.get(name) for name in names]
            rows.append([row, "paper", *("–" if f is None else f"{f:g}" for f in figures)])
            cells = (show_figure(columns.get(name, undefined), percent=False) for name in names)
            rows.append(["", "ours", *cells])
        return ["row", "", *names], rows

    def markdown(self) -> str:
        left = f"{self.left} runs are left." if self.left else ""
        remark = self.request.experiment.published.remark
        notes = [note for note in (left, *self.verdicts(), remark, *self.deviations()) if note]
        seeds = f"Seeds {', '.join(map(str, self.request.seeds))}."
        return table_page(self.title, *self.cells(), notes, seeds)


INSTEAD = {  # of tables that left
    "002-tableA": "labelwise train SET --features NAME --weights FILE --method softmax",
    **dict.fromkeys(("001-table2", "002-tableCa"), "labelwise data describe TABLE"),
    **dict.fromkeys(("000-fig4", "003-fig3", "004-fig1"), "labelwise papers run 000-fig1"),
}


def find_experiment(name: str) -> Experiment:
    """Return the cell of that name, the first of a table's; an unknown one says what is near."""
    if name in INSTEAD:
        raise SettingsError(f"{name} is no longer a table here; use `{INSTEAD[name]}`")
    cells = cells_of(name)
    if not cells:
        known = cells_of(name.partition(".")[0]) or EXPERIMENTS.values()
        names = dict.fromkeys(cell.name if "." in name else cell.table for cell in known)
        raise SettingsError(f"there is no table {name!r}{nearest(name, names)}")
    return cells[0]


def cells_of(name: str) -> list[Experiment]:
    """Return the cells whose name is this one or goes on after it with a point."""
    if name in EXPERIMENTS:
        return [EXPERIMENTS[name]]
    return [experiment for key, experiment in EXPERIMENTS.items() if key.startswith(f"{name}.")]


def has_data(experiment: Experiment, root: Path) -> bool:
    """Return whether the data of a cell is below ``root``."""
    return holds_files(root / DATASETS[experiment.data].folder)


def where_to_put(experiment: Experiment, root: Path) -> str:
    """Say what to put where, so that the experiment can run."""
    dataset = DATASETS[experiment.data]
    return f"put into {root / dataset.folder}: {dataset.how_to_get}"


def jobs_of(request: Request, folder: Path) -> dict[tuple[str, int], TrainingJob]:
    """Return the run of every row and seed; rows that train the same share one run."""
    experiment = request.experiment
    distinct: dict[str, TrainingJob] = {}
    jobs: dict[tuple[str, int], TrainingJob] = {}
    for row in request.chosen_rows():
        for seed in request.seeds:
            settings = request.settings(row, seed)
            check_options(settings.method, settings.options)
            if (after := experiment.rows[row].after) is not None:
                start = {"start": str(jobs[after, seed].folder)}
                settings = settings.model_copy(update=start)
            job = TrainingJob(
                settings,
                folder / row / f"seed-{seed}",
                hold_out=experiment.validation or experiment.rows[row].hold_out,
                one_positive=experiment.one_positive,
                frozen=request.features(settings),
            )
            jobs[row, seed] = distinct.setdefault(settings.model_dump_json(), job)
    return jobs


def open_data(request: Request, watch: Watch | None = None) -> tuple[LabelTable, ValidationImages]:
    """Return the table of a request's first seed, and who chose its validation images."""
    experiment = request.experiment
    if request.source is None and not has_data(experiment, request.root):
        raise DataError(f"{request.table} needs data: {where_to_put(experiment, request.root)}")
    settings = request.settings(request.chosen_rows()[0], request.seeds[0])
    stored = DATASETS[experiment.data].holds_features and request.source is None
    if settings.backbone == "identity" and request.frozen is None and not stored:
        raise SettingsError(
            f"the quick recipe of {request.table} trains on frozen features; name their backbone "
            "with --features and its weights with --weights"
        )
    frozen = request.features(settings)
    try:
        table = load(settings.data, **settings.data_options)
    except DataError as error:
        if request.source is not None:
            raise
        raise DataError(f"{error}; {where_to_put(experiment, request.root)}") from error
    single = experiment.one_positive
    parted = divided(table, hold_out=experiment.validation, one_positive=single)
    held_out = ValidationImages.of(table, parted, single)
    _check_rows(request, parted)
    return parted if frozen is None else with_features(parted, frozen, watch=watch), held_out


def _check_rows(request: Request, table: LabelTable) -> None:
    """Raise if a row's options, or soft labels, do not suit its method, before it is costly."""
    facts = replace(table.facts(), num_images=1)  # nothing is kept for every image yet
    for row in request.chosen_rows():
        settings = request.settings(row, request.seeds[0])
        try:
            objective = make_objective(settings.method, facts, **settings.options)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"method {settings.method!r} of the row {row!r}: {one_line_of(error)}"
            ) from None
        if not objective.soft_labels:
            table.require_hard(
                f"the method {settings.method!r} of the row {row!r} needs labels of 0 and 1; "
                "name other rows with --rows"
            )


def photos_of(request: Request) -> ImageSource:
    """Return the pictures of a request's data, by their ids, whatever features were trained on."""
    settings = request.settings(request.chosen_rows()[0], request.seeds[0])
    return load(settings.data, **settings.data_options).images


def reproduce(
    request: Request,
    folder: Path,
    *,
    executor: Executor | None = None,
    say: Say = print,
    watch: Watch | None = None,
) -> Reproduction:
    """Run the table in ``folder``, or what is left of it; write and return what came out."""
    experiment = request.experiment
    jobs = jobs_of(request, folder)
    distinct = {job.folder: job for job in jobs.values()}
    data, held_out = open_data(request, watch)
    if executor is None:
        # Where the seed chooses the data, every run reads its own.
        executor = InProcess(data if experiment.seed_key is None else None)
    running = run_jobs(distinct.values(), executor=executor, watch=watch)
    figures: dict[tuple[str, int], dict[str, float]] = {}
    result = Reproduction(request, {}, len(distinct), held_out)
    for number, done in enumerate(running, 1):
        for (row, seed), job in jobs.items():
            if job.folder == done.folder:
                function = experiment.rows[row].figures or experiment.figures
                figures[row, seed] = figures_of(job.folder, function)
                first = list(figures[row, seed].items())[:SHOWN]
                words = ", ".join(f"{name} {value:.4g}" for name, value in first)
                say(f"[{number}/{len(distinct)}] {row}, seed-{seed}: {words}")
        # Written after every run, so that whatever is done stands there if the rest is lost.
        by_row: dict[str, list[dict[str, float]]] = {}
        for row, seed in (key for key in jobs if key in figures):
            by_row.setdefault(row, []).append(figures[row, seed])
        ours = {row: _over_seeds(runs) for row, runs in by_row.items()}
        result = Reproduction(request, ours, len(distinct) - number, held_out)
        _save(result, folder, by_row)
    return result


def _over_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, SeedMean]:
    names = {name: None for run in runs for name in run}
    return {name: seed_mean([run[name] for run in runs if name in run]) for name in names}


def _save(
    result: Reproduction, folder: Path, by_row: Mapping[str, Sequence[Mapping[str, float]]]
) -> None:
    """Write the table, its figures (null is undefined, infinity a word) and what differs."""
    figures = {
        row: [
            {n: v if isfinite(v) else INFINITE if isinf(v) else None for n, v in run.items()}
            for run in runs
        ]
        for row, runs in by_row.items()
    }
    deviations = list(map(asdict, result.request.protocol_deviations(result.held_out)))
    with together():
        write_text(folder / "table.md", result.markdown())
        write_text(folder / "figures.json", json.dumps(figures, indent=1))
        write_text(folder / "deviations.json", json.dumps(deviations, indent=1))
