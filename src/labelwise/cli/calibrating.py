"""What ``labelwise calibrate`` fits, and how it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import together
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.calibration import few_labels
from labelwise.cli.figures import say_shortfall, show, show_exclusive
from labelwise.cli.text import next_steps, number, quoted, say, show_table, tell
from labelwise.decide import LabelFigures, label_figures
from labelwise.errors import DataError
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
from labelwise.taxonomy import AttributeColumns, AttributeGroups

SHOWN = 20
OPERATING = ("sensitivity", "specificity", "false-alarms")  # rules of an operating point
FIGURES = ("sensitivity", "specificity", "false alarms per 1,000")  # of such a rule


@dataclass(frozen=True)
class Target:
    """Where results go: a folder, a .json file of thresholds or nowhere; and how they are shown."""

    path: Path | None
    as_json: bool

    @property
    def folder(self) -> Path | None:
        return None if self.path is None or self.path.suffix == ".json" else self.path

    def write(self, record: Mapping[str, object]) -> Path | None:
        """Write thresholds, or print them as JSON; return their file."""
        path = self.path if self.folder is None else self.folder / "thresholds.json"
        if path is not None:
            save_json(path, record)
        if self.as_json:
            say(dumps(record, ensure_ascii=False, allow_nan=False))
        return path


def read_tables(
    source: Path,
    kind: Literal["logits", "probs"] | None,
    *,
    link: str | None,
    labels: str | None,
    columns: tuple[str, ...],
    timed: bool,
    texts: Path | None,
    prompts: Path | None,
    test: Path | None,
    attributes: Path | None,
    out: str | None,
) -> tuple[ScoreTable, ScoreTable | None, AttributeColumns | None]:
    """Return the scores, others to report on, and groups of labels that exclude each other."""
    embedded = None if texts is None else read_texts(texts, prompts)
    read = partial(read_scores, kind=kind, link=link)
    keep = (*columns, "time") if timed else columns
    table = read(source, labels=labels, texts=embedded, keep=keep)
    if embedded is not None and embedded.prompts and out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_csv(Path(out) / "prompts.csv", ["label", "prompt"], embedded.prompts)
    other = None if test is None else read(test, keep=columns)
    if attributes is None:
        return table, other, None
    named = AttributeGroups.read(attributes)
    table, groups = table.settled(named)
    return table, None if other is None else other.settled(named)[0], groups


def fit(
    table: ScoreTable,
    method: str,
    chosen_rule: str | None,
    target: Target,
    rows: dict[str, Any],
    by: tuple[str, ...],
    groups: AttributeColumns | None,
    folds: int,
    seed: int,
    again: str,
) -> None:
    """Fit probabilities and a rule; ``again`` names the scores in commands that go on."""
    rule, folder = chosen_rule or "0.5", target.folder
    pace = table.photos_per_day() if "/day" in rule else None
    plan = FitPlan(method, rule, folds, seed, pace, groups)
    alone = {"query_length": 0} if chosen_rule is not None else {"curves": True}
    judged = judge(table, plan, by=by, **alone, **rows)
    told = table if rows["other"] is None else rows["other"]
    with together():
        if folder is not None:
            own = table.predictions if rows["other"] is None else judged.predictions
            save_calibration(folder, judged, own)
            write_folder(judged.evaluation, folder, title=f"{folder.name}, calibrated")
        if chosen_rule is not None:
            figures, parts = _figures(
                judged, {name: told.subgroups(name, judged.predictions) for name in by}
            )
            record = decision(judged)
            record["labels"] = _specs(figures)
            if parts:
                record["by"] = {column: _specs(groups) for column, groups in parts.items()}
            path = target.write(record)
    if folder is not None and table.detections is not None:
        fitted = [read_fitted(folder / "link.json")]
        save_detections(folder / "detections.parquet", table.detections, fitted)
    if chosen_rule is None:
        if not target.as_json:
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
        show(judged.evaluation, json=target.as_json, out=folder)
        if not target.as_json and folder is not None:
            next_steps(_applied(folder))
        return
    if target.as_json:
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
    guarantee = f"calibrate {again} --guarantee {tested} -o guaranteed.json"
    next_steps(*([_applied(folder or path)] if path else []), *([guarantee] if tested else []))


def _applied(fitted: Path | None) -> str:
    return f"predict {quoted(fitted or '')} OTHER_SCORES.csv -o tags.csv"


def fit_few(table: ScoreTable, target: Target, folds: int, seed: int) -> None:
    """Fit probabilities with intervals, where few rows are labelled."""
    own, out, new = table.predictions, target.path or Path(), table.unlabelled
    pool = own.logits if new is None else np.concatenate([own.logits, new])
    fitted = few_labels(own.logits, own.labels, own.link, own.observed, pool=pool)
    folds = min(folds, len(own))
    judged = judge(replace(table, split=None), FitPlan("few", folds=folds, seed=seed))
    judged = replace(judged, made=replace(judged.made, link=fitted.link))
    ids = (*own.ids, *table.unlabelled_ids)
    with together():
        save_calibration(out, judged, own)
        save_intervals(out / "intervals.parquet", ids, own.names, pool, fitted)
        write_folder(judged.evaluation, out, title=f"{out.name}, calibrated")
    if not target.as_json:
        shares = zip(own.names, fitted.shares.tolist(), strict=True)
        rows = [(name, f"{s:.2%}", f"{low:.2%} to {high:.2%}") for name, (s, low, high) in shares]
        show_table(("label", "share of all rows", "90 % interval"), rows[:SHOWN])
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN:,} more labels")
        say()
        labelled = f"{len(own):,} of {counted(len(ids), 'row')} labelled"
        say(f"{labelled}: {fitted.error_in_words('labelled rows')}")
        say(f"wrote probabilities of all rows with 90 % intervals: {out / 'intervals.parquet'}")
    show(judged.evaluation, json=target.as_json, out=out)
    if not target.as_json:
        next_steps(_applied(out))


def guarantee_rows(
    table: ScoreTable, guarantee: str, target: Target, rows: dict[str, Any], **how: Any
) -> None:
    """Make thresholds that are tested to hold, and show them."""
    guaranteed = promise_scores(table, guarantee, **how, **rows)
    promised = guaranteed.promised
    if not promised.promises:
        warning = "" if promised.warning is None else f". {promised.warning}"
        raise DataError(promised.refused[0] + warning)
    path = target.write(guaranteed.spec())
    if target.as_json:
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


Figures = dict[str, tuple[LabelFigures, ...]]


def _specs(figures: Figures) -> dict[str, list[dict[str, object]]]:
    return {name: [row.spec() for row in rows] for name, rows in figures.items()}


def _figures(judged: Judged, by: dict[str, Subgroups]) -> tuple[Figures, dict[str, Figures]]:
    """Return the figures of a rule on other rows and on its own, and in each subgroup."""
    seen, sets = judged.predictions, judged.sets
    if sets is None or judged.made.rule is None:
        return {}, {column: {} for column in by}

    def measured(rows: Predictions, chosen: NDArray[np.bool_]) -> tuple[LabelFigures, ...]:
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
    head: Sequence[str], cells: Sequence[Sequence[object]], most: int, title: str, what: str
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
