"""``labelwise report``: the page of a run, or all that is known about it for those who judge it."""

from pathlib import Path
from typing import Any

from labelwise.cli.figures import show
from labelwise.cli.options import Options
from labelwise.cli.text import command, next_steps, say
from labelwise.errors import SettingsError
from labelwise.report.dossier import write_dossier
from labelwise.report.runs import measured_run, measured_split, subgroups_of, write_folder
from labelwise.scores import read_run


def report(run: Path, given: Options) -> None:
    """Write the page of a run: a verdict, its figures, right and wrong photos."""
    if given.format not in (None, "page", "dossier"):
        raise SettingsError(f"--format must be page or dossier, got {given.format!r}")
    if bool(given.by) != (given.table is not None):
        raise SettingsError("--by names columns of a --table: give both, or neither")
    split = given.split or measured_split(run)
    rows = read_run(run, split).predictions
    parts = [subgroups_of(column, given.table, rows) for column in given.by or ()]
    figures: dict[str, Any] = {"bins": 10, "k": 4, "query_length": 0, "curves": True, "by": parts}
    if given.format == "dossier":
        if given.out is None:
            raise SettingsError("say where the dossier goes: -o FOLDER")
        told = {"intended_use": given.intended_use, "index": given.index}
        write_dossier(run, split, given.target, figures, **told)
        say(f"dossier: {given.target / 'dossier.html'} and {given.target / 'dossier.json'}")
        next_steps(f"report {run}")
        return
    given.refuse("it is for --format dossier", "intended_use", "index")
    figures["query_length"] = 3
    evaluation, extras = measured_run(run, split, None, figures, photos=True, command=command())
    folder = run if given.out is None else given.target
    write_folder(evaluation, folder, title=run.name, **extras)
    show(evaluation, json=False, out=folder)
    next_steps(f"report {run} --format dossier -o dossier/", f"data review {run} -o review.csv")
