"""``labelwise compare``: methods on the same data, recipe and tuning budget."""

from pathlib import Path
from typing import Any

from labelwise.base.progress import Watch, make_watch
from labelwise.base.text import counted
from labelwise.base.yaml_values import parse_assignments
from labelwise.cli.options import Options, check_weights
from labelwise.cli.text import in_all, next_steps, resumable, say, show_table, tell
from labelwise.errors import SettingsError
from labelwise.learn.methods.own import add_method
from labelwise.papers.compare import ComparisonPlan
from labelwise.papers.compare import compare as run_comparison
from labelwise.papers.jobs import (
    Executor,
    InProcess,
    LocalProcesses,
    RayRuns,
    default_workers,
    measure_speed,
)
from labelwise.papers.sources import Frozen, blank_features, open_table
from labelwise.report import write_comparison
from labelwise.report.charts import save_charts
from labelwise.tables import LabelTable
from labelwise.training.prepare import choose_network
from labelwise.training.settings import AUTO, read_settings

METHODS = "bce,asl,asl+phi,spa,spa+lpr,quasibinary,two-way"


def compare(data: str, given: Options) -> None:
    """Compare methods on the same data, recipe and seeds."""
    features, weights, jobs = given.features, given.weights, given.jobs
    names = tuple(name.strip() for name in (given.methods or METHODS).split(","))
    own = {name: add_method(name) for name in names if ".py:" in name}
    elsewhere = given.engine == "ray" or (jobs or 1) > 1
    if own and elsewhere:
        raise SettingsError(
            "a method of your own is trained in this process; leave out --engine ray and --jobs"
        )
    for name, note in own.values():
        say(f"{name}: {note}")
    names = tuple(own[name][0] if name in own else name for name in names)
    out, tries = Path(given.out or "runs/compare"), given.tune or 0
    # "after" is one fit for all methods, so runs need no calibrator of their own.
    values = {"data": data, "calibrate": "none", **parse_assignments(given.set or ())}
    check_weights(given)
    if features == "identity":  # the data holds features
        features, values["backbone"] = None, "identity"
    base = read_settings(given.settings, values | ({"features": features} if features else {}))
    if base.backbone == AUTO:
        chosen, reason = choose_network(base, open_table(base.data, base.data_options))
        say(f"network {reason}")
        if chosen.features in (None, "identity"):
            values["backbone"] = chosen.backbone
        else:
            features, weights = chosen.features, chosen.weights
    network = {"features": features, "weights": weights} if features else {}
    if features and given.dry_run:  # on rows of zeros in the place of features
        network = {"backbone": "identity"}
    base = read_settings(given.settings, values | network)
    seeds = tuple(range(given.seeds or 3))
    plan = ComparisonPlan(base, names, seeds, tries, _parsed_sweep(given.sweep), given.choose)
    frozen = Frozen(features, weights, base.image_size, base.squash) if features else None
    if features and elsewhere:
        raise SettingsError(
            "heads on --features are trained in this process; leave out --engine ray and --jobs"
        )
    watch, workers = make_watch(), 1 if own else jobs or default_workers()
    if given.dry_run:
        table = open_table(base.data, base.data_options)
        _announce(plan, blank_features(table, frozen) if frozen else table, workers, watch)
        if features:
            images = counted(len(table), "image")
            say(f"before them, the features of {images} by {features}, not timed")
        next_steps(f"compare {data} --methods {','.join(names)}")
        return
    table = open_table(base.data, base.data_options, frozen=frozen, watch=watch)
    name = f"{table.name}, features of {features}" if features else table.name
    executor: Executor = InProcess(table)
    if given.engine == "ray":
        executor = RayRuns(workers, gpus=1.0 if base.hardware.accelerator == "cuda" else 0.0)
    elif workers > 1 and not features:
        executor = LocalProcesses(workers)
    with resumable(out):
        done = run_comparison(plan, out, executor=executor, say=say, watch=watch)
    title = "mean ± half the 95 % interval over seeds; per cent but losses"
    show_table(*done.cells(), title=title, names=1)
    say()
    tell(*map(str, (*done.choices, *done.verdicts())))
    page = write_comparison(done, out / "comparison.html", data=name, tries=tries)
    save_charts(page.read_text("utf-8"), out / "charts")
    say(f"written: {page}, {out / 'comparison.md'}, {out / 'comparison.json'}, {out / 'charts'}")
    next_steps(f"train {data} --method {names[0]}")


def _parsed_sweep(text: str | None) -> tuple[str, tuple[Any, ...]] | None:
    if text is None:
        return None
    name, equals, values = text.partition("=")
    (axis,) = parse_assignments([f"{name}=[{values}]" if equals else text]).items()
    return axis[0], tuple(axis[1])


def _announce(plan: ComparisonPlan, table: LabelTable, jobs: int, watch: Watch) -> None:
    each = {
        name: measure_speed(settings, table, watch).seconds(plan.base.recipe.epochs, table)
        for name, settings in plan.entries.items()
    }
    runs = plan.num_runs // len(plan.entries)
    rows = [[name, str(runs), f"{seconds:,.0f}"] for name, seconds in each.items()]
    show_table(["method", "runs", "seconds per run"], rows)
    say(f"{counted(plan.num_runs, 'run')}, {in_all(runs * sum(each.values()), jobs)}")
