"""``labelwise calibrate``: probabilities that mean what they say, from anyone's scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.evaluate import Scores

if TYPE_CHECKING:
    from labelwise.calibrate import Candidate

__all__ = ["calibrate"]


def calibrate(
    source: Annotated[Path, typer.Argument(help="Scores: .csv, .tsv, .parquet, .npz, .jsonl.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    scores: Annotated[Scores | None, typer.Option(help="What the file's scores are.")] = None,
    link: Annotated[
        str | None, typer.Option(help="Of logits: sigmoid (default), softmax, or none.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="The labels: a second file, or any data labelwise reads.")
    ] = None,
    method: Annotated[str, typer.Option(help="auto, temperature, platt, beta, ...")] = "auto",
    test: Annotated[Path | None, typer.Option(help="Other scores, to report on.")] = None,
    fit_on: Annotated[str | None, typer.Option(help="Split to fit on.")] = None,
    report_on: Annotated[str | None, typer.Option(help="Split to report on.")] = None,
    folds: Annotated[int, typer.Option(min=2, help="Of one undivided file.")] = 5,
    seed: Annotated[int, typer.Option(help="Deals rows into folds.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Fit a calibrator, and judge it on rows it did not see.

    Writes link.json, predictions.parquet, probabilities.parquet, the report and its charts.
    """
    from labelwise.cli.evaluate import show, write_folder
    from labelwise.cli.text import say, show_table
    from labelwise.scores import FitPlan, comparison, judge, read_scores, save_calibration

    table = read_scores(source, scores, link=link, labels=labels)
    other = None if test is None else read_scores(test, scores, link=link)
    plan = FitPlan(calibrator=method, folds=folds, seed=seed)
    judged = judge(table, plan, other=other, fit_on=fit_on, report_on=report_on)
    save_calibration(out, judged, table.predictions if other is None else judged.predictions)
    write_folder(judged.evaluation, out, title=f"{source.name}, calibrated")
    if not json:
        stages = comparison(judged.evaluation)
        names = list(next(iter(stages.values())))
        rows = [[name, *(_number(stages[stage][name]) for stage in stages)] for name in names]
        show_table(["", *stages], rows)
        say()
        if judged.made.compared:
            columns = ("compared by held-out log loss", "log loss", "behind", "standard error")
            show_table(columns, [_candidate(row) for row in judged.made.compared])
            say()
        say(f"link fitted on {judged.fitted_on}: {judged.made.link_words or 'kept as it is'}")
    show(judged.evaluation, json=json, out=out)


def _candidate(row: "Candidate") -> tuple[str, str, str, str]:
    return row.name, f"{row.log_loss:.5f}", f"{row.behind:.5f}", f"{row.standard_error:.5f}"


def _number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return "∞" if value == float("inf") else f"{value:.5f}"
