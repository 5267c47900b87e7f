"""``labelwise estimate``: how many photos match, with an interval that holds after a shift."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.cli.asking import ask
from labelwise.cli.options import ScoresOption

if TYPE_CHECKING:
    from labelwise.cli.options import ScoreKind
    from labelwise.photos.estimating import LibraryEstimate, SampleAnswers
    from labelwise.photos.index import Index
    from labelwise.retrieval import Query
    from labelwise.scores.calls import CallMethod


SHOWN = 60


def estimate(
    folder: Annotated[
        Path,
        typer.Argument(
            envvar="LABELWISE_INDEX",
            metavar="INDEX",
            help="The folder of an index; or a table of scores or results, without photos.",
        ),
    ],
    query: Annotated[
        str | None,
        typer.Argument(
            help="A label, or a query such as 'dog, -beach'; of a table, a label, or none for all."
        ),
    ] = None,
    answers: Annotated[
        int | None,
        typer.Option(min=1, help="Draw so many photos to be answered, in each group with --by."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="With --answers: write the questions to this CSV, to be filled in."
        ),
    ] = None,
    answers_from: Annotated[
        Path | None, typer.Option(help="The table of drawn photos, with its answers filled in.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Estimate each group too: folder, or a column of the --table; of scores or "
            "results, folder or a column of its own."
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A table of path and the column to group by, as site.")
    ] = None,
    distinct: Annotated[
        bool,
        typer.Option("--distinct", help="Count near copies as one photo: the earliest of them."),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option("--csv", help="Write the estimates to this CSV, as for an appendix."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the share by group to this .png or .svg file.")
    ] = None,
    who: Annotated[str | None, typer.Option(help="Who answers. Default: the user.")] = None,
    adapt_shares: Annotated[
        bool,
        typer.Option(
            "--adapt-shares",
            help="Without answers, of one label: let its share differ from the held-out photos'.",
        ),
    ] = False,
    scores: ScoresOption = None,
    labels: Annotated[
        str | None, typer.Option(help="Of a table: a second one that says what was checked.")
    ] = None,
    method: Annotated[
        Literal["calibrated", "answers"] | None,
        typer.Option(
            help="Of a table: calibrated (default; scores mean the same everywhere) or answers "
            "(each group by what was checked in it alone)."
        ),
    ] = None,
) -> None:
    """Say how many photos match, from random photos that you answer.

    --answers 150 draws photos and asks about each in the terminal: y, n, u (unsure), undo or stop;
    the same command goes on later. With -o questions.csv they are written to a table instead; fill
    in yes, no or unsure, and give it back with --answers-from questions.csv. The interval then
    rests on the answers: exact up to 100, approximate above. Without answers the model's own
    interval is shown.

    Of a table of scores, or of results of BirdNET or Perch, some rows of which a person has
    checked, it says how many are right of each label, by site with --by site.
    """
    from labelwise.cli.text import caution, say
    from labelwise.errors import SettingsError
    from labelwise.photos import Index, model_changed
    from labelwise.photos.answer_tables import read_answers
    from labelwise.photos.estimating import (
        SampleAnswers,
        draw_sample,
        estimate_from_answers,
        write_questions,
    )
    from labelwise.photos.photo_groups import PhotoGroups
    from labelwise.retrieval import Query
    from labelwise.scores.detections import is_detections
    from labelwise.system.text import counted

    if folder.is_file() or is_detections(folder):
        given = {"--answers": answers, "-o": out, "--answers-from": answers_from, "--who": who}
        given |= {"--table": table, "--plot": plot, "--adapt-shares": adapt_shares or None}
        given |= {"--distinct": distinct or None}
        for name, value in given.items():
            if value is not None:
                raise SettingsError(f"{name} is for an index of photos; {folder} is a table")
        _calls(folder, query, by, scores, labels, method or "calibrated", figures)
        return
    for name, value in (("--scores", scores), ("--labels", labels), ("--method", method)):
        if value is not None:
            raise SettingsError(f"{name} is for a table of scores; {folder} is an index")
    if query is None:
        raise SettingsError("say what is asked for: a label, or a query such as 'dog, -beach'")
    if answers is not None and answers_from is not None:
        raise SettingsError("--answers draws photos and --answers-from reads answers: give one")
    if out is not None and answers is None:
        raise SettingsError("-o is for questions that --answers draws; the estimates go to --csv")
    if out is not None and (figures or plot):
        raise SettingsError("--csv and --plot need answers; -o only writes the questions")
    of_answers = by or table or distinct or figures or plot or who
    if answers is None and answers_from is None and of_answers:
        raise SettingsError(
            "--by, --table, --distinct, --csv, --plot and --who apply to answered photos: draw "
            "some with --answers 150"
        )
    if adapt_shares and (answers is not None or answers_from is not None):
        raise SettingsError("--adapt-shares is for the model's own count; answers need no adapting")
    groups = PhotoGroups(by or "", table)
    with Index(folder) as index:
        asked = Query.parse(query, index.space, index.taxonomy)
        if answers_from is not None:
            told = read_answers(answers_from)
            found = estimate_from_answers(index, asked, told, groups, distinct=distinct, who=who)
        elif answers is None:
            caution(index.spec.caution)
            caution(model_changed(index))
            say(_adapted(index, asked) if adapt_shares else _of_the_model(index, asked))
            return
        else:
            sample = draw_sample(index, asked, answers, groups, distinct=distinct)
            if out is not None:
                write_questions(index, sample, out)
                say(
                    f"{out}: {counted(len(sample.photos), 'photo')} drawn at random on "
                    f"{sample.at}; fill in yes, no or unsure for each, and give it back with "
                    "--answers-from"
                )
                return
            session = SampleAnswers(index, asked, sample, who=who)
            if not _asked(session, str(asked)):
                return
            found = session.estimate(groups)
    _show(found, str(asked), by or "")
    if figures is not None:
        _write(found, str(asked), figures)
        say(f"the table: {figures}")
    if plot is not None:
        from labelwise.report.charts import save_estimate_chart

        save_estimate_chart([*found.groups, found.total], str(asked), plot)
        say(f"the chart: {plot}")


def _calls(
    source: Path,
    label: str | None,
    by: str | None,
    scores: "ScoreKind | None",
    labels: str | None,
    method: "CallMethod",
    figures: Path | None,
) -> None:
    """Print, and write, how many detections or rows are right of each label, by site."""
    from labelwise.cli.text import say, show_table
    from labelwise.scores.call_tables import calls_of_table, write_calls

    found = calls_of_table(source, by, scores, labels, method, label)
    cells = [
        (
            one.label,
            *([one.part] if by else []),
            f"{one.detections:,}",
            f"{one.right:,} of {one.checked:,}",
            f"{one.count:,.0f}",
            f"{one.low:,.0f} to {one.high:,.0f}",
            one.method,
        )
        for one in found.counts[:SHOWN]
    ]
    group = [by] if by else []
    show_table(
        ("label", *group, found.unit, "checked right", "right", "95% interval", "method"), cells
    )
    if len(found.counts) > SHOWN:
        say(f"{SHOWN} of {len(found.counts):,} rows; all of them with --csv")
    say(found.condition)
    if figures is not None:
        write_calls(found.counts, by or "", figures)
        say(f"the table: {figures}")


def _of_the_model(index: "Index", query: "Query") -> str:
    """Return the model's own interval in words, with its condition."""
    from labelwise.photos import answer

    found = answer(index, query, top=1)
    sentences = [f"{found.counted}."]
    if not found.untested:
        sentences.append(f"It holds if these photos are like the {found.known} ones.")
    sentences += [found.likeness_sentence, "An interval that holds in any case: --answers 150"]
    return " ".join(one for one in sentences if one)


def _adapted(index: "Index", query: "Query") -> str:
    """Return in words how many photos carry a label whose share may differ."""
    from labelwise.photos import likeness_of
    from labelwise.photos.share_counts import adapted_count

    found, known, likeness = adapted_count(index, query), index.facts.known, likeness_of(index)
    unlike = f"{likeness.sentence()} " * (likeness.likeness.outcome == "pictures differ")
    return (
        f"about {found.count:,.0f} of {found.photos:,} photos match {query} (95% interval: "
        f"{found.low:,.0f} to {found.high:,.0f}), if photos with the label look as the {known} "
        f"ones did and only are more or fewer; {found.before:.1%} of the {known} photos match. "
        f"{unlike}An interval that holds in any case: --answers 150"
    )


def _asked(session: "SampleAnswers", query: str) -> bool:
    """Ask about each photo of a sample; return whether all are answered."""
    from labelwise.cli.text import say
    from labelwise.system.text import counted

    total = len(session.rows)
    drawn = counted(total, "photo")
    say(f"does each photo match {query}? {drawn} drawn at random on {session.sample.at}")
    while (photo := session.next_photo()) is not None:
        row, path = photo
        word = ask(f"[{len(session.answers):,} of {total:,}] {path}")
        if word == "stop":
            say(
                f"{len(session.answers):,} of {total:,} answered and kept; the same command goes "
                "on. An estimate takes all of them"
            )
            return False
        if word == "undo":
            session.undo()
        else:
            session.note({row: word})
    return True


def _show(found: "LibraryEstimate", query: str, by: str) -> None:
    """Print the estimate of each group as a table, and of all photos in words."""
    from labelwise.cli.text import say, show_table
    from labelwise.system.text import counted

    if found.groups:
        cells = [
            (
                one.group or "all",
                f"{one.photos:,}",
                f"{one.yes:,} of {one.answered:,}",
                f"{one.count:,.0f}",
                f"{one.low:,.0f} to {one.high:,.0f}",
                one.method,
            )
            for one in [*found.groups, found.total]
        ]
        show_table((by, "photos", "answered yes", "match", "95% interval", "method"), cells)
    say(found.total.sentence(query))
    if found.sample.distinct:
        say(f"near copies count as one: {found.total.photos:,} different photos")
    if found.newer:
        say(
            f"{counted(found.newer, 'photo')} came after the draw and "
            f"{'is' if found.newer == 1 else 'are'} not part of this"
        )


def _write(found: "LibraryEstimate", query: str, path: Path) -> None:
    """Write the estimates and what they rest on: one row per group, the whole library last."""
    from labelwise.system.csv_files import write_csv

    rows = [
        {
            "query": query,
            **asdict(one),
            "share": one.count / one.photos,
            "share_low": one.low / one.photos,
            "share_high": one.high / one.photos,
            "drawn": found.sample.at,
            "seed": found.sample.seed,
        }
        for one in [*found.groups, found.total]
    ]
    write_csv(path, list(rows[0]), [tuple(row.values()) for row in rows])
