"""``labelwise count``: how many photos match, with an interval that holds after a shift."""

from dataclasses import asdict
from pathlib import Path
from shlex import quote

from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.cli.options import Options
from labelwise.cli.text import ask, caution, next_steps, say, show_table
from labelwise.errors import SettingsError
from labelwise.photos import Index, answer, model_changed
from labelwise.photos.filters import PhotoGroups
from labelwise.photos.prevalence import (
    LibraryEstimate,
    SampleAnswers,
    draw_sample,
    estimate_from_answers,
    read_answers,
    write_questions,
)
from labelwise.queries import Query
from labelwise.report.charts import save_estimate_chart
from labelwise.scores.calls import calls_of_table, write_calls
from labelwise.scores.read import is_detections

SHOWN = 60
OTHERWISE = "An interval that holds in any case: --ask 150"
OF_ANSWERS = ("by", "table", "distinct", "csv", "plot", "who")


def count(place: Path, query: str | None, given: Options) -> None:
    """Say how many photos match, from random photos that you answer."""
    if given.by and len(given.by) > 1:
        raise SettingsError("photos are counted by one column: give --by once")
    by = given.by[0] if given.by else ""
    if place.is_file() or is_detections(place):
        reason = f"it is for an index of photos; {place} is a table"
        given.refuse(reason, "ask", "out", "answers", "who", "table", "plot", "distinct")
        _calls(place, query, by, given)
        return
    reason = f"it is for a table of scores; {place} is an index"
    given.refuse(reason, "scores", "labels", "count_by")
    if query is None:
        raise SettingsError("say what is asked for: a label, or a query such as 'dog, -beach'")
    if given.ask is not None and given.answers is not None:
        raise SettingsError("--ask draws photos and --answers reads answers: give one")
    if given.ask is None:
        given.refuse("-o is for questions that --ask draws; the counts go to --csv", "out")
    if given.out is not None:
        given.refuse("-o only writes the questions", "csv", "plot")
    if given.ask is None and given.answers is None:
        given.refuse("it is for answered photos: draw some with --ask 150", *OF_ANSWERS)
    groups, named = PhotoGroups(by, given.table), f"{place} {quote(query)}"
    with Index(place) as index:
        asked = Query.parse(query, index.space, index.taxonomy)
        if given.answers is not None:
            told, how = read_answers(Path(given.answers)), {"distinct": given.distinct}
            estimate = estimate_from_answers(index, asked, told, groups, who=given.who, **how)
        elif given.ask is None:
            caution(index.spec.caution, model_changed(index))
            found = answer(index, asked, top=1)
            holds = f"It holds if these photos are like the {found.known} ones."
            sentences = [f"{found.counted}.", "" if found.untested else holds]
            sentences += [found.likeness.sentence(), OTHERWISE]
            say(" ".join(filter(None, sentences)))
            next_steps(f"count {named} --ask 150")
            return
        else:
            sample = draw_sample(index, asked, given.ask, groups, distinct=given.distinct)
            if given.out is not None:
                write_questions(index, sample, given.target)
                drawn = f"{counted(len(sample.photos), 'photo')} drawn at random on {sample.at}"
                say(f"{given.out}: {drawn}; fill in yes, no or unsure for each, and give it back")
                next_steps(f"count {named} --answers {given.out}")
                return
            session = SampleAnswers(index, asked, sample, who=given.who)
            if not _asked(session, str(asked)):
                return
            estimate = session.estimate(groups)
    _show(estimate, str(asked), by)
    if given.csv is not None:
        _write(estimate, str(asked), given.csv)
        say(f"the table: {given.csv}")
    if given.plot is not None:
        save_estimate_chart([*estimate.groups, estimate.total], str(asked), given.plot)
        say(f"the chart: {given.plot}")
    if not by:
        next_steps(f"count {named} --ask 50 --by folder")


def _calls(source: Path, label: str | None, by: str, given: Options) -> None:
    calls = calls_of_table(
        source, by or None, given.scores, given.labels, given.count_by or "calibrated", label
    )
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
    if given.csv is not None:
        write_calls(calls.counts, by, given.csv)
        say(f"the table: {given.csv}")


def _asked(session: SampleAnswers, query: str) -> bool:
    total, at = len(session.rows), session.sample.at
    say(f"does each photo match {query}? {counted(total, 'photo')} drawn at random on {at}")
    while (photo := session.next_photo()) is not None:
        row, path = photo
        word = ask(f"[{len(session.answers):,} of {total:,}] {path}")
        if word == "stop":
            answered = f"{len(session.answers):,} of {total:,} answered and kept"
            say(f"{answered}; the same command goes on. An estimate takes all of them")
            return False
        if word == "undo":
            session.undo()
        else:
            session.note({row: word})
    return True


def _show(found: LibraryEstimate, query: str, by: str) -> None:
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


def _write(found: LibraryEstimate, query: str, path: Path) -> None:
    rows = []
    for group in [*found.groups, found.total]:
        ends = {"share": group.count, "share_low": group.low, "share_high": group.high}
        shares = {name: value / group.photos for name, value in ends.items()}
        drawn = {"drawn": found.sample.at, "seed": found.sample.seed}
        rows.append({"query": query, **asdict(group), **shares, **drawn})
    write_csv(path, list(rows[0]), [tuple(row.values()) for row in rows])
