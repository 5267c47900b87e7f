"""What a finished run shows: its report and a short table."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.cli.text import say, show_table

if TYPE_CHECKING:
    from labelwise.evaluate import Evaluation
    from labelwise.training.run import Run

__all__ = ["command", "origin_of", "report_run", "summarise"]


def report_run(run: "Run") -> Path:
    """Write ``report.html`` into the run's folder unless it is there; return its path."""
    from labelwise.report import choose_examples, write_report
    from labelwise.runs import RunFolder

    files = RunFolder(run.folder)
    if run.was_finished and files.report.exists():
        return files.report
    predictions = files.predictions(run.evaluation.data.split or "test")
    link = files.spec.made_link
    examples = () if link is None else choose_examples(predictions, link, run.table.images)
    return write_report(
        run.evaluation,
        files.report,
        title=f"{run.table.name}: {run.folder.name}",
        examples=examples,
        history=files.journal.read(),
        origin=origin_of(run.folder),
    )


def origin_of(folder: Path) -> dict[str, str]:
    """Return what a run was made from, for its report: method, network, data and command."""
    from labelwise.runs import RunFolder
    from labelwise.training.settings import read_settings

    settings = read_settings(RunFolder(folder).settings_path, {})
    options = "".join(f", {name} {value}" for name, value in settings.options.items())
    weights = f"the run {settings.start}" if settings.start else settings.weights
    return {
        "Method": f"{settings.method}{options}",
        "Backbone": settings.backbone,
        "Weights": weights or "none: trained from random values",
        "Data": settings.data,
        "Seed": str(settings.seed),
        "Command": command(),
    }


def command() -> str:
    """Return the command line as it was typed, ready to be typed again."""
    return shlex.join(["labelwise", *sys.argv[1:]])


def summarise(evaluation: "Evaluation") -> None:
    """Print the headline figures, each with its interval."""
    rows = []
    for figure in evaluation.headline:
        missing = "infinite" if evaluation.is_infinite(figure) else "undefined"
        value = missing if figure.value is None else f"{figure.value:.4f}"
        known = figure.low is not None and figure.high is not None
        rows.append((figure.name, value, f"{figure.low:.4f} to {figure.high:.4f}" if known else ""))
    say()
    show_table(("on " + (evaluation.data.split or "all rows"), "value", "95 % interval"), rows)
    for note in evaluation.notes:
        say(note)
