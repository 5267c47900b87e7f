"""``labelwise calibrate``: probabilities, thresholds and guarantees from anyone's scores."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.calibration import few_labels
from labelwise.cli.figures import say_shortfall, show, show_exclusive
from labelwise.cli.options import Options, pooled
from labelwise.cli.text import next_steps, number, say, show_table, tell
from labelwise.decide import LabelFigures, label_figures
from labelwise.errors import DataError, SettingsError
from labelwise.evaluation import Subgroups
from labelwise.predictions import Predictions
from labelwise.report.runs import write_folder
from labelwise.scores import (
    FitPlan,
    Judged,
    ScoreTable,
    comparison,
    decision,
    judge,
    promise_scores,
    read_fitted,
    read_scores,
    save_calibration,
    save_intervals,
    save_json,
)
from labelwise.scores.embeddings import read_texts
from labelwise.scores.fitted import save_detections
from labelwise.taxonomy import AttributeGroups

SHOWN = 20
OPERATING = ("sensitivity", "specificity", "false-alarms")  # rules of an operating point
FIGURES = ("sensitivity", "specificity", "false alarms per 1,000")  # of such a rule


def calibrate(source: Path, given: Options) -> None:
    """Fit probabilities that mean what they say, and thresholds."""
    scores_file, thresholds = source, given.out is not None and given.target.suffix == ".json"
    _check(given, thresholds)
    with ExitStack() as stack:
        if given.pool is not None:
            source = stack.enter_context(pooled(source, given.scores, given.by or [], given.pool))
            given.scores, given.by = "logits", None
        table, other, groups = _tables(source, given)
        method = given.calibrator or ("none" if thresholds or given.out is None else "auto")
        rows = {"other": other, "fit_on": given.fit_on, "report_on": given.report_on}
        divided = any(value is not None for value in rows.values())
        if given.guarantee is not None:
            _guarantee(table, method, rows, given)
            return
        if method == "few" or (method == "auto" and table.unlabelled is not None):
            if divided or groups is not None or given.rule is not None:
                alone = "--test, --fit-on, --report-on, --attributes and --rule"
                raise SettingsError(f"{alone} need another --calibrator than few")
            _few(table, given)
            return
        if divided and method != "auto":
            given.refuse("the rows to fit on and those to report on are given", "folds")
        _fit(scores_file, table, method, groups, rows, given)


def _check(given: Options, thresholds: bool) -> None:
    if given.rule is not None and given.guarantee is not None:
        raise SettingsError("give either --rule, such as best-f, or --guarantee, not both")
    if given.out is None and given.rule is None and given.guarantee is None:
        raise SettingsError(
            "say where to write with -o FOLDER, or what to fit: give either --rule or --guarantee"
        )
    if thresholds and given.rule is None and given.guarantee is None:
        raise SettingsError("a .json file is for thresholds: give either --rule or --guarantee")
    if given.prompts is not None and given.texts is None:
        raise SettingsError("--prompts says what the embeddings of --texts are of: give both")
    if given.guarantee is None:
        given.refuse("it belongs to --guarantee", "confidence", "guarantee_share", "cross_fit")
        return
    given.refuse("a guarantee is made without folds", "folds")
    given.refuse("a guarantee is tested on all rows", "by")
    given.refuse("it shapes a rule, not a guarantee", "attributes")
    if given.calibrator in (None, "none"):
        given.refuse("it keeps rows from a --calibrator", "guarantee_share", "cross_fit")


def _tables(source: Path, given: Options) -> tuple[ScoreTable, Any, Any]:
    columns = tuple(dict.fromkeys(given.by or ()))
    keep = (*columns, "time") if "/day" in (given.rule or "") else columns
    embedded = None if given.texts is None else read_texts(given.texts, given.prompts)
    read = partial(read_scores, kind=given.scores, link=given.link)
    table = read(source, labels=given.labels, texts=embedded, keep=keep)
    if embedded is not None and embedded.prompts and given.out is not None:
        given.target.mkdir(parents=True, exist_ok=True)
        write_csv(given.target / "prompts.csv", ["label", "prompt"], embedded.prompts)
    other = None if given.test is None else read(given.test, keep=columns)
    groups = None
    if given.attributes is not None:
        named = AttributeGroups.read(given.attributes)
        table, groups = table.settled(named)
        if other is not None:
            other, _ = other.settled(named)
    return table, other, groups


def _fit(
    source: Path, table: ScoreTable, method: str, groups: Any, rows: dict[str, Any], given: Options
) -> None:
    rule, by = given.rule or "0.5", tuple(dict.fromkeys(given.by or ()))
    pace = table.photos_per_day() if "/day" in rule else None
    plan = FitPlan(method, rule, given.folds or 5, given.seed or 0, pace, groups)
    alone = {"query_length": 0} if given.rule is not None else {"curves": True}
    judged = judge(table, plan, by=by, **alone, **rows)
    folder = given.target if given.out is not None and given.target.suffix != ".json" else None
    if folder is not None:
        own = table.predictions if rows["other"] is None else judged.predictions
        save_calibration(folder, judged, own)
        write_folder(judged.evaluation, folder, title=f"{folder.name}, calibrated")
        if table.detections is not None:
            fitted = [read_fitted(folder / "link.json")]
            save_detections(folder / "detections.parquet", table.detections, fitted)
    if given.rule is None:
        if not given.json:
            stages = comparison(judged.evaluation)
            names = list(next(iter(stages.values())))
            cells = [[name, *(_number(stages[stage][name]) for stage in stages)] for name in names]
            show_table(["", *stages], cells)
            say()
            if judged.made.compared:
                columns = ("compared by held-out log loss", "log loss", "behind", "standard error")
                fits = judged.made.compared
                losses = ((fit.name, fit.log_loss, fit.behind, fit.standard_error) for fit in fits)
                show_table(columns, [(name, *map(_number, lost)) for name, *lost in losses])
                say()
            say(f"link fitted on {judged.fitted_on}: {judged.made.link_words or 'kept as it is'}")
        show(judged.evaluation, json=given.json, out=folder)
        if not given.json and folder is not None:
            next_steps(_applied(folder))
        return
    told = table if rows["other"] is None else rows["other"]
    figures, parts = _figures(
        judged, {name: told.subgroups(name, judged.predictions) for name in by}
    )
    record = decision(judged)
    record["labels"] = _specs(figures)
    if parts:
        record["by"] = {column: _specs(groups) for column, groups in parts.items()}
    path = _write(record, given, folder)
    if given.json:
        return
    show(judged.evaluation, json=False, out=folder)
    for name, part in figures.items():
        say()
        _show_figures(f"per label, {name} (95 % intervals)", part, rule)
    for column, values in parts.items():
        say()
        _show_by(column, values)
    show_exclusive(judged.evaluation)
    say(f"rule fitted on {judged.fitted_on}: {judged.made.rule_words}")
    if path is not None:
        say(f"thresholds: {path}")
    tested = say_shortfall(rule, *next(iter(figures.items()), ("", ())))
    told = given.as_typed("scores", "labels", "fit_on", "report_on", "test")
    guarantee = f"calibrate {source}{told} --guarantee {tested} -o guaranteed.json"
    next_steps(*([_applied(folder or path)] if path else []), *([guarantee] if tested else []))


def _applied(fitted: Path | None) -> str:
    return f"predict {fitted} OTHER_SCORES.csv -o tags.csv"


def _few(table: ScoreTable, given: Options) -> None:
    own, out, new = table.predictions, given.target, table.unlabelled
    pool = own.logits if new is None else np.concatenate([own.logits, new])
    fitted = few_labels(own.logits, own.labels, own.link, own.observed, pool=pool)
    folds = min(given.folds or 5, len(own))
    judged = judge(replace(table, split=None), FitPlan("few", folds=folds, seed=given.seed or 0))
    judged = replace(judged, made=replace(judged.made, link=fitted.link))
    save_calibration(out, judged, own)
    ids = (*own.ids, *table.unlabelled_ids)
    save_intervals(out / "intervals.parquet", ids, own.names, pool, fitted)
    write_folder(judged.evaluation, out, title=f"{out.name}, calibrated")
    if not given.json:
        shares = zip(own.names, fitted.shares.tolist(), strict=True)
        rows = [(name, f"{s:.2%}", f"{low:.2%} to {high:.2%}") for name, (s, low, high) in shares]
        show_table(("label", "share of all rows", "90 % interval"), rows[:SHOWN])
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN:,} more labels")
        say()
        labelled = f"{len(own):,} of {counted(len(ids), 'row')} labelled"
        say(f"{labelled}: {fitted.error_in_words('labelled rows')}")
        say(f"wrote probabilities of all rows with 90 % intervals: {out / 'intervals.parquet'}")
    show(judged.evaluation, json=given.json, out=out)
    if not given.json:
        next_steps(_applied(out))


def _guarantee(table: ScoreTable, method: str, rows: dict[str, Any], given: Options) -> None:
    how = {"confidence": given.get("confidence", 0.95), "share": given.guarantee_share}
    how |= {"cross_fit": given.cross_fit, "seed": given.seed or 0, **rows}
    how["calibrator"] = method if given.calibrator else "none"
    guaranteed = promise_scores(table, given.guarantee or "", **how)
    promised = guaranteed.promised
    if not promised.promises:
        warning = "" if promised.warning is None else f". {promised.warning}"
        raise DataError(promised.refused[0] + warning)
    is_file = given.out is None or given.target.suffix == ".json"
    path = _write(guaranteed.spec(), given, None if is_file else given.target)
    if given.json:
        return
    if guaranteed.link_words:
        say(f"calibrator: {guaranteed.link_words}")
    for promise in promised.promises[:SHOWN]:
        say(str(promise))
    tell(promised.warning)
    for sentence in promised.refused[:SHOWN]:
        say(f"not guaranteed: {sentence}")
    if guaranteed.checks:
        cells = []
        for promise, check in zip(promised.promises, guaranteed.checks, strict=True):
            values = (promise.level, check.value, check.lower, check.upper)
            what = ", ".join(promise.labels[:3]) or promise.what
            cells.append((what, *map("{:.3f}".format, values), check.counted, check.verdict))
        head = ("guarantee", "level", "on other rows", "from", "to", "photos", "verdict")
        show_table(head, cells)
    else:
        say("not checked: --test FILE or --report-on SPLIT would check it on other rows")
    say(f"made on {guaranteed.fitted_on}")
    if path is not None:
        say(f"rule and guarantees: {path}")
        next_steps(_applied(path))


def _write(record: dict[str, Any], given: Options, folder: Path | None) -> Path | None:
    path = None
    if given.out is not None:
        path = given.target if folder is None else folder / "thresholds.json"
        save_json(path, record)
    if given.json:
        say(json.dumps(record, ensure_ascii=False, allow_nan=False))
    return path


Figures = dict[str, tuple[LabelFigures, ...]]


def _specs(figures: Figures) -> dict[str, list[dict[str, Any]]]:
    return {name: [row.spec() for row in rows] for name, rows in figures.items()}


def _figures(judged: Judged, by: dict[str, Subgroups]) -> tuple[Figures, dict[str, Figures]]:
    """Return the figures of a rule on other rows and on its own, and in each subgroup."""
    seen, sets = judged.predictions, judged.sets
    if sets is None or judged.made.rule is None:
        return {}, {column: {} for column in by}

    def measured(rows: Predictions, chosen: Any) -> tuple[LabelFigures, ...]:
        known, names = rows.observed, rows.names
        return label_figures(chosen, rows.majority, known, names=names, groups=rows.groups)

    fitted = judged.fitted_rows.with_link(judged.link)
    new = "by cross-validation" if judged.fitted_rows is seen else "on other rows"
    stages = {
        new: measured(seen, sets),
        "on the rows it was fitted on": measured(fitted, fitted.sets(judged.made.rule)),
    }
    return stages, {
        column: {name: measured(seen.take(rows), sets[rows]) for name, rows in groups.parts()}
        for column, groups in by.items()
    }


def _number(value: float | None) -> str:
    return "∞" if value == float("inf") else number(value, ".5f")


def _cell(figure: tuple[float, float, float] | None, times: float = 1.0, digits: int = 3) -> str:
    if figure is None:
        return "–"
    value, low, high = (f"{times * number:.{digits}f}" for number in figure)
    return f"{value} ({low} to {high})"


def _operating(row: LabelFigures) -> tuple[str, str, str]:
    return _cell(row.recall), _cell(row.specificity), _cell(row.false_alarms, 1000, 1)


def _show_some(
    head: Sequence[str], cells: Sequence[Sequence[Any]], most: int, title: str, what: str
) -> None:
    show_table(head, cells[:most], title=title)
    if len(cells) > most:
        say(f"{what.format(most)} of {len(cells):,}; all of them with --json or -o")


def _show_by(column: str, parts: Figures) -> None:
    cells = [
        (row.name, name, f"{row.present:,} of {row.known:,}", *_operating(row))
        for name, rows in parts.items()
        for row in rows
    ]
    cells.sort(key=lambda cell: cell[0])
    head = ("label", column, "present", *FIGURES)
    _show_some(head, cells, 3 * SHOWN, f"by {column} (95 % intervals)", "{} rows")


def _show_figures(title: str, rows: tuple[LabelFigures, ...], rule: str) -> None:
    operating = rule.startswith(OPERATING)
    names, what = FIGURES, "the first {} labels"
    if not operating:
        names, what = ("precision", "recall", "F1"), "the {} labels of lowest F1"
        rows = tuple(sorted(rows, key=lambda row: (row.f1 or (2.0,))[0]))
    cells = []
    for row in rows:
        figures = _operating(row) if operating else map(_cell, (row.precision, row.recall, row.f1))
        cells.append((row.name, row.present, row.chosen, *figures))
    _show_some(("label", "present", "chosen", *names), cells, SHOWN, title, what)
