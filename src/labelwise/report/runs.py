"""What the pages of a run show: figures of its photos, or of others, and where it came from."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labelwise.base.files import together, write_text
from labelwise.base.progress import make_watch
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation, Subgroups, TrainingRows, evaluate
from labelwise.links import Link
from labelwise.models.run_folder import RunFolder
from labelwise.models.seen_photos import HeldOutCopies, seen_held_out, seen_photos
from labelwise.pictures import ImageSource
from labelwise.pictures.worker import shown_images
from labelwise.predictions import Predictions
from labelwise.report.charts import save_charts
from labelwise.report.examples import ExampleGroup, choose_examples, copy_examples
from labelwise.report.page import page, write_report
from labelwise.scores import RunScores, fixed_rule, read_run, score_data
from labelwise.scores.run import adapted_to_shares
from labelwise.tables import LabelTable, load
from labelwise.tables.tabular import open_tabular
from labelwise.taxonomy import Taxonomy
from labelwise.types import nearest

if TYPE_CHECKING:
    from labelwise.learn.predictor import Predictor
    from labelwise.training.run import Run

NOT_IN_TABLE = "(not in the table)"
OF_CHEXPERT, OF_CHESTXRAY14 = "Path", "Image Index"
Figures = Mapping[str, Any]  # arguments of an evaluation
Measured = tuple[Evaluation, dict[str, Any]]  # and what else its page shows


def report_run(run: "Run", *, command: str | None = None) -> Path:
    """Write ``report.html`` into the run's folder unless it is there; return its path."""
    files = RunFolder(run.folder)
    if run.was_finished and files.report.exists():
        return files.report
    predictions = files.predictions(run.evaluation.data.split or "test")
    return write_report(
        run.evaluation,
        files.report,
        title=f"{run.table.name}: {files.name}",
        examples=_examples(files, predictions, files.spec.made_link, run.table.images),
        history=files.journal.read(),
        origin=origin_of(files, command=command),
    )


def _examples(
    run: RunFolder, rows: Predictions, link: Link | None, images: ImageSource | None = None
) -> tuple[ExampleGroup, ...]:
    if link is None:
        return ()
    if images is None:
        return choose_examples(rows, link)

    shown, predictor = shown_images(images, run.spec.transform), None
    if run.spec.head.name == "query2label":  # the weights of another are not read
        from labelwise.learn.predictor import Predictor

        predictor = Predictor.load(run.path)
    copies = HeldOutCopies.of_run(run.path).splits.get(rows.split or "")
    pairs = [] if copies is None else [(pair.photo, pair.of) for pair in copies.pairs]
    groups = choose_examples(rows, link, shown, predictor=predictor)
    return (*copy_examples(pairs, shown), *groups)


def origin_of(run: RunFolder, *, command: str | None = None) -> dict[str, str]:
    """Return what a run was made from, for its report: method, network, data and command."""
    if not run.settings_path.exists():  # a model that was copied out of its run
        return {} if command is None else {"Command": command}
    from labelwise.training.settings import read_settings

    settings = read_settings(run.settings_path, {})
    options = "".join(f", {name} {value}" for name, value in settings.options.items())
    weights = f"the run {settings.start}" if settings.start else settings.weights
    origin = {
        "Method": f"{settings.method}{options}",
        "Backbone": settings.backbone,
        "Weights": weights or "none: trained from random values",
        "Data": settings.data,
        "Seed": str(settings.seed),
    }
    return origin if command is None else origin | {"Command": command}


def write_folder(evaluation: Evaluation, folder: Path, *, title: str, **extras: Any) -> None:
    """Write ``evaluation.json``, ``report.html`` and the charts: all or none."""
    files, text = RunFolder(folder), page(evaluation, title=title, **extras)
    with together():
        evaluation.save(files.evaluation_path)
        write_text(files.report, text)
        save_charts(text, folder / "charts")


def measured_split(run: Path, or_else: str = "") -> str:
    """Return the split that is measured unless another is chosen: test, which a run may lack."""
    splits = RunFolder(run).splits
    if splits and "test" not in splits:
        others = f"choose another of its splits ({', '.join(splits)}) with --split{or_else}"
        raise DataError(f"{run} has no test split; {others}")
    return "test"


def measured_run(
    folder: Path,
    split: str,
    rule: str | None,
    figures: Figures,
    *,
    without_seen: bool = False,
    photos: bool = False,
    command: str | None = None,
    fitted: "Predictor | None" = None,
) -> Measured:
    """Return the evaluation of a run's saved predictions, and what else its report shows.

    With ``photos`` examples have pictures, where those are still there. With ``without_seen`` it is
    of those that do not look like a photo it was fitted on, with the figures of all in the notes.
    """

    run, files = _refitted(read_run(folder, split), fitted), RunFolder(folder)
    if without_seen:
        run, notes = _without_seen(folder, run, rule, figures)
    else:
        copies = HeldOutCopies.of_run(folder).sentence()
        notes = (copies,) if copies and split != "train" else ()
    link, images = run.calibrated or run.predictions.link, _photos_of(files) if photos else None
    extras = {
        "history": files.journal.read(),
        "origin": origin_of(files, command=command),
        "examples": _examples(files, run.predictions, link, images),
    }
    seen = None if without_seen else HeldOutCopies.of_run(folder).rows_of(run.predictions)
    more = {**figures, "notes": notes, "training": _training(files, link), "copies": seen}
    return _judged(run, rule, more), extras


def _training(run: RunFolder, link: Link | None) -> TrainingRows:
    """Return what the saved predictions of other splits say of the photos that fitted a run."""
    counts = None
    if "train" in run.splits:
        rows = run.predictions("train")
        known = rows.labels > 0.5
        counts = (known if rows.observed is None else known & rows.observed).sum(0).tolist()
    return TrainingRows.of(run.predictions("val") if "val" in run.splits else None, link, counts)


def _photos_of(run: RunFolder) -> ImageSource | None:

    with suppress(LabelwiseError, KeyError):
        if "://" not in run.data:
            how = run.settings.get("data_options", {})
            return load(run.data, check_files=False, **how).images
    return None


def _without_seen(
    folder: Path, run: RunScores, rule: str | None, figures: Figures
) -> tuple[RunScores, tuple[str, ...]]:

    rows = run.predictions
    seen = seen_held_out(folder, rows.ids, make_watch(sys.stderr))
    others = np.flatnonzero(seen.others(f"{folder}, split {rows.split}"))
    if len(others) == len(rows):
        return run, (f"none of the {len(rows):,} photos looks like one the model was fitted on",)
    whole = _judged(run, rule, {**figures, "curves": False, "query_length": 0})
    known = ((figure.name, figure.value) for figure in whole.headline if figure.value is not None)
    with_them = ", ".join(f"{name} {value:.4f}" for name, value in known)
    notes = (*seen.note(left_out=True), *seen.named(rows.ids), f"with them: {with_them}")
    return replace(run, predictions=rows.take(others)), notes


def measured_data(
    folder: Path,
    table: LabelTable,
    rule: str | None,
    figures: Figures,
    *,
    device: str = "cpu",
    decode: Literal["cpu", "cuda"] = "cpu",
    without_seen: bool = False,
    adapt_shares: bool = False,
    fitted: "Predictor | None" = None,
) -> Measured:
    """Return the evaluation of a run's model on labelled data, and what else its page shows."""

    watch = make_watch(sys.stderr)
    seen = seen_photos(folder, table, watch)
    if without_seen:
        table = table.subset(seen.others(table.name))
    run, notes = score_data(folder, table, device=device, decode=decode, watch=watch)
    run = _refitted(run, fitted)
    if adapt_shares:
        run, shifted = adapted_to_shares(folder, run)
        notes = (*notes, shifted)
    link = run.calibrated or run.predictions.link
    examples = _examples(RunFolder(folder), run.predictions, link, table.images)
    notes = (*notes, *seen.note(left_out=without_seen))
    return _judged(run, rule, {**figures, "notes": notes}), {"examples": examples}


def _refitted(run: RunScores, fitted: "Predictor | None") -> RunScores:
    if fitted is None:
        return run
    return replace(run, calibrated=fitted.link, rule=fitted.rule, promises=())


def _judged(run: RunScores, rule: str | None, figures: Figures) -> Evaluation:
    chosen = run.rule if rule is None else fixed_rule(rule)
    standing = run.standing() if rule is None else ()
    more = {**figures, "notes": (*figures.get("notes", ()), *standing)}
    more["taxonomy"] = taxonomy_of(run.taxonomy, figures.get("taxonomy"))
    rows = run.predictions
    return evaluate(rows, rows.link, chosen, calibrated=run.calibrated, **more)


def taxonomy_of(own: Taxonomy | None, given: Taxonomy | None) -> Taxonomy | None:
    """Return a model's own taxonomy, or else the given one; two different ones are an error."""
    if own is not None and given is not None and own != given:
        mend = "leave --taxonomy out, or train with this one (it is fitted again without training "
        mend += "if no label changes)"
        raise SettingsError(
            f"the model was trained with another taxonomy, which its answers obey; {mend}"
        )
    return own or given


def subgroups_of(column: str, table: Path, rows: Predictions) -> Subgroups:
    """Return the subgroups of a run's photos by a column of a table."""
    file = open_tabular(table)
    keys = ("id", "path", OF_CHEXPERT, OF_CHESTXRAY14)
    key = next((name for name in keys if name in file.header), None)
    if key is None:
        raise DataError(f"{table}: there is no column 'id' or 'path' that names the photos")
    if column not in file.header:
        raise DataError(f"{table}: there is no column {column!r}{nearest(column, file.header)}")
    known: dict[str, str] = {}
    for batch in file.batches([key, column]):
        for name, value in zip(*(batch.column(c).to_pylist() for c in (key, column)), strict=True):
            if value is not None and str(value).strip():
                known[str(name)] = str(value)
    ids = rows.ids
    if key == OF_CHEXPERT:  # whose table begins each path with the folder of the set
        known = {name.partition("/")[2]: value for name, value in known.items()}
    if key == OF_CHESTXRAY14:  # whose table leaves out the folder of each image
        ids = [name.rpartition("/")[2] for name in ids]
    values = [known.get(name, NOT_IN_TABLE) for name in ids]
    if set(values) == {NOT_IN_TABLE}:
        first = rows.ids[0]
        raise DataError(
            f"{table} names no photo of the split, first {first!r}{nearest(first, known)}"
        )
    return Subgroups.of(column, values)
