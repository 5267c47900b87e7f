"""``labelwise reproduce``: the papers' tables, run here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import (
    DryRunOption,
    FeaturesOption,
    JobsOption,
    SettingsOption,
    WeightsOption,
    check_weights,
)
from labelwise.cli.survey import show_survey_line, survey
from labelwise.cli.text import duration, in_all, resumable, say, show_table
from labelwise.errors import DataError, SettingsError
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.papers.reproduce import Request
    from labelwise.papers.sources import Frozen


TRANSFERRED = "002-tableA"
ANSWERED = "001-vqa"
SURVEYED = "survey"
RELEASED = "004-table1"


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="A table, a cell or a figure: 000-table2, 001-table3.voc.vit-b-32; or survey."
        ),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option("--list", help="Show the tables there are, or the cells and rows of one."),
    ] = False,
    root: Annotated[Path, typer.Option(help="The folder that holds the data sets.")] = Path("data"),
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Another source in place of the paper's data; of the survey, as coco=FILE."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A recipe of minutes, not days.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 3,
    rows: Annotated[
        str | None, typer.Option(help="Only these rows (of the survey: methods), commas between.")
    ] = None,
    features: FeaturesOption = None,
    weights: WeightsOption = None,
    set_: SettingsOption = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            help="001-vqa: judge a model's scores, as spa=FILE (question_id, answers, logits)."
        ),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="004-table1: judge a released checkpoint instead, as resnet101-448=FILE."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="What to retrieve in 001-fig4, as 'dog, -beach'.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder of the runs.")] = None,
    jobs: JobsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Run a table of the papers, or draw one of their figures.

    Printed numbers stand beside ours, with every deviation from the published protocol.

    A table on several data sets or backbones has cells, named after points (`--list TABLE` shows
    them); its name alone means the first.

    `survey` runs every method on photos, scenes and CIFAR-100, with all labels known, a tenth, or
    one per image.

    The same command goes on where it was stopped.
    """
    from labelwise.papers.jobs import LocalProcesses, default_workers
    from labelwise.papers.reproduce import Request
    from labelwise.papers.reproduce import reproduce as run_table
    from labelwise.papers.sources import Frozen
    from labelwise.system.progress import make_watch
    from labelwise.system.yaml_values import parse_assignments

    if list_ and table is None:
        _show_list(root)
        return
    if list_ and table is not None:
        _show_rows(table, root)
        return
    chosen = tuple(row.strip() for row in rows.split(",")) if rows else ()
    check_weights(features, weights)
    frozen = Frozen(features, weights) if features else None
    if table is None:
        raise SettingsError("name a table, such as 000-table2; --list shows them all")
    folder = out or Path("runs") / table
    if table == SURVEYED:
        if scores or query or dry_run or checkpoint:
            raise SettingsError(
                "the survey takes neither --scores nor --query, --checkpoint nor --dry-run"
            )
        survey(
            root,
            data or (),
            chosen,
            seeds,
            frozen,
            quick,
            parse_assignments(set_ or ()),
            jobs,
            folder,
        )
        return
    if data is not None and len(data) > 1:
        raise SettingsError(f"{table} is run on one source, got --data {' --data '.join(data)}")
    source = data[0] if data else None
    from labelwise.papers.computed import COMPUTED
    from labelwise.papers.figures import draw_figure, find_figure

    figure, cell = find_figure(table)
    if table in COMPUTED or (figure is not None and not figure.table):
        others = (quick, chosen, frozen, set_, scores, query, jobs, dry_run, checkpoint)
        reads = table in COMPUTED and COMPUTED[table].sets
        if any(others) or (data and not reads):
            takes = "--root, --data and --out" if reads else "--out"
            raise SettingsError(f"{table} is computed and takes {takes} alone")
        if figure is None:
            _compute(table, root, source, folder)
        else:
            _say_files(draw_figure(table, folder))
        return
    if scores:
        if table != ANSWERED or data or quick or set_ or query or dry_run or chosen or frozen:
            raise SettingsError(f"--scores is for {ANSWERED}, with --root and --out alone")
        _judge(root, scores, folder)
        return
    if checkpoint:
        if table != RELEASED or quick or set_ or query or dry_run or chosen or frozen or jobs:
            raise SettingsError(
                f"--checkpoint is for {RELEASED}, with --root or --data and --out alone"
            )
        _judge_checkpoints(root, source, checkpoint, folder)
        return
    if table == TRANSFERRED:
        if data or quick or set_ or query or dry_run:
            raise SettingsError(
                f"{TRANSFERRED} takes --root, --rows (data sets), --features, --weights and --out"
            )
        _transfer(root, chosen, frozen, folder)
        return
    if query is not None and (figure is None or not figure.takes_query):
        raise SettingsError("--query is for 001-fig4, the figure of retrieved photos")
    if figure is not None:
        chosen = chosen or figure.rows
    request = Request(
        table if figure is None else f"{figure.table}{cell}",
        root,
        source,
        quick,
        tuple(range(seeds)),
        chosen,
        frozen,
        parse_assignments(set_ or ()),
    )
    if figure is not None and figure.photos_only:
        if quick or frozen or set_ or dry_run or rows:
            raise SettingsError(
                f"{table} shows photos as they are: give --root or --data, and --out"
            )
        _say_files(_draw_photos(table, request, folder))
        return
    workers = jobs or default_workers()
    if dry_run:
        _announce(request, folder, workers)
        return
    executor = LocalProcesses(workers) if workers > 1 else None
    with resumable(folder):
        done = run_table(request, folder, executor=executor, say=say, watch=make_watch())
    show_table(*done.cells(), title=done.title, names=2)
    for note in (*done.verdicts(), *done.deviations()):
        say(f"- {note}")
    say(f"written: {folder / 'table.md'}")
    if figure is not None:
        _say_files(_draw(table, request, folder, query))


def _draw(name: str, request: "Request", folder: Path, query: str | None) -> list[Path]:
    """Draw a figure from the runs of its table, first seed."""
    from labelwise.papers.figures import Shown, draw_figure
    from labelwise.papers.measures import FinishedRun
    from labelwise.papers.reproduce import jobs_of, photos_of

    jobs = jobs_of(request, folder)
    rows = request.rows or request.chosen_rows()
    runs = {row: FinishedRun(jobs[row, request.seeds[0]].folder) for row in rows}
    return draw_figure(name, folder, Shown(runs, photos_of(request), query))


def _draw_photos(name: str, request: "Request", folder: Path) -> list[Path]:
    """Draw a figure of the training photos of a table's data, for which nothing is trained."""
    from labelwise.papers.figures import Shown, draw_figure
    from labelwise.papers.reproduce import open_data

    train = open_data(request)[0].splits()["train"]
    return draw_figure(name, folder, Shown({}, train.images))


def _say_files(files: list[Path]) -> None:
    say(f"drawn: {', '.join(map(str, files))}")


def _compute(table: str, root: Path, source: str | None, folder: Path) -> None:
    """Show and write a table that no run is needed for."""
    from labelwise.papers.computed import COMPUTED

    computed = COMPUTED[table]
    found = computed.compute(root, source)
    show_table(found.header, found.rows, title=computed.title)
    for note in found.notes:
        say(f"- {note}")
    _write_table(folder, computed.title, found.header, found.rows, found.notes)


def _judge(root: Path, scores: list[str], folder: Path) -> None:
    """Judge scores that were computed elsewhere."""
    from labelwise.papers.reproduce import find_experiment, has_data, where_to_put
    from labelwise.papers.vqa import judge_scores, judged_cells

    files = {row: Path(file) for row, _, file in (one.partition("=") for one in scores)}
    if len(files) < len(scores) or any(not row or not str(file) for row, file in files.items()):
        raise SettingsError(f"--scores must be METHOD=FILE, each method once, got {scores}")
    experiment = find_experiment(ANSWERED)
    if not has_data(experiment, root):
        raise DataError(f"{ANSWERED} needs data: {where_to_put(experiment, root)}")
    header, rows = judged_cells(judge_scores(root / "vqa", files))
    title = f"{experiment.published.title}; brought scores"
    show_table(header, rows, title=title)
    _write_table(folder, title, header, rows)


def _judge_checkpoints(
    root: Path, source: str | None, checkpoints: list[str], folder: Path
) -> None:
    """Judge released checkpoints on the test images of their table."""
    import torch

    from labelwise.data import load
    from labelwise.papers.released import judge_checkpoints
    from labelwise.papers.reproduce import find_experiment, has_data, where_to_put
    from labelwise.system.progress import make_watch

    files = {row: Path(file) for row, _, file in (one.partition("=") for one in checkpoints)}
    if len(files) < len(checkpoints) or any(
        not row or not file.name for row, file in files.items()
    ):
        raise SettingsError(f"--checkpoint must be ROW=FILE, each row once, got {checkpoints}")
    experiment = find_experiment(RELEASED)
    if source is None and not has_data(experiment, root):
        raise DataError(f"{RELEASED} needs data: {where_to_put(experiment, root)}")
    options = {} if source else dict(experiment.data_options)
    table = load(source or f"coco2014:{root / 'coco'}", **options)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with resumable(folder):
        header, rows = judge_checkpoints(table, files, folder, device=device, watch=make_watch())
    title = f"{experiment.published.title}; {experiment.published.remark}"
    show_table(header, rows, title=title)
    _write_table(folder, title, header, rows)


def _write_table(
    folder: Path,
    title: str,
    header: list[str],
    rows: list[list[str]],
    notes: Sequence[str] = (),
) -> None:
    from labelwise.system.files import replacing

    lines = ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]
    below = ["", *(f"- {note}" for note in notes)] if notes else []
    text = "\n".join([f"### {title}", "", *lines, *below, ""])
    with replacing(folder / "table.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    say(f"written: {folder / 'table.md'}")


def _transfer(root: Path, sets: tuple[str, ...], frozen: "Frozen | None", folder: Path) -> None:
    """Judge a backbone on the data sets of Table A of two-way."""
    from labelwise.papers.transfer import TITLE, cells, remarks, transfer
    from labelwise.system.progress import make_watch

    if frozen is None:
        raise SettingsError(
            f"{TRANSFERRED} judges a frozen backbone; name it with --features and its weights with "
            "--weights"
        )
    with resumable(folder):
        found = transfer(root, frozen, folder, sets=sets, say=say, watch=make_watch())
    show_table(*cells(found), title=TITLE)
    for note in remarks(found, frozen):
        say(f"- {note}")
    say(f"written: {folder / 'table.md'}")


def _announce(request: "Request", folder: Path, jobs: int) -> None:
    from labelwise.papers.estimate import seconds_of
    from labelwise.papers.reproduce import jobs_of, open_data
    from labelwise.system.progress import make_watch

    runs = {job.folder: job for job in jobs_of(request, folder).values()}
    watch = make_watch()
    seconds = seconds_of(runs.values(), open_data(request, watch)[0], watch)
    rows = {
        place.parent.name: [str(job.settings.recipe.epochs), duration(seconds[place])]
        for place, job in runs.items()
    }
    show_table(
        ["row", "runs", "epochs", "each about"],
        [[name, str(len(request.seeds)), *cells] for name, cells in rows.items()],
    )
    say(f"{counted(len(runs), 'run')}, {in_all(sum(seconds.values()), jobs)}, in {folder}")


def _show_rows(table: str, root: Path) -> None:
    from labelwise.papers.computed import COMPUTED
    from labelwise.papers.reproduce import cells_of, find_experiment, has_data, where_to_put

    if table in COMPUTED:
        raise SettingsError(f"{table} is computed and has no rows to list; run it")
    if table == TRANSFERRED:
        from labelwise.papers.transfer import TITLE, available_sets, where_to_put_set

        there = available_sets(root).items()
        listed = [[name, "yes" if ready else where_to_put_set(name, root)] for name, ready in there]
        show_table(["row", "can run now"], listed, title=TITLE)
        return
    experiment = find_experiment(table)
    cells = cells_of(table)
    if len(cells) > 1:
        ready = ("yes" if has_data(cell, root) else where_to_put(cell, root) for cell in cells)
        show_table(
            ["cell", "can run now"],
            [[cell.name, words] for cell, words in zip(cells, ready, strict=True)],
            title=f"{table} has {len(cells)} cells",
        )
    printed = experiment.published
    rows = []
    for name, row in experiment.rows.items():
        figures = printed.rows.get(name, (None,) * len(printed.columns))
        cells_of_row = ("–" if figure is None else f"{figure:g}" for figure in figures)
        rows.append([name, row.runs, *cells_of_row])
    show_table(["row", "runs", *printed.columns], rows, title=f"{printed.title}, as printed")


def _show_list(root: Path) -> None:
    from labelwise.papers.computed import COMPUTED
    from labelwise.papers.protocols import DATASETS, EXPERIMENTS, TRANSFER
    from labelwise.papers.reproduce import cells_of, has_data, where_to_put
    from labelwise.papers.sources import holds_files
    from labelwise.papers.transfer import available_sets, where_to_put_set

    rows = []
    for table in dict.fromkeys(experiment.table for experiment in EXPERIMENTS.values()):
        cells = cells_of(table)
        ready = [cell for cell in cells if has_data(cell, root)]
        count = "" if len(cells) == 1 else str(len(cells))
        words = "yes" if ready else where_to_put(cells[0], root)
        if 0 < len(ready) < len(cells):
            words = ", ".join(cell.cell for cell in ready)
        rows.append([table, cells[0].published.title, count, words])
    sets = [name for name, ready in available_sets(root).items() if ready]
    words = ", ".join(sets) or where_to_put_set(next(iter(TRANSFER)), root)
    rows.append([TRANSFERRED, "Two-way loss, Table A: transfer study", str(len(TRANSFER)), words])
    for table, computed in COMPUTED.items():
        there = [name for name in computed.sets if holds_files(root / DATASETS[name].folder)]
        words = ", ".join(there) or (
            f"put {' or '.join(computed.sets)} below {root}" if computed.sets else "yes, computed"
        )
        rows.append([table, computed.title, str(len(computed.sets) or ""), words])
    rows.append(show_survey_line(root))
    show_table(["table", "what (its first cell)", "cells", "can run now"], rows)
    from labelwise.papers.figures import FIGURES

    drawn = [[name, one.title, one.table or "formulas alone"] for name, one in FIGURES.items()]
    show_table(["figure", "what", "drawn from"], drawn)
