"""``labelwise predict``: the labels of image files, or of scores by what `calibrate` fitted.

What an exported file does not need is imported where it is: one photo then takes a second.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.base.files import require_room
from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri, without_options
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    BatchSize,
    By,
    Decode,
    Device,
    Engine,
    Out,
    Pool,
    Scores,
    TaxonomyFile,
    Workers,
    option,
)
from labelwise.cli.command import app, refuse, verb
from labelwise.cli.options import decoder_of, find_photos, pooled
from labelwise.cli.text import (
    caution,
    complain,
    next_steps,
    quoted,
    resumable,
    say,
    show_table,
    stopped,
    tell,
)
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labelwise.links import Link
    from labelwise.models.answer_files import Answer
    from labelwise.models.scoring import DeployedModel
    from labelwise.pictures import ImageSource
    from labelwise.predictions import Predictions

ROWS_SHOWN = 40
LABELS_SHOWN = 5
BYTES_OF_A_PHOTO, BYTES_OF_A_LABEL = 40, 4  # of a file of answers, at least
OF_SHARDS = ("engine", "workers", "shard_rows")


@verb(
    app,
    "predict runs/photos new/ -o tags.csv",
    "predict fitted/ scores.csv -o tags.csv --by burst --pool any",
    more="decode",
    uri_out=True,
    fetch={"model": "model"},
)
def predict(
    model: Annotated[
        Path, typer.Argument(help="A run or an exported model; or what `calibrate` wrote.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(help="Photos, folders and, into shards, buckets and tables; or scores."),
    ],
    *,
    out: Out = None,
    by: By = None,
    pool: Pool = None,
    scores: Scores = None,
    taxonomy: TaxonomyFile = None,
    explain: Annotated[
        Path | None, option("--explain", help="Also write an .html page of where labels were seen.")
    ] = None,
    frequencies: Annotated[
        bool, option("--frequencies", help="Also show how frequent each label is here.")
    ] = False,
    device: Device = "cpu",
    batch_size: BatchSize = None,
    engine: Engine = None,
    workers: Workers = None,
    decode: Decode = None,
    shard_rows: Annotated[
        int | None, option("--shard-rows", min=1, help="Images in each shard (4096).")
    ] = None,
) -> None:
    """Say which labels photos carry, with their probabilities.

    -o names a .csv, .jsonl or .parquet file; or a folder or bucket for shards, ending in /. Shards
    that were stopped go on where they were. A file that cannot be read is named, the others go on,
    and the exit status is 1.

    With link.json or thresholds.json of `calibrate`, or their folder, instead of a model, it turns
    a file of scores into probabilities and labels. --by GROUP --pool any first makes one row of
    each group.
    """

    fitted = _fitted_files([model, *map(Path, images[:-1])])
    if fitted:
        reason = "scores are turned into labels without a model"
        refuse(reason, "taxonomy", "explain", "frequencies", "device", "engine", "workers")
        _apply(fitted, Path(images[-1]), out, scores, by or [], pool)
        return
    _check_model(model)
    refuse(f"{model} answers about photos", "by", "pool", "scores")
    if explain is not None and explain.suffix.lower() != ".html":
        raise SettingsError(f"--explain writes a page that ends in .html, got {explain}")
    decoder = decoder_of(decode, device)
    if out is not None and (out.endswith("/") or is_uri(out) or Path(out).is_dir()):
        for name in ("explain", "taxonomy", "frequencies"):
            refuse(f"--{name} is for answers in one file, not for shards", name)
        _predict_shards(
            model,
            images,
            out,
            engine=engine or "local",
            workers=workers or 1,
            device=device,
            decoder=decoder,
            batch_size=batch_size or 64,
            shard_rows=shard_rows or 4096,
        )
        return
    refuse("it is for shards, with -o a folder that ends in /", *OF_SHARDS)
    uri = next(filter(is_uri, images), None)
    if uri is not None:
        raise SettingsError(
            f"{without_options(uri)} is scored into shards: give -o a folder ending in /"
        )
    _predict_file(
        model,
        [Path(image) for image in images],
        None if out is None else Path(out),
        taxonomy=taxonomy,
        explain=explain,
        frequencies=frequencies,
        device=device,
        decoder=decoder,
        batch_size=batch_size or 64,
    )


def _fitted_files(places: list[Path]) -> list[Path]:
    first = places[0]
    if first.is_dir() and not (first / "model.json").exists():
        return [*filter(Path.is_file, (first / "link.json", first / "thresholds.json"))]
    return places if all(path.suffix == ".json" for path in places) else []


def _apply(
    fitted: list[Path],
    source: Path,
    out: str | None,
    kind: Scores,
    by: list[str],
    pool: Pool,
) -> None:
    """Turn scores into probabilities and labels."""
    from labelwise.scores import apply, read_fitted, read_unlabelled, save_applied
    from labelwise.scores.fitted import check_output, save_detections
    from labelwise.scores.read import is_detections, read_detections
    from labelwise.scores.tables import unscored_note

    if out is None:
        raise SettingsError("say where the labels go: -o FILE, a .parquet, .csv or .jsonl")
    check_output(Path(out))
    files = [read_fitted(path) for path in fitted]
    if is_detections(source):
        refuse(f"{source} says itself what it holds", "scores")
        detections = read_detections(source)
        total, chosen = save_detections(Path(out), detections, files)
        say(f"{counted(total, 'detection')}, {chosen:,} chosen: {out}")
        tell(*detections.notes)
        next_steps(f"count {quoted(source)} --by site")
        return
    with nullcontext(source) if pool is None else pooled(source, kind, by, pool) as path:
        kind = kind if pool is None else "logits"
        table = read_unlabelled(path, kind or files[0].kind)
    result = apply(files, table)
    save_applied(Path(out), result)
    tell(unscored_note(table.failed, str(source)) if table.failed else "")
    sizes = None if result.labels is None else map(len, result.labels)
    sets = "" if sizes is None else f", {fmean(sizes):.2f} labels per row"
    size = f"{counted(len(result.ids), 'row')}, {counted(len(result.names), 'label')}"
    say(f"{size}{sets}: {out}")
    next_steps(f"evaluate {quoted(out)} --scores probs --labels TRUTH.csv")


def _predict_shards(
    run: Path,
    places: list[str],
    out: str,
    *,
    engine: Literal["local", "ray"],
    workers: int,
    device: str,
    decoder: Literal["cpu", "cuda"],
    batch_size: int,
    shard_rows: int,
) -> None:
    from labelwise.models.loading import caution_of
    from labelwise.shards import ModelFiles, ScoringTask, make_engine, predict_shards
    from labelwise.shards.scoring_task import decoders_per_worker

    model = ModelFiles.read(run)
    caution(caution_of(run))
    threads = decoders_per_worker(workers)
    task = ScoringTask(out, model, batch_size, device, threads, decoder)
    address, run_by = without_options(out), make_engine(engine, workers, device)
    with resumable(address):
        outcome = predict_shards(task, places, run_by, shard_rows=shard_rows, watch=make_watch())
    if outcome.resumed:
        say(f"{outcome.resumed:,} of {outcome.shards:,} shards were there already")
    images, shards = counted(outcome.rows, "image"), counted(outcome.shards, "shard")
    say(f"{outcome.rows - outcome.failed:,} of {images} predicted, in {shards} in {address}")
    if outcome.failed:
        told = "could not be read; the column error of their rows says why"
        complain(f"{outcome.failed:,} of {images} {told}")
        raise typer.Exit(1)
    next_steps(f"evaluate {quoted(address)} --labels TRUTH.csv")


def _predict_file(
    run: Path,
    images: list[Path],
    out: Path | None,
    *,
    taxonomy: Path | None,
    explain: Path | None,
    frequencies: bool,
    device: str,
    decoder: Literal["cpu", "cuda"],
    batch_size: int,
) -> None:
    logits: list[NDArray[np.float32]] = []
    held_out = None
    with _stoppable(out):
        from labelwise.models import load_model
        from labelwise.models.answer_files import WRITTEN, answer_writer
        from labelwise.models.run_folder import RunFolder
        from labelwise.pictures import PictureImages

        if out is not None and out.suffix not in WRITTEN:
            raise SettingsError(f"the output must end in {', '.join(WRITTEN)}, got {out.name!r}")
        paths = find_photos(images)
        source = PictureImages(paths)
        model = load_model(run, device).for_many(len(source))
        names, cautioned = model.space.names, model.caution
        if out is not None:
            require_room(out, len(source) * (BYTES_OF_A_PHOTO + BYTES_OF_A_LABEL * len(names)))
        stored = logits if frequencies else None
        answers = _answers(model, source, decoder, batch_size, taxonomy, stored)
        caution(cautioned)
        if frequencies:
            if not run.is_dir():
                raise SettingsError(
                    f"--frequencies needs the held-out photos of a run; {run} is one file"
                )
            from labelwise.scores.run import held_out_of

            held_out = held_out_of(run)
        if explain is not None:
            if not run.is_dir():
                raise SettingsError("an exported file has no attention maps; give the run's folder")
            from labelwise.learn.predictor import Predictor
            from labelwise.report.explain import look, write_explanation

            looked = look(Predictor.load(run, device), source)
            seen = counted(write_explanation(explain, looked), "photo")
            say(f"where each label was seen on {seen}: {explain}")
    rows: list[tuple[str, str]] = []
    failed = count = chosen = 0
    watch = make_watch()
    watch.start("predicting", len(source))
    beside = cautioned is not None
    writer = nullcontext() if out is None else answer_writer(out, names, cautioned=beside)
    with _stoppable(out), writer as write, ExitStack() as stack:
        stack.callback(watch.finish)
        for answer in stack.enter_context(closing(answers)):
            if write is not None:
                write(answer)
            count += 1
            chosen += len(answer.labels)
            if answer.error is not None:
                complain(answer.error)
                failed += 1
            elif len(rows) < ROWS_SHOWN:
                chance = dict(zip(names, answer.probs, strict=True))
                shown = [f"{name} {chance[name]:.2f}" for name in answer.labels[:LABELS_SHOWN]]
                if len(answer.labels) > LABELS_SHOWN:
                    shown.append(f"and {len(answer.labels) - LABELS_SHOWN} more")
                rows.append((answer.id, ", ".join(shown) or "none"))
            watch.advance(1)
    if rows:
        show_table(("image", "labels"), rows)
    if count - failed > len(rows):
        say(f"... and {count - failed - len(rows):,} more{'' if out else '; write them with -o'}")
    if out is not None:
        say(f"{count - failed:,} of {counted(count, 'image')} predicted, written to {out}")
    if count > failed:
        if run.is_dir():
            from labelwise.models.seen_photos import trained_note, trained_on

            tell(RunFolder(run).size_note(chosen / (count - failed)))
            tell(trained_note(trained_on(run, paths), len(paths)))
        if held_out is not None:
            _say_frequencies(held_out, model.link, logits)
    if failed:
        complain(f"{failed:,} of {counted(count, 'image')} could not be read")
        raise typer.Exit(1)
    next_steps(f"index PHOTOS --model {quoted(run)}")


def _answers(
    model: "DeployedModel",
    source: "ImageSource",
    decoder: Literal["cpu", "cuda"],
    batch_size: int,
    taxonomy: Path | None,
    logits: "list[NDArray[np.float32]] | None",
) -> "Generator[Answer]":
    """Yield the answers about photos, which obey a taxonomy; ``logits`` collects theirs."""
    from labelwise.models.scoring import obeying, score

    tree = None
    if taxonomy is not None:
        from labelwise.report.runs import taxonomy_of
        from labelwise.taxonomy import Taxonomy

        joined = taxonomy_of(model.taxonomy, Taxonomy.read(taxonomy))
        tree = None if joined is None else joined.within(model.space)
    for scored in score(model, source, batch_size=batch_size, decode=decoder):
        if logits is not None:
            logits.append(scored.logits)
        obeyed = scored if tree is None else obeying(scored, tree, model.rule)
        yield from obeyed.answers(model.caution)


def _say_frequencies(
    held_out: "Predictions", link: "Link | None", logits: "list[NDArray[np.float32]]"
) -> None:
    import numpy as np

    from labelwise.scores.run import share_shift

    shift = share_shift(held_out, link, np.concatenate(logits))
    cells = []
    for share in shift.shares:
        if share is not None:
            between, moved = f"{share.low:.1%} to {share.high:.1%}", "yes" if share.moved else ""
            cells.append((share.label, f"{share.before:.1%}", f"{share.now:.1%}", between, moved))
    say()
    show_table(("label", "held-out", "here", "95% interval", "moved"), cells)
    say("if photos with a label look as the held-out ones did, and only are more or fewer")
    unknown = len(shift.shares) - len(cells)
    if unknown:
        say(f"left out: {counted(unknown, 'label')} that no held-out photo carries, or all do")


@contextmanager
def _stoppable(out: Path | None) -> Iterator[None]:
    """Say, if Ctrl-C stops the block, that there is no file, and how photos are resumed."""
    try:
        yield
    except KeyboardInterrupt:
        if out is None:
            raise
        shards = f"Shards (-o {quoted(out.with_suffix(''))}/) are kept and resumed"
        raise stopped(f"stopped; {out} was not written. {shards} by the same command") from None


def _check_model(place: Path) -> None:
    from labelwise.models.loading import is_exported, refuse_program

    refuse_program(place)
    if not place.is_dir() and not is_exported(place):
        what = "a file of another kind" if place.exists() else "not there"
        raise SettingsError(
            f"the model comes first: the folder of a run, or an exported model; {place} is {what}"
        )
