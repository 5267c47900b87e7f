"""``labelwise papers``: the papers' methods, tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.base.files import write_text
from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    Assign,
    DryRun,
    Features,
    Jobs,
    Out,
    Root,
    Seeds,
    Weights,
    option,
)
from labelwise.cli.command import papers_app, refuse, verb
from labelwise.cli.options import check_weights
from labelwise.cli.text import (
    command,
    duration,
    in_all,
    next_steps,
    resumable,
    say,
    show_table,
)
from labelwise.errors import DataError, SettingsError

if TYPE_CHECKING:
    from labelwise.papers.reproduce import Request
    from labelwise.papers.sources import Frozen

SURVEYED = "survey"
RELEASED = "004-table1"


@verb(papers_app, "papers list", "papers list 000-table2", name="list")
def list_tables(
    table: Annotated[str | None, typer.Argument(help="Show the cells and rows of one.")] = None,
    *,
    root: Root = None,
) -> None:
    """List the tables and figures that can be run, or the rows of one."""
    from labelwise.papers.listing import rows_of, tables_and_figures

    place = root or Path("data")
    shown = tables_and_figures(place) if table is None else rows_of(table, place)
    for header, rows, title in shown:
        show_table(header, rows, title=title)
    more = ["papers list TABLE"] if table is None else []
    next_steps(*more, f"papers run {table or 'TABLE'} --quick")


@verb(
    papers_app,
    "papers run 000-table2 --quick",
    "papers run survey --root data --seeds 1",
    more="query",
)
def run(
    table: Annotated[
        str, typer.Argument(help="A table, cell or figure, such as 000-table2; or survey.")
    ],
    *,
    root: Root = None,
    quick: Annotated[bool, option("--quick", help="A recipe of minutes, not days.")] = False,
    seeds: Seeds = None,
    rows: Annotated[
        str | None, option("--rows", help="Only these rows, or methods, commas between.")
    ] = None,
    out: Out = None,
    source: Annotated[
        list[str] | None,
        option("--source", help="Other data than the paper's; of the survey, as coco=FILE."),
    ] = None,
    features: Features = None,
    weights: Weights = None,
    assign: Assign = None,
    judge: Annotated[
        list[str] | None,
        option("--judge", help="Judge a released checkpoint, as ROW=FILE."),
    ] = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    query: Annotated[
        str | None, option("--query", help="What to retrieve in 001-fig4, as 'dog, -beach'.")
    ] = None,
) -> None:
    """Run a table of the papers, or draw one of their figures.

    Printed numbers are shown beside ours, with every deviation from the published protocol. A
    table on several data sets has cells, named after points; its name alone means the first.
    `survey` runs every method with all labels known, a tenth, one per image, wrong labels, or half
    of the images. The same command resumes.
    """
    from labelwise.base.yaml_values import parse_assignments
    from labelwise.papers import reproduce
    from labelwise.papers.computed import COMPUTED
    from labelwise.papers.figures import Drawn, draw_figure, find_figure
    from labelwise.papers.jobs import LocalProcesses, default_workers
    from labelwise.papers.measures import FinishedRun
    from labelwise.papers.reproduce import Request, jobs_of, photos_of
    from labelwise.papers.sources import Frozen

    place, folder = root or Path("data"), Path(out) if out else Path("runs") / table
    named = tuple(row.strip() for row in rows.split(",")) if rows else ()
    check_weights(features, weights)
    frozen = Frozen(features, weights) if features else None
    overrides = parse_assignments(assign or ())
    if table == SURVEYED:
        refuse("the survey does not take it", "judge", "query", "dry_run")
        recipe = (frozen, quick, overrides)
        _survey(place, named, source or [], recipe, folder, seeds or 5, jobs or 1)
        return
    if source and len(source) > 1:
        raise SettingsError(f"{table} is run on one source, got {', '.join(source)}")
    data = source[0] if source else None
    figure, cell = find_figure(table)
    trained = ("quick", "rows", "features", "assign", "query", "jobs", "dry_run")
    if table in COMPUTED or (figure is not None and not figure.table):
        refuse(f"{table} is computed", *trained, "judge", "source")
        if figure is not None:
            _say_files(draw_figure(table, folder))
            return
        computed = COMPUTED[table]
        result = computed.compute()
        _write_table(folder, computed.title, result.header, result.rows, result.notes)
        return
    if judge:
        refuse("checkpoints are judged as they are", *trained)
        _judge(table, place, data, judge, folder)
        return
    if query is not None and (figure is None or not figure.takes_query):
        raise SettingsError("--query is for 001-fig4, the figure of retrieved photos")
    if figure is not None:
        named = named or figure.rows
    name = table if figure is None else f"{figure.table}{cell}"
    seeded = tuple(range(seeds or 3))
    request = Request(name, place, data, quick, seeded, named, frozen, overrides)
    workers = jobs or default_workers()
    if dry_run:
        _announce(request, folder, workers)
        return
    executor = LocalProcesses(workers) if workers > 1 else None
    with resumable(folder):
        done = reproduce.reproduce(request, folder, executor=executor, say=say, watch=make_watch())
    show_table(*done.cells(), title=done.title, names=2)
    say("\n".join(f"- {note}" for note in (*done.verdicts(), *done.deviations())))
    say(f"written: {folder / 'table.md'}")
    if figure is None:
        next_steps("papers list", "compare DATA --methods bce,spa")
        return
    finished = jobs_of(request, folder)
    chosen = request.rows or request.chosen_rows()
    runs = {row: FinishedRun(finished[row, request.seeds[0]].folder) for row in chosen}
    _say_files(draw_figure(table, folder, Drawn(runs, photos_of(request), query)))


def _survey(
    root: Path,
    rows: tuple[str, ...],
    sources: list[str],
    recipe: "tuple[Frozen | None, bool, Mapping[str, Any]]",
    folder: Path,
    seeds: int,
    jobs: int,
) -> None:
    from labelwise.papers.survey import SurveyPlan, complete, page, run_survey

    pairs = _pairs(sources, "--source of the survey must be SET=SOURCE, each set once")
    frozen, quick, overrides = recipe
    if frozen is not None:
        size, squash = overrides.get("image_size"), bool(overrides.get("squash", False))
        frozen = replace(frozen, image_size=size, squash=squash)
    plan = SurveyPlan(root, pairs, rows, seeds, frozen, quick, overrides, command())
    with resumable(folder):
        cells = run_survey(plan, folder, jobs=jobs, say=say, watch=make_watch())
    write_text(folder / "survey.md", page(complete(cells), "# Survey"))
    say(f"written: {folder / 'survey.md'}, and a results file SET.CELL.json for each cell")
    next_steps("papers methods")


def _pairs(texts: Sequence[str], rule: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value or name in pairs:
            raise SettingsError(f"{rule}, got {text!r}")
        pairs[name] = value
    return pairs


def _say_files(files: list[Path]) -> None:
    say(f"drawn: {', '.join(map(str, files))}")
    next_steps("papers list")


def _judge(table: str, root: Path, source: str | None, judge: Sequence[str], folder: Path) -> None:
    import torch

    from labelwise.papers.judged import judge_checkpoints
    from labelwise.papers.reproduce import find_experiment, has_data, where_to_put
    from labelwise.tables import load

    if table != RELEASED:
        raise SettingsError(f"--judge is for {RELEASED}; leave it out, or run {RELEASED}")
    pairs = _pairs(judge, "--judge must be ROW=FILE, each row once")
    files = {row: Path(file) for row, file in pairs.items()}
    experiment = find_experiment(table)
    if source is None and not has_data(experiment, root):
        raise DataError(f"{table} needs data: {where_to_put(experiment, root)}")
    options = {} if source else dict(experiment.data_options)
    photos = load(source or f"coco2014:{root / 'coco'}", **options)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with resumable(folder):
        header, rows = judge_checkpoints(photos, files, folder, device=device, watch=make_watch())
    title = f"{experiment.published.title}; {experiment.published.remark}"
    _write_table(folder, title, header, rows)


def _write_table(
    folder: Path, title: str, header: list[str], rows: list[list[str]], notes: Sequence[str] = ()
) -> None:
    from labelwise.papers.comparison import table_page

    show_table(header, rows, title=title)
    for note in notes:
        say(f"- {note}")
    write_text(folder / "table.md", table_page(title, header, rows, notes))
    say(f"written: {folder / 'table.md'}")
    next_steps("papers list")


def _announce(request: "Request", folder: Path, jobs: int) -> None:
    from labelwise.papers.jobs import seconds_of
    from labelwise.papers.reproduce import jobs_of, open_data

    runs = {job.folder: job for job in jobs_of(request, folder).values()}
    watch = make_watch()
    seconds = seconds_of(runs.values(), open_data(request, watch)[0], watch)
    rows = {
        path.parent.name: [str(job.settings.recipe.epochs), duration(seconds[path])]
        for path, job in runs.items()
    }
    show_table(
        ["row", "runs", "epochs", "each about"],
        [[name, str(len(request.seeds)), *cells] for name, cells in rows.items()],
    )
    say(f"{counted(len(runs), 'run')}, {in_all(sum(seconds.values()), jobs)}, in {folder}")
    next_steps(f"papers run {request.table}")
