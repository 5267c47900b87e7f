"""``labelwise data votes``, ``import`` and ``rules``: labels from people, programs and rules."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

from labelwise.base.files import write_text
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.cli.options import Options
from labelwise.cli.text import next_steps, number, say, show_table, tell
from labelwise.errors import SettingsError
from labelwise.photos.metadata import read_keywords
from labelwise.tables import load
from labelwise.tables.camera_results import cut_crops, read_camera_results
from labelwise.tables.derived import obey_groups
from labelwise.tables.export import export
from labelwise.tables.votes import ALL_LABELS, Votes, WorkerRecord, count_votes, model_workers
from labelwise.taxonomy import AttributeGroups

WORKERS_SHOWN = 10


def votes_table(votes: Path, given: Options) -> None:
    """Write soft labels made of several people's votes."""
    report, least = given.report, given.min_count or 1
    if report is not None and report.suffix.lower() not in (".csv", ".json"):
        raise SettingsError(f"a report on workers must end in .csv or .json, got {report.name!r}")
    answers = Votes.read(votes)
    if given.vote_by == "workers":
        given.refuse("it belongs to --vote-by counts", "smoothing")
        prior = {"right": given.right, "strength": given.strength}
        options = {name: value for name, value in prior.items() if value is not None}
        made = model_workers(answers, least=least, **options)
    else:
        given.refuse("it belongs to --vote-by workers", "right", "strength")
        made = count_votes(answers, smoothing=given.smoothing or 0.0, least=least)
    if given.data is None:
        table = made.table(votes.parent)
    else:
        source = load(given.data)
        labels = made.table(source.images, source.name)
        table = replace(labels, split=source.split, group=source.group, notes=source.notes)
    export(table, given.target)
    if report is not None and report.suffix.lower() == ".json":
        records = [asdict(record) for record in made.records]
        write_text(report, json.dumps(records, indent=2, ensure_ascii=False))
    elif report is not None:
        header = [field.name for field in fields(WorkerRecord)]
        write_csv(report, header, [tuple(asdict(record).values()) for record in made.records])
    soft = counted(0 if table.soft is None else len(table.soft.shares), "soft answer")
    written = f"{counted(len(table), 'photo')}, {counted(len(table.space), 'label')}, {soft}"
    workers = counted(len(answers.workers), "worker")
    say(f"wrote {given.out}: {written}; {counted(len(answers), 'vote')} of {workers}, {made.how}")
    _show_worst(made.records)
    next_steps(f"data describe {given.out}")


def import_table(source: Path, given: Options) -> None:
    """Write a label table from keywords of photos, or crops from detections."""
    if source.is_dir():
        given.refuse("it is for results of a detector", "at_least", "data")
        _import_keywords(source, given)
        next_steps(f"train {given.out}")
        return
    given.refuse("it is for keywords of a folder", "min_count", "taxonomy_out")
    _import_crops(source, given)
    next_steps(f"predict RUN {given.out} -o predictions.csv")


def _import_keywords(source: Path, given: Options) -> None:
    hierarchy = given.taxonomy_out
    if hierarchy is not None and hierarchy.suffix.lower() != ".csv":
        raise SettingsError(f"--taxonomy-out must end in .csv, got {hierarchy.name!r}")
    keywords = read_keywords(source, least=given.min_count or 1)
    table, parents = keywords.table, keywords.taxonomy.parents
    if hierarchy is not None and not parents:
        raise SettingsError("no keyword is under another here; leave --taxonomy-out out")
    export(table, given.target)
    written = f"{counted(len(table), 'photo')}, {counted(len(table.space), 'label')}"
    known = f"{keywords.tagged:,} with a keyword, all else is unknown"
    say(f"wrote {given.out}: {written}; {known}")
    if hierarchy is not None:
        write_csv(hierarchy, ["child", "parent"], sorted(parents.items()))
        say(f"wrote {hierarchy}: {counted(len(parents), 'keyword')} under another")
    tell(*table.notes)


def _import_crops(source: Path, given: Options) -> None:
    results = read_camera_results(source)
    root = source.parent if given.data is None else Path(given.data)
    count = cut_crops(results, root, given.target, given.get("at_least", 0.2))
    say(f"wrote {counted(count, 'crop')} and {given.target / 'crops.csv'}")
    if results.failed:
        say(f"{counted(len(results.failed), 'photo')} without a result, first {results.failed[0]}")
    videos = [photo.file for photo in results.photos if photo.is_video]
    if videos:
        say(f"no crops of {counted(len(videos), 'video')}, first {videos[0]}")


def rules_table(source: str, groups: Path, given: Options) -> None:
    """Find photos whose labels break a rule, such as day and night."""
    table = load(source, check_files=False)
    settled = obey_groups(table, AttributeGroups.read(groups))
    rows = []
    for row in settled.conflicts[:20]:
        labels = ", ".join(table.space.names[k] for k in table.present.row(row))
        rows.append((table.ids[row], labels or "none"))
    if rows:
        show_table(("photos that break a rule", "labels"), rows)
    say(settled.sentence())
    if given.out is not None:
        export(settled.table, given.target)
        say(f"wrote {given.out}")
    next_steps(f"train {given.out or source} --attributes {groups}")


def _show_worst(records: tuple[WorkerRecord, ...]) -> None:
    def told(worker: WorkerRecord) -> float:
        return (worker.sensitivity or 0.0) + (worker.specificity or 0.0)

    rows = []
    workers = sorted((record for record in records if record.label == ALL_LABELS), key=told)
    for worker in workers[:WORKERS_SHOWN]:
        shares = (number(share, ".1%") for share in (worker.sensitivity, worker.specificity))
        rows.append((worker.worker, worker.yes, worker.no, worker.dont_know, *shares))
    say()
    head = ("least telling workers", "yes", "no", "don't know", "sensitivity", "specificity")
    show_table(head, rows)
