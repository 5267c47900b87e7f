"""``labelwise calibrate``: probabilities that mean what they say, from anyone's scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import (
    ROWS_GIVEN,
    AttributesOption,
    FitOnOption,
    FoldsOption,
    LabelsOption,
    LinkOption,
    ReportOnOption,
    ScoresOption,
    TestOption,
    number_of_folds,
)

if TYPE_CHECKING:
    from labelwise.attributes import AttributeColumns
    from labelwise.calibration import Candidate
    from labelwise.scores import ScoreTable


SHARES_SHOWN = 20


def calibrate(
    source: Annotated[
        Path,
        typer.Argument(help="Scores: .csv, .tsv, .parquet, .npz, .jsonl; or embeddings, .npz."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    scores: ScoresOption = None,
    link: LinkOption = None,
    labels: LabelsOption = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="Embeddings of the labels' texts, .npz: scores are cosines with them."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Which of the texts each label has: .csv or .tsv, label and prompt."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="auto, temperature, platt, beta, ...; few for tens of labelled photos."),
    ] = "auto",
    test: TestOption = None,
    fit_on: FitOnOption = None,
    report_on: ReportOnOption = None,
    folds: FoldsOption = None,
    attributes: AttributesOption = None,
    seed: Annotated[int, typer.Option(help="Deals rows into folds.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Fit a calibrator, and judge it on rows it did not see.

    Where --labels knows only some of the rows, auto is `few`: labels share what they can, the
    other rows are the pool, and every row gets probabilities with intervals.

    Writes link.json, predictions.parquet, probabilities.parquet, the report and its charts.
    """
    from labelwise.attributes import AttributeGroups
    from labelwise.cli.evaluation_shown import show, write_folder
    from labelwise.cli.text import say, show_table
    from labelwise.errors import SettingsError
    from labelwise.scores import (
        FitPlan,
        comparison,
        judge,
        read_fitted,
        read_scores,
        save_calibration,
    )
    from labelwise.scores.applied import save_detections
    from labelwise.scores.embeddings import read_texts, write_prompts

    if prompts is not None and texts is None:
        raise SettingsError("--prompts says what the embeddings of --texts are of: give both")
    embedded = None if texts is None else read_texts(texts, prompts)
    table = read_scores(source, scores, link=link, labels=labels, texts=embedded)
    if embedded is not None and embedded.prompts:
        out.mkdir(parents=True, exist_ok=True)
        write_prompts(out / "prompts.csv", embedded)
    if attributes is not None and (method == "few" or table.unlabelled is not None):
        raise SettingsError("--attributes needs another --method than few")
    if method == "few" or (method == "auto" and table.unlabelled is not None):
        if test is not None or fit_on is not None or report_on is not None:
            raise SettingsError("--test, --fit-on and --report-on need another --method than few")
        parts = number_of_folds(folds)
        calibrate_few(table, out, folds=parts, seed=seed, title=source.name, json=json)
        return
    divided = test is not None or fit_on is not None or report_on is not None
    parts = number_of_folds(folds, ROWS_GIVEN if divided and method != "auto" else "")
    other = None if test is None else read_scores(test, scores, link=link)
    groups: AttributeColumns | None = None
    if attributes is not None:
        table, groups = table.settled(AttributeGroups.read(attributes))
        if other is not None:
            other, _ = other.settled(AttributeGroups.read(attributes))
    plan = FitPlan(calibrator=method, folds=parts, seed=seed, attributes=groups)
    judged = judge(table, plan, other=other, fit_on=fit_on, report_on=report_on, curves=True)
    save_calibration(out, judged, table.predictions if other is None else judged.predictions)
    write_folder(judged.evaluation, out, title=f"{source.name}, calibrated")
    if table.detections is not None:
        save_detections(
            out / "detections.parquet", table.detections, [read_fitted(out / "link.json")]
        )
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


def calibrate_few(
    table: "ScoreTable", out: Path, *, folds: int, seed: int, title: str, json: bool
) -> None:
    """Calibrate all rows by the few that have labels, and judge that over folds of these."""
    from dataclasses import replace

    import torch

    from labelwise.calibration import few_labels
    from labelwise.cli.evaluation_shown import show, write_folder
    from labelwise.cli.text import say, show_table
    from labelwise.scores import FitPlan, judge, save_calibration, save_intervals
    from labelwise.system.text import counted

    own = table.predictions
    pool = own.logits
    if table.unlabelled is not None:
        pool = torch.cat([own.logits, table.unlabelled])
    fitted = few_labels(own.logits, own.labels, own.link, own.observed, pool=pool)
    plan = FitPlan(calibrator="few", folds=min(folds, len(own)), seed=seed)
    judged = judge(replace(table, split=None), plan)
    judged = replace(judged, made=replace(judged.made, link=fitted.link))
    save_calibration(out, judged, own)
    ids = (*own.ids, *table.unlabelled_ids)
    save_intervals(out / "intervals.parquet", ids, own.names, pool, fitted)
    write_folder(judged.evaluation, out, title=f"{title}, calibrated")
    if not json:
        rows = [
            (name, f"{share:.2%}", f"{low:.2%} to {high:.2%}")
            for name, (share, low, high) in zip(own.names, fitted.shares.tolist(), strict=True)
        ]
        show_table(("label", "share of all rows", "90 % interval"), rows[:SHARES_SHOWN])
        if len(rows) > SHARES_SHOWN:
            say(f"and {len(rows) - SHARES_SHOWN:,} more labels")
        say()
        say(
            f"{len(own):,} of {counted(len(ids), 'row')} labelled: "
            f"{fitted.error_in_words('labelled rows')}"
        )
        say(f"wrote probabilities of all rows with 90 % intervals: {out / 'intervals.parquet'}")
    show(judged.evaluation, json=json, out=out)


def _candidate(row: "Candidate") -> tuple[str, str, str, str]:
    return row.name, f"{row.log_loss:.5f}", f"{row.behind:.5f}", f"{row.standard_error:.5f}"


def _number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return "∞" if value == float("inf") else f"{value:.5f}"
