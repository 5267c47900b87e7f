"""Compare: the same data, the same recipe, the same number of tries for every method.

Each method is first tuned (``tune`` tries on the first seed, the best on validation wins), then
trained once per seed. Runs of one seed share data, order and start, so differences are paired.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import write_text
from labelwise.base.groups import freedom_of
from labelwise.base.progress import Watch
from labelwise.errors import SettingsError
from labelwise.learn.methods import find_method
from labelwise.models.run_folder import RunFolder
from labelwise.papers.comparison import (
    JUDGED,
    SOLVED,
    STEPPED,
    Comparison,
    Covariance,
    SweepChoice,
)
from labelwise.papers.jobs import (
    Executor,
    TrainingJob,
    figures_of,
    run_jobs,
)
from labelwise.papers.measures import FinishedRun, image_effects, measure
from labelwise.training.inference import higher_is_better, validation_figures
from labelwise.training.settings import Settings
from labelwise.types import nearest

# Tuning: the first try is the recipe as given. Each further one multiplies learning rate and weight
# decay by powers drawn from a Halton sequence over [1/10, 10], and draws the options of
# ``Method.tuning``. The sequence of learning rates starts at its second point.

_PRIMES = (2, 3, 5, 7, 11, 13)


def tries(settings: Settings, count: int) -> Iterator[Settings]:
    """Yield ``count`` settings to try for the method of ``settings``, the same at every call."""
    yield settings
    yield from (_varied(settings, number) for number in range(1, count))


def _varied(settings: Settings, number: int) -> Settings:
    optimizer, ranges = settings.recipe.optimizer, find_method(settings.method).tuning
    shares = [_halton(number + 1, _PRIMES[0]), *(_halton(number, p) for p in _PRIMES[1:])]
    drawn = {
        option: ranges[option][int(share * len(ranges[option]))]
        for option, share in zip(sorted(ranges), shares[2:], strict=False)
    }
    values = settings.model_dump(mode="json")
    for name, share in (("lr", shares[0]), ("weight_decay", shares[1])):
        values["recipe"]["optimizer"][name] = getattr(optimizer, name) * 10 ** (2 * share - 1)
    values["options"] = {**drawn, **settings.options}
    return Settings(**values)


def _halton(number: int, base: int) -> float:
    value, scale = 0.0, 1.0
    while number:
        scale /= base
        number, digit = divmod(number, base)
        value += scale * digit
    return value


Say = Callable[[str], None]
RunJobs = Callable[[Iterable[TrainingJob]], Iterator[TrainingJob]]


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: a recipe, methods, seeds, and how many tries each method has.

    ``sweep`` is an option and its values: a method that has it is compared with each of them.
    ``choose`` is the validation metric by which a try or a value of the sweep is the best, by
    default that of the recipe. ``redraw`` deals all images into the splits again for every seed.
    """

    base: Settings
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    tune: int = 0
    sweep: tuple[str, tuple[object, ...]] | None = None
    choose: str | None = None
    redraw: bool = False

    def __post_init__(self) -> None:
        for name in self.methods:
            find_method(name)
        if len(set(self.methods)) != len(self.methods) or not self.methods:
            names = ", ".join(self.methods) or "none"
            raise SettingsError(f"methods must be distinct, got {names}")
        if not self.seeds:
            raise SettingsError("there must be at least one seed, got none")
        known = {option for name in self.methods for option in find_method(name).options}
        swept, values = self.sweep or (None, ())
        for option in (*self.base.options, *filter(None, [swept])):
            if option not in known:
                near = nearest(option, sorted(known))
                raise SettingsError(f"none of the methods has the option {option!r}{near}")
        if swept and (len(set(map(str, values))) != len(values) or len(values) < 2):
            raise SettingsError(f"a sweep needs two or more distinct values, got {list(values)}")
        if swept and self.tune > 1:
            raise SettingsError("a sweep is not tuned: leave out --tune or --sweep")
        higher_is_better(self.chosen_by)
        if self.choose is not None and self.sweep is None and self.tune < 2:
            raise SettingsError("--choose needs a --sweep, or a --tune of two tries or more")

    @property
    def chosen_by(self) -> str:
        return self.choose or self.base.recipe.metric

    def run_name(self, seed: int) -> str:
        """Return the folder's name of a run: redrawn images have a folder of their own."""
        return f"{'deal' if self.redraw else 'seed'}-{seed}"

    @property
    def num_runs(self) -> int:
        """How many runs there are in all; a tuning run of the first seed is used again."""
        return len(self.entries) * (len(self.seeds) + max(self.tune - 1, 0))

    @property
    def entries(self) -> dict[str, Settings]:
        """Settings by the name of what is compared: a method, or one value of its sweep."""
        entries: dict[str, Settings] = {}
        swept, values = self.sweep or ("", ())
        for method in self.methods:
            own = find_method(method).options
            options = {name: value for name, value in self.base.options.items() if name in own}
            settings = with_values(self.base, method=method, options=options, seed=self.seeds[0])
            for value in values if swept in own else ():
                varied = with_values(settings, options={**options, swept: value})
                entries[f"{method} {swept}={value}"] = varied
            if swept not in own:
                entries[method] = settings
        return entries


def compare(
    plan: ComparisonPlan,
    folder: Path,
    *,
    executor: Executor | None = None,
    say: Say = print,
    watch: Watch | None = None,
) -> Comparison:
    """Run the plan in ``folder``, or what is left of it; write and return the comparison."""
    run = partial(run_jobs, executor=executor, watch=watch)
    chosen = _tuned(plan, folder, run, say)
    jobs = {
        (method, seed): TrainingJob(
            with_values(settings, seed=seed),
            first if seed == plan.seeds[0] else folder / method / plan.run_name(seed),
            deal=seed if plan.redraw else None,
        )
        for method, (settings, first) in chosen.items()
        for seed in plan.seeds
    }
    names = {job.folder: key for key, job in jobs.items()}
    figures: dict[str, dict[int, dict[str, float]]] = {name: {} for name in plan.entries}
    for number, done in enumerate(run(jobs.values()), 1):
        method, seed = names[done.folder]
        row = figures[method][seed] = figures_of(done.folder, measure)
        say(f"[{number}/{len(jobs)}] {method}, seed {seed}: mAP@class {row['mAP@class']:.4f}")
    run_1 = FinishedRun(next(iter(jobs.values())).folder)
    groups = run_1.test.groups
    redrawn = len(run_1.test) / len(run_1.train) if plan.redraw else 0.0
    folders = {key: job.folder for key, job in jobs.items()}
    effects = {} if plan.redraw else _mean_effects(folders)  # of images that all seeds share
    comparison = Comparison(
        figures,
        {
            name: {**_tunable(used), "trained": SOLVED if _is_solved(first) else STEPPED}
            for name, (used, first) in chosen.items()
        },
        {name: _covariance(moved) for name, moved in effects.items()},
        _chosen_values(plan, jobs),
        None if groups is None else groups.count,
        {} if groups is None else {name: _freedom(moved) for name, moved in effects.items()},
        redrawn,
    )
    comparison.save(folder)
    return comparison


def _chosen_values(
    plan: ComparisonPlan, jobs: Mapping[tuple[str, int], TrainingJob]
) -> tuple[SweepChoice, ...]:
    first = next(iter(jobs.values()))
    if plan.sweep is None or (plan.choose is None and FinishedRun(first.folder).val is None):
        return ()
    option, values = plan.sweep
    choices = []
    for method in plan.methods:
        if option not in find_method(method).options:
            continue
        scores: dict[str, float | None] = {}
        for value in values:
            folders = [jobs[f"{method} {option}={value}", seed].folder for seed in plan.seeds]
            runs = [_validation_figure(folder, plan.chosen_by) for folder in folders]
            defined = [run for run in runs if run is not None]
            scores[str(value)] = float(np.mean(defined)) if len(defined) == len(runs) else None
        known = {value: score for value, score in scores.items() if score is not None}
        best = max if higher_is_better(plan.chosen_by) else min
        chosen = best(known, key=known.__getitem__) if known else None
        choices.append(SweepChoice(method, option, plan.chosen_by, chosen, scores))
    return tuple(choices)


def _mean_effects(
    folders: Mapping[tuple[str, int], Path],
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return what test images, or their groups, move each method's mean by, by judged column."""
    effects: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    for (method, _), folder in folders.items():
        for name, effect in image_effects(FinishedRun(folder)).items():
            effects.setdefault(name, {}).setdefault(method, []).append(effect)
    return {
        name: {method: np.mean(runs, axis=0) for method, runs in by_method.items()}
        for name, by_method in effects.items()
        if name in JUDGED
    }


def _covariance(effects: Mapping[str, NDArray[np.float64]]) -> Covariance:
    return {a: {b: float(u @ v) for b, v in effects.items()} for a, u in effects.items()}


def _freedom(effects: Mapping[str, NDArray[np.float64]]) -> float:
    return freedom_of(np.std(list(effects.values()), axis=0))


def with_values(settings: Settings, **values: object) -> Settings:
    """Return the settings with some top-level values changed, validated again."""
    return Settings(**{**settings.model_dump(mode="json"), **values})


def _tuned(
    plan: ComparisonPlan, folder: Path, run: RunJobs, say: Say
) -> dict[str, tuple[Settings, Path]]:
    """Return the chosen settings of each method, and the folder of its first seed's run."""
    if plan.tune < 2:
        return {
            method: (settings, folder / method / plan.run_name(plan.seeds[0]))
            for method, settings in plan.entries.items()
        }
    chosen = {}
    tried = {
        method: [
            TrainingJob(
                candidate,
                folder / method / f"{'dealt-' if plan.redraw else ''}try-{number}",
                deal=plan.seeds[0] if plan.redraw else None,
            )
            for number, candidate in enumerate(tries(settings, plan.tune))
        ]
        for method, settings in plan.entries.items()
    }
    list(run(job for jobs in tried.values() for job in jobs))
    for method, jobs in tried.items():
        found = [_validation_figure(job.folder, plan.chosen_by) for job in jobs]
        sign = 1.0 if higher_is_better(plan.chosen_by) else -1.0
        scores = [float("-inf") if value is None else sign * value for value in found]
        best = max(range(len(jobs)), key=scores.__getitem__)
        values = [_tunable(job.settings) for job in jobs]
        words = ", ".join(f"{key} {value}" for key, value in values[best].items())
        say(f"{method}: try {best + 1} of {plan.tune} is best on validation ({words})")
        pairs = zip(values, scores, strict=True)
        records = [{"settings": used, "score": score} for used, score in pairs]
        write_text(folder / method / "tuning.json", json.dumps(records, indent=1))
        chosen[method] = jobs[best].settings, jobs[best].folder
    return chosen


def _validation_figure(folder: Path, metric: str) -> float | None:
    val = FinishedRun(folder).val
    if val is None:
        raise SettingsError("choosing needs a validation split, got none")
    return validation_figures(val.logits, val.labels, val.observed, val.link, metric)[metric]


def _is_solved(folder: Path) -> bool:
    """Return whether a run solved its head: its journal then names L2 weights."""
    return any("l2" in record for record in RunFolder(folder).journal.read())


def _tunable(settings: Settings) -> dict[str, object]:
    optimizer = settings.recipe.optimizer
    return {
        "lr": float(f"{optimizer.lr:.3g}"),
        "weight_decay": float(f"{optimizer.weight_decay:.3g}"),
        **settings.options,
    }
