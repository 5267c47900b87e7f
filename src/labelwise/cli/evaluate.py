"""``labelwise evaluate``: how good scores are, a run's or anyone's."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from labelwise.cli.options import (
    DecodeKind,
    DecodeOption,
    LabelsOption,
    LinkOption,
    ScoresOption,
    chosen_decoder,
)
from labelwise.cli.predict import taxonomy_of

if TYPE_CHECKING:
    from labelwise.evaluate import Evaluation, SubgroupFigure
    from labelwise.fitting import RunScores

__all__ = ["evaluate", "measured_data", "measured_run", "show", "write_folder"]

WORST = 5
QUERY_LENGTH = 3
OF_DATA, OF_SHARDS = "With --data", "Of shards"


@dataclass(frozen=True)
class SourceKind:
    """A kind of what is evaluated: what it is in words, and the options that apply to it."""

    words: str
    options: tuple[str, ...]


FIGURES = ("--split", "--query-length", "--taxonomy", "--attributes")
SHARDS = SourceKind("holds shards", ("--labels", "--engine", "--workers"))
EXPORTED = SourceKind("is an exported model", ("--data", "--set", "--skip-missing", *FIGURES))
SCORES = SourceKind("is a file of scores", ("--scores", "--link", "--labels", "--by", *FIGURES))
RUN = SourceKind(
    "is a run folder, evaluated on its own predictions without --data",
    ("--without-training-photos", *FIGURES),
)
RUN_ON_DATA = SourceKind(
    "is a run folder",
    (
        *("--data", "--set", "--skip-missing", "--without-training-photos"),
        *("--device", "--decode", "--adapt-shares", *FIGURES),
    ),
)


def evaluate(
    place: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A run folder, an exported model, scores (.csv, .tsv, .parquet, .npz, .jsonl), or "
            "a folder or bucket of shards that predict wrote.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Of a run or exported model: labelled photos it has not seen.",
            rich_help_panel=OF_DATA,
        ),
    ] = None,
    scores: ScoresOption = None,
    link: LinkOption = None,
    labels: LabelsOption = None,
    split: Annotated[str | None, typer.Option(help="Which rows; `all` for every one.")] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="0.5 (default for files), top-4, expected-f, none; runs and shards have their own."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for report, charts and JSON.")
    ] = None,
    bins: Annotated[int, typer.Option(min=1, help="Bins of the reliability curves.")] = 10,
    top_k: Annotated[int, typer.Option(min=1, help="Surest labels of an image.")] = 4,
    query_length: Annotated[
        int | None, typer.Option(min=0, help=f"Longest query; 0 for none (default {QUERY_LENGTH}).")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of --data's format.",
            rich_help_panel=OF_DATA,
        ),
    ] = None,
    skip_missing: Annotated[
        bool,
        typer.Option(
            "--skip-missing", help="Leave missing images of --data out.", rich_help_panel=OF_DATA
        ),
    ] = False,
    without_training_photos: Annotated[
        bool,
        typer.Option(
            "--without-training-photos",
            help="Of a run: leave out photos of --data, or of its own split, that it was fitted "
            "on, and near copies of them.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="Of a run: cpu (default), cuda, ...", rich_help_panel=OF_DATA),
    ] = None,
    adapt_shares: Annotated[
        bool,
        typer.Option(
            "--adapt-shares",
            help="Adapt probabilities to how frequent labels are in --data, by the photos alone.",
            rich_help_panel=OF_DATA,
        ),
    ] = False,
    decode: DecodeOption = None,
    engine: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(help="Where they are evaluated.", rich_help_panel=OF_SHARDS),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, or workers of Ray.", rich_help_panel=OF_SHARDS),
    ] = None,
    taxonomy: Annotated[
        Path | None,
        typer.Option(
            help="Which label is a kind of which (child,parent or a|b|c): by level. Models trained "
            "with one have their own."
        ),
    ] = None,
    attributes: Annotated[
        Path | None,
        typer.Option(
            help="Labels that exclude each other (a CSV of group, kind, labels): how often the "
            "right one is chosen. Models trained with them have their own."
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Of scores: a column, such as site, whose values are compared."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the evaluation as JSON.")] = False,
) -> None:
    """Measure ranking, calibration, sets and empty images.

    Of a run folder: its saved predictions of a split, or with --data photos it has not seen. Of
    shards: sums that merge, so memory does not grow with the rows.

    Examples: `labelwise evaluate runs/photos`, `labelwise evaluate model.onnx --data new.csv`,
    `labelwise evaluate scores.csv --scores logits --labels truth.csv`,
    `labelwise evaluate answers/ --labels truth.csv --workers 4`.
    """
    if _is_run_in_a_bucket(place):
        from labelwise.models.run_folder import fetched_run

        place = str(fetched_run(place))
    source = Path(place)
    extras: dict[str, Any] = {}
    longest = QUERY_LENGTH if query_length is None else query_length
    figures: dict[str, Any] = {"bins": bins, "k": top_k, "query_length": longest, "curves": True}
    if taxonomy is not None:
        from labelwise.taxonomy import Taxonomy

        figures["taxonomy"] = Taxonomy.read(taxonomy)
    if attributes is not None:
        from labelwise.attributes import AttributeGroups

        figures["attributes"] = AttributeGroups.read(attributes)
    given = {
        "--data": data,
        "--scores": scores,
        "--link": link,
        "--labels": labels,
        "--split": split,
        "--query-length": query_length,
        "--taxonomy": taxonomy,
        "--attributes": attributes,
        "--by": by or None,
        "--set": options,
        "--skip-missing": skip_missing or None,
        "--without-training-photos": without_training_photos or None,
        "--device": device,
        "--decode": decode,
        "--adapt-shares": adapt_shares or None,
        "--engine": engine,
        "--workers": workers,
    }
    kind = _kind(place, on_data=data is not None)
    _refuse(place, kind, given)
    table_options = (options, skip_missing, split)
    if kind is SHARDS:
        evaluation = _shards(place, labels, rule, engine or "local", workers or 1, bins, top_k)
    elif kind is EXPORTED:
        evaluation = _exported(source, data, table_options, rule, figures)
    elif kind is SCORES:
        from labelwise.fitting import fixed_rule, judge_as_given, read_scores

        columns = tuple(dict.fromkeys(by or ()))
        table = read_scores(source, scores, link=link, labels=labels, keep=columns)
        chosen = fixed_rule("0.5" if rule is None else rule)
        evaluation = judge_as_given(table, chosen, split=split, by=columns, **figures)
    elif data is None:
        evaluation, extras = measured_run(
            source,
            split or measured_split(source, ", or give labelled photos with --data"),
            rule,
            figures,
            without_seen=without_training_photos,
        )
    else:
        evaluation, extras = measured_data(
            source,
            data,
            table_options,
            device,
            rule,
            figures,
            decode=decode,
            adapt_shares=adapt_shares,
            without_seen=without_training_photos,
        )
    if out is not None:
        from labelwise.cli.outcome import command

        origin = {"Data": str(source), "Command": command()} | extras.pop("origin", {})
        write_folder(evaluation, out, title=source.name, origin=origin, **extras)
    show(evaluation, json=json, out=out)


def _kind(place: str, *, on_data: bool) -> SourceKind:
    """Return what a place holds; what is not there is an error."""
    from labelwise.models.loading import is_exported, refuse_program

    source = Path(place)
    refuse_program(source)
    if _holds_shards(place):
        return SHARDS
    if is_exported(source):
        return EXPORTED
    if not source.exists():
        raise _not_there(place)
    if not source.is_dir():
        return SCORES
    return RUN_ON_DATA if on_data else RUN


def _refuse(place: str, kind: SourceKind, given: dict[str, Any]) -> None:
    """Raise if an option was given that does not apply to such a source."""
    from labelwise.errors import SettingsError

    for name, value in given.items():
        if value is not None and name not in kind.options:
            whose = f" ({name} is for shards)" if name in SHARDS.options[1:] else ""
            raise SettingsError(f"{name} does not apply: {place} {kind.words}{whose}; leave it out")


def _holds_shards(place: str) -> bool:
    """Return whether a place is a bucket, or a folder that `predict` wrote shards to."""
    folder = Path(place)
    if "://" in place or not folder.is_dir():
        return "://" in place
    return (folder / "_manifest.jsonl").exists() or any(folder.glob("part-*.parquet"))


def _is_run_in_a_bucket(place: str) -> bool:
    """Return whether a URI names a run or a model, not shards."""
    from labelwise.system.storage import is_uri, storage_at

    return is_uri(place) and storage_at(place).size("model.json") is not None


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


def _not_there(place: str) -> Exception:
    from labelwise.errors import DataError

    return DataError(
        f"{place} does not exist; give the folder of a run, an exported model, or a file of scores"
    )


def _shards(
    place: str,
    labels: str | None,
    rule: str | None,
    engine: str,
    workers: int,
    bins: int,
    top_k: int,
) -> "Evaluation":
    """Return the evaluation of a folder of shards."""
    from labelwise.cli.predict import make_engine
    from labelwise.fitting import fixed_rule
    from labelwise.shards import evaluate_shards
    from labelwise.system.progress import make_watch

    return evaluate_shards(
        place,
        labels,
        make_engine(engine, workers),
        rule=None if rule is None else fixed_rule(rule),
        sets=rule != "none",
        bins=bins,
        k=top_k,
        watch=make_watch(sys.stderr),
    )


def write_folder(evaluation: "Evaluation", folder: Path, *, title: str, **extras: Any) -> None:
    """Write ``evaluation.json``, ``report.html`` and the charts."""
    from labelwise.models.run_folder import RunFolder
    from labelwise.report import plots, write_report

    files = RunFolder(folder)
    evaluation.save(files.evaluation_path)
    write_report(evaluation, files.report, title=title, **extras)
    plots.save_charts(evaluation, folder / "charts")


def show(evaluation: "Evaluation", *, json: bool, out: Path | None) -> None:
    """Print the evaluation for a machine, or its headline and worst labels for a person."""
    from labelwise.cli.outcome import summarise
    from labelwise.cli.text import say, show_table

    if json:
        say(evaluation.to_json())
        return
    summarise(evaluation)
    worst = sorted((row for row in evaluation.rows if row.ap is not None), key=lambda r: r.ap or 0)
    say()
    show_table(
        ("worst labels", "present", "AP"),
        [(row.name, f"{row.present:,}", f"{row.ap:.4f}") for row in worst[:WORST]],
    )
    if evaluation.levels:
        say()
        show_table(
            ("level", "labels", "present", "mAP", "log loss", "ECE", "F1"),
            [
                (
                    str(one.level),
                    f"{one.labels:,}",
                    f"{one.present:,}",
                    *(
                        "undefined" if value is None else f"{value:.4f}"
                        for value in (one.mean_ap, one.log_loss, one.ece, one.mean_f1)
                    ),
                )
                for one in evaluation.levels
            ],
        )
    if evaluation.subgroups:
        say()
        _show_subgroups(evaluation)
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        some = ", ".join(undefined[:WORST]) + (", ..." if len(undefined) > WORST else "")
        say(f"without a known positive, left out: {len(undefined):,} labels ({some})")
    say()
    say(f"ranking: {evaluation.ranking.how}")
    if evaluation.final is not None:
        say(
            f"calibration: {len(evaluation.final.pooled.counts)} equal-width bins, "
            f"{evaluation.final.pooled.entries}"
        )
    if evaluation.sets is not None:
        say(f"sets: {evaluation.sets.rule}")
    if out is not None:
        say(f"report: {out / 'report.html'}")


def _show_subgroups(evaluation: "Evaluation") -> None:
    """Print the figures of each subgroup, with a mark where it can be told from the others."""
    from labelwise.cli.text import say, show_table

    rows = evaluation.subgroups
    names = [figure.name for figure in rows[0].figures]
    for by in dict.fromkeys(row.by for row in rows):
        show_table(
            (by, "photos", *names),
            [
                (row.name, f"{row.photos:,}", *(_cell(figure) for figure in row.figures))
                for row in rows
                if row.by == by
            ],
        )
    say(
        "*: differs from the other photos (score test by group, corrected over all subgroups and "
        "figures by Holm's method, 5 %)"
    )


def _cell(figure: "SubgroupFigure") -> str:
    if figure.value is None:
        return "–"
    return f"{figure.value:.4f}{' *' if figure.differs else ''}"


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
    from labelwise.fitting import read_run
    from labelwise.models.held_out_copies import HeldOutCopies
    from labelwise.models.run_folder import RunFolder
    from labelwise.report import choose_examples

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
    return _measured(run, rule, figures), extras


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
    whole = _measured(run, rule, {**figures, "curves": False, "query_length": 0})
    with_them = ", ".join(
        f"{one.name} {one.value:.4f}" for one in whole.headline if one.value is not None
    )
    notes = (*seen.note(left_out=True), *seen.named(rows.ids), f"with them: {with_them}")
    return replace(run, predictions=rows.take(others)), notes


def measured_data(
    folder: Path,
    source: str,
    table_options: tuple[list[str] | None, bool, str | None],
    device: str | None,
    rule: str | None,
    figures: dict[str, Any],
    *,
    decode: DecodeKind | None = None,
    adapt_shares: bool = False,
    without_seen: bool = False,
) -> tuple["Evaluation", dict[str, Any]]:
    """Return the evaluation of a run's model on labelled data, new to it or not.

    With ``adapt_shares`` it is of the probabilities adapted to the shares there, beside those of
    the model as it is.
    """
    from labelwise.cli.data import parse_options
    from labelwise.fitting import score_data
    from labelwise.fitting.read import load_for_labels
    from labelwise.fitting.shares import adapted_to_shares
    from labelwise.models.run_folder import RunFolder
    from labelwise.models.seen_photos import seen_photos
    from labelwise.pictures.shown import shown_images
    from labelwise.report import choose_examples
    from labelwise.report.explain import model_with_attention
    from labelwise.system.progress import make_watch

    decoder = chosen_decoder(decode, device or "cpu")
    options, skip_missing, split = table_options
    names = RunFolder(folder).spec.labels
    table = load_for_labels(
        source, names, check_files=True, skip_missing=skip_missing, **parse_options(options)
    )
    if split not in (None, "all"):
        table = table.splits().get(split) or _no_split(table.name, split)
    seen = seen_photos(folder, table, make_watch(sys.stderr))
    if without_seen:
        table = table.subset(seen.others(table.name))
    run, notes = score_data(
        folder, table, device=device or "cpu", decode=decoder, watch=make_watch(sys.stderr)
    )
    if adapt_shares:
        run, shifted = adapted_to_shares(folder, run)
        notes = (*notes, shifted)
    extras: dict[str, Any] = {"origin": {"Data": source}}
    link = run.calibrated or run.predictions.link
    if link is not None:
        model = model_with_attention(RunFolder(folder))
        images = shown_images(table.images, RunFolder(folder).spec.transform)
        extras["examples"] = choose_examples(run.predictions, link, images, predictor=model)
    notes = (*notes, *seen.note(left_out=without_seen))
    return _measured(run, rule, {**figures, "notes": notes}), extras


def _exported(
    file: Path,
    source: str | None,
    table_options: tuple[list[str] | None, bool, str | None],
    rule: str | None,
    figures: dict[str, Any],
) -> "Evaluation":
    """Return the evaluation of an exported model on labelled photos."""
    from labelwise.cli.data import parse_options
    from labelwise.errors import SettingsError
    from labelwise.evaluate import evaluate as measure
    from labelwise.export.measure import measured_predictions
    from labelwise.fitting import fixed_rule
    from labelwise.fitting.read import load_for_labels
    from labelwise.models import load_model
    from labelwise.system.progress import make_watch

    if source is None:
        raise SettingsError(f"{file} is measured on labelled photos: give them with --data")
    options, skip_missing, split = table_options
    model = load_model(file)
    names, more = model.space.names, parse_options(options)
    table = load_for_labels(source, names, check_files=True, skip_missing=skip_missing, **more)
    if split not in (None, "all"):
        table = table.splits().get(split) or _no_split(table.name, split)
    predictions = measured_predictions(model, table, split or "all", watch=make_watch(sys.stderr))
    chosen = model.rule if rule is None else fixed_rule(rule)
    figures = {**figures, "taxonomy": taxonomy_of(model.taxonomy, figures.get("taxonomy"))}
    return measure(predictions, model.link, chosen, **figures)


def _no_split(name: str, split: str) -> NoReturn:
    from labelwise.errors import DataError

    raise DataError(f"{name}: no row has split {split!r}")


def _measured(run: "RunScores", rule: str | None, figures: dict[str, Any]) -> "Evaluation":
    from labelwise.evaluate import evaluate as measure
    from labelwise.fitting import fixed_rule

    chosen = run.rule if rule is None else fixed_rule(rule)
    if rule is None:
        figures = {**figures, "notes": (*figures.get("notes", ()), *run.standing())}
    own = run.predictions.link
    figures = {**figures, "taxonomy": taxonomy_of(run.taxonomy, figures.get("taxonomy"))}
    return measure(run.predictions, own, chosen, calibrated=run.calibrated, **figures)
