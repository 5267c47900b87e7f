"""``labelwise evaluate``: how good scores are, a run's or anyone's."""

import sys
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
    from labelwise.evaluate import Evaluation
    from labelwise.fitting import RunScores

__all__ = ["evaluate", "measured_data", "measured_run", "show", "write_folder"]

WORST = 5
QUERY_LENGTH = 3


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
        typer.Option(help="Of a run or exported model: labelled photos it has not seen."),
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
        typer.Option("--set", metavar="KEY=VALUE", help="An option of --data's format."),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave missing images of --data out.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="For --data: cpu (default), cuda, ...")] = None,
    decode: DecodeOption = None,
    engine: Annotated[
        Literal["local", "ray"] | None, typer.Option(help="Of shards: where they are evaluated.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of shards: processes, or workers of Ray.")
    ] = None,
    taxonomy: Annotated[
        Path | None,
        typer.Option(
            help="Which label is a kind of which (child,parent or a|b|c): by level. Models trained "
            "with one have their own."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the evaluation as JSON.")] = False,
) -> None:
    """Measure ranking, calibration, sets and empty images.

    Of a run folder: its saved predictions of a split, or with --data photos it has not seen. Of
    shards: sums that merge, so memory does not grow with the rows.
    """
    from labelwise.models.loading import is_exported, refuse_program

    if _is_run_in_a_bucket(place):
        from labelwise.models.run_folder import fetched_run

        place = str(fetched_run(place))
    source = Path(place)
    extras: dict[str, Any] = {}
    longest = QUERY_LENGTH if query_length is None else query_length
    figures: dict[str, Any] = {"bins": bins, "k": top_k, "query_length": longest}
    if taxonomy is not None:
        from labelwise.taxonomy import Taxonomy

        figures["taxonomy"] = Taxonomy.read(taxonomy)
    of_data = {"--set": options, "--skip-missing": skip_missing or None, "--device": device}
    of_data["--decode"] = decode
    refuse_program(source)
    if _holds_shards(place):
        other: dict[str, Any] = {
            "--data": data,
            "--scores": scores,
            "--link": link,
            "--split": split,
        }
        other |= {"--query-length": query_length, "--taxonomy": taxonomy}
        _refuse(place, "holds shards", {**other, **of_data})
        evaluation = _shards(place, labels, rule, engine or "local", workers or 1, bins, top_k)
    elif engine is not None or workers is not None:
        raise _not_shards(place)
    elif is_exported(source):
        given = {"--scores": scores, "--link": link, "--labels": labels, "--device": device}
        given["--decode"] = decode
        _refuse(source, "is an exported model", given)
        evaluation = _exported(source, data, (options, skip_missing, split), rule, figures)
    elif not source.exists():
        raise _not_there(place)
    elif not source.is_dir():
        _refuse(source, "is not a run folder", {"--data": data, **of_data})
        from labelwise.fitting import fixed_rule, judge_as_given, read_scores

        table = read_scores(source, scores, link=link, labels=labels)
        chosen = fixed_rule("0.5" if rule is None else rule)
        evaluation = judge_as_given(table, chosen, split=split, **figures)
    else:
        given = {"--scores": scores, "--link": link, "--labels": labels}
        _refuse(source, "is a run folder", given)
        if data is None:
            _refuse(source, "is evaluated on its own predictions", of_data)
            evaluation, extras = measured_run(source, split or _test_of(source), rule, figures)
        else:
            table_options = (options, skip_missing, split)
            evaluation, extras = measured_data(
                source, data, table_options, device, rule, figures, decode=decode
            )
    if out is not None:
        from labelwise.cli.outcome import command

        origin = {"Data": str(source), "Command": command()} | extras.pop("origin", {})
        write_folder(evaluation, out, title=source.name, origin=origin, **extras)
    show(evaluation, json=json, out=out)


def _refuse(source: Path | str, what: str, options: dict[str, Any]) -> None:
    """Raise if an option was given that does not apply."""
    from labelwise.errors import SettingsError

    for name, value in options.items():
        if value is not None:
            raise SettingsError(f"{name} does not apply: {source} {what}; leave it out")


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


def _test_of(run: Path) -> str:
    """Return the split that is measured unless another is chosen; a run may have none."""
    from labelwise.errors import DataError
    from labelwise.models.run_folder import RunFolder

    splits = RunFolder(run).splits
    if splits and "test" not in splits:
        raise DataError(
            f"{run} has no test split; choose another of its splits ({', '.join(splits)}) with "
            "--split, or give labelled photos with --data"
        )
    return "test"


def _not_there(place: str) -> Exception:
    from labelwise.errors import DataError

    return DataError(
        f"{place} does not exist; give the folder of a run, an exported model, or a file of scores"
    )


def _not_shards(place: str) -> Exception:
    from labelwise.errors import SettingsError

    return SettingsError(f"--engine and --workers are for shards, and {place} holds none")


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


def measured_run(
    folder: Path, split: str, rule: str | None, figures: dict[str, Any]
) -> tuple["Evaluation", dict[str, Any]]:
    """Return the evaluation of a run's saved predictions, and what else its report shows."""
    from labelwise.api import origin_of
    from labelwise.cli.outcome import command
    from labelwise.fitting import read_run
    from labelwise.models.run_folder import RunFolder
    from labelwise.report import choose_examples

    run = read_run(folder, split)
    extras: dict[str, Any] = {
        "history": RunFolder(folder).journal.read(),
        "origin": origin_of(RunFolder(folder), command=command()),
    }
    link = run.calibrated or run.predictions.link
    if link is not None:
        extras["examples"] = choose_examples(run.predictions, link)
    return _measured(run, rule, figures), extras


def measured_data(
    folder: Path,
    source: str,
    table_options: tuple[list[str] | None, bool, str | None],
    device: str | None,
    rule: str | None,
    figures: dict[str, Any],
    *,
    decode: DecodeKind | None = None,
) -> tuple["Evaluation", dict[str, Any]]:
    """Return the evaluation of a run's model on new labelled data."""
    from labelwise.cli.data import parse_options
    from labelwise.fitting import score_data
    from labelwise.fitting.read import load_for_labels
    from labelwise.models.run_folder import RunFolder
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
    run, notes = score_data(
        folder, table, device=device or "cpu", decode=decoder, watch=make_watch(sys.stderr)
    )
    extras: dict[str, Any] = {"origin": {"Data": source}}
    link = run.calibrated or run.predictions.link
    if link is not None:
        model = model_with_attention(RunFolder(folder))
        extras["examples"] = choose_examples(run.predictions, link, table.images, predictor=model)
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
