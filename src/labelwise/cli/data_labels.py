"""``labelwise data votes``, ``import`` and ``rules``: labels from people, programs and rules."""

from dataclasses import asdict, fields, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.base.files import write_text
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.cli.arguments import AtLeast, Data, MinCount, NeededOut, Out, option
from labelwise.cli.command import data_app, refuse, verb
from labelwise.cli.text import next_steps, number, quoted, say, show_table, tell
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.tables.votes import WorkerRecord

WORKERS_SHOWN = 10


@verb(
    data_app,
    "data votes votes.csv -o labels.csv",
    "data votes votes.csv --vote-by workers --report people.csv -o labels.csv",
    name="votes",
)
def votes_table(
    votes: Annotated[
        Path,
        typer.Argument(help="One answer per row: photo, label, worker, answer (yes, no, unknown)."),
    ],
    *,
    out: NeededOut,
    vote_by: Annotated[
        Literal["counts", "workers"],
        option("--vote-by", help="The share of yes (counts), or a model of each worker."),
    ] = "counts",
    data: Data = None,
    min_count: MinCount = 1,
    smoothing: Annotated[
        float, option("--smoothing", min=0, help="With counts: added to yes and no (0).")
    ] = 0.0,
    right: Annotated[
        float, option("--right", help="With workers: prior share of right answers (0.8).")
    ] = 0.8,
    strength: Annotated[
        float,
        option("--strength", min=0, help="With workers: answers the prior counts as (4)."),
    ] = 4.0,
    report: Annotated[
        Path | None, option("--report", help="Also write how each person answered.")
    ] = None,
) -> None:
    """Write soft labels made of several people's votes.

    A label that everybody affirms or denies is certain; one without an answer is unknown. --data
    names the table whose photos get the labels; without it they are files beside the votes.
    """
    from labelwise.tables import load, open_table
    from labelwise.tables.export import export
    from labelwise.tables.votes import WorkerRecord, count_votes, model_workers

    if report is not None and report.suffix.lower() not in (".csv", ".json"):
        raise SettingsError(f"a report on workers must end in .csv or .json, got {report.name!r}")
    answers = open_table(votes).votes()
    if vote_by == "workers":
        refuse("it belongs to --vote-by counts", "smoothing")
        made = model_workers(answers, least=min_count, right=right, strength=strength)
    else:
        refuse("it belongs to --vote-by workers", "right", "strength")
        made = count_votes(answers, smoothing=smoothing, least=min_count)
    if data is None:
        table = made.table(votes.parent)
    else:
        source = load(data)
        labels = made.table(source.images, source.name)
        table = replace(labels, split=source.split, group=source.group, notes=source.notes)
    export(table, Path(out))
    if report is not None and report.suffix.lower() == ".json":
        records = [asdict(record) for record in made.records]
        write_text(report, dumps(records, indent=2, ensure_ascii=False))
    elif report is not None:
        header = [field.name for field in fields(WorkerRecord)]
        write_csv(report, header, [tuple(asdict(record).values()) for record in made.records])
    soft = counted(0 if table.soft is None else len(table.soft.shares), "soft answer")
    written = f"{counted(len(table), 'photo')}, {counted(len(table.space), 'label')}, {soft}"
    workers = counted(len(answers.workers), "worker")
    say(f"wrote {out}: {written}; {counted(len(answers), 'vote')} of {workers}, {made.how}")
    _show_worst(made.records)
    next_steps(f"data describe {quoted(out)}")


@verb(
    data_app,
    "data import ~/photos -o keywords.csv --min-count 20",
    "data import megadetector.json --data photos/ -o crops/",
    name="import",
)
def import_table(
    source: Annotated[
        Path, typer.Argument(help="A folder of photos; or results of MegaDetector, .json.")
    ],
    *,
    out: NeededOut,
    min_count: MinCount = 1,
    taxonomy_out: Annotated[
        Path | None, option("--taxonomy-out", help="Also write the hierarchy of keywords, .csv.")
    ] = None,
    at_least: AtLeast = None,
    data: Data = None,
) -> None:
    """Write a label table from keywords of photos, or crops from detections.

    Of a folder: XMP (inside photos and in side-cars), IPTC, and the hierarchies of Lightroom and
    digiKam; each level of a hierarchy is a label. A keyword that a photo lacks is unknown, not
    absent. Keywords that `labelwise tag` wrote are left out.

    Of results of MegaDetector or SpeciesNet: each detection of at least --at-least (0.2) is cut out
    of its photo, which lies below --data; crops.csv says where each came from.
    """
    if source.is_dir():
        refuse("it is for results of a detector", "at_least", "data")
        _import_keywords(source, Path(out), taxonomy_out, min_count)
        next_steps(f"train {quoted(out)}")
        return
    refuse("it is for keywords of a folder", "min_count", "taxonomy_out")
    from labelwise.tables.camera_results import cut_crops, read_camera_results

    results = read_camera_results(source)
    root = source.parent if data is None else Path(data)
    count = cut_crops(results, root, Path(out), 0.2 if at_least is None else at_least)
    say(f"wrote {counted(count, 'crop')} and {Path(out) / 'crops.csv'}")
    if results.failed:
        say(f"{counted(len(results.failed), 'photo')} without a result, first {results.failed[0]}")
    videos = [photo.file for photo in results.photos if photo.is_video]
    if videos:
        say(f"no crops of {counted(len(videos), 'video')}, first {videos[0]}")
    next_steps(f"predict RUN {quoted(out)} -o predictions.csv")


def _import_keywords(source: Path, out: Path, hierarchy: Path | None, least: int) -> None:
    from labelwise.photos.metadata import read_keywords
    from labelwise.tables.export import export

    if hierarchy is not None and hierarchy.suffix.lower() != ".csv":
        raise SettingsError(f"--taxonomy-out must end in .csv, got {hierarchy.name!r}")
    keywords = read_keywords(source, least=least)
    table, parents = keywords.table, keywords.taxonomy.parents
    if hierarchy is not None and not parents:
        raise SettingsError("no keyword is under another here; leave --taxonomy-out out")
    export(table, out)
    written = f"{counted(len(table), 'photo')}, {counted(len(table.space), 'label')}"
    known = f"{keywords.tagged:,} with a keyword, all else is unknown"
    say(f"wrote {out}: {written}; {known}")
    if hierarchy is not None:
        write_csv(hierarchy, ["child", "parent"], sorted(parents.items()))
        say(f"wrote {hierarchy}: {counted(len(parents), 'keyword')} under another")
    tell(*table.notes)


@verb(
    data_app,
    "data rules photos.csv groups.csv",
    "data rules photos.csv groups.csv -o mended.csv",
    name="rules",
)
def rules_table(
    source: Annotated[str, typer.Argument(help="A label table, or any labelled data.")],
    groups: Annotated[
        Path, typer.Argument(help="A CSV of group, kind (exactly-one, at-most-one, any), labels.")
    ],
    *,
    out: Out = None,
) -> None:
    """Find photos whose labels break a rule, such as day and night.

    With -o the labels that follow are written too: where one is present the others are absent,
    and labels of a group that a photo breaks become unknown.
    """
    from labelwise.tables import load
    from labelwise.tables.derived import obey_groups
    from labelwise.tables.export import export
    from labelwise.taxonomy import AttributeGroups

    table = load(source, check_files=False)
    settled = obey_groups(table, AttributeGroups.read(groups))
    rows = []
    for row in settled.conflicts[:20]:
        labels = ", ".join(table.space.names[k] for k in table.present.row(row))
        rows.append((table.ids[row], labels or "none"))
    if rows:
        show_table(("photos that break a rule", "labels"), rows)
    say(settled.sentence())
    if out is not None:
        export(settled.table, Path(out))
        say(f"wrote {out}")
    next_steps(f"train {quoted(out or source)} --attributes {quoted(groups)}")


def _show_worst(records: "tuple[WorkerRecord, ...]") -> None:
    from labelwise.tables.votes import ALL_LABELS

    def told(worker: "WorkerRecord") -> float:
        return (worker.sensitivity or 0.0) + (worker.specificity or 0.0)

    rows = []
    workers = sorted((record for record in records if record.label == ALL_LABELS), key=told)
    for worker in workers[:WORKERS_SHOWN]:
        shares = (number(share, ".1%") for share in (worker.sensitivity, worker.specificity))
        rows.append((worker.worker, worker.yes, worker.no, worker.dont_know, *shares))
    say()
    head = ("least telling workers", "yes", "no", "don't know", "sensitivity", "specificity")
    show_table(head, rows)
