"""Evaluations of a model: of a run's own predictions, and on labelled data."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.cli.options import (
    DecodeKind,
    chosen_decoder,
)
from labelwise.cli.predict import taxonomy_of

if TYPE_CHECKING:
    from labelwise.data import LabelTable
    from labelwise.evaluation import Evaluation
    from labelwise.scores import RunScores


@dataclass(frozen=True)
class LabelledData:
    """Labelled photos as the command line names them: their format's options, and which rows."""

    source: str
    options: list[str] | None = None
    skip_missing: bool = False
    split: str | None = None

    def table(self, names: tuple[str, ...]) -> "LabelTable":
        """Return their table, with these labels where its format lists none."""
        from labelwise.cli.data_options import parse_options
        from labelwise.data.load import load_for_labels
        from labelwise.errors import DataError

        more = parse_options(self.options)
        table = load_for_labels(
            self.source, names, check_files=True, skip_missing=self.skip_missing, **more
        )
        if self.split in (None, "all"):
            return table
        chosen = table.splits().get(self.split)
        if chosen is None:
            raise DataError(f"{table.name}: no row has split {self.split!r}")
        return chosen


def measured_split(run: Path, or_else: str = "") -> str:
    """Return the split that is measured unless another is chosen: test, which a run may lack.

    ``or_else`` names what else the command takes instead.
    """
    from labelwise.errors import DataError
    from labelwise.models.run_folder import RunFolder

    splits = RunFolder(run).splits
    if splits and "test" not in splits:
        raise DataError(
            f"{run} has no test split; choose another of its splits ({', '.join(splits)}) with "
            f"--split{or_else}"
        )
    return "test"


def measured_run(
    folder: Path,
    split: str,
    rule: str | None,
    figures: dict[str, Any],
    *,
    without_seen: bool = False,
) -> tuple["Evaluation", dict[str, Any]]:
    """Return the evaluation of a run's saved predictions, and what else its report shows.

    With ``without_seen`` it is of those that do not look like a photo it was fitted on, with the
    figures of all in the notes.
    """
    from labelwise.api import origin_of
    from labelwise.cli.outcome import command
    from labelwise.models.held_out_copies import HeldOutCopies
    from labelwise.models.run_folder import RunFolder
    from labelwise.report import choose_examples
    from labelwise.scores import read_run

    run = read_run(folder, split)
    if without_seen:
        run, notes = _without_seen(folder, run, rule, figures)
    else:
        copies = HeldOutCopies.of_run(folder).sentence()
        notes = (copies,) if copies and split != "train" else ()
    figures = {**figures, "notes": (*figures.get("notes", ()), *notes)}
    extras: dict[str, Any] = {
        "history": RunFolder(folder).journal.read(),
        "origin": origin_of(RunFolder(folder), command=command()),
    }
    link = run.calibrated or run.predictions.link
    if link is not None:
        extras["examples"] = choose_examples(run.predictions, link)
    return _judged(run, rule, figures), extras


def _without_seen(
    folder: Path, run: "RunScores", rule: str | None, figures: dict[str, Any]
) -> tuple["RunScores", tuple[str, ...]]:
    """Return a run's scores without near copies of what it was fitted on, and what that changes."""
    import numpy as np

    from labelwise.models.seen_photos import seen_held_out
    from labelwise.system.progress import make_watch

    rows = run.predictions
    seen = seen_held_out(folder, rows.ids, make_watch(sys.stderr))
    others = np.flatnonzero(seen.others(f"{folder}, split {rows.split}"))
    if len(others) == len(rows):
        return run, (f"none of the {len(rows):,} photos looks like one the model was fitted on",)
    whole = _judged(run, rule, {**figures, "curves": False, "query_length": 0})
    with_them = ", ".join(
        f"{one.name} {one.value:.4f}" for one in whole.headline if one.value is not None
    )
    notes = (*seen.note(left_out=True), *seen.named(rows.ids), f"with them: {with_them}")
    return replace(run, predictions=rows.take(others)), notes


def measured_data(
    folder: Path,
    data: LabelledData,
    rule: str | None,
    figures: dict[str, Any],
    *,
    device: str | None = None,
    decode: DecodeKind | None = None,
    adapt_shares: bool = False,
    without_seen: bool = False,
) -> tuple["Evaluation", dict[str, Any]]:
    """Return the evaluation of a run's model on labelled data, new to it or not.

    With ``adapt_shares`` it is of the probabilities adapted to the shares there, beside those of
    the model as it is.
    """
    from labelwise.models.run_folder import RunFolder
    from labelwise.models.seen_photos import seen_photos
    from labelwise.pictures.shown import shown_images
    from labelwise.report import choose_examples
    from labelwise.report.explain import model_with_attention
    from labelwise.scores import score_data
    from labelwise.scores.shares import adapted_to_shares
    from labelwise.system.progress import make_watch

    decoder = chosen_decoder(decode, device or "cpu")
    table = data.table(RunFolder(folder).spec.labels)
    seen = seen_photos(folder, table, make_watch(sys.stderr))
    if without_seen:
        table = table.subset(seen.others(table.name))
    run, notes = score_data(
        folder, table, device=device or "cpu", decode=decoder, watch=make_watch(sys.stderr)
    )
    if adapt_shares:
        run, shifted = adapted_to_shares(folder, run)
        notes = (*notes, shifted)
    extras: dict[str, Any] = {"origin": {"Data": data.source}}
    link = run.calibrated or run.predictions.link
    if link is not None:
        model = model_with_attention(RunFolder(folder))
        images = shown_images(table.images, RunFolder(folder).spec.transform)
        extras["examples"] = choose_examples(run.predictions, link, images, predictor=model)
    notes = (*notes, *seen.note(left_out=without_seen))
    return _judged(run, rule, {**figures, "notes": notes}), extras


def measured_export(
    file: Path, data: LabelledData, rule: str | None, figures: dict[str, Any]
) -> "Evaluation":
    """Return the evaluation of an exported model on labelled photos."""
    from labelwise.evaluation import evaluate as measure
    from labelwise.exports.measure import measured_predictions
    from labelwise.models import load_model
    from labelwise.scores import fixed_rule
    from labelwise.system.progress import make_watch

    model = load_model(file)
    table = data.table(model.space.names)
    split = data.split or "all"
    predictions = measured_predictions(model, table, split, watch=make_watch(sys.stderr))
    chosen = model.rule if rule is None else fixed_rule(rule)
    figures = {**figures, "taxonomy": taxonomy_of(model.taxonomy, figures.get("taxonomy"))}
    return measure(predictions, model.link, chosen, **figures)


def _judged(run: "RunScores", rule: str | None, figures: dict[str, Any]) -> "Evaluation":
    from labelwise.evaluation import evaluate as measure
    from labelwise.scores import fixed_rule

    chosen = run.rule if rule is None else fixed_rule(rule)
    if rule is None:
        figures = {**figures, "notes": (*figures.get("notes", ()), *run.standing())}
    own = run.predictions.link
    figures = {**figures, "taxonomy": taxonomy_of(run.taxonomy, figures.get("taxonomy"))}
    return measure(run.predictions, own, chosen, calibrated=run.calibrated, **figures)
