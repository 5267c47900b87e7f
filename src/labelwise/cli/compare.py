"""``labelwise compare``: methods on the same data, recipe and tuning budget."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.base.progress import Watch, make_watch
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    Assign,
    DryRun,
    Engine,
    Features,
    Jobs,
    Out,
    Seeds,
    SettingsFile,
    Weights,
    option,
)
from labelwise.cli.command import app, as_typed, verb
from labelwise.cli.options import check_weights
from labelwise.cli.text import (
    in_all,
    next_steps,
    quoted,
    resumable,
    say,
    show_table,
    tell,
)
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.papers.compare import ComparisonPlan
    from labelwise.tables import LabelTable

METHODS = "bce,asl,asl+phi,spa,spa+lpr,quasibinary,two-way"


@verb(
    app,
    "compare photos.csv --methods bce,asl,spa --seeds 5",
    "compare photos.csv --methods bce,my.py:MyLoss",
    more="redraw",
)
def compare(
    data: Annotated[str, typer.Argument(help="scenes, a file, a folder, or FORMAT:path.")],
    *,
    methods: Annotated[
        str, option("--methods", help="Names of methods with commas between.")
    ] = METHODS,
    seeds: Seeds = None,
    tune: Annotated[
        int, option("--tune", min=0, help="Tries of each method, chosen on validation.")
    ] = 0,
    sweep: Annotated[
        str | None, option("--sweep", help="An option of a method and values: lpr_weight=0,1,3.")
    ] = None,
    choose: Annotated[
        str | None, option("--choose", help="The validation metric that chooses: map, ece, ...")
    ] = None,
    out: Out = None,
    settings: SettingsFile = None,
    assign: Assign = None,
    features: Features = None,
    weights: Weights = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    redraw: Annotated[
        bool, option("--redraw", help="Deal all photos into the splits again for every seed.")
    ] = False,
    engine: Engine = None,
) -> None:
    """Compare methods on the same data, recipe and seeds.

    The same command on the same folder resumes. The default folder is runs/compare.
    """
    from labelwise.base.yaml_values import parse_assignments
    from labelwise.learn.methods.own import add_method
    from labelwise.papers.compare import ComparisonPlan
    from labelwise.papers.compare import compare as run_comparison
    from labelwise.papers.jobs import (
        Executor,
        InProcess,
        LocalProcesses,
        RayRuns,
        default_workers,
    )
    from labelwise.papers.sources import Frozen, blank_features, open_table
    from labelwise.report import write_comparison
    from labelwise.report.charts import save_charts
    from labelwise.training.plan import choose_network
    from labelwise.training.settings import AUTO, read_settings

    names = tuple(name.strip() for name in methods.split(","))
    own = {name: add_method(name) for name in names if ".py:" in name}
    elsewhere = engine == "ray" or (jobs or 1) > 1
    if own and elsewhere:
        raise SettingsError(
            "a method of your own is trained in this process; leave out --engine ray and --jobs"
        )
    for name, note in own.values():
        say(f"{name}: {note}")
    names = tuple(own[name][0] if name in own else name for name in names)
    folder = Path(out or "runs/compare")
    # "after" is one fit for all methods, so runs need no calibrator of their own.
    values = {"data": data, "calibrate": "none", **parse_assignments(assign or ())}
    check_weights(features, weights)
    if features == "identity":  # the data holds features
        features, values["backbone"] = None, "identity"
    base = read_settings(settings, values | ({"features": features} if features else {}))
    if base.backbone == AUTO:
        chosen, reason = choose_network(base, open_table(base.data, base.data_options))
        say(f"network {reason}")
        if chosen.features in (None, "identity"):
            values["backbone"] = chosen.backbone
        else:
            features, weights = chosen.features, chosen.weights
    network = {"features": features, "weights": weights} if features else {}
    if features and dry_run:  # on rows of zeros in the place of features
        network = {"backbone": "identity"}
    base = read_settings(settings, values | network)
    seeded = tuple(range(seeds or 3))
    plan = ComparisonPlan(base, names, seeded, tune, _parsed_sweep(sweep), choose, redraw)
    frozen = Frozen(features, weights, base.image_size, base.squash) if features else None
    if features and elsewhere:
        raise SettingsError(
            "heads on --features are trained in this process; leave out --engine ray and --jobs"
        )
    watch, workers = make_watch(), 1 if own else jobs or default_workers()
    if dry_run:
        table = open_table(base.data, base.data_options)
        _announce(plan, blank_features(table, frozen) if frozen else table, workers, watch)
        if features:
            images = counted(len(table), "image")
            say(f"before them, the features of {images} by {features}, not timed")
        network_options = ("features", "weights", "jobs", "redraw", "engine")
        run_options = ("methods", "seeds", "tune", "sweep", "choose", "out", "settings", "assign")
        next_steps(f"compare {quoted(data)}{as_typed(*run_options, *network_options)}")
        return
    table = open_table(base.data, base.data_options, frozen=frozen, watch=watch)
    title = f"{table.name}, features of {features}" if features else table.name
    executor: Executor = InProcess(table)
    if engine == "ray":
        executor = RayRuns(workers, gpus=1.0 if base.hardware.accelerator == "cuda" else 0.0)
    elif workers > 1 and not features:
        executor = LocalProcesses(workers)
    with resumable(folder):
        done = run_comparison(plan, folder, executor=executor, say=say, watch=watch)
    shown = "mean ± half the 95 % interval; per cent but losses"
    show_table(*done.cells(), title=shown, names=1)
    say()
    tell(*map(str, (*done.choices, *done.verdicts())))
    page = write_comparison(done, folder / "comparison.html", data=title, tries=tune)
    charts = folder / "charts"
    save_charts(page.read_text("utf-8"), charts)
    say(f"written: {page}, {folder / 'comparison.md'}, {folder / 'comparison.json'}, {charts}")
    next_steps(f"train {quoted(data)} --method {names[0]}")


def _parsed_sweep(text: str | None) -> tuple[str, tuple[object, ...]] | None:
    from labelwise.base.yaml_values import parse_assignments

    if text is None:
        return None
    name, equals, values = text.partition("=")
    (axis,) = parse_assignments([f"{name}=[{values}]" if equals else text]).items()
    return axis[0], tuple(axis[1]) if isinstance(axis[1], list) else (axis[1],)


def _announce(plan: "ComparisonPlan", table: "LabelTable", jobs: int, watch: Watch) -> None:
    from labelwise.papers.jobs import measure_speed

    each = {
        name: measure_speed(settings, table, watch).seconds(plan.base.recipe.epochs, table)
        for name, settings in plan.entries.items()
    }
    runs = plan.num_runs // len(plan.entries)
    rows = [[name, str(runs), f"{seconds:,.0f}"] for name, seconds in each.items()]
    show_table(["method", "runs", "seconds per run"], rows)
    say(f"{counted(plan.num_runs, 'run')}, {in_all(runs * sum(each.values()), jobs)}")
