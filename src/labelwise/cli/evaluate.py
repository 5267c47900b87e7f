"""``labelwise evaluate``: how good scores are, a run's or anyone's."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri, storage_at
from labelwise.cli.arguments import (
    Assign,
    Attributes,
    By,
    Data,
    Decode,
    Device,
    Engine,
    Json,
    Labels,
    Link,
    Out,
    Pool,
    Rule,
    Scores,
    SkipBroken,
    SkipMissing,
    Split,
    TaxonomyFile,
    Workers,
    option,
)
from labelwise.cli.command import CALL, app, as_typed, refuse, verb
from labelwise.cli.figures import show
from labelwise.cli.options import decoder_of, pooled, reading, review_of
from labelwise.cli.text import command, next_steps, quoted
from labelwise.errors import DataError, SettingsError

if TYPE_CHECKING:
    from labelwise.tables import LabelTable

EVERY = {"rule", "bins", "top_k", "out", "as_json"}  # options of all sources
ROWS = {"split", "query_length", "taxonomy", "attributes"}  # of those whose rows are all at hand
ON_DATA = {"data", "assign", "skip_missing", "skip_broken"}
OPTIONS = {  # by what a source is
    "holds shards": {"labels", "engine", "workers"},
    "is an exported model": ON_DATA | ROWS,
    "is a file of scores": {"scores", "link", "labels", "by", "pool"} | ROWS,
    "is a run folder, evaluated on its own predictions without --data": (
        {"without_training_photos"} | ROWS
    ),
    "is a run folder": (
        {"device", "decode", "adapt_shares", "without_training_photos"} | ON_DATA | ROWS
    ),
}


@verb(
    app,
    "evaluate runs/photos",
    "evaluate scores.csv --scores logits --labels truth.csv --by site -o report/",
    more="link",
)
def evaluate(
    place: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A run, an exported model, a file of scores, or shards that predict wrote.",
        ),
    ],
    *,
    data: Data = None,
    labels: Labels = None,
    scores: Scores = None,
    by: By = None,
    pool: Pool = None,
    split: Split = None,
    rule: Rule = None,
    out: Out = None,
    as_json: Json = False,
    taxonomy: TaxonomyFile = None,
    attributes: Attributes = None,
    device: Device = "cpu",
    link: Link = None,
    query_length: Annotated[
        int, option("--query-length", min=0, help="Longest query; 0 for none (3).")
    ] = 3,
    bins: Annotated[int, option("--bins", min=1, help="Bins of the reliability curves (10).")] = 10,
    top_k: Annotated[
        int, option("--top-k", min=1, help="Most probable labels of an image (4).")
    ] = 4,
    assign: Assign = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    without_training_photos: Annotated[
        bool,
        option(
            "--without-training-photos",
            help="Leave out photos that the model was fitted on, and near-duplicates.",
        ),
    ] = False,
    adapt_shares: Annotated[
        bool, option("--adapt-shares", help="Adapt to how frequent labels are in these photos.")
    ] = False,
    decode: Decode = None,
    engine: Engine = None,
    workers: Workers = None,
) -> None:
    """Measure how right the labels of a model are, and its probabilities.

    A run is measured on its saved test predictions, or with --data on photos it has not seen.
    Scores come as .csv, .tsv, .parquet, .npz or .jsonl. Shards are summed up, so memory does not
    grow with the rows. -o names a folder for the report, the charts and evaluation.json.
    """
    from labelwise.evaluation import evaluate as measure
    from labelwise.models import load_model
    from labelwise.models.run_folder import RunFolder, fetched_run
    from labelwise.report.runs import (
        measured_data,
        measured_run,
        measured_split,
        taxonomy_of,
        write_folder,
    )
    from labelwise.scores import fixed_rule, judge_as_given, read_scores
    from labelwise.taxonomy import AttributeGroups, Taxonomy

    if is_uri(place) and storage_at(place).size("model.json") is not None:
        place = str(fetched_run(place))
    path, kind = Path(place), _kind_of(place, data)
    names = {param.name for param in CALL.get().command.params} - {"place", "overwrite"}
    refuse(f"{place} {kind}", *sorted(names - EVERY - OPTIONS[kind]))
    fixed = None if rule is None or "run" in kind else fixed_rule(rule)
    figures: dict[str, Any] = {
        "bins": bins,
        "k": top_k,
        "curves": True,
        "query_length": query_length,
    }
    if taxonomy is not None:
        figures["taxonomy"] = Taxonomy.read(taxonomy)
    if attributes is not None:
        figures["attributes"] = AttributeGroups.read(attributes)
    read, watch = reading(assign, skip_missing, skip_broken), make_watch(sys.stderr)
    extras: dict[str, Any] = {}
    decoder = decoder_of(decode, device)
    if kind == "holds shards":
        from labelwise.shards import evaluate_shards, make_engine

        evaluation = evaluate_shards(
            place,
            labels,
            make_engine(engine or "local", workers or 1),
            rule=fixed,
            bins=bins,
            k=top_k,
            sets=rule != "none",
            watch=watch,
        )
    elif kind == "is an exported model":
        from labelwise.exports.parity import measured_predictions

        if data is None:
            raise SettingsError(f"{place} is measured on labelled photos: give them with --data")
        model = load_model(path)
        photos = _labelled(data, model.space.names, split, read)
        predictions = measured_predictions(model, photos, split or "all", watch=watch)
        figures["taxonomy"] = taxonomy_of(model.taxonomy, figures.get("taxonomy"))
        evaluation = measure(
            predictions, model.link, model.rule if rule is None else fixed, **figures
        )
    elif kind == "is a file of scores":
        columns = () if pool else tuple(dict.fromkeys(by or ()))
        with nullcontext(path) if pool is None else pooled(path, scores, by or [], pool) as rows:
            own = scores if pool is None else "logits"
            table = read_scores(rows, own, link=link, labels=labels, keep=columns)
            fixed = fixed_rule(rule or "0.5")
            evaluation = judge_as_given(table, fixed, split=split, by=columns, **figures)
    elif data is None:
        split = split or measured_split(path, ", or give labelled photos with --data")
        unseen = without_training_photos
        evaluation, extras = measured_run(
            path, split, rule, figures, without_seen=unseen, command=command()
        )
    else:
        evaluation, extras = measured_data(
            path,
            _labelled(data, RunFolder(path).spec.labels, split, read),
            rule,
            figures,
            decode=decoder,
            device=device,
            without_seen=without_training_photos,
            adapt_shares=adapt_shares,
        )
    if out is not None:
        origin = {"Data": data or place, "Command": command()} | extras.pop("origin", {})
        write_folder(evaluation, Path(out), title=path.name, origin=origin, **extras)
    show(evaluation, json=as_json, out=None if out is None else Path(out))
    if as_json:
        return
    if "run" in kind:
        next_steps(f"predict {quoted(place)} PHOTOS", review_of(path))
    elif kind == "is an exported model":
        next_steps(f"predict {quoted(place)} PHOTOS")
    else:
        told_again = as_typed("scores", "labels")
        next_steps(f"calibrate {quoted(place)}{told_again} -o calibrated/ --rule best-f")


def _kind_of(place: str, data: str | None) -> str:
    """Return in words what a place holds."""
    from labelwise.models.loading import is_exported, refuse_program

    path = Path(place)
    refuse_program(path)
    shards = path.is_dir() and (
        (path / "_manifest.jsonl").exists() or any(path.glob("part-*.parquet"))
    )
    if is_uri(place) or shards:
        return "holds shards"
    if is_exported(path):
        return "is an exported model"
    if not path.exists():
        what = "the folder of a run, an exported model, or a file of scores"
        raise DataError(f"{place} does not exist; give {what}")
    if not path.is_dir():
        return "is a file of scores"
    return f"is a run folder{', evaluated on its own predictions without --data' * (data is None)}"


def _labelled(
    source: str, names: tuple[str, ...], split: str | None, how: dict[str, object]
) -> "LabelTable":
    """Return labelled photos, with these labels where their format lists none."""
    from labelwise.tables.load import load_for_labels

    table = load_for_labels(source, names, check_files=True, **how)
    if split in (None, "all"):
        return table
    chosen = table.splits().get(split)
    if chosen is None:
        raise DataError(f"{table.name}: no row has split {split!r}")
    return chosen
