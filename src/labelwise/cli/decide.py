"""``labelwise decide``: thresholds and other rules, fitted on anyone's scores."""

from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.evaluate import Scores

__all__ = ["decide"]


def decide(
    source: Annotated[Path, typer.Argument(help="Scores: .csv, .tsv, .parquet or .npz.")],
    rule: Annotated[str, typer.Option(help="best-f, precision-0.9, recall-0.9, average-3, ...")],
    scores: Annotated[Scores | None, typer.Option(help="What the file's scores are.")] = None,
    link: Annotated[
        str | None, typer.Option(help="Of logits: sigmoid (default), softmax, or none.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A second file with the labels.")] = None,
    calibrate: Annotated[str, typer.Option(help="First fit this calibrator.")] = "none",
    test: Annotated[Path | None, typer.Option(help="Other scores, to report on.")] = None,
    fit_on: Annotated[str | None, typer.Option(help="Split to fit on.")] = None,
    report_on: Annotated[str | None, typer.Option(help="Split to report on.")] = None,
    folds: Annotated[int, typer.Option(min=2, help="Of one undivided file.")] = 5,
    seed: Annotated[int, typer.Option(help="Deals rows into folds.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The thresholds, a JSON file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rule as JSON.")] = False,
) -> None:
    """Fit a rule that turns probabilities into label sets, and judge it on rows it did not see."""
    from labelwise.cli.evaluate import show
    from labelwise.cli.text import say
    from labelwise.scores import Plan, decision, judge, read_scores, save_json

    table = read_scores(source, scores, link=link, labels=labels)
    other = None if test is None else read_scores(test, scores, link=link)
    plan = Plan(calibrator=calibrate, rule=rule, folds=folds, seed=seed)
    judged = judge(table, plan, other=other, fit_on=fit_on, report_on=report_on, query_length=0)
    record = decision(judged)
    if out is not None:
        save_json(out, record)
    if json:
        import json as text

        say(text.dumps(record, ensure_ascii=False, allow_nan=False))
        return
    show(judged.evaluation, json=False, out=None)
    say(f"rule fitted on {judged.fitted_on}: {judged.made.rule_words}")
    if out is not None:
        say(f"thresholds: {out}")
