"""What a finished run shows: its report and a short table."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.cli.text import say, show_table

if TYPE_CHECKING:
    from labelwise.evaluate import Evaluation
    from labelwise.training.run import Run

__all__ = ["report_run", "summarise"]


def report_run(run: "Run") -> Path:
    """Write ``report.html`` into the run's folder unless it is there; return its path."""
    from labelwise.predictions import Predictions
    from labelwise.predictor import Predictor
    from labelwise.report import choose_examples, write_report

    path = run.folder / "report.html"
    if run.was_finished and path.exists():
        return path
    split = run.evaluation.data.split or "test"
    predictions = Predictions.load(run.folder / "predictions" / f"{split}.parquet")
    link = Predictor.load(run.folder).link
    examples = () if link is None else choose_examples(predictions, link, run.table.images)
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return write_report(
        run.evaluation,
        path,
        title=f"{run.table.name}: {run.folder.name}",
        examples=examples,
        history=[json.loads(line) for line in lines],
    )


def summarise(evaluation: "Evaluation") -> None:
    """Print the headline figures, each with its interval."""
    rows = []
    for figure in evaluation.headline:
        value = "undefined" if figure.value is None else f"{figure.value:.4f}"
        known = figure.low is not None and figure.high is not None
        rows.append((figure.name, value, f"{figure.low:.4f} to {figure.high:.4f}" if known else ""))
    say()
    show_table(("on " + (evaluation.data.split or "all rows"), "value", "95 % interval"), rows)
    for note in evaluation.notes:
        say(note)
