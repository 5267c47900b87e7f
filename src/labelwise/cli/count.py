"""``labelwise count``: how many photos match, with an interval that holds after a shift."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    Answers,
    Ask,
    By,
    Csv,
    Distinct,
    GroupTable,
    Labels,
    Out,
    Scores,
    Who,
    option,
)
from labelwise.cli.command import app, as_typed, refuse, verb
from labelwise.cli.text import (
    ask as ask_person,
)
from labelwise.cli.text import (
    caution,
    complain,
    next_steps,
    quoted,
    say,
    show_table,
)
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.photos.prevalence import LibraryEstimate, SampleAnswers

SHOWN = 60
OTHERWISE = "An interval that holds in any case: --ask 150"
OF_ANSWERS = ("by", "table", "distinct", "csv", "plot", "who")


@verb(
    app,
    "count photos.index dog --ask 150",
    "count results.csv --labels checked.csv --by site --csv counts.csv",
    more="who",
)
def count(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="INDEX|TABLE", envvar="LABELWISE_INDEX", help="An index, or a table of scores."
        ),
    ],
    query: Annotated[
        str | None, typer.Argument(help="A label, or a query such as 'dog, -beach'.")
    ] = None,
    *,
    ask: Ask = None,
    answers: Answers = None,
    out: Out = None,
    by: By = None,
    table: GroupTable = None,
    distinct: Distinct = False,
    csv: Csv = None,
    plot: Annotated[Path | None, option("--plot", help="Also draw them, .svg.")] = None,
    scores: Scores = None,
    labels: Labels = None,
    count_by: Annotated[
        Literal["calibrated", "answers"],
        option(
            "--count-by",
            help="Of a table: calibrated scores (default), or the answers of each group alone.",
        ),
    ] = "calibrated",
    who: Who = None,
) -> None:
    """Say how many photos match, from random photos that you answer.

    --ask 150 draws photos (spread over the groups of --by) and asks about each in the terminal: y,
    n, d (don't know), u (undo) or s (stop); the same command goes on later. With -o questions.csv
    they are written to a table instead; fill in yes, no or unsure, and give it back with --answers
    questions.csv. The interval then rests on the answers: exact below 50, narrower above
    where the model expects enough matches. Without answers the model's own interval is shown.

    Of a table of scores, or of results of BirdNET or Perch, some rows of which a person has
    checked, it says how many are right of each label, by site with --by site. Of a label table it
    says how many photos carry each label, with intervals only where labels are unknown.
    """
    from labelwise.photos import Index, answer, model_changed
    from labelwise.photos.filters import PhotoGroups
    from labelwise.photos.prevalence import (
        SampleAnswers,
        draw_sample,
        estimate_from_answers,
        read_answers,
        write_questions,
    )
    from labelwise.photos.query import guess_of, not_answered
    from labelwise.queries import Query
    from labelwise.report.charts import save_estimate_chart
    from labelwise.scores.read import is_detections
    from labelwise.tables import open_table

    if by and len(by) > 1:
        raise SettingsError("photos are counted by one column: give --by once")
    column = by[0] if by else ""
    if place.is_file() or is_detections(place):
        reason = f"it is for an index of photos; {place} is a table"
        refuse(reason, "ask", "out", "answers", "who", "table", "plot", "distinct")
        if is_detections(place) or open_table(place).holds == "scores":
            _count_calls(place, query, column, scores, labels, count_by, csv)
        else:
            refuse("it is for a table of scores", "scores", "labels", "count_by")
            _count_known(place, query, column, csv)
        return
    refuse(f"it is for a table of scores; {place} is an index", "scores", "labels", "count_by")
    if query is None:
        raise SettingsError("say what is asked for: a label, or a query such as 'dog, -beach'")
    if ask is not None and answers is not None:
        raise SettingsError("--ask draws photos and --answers reads answers: give one")
    if ask is None:
        refuse("-o is for questions that --ask draws; the counts go to --csv", "out")
    if out is not None:
        refuse("-o only writes the questions", "csv", "plot")
    if ask is None and answers is None:
        refuse("it is for answered photos: draw some with --ask 150", *OF_ANSWERS)
    groups, named = PhotoGroups(column, table), quoted(place, query)
    with Index(place) as index:
        index.require_photos()
        asked = Query.parse(query, index.space, index.taxonomy)
        if answers is not None:
            told = read_answers(Path(answers))
            estimate = estimate_from_answers(index, asked, told, groups, who=who, distinct=distinct)
        elif ask is None:
            caution(index.spec.caution, model_changed(index))
            if unknown := not_answered(index, asked.names()):
                complain(guess_of(unknown[0]))
                next_steps(f"count {quoted(place, unknown[0])} --ask 30")
                raise typer.Exit(1)
            found = answer(index, asked, top=1)
            holds = f"It holds if these photos are like the {found.known} ones."
            sentences = [f"{found.counted}.", "" if found.untested else holds]
            sentences += [found.likeness.sentence(), OTHERWISE]
            say(" ".join(filter(None, sentences)))
            next_steps(f"count {named} --ask 150")
            return
        else:
            sample = draw_sample(index, asked, ask, groups, distinct=distinct)
            if out is not None:
                write_questions(index, sample, Path(out))
                drawn = f"{counted(len(sample.photos), 'photo')} drawn at random on {sample.at}"
                say(f"{out}: {drawn}; fill in yes, no or unsure for each, and give it back")
                same = as_typed("by", "table", "distinct", "who")  # else it is another sample
                next_steps(f"count {named}{same} --answers {quoted(out)}")
                return
            session = SampleAnswers(index, asked, sample, who=who)
            if not _asked(session, str(asked)):
                return
            estimate = session.estimate(groups)
        folders = 0 if column else len(PhotoGroups("folder").of(index, index.store.alive_rows()))
    _show(estimate, str(asked), column)
    if csv is not None:
        _write(estimate, str(asked), csv)
        say(f"the table: {csv}")
    if plot is not None:
        save_estimate_chart([*estimate.groups, estimate.total], str(asked), plot)
        say(f"the chart: {plot}")
    if folders > 1:
        same = as_typed("distinct", "who")
        next_steps(f"count {named}{same} --ask {max(50, 10 * folders)} --by folder")


def _count_calls(
    source: Path,
    label: str | None,
    by: str,
    scores: Scores,
    labels: str | None,
    how: Literal["calibrated", "answers"],
    csv: Path | None,
) -> None:
    """Count a table of scores, some rows of which a person has checked."""
    from labelwise.scores.calls import calls_of_table, write_calls

    calls = calls_of_table(source, by or None, scores, labels, how, label)
    cells, group = [], [by] if by else []
    for count in calls.counts[:SHOWN]:
        cell = [count.label, *([count.part] if by else []), f"{count.detections:,}"]
        cell += [f"{count.right:,} of {count.checked:,}", f"{count.count:,.0f}"]
        cells.append([*cell, f"{count.low:,.0f} to {count.high:,.0f}", count.method])
    head = ("label", *group, calls.unit, "checked right", "right", "95% interval", "method")
    show_table(head, cells)
    if len(calls.counts) > SHOWN:
        say(f"{SHOWN} of {len(calls.counts):,} rows; all of them with --csv")
    say(calls.condition)
    if csv is not None:
        write_calls(calls.counts, by, csv)
        say(f"the table: {csv}")


def _count_known(source: Path, label: str | None, by: str, csv: Path | None) -> None:
    """Count known labels by a column; with exact intervals where some are unknown."""
    import numpy as np

    from labelwise.decide import exact_count_bounds
    from labelwise.tables.load import load

    options: dict[str, Any] = {} if by in ("", "folder") else {"columns": {"group": by}}
    table = load(source, check_files=False, **options)
    names, groups = table.space.names, np.full(len(table), "", object)
    if by == "folder":
        groups[:] = [os.path.dirname(table.images.address(row) or "") for row in range(len(table))]
    elif table.group is not None and by:
        groups[:] = table.group
    labels, known = table.targets()
    chosen = range(len(names)) if label is None else [table.space.column(label)]
    head = ["label", *([by] if by else []), "photos", "known", "with it", "95% interval"]
    rows = []
    for group in sorted({*groups.tolist()}):
        mask = groups == group
        for k in chosen:
            seen = mask if known is None else mask & known[:, k]
            photos, drawn, yes = (
                int(mask.sum()),
                int(seen.sum()),
                int((labels[seen, k] > 0.5).sum()),
            )
            low, high = exact_count_bounds(yes, drawn, photos, 0.95)
            count = round(yes * photos / drawn) if drawn else ""
            between = f"{low:,} to {high:,}" if drawn < photos else ""
            rows.append([names[k], *([group] if by else []), photos, drawn, count, between])
    rows.sort(key=lambda row: row[0])
    is_known = not any(row[-1] for row in rows)
    if is_known:
        head, rows = head[:-1], [row[:-1] for row in rows]
    show_table(head, [[*map(str, row)] for row in rows[:SHOWN]])
    if len(rows) > SHOWN:
        say(f"{SHOWN} of {len(rows):,} rows; all of them with --csv")
    if not is_known:
        say(
            "The intervals hold if the photos whose label is known are a random sample of the rest."
        )
    if csv is not None:
        write_csv(csv, head, rows)
        say(f"the table: {csv}")


def _asked(session: "SampleAnswers", query: str) -> bool:
    total, at = len(session.rows), session.sample.at
    say(f"does each photo match {query}? {counted(total, 'photo')} drawn at random on {at}")
    while (question := session.ask(session.who)) is not None:
        word = ask_person(f"[{len(session.answers):,} of {total:,}] {session.path(question)}")
        if word == "stop":
            answered = f"{len(session.answers):,} of {total:,} answered and kept"
            say(f"{answered}; the same command goes on. An estimate takes all of them")
            return False
        if word == "undo":
            session.undo()
        else:
            session.answer(question, word)
    return True


def _show(found: "LibraryEstimate", query: str, by: str) -> None:
    if found.groups:
        cells = []
        for group in [*found.groups, found.total]:
            between = f"{group.count:,.0f}", f"{group.low:,.0f} to {group.high:,.0f}"
            yes = f"{group.yes:,} of {group.answered:,}"
            cells.append((group.group or "all", group.photos, yes, *between, group.method))
        show_table((by, "photos", "answered yes", "match", "95% interval", "method"), cells)
    say(found.total.sentence(query))
    if found.sample.distinct:
        say(f"near-duplicates count as one: {found.total.photos:,} different photos")
    if found.newer:
        new = f"{counted(found.newer, 'photo')} came after the draw"
        say(f"{new} and {'is' if found.newer == 1 else 'are'} not part of this")


def _write(found: "LibraryEstimate", query: str, path: Path) -> None:
    rows = []
    for group in [*found.groups, found.total]:
        ends = {"share": group.count, "share_low": group.low, "share_high": group.high}
        shares = {name: value / group.photos for name, value in ends.items()}
        drawn = {"drawn": found.sample.at, "seed": found.sample.seed}
        rows.append({"query": query, **asdict(group), **shares, **drawn})
    write_csv(path, list(rows[0]), [tuple(row.values()) for row in rows])
