"""``labelwise report``: the page of a run, or all that is known about it for those who judge it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.command import A_RUN, verb
from labelwise.cli.evaluate import measured_run, measured_split, show, write_folder
from labelwise.cli.options import Options
from labelwise.cli.text import next_steps, say
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation, Subgroups
    from labelwise.models.run_folder import RunFolder
    from labelwise.pictures.transform import Transform
    from labelwise.predictions import Predictions

FEW = 20
NOT_IN_TABLE = "(not in the table)"
OF_CHEXPERT, OF_CHESTXRAY14 = "Path", "Image Index"
FILES = ("settings.yaml", "model.json", "model.safetensors", "evaluation.json")


@verb(
    "out format split by table intended_use index",
    examples=(
        "report runs/photos",
        "report runs/photos --format dossier --by site --table sites.csv -o dossier/",
    ),
)
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run."), A_RUN],
    given: Options,
) -> None:
    """Write the page of a run: a verdict, its figures, right and wrong photos.

    --format page (default) writes report.html, into the run unless -o names a folder. --format
    dossier writes dossier.html and dossier.json: data, splits, figures by subgroup, calibration,
    guarantees and receipts, limits, versions and hashes, under the headings of a model card and of
    Annex IV of the EU's AI Act. No legal claim is made.
    """
    from labelwise.errors import SettingsError
    from labelwise.scores import read_run

    if given.format not in (None, "page", "dossier"):
        raise SettingsError(f"--format must be page or dossier, got {given.format!r}")
    if bool(given.by) != (given.table is not None):
        raise SettingsError("--by names columns of a --table: give both, or neither")
    split = given.split or measured_split(run)
    own = read_run(run, split)
    table = Path(str(given.table))
    parts = [_subgroups(column, table, own.predictions) for column in given.by or ()]
    figures: dict[str, Any] = {"bins": 10, "k": 4, "query_length": 0, "curves": True, "by": parts}
    if given.format == "dossier":
        if given.out is None:
            raise SettingsError("say where the dossier goes: -o FOLDER")
        evaluation, _ = measured_run(run, split, None, figures)
        _write_dossier(run, split, own, evaluation, given)
        next_steps(f"report {run}")
        return
    given.refuse("it is for --format dossier", "intended_use", "index")
    evaluation, extras = measured_run(run, split, None, figures | {"query_length": 3})
    folder = run if given.out is None else given.target
    write_folder(evaluation, folder, title=run.name, **extras)
    show(evaluation, json=False, out=folder)
    next_steps(f"report {run} --format dossier -o dossier/", f"data review {run} -o review.csv")


def _write_dossier(
    run: Path, split: str, own: Any, evaluation: "Evaluation", given: Options
) -> None:
    from labelwise.api import origin_of
    from labelwise.decide import Promise
    from labelwise.evaluation import describe_link
    from labelwise.models.run_folder import RunFolder
    from labelwise.report.dossier import NOT_STATED, Dossier, write_dossier

    files = RunFolder(run)
    spec, link, origin = files.spec, files.spec.made_link, origin_of(files)
    promises = own.promises or tuple(Promise.from_spec(promise) for promise in spec.promises)
    stated = [f"{promise} (not checked here)." for promise in promises]
    not_stated = f"{NOT_STATED}: give it with --intended-use".capitalize()
    found = Dossier(
        title=f"Dossier of {files.name}",
        intended_use=given.intended_use or not_stated,
        model={
            "Task": f"which of {len(spec.labels):,} labels a picture carries: none, one or many",
            "Method": spec.method,
            "Backbone": f"{spec.backbone.name}, {spec.backbone.channels:,} channels",
            "Head": spec.head.name,
            "Input": _input(spec.transform),
            "Probabilities": "none: it ranks" if link is None else describe_link(link),
            "Decides by": str(spec.made_rule),
            "Taxonomy": "none" if spec.taxonomy is None else f"{len(spec.taxonomy):,} parents",
            "Labels": ", ".join(spec.labels[:200]) + (", ..." if len(spec.labels) > 200 else ""),
        },
        data={"Source": origin.get("Data", ""), "Measured on": f"the split {split}"},
        splits=[_split(files, name) for name in files.splits],
        training={name: text for name, text in origin.items() if name != "Data"},
        promises=list(own.standing()) or stated,
        receipts=[] if given.index is None else _receipts(given.index),
        limits=_took_part(files, split) + _limits(evaluation, own.predictions, bool(given.by)),
        versions=dict(spec.versions),
        hashes=_hashes(run),
        history=[
            f"{len(files.journal.read()):,} records of training in metrics.jsonl."
            if files.journal.read()
            else "No record of training in this folder.",
            "The run and its hashes above are one state; a run trained or calibrated again has "
            "other hashes and needs a dossier of its own.",
        ],
        evaluation=evaluation,
    )
    write_dossier(found, given.target)
    say(f"dossier: {given.target / 'dossier.html'} and {given.target / 'dossier.json'}")


def _input(transform: "Transform") -> str:
    """Return what the network sees of a picture, in words."""
    size = f"pictures at {transform.size} pixels"
    bands = transform.bands
    if bands is None:
        return f"{size}, 8-bit RGB"
    window = "" if bands.window == "none" else f", window {bands.window}"
    return f"{size}, bands at full depth: {', '.join(bands.names)}{window}"


def _subgroups(column: str, table: Path, rows: "Predictions") -> "Subgroups":
    """Return the subgroups of a run's photos by a column of a table."""
    from labelwise.data.tabular import open_tabular
    from labelwise.errors import DataError
    from labelwise.evaluation import Subgroups
    from labelwise.types import nearest

    file = open_tabular(table)
    key = next(
        (name for name in ("id", "path", OF_CHEXPERT, OF_CHESTXRAY14) if name in file.header), None
    )
    if key is None:
        raise DataError(f"{table}: there is no column 'id' or 'path' that names the photos")
    if column not in file.header:
        raise DataError(f"{table}: there is no column {column!r}{nearest(column, file.header)}")
    told: dict[str, str] = {}
    for batch in file.batches([key, column]):
        for name, value in zip(*(batch.column(c).to_pylist() for c in (key, column)), strict=True):
            if value is not None and str(value).strip():
                told[str(name)] = str(value)
    ids = rows.ids
    if key == OF_CHEXPERT:  # whose table begins each path with the folder of the set
        told = {name.partition("/")[2]: value for name, value in told.items()}
    if key == OF_CHESTXRAY14:  # whose table leaves out the folder of each image
        ids = [name.rpartition("/")[2] for name in ids]
    values = [told.get(name, NOT_IN_TABLE) for name in ids]
    if set(values) == {NOT_IN_TABLE}:
        raise DataError(
            f"{table} names no photo of the split, first {rows.ids[0]!r}"
            f"{nearest(rows.ids[0], told)}"
        )
    return Subgroups.of(column, values)


def _split(files: "RunFolder", name: str) -> dict[str, str]:
    from labelwise.decide.promises import ids_digest

    rows = files.predictions(name)
    observed = rows.observed
    unknown = 0 if observed is None else int((~observed).sum())
    groups = "none named" if rows.group is None else f"{len(set(rows.group)):,}"
    return {
        "split": name,
        "photos": f"{len(rows):,}",
        "labels present": f"{int(rows.majority.sum()):,}",
        "unknown": f"{unknown:,}",
        "groups": groups,
        "SHA-256 of the photos' names": ids_digest(rows.ids),
    }


def _receipts(folder: Path) -> list[str]:
    from labelwise.photos import Index, verify_lists

    with Index(folder) as index:
        verified = verify_lists(index, None)
    lines = [
        f"Receipt {receipt.number}, {receipt.query}: {receipt.promise}; now: {verdict}."
        for receipt, verdict in verified.lists
    ]
    if lines:
        lines.append(f"{verified.together}.")
    return lines or ["The index has no receipt."]


def _took_part(files: "RunFolder", split: str) -> list[str]:
    """Return a warning if the photos that are measured are not new to the model."""
    if split != "promise" and split not in files.fitted_splits:
        return []
    return [
        f"All figures are of {split}, which took part in fitting the model or its rule, and so "
        "are too good."
    ]


def _limits(evaluation: "Evaluation", rows: "Predictions", by: bool) -> list[str]:
    """Return what the figures do not say."""
    found = [
        "All figures are of the photos measured here; on photos of another kind they may be far "
        "worse.",
        "Things that are none of its labels are not seen.",
    ]
    few = [row.name for row in evaluation.rows if 0 < row.present < FEW]
    if few:
        some = ", ".join(few[:12]) + (", ..." if len(few) > 12 else "")
        found.append(
            f"With fewer than {FEW} positives here: {counted(len(few), 'label')} ({some})."
        )
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        found.append(f"Never seen with a positive here: {counted(len(undefined), 'label')}.")
    if rows.group is None:
        found.append("No groups are named: if photos come in groups, intervals are too narrow.")
    if not by:
        found.append("Not examined for differences between subgroups: none were named.")
    lone = [row for row in evaluation.subgroups if row.groups < 2]
    if lone:
        found.append(
            f"{len(lone):,} subgroups are one group of photos each, so that nothing can be said "
            "about their difference from others."
        )
    return [*found, *evaluation.notes]


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each file that makes the run."""
    from labelwise.system.files import sha256_of

    paths = [folder / name for name in FILES] + sorted((folder / "predictions").glob("*.parquet"))
    found = {}
    for path in paths:
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = sha256_of(path)
    return found
