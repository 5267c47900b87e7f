"""``labelwise predict``: the labels of image files, or of scores by what `calibrate` fitted.

What an exported file does not need is imported where it is: one photo then takes a second.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import typer

from labelwise.base.arrays import to_numpy
from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri, without_options
from labelwise.base.text import counted
from labelwise.cli.options import Options, decoder_of, find_photos
from labelwise.cli.text import (
    before_writing,
    caution,
    complain,
    next_steps,
    resumable,
    say,
    show_table,
    tell,
)
from labelwise.errors import SettingsError
from labelwise.models import load_model
from labelwise.models.answer_files import WRITTEN, Answer, answer_writer
from labelwise.models.loading import caution_of, is_exported, refuse_program
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import ImageSource, PictureImages
from labelwise.predictions import Predictions
from labelwise.taxonomy import Taxonomy

ROWS_SHOWN = 40
LABELS_SHOWN = 5


def predict(model: Path, images: list[str], given: Options) -> None:
    """Say which labels photos carry, with their probabilities."""
    fitted = _fitted_files([model, *map(Path, images[:-1])])
    if fitted:
        reason = "scores are turned into labels without a model"
        given.refuse(reason, "taxonomy", "explain", "frequencies", "device", "engine", "workers")
        _apply(fitted, Path(images[-1]), given)
        return
    given.refuse(f"{model} answers about photos", "by", "pool", "scores")
    if given.explain is not None and given.explain.suffix.lower() != ".html":
        raise SettingsError(f"--explain writes a page that ends in .html, got {given.explain}")
    out = given.out
    if out is not None and (out.endswith("/") or is_uri(out) or Path(out).is_dir()):
        for name in ("explain", "taxonomy", "frequencies"):
            given.refuse(f"--{name} is for answers in one file, not for shards", name)
        _predict_shards(model, images, out, given)
        return
    reason = "it is for shards, with -o a folder that ends in /"
    given.refuse(reason, "engine", "workers", "decoders", "shard_rows")
    uri = next(filter(is_uri, images), None)
    if uri is not None:
        raise SettingsError(
            f"{without_options(uri)} is scored into shards: give -o a folder ending in /"
        )
    _predict_file(model, [Path(image) for image in images], given)


def _fitted_files(places: list[Path]) -> list[Path]:
    first = places[0]
    if first.is_dir() and not (first / "model.json").exists():
        return [*filter(Path.is_file, (first / "link.json", first / "thresholds.json"))]
    return places if all(path.suffix == ".json" for path in places) else []


def _apply(fitted: list[Path], source: Path, given: Options) -> None:
    from labelwise.cli.evaluate import pooled
    from labelwise.scores import apply as applied
    from labelwise.scores import read_fitted, read_unlabelled, save_applied
    from labelwise.scores.fitted import check_output, save_detections
    from labelwise.scores.read import is_detections, read_detections
    from labelwise.scores.tables import unscored_note

    if given.out is None:
        raise SettingsError("say where the labels go: -o FILE, a .parquet, .csv or .jsonl")
    out = given.target
    check_output(out)
    files = [read_fitted(path) for path in fitted]
    if is_detections(source):
        if given.scores is not None:
            raise SettingsError(f"--scores does not apply: {source} says itself what it holds")
        detections = read_detections(source)
        total, chosen = save_detections(out, detections, files)
        say(f"{counted(total, 'detection')}, {chosen:,} chosen: {out}")
        tell(*detections.notes)
        next_steps(f"count {source} --by site")
        return
    with ExitStack() as stack:
        path = source if given.pool is None else stack.enter_context(pooled(source, given))
        table = read_unlabelled(path, given.scores or files[0].kind)
    result = applied(files, table)
    save_applied(out, result)
    tell(unscored_note(table.failed, str(source)) if table.failed else "")
    sizes = None if result.labels is None else map(len, result.labels)
    sets = "" if sizes is None else f", {fmean(sizes):.2f} labels per row"
    size = f"{counted(len(result.ids), 'row')}, {counted(len(result.names), 'label')}"
    say(f"{size}{sets}: {out}")
    next_steps(f"evaluate {out} --labels TRUTH.csv")


def _predict_shards(run: Path, places: list[str], out: str, given: Options) -> None:
    from labelwise.shards import ModelFiles, ScoringTask, make_engine, predict_shards
    from labelwise.shards.scoring_task import cluster_decoding, decoders_per_worker

    decoder, device = decoder_of(given.decode, given.device or "cpu"), given.device or "cpu"
    engine, workers, decoders = given.engine or "local", given.workers or 1, given.decoders or 0
    _check_model(run)
    reader = cluster_decoding(run, engine, workers, decoder, decoders) if decoders else None
    model = ModelFiles.read(run)
    caution(caution_of(run))
    threads = decoders_per_worker(workers)
    task = ScoringTask(out, model, given.batch_size or 64, device, threads, decoder, reader)
    address, run_by = without_options(out), make_engine(engine, workers, device, decoders)
    with resumable(address):
        rows = given.shard_rows or 4096
        outcome = predict_shards(task, places, run_by, shard_rows=rows, watch=make_watch())
    if outcome.resumed:
        say(f"{outcome.resumed:,} of {outcome.shards:,} shards were there already")
    images, shards = counted(outcome.rows, "image"), counted(outcome.shards, "shard")
    say(f"{outcome.rows - outcome.failed:,} of {images} predicted, in {shards} in {address}")
    if outcome.failed:
        told = "could not be read; the column error of their rows says why"
        complain(f"{outcome.failed:,} of {images} {told}")
        raise typer.Exit(1)
    next_steps(f"evaluate {address} --labels TRUTH.csv")


def _predict_file(run: Path, images: list[Path], given: Options) -> None:
    out = None if given.out is None else given.target
    logits: list[Any] = []
    held_out = None
    with _stoppable(out):
        if out is not None and out.suffix not in WRITTEN:
            raise SettingsError(f"the output must end in {', '.join(WRITTEN)}, got {out.name!r}")
        decode = decoder_of(given.decode, given.device or "cpu")
        _check_model(run)
        source = PictureImages(find_photos(images))
        model: Any = load_model(run, given.device or "cpu").fused(len(source))
        names, said = model.space.names, model.caution
        alone = given.explain is None and given.taxonomy is None and not given.frequencies
        if alone and run.suffix.lower() == ".onnx" and model.answers_pictures:
            answers = model.written(source)
        else:
            answers = _answers(model, source, decode, logits, given)
        caution(said)
        if given.frequencies:
            if not run.is_dir():
                raise SettingsError(
                    f"--frequencies needs the held-out photos of a run; {run} is one file"
                )
            from labelwise.scores.run import held_out_of

            held_out = held_out_of(run)
        if given.explain is not None:
            from labelwise.models import Predictor
            from labelwise.report.explain import look, write_explanation

            if not isinstance(model, Predictor):
                raise SettingsError("an exported file has no attention maps; give the run's folder")
            seen = counted(write_explanation(given.explain, look(model, source)), "photo")
            say(f"where each label was seen on {seen}: {given.explain}")
    rows: list[tuple[str, str]] = []
    failed = count = chosen = 0
    watch = make_watch()
    watch.start("predicting", len(source))
    writer = nullcontext() if out is None else answer_writer(out, names, cautioned=said is not None)
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
        tell(RunFolder(run).size_note(chosen / (count - failed)) if run.is_dir() else "")
        if held_out is not None:
            _say_frequencies(held_out, model.link, logits)
    if failed:
        complain(f"{failed:,} of {counted(count, 'image')} could not be read")
        raise typer.Exit(1)
    next_steps(f"index PHOTOS --model {run}")


def _answers(
    model: Any, source: ImageSource, decode: Any, logits: list[Any], given: Options
) -> Generator[Answer]:
    from labelwise.models.scoring import obeying, score
    from labelwise.report.runs import taxonomy_of

    tree = None
    if given.taxonomy is not None:
        taxonomy = taxonomy_of(model.taxonomy, Taxonomy.read(given.taxonomy))
        tree = None if taxonomy is None else taxonomy.within(model.space)
    for scored in score(model, source, batch_size=given.batch_size or 64, decode=decode):
        if given.frequencies:
            logits.append(scored.logits)
        obeyed = scored if tree is None else obeying(scored, tree, model.rule)
        yield from obeyed.answers(model.caution)


def _say_frequencies(held_out: Predictions, link: Any, logits: list[Any]) -> None:
    from labelwise.scores.run import share_shift

    shift = share_shift(held_out, link, np.concatenate([to_numpy(part) for part in logits]))
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


def _stoppable(out: Path | None) -> AbstractContextManager[None]:
    if out is None:
        return nullcontext()
    shards = f"Shards (-o {out.with_suffix('')}/) are kept and go on with the same command"
    return before_writing(f"stopped; {out} was not written. {shards}")


def _check_model(place: Path) -> None:
    refuse_program(place)
    if not place.is_dir() and not is_exported(place):
        what = "a file of another kind" if place.exists() else "not there"
        raise SettingsError(
            f"the model comes first: the folder of a run, or an exported model; {place} is {what}"
        )
