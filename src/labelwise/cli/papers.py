"""``labelwise papers``: the papers' methods, tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from labelwise.base.files import write_text
from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.base.yaml_values import parse_assignments
from labelwise.cli.options import Options, check_weights
from labelwise.cli.text import command, duration, in_all, next_steps, resumable, say, show_table
from labelwise.errors import DataError, SettingsError
from labelwise.papers import reproduce
from labelwise.papers.comparison import table_page
from labelwise.papers.computed import COMPUTED
from labelwise.papers.figures import Shown, draw_figure, find_figure
from labelwise.papers.jobs import LocalProcesses, default_workers, seconds_of
from labelwise.papers.judged import judge_checkpoints, judge_scores, judged_cells
from labelwise.papers.listing import rows_of, tables_and_figures
from labelwise.papers.measures import FinishedRun
from labelwise.papers.reproduce import (
    Request,
    find_experiment,
    has_data,
    jobs_of,
    open_data,
    photos_of,
    where_to_put,
)
from labelwise.papers.sources import Frozen
from labelwise.papers.survey import SurveyPlan, complete, page, run_survey
from labelwise.papers.transfer import TITLE, cells, remarks, transfer
from labelwise.tables import load

TRANSFERRED = "002-tableA"
ANSWERED = "001-vqa"
SURVEYED = "survey"
RELEASED = "004-table1"


def run(table: str, given: Options) -> None:
    """Run a table of the papers, or draw one of their figures."""
    root = given.root or Path("data")
    rows = tuple(row.strip() for row in given.rows.split(",")) if given.rows else ()
    check_weights(given)
    frozen = Frozen(given.features, given.weights) if given.features else None
    folder = Path(given.out) if given.out else Path("runs") / table
    overrides = parse_assignments(given.set or ())
    if table == SURVEYED:
        given.refuse("the survey does not take it", "judge", "query", "dry_run")
        _survey(root, rows, frozen, overrides, folder, given)
        return
    sources = given.source or []
    if len(sources) > 1:
        raise SettingsError(f"{table} is run on one source, got {', '.join(sources)}")
    source = sources[0] if sources else None
    figure, cell = find_figure(table)
    trained = ("quick", "rows", "features", "set", "query", "jobs", "dry_run")
    if table in COMPUTED or (figure is not None and not figure.table):
        given.refuse(f"{table} is computed", *trained, "judge")
        if figure is not None or not COMPUTED[table].sets:
            given.refuse(f"{table} is computed", "source")
        if figure is not None:
            _say_files(draw_figure(table, folder))
            return
        computed = COMPUTED[table]
        result = computed.compute(root, source)
        _write_table(folder, computed.title, result.header, result.rows, result.notes)
        return
    if given.judge:
        given.refuse("scores and checkpoints are judged as they are", *trained)
        _judge(table, root, source, given.judge, folder)
        return
    if table == TRANSFERRED:
        given.refuse(f"{table} judges a backbone", *({*trained, "source"} - {"rows", "features"}))
        _transfer(root, rows, frozen, folder)
        return
    if given.query is not None and (figure is None or not figure.takes_query):
        raise SettingsError("--query is for 001-fig4, the figure of retrieved photos")
    if figure is not None:
        rows = rows or figure.rows
    name = table if figure is None else f"{figure.table}{cell}"
    seeds = tuple(range(given.seeds or 3))
    request = Request(name, root, source, given.quick, seeds, rows, frozen, overrides)
    if figure is not None and figure.photos_only:
        given.refuse(f"{table} shows photos as they are", *(set(trained) - {"jobs", "query"}))
        train = open_data(request)[0].splits()["train"]
        _say_files(draw_figure(table, folder, Shown({}, train.images)))
        return
    workers = given.jobs or default_workers()
    if given.dry_run:
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
    jobs = jobs_of(request, folder)
    rows = request.rows or request.chosen_rows()
    runs = {row: FinishedRun(jobs[row, request.seeds[0]].folder) for row in rows}
    _say_files(draw_figure(table, folder, Shown(runs, photos_of(request), given.query)))


def _survey(
    root: Path,
    rows: tuple[str, ...],
    frozen: Frozen | None,
    overrides: Mapping[str, Any],
    folder: Path,
    given: Options,
) -> None:
    sources = _pairs(given.source or [], "--source of the survey must be SET=SOURCE, each set once")
    if frozen is not None:
        size, squash = overrides.get("image_size"), bool(overrides.get("squash", False))
        frozen = replace(frozen, image_size=size, squash=squash)
    recipe = (frozen, given.quick, overrides, command())
    plan = SurveyPlan(root, sources, rows, given.seeds or 5, *recipe)
    with resumable(folder):
        cells = run_survey(plan, folder, jobs=given.jobs or 1, say=say, watch=make_watch())
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


def _judge(table: str, root: Path, source: str | None, given: Sequence[str], folder: Path) -> None:
    if table not in (ANSWERED, RELEASED):
        raise SettingsError(f"--judge is for {ANSWERED} (scores) and {RELEASED} (checkpoints)")
    pairs = _pairs(given, "--judge must be ROW=FILE, each row once")
    files = {row: Path(file) for row, file in pairs.items()}
    experiment = find_experiment(table)
    if source is None and not has_data(experiment, root):
        raise DataError(f"{table} needs data: {where_to_put(experiment, root)}")
    if table == ANSWERED:
        header, rows = judged_cells(judge_scores(root / "vqa", files))
        _write_table(folder, f"{experiment.published.title}; brought scores", header, rows)
        return
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
    show_table(header, rows, title=title)
    for note in notes:
        say(f"- {note}")
    write_text(folder / "table.md", table_page(title, header, rows, notes))
    say(f"written: {folder / 'table.md'}")
    next_steps("papers list")


def _transfer(root: Path, sets: tuple[str, ...], frozen: Frozen | None, folder: Path) -> None:
    if frozen is None:
        mend = "name it with --features and its weights with --weights"
        raise SettingsError(f"{TRANSFERRED} judges a frozen backbone; {mend}")
    with resumable(folder):
        results = transfer(root, frozen, folder, sets=sets, say=say, watch=make_watch())
    _write_table(folder, TITLE, *cells(results), remarks(results, frozen))


def _announce(request: Request, folder: Path, jobs: int) -> None:
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


def list_tables(table: str | None, given: Options) -> None:
    """List the tables and figures that can be run, or the rows of one."""
    root = given.root or Path("data")
    for header, rows, title in tables_and_figures(root) if table is None else rows_of(table, root):
        show_table(header, rows, title=title)
    more = ["papers list TABLE"] if table is None else []
    next_steps(*more, f"papers run {table or 'TABLE'} --quick")
