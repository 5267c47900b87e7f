"""``labelwise train``: from a table, or photos and words, to a reported model."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    Answers,
    Assign,
    Attributes,
    BatchSize,
    Calibrator,
    Device,
    Engine,
    Features,
    Folds,
    Fresh,
    Guarantee,
    ImageSize,
    Model,
    Out,
    Rule,
    Seed,
    SettingsFile,
    SkipBroken,
    SkipMissing,
    TaxonomyFile,
    Weights,
    WordsFile,
    Workers,
    option,
)
from labelwise.cli.command import app, refuse, verb
from labelwise.cli.figures import few_test_photos, say_shortfall, summarise
from labelwise.cli.options import find_photos
from labelwise.cli.text import (
    command,
    complain,
    next_steps,
    quoted,
    resumable,
    say,
    show_table,
    tell,
)
from labelwise.errors import LabelwiseError, SettingsError

if TYPE_CHECKING:
    from labelwise.models.run_folder import RunFolder
    from labelwise.photos.words.start import Started
    from labelwise.training.data import Data
    from labelwise.training.run import Run
    from labelwise.training.settings import Settings

SHOWN = 5


@verb(
    app,
    "train photos.csv --effort good -o runs/photos",
    "train photos/ --words words.txt -o runs/words",
    more="settings",
    uri_out=True,
)
def train(
    data: Annotated[
        list[str] | None,
        typer.Argument(help="A label table, a folder, or scenes; with --words, photos."),
    ] = None,
    *,
    out: Out = None,
    method: Annotated[
        str | None,
        option("--method", show_default="auto", help="One of `labelwise papers methods`."),
    ] = None,
    effort: Annotated[
        str | None,
        option(
            "--effort",
            show_default="quick on photos",
            help="quick (a head on frozen features), good or best.",
        ),
    ] = None,
    minutes: Annotated[
        float | None, option("--minutes", help="Stop --effort good or best after this time.")
    ] = None,
    rule: Rule = None,
    calibrator: Calibrator = None,
    guarantee: Guarantee = None,
    epochs: Annotated[
        int | None,
        option(
            "--epochs", show_default="8; 30 with --features", help="Passes over the training split."
        ),
    ] = None,
    words: WordsFile = None,
    model: Model = None,
    answers: Answers = None,
    fresh: Fresh = False,
    settings: SettingsFile = None,
    assign: Assign = None,
    seed: Seed = None,
    folds: Folds = None,
    on_error: Annotated[
        str | None,
        option(
            "--on-error", show_default="stop", help="Pictures that cannot be read: stop or skip."
        ),
    ] = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    keep_val: Annotated[
        bool,
        option("--keep-val", help="Fit no head on the split val: it only chooses and calibrates."),
    ] = False,
    labels_are: Annotated[
        str | None,
        option(
            "--labels-are",
            show_default="auto",
            help="complete: a photo with one label noted shows no other.",
        ),
    ] = None,
    taxonomy: TaxonomyFile = None,
    attributes: Attributes = None,
    backbone: Annotated[
        str | None,
        option(
            "--backbone",
            show_default="auto",
            help="The network: small-cnn, a timm name, torchvision/NAME or an eye (.onnx).",
        ),
    ] = None,
    features: Features = None,
    weights: Weights = None,
    start: Annotated[
        str | None, option("--start", help="An earlier run with these labels, to begin with.")
    ] = None,
    head: Annotated[
        str | None,
        option(
            "--head",
            show_default="the method's",
            help="linear, query2label, ml-decoder, boostlu or two-head.",
        ),
    ] = None,
    image_size: ImageSize = None,
    bands: Annotated[
        str | None,
        option(
            "--bands",
            show_default="8-bit RGB",
            help="Names of bands of TIFF, DICOM or .npy, or all.",
        ),
    ] = None,
    composite: Annotated[
        str | None,
        option(
            "--composite",
            show_default="red,green,blue if there are such, else the first",
            help="With --bands: what people are shown.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        option("--window", show_default="none", help="Of DICOM: none, file, or CENTER,WIDTH."),
    ] = None,
    augment: Annotated[
        str | None,
        option(
            "--augment", show_default="none", help="Random changes: shift, crop-flip+trivial, ..."
        ),
    ] = None,
    batch_size: BatchSize = None,
    lr: Annotated[
        float | None,
        option("--lr", show_default="0.004; 0.001 with --features", help="Highest learning rate."),
    ] = None,
    weight_decay: Annotated[
        float | None,
        option(
            "--weight-decay",
            show_default="0.05; 0.1 with --features",
            help="On weights, not biases.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, option("--optimizer", show_default="adamw", help="adamw or sgd.")
    ] = None,
    schedule: Annotated[
        str | None,
        option("--schedule", show_default="one-cycle", help="one-cycle, cosine, step or constant."),
    ] = None,
    metric: Annotated[
        str | None,
        option(
            "--metric",
            show_default="map",
            help="What the kept epoch is best in: map, log_loss, ece, ...",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        option(
            "--patience", show_default="never", help="Stop after epochs without a better metric."
        ),
    ] = None,
    precision: Annotated[
        str | None, option("--precision", show_default="32", help="32 or bf16.")
    ] = None,
    accelerator: Annotated[
        str | None, option("--accelerator", show_default="auto", help="auto, cpu or cuda.")
    ] = None,
    deterministic: Annotated[
        bool, option("--deterministic", help="On a GPU: equal runs to the bit; slower.")
    ] = False,
    devices: Annotated[
        int | None, option("--devices", show_default="1", help="GPUs, or processes on a CPU.")
    ] = None,
    workers: Workers = None,
    engine: Engine = None,
    log: Annotated[
        list[str] | None, option("--log", help="Also log to tensorboard, wandb or mlflow.")
    ] = None,
    device: Device = "cpu",
    set_aside: Annotated[
        float,
        option(
            "--set-aside",
            min=0,
            max=0.9,
            help="With --words: share of answered photos kept for guarantees (0.2).",
        ),
    ] = 0.2,
) -> None:
    """Train a model, calibrate it, measure it and write a report.

    The same command on the same folder resumes a stopped run. -o may be an s3:// or gs:// place.

    With --words no labels are needed: the words are the labels. --model names a text-image model
    (CLIP or SigLIP as transformers saves them, or a sentence encoder); without it, labelwise
    fetches a small one once. Until people have answered, its probabilities are a guess and nothing
    is guaranteed. Give --answers, any label table, when there are some.
    """
    if words is not None:
        how = {"batch_size": batch_size or 64, "device": device, "set_aside": set_aside}
        folder = Path(out or "run")
        _train_words(data or [], words, folder, model, answers, image_size, how)
        return
    refuse("it belongs to --words", "answers", "set_aside", "model", "device")
    if data and len(data) > 1:
        raise SettingsError(f"one table or folder is trained on, got {', '.join(data)}")
    from labelwise.base.yaml_values import parse_assignments
    from labelwise.training.settings import SHORT_NAMES, read_settings

    values: dict[str, Any] = {
        "data": data[0] if data else None,
        "method": method,
        "effort": effort,
        "minutes": minutes,
        "rule": rule,
        "calibrate": calibrator,
        "epochs": epochs,
        "seed": seed,
        "on_error": on_error,
        "skip_missing": skip_missing,
        "keep_val": keep_val,
        "labels_are": labels_are,
        "taxonomy": taxonomy,
        "attributes": attributes,
        "backbone": backbone,
        "features": features,
        "weights": weights,
        "start": start,
        "head": head,
        "image_size": image_size,
        "bands": bands,
        "composite": composite,
        "window": window,
        "augment": augment,
        "batch_size": batch_size,
        "lr": lr,
        "weight_decay": weight_decay,
        "optimizer": optimizer,
        "schedule": schedule,
        "metric": metric,
        "patience": patience,
        "precision": precision,
        "accelerator": accelerator,
        "deterministic": deterministic,
        "devices": devices,
        "workers": workers,
        "log": log,
    }
    flags = {
        SHORT_NAMES[name]: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value not in (None, False, [])
    }
    if skip_broken:
        flags["data_options.skip_broken"] = True
    if guarantee is not None:
        flags["promise"] = guarantee
    on_ray: Any = None
    if engine == "ray":
        on_ray = flags.pop(SHORT_NAMES["workers"], 1)
        refuse("folds are trained in this process, not by --engine ray", "folds")
    resolved = read_settings(settings, flags | parse_assignments(assign or ()))
    if resolved.effort in ("good", "best") and folds is not None:
        raise SettingsError("--folds trains one model, and this effort several; leave one out")
    data_of_run = None
    if on_ray is None and resolved.hardware.devices == 1 and "WORLD_SIZE" not in os.environ:
        from labelwise.training.data import read_data  # before all else: a table may be refused

        data_of_run = read_data(resolved, None, make_watch())
    from labelwise.api import default_folder
    from labelwise.models.run_folder import RunFolder

    with RunFolder.working_in(out or default_folder(resolved)) as run:
        train_and_report(resolved, run, fresh=fresh, folds=folds, on_ray=on_ray, data=data_of_run)


def train_and_report(
    settings: "Settings",
    folder: "RunFolder",
    *,
    fresh: bool,
    folds: int | None = None,
    on_ray: int | None = None,
    data: "Data | None" = None,
    steps: bool = True,
) -> "Run | None":
    """Train, report, and say what to type next unless ``steps`` is False.

    ``data`` spares reading it; ``on_ray`` is how many workers of a Ray cluster train; None trains
    in this process.
    """
    from labelwise.api import trained
    from labelwise.base.storage import address_of
    from labelwise.training.run import train_folds

    address, watch = folder.address, make_watch()
    with resumable(address):
        done = trained(
            settings, folder, watch, fresh=fresh, on_ray=on_ray, data=data, command=command()
        )
    if done is None:
        return None
    if folds is not None:
        with resumable(address):
            train_folds(done, folds, watch=make_watch(), fresh=fresh, publish=folder.publish)
    if done.was_finished:
        say(f"{address} was finished before; --fresh starts over")
    evaluation = done.evaluation
    if not done.was_finished:  # what was read was said before the training
        news = tuple(n for n in evaluation.notes if not n.startswith("Labels: "))
        evaluation = replace(evaluation, notes=news)
    summarise(evaluation)
    split, sets = done.evaluation.data.split, done.evaluation.sets
    tell(f"Rule ({settings.rule}): {sets.rule}" if sets is not None else "")
    tested = say_shortfall(settings.rule, f"on {split}", done.evaluation.rows)
    tell(few_test_photos(done.evaluation.data.rows if split == "test" else 0))
    say(f"Report: {address_of(address, folder.report.name)}")
    if not steps:
        return done
    named = quoted(address if folder.mirror is None else folder.mirror.storage.place)
    if folds is not None:
        next_steps(f"data review {named} -o review.csv")
        return done
    then = f"evaluate {named}{'' if split == 'test' else f' --split {split}'}"
    if tested:
        then = f"train {quoted(settings.data)} --guarantee {tested}"
    next_steps(f"predict {named} PICTURES...", then)
    return done


def _train_words(
    places: list[str],
    words: Path,
    out: Path,
    model: str | None,
    answers: str | None,
    image_size: int | None,
    how: dict[str, Any],
) -> None:
    from labelwise.answers.agreement import export_again
    from labelwise.photos.words import WordList, open_scorer
    from labelwise.photos.words.start import start as start_run
    from labelwise.pictures import PictureImages
    from labelwise.tables import load

    model = model or os.environ.get("LABELWISE_WORDS")
    if not places:
        raise SettingsError("--words needs photos: labelwise train PHOTOS --words words.txt")
    if model is None:
        say("no --model: all-MiniLM-L6-v2 is taken, from the hub's cache or the hub (23 MB, once)")
    photos, vocabulary = [Path(path) for path in places], WordList.read(words)
    if answers is not None:
        export_again(Path(answers))  # a server that was killed left its table behind its log
    table = None if answers is None else load(answers, skip_missing=True)
    images = PictureImages(find_photos(photos))
    with _begun(out), resumable(out):
        scorer = open_scorer(model, image_size=image_size, cache=out)
        watch = make_watch()
        done = start_run(images, vocabulary, scorer, out, answers=table, watch=watch, **how)
    for failure in done.failures[:SHOWN]:
        complain(failure.reason)
    if len(done.failures) > SHOWN:
        complain(f"and {len(done.failures) - SHOWN:,} more photos could not be read")
    tell(*(() if table is None else table.notes), *done.notes)
    _tell(done, photos, words)
    if done.failures:
        raise typer.Exit(1)


@contextmanager
def _begun(out: Path) -> Iterator[None]:
    """Have a folder, and do not leave a new one behind if we fail before a photo was read."""
    from labelwise.photos.words.start import EMBEDDINGS

    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except LabelwiseError:
        if new and not any(file.is_file() for file in (out / EMBEDDINGS).rglob("*")):
            shutil.rmtree(out)
        raise


def _tell(done: "Started", photos: list[Path], words: Path) -> None:
    from labelwise.models.spec import NOT_CALIBRATED

    names = done.spec.space.names
    say(f"{counted(done.photos, 'photo')} and {counted(len(names), 'word')}: {done.folder}")
    indexing = f"index {quoted(photos[0])} --model {quoted(done.folder)}"
    if done.answered is None:
        if done.nearest_classes:
            pairs = list(zip(names, done.nearest_classes, strict=True))
            show_table(("word", "nearest class of the classifier"), pairs)
            mend = "describe it in the language of the encoder, as in 'Hund: a dog'"
            say(f"where that is another thing, the word was not understood: {mend}")
        say(NOT_CALIBRATED)
        places = photos if len(photos) <= 3 else ["PHOTOS"]
        asking = quoted(*places, "--words", words, "--guide", done.folder)
        next_steps(f"label --page {asking}", indexing)
        return
    rows = [
        (name, "no answers yet", "")
        if name in done.spec.unanswered
        else (name, f"{share:.2%}", f"{low:.2%} to {high:.2%}")
        for name, (share, low, high) in zip(names, done.answered.shares.tolist(), strict=True)
    ]
    show_table(("word", "share of the photos", "90 % interval"), rows)
    answered = counted(done.fitted_on, "answered photo")
    say(f"calibrated on {answered}: {done.answered.first.error_in_words('answered photos')}")
    mend = "where a guide or a person chose them, count with labelwise count"
    say(f"shares and this error suppose that the answered photos were drawn at random: {mend}")
    tell(done.spec.caution)
    if done.aside:
        aside = f"{counted(done.aside, 'answered photo')} {'was' if done.aside == 1 else 'were'}"
        say(f"{aside} set aside: guarantees are made on them")
    else:
        mend = "--set-aside 0.2 does that, for photos that are not of the split train"
        say(f"no answered photo was set aside, so nothing can be guaranteed; {mend}")
    next_steps(indexing)
