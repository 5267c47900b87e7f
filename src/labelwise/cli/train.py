"""``labelwise train`` and ``demo``: from a table, or photos and words, to a reported model."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from PIL import Image

from labelwise.answers.agreement import export_again
from labelwise.api import default_folder, trained
from labelwise.base.progress import make_watch
from labelwise.base.storage import address_of
from labelwise.base.text import counted
from labelwise.base.yaml_values import parse_assignments
from labelwise.cli.evaluate import few_test_photos, say_shortfall, summarise
from labelwise.cli.options import Options
from labelwise.cli.predict import find_photos
from labelwise.cli.text import command, complain, next_steps, resumable, say, show_table, tell
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.models.spec import NOT_CALIBRATED
from labelwise.photos.words import WordList, open_scorer
from labelwise.photos.words.start import EMBEDDINGS, Started, compare_runs
from labelwise.photos.words.start import start as start_run
from labelwise.pictures import PictureImages
from labelwise.tables import load, scenes
from labelwise.training.run import Run, train_folds
from labelwise.training.settings import (
    SHORT_NAMES,
    OptimizerSettings,
    Recipe,
    Settings,
    read_settings,
)

SHOWN = 5
DEMO_PHOTOS = 240
OF_WORDS = ("answers", "set_aside", "against", "model", "device")


def train(data: list[str] | None, given: Options) -> None:
    """Train a model, calibrate it, measure it and write a report."""
    if given.words is not None:
        _train_words(data or [], given.words, given)
        return
    given.refuse("it belongs to --words", *OF_WORDS)
    if data and len(data) > 1:
        raise SettingsError(f"one table or folder is trained on, got {', '.join(data)}")
    values = vars(given) | {"data": data[0] if data else None, "calibrate": given.calibrator}
    flags: dict[str, Any] = {
        key: str(values[name]) if isinstance(values[name], Path) else values[name]
        for name, key in SHORT_NAMES.items()
        if values[name] not in (None, False, [])
    }
    if given.skip_broken:
        flags["data_options.skip_broken"] = True
    if given.guarantee is not None:
        flags["promise"] = given.guarantee
    on_ray = None
    if given.engine == "ray":
        on_ray = flags.pop(SHORT_NAMES["workers"], 1)
        given.refuse("folds are trained in this process, not by --engine ray", "folds")
    resolved = read_settings(given.settings, flags | parse_assignments(given.set or ()))
    if resolved.effort in ("good", "best") and given.folds is not None:
        raise SettingsError("--folds trains one model, and this effort several; leave one out")
    with RunFolder.working_in(given.out or default_folder(resolved)) as run:
        train_and_report(resolved, run, fresh=given.fresh, folds=given.folds, on_ray=on_ray)


def train_and_report(
    settings: Settings,
    folder: RunFolder,
    *,
    fresh: bool,
    folds: int | None = None,
    on_ray: int | None = None,
) -> Run | None:
    """Train, report, and say what to type next; on ``on_ray`` workers of a cluster if given."""
    address, watch = folder.address, make_watch()
    with resumable(address):
        done = trained(settings, folder, watch, fresh=fresh, on_ray=on_ray, command=command())
    if done is None:
        return None
    if folds is not None:
        with resumable(address):
            train_folds(done, folds, watch=make_watch(), fresh=fresh, publish=folder.publish)
    if done.was_finished:
        say(f"{address} was finished before; --fresh starts over")
    summarise(done.evaluation)
    split, sets = done.evaluation.data.split, done.evaluation.sets
    tell(f"Rule ({settings.rule}): {sets.rule}" if sets is not None else "")
    tested = say_shortfall(settings.rule, f"on {split}", done.evaluation.rows)
    tell(few_test_photos(done.evaluation.data.rows if split == "test" else 0))
    say(f"Report: {address_of(address, folder.report.name)}")
    named = address if folder.mirror is None else shlex.quote(folder.mirror.storage.place)
    if folds is not None:
        next_steps(f"data review {named} -o review.csv")
        return done
    on_split = "" if split == "test" else f" --split {split}"
    then = (
        f"train {settings.data} --guarantee {tested}" if tested else f"evaluate {named}{on_split}"
    )
    next_steps(f"predict {named} PICTURES...", then)
    return done


def demo(given: Options) -> None:
    """Train, calibrate, measure and report on embedded pictures."""
    say("Scenes of 0 to 5 handwritten digits: which digits are there? Training takes minutes.")
    # Shifts, not mirrored: a mirrored digit is another one. Six epochs pass 0.90 mAP.
    recipe = Recipe(epochs=6, optimizer=OptimizerSettings(lr=5e-3))
    settings = Settings(data="scenes", backbone="small-cnn", augment="shift", recipe=recipe)
    train_and_report(settings, RunFolder(Path(given.out or "runs/demo")), fresh=given.fresh)
    if given.photos is None:
        return
    given.photos.mkdir(parents=True, exist_ok=True)
    table = scenes(0, 0, DEMO_PHOTOS, seed=1)  # which no split of the demo holds
    for row in range(DEMO_PHOTOS):
        picture = table.images.read(row)
        size = 4 * picture.width, 4 * picture.width
        picture.resize(size, Image.Resampling.BICUBIC).save(given.photos / f"scene-{row:03d}.png")
    say(f"{DEMO_PHOTOS} new scenes are in {given.photos}")


def _train_words(places: list[str], words: Path, given: Options) -> None:
    model = given.model or os.environ.get("LABELWISE_WORDS")
    if not places:
        raise SettingsError("--words needs photos: labelwise train PHOTOS --words words.txt")
    if model is None:
        say("no --model: all-MiniLM-L6-v2 is taken, from the hub's cache or the hub (23 MB, once)")
    photos, out = [Path(path) for path in places], Path(given.out or "run")
    vocabulary = WordList.read(words)
    if given.answers is not None:
        export_again(Path(given.answers))  # a server that was killed left its table behind its log
    table = None if given.answers is None else load(given.answers, skip_missing=True)
    images = PictureImages(find_photos(photos))
    how: dict[str, Any] = {"batch_size": given.batch_size or 64, "device": given.device or "cpu"}
    how |= {"set_aside": given.get("set_aside", 0.2), "watch": make_watch()}
    with _begun(out), resumable(out):
        scorer = open_scorer(model, image_size=given.image_size, cache=out)
        done = start_run(images, vocabulary, scorer, out, answers=table, **how)
    for failure in done.failures[:SHOWN]:
        complain(failure.reason)
    if len(done.failures) > SHOWN:
        complain(f"and {len(done.failures) - SHOWN:,} more photos could not be read")
    tell(*(() if table is None else table.notes), *done.notes)
    _tell(done, photos, words)
    for difference in () if given.against is None else compare_runs(out, given.against):
        say(str(difference))
    if done.failures:
        raise typer.Exit(1)


@contextmanager
def _begun(out: Path) -> Iterator[None]:
    """Have a folder, and do not leave a new one behind if we fail before a photo was read."""
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except LabelwiseError:
        if new and not any(file.is_file() for file in (out / EMBEDDINGS).rglob("*")):
            shutil.rmtree(out)
        raise


def _tell(done: Started, photos: list[Path], words: Path) -> None:
    names = done.predictor.space.names
    say(f"{counted(done.photos, 'photo')} and {counted(len(names), 'word')}: {done.folder}")
    if done.answered is None:
        if done.nearest_classes:
            pairs = list(zip(names, done.nearest_classes, strict=True))
            show_table(("word", "nearest class of the classifier"), pairs)
            mend = "describe it in the language of the encoder, as in 'Hund: a dog'"
            say(f"where that is another thing, the word was not understood: {mend}")
        say(NOT_CALIBRATED)
        places = [str(photo) for photo in photos] if len(photos) <= 3 else ["PHOTOS"]
        told = [*places, "--words", str(words), "--guide", str(done.folder)]
        next_steps(f"label --page {shlex.join(told)}", f"index {places[0]} --model {done.folder}")
        return
    rows = [
        (name, "no answers yet", "")
        if name in done.predictor.unanswered
        else (name, f"{share:.2%}", f"{low:.2%} to {high:.2%}")
        for name, (share, low, high) in zip(names, done.answered.shares.tolist(), strict=True)
    ]
    show_table(("word", "share of the photos", "90 % interval"), rows)
    answered = counted(done.fitted_on, "answered photo")
    say(f"calibrated on {answered}: {done.answered.first.error_in_words('answered photos')}")
    mend = "where a guide or a person chose them, count with labelwise count"
    say(f"shares and this error suppose that the answered photos were drawn at random: {mend}")
    tell(done.predictor.caution)
    if done.aside:
        aside = f"{counted(done.aside, 'answered photo')} {'was' if done.aside == 1 else 'were'}"
        say(f"{aside} set aside: guarantees are made on them")
    else:
        mend = "--set-aside 0.2 does that, for photos that are not of the split train"
        say(f"no answered photo was set aside, so nothing can be guaranteed; {mend}")
    next_steps(f"index {photos[0]} --model {done.folder}")
