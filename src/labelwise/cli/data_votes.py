"""``labelwise data votes``: people's answers to soft labels, and a report on the people."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.data.votes import WorkerRecord


WORKERS_SHOWN = 10


def votes_table(
    votes: Annotated[
        Path,
        typer.Argument(help="One answer per row: photo, label, worker, answer (yes, no, unknown)."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write: .csv .tsv .jsonl .parquet")
    ],
    by: Annotated[
        Literal["counts", "workers"],
        typer.Option(help="The share of yes, or a model of how often each worker is right."),
    ] = "counts",
    photos: Annotated[
        str | None,
        typer.Option(
            help="Any data labelwise reads, whose photos get the labels; splits are kept.",
            show_default="files beside the votes",
        ),
    ] = None,
    least: Annotated[
        int, typer.Option(min=1, help="Labels with fewer answers of yes or no are unknown.")
    ] = 1,
    smoothing: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="With counts: added to the number of yes and of no.",
            show_default="0",
        ),
    ] = None,
    right: Annotated[
        float | None,
        typer.Option(
            help="With workers: share of right answers the prior expects.", show_default="0.8"
        ),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(min=0.0, help="With workers: answers the prior counts as.", show_default="4"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Also write how each worker answered: .csv or .json"),
    ] = None,
) -> None:
    """Write soft labels made of several people's votes.

    A label that everybody affirms or denies is certain; one without an answer is unknown.
    """
    from dataclasses import replace

    from labelwise.cli.text import say
    from labelwise.data import load
    from labelwise.data.export import export
    from labelwise.data.votes import Votes, count_votes, model_workers
    from labelwise.errors import SettingsError

    if by == "counts" and (right is not None or strength is not None):
        raise SettingsError("--right and --strength belong to --by workers")
    if by == "workers" and smoothing is not None:
        raise SettingsError("--smoothing belongs to --by counts")
    if report is not None and report.suffix.lower() not in (".csv", ".json"):
        raise SettingsError(f"a report on workers must end in .csv or .json, got {report.name!r}")
    given = Votes.read(votes)
    if by == "counts":
        made = count_votes(given, smoothing=smoothing or 0.0, least=least)
    else:
        prior = {"right": right, "strength": strength}
        options = {name: value for name, value in prior.items() if value is not None}
        made = model_workers(given, least=least, **options)
    if photos is None:
        table = made.table(votes.parent)
    else:
        source = load(photos)
        labels = made.table(source.images, source.name)
        table = replace(labels, split=source.split, group=source.group, notes=source.notes)
    export(table, out)
    if report is not None:
        _write_report(report, made.records)
    soft = 0 if table.soft is None else len(table.soft.shares)
    say(
        f"wrote {out}: {counted(len(table), 'photo')}, {counted(len(table.space), 'label')}, "
        f"{counted(soft, 'soft answer')}; {counted(len(given), 'vote')} of "
        f"{counted(len(given.workers), 'worker')}, {made.how}"
    )
    _show_worst(made.records)


def _write_report(path: Path, records: "tuple[WorkerRecord, ...]") -> None:
    import json
    from dataclasses import asdict, fields

    from labelwise.data.votes import WorkerRecord
    from labelwise.system.csv_files import write_csv
    from labelwise.system.files import replacing

    if path.suffix.lower() == ".json":
        with replacing(path) as temporary:
            text = json.dumps([asdict(one) for one in records], indent=2, ensure_ascii=False)
            temporary.write_text(text, encoding="utf-8")
    else:
        header = [field.name for field in fields(WorkerRecord)]
        write_csv(path, header, [tuple(asdict(one).values()) for one in records])


def _show_worst(records: "tuple[WorkerRecord, ...]") -> None:
    """Show the workers whose answers tell least, by sensitivity + specificity."""
    from labelwise.cli.text import say, show_table
    from labelwise.data.votes import ALL_LABELS

    def told(one: "WorkerRecord") -> float:
        return (one.sensitivity or 0.0) + (one.specificity or 0.0)

    def shown(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.1%}"

    workers = sorted((one for one in records if one.label == ALL_LABELS), key=told)
    say()
    show_table(
        ("least telling workers", "yes", "no", "don't know", "sensitivity", "specificity"),
        [
            (
                one.worker,
                f"{one.yes:,}",
                f"{one.no:,}",
                f"{one.dont_know:,}",
                shown(one.sensitivity),
                shown(one.specificity),
            )
            for one in workers[:WORKERS_SHOWN]
        ],
    )
