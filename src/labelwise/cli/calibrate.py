"""``labelwise calibrate``: probabilities, thresholds and guarantees from anyone's scores."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.arguments import (
    Attributes,
    By,
    Calibrator,
    Confidence,
    Folds,
    Guarantee,
    Json,
    Labels,
    Link,
    Out,
    Pool,
    Rule,
    Scores,
    Seed,
    option,
)
from labelwise.cli.command import app, as_typed, refuse, verb
from labelwise.cli.options import pooled
from labelwise.cli.text import quoted
from labelwise.errors import SettingsError


@verb(
    app,
    "calibrate scores.csv --scores logits --labels truth.csv -o fitted/ --rule best-f",
    "calibrate scores.csv --scores probs --guarantee precision=0.9 -o thresholds.json",
    more="link",
)
def calibrate(
    source: Annotated[
        Path,
        typer.Argument(help="Scores: .csv, .tsv, .parquet, .npz, .jsonl; or embeddings, .npz."),
    ],
    *,
    out: Out = None,
    scores: Scores = None,
    labels: Labels = None,
    calibrator: Calibrator = None,
    rule: Rule = None,
    guarantee: Guarantee = None,
    fit_on: Annotated[str | None, option("--fit-on", help="Split to fit on.")] = None,
    report_on: Annotated[str | None, option("--report-on", help="Split to report on.")] = None,
    test: Annotated[Path | None, option("--test", help="Other scores, to report on.")] = None,
    by: By = None,
    pool: Pool = None,
    as_json: Json = False,
    link: Link = None,
    folds: Folds = None,
    seed: Seed = None,
    attributes: Attributes = None,
    confidence: Confidence = None,
    guarantee_share: Annotated[
        float | None,
        option(
            "--guarantee-share",
            help="Share of rows kept from the calibrator for the guarantee (0.5).",
        ),
    ] = None,
    cross_fit: Annotated[
        bool, option("--cross-fit", help="Fit the calibrator again on all rows afterwards.")
    ] = False,
    texts: Annotated[
        Path | None, option("--texts", help="Embeddings of the labels' texts, .npz.")
    ] = None,
    prompts: Annotated[
        Path | None, option("--prompts", help="Which texts each label has: .csv of label,prompt.")
    ] = None,
) -> None:
    """Fit probabilities that mean what they say, and thresholds.

    What is fitted is judged on rows it did not see. -o names a folder for link.json, the
    probabilities and the report, with --rule or --guarantee also thresholds.json; or a .json file
    for the thresholds alone.

    Rules: 0.5, top-4, average-3, best-f, expected-f, precision-0.9, recall-0.9, sensitivity-0.95,
    specificity-0.9, false-alarms-5/1000, false-alarms-2/day, cost-1-5, miss-rate-0.1,
    wrong-rate-0.1, mean-f-0.5; thresholds end in -shared or -per-label.

    Where --labels knows only some of the rows, the calibrator is `few`: labels share what they
    can, and every row gets probabilities with intervals.
    """
    thresholds = out is not None and Path(out).suffix == ".json"
    if rule is not None and guarantee is not None:
        raise SettingsError("give either --rule, such as best-f, or --guarantee, not both")
    if out is None and rule is None and guarantee is None:
        raise SettingsError(
            "say where to write with -o FOLDER, or what to fit: give either --rule or --guarantee"
        )
    if thresholds and rule is None and guarantee is None:
        raise SettingsError("a .json file is for thresholds: give either --rule or --guarantee")
    if prompts is not None and texts is None:
        raise SettingsError("--prompts says what the embeddings of --texts are of: give both")
    if guarantee is None:
        refuse("it belongs to --guarantee", "confidence", "guarantee_share", "cross_fit")
    else:
        refuse("a guarantee is made without folds", "folds")
        refuse("a guarantee is tested on all rows", "by")
        refuse("it shapes a rule, not a guarantee", "attributes")
        if calibrator in (None, "none"):
            refuse("it keeps rows from a --calibrator", "guarantee_share", "cross_fit")
    from labelwise.cli.calibrating import Target, fit, fit_few, guarantee_rows, read_tables

    columns = () if pool else tuple(dict.fromkeys(by or ()))
    with nullcontext(source) if pool is None else pooled(source, scores, by or [], pool) as path:
        table, other, groups = read_tables(
            path,
            scores if pool is None else "logits",
            link=link,
            labels=labels,
            columns=columns,
            timed="/day" in (rule or ""),
            texts=texts,
            prompts=prompts,
            test=test,
            attributes=attributes,
            out=out,
        )
    method = calibrator or ("none" if thresholds or out is None else "auto")
    target = Target(None if out is None else Path(out), as_json)
    rows = {"other": other, "fit_on": fit_on, "report_on": report_on}
    divided = any(value is not None for value in rows.values())
    if guarantee is not None:
        guarantee_rows(
            table,
            guarantee,
            target,
            rows,
            calibrator=calibrator or "none",
            confidence=0.95 if confidence is None else confidence,
            share=guarantee_share,
            cross_fit=cross_fit,
            seed=seed or 0,
        )
        return
    if method == "few" or (method == "auto" and table.unlabelled is not None):
        if divided or groups is not None or rule is not None:
            alone = "--test, --fit-on, --report-on, --attributes and --rule"
            raise SettingsError(f"{alone} need another --calibrator than few")
        fit_few(table, target, folds or 5, seed or 0)
        return
    if divided and method != "auto":
        refuse("the rows to fit on and those to report on are given", "folds")
    again = f"{quoted(source)}{as_typed('scores', 'labels', 'fit_on', 'report_on', 'test')}"
    fit(table, method, rule, target, rows, columns, groups, folds or 5, seed or 0, again)
