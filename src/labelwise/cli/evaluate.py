"""``labelwise evaluate``: how good scores are, a run's or anyone's."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri, storage_at
from labelwise.base.text import counted
from labelwise.cli.figures import show
from labelwise.cli.options import Options, decoder_of, reading
from labelwise.cli.text import command, next_steps, say
from labelwise.errors import DataError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.evaluation import evaluate as measure
from labelwise.models import load_model
from labelwise.models.loading import is_exported, refuse_program
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.report.runs import (
    measured_data,
    measured_run,
    measured_split,
    taxonomy_of,
    write_folder,
)
from labelwise.scores import fixed_rule, judge_as_given, read_scores
from labelwise.scores.aggregating import aggregate_table
from labelwise.tables import LabelTable
from labelwise.tables.load import load_for_labels
from labelwise.taxonomy import AttributeGroups, Taxonomy

Measured = tuple[Evaluation, dict[str, Any]]
Measure = Callable[[str, Options], Measured]
EVERY = {"rule", "bins", "top_k", "out", "overwrite", "json"}  # options of all sources
ROWS = {"split", "query_length", "taxonomy", "attributes"}  # of those whose rows are all at hand
ON_DATA = {"data", "set", "skip_missing", "skip_broken"}


def evaluate(place: str, given: Options) -> None:
    """Measure how right the labels of a model are, and its probabilities."""
    if is_uri(place) and storage_at(place).size("model.json") is not None:
        place = str(fetched_run(place))
    words, options, measured = _kind(place, given.data)
    named = [name for name in vars(given) if name[0] != "_" and name not in EVERY | options]
    given.refuse(f"{place} {words}", *named)
    with nullcontext(place) if given.pool is None else pooled(Path(place), given) as rows:
        evaluation, extras = measured(str(rows), given)
    if given.out is not None:
        origin = {"Data": given.data or place, "Command": command()} | extras.pop("origin", {})
        write_folder(evaluation, given.target, title=Path(place).name, origin=origin, **extras)
    show(evaluation, json=given.json, out=None if given.out is None else given.target)
    if given.json:
        return
    if words.startswith("is a run"):
        next_steps(f"predict {place} PHOTOS", f"data review {place} -o review.csv")
    elif words == "is an exported model":
        next_steps(f"predict {place} PHOTOS")
    else:
        told = given.as_typed("scores", "labels")
        next_steps(f"calibrate {place}{told} -o calibrated/ --rule best-f")


@contextmanager
def pooled(source: Path, given: Options) -> Iterator[Path]:
    """Have a table with one row per group of ``--by``, whose scores are logits."""
    with tempfile.TemporaryDirectory(prefix="labelwise-units-") as folder:
        units = aggregate_table(source, given.scores, given.by or [], given.pool or "any")
        path = Path(folder) / f"{source.stem}.parquet"
        units.save(path)
        given.scores, given.by = "logits", None
        count = counted(int(units.photos.sum()), "photo")
        say(f"{count} in {counted(len(units.names), 'group')}; each group is one row")
        yield path


def _kind(place: str, data: str | None) -> tuple[str, set[str], Measure]:
    """Return what a place holds in words, the options that apply to it, and how it is measured."""
    path = Path(place)
    refuse_program(path)
    shards = path.is_dir() and (
        (path / "_manifest.jsonl").exists() or any(path.glob("part-*.parquet"))
    )
    if is_uri(place) or shards:
        return "holds shards", {"labels", "engine", "workers"}, _shards
    if is_exported(path):
        return "is an exported model", ON_DATA | ROWS, _exported
    if not path.exists():
        what = "the folder of a run, an exported model, or a file of scores"
        raise DataError(f"{place} does not exist; give {what}")
    if not path.is_dir():
        return "is a file of scores", {"scores", "link", "labels", "by", "pool"} | ROWS, _scores
    options = {"without_training_photos"} | ROWS
    if data is None:
        return "is a run folder, evaluated on its own predictions without --data", options, _own
    return "is a run folder", {"device", "decode", "adapt_shares"} | ON_DATA | options, _on_data


def _figures(given: Options) -> dict[str, Any]:
    asked: dict[str, Any] = {"bins": given.bins or 10, "k": given.top_k or 4, "curves": True}
    asked["query_length"] = given.get("query_length", 3)
    if given.taxonomy is not None:
        asked["taxonomy"] = Taxonomy.read(given.taxonomy)
    if given.attributes is not None:
        asked["attributes"] = AttributeGroups.read(given.attributes)
    return asked


def _shards(place: str, given: Options) -> Measured:
    from labelwise.shards import evaluate_shards, make_engine

    engine = make_engine(given.engine or "local", given.workers or 1)
    rule = None if given.rule is None else fixed_rule(given.rule)
    figures = {"bins": given.bins or 10, "k": given.top_k or 4, "sets": given.rule != "none"}
    watch = make_watch(sys.stderr)
    return evaluate_shards(place, given.labels, engine, rule=rule, watch=watch, **figures), {}


def _exported(place: str, given: Options) -> Measured:
    from labelwise.exports.parity import measured_predictions

    if given.data is None:
        raise SettingsError(f"{place} is measured on labelled photos: give them with --data")
    model = load_model(Path(place))
    table = labelled(given.data, model.space.names, given)
    split = given.split or "all"
    predictions = measured_predictions(model, table, split, watch=make_watch(sys.stderr))
    rule = model.rule if given.rule is None else fixed_rule(given.rule)
    figures = _figures(given)
    figures["taxonomy"] = taxonomy_of(model.taxonomy, figures.get("taxonomy"))
    return measure(predictions, model.link, rule, **figures), {}


def _scores(place: str, given: Options) -> Measured:
    columns = tuple(dict.fromkeys(given.by or ()))
    table = read_scores(
        Path(place), given.scores, link=given.link, labels=given.labels, keep=columns
    )
    rule = fixed_rule("0.5" if given.rule is None else given.rule)
    return judge_as_given(table, rule, split=given.split, by=columns, **_figures(given)), {}


def _own(place: str, given: Options) -> Measured:
    folder = Path(place)
    split = given.split or measured_split(folder, ", or give labelled photos with --data")
    told = {"without_seen": given.without_training_photos, "command": command()}
    return measured_run(folder, split, given.rule, _figures(given), **told)


def _on_data(place: str, given: Options) -> Measured:
    folder = Path(place)
    options: dict[str, Any] = {
        "decode": decoder_of(given.decode, given.device or "cpu"),
        "device": given.device or "cpu",
    }
    options |= {"without_seen": given.without_training_photos, "adapt_shares": given.adapt_shares}
    table = labelled(given.data, RunFolder(folder).spec.labels, given)
    return measured_data(folder, table, given.rule, _figures(given), **options)


def labelled(source: str, names: tuple[str, ...], given: Options) -> LabelTable:
    """Return labelled photos, with these labels where their format lists none."""
    table = load_for_labels(
        source,
        names,
        check_files=True,
        **reading(
            given.set,
            given.skip_missing,
            given.skip_broken,
        ),
    )
    if given.split in (None, "all"):
        return table
    chosen = table.splits().get(given.split)
    if chosen is None:
        raise DataError(f"{table.name}: no row has split {given.split!r}")
    return chosen
