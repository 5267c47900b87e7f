"""``labelwise report``: the page of a run, or all that is known about it for those who judge it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from labelwise.cli.arguments import By, Format, GroupTable, Out, Split, option
from labelwise.cli.command import app, refuse, verb
from labelwise.cli.figures import show
from labelwise.cli.options import review_of
from labelwise.cli.text import command, next_steps, quoted, say
from labelwise.errors import SettingsError


@verb(
    app,
    "report runs/photos",
    "report runs/photos --format dossier --by site --table sites.csv -o dossier/",
    fetch={"run": "results"},
)
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    *,
    out: Out = None,
    kind: Format = None,
    split: Split = None,
    by: By = None,
    table: GroupTable = None,
    intended_use: Annotated[
        str | None, option("--intended-use", help="What the model is for, in your words.")
    ] = None,
    index: Annotated[
        Path | None, option("--index", help="An index whose guarantees are shown.")
    ] = None,
) -> None:
    """Write the page of a run: a verdict, its figures, right and wrong photos.

    --format page (default) writes report.html, into the run unless -o names a folder. --format
    dossier writes dossier.html and dossier.json: data, splits, figures by subgroup, calibration,
    guarantees and receipts, limits, versions and hashes, under the headings of a model card and of
    Annex IV of the EU's AI Act. No legal claim is made.
    """
    from labelwise.report.dossier import write_dossier
    from labelwise.report.runs import measured_run, measured_split, subgroups_of, write_folder
    from labelwise.scores import read_run

    if kind not in (None, "page", "dossier"):
        raise SettingsError(f"--format must be page or dossier, got {kind!r}")
    if bool(by) != (table is not None):
        raise SettingsError("--by names columns of a --table: give both, or neither")
    split = split or measured_split(run)
    rows = read_run(run, split).predictions
    parts = [subgroups_of(column, table, rows) for column in by or () if table]
    figures: dict[str, Any] = {"bins": 10, "k": 4, "query_length": 0, "curves": True, "by": parts}
    if kind == "dossier":
        if out is None:
            raise SettingsError("say where the dossier goes: -o FOLDER")
        folder = Path(out)
        write_dossier(run, split, folder, figures, intended_use=intended_use, index=index)
        say(f"dossier: {folder / 'dossier.html'} and {folder / 'dossier.json'}")
        next_steps(f"report {quoted(run)}")
        return
    refuse("it is for --format dossier", "intended_use", "index")
    figures["query_length"] = 3
    evaluation, extras = measured_run(run, split, None, figures, photos=True, command=command())
    folder = run if out is None else Path(out)
    write_folder(evaluation, folder, title=run.name, **extras)
    show(evaluation, json=False, out=folder)
    next_steps(f"report {quoted(run)} --format dossier -o dossier/", review_of(run))
