"""``labelwise evaluate``: how good scores are, a run's or anyone's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from labelwise.evaluate import Evaluation

__all__ = ["Scores", "evaluate", "show", "write_folder"]

WORST = 5


Scores = Literal["logits", "probs"]


def evaluate(
    source: Annotated[Path, typer.Argument(help="A run folder, or .csv, .tsv, .parquet, .npz.")],
    scores: Annotated[Scores | None, typer.Option(help="What a file's scores are.")] = None,
    link: Annotated[
        str | None, typer.Option(help="Of logits: sigmoid (default), softmax, or none.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A second file with the labels.")] = None,
    split: Annotated[str | None, typer.Option(help="Which rows; `all` for every one.")] = None,
    rule: Annotated[str, typer.Option(help="0.5, top-4, expected-f, or none.")] = "0.5",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for report, charts and JSON.")
    ] = None,
    bins: Annotated[int, typer.Option(min=1, help="Bins of the reliability curves.")] = 10,
    top_k: Annotated[int, typer.Option(min=1, help="Surest labels of an image.")] = 4,
    query_length: Annotated[int, typer.Option(min=0, help="Longest query; 0 for none.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print the evaluation as JSON.")] = False,
) -> None:
    """Measure ranking, calibration, sets and zero-label behaviour of scores as they are."""
    options = {"bins": bins, "k": top_k, "query_length": query_length}
    if source.is_dir():
        evaluation, extras = _run(source, split or "test", options)
    else:
        from labelwise.scores import fixed_rule, judge_as_given, read_scores

        table = read_scores(source, scores, link=link, labels=labels)
        evaluation, extras = judge_as_given(table, fixed_rule(rule), split=split, **options), {}
    if out is not None:
        from labelwise.cli.outcome import command

        origin = {"Data": str(source), "Command": command()} | extras.pop("origin", {})
        write_folder(evaluation, out, title=source.name, origin=origin, **extras)
    show(evaluation, json=json, out=out)


def write_folder(evaluation: "Evaluation", folder: Path, *, title: str, **extras: Any) -> None:
    """Write ``evaluation.json``, ``report.html`` and the charts."""
    from labelwise.report import plots, write_report
    from labelwise.runs import RunFolder

    files = RunFolder(folder)
    evaluation.save(files.evaluation_path)
    write_report(evaluation, files.report, title=title, **extras)
    plots.save_charts(evaluation, folder / "charts")


def show(evaluation: "Evaluation", *, json: bool, out: Path | None) -> None:
    """Print the evaluation for a machine, or its headline and worst labels for a person."""
    from labelwise.cli.outcome import summarise
    from labelwise.cli.text import say, show_table

    if json:
        say(evaluation.to_json())
        return
    summarise(evaluation)
    worst = sorted((row for row in evaluation.rows if row.ap is not None), key=lambda r: r.ap or 0)
    say()
    show_table(
        ("worst labels", "present", "AP"),
        [(row.name, f"{row.present:,}", f"{row.ap:.4f}") for row in worst[:WORST]],
    )
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        some = ", ".join(undefined[:WORST]) + (", ..." if len(undefined) > WORST else "")
        say(f"without a known positive, left out: {len(undefined):,} labels ({some})")
    say()
    say(f"ranking: {evaluation.ranking.how}")
    if evaluation.final is not None:
        say(
            f"calibration: {len(evaluation.final.pooled.counts)} equal-width bins, "
            f"{evaluation.final.pooled.entries}"
        )
    if evaluation.sets is not None:
        say(f"sets: {evaluation.sets.rule}")
    if out is not None:
        say(f"report: {out / 'report.html'}")


def _run(folder: Path, split: str, options: dict[str, Any]) -> tuple["Evaluation", dict[str, Any]]:
    """Return the evaluation of a run's saved predictions, and what else its report shows."""
    from labelwise.api import origin_of
    from labelwise.cli.outcome import command
    from labelwise.evaluate import evaluate as measure
    from labelwise.report import choose_examples
    from labelwise.runs import RunFolder
    from labelwise.scores import read_run

    run = read_run(folder, split)
    own = run.predictions.link
    evaluation = measure(run.predictions, own, run.rule, calibrated=run.calibrated, **options)
    link = run.calibrated or own
    extras: dict[str, Any] = {
        "history": RunFolder(folder).journal.read(),
        "origin": origin_of(RunFolder(folder), command=command()),
    }
    if link is not None:
        extras["examples"] = choose_examples(run.predictions, link)
    return evaluation, extras
