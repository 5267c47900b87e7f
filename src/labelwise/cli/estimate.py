"""``labelwise estimate``: how many photos match, with an interval that holds after a shift."""

import csv
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from labelwise.cli.index import IndexFolder

__all__ = ["estimate"]


def estimate(
    folder: IndexFolder,
    query: Annotated[str, typer.Argument(help="A label, or a query such as 'dog, -beach'.")],
    answers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Draw so many photos to be answered, in each folder with --by folder."
        ),
    ] = None,
    answers_from: Annotated[
        Path | None, typer.Option(help="The table of drawn photos, with its answers filled in.")
    ] = None,
    by: Annotated[
        Literal["folder"] | None, typer.Option(help="Estimate each folder by itself too.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The CSV to write: the questions, or the estimates."),
    ] = None,
) -> None:
    """Say how many photos match, from random photos that you answer.

    First --answers 150 -o questions.csv draws photos and writes them to a table; fill in yes, no or
    unsure, and give it back with --answers-from questions.csv. The interval then rests on the
    answers: exact up to 100, approximate above. Without answers the model's own interval is shown.
    """
    from labelwise.cli.text import caution, say, show_table
    from labelwise.errors import SettingsError
    from labelwise.retrieval import Query
    from labelwise.search import Index, answer, likeness_of
    from labelwise.search.estimating import (
        draw_sample,
        estimate_from_answers,
        read_answers,
        write_questions,
    )
    from labelwise.system.files import replacing
    from labelwise.system.text import counted

    if answers is not None and answers_from is not None:
        raise SettingsError("--answers draws photos and --answers-from reads answers: give one")
    if answers is not None and out is None:
        raise SettingsError("--answers writes a table to fill in: name it with -o questions.csv")
    if answers is None and answers_from is None and (by or out):
        raise SettingsError("--by and -o apply to answered photos: draw some with --answers 150")
    with Index(folder) as index:
        asked = Query.parse(query, index.space, index.taxonomy)
        if answers is not None and out is not None:
            sample = draw_sample(index, asked, answers, by_folder=by == "folder")
            write_questions(index, sample, out)
            say(
                f"{out}: {counted(len(sample.photos), 'photo')} drawn at random on {sample.at}; "
                "fill in yes, no or unsure for each, and give it back with --answers-from"
            )
            return
        if answers_from is None:
            caution(index.spec.caution)
            count = answer(index, asked, top=1).count
            say(
                f"about {count.expected:,.0f} photos match {asked} ({count.confidence:.0%} "
                f"interval: {count.lower:,.0f} to {count.upper:,.0f}), if these photos are like "
                f"the held-out ones. {likeness_of(index).sentence()} An interval that holds in any "
                "case: --answers 150 -o questions.csv"
            )
            return
        told = read_answers(answers_from)
        found = estimate_from_answers(index, asked, told, by_folder=by == "folder")
    estimates = [*found.groups, found.total]
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
            for one in estimates
        ]
        show_table(("folder", "photos", "answered yes", "match", "95% interval", "method"), cells)
    say(found.total.sentence(str(asked)))
    if found.newer:
        say(f"{counted(found.newer, 'photo')} came after the draw and not part of this")
    if out is not None:
        with replacing(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, ["query", *asdict(found.total)])
            table.writeheader()
            table.writerows({"query": str(asked), **asdict(one)} for one in estimates)
        say(f"the table: {out}")
