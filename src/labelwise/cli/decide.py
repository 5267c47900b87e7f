"""``labelwise decide``: thresholds and other rules, fitted on anyone's scores, and promises."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from labelwise.decide import LabelFigures
    from labelwise.evaluation import Subgroups
    from labelwise.scores import FitPlan, Judged

    Share = tuple[float, float, float]


SHOWN = 20
OPERATING = ("sensitivity", "specificity", "false-alarms")  # rules of an operating point


def decide(
    source: Annotated[Path, typer.Argument(help="Scores: .csv, .tsv, .parquet, .npz, .jsonl.")],
    rule: Annotated[
        str | None,
        typer.Option(
            help="0.5, top-4, average-3, best-f, expected-f, precision-0.9, recall-0.9, "
            "sensitivity-0.95, specificity-0.9, false-alarms-5/1000 (per 1,000 photos), "
            "false-alarms-2/day (with a column time), "
            "cost-1-5 (false alarm, miss), miss-rate-0.1, false-alarms-0.05, wrong-rate-0.1, "
            "mean-f-0.5; thresholds end in -shared or -per-label."
        ),
    ] = None,
    promise: Annotated[
        str | None,
        typer.Option(
            help="Instead of a rule: precision=0.9, recall=0.9 (both also -per-label), f=0.6, "
            "tags=0.95, tested so that it holds on new photos."
        ),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of the promise; 0.95 unless given.")
    ] = None,
    promise_share: Annotated[
        float | None,
        typer.Option(
            help="Of the rows, kept from the calibrator for the promise; 0.5, or 0.8 with "
            "--cross-fit."
        ),
    ] = None,
    cross_fit: Annotated[
        bool,
        typer.Option(
            "--cross-fit",
            help="Fit the calibrator again on all rows once the promise is made; the sets stay.",
        ),
    ] = False,
    scores: ScoresOption = None,
    link: LinkOption = None,
    labels: LabelsOption = None,
    calibrate: Annotated[str, typer.Option(help="First fit this calibrator.")] = "none",
    test: TestOption = None,
    fit_on: FitOnOption = None,
    report_on: ReportOnOption = None,
    folds: FoldsOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(help="A column, such as site: the rule's figures for each of its values too."),
    ] = None,
    attributes: AttributesOption = None,
    seed: Annotated[int, typer.Option(help="Deals rows into folds.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The thresholds, a JSON file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rule as JSON.")] = False,
) -> None:
    """Fit a rule that turns probabilities into label sets.

    It is judged on rows it did not see.

    With --promise the rule is tested, so that it keeps a precision, recall or F on new photos.
    """
    from labelwise.attributes import AttributeGroups
    from labelwise.errors import SettingsError
    from labelwise.scores import FitPlan, read_scores

    if (rule is None) == (promise is None):
        raise SettingsError("give either --rule, such as best-f, or --promise, such as recall=0.9")
    if promise is None and (confidence is not None or promise_share is not None or cross_fit):
        raise SettingsError("--confidence, --promise-share and --cross-fit belong to --promise")
    if (promise_share is not None or cross_fit) and calibrate == "none":
        raise SettingsError(
            "--promise-share and --cross-fit keep rows from a calibrator; give --calibrate too"
        )
    divided = test is not None or fit_on is not None or report_on is not None
    reason = ROWS_GIVEN if divided and calibrate != "auto" else ""
    parts = number_of_folds(folds, reason if promise is None else "a promise is made without them")
    if attributes is not None and promise is not None:
        raise SettingsError("--attributes shapes a rule; leave it out of a promise")
    if by and promise is not None:
        raise SettingsError("--by shows figures of a rule; a promise is tested on all rows")
    columns = tuple(dict.fromkeys(by or ()))
    per_day = rule is not None and "/day" in rule
    keep = (*columns, "time") if per_day and "time" not in columns else columns
    table = read_scores(source, scores, link=link, labels=labels, keep=keep)
    other = None if test is None else read_scores(test, scores, link=link, keep=columns)
    groups: AttributeColumns | None = None
    if attributes is not None:
        table, groups = table.settled(AttributeGroups.read(attributes))
        if other is not None:
            other, _ = other.settled(AttributeGroups.read(attributes))
    rows: dict[str, Any] = {"other": other, "fit_on": fit_on, "report_on": report_on, "seed": seed}
    if promise is not None:
        options = {"calibrator": calibrate, "share": promise_share, "cross_fit": cross_fit, **rows}
        _promise(
            table, promise, 0.95 if confidence is None else confidence, options, out, json=json
        )
        return
    pace = table.photos_per_day() if per_day else None
    plan = FitPlan(calibrate, str(rule), parts, seed, pace, groups)
    _rule(table, plan, rows | {"by": columns}, out, json=json)


def _rule(
    table: Any, plan: "FitPlan", rows: dict[str, Any], out: Path | None, *, json: bool
) -> None:
    from labelwise.cli.evaluation_shown import show
    from labelwise.cli.outcome import show_exclusive
    from labelwise.cli.text import say
    from labelwise.decide import label_figures
    from labelwise.scores import decision, judge

    del rows["seed"]
    judged = judge(table, plan, query_length=0, **rows)
    record = decision(judged)
    figures: dict[str, tuple[LabelFigures, ...]] = {}
    if judged.sets is not None and judged.made.rule is not None:
        fitted = judged.fitted_rows.with_link(judged.link)
        new = "by cross-validation" if judged.fitted_rows is judged.predictions else "on other rows"
        for name, predictions, sets in (
            (new, judged.predictions, judged.sets),
            ("on the rows it was fitted on", fitted, fitted.sets(judged.made.rule)),
        ):
            figures[name] = label_figures(
                sets,
                predictions.majority,
                predictions.observed,
                names=predictions.names,
                groups=predictions.groups,
            )
    record["labels"] = {name: [row.spec() for row in part] for name, part in figures.items()}
    told = table if rows["other"] is None else rows["other"]
    parts = {
        column: _by(judged, told.subgroups(column, judged.predictions)) for column in rows["by"]
    }
    if parts:
        record["by"] = {
            column: {name: [row.spec() for row in found] for name, found in part.items()}
            for column, part in parts.items()
        }
    _write(record, out, json=json)
    if json:
        return
    show(judged.evaluation, json=False, out=None)
    for name, part in figures.items():
        say()
        _show_figures(f"per label, {name} (95 % intervals)", part, plan.rule)
    for column, values in parts.items():
        say()
        _show_by(column, values)
    show_exclusive(judged.evaluation)
    say(f"rule fitted on {judged.fitted_on}: {judged.made.rule_words}")
    if out is not None:
        say(f"thresholds: {out}")


def _promise(
    table: Any,
    text: str,
    confidence: float,
    options: dict[str, Any],
    out: Path | None,
    *,
    json: bool,
) -> None:
    from labelwise.cli.text import say, show_table
    from labelwise.errors import DataError
    from labelwise.scores import promise_scores

    found = promise_scores(table, text, confidence=confidence, **options)
    promised = found.promised
    if not promised.promises:
        warning = "" if promised.warning is None else f". {promised.warning}"
        raise DataError(promised.refused[0] + warning)
    _write(found.spec(), out, json=json)
    if json:
        return
    if found.link_words:
        say(f"calibrator: {found.link_words}")
    for promise in promised.promises[:SHOWN]:
        say(str(promise))
    if promised.warning is not None:
        say(promised.warning)
    for sentence in promised.refused[:SHOWN]:
        say(f"not promised: {sentence}")
    if found.checks:
        show_table(
            ("promise", "level", "on other rows", "from", "to", "photos", "verdict"),
            [
                (
                    ", ".join(promise.labels[:3]) or promise.what,
                    f"{promise.level:.3f}",
                    f"{check.value:.3f}",
                    f"{check.lower:.3f}",
                    f"{check.upper:.3f}",
                    f"{check.counted:,}",
                    check.verdict,
                )
                for promise, check in zip(promised.promises, found.checks, strict=True)
            ],
        )
    else:
        say("not checked: --test FILE or --report-on SPLIT would check it on other rows")
    say(f"made on {found.fitted_on}")
    if out is not None:
        say(f"rule and promises: {out}")


def _write(record: dict[str, Any], out: Path | None, *, json: bool) -> None:
    from labelwise.cli.text import say
    from labelwise.scores import save_json

    if out is not None:
        save_json(out, record)
    if json:
        import json as text

        say(text.dumps(record, ensure_ascii=False, allow_nan=False))


def _by(judged: "Judged", parts: "Subgroups") -> "dict[str, tuple[LabelFigures, ...]]":
    """Return the figures of the rule in each subgroup of the rows it was judged on."""
    from labelwise.decide import label_figures

    if judged.sets is None:
        return {}
    own = judged.predictions
    found = {}
    for name, rows in parts.parts():
        part = own.take(rows)
        found[name] = label_figures(
            judged.sets[rows], part.majority, part.observed, names=own.names, groups=part.groups
        )
    return found


def _cell(figure: "Share | None", times: float = 1.0, digits: int = 3) -> str:
    if figure is None:
        return "–"
    value, low, high = (f"{times * number:.{digits}f}" for number in figure)
    return f"{value} ({low} to {high})"


def _show_by(column: str, parts: "dict[str, tuple[LabelFigures, ...]]") -> None:
    """Print the operating points of each label in each subgroup."""
    from labelwise.cli.text import say, show_table

    cells = [
        (
            row.name,
            name,
            f"{row.present:,} of {row.known:,}",
            _cell(row.recall),
            _cell(row.specificity),
            _cell(row.false_alarms, 1000, 1),
        )
        for name, rows in parts.items()
        for row in rows
    ]
    cells.sort(key=lambda cell: cell[0])
    shown = cells[: 3 * SHOWN]
    head = ("label", column, "present", "sensitivity", "specificity", "false alarms per 1,000")
    show_table(head, shown, title=f"by {column} (95 % intervals)")
    if len(cells) > len(shown):
        say(f"{len(shown)} of {len(cells):,} rows; all of them with --json or -o")


def _show_figures(title: str, rows: "tuple[LabelFigures, ...]", rule: str) -> None:
    from labelwise.cli.text import say, show_table

    if rule.startswith(OPERATING):
        show_table(
            ("label", "present", "chosen", "sensitivity", "specificity", "false alarms per 1,000"),
            [
                (
                    row.name,
                    f"{row.present:,}",
                    f"{row.chosen:,}",
                    _cell(row.recall),
                    _cell(row.specificity),
                    _cell(row.false_alarms, 1000, 1),
                )
                for row in rows[:SHOWN]
            ],
            title=title,
        )
        if len(rows) > SHOWN:
            say(f"the first {SHOWN} labels of {len(rows):,}; all of them with --json or -o")
        return
    worst = sorted(rows, key=lambda row: (row.f1 or (2.0,))[0])[:SHOWN]
    show_table(
        ("label", "present", "chosen", "precision", "recall", "F1"),
        [
            (
                row.name,
                f"{row.present:,}",
                f"{row.chosen:,}",
                *map(_cell, (row.precision, row.recall, row.f1)),
            )
            for row in worst
        ],
        title=title,
    )
    if len(rows) > SHOWN:
        say(f"the {SHOWN} labels of lowest F1 of {len(rows):,}; all of them with --json or -o")
