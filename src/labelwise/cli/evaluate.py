"""``labelwise evaluate``: how good scores are, a run's or anyone's."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from labelwise.cli.evaluated import QUERY_LENGTH, Asked, source_at
from labelwise.cli.evaluation_shown import show, write_folder
from labelwise.cli.options import DECODE_HELP, DecodeKind, ScoreKind

ON_DATA = "Of a run or an exported model, on labelled photos"
OF_A_RUN, OF_SCORES, OF_SHARDS = "Of a run", "Of a file of scores", "Of shards"


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
            help="Labelled photos that the model has not seen.",
            rich_help_panel=ON_DATA,
        ),
    ] = None,
    scores: Annotated[
        ScoreKind | None, typer.Option(help="What they are.", rich_help_panel=OF_SCORES)
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Of logits: sigmoid (default), softmax, or none.", rich_help_panel=OF_SCORES
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="A column, such as site, whose values are compared.", rich_help_panel=OF_SCORES
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="The labels: a second file, or any data labelwise reads; of shards too.",
            rich_help_panel=OF_SCORES,
        ),
    ] = None,
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
            rich_help_panel=ON_DATA,
        ),
    ] = None,
    skip_missing: Annotated[
        bool,
        typer.Option(
            "--skip-missing", help="Leave missing images of --data out.", rich_help_panel=ON_DATA
        ),
    ] = False,
    without_training_photos: Annotated[
        bool,
        typer.Option(
            "--without-training-photos",
            help="Leave out photos of --data, or of its own split, that it was fitted on, and near "
            "copies of them.",
            rich_help_panel=OF_A_RUN,
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="With --data: cpu (default), cuda, ...", rich_help_panel=OF_A_RUN),
    ] = None,
    adapt_shares: Annotated[
        bool,
        typer.Option(
            "--adapt-shares",
            help="Adapt probabilities to how frequent labels are in --data, by the photos alone.",
            rich_help_panel=OF_A_RUN,
        ),
    ] = False,
    decode: Annotated[
        DecodeKind | None,
        typer.Option(help=f"With --data. {DECODE_HELP}", rich_help_panel=OF_A_RUN),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(
            help="Where they are evaluated: local (default), or a cluster of Ray.",
            rich_help_panel=OF_SHARDS,
        ),
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
    json: Annotated[bool, typer.Option("--json", help="Print the evaluation as JSON.")] = False,
) -> None:
    """Measure ranking, calibration, sets and empty images.

    Of a run folder: its saved predictions of a split, or with --data photos it has not seen. Of
    shards: sums that merge, so memory does not grow with the rows.

    Examples: `labelwise evaluate runs/photos`, `labelwise evaluate model.onnx --data new.csv`,
    `labelwise evaluate scores.csv --scores logits --labels truth.csv`,
    `labelwise evaluate answers/ --labels truth.csv --workers 4`.
    """
    source = source_at(place, data)
    asked = Asked(
        rule=rule,
        bins=bins,
        top_k=top_k,
        split=split,
        query_length=query_length,
        taxonomy=taxonomy,
        attributes=attributes,
        data=data,
        set=options,
        skip_missing=skip_missing,
        without_training_photos=without_training_photos,
        device=device,
        decode=decode,
        adapt_shares=adapt_shares,
        scores=scores,
        link=link,
        by=by,
        labels=labels,
        engine=engine,
        workers=workers,
    )
    source.refuse_others(asked)
    evaluation, extras = source.measured(asked)
    if out is not None:
        from labelwise.cli.outcome import command

        origin = {"Data": source.place, "Command": command()} | extras.pop("origin", {})
        write_folder(evaluation, out, title=Path(source.place).name, origin=origin, **extras)
    show(evaluation, json=json, out=out)
